"""Replays DDL statements on a real server, and compares their effects with its ``information_schema``.

Each statement the server accepts is followed twice: as it was written, and as it came through the binlog. A statement
whose tables then look the same as the server's is `SAME`, one refused by name `REFUSED`; anything else is `WRONG`,
which is what must never happen. Used by tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pymysql

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.session import dialect_of, dialect_of_session
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.ddl.apply import DdlDialect, RefusedStatement, affected_tables
from raycdc.connectors.mysql.ddl.catalogue import DdlCatalogue
from raycdc.connectors.mysql.server.catalog import discover_tables, load_tables
from raycdc.connectors.mysql.server.client import probe
from raycdc.connectors.mysql.values.charsets import codec_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.model.rules.selector import TableSelector
from raycdc.sandbox.servers import DatabaseServer
from tests.support.sessions import session

#: The offset of the first event of a binlog file.
_FIRST_EVENT = 4


class ReplayVerdict(StrEnum):
    """The outcome of a statement."""

    SAME = "same"
    REFUSED = "refused"
    WRONG = "wrong"
    REJECTED = "rejected by the server"


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The result of a statement. `source` says if it was read as written or from the binlog."""

    statement: str
    verdict: ReplayVerdict
    source: str = "written"
    detail: str = ""


class DdlReplay:
    """A session of a server with its own database. Names of temporary helper databases begin with its name."""

    def __init__(self, server: DatabaseServer, database: str) -> None:
        self._server = server
        self._database = database
        self._selector = TableSelector((rf"{database}\w*\..*",), ())
        with session(server, "root") as connection:
            self._info = probe(connection)
        self._session = server.connect(database=database)
        self._watch = server.connect()
        self._dialect = dialect_of(self._info)
        self._log = _LogTail(server, self._watch, mariadb=self._info.is_mariadb)
        self._log.read()
        self._models: dict[str, DdlCatalogue] = {}
        self._seen: dict[TableId, MySqlTable] = {}
        self._synchronize("written", "log")

    def close(self) -> None:
        """Close the connections."""
        self._session.close()
        self._watch.close()

    def run(self, statements: Iterable[str]) -> Iterator[ReplayOutcome]:
        """Replay `statements`; those the server rejects change nothing on either side."""
        for statement in statements:
            yield from self._run(statement)

    def _run(self, statement: str) -> list[ReplayOutcome]:
        try:
            with self._session.cursor() as cursor:
                cursor.execute(statement)
            if statement.startswith("SET NAMES "):
                self._session.encoding = codec_of(statement.removeprefix("SET NAMES ").strip())
        except pymysql.MySQLError as error:
            self._log.read()
            truth = self._truth()
            if truth != self._models["written"].tables:
                # A statement over several tables may have failed half way on servers without atomic DDL.
                self._synchronize("written", "log")
            return [ReplayOutcome(statement, ReplayVerdict.REJECTED, detail=str(error))]
        truth = self._truth(statement)
        written = self._models["written"].run(statement, self._current(), dialect=self._written_dialect())
        outcomes = [self._judge(statement, "written", written, truth)]
        refused = None
        for item in self._log.read():
            dialect = dialect_of_session(self._dialect, item.session)
            answer = self._models["log"].run(item.statement, item.db, dialect=dialect)
            refused = answer if isinstance(answer, RefusedStatement) else refused
        outcomes.append(self._judge(statement, "log", refused, truth))
        return outcomes

    def _judge(self, statement: str, source: str, answer: object, truth: dict[TableId, MySqlTable]) -> ReplayOutcome:
        if isinstance(answer, RefusedStatement):
            self._synchronize(source)
            return ReplayOutcome(statement, ReplayVerdict.REFUSED, source, answer.reason)
        difference = differences(self._models[source].tables, truth)
        if difference:
            self._synchronize(source)
            return ReplayOutcome(statement, ReplayVerdict.WRONG, source, difference)
        return ReplayOutcome(statement, ReplayVerdict.SAME, source)

    def _synchronize(self, *sources: str) -> None:
        databases = self._databases()
        for source in sources:
            default = self._charset("SELECT @@character_set_server, @@collation_server")
            self._models[source] = DdlCatalogue(
                self._dialect, tables=self._truth(), databases=databases, server_charset=default
            )

    def _truth(self, statement: str = "") -> dict[TableId, MySqlTable]:
        """Return all tables as they are now.

        Those that `statement` cannot have changed are taken from the last call.
        """
        touched = (
            affected_tables(statement, self._current(), dialect=self._written_dialect()).tables if statement else ()
        )
        tables = discover_tables(self._watch, self._selector)
        known = {t: self._seen[t] for t in tables if touched and t in self._seen and t not in touched}
        self._seen = {**known, **load_tables(self._watch, [t for t in tables if t not in known])}
        return dict(self._seen)

    def _databases(self) -> dict[str, tuple[str, str]]:
        with self._watch.cursor() as cursor:
            cursor.execute(
                "SELECT SCHEMA_NAME, DEFAULT_CHARACTER_SET_NAME, DEFAULT_COLLATION_NAME "
                "FROM information_schema.SCHEMATA"
            )
            return {name: (charset, collation) for name, charset, collation in cursor.fetchall()}

    def _charset(self, query: str) -> tuple[str, str]:
        with self._watch.cursor() as cursor:
            cursor.execute(query)
            charset, collation = cursor.fetchone()
        return charset, collation

    def _current(self) -> str:
        with self._session.cursor() as cursor:
            cursor.execute("SELECT DATABASE()")
            return str(cursor.fetchone()[0] or "")

    def _written_dialect(self) -> DdlDialect:
        """Return how the session reads text now. Unlike in a log, comments that were not executed are still there."""
        with self._session.cursor() as cursor:
            cursor.execute("SELECT @@sql_mode, @@explicit_defaults_for_timestamp")
            modes, explicit = cursor.fetchone()
        major, minor, patch = self._info.version
        names = modes.split(",")
        return replace(
            self._dialect,
            ansi_quotes="ANSI_QUOTES" in names,
            backslash_escapes="NO_BACKSLASH_ESCAPES" not in names,
            real_as_float="REAL_AS_FLOAT" in names,
            oracle="ORACLE" in names,
            explicit_timestamps=bool(explicit),
            version=major * 10000 + minor * 100 + patch,
        )


def differences(model: dict[TableId, MySqlTable], truth: dict[TableId, MySqlTable]) -> str:
    """Return the first difference between the followed tables and the server's description; empty if there is none."""
    if model.keys() != truth.keys():
        return f"tables {sorted(map(str, model))} instead of {sorted(map(str, truth))}"
    for name, expected in truth.items():
        ours, theirs = _comparable(model[name]), _comparable(expected)
        if ours["names"] != theirs["names"]:
            return f"{name}: columns {ours['names']} instead of {theirs['names']}"
        for mine, its in zip(ours["columns"], theirs["columns"], strict=True):
            known = {key: value for key, value in mine.items() if value != "" or key != "collation"}
            if known != {key: its[key] for key in known}:
                return f"{name}: {mine} instead of {its}"
        for what in ("key", "row_end"):
            if ours[what] != theirs[what]:
                return f"{name}: {what} {ours[what]} instead of {theirs[what]}"
    return ""


def summary(outcomes: Sequence[ReplayOutcome]) -> dict[str, int]:
    """Return the number of outcomes of each verdict."""
    return {verdict.value: sum(o.verdict is verdict for o in outcomes) for verdict in ReplayVerdict}


def _comparable(table: MySqlTable) -> dict[str, Any]:
    columns = [
        {
            "name": c.name,
            "type": c.column_type,
            "charset": _modern(c.charset),
            "collation": _modern(c.collation),
            "nullable": c.nullable,
        }
        for c in table.columns
    ]
    return {
        "names": [c.name for c in table.columns],
        "columns": columns,
        "key": table.primary_key,
        "row_end": table.row_end,
    }


def _modern(name: str) -> str:
    """Replace ``utf8`` by ``utf8mb3``, as newer servers call it."""
    if name == "binary":
        # Some versions print this for ENUM and SET, others do not.
        return ""
    return "utf8mb3" + name.removeprefix("utf8") if name == "utf8" or name.startswith("utf8_") else name


class _LogTail:
    """Reads the statements that a server has logged since the last call."""

    def __init__(self, server: DatabaseServer, connection: Any, *, mariadb: bool) -> None:
        self._folder = server.data_dir
        self._connection = connection
        self._mariadb = mariadb
        self._file = ""
        self._offset = 0
        self._decoder: BinlogDecoder | None = None

    def read(self) -> list[DdlItem]:
        items: list[DdlItem] = []
        with self._connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            paths = [self._folder / str(row[0]) for row in cursor.fetchall()]
        for path in [p for p in paths if p.name >= self._file]:
            if path.name != self._file:
                self._file, self._offset = path.name, _FIRST_EVENT
                self._decoder = BinlogDecoder(
                    MapSchemas({}),
                    wanted=lambda _: False,
                    start=BinlogOffset(path.name, _FIRST_EVENT),
                    log=LogKind(mariadb=self._mariadb),
                )
            with path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            assert self._decoder is not None
            self._offset += len(data)
            items += [item for item in self._decoder.items(data) if isinstance(item, DdlItem)]
        return items
