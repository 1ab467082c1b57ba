"""Finds tables whose rows are missing in a server's log, so that they cannot be followed.

`LOG_GAPS` lists the causes, from the manuals of both servers. ``raycdc check``, a start and the manual's page use this
list. A table with missing rows is parked at the first of: the probe before its snapshot, the statement that creates it
or changes its engine, or a start that finds it. A server whose log lacks the rows of all tables is refused.

A further cause are foreign keys that change rows by cascade, on servers that do not log these changes. Such a table is
parked at the first of: the probe before its snapshot, the statement that adds the key, or a start that finds the key
(`unfollowable`; the key may have come by a rename, or while the log was not read).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import ServerRow, query, query_dicts, query_raw, quote_name
from raycdc.config.checks import CheckResult
from raycdc.connectors.mysql.ddl.parse.tokens import CASCADES, adds_cascade
from raycdc.connectors.mysql.server.catalog import asked_together
from raycdc.connectors.mysql.server.client import MySqlServerInfo, probe, status_statement
from raycdc.errors import SchemaError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.tables.parking import Refusal


class GapEffect(Enum):
    """The consequence of a gap in the log."""

    REFUSED = "refused, by `raycdc check` and by a start"
    PARKED = "the tables that it concerns are parked"
    WARNED = "a warning"
    UNSEEN = (
        "these changes cannot be requested: `raycdc verify` finds the missing rows, `raycdc backfill` reads them again"
    )


@dataclass(frozen=True, slots=True)
class LogGap:
    """One way in which rows of a table are not in the log."""

    what: str
    effect: GapEffect
    why: str


FILTERED = LogGap(
    "`binlog_do_db`, `binlog_ignore_db`", GapEffect.PARKED, "rows of the databases that they leave out are not logged"
)
STATEMENTS = LogGap(
    "the same, of other tables",
    GapEffect.WARNED,
    "`ALTER`, `TRUNCATE` and `DROP` are left out by the session's default database, whatever table they name",
)
REPLICA = LogGap(
    "`log_replica_updates = OFF` (`log_slave_updates`) on a replica or a Galera node",
    GapEffect.REFUSED,
    "rows from other servers are not logged",
)
REPLICA_STOPPED = LogGap(
    "the same, where replication is configured and does not run", GapEffect.WARNED, "it may be started at any time"
)
REPLICA_FILTERS = LogGap(
    "`replicate_do_db`, `replicate_ignore_table` and their kin, on a replica",
    GapEffect.WARNED,
    "the filtered rows are neither in its tables nor in its log",
)
IGNORED_ERRORS = LogGap(
    "`binlog_error_action = IGNORE_ERROR`",
    GapEffect.WARNED,
    "if the server cannot write its log, it continues without one",
)
ENGINES = LogGap(
    "an engine whose rows are elsewhere or nowhere (`BLACKHOLE`, `FEDERATED`, `CONNECT`, `SPIDER`, `S3`, …)",
    GapEffect.PARKED,
    "its rows change without this server, or are not kept by it",
)
UNLOGGED_SESSIONS = LogGap("`sql_log_bin = 0` in a session", GapEffect.UNSEEN, "changes of the session are not logged")

LOG_GAPS = (
    FILTERED, STATEMENTS, REPLICA, REPLICA_STOPPED, REPLICA_FILTERS, IGNORED_ERRORS, ENGINES, UNLOGGED_SESSIONS,
)  # fmt: skip

#: Engines whose tables are changed by this server only, which logs each row. For any other engine this is unknown.
LOGGED_ENGINES = frozenset(
    {"innodb", "myisam", "mrg_myisam", "aria", "memory", "archive", "csv", "rocksdb", "tokudb", "mroonga"}
)
_ENGINE_WHY: Mapping[str, str] = {
    "blackhole": "keeps no rows",
    "federated": "has its rows on another server, which may change them",
    "connect": "has its rows in files and on servers that others may change",
    "spider": "has its rows on other servers, which may change them",
    "s3": "has its rows in an object store",
    "columnstore": "loads rows without logging them",
    "ndbcluster": "logs rows of all servers of its cluster in another form",
}
#: The columns of SHOW REPLICA STATUS.
_FILTER_COLUMNS = (
    "Replicate_Do_DB", "Replicate_Ignore_DB", "Replicate_Do_Table", "Replicate_Ignore_Table",
    "Replicate_Wild_Do_Table", "Replicate_Wild_Ignore_Table", "Replicate_Rewrite_DB", "Replicate_Do_Domain_Ids",
    "Replicate_Ignore_Domain_Ids", "Replicate_Ignore_Server_Ids",
)  # fmt: skip
_ON = frozenset({"ON", "1"})


@dataclass(frozen=True, slots=True)
class LoggedTables:
    """A server's answers about its log: which databases it has, and where its rows come from.

    `replication` is the result of SHOW REPLICA STATUS, None if this account may not run it.
    """

    info: MySqlServerInfo
    do: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    replication: tuple[ServerRow, ...] | None = ()

    @classmethod
    def asked(cls, connection: Connection[Any], info: MySqlServerInfo) -> LoggedTables:
        """Query the server. Raises only if the connection breaks."""
        if not info.log_bin:
            return cls(info)
        status = _allowed(connection, status_statement(info)) or [{}]
        first = status[0] if status else {}
        return cls(
            info, _names(first.get("Binlog_Do_DB")), _names(first.get("Binlog_Ignore_DB")), _sources(connection, info)
        )

    def why_not(self, table: TableId, engine: str = "") -> str:
        """Return why rows of the table are not in the log; empty if they are."""
        setting = self._filter_of(table.db)
        if setting:
            return (
                f"Table {table}: {self.info.address} does not log its rows ({setting}). Start that server without the "
                "filter, or leave the table out (source.exclude)."
            )
        if engine and engine.lower() not in LOGGED_ENGINES:
            why = _ENGINE_WHY.get(engine.lower(), "is not known to log each row")
            return (
                f"Table {table}: its engine {engine} {why}, so it cannot be followed in the log of "
                f"{self.info.address}. ALTER it to InnoDB, or leave it out (source.exclude)."
            )
        return ""

    def results(self) -> list[CheckResult]:
        """Return the findings about the server as a whole."""
        results = [*self._replica_results(), *self._warnings()]
        if results:
            return results
        return [
            CheckResult(
                "log_gaps",
                f"The log of {self.info.address} has the rows of every database; changes of a session with "
                f"sql_log_bin = 0 are not visible (raycdc verify finds them).",
                ok=True,
            )
        ]

    def _filter_of(self, db: str) -> str:
        """Return the setting that leaves the database out of the log; empty if there is none."""
        same = str.lower if self.info.variables.get("lower_case_table_names", "0") != "0" else str
        if self.do and same(db) not in {same(name) for name in self.do}:
            return f"binlog_do_db = {', '.join(self.do)}"
        if not self.do and same(db) in {same(name) for name in self.ignore}:
            return f"binlog_ignore_db = {', '.join(self.ignore)}"
        return ""

    def _replica_results(self) -> list[CheckResult]:
        variables, where = self.info.variables, self.info.address
        name = "log_replica_updates" if "log_replica_updates" in variables else "log_slave_updates"
        if variables.get(name, "ON").upper() in _ON:
            return []
        text = f"{where} gets rows from other servers and does not log them ({name} = OFF)."
        fix = f"Put {name} = ON under [mysqld] and restart the server, or read from the server that it follows."
        if variables.get("wsrep_on", "OFF").upper() in _ON or any(map(_runs, self.replication or ())):
            return [CheckResult("replica_updates", text, fix, ok=False)]
        if self.replication is None:
            text = (
                f"Whether {where} is a replica, which would not log the changes that it applies ({name} = OFF), may "
                f"not be asked."
            )
            fix = "GRANT REPLICA MONITOR ON *.* TO this account, or set it ON."
            return [CheckResult("replica_updates", text, fix, required=False)]
        if self.replication:
            text = f"{where} is a stopped replica, which would not log the changes that it applies ({name} = OFF)."
            return [CheckResult("replica_updates", text, fix, required=False)]
        return []

    def _warnings(self) -> list[CheckResult]:
        where, results = self.info.address, []
        if self.do or self.ignore:
            results.append(
                CheckResult(
                    "log_filter",
                    f"{where} filters its log ({self._filter_text()}): ALTER, TRUNCATE and DROP are left out by the "
                    "session's default database, whatever table they name.",
                    "Start the server without the filter; leave rows out at the replicas instead.",
                    required=False,
                )
            )
        filters = {
            str(column): str(row[column])
            for row in self.replication or ()
            for column in _FILTER_COLUMNS
            if row.get(column)
        }
        if filters:
            shown = ", ".join(f"{column} = {value}" for column, value in filters.items())
            results.append(
                CheckResult(
                    "replica_filter",
                    f"{where} is a replica that leaves changes out ({shown}): they are neither in its tables nor in "
                    "its log.",
                    "Read from the server that it follows where they matter.",
                    required=False,
                )
            )
        if self.info.variables.get("binlog_error_action", "").upper() == "IGNORE_ERROR":
            results.append(
                CheckResult(
                    "log_errors",
                    f"{where} goes on without a log where it cannot write it (binlog_error_action = IGNORE_ERROR).",
                    "SET GLOBAL binlog_error_action = ABORT_SERVER;",
                    required=False,
                )
            )
        return results

    def _filter_text(self) -> str:
        settings = {"binlog_do_db": self.do, "binlog_ignore_db": self.ignore}
        return "; ".join(f"{name} = {', '.join(names)}" for name, names in settings.items() if names)


def unlogged(
    connection: Connection[Any],
    info: MySqlServerInfo,
    tables: Collection[TableId],
    *,
    logged: LoggedTables | None = None,
) -> dict[TableId, str]:
    """Return the `tables` whose rows are not in the log, each with its reason."""
    if not tables:
        return {}
    asked = logged or LoggedTables.asked(connection, info)
    engines = engines_of(connection, tables)
    return {table: why for table in sorted(tables) if (why := asked.why_not(table, engines.get(table, "")))}


def check_log(connection: Connection[Any], info: MySqlServerInfo, tables: Collection[TableId]) -> list[CheckResult]:
    """Return the findings about the server, and about each table that is parked."""
    logged = LoggedTables.asked(connection, info)
    concerned = unlogged(connection, info, tables, logged=logged)
    return [
        *(logged.results() if info.log_bin else []),
        *(CheckResult(f"table {table}", why, error=SchemaError, parks=True) for table, why in concerned.items()),
    ]


def unlogged_at_start(
    connection: Connection[Any], info: MySqlServerInfo, stream: StreamState, followed: Iterable[TableId]
) -> list[Refusal]:
    """Return the `followed` tables of a sealed log state whose rows are not logged: they are parked at its position."""
    now_ms = time.time_ns() // 1_000_000
    return [
        Refusal(table, stream.followed[table].incarnation, why, stream.position, now_ms)
        for table, why in unlogged(connection, info, list(followed)).items()
    ]


def engines_of(connection: Connection[Any], tables: Iterable[TableId]) -> dict[TableId, str]:
    """Return the engine of each existing table."""
    asked = "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s"
    return {
        TableId(db, str(name)): str(engine or "")
        for db, names in asked_together(tables)
        for name, engine in query(connection, asked, (db, names))
    }


def _sources(connection: Connection[Any], info: MySqlServerInfo) -> tuple[ServerRow, ...] | None:
    """Return the servers from which this one replicates; None if the query is not permitted."""
    if info.is_mariadb:
        statement = "SHOW ALL SLAVES STATUS"
    else:
        statement = "SHOW REPLICA STATUS" if info.version >= (8, 0, 22) else "SHOW SLAVE STATUS"
    if (rows := _allowed(connection, statement)) is not None:
        return tuple(rows)
    if info.is_mariadb:
        # Most servers that refuse the query are no replicas.
        running = query(connection, "SHOW GLOBAL STATUS LIKE 'Slaves_running'")
        if running and int(running[0][1]) > 0:
            return ({"Slave_SQL_Running": "Yes"},)
        if not query(connection, "SELECT @@GLOBAL.gtid_slave_pos")[0][0]:
            return ()
    return None


def _allowed(connection: Connection[Any], statement: str) -> list[ServerRow] | None:
    try:
        return query_dicts(connection, statement)
    except SourceUnavailableError:
        raise
    except SourceError:
        return None


def _runs(source: ServerRow) -> bool:
    columns = ("Replica_IO_Running", "Replica_SQL_Running", "Slave_IO_Running", "Slave_SQL_Running")
    return any(str(source.get(column, "No")) != "No" for column in columns)


def _names(text: Any) -> tuple[str, ...]:
    return tuple(name.strip() for name in str(text or "").split(",") if name.strip())


def logs_cascades(info: MySqlServerInfo) -> bool:
    """Return True if the log has changes that a foreign key makes by cascade.

    By default, MySQL 9.7 carries out foreign keys above the engine.
    """
    native = info.variables.get("innodb_native_foreign_keys", "").upper() in {"ON", "1"}
    return not info.is_mariadb and info.version >= (9, 7, 0) and not native


def has_cascade(connection: Connection[Any], table: TableId) -> bool:
    """Return True if a foreign key of the table changes its rows when rows of another table change."""
    # REFERENTIAL_CONSTRAINTS is not used, because it hides the keys from users who may only SELECT.
    try:
        rows = query_raw(connection, f"SHOW CREATE TABLE {quote_name(table.db, table.table)}")
    except SourceUnavailableError:
        raise
    except SourceError:
        return False
    return any(adds_cascade(statement.decode("utf-8", "replace")) for _, statement, *_ in rows)


def refusal_of(connection: Connection[Any], info: MySqlServerInfo, table: TableId) -> str:
    """Return why the table cannot be followed; empty if it can."""
    return f"{table}: {CASCADES}." if not logs_cascades(info) and has_cascade(connection, table) else ""


def check_cascades(
    connection: Connection[Any], info: MySqlServerInfo, tables: Iterable[TableId], *, accepted: bool
) -> list[CheckResult]:
    """Return a finding for each table with such a key. The table is parked, unless the user `accepted` the loss."""
    return [
        CheckResult(f"table {table}", why, error=SchemaError, required=not accepted, parks=not accepted)
        for table in sorted(tables)
        if (why := refusal_of(connection, info, table))
    ]


def unfollowable(connection: Connection[Any], stream: StreamState, followed: Iterable[TableId]) -> list[Refusal]:
    """Return the `followed` tables of a sealed log state that have such a key now: they are parked at its position."""
    info, now_ms = probe(connection), time.time_ns() // 1_000_000
    return [
        Refusal(table, stream.followed[table].incarnation, why, stream.position, now_ms)
        for table in sorted(followed)
        if (why := refusal_of(connection, info, table))
    ]
