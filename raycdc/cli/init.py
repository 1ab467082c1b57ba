"""``raycdc init``: writes a commented configuration after asking the source what there is."""

from __future__ import annotations

import getpass
import json
import os
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from raycdc.config import Secret
from raycdc.config.mongodb_uri import parse_mongodb_uri
from raycdc.config.references import Resolver
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.errors import ConfigError, ExitCode, SourceError
from raycdc.plugins import PluginGroup, load_plugin

_PASSWORD_VARIABLE = "MYSQL_PASSWORD"  # noqa: S105 - the name of a variable, not a password
_TABLES_SHOWN = 20
_URI_VARIABLE = "MONGODB_URI"


@dataclass(frozen=True, slots=True)
class InitAnswers:
    """What options said; None and empty stand for what is still to be asked.

    With `uri`, as the configuration has it, the source is a MongoDB.
    """

    host: str | None
    port: int | None
    user: str | None
    password_env: str | None
    tables: tuple[str, ...]
    name: str | None
    sink: str
    sink_path: str
    uri: str | None = None


def write_config(path: Path, answers: InitAnswers, *, force: bool) -> int:
    """Ask for what is missing (on a terminal), look at the source, and write `path`."""
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already. Give another name, or overwrite it with --force")
    load_plugin(PluginGroup.SINKS, answers.sink, place="--sink")
    if answers.uri is not None:
        return _write_mongodb(path, answers, answers.uri)
    answers = replace(
        answers,
        host=answers.host or _ask("Host of the MySQL or MariaDB server", "--host", default="127.0.0.1"),
        port=answers.port or int(_ask("Port", "--port", default="3306")),
        user=answers.user or _ask("User", "--user"),
        password_env=answers.password_env or _PASSWORD_VARIABLE,
    )
    assert answers.password_env is not None
    found = _tables_of(answers, _password(answers.password_env))
    tables = answers.tables or _ask_tables(found)
    answers = replace(answers, tables=tables, name=answers.name or _name_of(tables))
    path.write_text(_document(answers, _mysql_source(answers)), encoding="utf-8")
    print(f"Wrote {path}.")
    if answers.password_env not in os.environ:
        print(f"Set the password first:  export {answers.password_env}=...")
    print(f"Next:  raycdc check {path}   and   raycdc run {path}")
    return int(ExitCode.DONE)


def _write_mongodb(path: Path, answers: InitAnswers, text: str) -> int:
    from raycdc.cli.init_mongodb import find_collections, shown_columns

    for option, given in (("--host", answers.host), ("--port", answers.port), ("--user", answers.user)):
        if given is not None:
            raise ConfigError(f"{option} is for MySQL and MariaDB; a MongoDB's connection string says it")
    uri, shown = _connection_string(text)
    found = find_collections(uri, answers.tables)
    tables = answers.tables or _ask_tables(found, "Collections")
    answers = replace(answers, tables=tables, name=answers.name or _name_of(tables))
    columns = shown_columns(uri, tables)
    path.write_text(_document(answers, _mongodb_source(answers, shown, columns)), encoding="utf-8")
    print(f"Wrote {path}.")
    print(f"Next:  raycdc check {path}   and   raycdc run {path}")
    return int(ExitCode.DONE)


def _connection_string(text: str) -> tuple[Secret, str]:
    """The connection string, and what the file has for it: nothing that is secret."""
    resolver = Resolver(os.environ)
    resolved = str(resolver.resolve(text, ("--uri",)))
    if resolver.problems:
        raise ConfigError(resolver.problems[0])
    try:
        parsed = parse_mongodb_uri(resolved)
    except ValueError as problem:
        raise ConfigError(f"--uri {problem}") from None
    if resolver.places:
        return Secret(resolved), text
    if parsed.secrets:
        raise ConfigError(
            "--uri has a password, which others can see on the command line and in the file. Put it into a variable:  "
            f"export {_URI_VARIABLE}=...  and give  --uri '${{env:{_URI_VARIABLE}}}'"
        )
    return Secret(resolved), f"${{env:{_URI_VARIABLE}:-{text}}}"


def _mongodb_source(answers: InitAnswers, uri: str, columns: dict[str, dict[str, str]]) -> list[str]:
    from raycdc.cli.init_mongodb import column_lines

    return [
        'type = "mongodb"',
        _line(f"uri = {_toml_text(uri)}", 'a connection string, or "${env:NAME}" or "${file:PATH}" that holds it'),
        "# names, or regular expressions that match DATABASE.COLLECTION as a whole",
        f"collections = [{', '.join(map(_toml_text, answers.tables))}]",
        "# exclude = ['crm\\.audit_.*']",
        _line('# startup = "snapshot"', "read once, then end; default: then their changes, which needs a replica set"),
        _line('# schema = "document"', "_id and the whole document as text; default: inferred, a column per field"),
        _line('# on_misfit = "rest"', "for listed columns: what does not fit, and other fields, are kept in _rest"),
        "# snapshot = { chunk_mb = 64 }",
        "",
        *column_lines(columns),
    ]


def _ask(question: str, flag: str, *, default: str | None = None) -> str:
    """The user's answer; without a terminal the default, or an error that names the option to use."""
    if not sys.stdin.isatty():
        if default is None:
            raise ConfigError(f"{flag} is required where nobody can be asked (standard input is no terminal)")
        return default
    while True:
        answer = input(f"{question}{f' [{default}]' if default else ''}: ").strip() or default
        if answer:
            return answer


def _password(variable: str) -> Secret:
    known = os.environ.get(variable)
    if known is not None or not sys.stdin.isatty():
        return Secret(known or "")
    return Secret(getpass.getpass(f"Password (not written to the file; {variable} is not set): "))


def _tables_of(answers: InitAnswers, password: Secret) -> list[str]:
    """Names of the tables the account can see. Raises `SourceError` when the server cannot be asked."""
    from raycdc.clients.mysql import connect
    from raycdc.connectors.mysql.catalog import discover_tables
    from raycdc.model.selector import TableSelector

    source = MySqlSourceConfig(
        type="mysql",
        host=answers.host or "",
        port=answers.port or 0,
        user=answers.user or "",
        password=password,
        tables=answers.tables or (r".*\..*",),
    )
    with closing(connect(source.settings())) as connection:
        found = [str(table) for table in discover_tables(connection, TableSelector(source.tables))]
    missing = sorted({str(table) for table in TableSelector(answers.tables).plain_names} - set(found))
    if missing or not found:
        wanted = ", ".join(missing or answers.tables) or "any table"
        raise SourceError(
            f"{answers.user} does not see {wanted} on {answers.host}:{answers.port}. Check the names, or grant SELECT "
            f"on the tables to this account."
        )
    return found


def _ask_tables(found: list[str], what: str = "Tables") -> tuple[str, ...]:
    if not sys.stdin.isatty():
        raise ConfigError(
            f"--table is required where nobody can be asked; the account sees {', '.join(found[:_TABLES_SHOWN])}"
            f"{', ...' if len(found) > _TABLES_SHOWN else ''}"
        )
    print(f"{what}:")
    for number, name in enumerate(found, 1):
        print(f"  {number:3} {name}")
    answer = _ask("Which (numbers or names, separated by commas)", "--table", default="all")
    if answer == "all":
        return tuple(found)
    words = [word.strip() for word in answer.split(",") if word.strip()]
    return tuple(found[int(w) - 1] if w.isdecimal() and 0 < int(w) <= len(found) else w for w in words)


def _name_of(tables: tuple[str, ...]) -> str:
    """The first table's database, as far as it makes a name."""
    database = tables[0].split(".")[0].replace("\\", "")
    name = "".join(c for c in database if c.isascii() and (c.isalnum() or c in "-_"))
    return name or "pipeline"


def _mysql_source(answers: InitAnswers) -> list[str]:
    q = _toml_text
    return [
        _line('type = "mysql"', "also MariaDB"),
        f"host = {q(answers.host or '')}",
        f"port = {answers.port}",
        f"user = {q(answers.user or '')}",
        _line(f'password = "${{env:{answers.password_env}}}"', 'or "${file:PATH}"'),
        "# names, or regular expressions that match DATABASE.TABLE as a whole",
        f"tables = [{', '.join(map(q, answers.tables))}]",
        "# exclude = ['shop\\.audit_.*']",
        _line('# server_id = "5400-5499"', "ids no replica and no other job uses"),
        "# snapshot = { chunk_rows = 100_000 }",
    ]


def _document(answers: InitAnswers, source: list[str]) -> str:
    q = _toml_text
    lines = [
        "# Check with: raycdc check FILE      Run with: raycdc run FILE      Every option: raycdc explain options",
        "",
        "[pipeline]",
        _line(f"name = {q(answers.name or '')}", "identity of the state and of the sink's commits; keep it"),
        _line(f"state = {q(f'./state/{answers.name}')}", "checkpoints; delete it only together with the target"),
        _line('# mode = "until-caught-up"', "stop when the log's present end is committed; default: continuous"),
        _line('# epoch_interval = "2s"', "how often changes are committed to the sink"),
        "",
        "[source]",
        *source,
        "",
        "[readers]",
        _line("max = 4", "processes that share the snapshot"),
        "",
        "[sink]",
        f"type = {q(answers.sink)}",
    ]
    if answers.sink != "console":
        lines.append(f"path = {q(answers.sink_path)}")
    if answers.sink == "delta":
        lines.append(_line('write = "upsert"', 'or "changelog": every change is a row'))
    return "\n".join(lines) + "\n"


def _line(setting: str, comment: str) -> str:
    return f"{setting:<40}  # {comment}"


def _toml_text(text: str) -> str:
    """A TOML string: literal where it holds backslashes, as patterns do."""
    return f"'{text}'" if "\\" in text and "'" not in text else json.dumps(text, ensure_ascii=False)
