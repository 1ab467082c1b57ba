"""The questions of ``raycdc init`` for a MySQL or MariaDB server: which tables to capture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import connect
from raycdc.config.init_questions import Answers, InitQuestions, Question, secret_in, toml_line, toml_list, toml_text
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.server.catalog import discover_tables
from raycdc.errors import ConfigError, SourceError, SourceUnavailableError
from raycdc.model.rules.selector import TableSelector, plain_name


class MySqlInitQuestions(InitQuestions):
    """The questions about MySQL and MariaDB, with a list of the account's tables."""

    trial = "mariadb"
    verified = True

    def questions(self) -> tuple[Question, ...]:
        return (
            Question("host", "Host of the MySQL or MariaDB server", "127.0.0.1"),
            Question("port", "Port", "3306"),
            Question("user", "User"),
            Question("password-env", "The environment variable that holds its password", "MYSQL_PASSWORD", asked=False),
        )

    def choices(self, answers: Answers, wanted: Sequence[str]) -> list[str]:
        source = MySqlSourceConfig(
            type="mysql",
            host=answers["host"],
            port=_port(answers),
            user=answers["user"],
            password=secret_in(answers["password-env"]),
            tables=tuple(wanted) or (r".*\..*",),
        )
        with closing(_connected(source, answers["password-env"])) as connection:
            names = [plain_name(table) for table in discover_tables(connection, TableSelector(source.tables))]
        missing = sorted({plain_name(table) for table in TableSelector(tuple(wanted)).plain_names} - set(names))
        if missing or not names:
            unseen = ", ".join(missing or wanted) or "any table"
            raise SourceError(
                f"{source.user} does not see {unseen} on {source.host}:{source.port}. Check the names, or grant SELECT "
                f"on the tables to this account."
            )
        return names

    def section(self, answers: Answers, chosen: Sequence[str]) -> list[str]:
        return [
            toml_line('type = "mysql"', "also MariaDB"),
            f"host = {toml_text(answers['host'])}",
            f"port = {_port(answers)}",
            f"user = {toml_text(answers['user'])}",
            toml_line(f'password = "${{env:{answers["password-env"]}}}"', 'or "${file:PATH}"'),
            "# names, or regular expressions that match DATABASE.TABLE as a whole",
            f"tables = {toml_list(chosen)}",
            "# exclude = ['shop\\.audit_.*']",
            toml_line('# server_id = "5400-5499"', "ids no replica and no other job uses"),
            "# snapshot = { chunk_rows = 100_000 }",
        ]

    def before_run(self, answers: Answers) -> list[str]:
        return self.unset(f"${{env:{answers['password-env']}}}")


def _connected(source: MySqlSourceConfig, variable: str) -> Connection[Any]:
    try:
        return connect(source.settings())
    except SourceUnavailableError:
        raise
    except SourceError as refused:
        if variable in os.environ or source.password.reveal():
            raise
        raise SourceError(f"{refused} The variable {variable} is not set: export {variable}=...") from refused


def _port(answers: Answers) -> int:
    text = answers["port"]
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise ConfigError(f"--port {text} is no TCP port")
    return int(text)
