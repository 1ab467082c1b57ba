"""Checks that an account can capture the tables of a server. Each finding has the statement that fixes it.

`check_source` changes nothing; each finding is one `CheckResult`. `require_ok` turns failed required findings into one
error that fits on a screen. ``raycdc check`` does all checks. A start uses `require_source`, which gives no advice, and
leaves out the checks that park tables, because these run when tables are parked.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pymysql
from pymysql.connections import Connection

from raycdc.clients.mysql import (
    MySqlSettings,
    is_denied,
    is_of_changed_table,
    is_of_locked_table,
    query,
    query_one,
    quote_name,
)
from raycdc.config.checks import CheckResult, readable_on_the_way
from raycdc.config.tls import TlsMode
from raycdc.connectors.mysql.ddl.logged_otherwise import unlogged_reason
from raycdc.connectors.mysql.ddl.parse.column import never_logged
from raycdc.connectors.mysql.log.prepared_search import check_prepared
from raycdc.connectors.mysql.server.catalog import below_merged, load_tables, table_sizes
from raycdc.connectors.mysql.server.client import MySqlServerInfo, current_end
from raycdc.connectors.mysql.server.locks import PLANNING_WAIT_S, wait_for_locks
from raycdc.connectors.mysql.server.unlogged import LoggedTables, check_cascades, check_log
from raycdc.connectors.mysql.snapshot.commits import sees_commits
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.model.batch import reserved_column

#: A shorter retention may lose the log during an outage of the pipeline.
RETENTION_MIN_S = 86_400.0
#: The lock timeouts for the first locked table and for each later one, because information about them must not delay
#: the others.
_FIRST_LOCK_WAIT_S, _LATER_LOCK_WAIT_S = 2, PLANNING_WAIT_S
#: The most tables that a message names.
_TABLES_SHOWN = 8


def check_source(
    connection: Connection[Any],
    info: MySqlServerInfo,
    tables: Iterable[TableId],
    *,
    server_ids: Iterable[int] = (),
    accept_cascades: bool = False,
) -> list[CheckResult]:
    """Return all findings, required and advisory, for capturing `tables` with one of `server_ids`.

    No privilege is needed: a check that is not permitted counts as failed. Raises only if the connection breaks.
    """
    wanted = sorted(set(tables))
    account = _account(connection)
    loaded = load_tables(connection, wanted)
    return [
        *_log_settings(info),
        _position_privilege(connection, info, account),
        _replication_privilege(connection, account),
        *_process_privilege(connection, info, account),
        *_select_privileges(connection, info, wanted, loaded, account, tries_rows=True),
        *_table_warnings(connection, loaded),
        *check_log(connection, info, loaded),
        check_prepared(connection, info, account),
        *check_cascades(connection, info, loaded, accepted=accept_cascades),
        *_server_id(connection, info, list(server_ids)),
    ]


def require_source(
    connection: Connection[Any], info: MySqlServerInfo, tables: Iterable[TableId], loaded: dict[TableId, MySqlTable]
) -> None:
    """Raise `SourceError` for findings of `check_source` that prevent a run.

    `loaded` are the readable tables (`load_tables`). It uses one statement per table, because a start waits for it.
    """
    wanted = sorted(set(tables))
    account = _account(connection)
    results = [
        *_log_settings(info),
        _position_privilege(connection, info, account),
        _replication_privilege(connection, account),
        *LoggedTables.asked(connection, info).results(),
        *_select_privileges(connection, info, wanted, loaded, account, tries_rows=False),
    ]
    require_ok(results, info)


def rows_in_the_open(settings: MySqlSettings) -> list[CheckResult]:
    """Warn if rows are transferred unencrypted from a server on another machine."""
    return readable_on_the_way(
        settings.address,
        [] if settings.unix_socket else [settings.host],
        encrypted=settings.effective_tls_mode is not TlsMode.DISABLED,
        fix='Set source.tls.mode, to "verify-identity" where you can, and source.tls.ca.',
    )


def require_ok(results: Iterable[CheckResult], info: MySqlServerInfo) -> None:
    """Raise `SourceError` listing every required check that failed, each with its fix."""
    failed = [result for result in results if result.required and not result.ok and not result.parks]
    if not failed:
        return
    if len(failed) == 1:
        raise SourceError(f"{failed[0].text} {failed[0].fix}".strip())
    lines = "\n".join(f"  - {result.text} {result.fix}".rstrip() for result in failed)
    raise SourceError(f"{info.address} cannot be captured yet:\n{lines}")


#: The pause between attempts to get a lease.
_LEASE_PAUSE_S = 0.2


class ServerIdsInUseError(SourceError):
    """All server ids that this pipeline may use as a replica are in use."""

    cure = "End the other readers that have these ids, or give this pipeline a range of its own in `source.server_id`."


def lease_server_id(
    connection: Connection[Any], info: MySqlServerInfo, candidates: Iterable[int], *, wait_s: float = 0.0
) -> int:
    """Return the first unused id of `candidates`, reserved until `connection` ends. Raises `SourceError` if there is
    none.

    If two replicas use one id, the server ends the log stream of the first. Not every account can list the registered
    replicas. Therefore our jobs also hold a user lock with the id's name, which needs no privilege. `connection` must
    be the one on which the log is then read. If all ids are in use, the first one that becomes free is returned: the
    server notices the end of a killed job only at its next heartbeat.
    """
    wanted = list(candidates)
    deadline = time.monotonic() + wait_s
    while True:
        used = used_server_ids(connection, info)
        for candidate in wanted:
            if candidate not in used and _lock(connection, candidate):
                return candidate
        if time.monotonic() >= deadline:
            break
        time.sleep(_LEASE_PAUSE_S)
    raise ServerIdsInUseError(
        f"Every id of source.server_id ({_span(wanted)}) is in use on {info.address}. Stop the other job, or give "
        f"this one another range in source.server_id."
    )


def used_server_ids(connection: Connection[Any], info: MySqlServerInfo) -> set[int]:
    """Return the ids of the server and of its registered replicas, as far as this account may see them."""
    used = {info.server_id}
    if _dies_of_lost_replicas(info):
        return used
    # MySQL 8.0.22 renamed the statement, and 8.4 removed the old name. Another check reports a missing REPLICATION
    # SLAVE.
    renamed = not info.is_mariadb and info.version >= (8, 0, 22)
    statement = "SHOW REPLICAS" if renamed else "SHOW SLAVE HOSTS"
    try:
        used.update(int(row[0]) for row in query(connection, statement))
    except SourceUnavailableError:
        raise
    except SourceError:
        return used
    return used


def _dies_of_lost_replicas(info: MySqlServerInfo) -> bool:
    """Return True if listing registered replicas may crash the server with signal 11.

    Older MySQL reads each replica's UUID from its session, which may be gone (seen with 8.0.15, reported for 5.7.21 and
    8.0.18, fixed in 8.0.20; https://github.com/percona/percona-server/pull/2589 explains the cause).
    """
    return not info.is_mariadb and info.version < (8, 0, 20)


def _lock(connection: Connection[Any], server_id: int) -> bool:
    """Take the lock of `server_id`. Returns True if it was free (MySQL manual, "Locking Functions")."""
    row = query_one(connection, "SELECT GET_LOCK(%s, 0)", (_lock_name(server_id),))
    return row is not None and row[0] == 1


def _lock_name(server_id: int) -> str:
    return f"raycdc:server_id:{server_id}"


def _is_locked(connection: Connection[Any], server_id: int) -> bool:
    row = query_one(connection, "SELECT IS_USED_LOCK(%s)", (_lock_name(server_id),))
    return row is not None and row[0] is not None


def _log_settings(info: MySqlServerInfo) -> list[CheckResult]:
    where = info.address
    results = [
        CheckResult(
            "log_bin",
            f"{where} writes a binary log." if info.log_bin else f"{where} writes no binary log (log_bin = OFF).",
            "Put log_bin = binlog, binlog_format = ROW and a server_id under [mysqld] and restart the server.",
            ok=info.log_bin,
        )
    ]
    if not info.log_bin:
        return results
    results.append(
        CheckResult(
            "binlog_format",
            f"binlog_format is {info.binlog_format} on {where}.",
            "Only ROW logs the changed rows: run SET GLOBAL binlog_format = ROW; put it under [mysqld], and reconnect "
            "the applications (sessions keep the old format).",
            ok=info.binlog_format == "ROW",
        )
    )
    results.append(
        CheckResult(
            "binlog_row_image",
            f"binlog_row_image is {info.row_image} on {where}.",
            "Rows must be logged whole: run SET GLOBAL binlog_row_image = FULL; put it under [mysqld], and reconnect "
            "the applications.",
            ok=info.row_image == "FULL",
        )
    )
    kept_s = info.expire_logs_s
    results.append(
        CheckResult(
            "retention",
            f"{where} keeps its log {'until it is purged by hand' if kept_s == 0 else f'for {kept_s / 3600:g} hours'}.",
            "A pipeline that is stopped longer must take a new snapshot: raise binlog_expire_logs_seconds "
            "(expire_logs_days on old servers).",
            ok=kept_s == 0 or kept_s >= RETENTION_MIN_S,
            required=False,
        )
    )
    return results


def _position_privilege(connection: Connection[Any], info: MySqlServerInfo, account: str) -> CheckResult:
    name, fix = "privilege_log_position", f"Run: GRANT REPLICATION CLIENT ON *.* TO {account};"
    if not info.log_bin:
        return CheckResult(name, "The log position was not queried: there is no log.", ok=True)
    try:
        position = current_end(connection, info)
    except SourceUnavailableError:
        raise
    except SourceError:
        return CheckResult(name, f"{account} may not ask {info.address} for its log position.", fix)
    return CheckResult(name, f"The log of {info.address} ends at {position}.", ok=True)


def _replication_privilege(connection: Connection[Any], account: str) -> CheckResult:
    grants = _grants(connection, account)
    listed = [privileges for grant in grants for privileges, _, on in [grant.rpartition(" ON *.* TO ")] if on]
    ok = any(re.search(r"\b(ALL PRIVILEGES|REPLICATION SLAVE|SUPER)\b", text, re.IGNORECASE) for text in listed)
    return CheckResult(
        "privilege_log",
        f"{account} may read the log." if ok else f"{account} may not read the log.",
        f"Run: GRANT REPLICATION SLAVE ON *.* TO {account};",
        ok=ok,
    )


def _process_privilege(connection: Connection[Any], info: MySqlServerInfo, account: str) -> list[CheckResult]:
    if info.is_mariadb or info.gtid_mode:
        return []
    ok = sees_commits(connection, info)
    text = f"{account} {'may' if ok else 'may not'} see which sessions commit, on a server without GTIDs."
    return [
        CheckResult(
            "privilege_process",
            text,
            f"Each start of a snapshot waits for snapshot.visible_within. To avoid that: GRANT PROCESS ON *.* TO "
            f"{account};",
            ok=ok,
            required=False,
        )
    ]


def _grants(connection: Connection[Any], account: str) -> list[str]:
    """Return the user's grants, with those of its roles."""
    own = [str(row[0]) for row in query(connection, "SHOW GRANTS FOR CURRENT_USER()")]
    roles = [g.removeprefix("GRANT ").split(" TO ", 1)[0] for g in own if g.startswith(("GRANT `", "GRANT '"))]
    for role in roles:
        with suppress(SourceError):
            # MySQL lists the privileges of a role only if it is named. MariaDB lists them for the role itself.
            own += [str(row[0]) for row in query(connection, f"SHOW GRANTS FOR {account} USING {role}")]
        with suppress(SourceError):
            own += [str(row[0]) for row in query(connection, f"SHOW GRANTS FOR {role}")]
    return own


def _select_privileges(
    connection: Connection[Any],
    info: MySqlServerInfo,
    wanted: list[TableId],
    loaded: dict[TableId, MySqlTable],
    account: str,
    *,
    tries_rows: bool,
) -> list[CheckResult]:
    """Check that each table exists and may be read.

    With `tries_rows`, check that its rows can be read, or it is parked.
    """
    results = []
    refused: list[TableId] = []
    locked: list[TableId] = []
    wait_for_locks(connection, _FIRST_LOCK_WAIT_S)
    below = below_merged(connection, loaded) if tries_rows else {}
    for table in wanted:
        name = quote_name(table.db, table.table)
        if table not in loaded:
            results.append(
                CheckResult(
                    f"table {table}",
                    f"Table {table} does not exist on {info.address}, or {account} may not SELECT from it.",
                    f"Check source.tables, or run: GRANT SELECT ON {name} TO {account};",
                )
            )
            continue
        why, may_read = unfit(loaded[table]) or below.get(table, ""), True
        try:
            if not why:
                may_read = _may_read(connection, name)
            if not why and (tries_rows or not may_read):
                why = unreadable(connection, table)
        except SourceUnavailableError as error:
            if not is_of_locked_table(error.__cause__):
                raise
            if not locked:
                wait_for_locks(connection, _LATER_LOCK_WAIT_S)
            locked.append(table)
            continue
        if why:
            results.append(CheckResult(f"table {table}", why, error=SchemaError, parks=True))
        elif not may_read:
            refused.append(table)
    wait_for_locks(connection)
    if locked:
        results.append(
            CheckResult(
                "locked",
                f"Other sessions have {_names(locked)} locked (LOCK TABLES, or a statement such as ALTER TABLE that "
                f"runs or waits for a long transaction), so whether {account} may SELECT was not asked. Reading their "
                f"remaining rows waits, too.",
                "SHOW FULL PROCESSLIST lists the sessions.",
                required=False,
            )
        )
    fix = " ".join(f"GRANT SELECT ON {quote_name(t.db, t.table)} TO {account};" for t in refused[:_TABLES_SHOWN])
    if refused:
        results.append(
            CheckResult("privilege_select", f"{account} may not SELECT from {_names(refused)}.", f"Run: {fix}")
        )
    elif loaded or not wanted:
        every = "every other table" if locked or len(loaded) < len(wanted) else "every table"
        results.append(CheckResult("privilege_select", f"{account} may SELECT from {every} that it sees.", ok=True))
    return results


def _may_read(connection: Connection[Any], name: str) -> bool:
    """Return True if the server accepts a SELECT of every column of the table `name`."""
    try:
        # All columns are selected by ``*``: columns without a privilege are hidden from us, but they are in the log.
        query(connection, f"SELECT * FROM {name} LIMIT 0")
    except SourceUnavailableError:
        raise
    except SourceError:
        return False
    return True


def unreadable(connection: Connection[Any], table: TableId) -> str:
    """Return why the server cannot read a table's rows (damaged or missing file); empty if it can, or if unknown.

    Waits for a lock of the table as long as the session permits; see `short_lock_waits`.
    """
    try:
        query(connection, f"SELECT 1 FROM {quote_name(table.db, table.table)} LIMIT 1")
    except SourceUnavailableError as error:
        if not is_of_locked_table(error.__cause__):
            raise
    except SourceError as error:
        if not is_denied(error.__cause__) and not is_of_changed_table(error.__cause__):
            return (
                f"Table {table} cannot be read: {error}. Repair it (CHECK TABLE, REPAIR TABLE, IMPORT TABLESPACE), "
                f"then "
                f"run: raycdc tables resnapshot CONFIG {table}; or leave it out (source.exclude)."
            )
    return ""


def unfit(table: MySqlTable) -> str:
    """Return why a table cannot be captured by any pipeline; empty if it can."""
    try:
        table.schema()
    except SchemaError as cause:
        return str(cause)
    if (why := never_logged(table)) is not None:
        return why
    if why := unlogged_reason(table):
        return why
    if why := reserved_column(column.name for column in table.columns):
        return f"Table {table.id}: {why} with source.exclude."
    return ""


def _table_warnings(connection: Connection[Any], loaded: dict[TableId, MySqlTable]) -> list[CheckResult]:
    results = []
    sizes = table_sizes(connection, loaded)
    transactional = {
        str(row[0]).lower()
        for row in query(connection, "SELECT ENGINE FROM information_schema.ENGINES WHERE TRANSACTIONS = 'YES'")
    }
    other = sorted(table for table, size in sizes.items() if size.engine.lower() not in transactional)
    if other:
        results.append(
            CheckResult(
                "engine",
                f"{_names(other)}: engine without transactions. Rows are visible before they are logged, so a change "
                f"during the snapshot may appear twice in a changelog.",
                "ALTER TABLE ... ENGINE = InnoDB, or do not write to them during the snapshot.",
                required=False,
            )
        )
    return results


def _server_id(connection: Connection[Any], info: MySqlServerInfo, wanted: list[int]) -> list[CheckResult]:
    if not wanted:
        return []
    used = used_server_ids(connection, info)
    unasked = (
        ""
        if not _dies_of_lost_replicas(info)
        else (" Only raycdc's own jobs were checked: MySQL before 8.0.20 may crash when it lists its replicas.")
    )
    if len(wanted) == 1:
        unasked += " It is the only id, so no paused table can continue from its position (raycdc tables resume)."
    free = next((id_ for id_ in wanted if id_ not in used and not _is_locked(connection, id_)), None)
    taken = f"server_id {_span(wanted)} is in use on {info.address}."
    return [
        CheckResult(
            "server_id",
            taken if free is None else f"server_id {free} is free.{unasked}",
            "Give source.server_id a range that no replica and no other job uses.",
            ok=free is not None,
        )
    ]


def _account(connection: Connection[Any]) -> str:
    row = query_one(connection, "SELECT CURRENT_USER()")
    user, _, host = str(row[0] if row else "").rpartition("@")
    return f"{_quoted(user)}@{_quoted(host)}"


def _quoted(text: str) -> str:
    return "'" + str(pymysql.converters.escape_string(text)) + "'"


def _names(tables: list[TableId]) -> str:
    shown = ", ".join(str(table) for table in tables[:_TABLES_SHOWN])
    return shown if len(tables) <= _TABLES_SHOWN else f"{shown} and {len(tables) - _TABLES_SHOWN} more"


def _span(ids: list[int]) -> str:
    return str(ids[0]) if len(ids) == 1 else f"{ids[0]}-{ids[-1]}"
