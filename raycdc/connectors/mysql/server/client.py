"""Facts about a server: its flavor, its log, and positions in it.

It only reads. Positions need REPLICATION CLIENT (MariaDB: BINLOG MONITOR). The probe needs no privilege, so that
`checks` can report missing ones.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import address_of, query, query_dict, query_one
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.positions.gtid import MySqlGtidSet
from raycdc.connectors.mysql.binlog.positions.position import RESNAPSHOT_HINT, BinlogOffset
from raycdc.connectors.mysql.server.mariadb_log import UnreportedGtidsError, ensure_same_log, gtid_at, gtid_binlog_pos
from raycdc.errors import LogLostError, SourceError
from raycdc.source.as_begun import LogOwner

#: The number of attempts of `current_position` to get a GTID set that belongs exactly to the position, on a busy
#: server.
_GTID_TRIES = 5
#: The same number for a MariaDB that cannot report the set of a position.
_GTID_TRIES_MORE = 500
_GTID_NEXT = re.compile(r"GTID_NEXT=\s*'([^']+:\d+)'")
#: The longest time between a commit's log entry and its visibility, on a server that waits for no replica.
_COMMIT_WAIT_S = 1.0


class Flavor(StrEnum):
    """The two kinds of servers. They differ in GTIDs, snapshots and statements about the log."""

    MYSQL = "mysql"
    MARIADB = "mariadb"


@dataclass(frozen=True, slots=True)
class MySqlServerInfo:
    """The answers of one server when it was probed. Names in capitals are upper-cased server values."""

    flavor: Flavor
    version: tuple[int, int, int]
    version_text: str
    address: str
    server_id: int
    server_uuid: str
    gtid_mode: bool
    log_bin: bool
    binlog_format: str
    row_image: str
    row_metadata: str
    checksum: str
    expire_logs_s: float
    variables: dict[str, str]

    @property
    def is_mariadb(self) -> bool:
        return self.flavor is Flavor.MARIADB

    @property
    def identity(self) -> str:
        """Return the server's identity, for cases without GTIDs: its UUID, or MariaDB's server id."""
        return self.server_uuid or f"{self.flavor}:{self.server_id}"

    @property
    def owner(self) -> LogOwner:
        """Return the owner of the log to which positions belong."""
        return LogOwner(self.identity, self.address, "server", "source.host")

    @property
    def log_kind(self) -> LogKind:
        """Return the kind of the log for decoding it.

        Values have this server's format, even in files of an older version.
        """
        return LogKind(mariadb=self.is_mariadb, json_point_zero=self.is_mariadb or self.version >= (8, 0, 0))

    @property
    def flavor_name(self) -> str:
        return "MariaDB" if self.is_mariadb else "MySQL"


_VARIABLES = (
    "server_id",
    "server_uuid",
    "gtid_mode",
    "log_bin",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "binlog_checksum",
    "binlog_expire_logs_seconds",
    "expire_logs_days",
    "binlog_row_value_options",
    "binlog_transaction_compression",
    "log_bin_compress",
    "innodb_native_foreign_keys",
    "lower_case_table_names",
    "explicit_defaults_for_timestamp",
    "character_set_server",
    "collation_server",
    "max_allowed_packet",
    "log_replica_updates",
    "log_slave_updates",
    "wsrep_on",
    "binlog_error_action",
    "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_master_timeout",
    "rpl_semi_sync_source_enabled",
    "rpl_semi_sync_source_timeout",
)


def probe(connection: Connection[Any]) -> MySqlServerInfo:
    """Query the server's properties. Needs no privilege, and never waits for locks."""
    version_row = query_one(connection, "SELECT VERSION()")
    text = str(version_row[0]) if version_row else ""
    rows = query(connection, "SHOW GLOBAL VARIABLES WHERE Variable_name IN %s", (_VARIABLES,))
    variables = {str(name).lower(): str(value) for name, value in rows}
    flavor = Flavor.MARIADB if "mariadb" in text.lower() else Flavor.MYSQL
    return MySqlServerInfo(
        flavor=flavor,
        version=parse_version(text),
        version_text=text,
        address=address_of(connection),
        server_id=int(variables.get("server_id", "0")),
        server_uuid=variables.get("server_uuid", ""),
        gtid_mode=flavor is Flavor.MARIADB or variables.get("gtid_mode", "").upper() == "ON",
        log_bin=variables.get("log_bin", "").upper() in {"ON", "1"},
        binlog_format=variables.get("binlog_format", "").upper(),
        row_image=variables.get("binlog_row_image", "FULL").upper(),
        row_metadata=variables.get("binlog_row_metadata", "").upper(),
        checksum=variables.get("binlog_checksum", "NONE").upper(),
        expire_logs_s=_expire_s(variables),
        variables=variables,
    )


def parse_version(text: str) -> tuple[int, int, int]:
    """Parse a version: ``10.11.19-MariaDB-log`` becomes ``(10, 11, 19)``; missing parts are 0."""
    parts: list[int] = []
    for part in text.split("-", 1)[0].split(".")[:3]:
        digits = "".join(c for c in part if c.isdigit())
        parts.append(int(digits) if digits else 0)
    parts += [0] * (3 - len(parts))
    return (parts[0], parts[1], parts[2])


def current_end(connection: Connection[Any], info: MySqlServerInfo) -> BinlogOffset:
    """Return the present end of the log: an upper bound of everything that a SELECT answered so far can have seen.

    On MySQL, the position has a GTID set, as in `current_position`; on MariaDB it has none. Raises `SourceError` if the
    log is off or may not be read.
    """
    status = query_dict(connection, status_statement(info))
    if status is None or not status.get("File"):
        raise SourceError(
            f"{info.address} writes no binary log. Start the server with log_bin and binlog_format = ROW."
        )
    gtid_set = "" if info.is_mariadb else str(status.get("Executed_Gtid_Set") or "").replace("\n", "")
    position = BinlogOffset(str(status["File"]), int(status["Position"]), server=info.identity)
    return replace(position, gtid_set=gtid_set) if info.gtid_mode else position


def current_position(connection: Connection[Any], info: MySqlServerInfo) -> BinlogOffset:
    """Return `current_end` with the transactions up to there.

    The GTID set never names a transaction after the position. While MySQL commits the last few transactions before the
    position, the set may lack them; `start_position` waits for these commits. Raises `SourceError` like `current_end`,
    and if a busy MariaDB gives no consistent answer.
    """
    if not info.is_mariadb:
        return current_end(connection, info)
    for _ in range(_GTID_TRIES):
        before = gtid_binlog_pos(connection)
        position = current_end(connection, info)
        if before == gtid_binlog_pos(connection):
            return replace(position, gtid_set=before)
    with suppress(UnreportedGtidsError):
        position = current_end(connection, info)
        return replace(position, gtid_set=gtid_at(connection, position.file, position.pos))
    for _ in range(_GTID_TRIES_MORE):
        before = gtid_binlog_pos(connection)
        position = current_end(connection, info)
        if before == gtid_binlog_pos(connection):
            return replace(position, gtid_set=before)
    return replace(position, gtid_set=gtid_at(connection, position.file, position.pos))


def start_position(connection: Connection[Any], info: MySqlServerInfo) -> BinlogOffset:
    """Return the end of the log now, for a log reader that starts there, when everything before it is visible.

    A transaction is written to the log before SELECTs see it. A reader that starts between these two moments would
    never read the transaction, and a chunk that is opened immediately would not see it either. MariaDB needs no wait,
    because its chunks wait themselves. MySQL with GTIDs waits for the transactions that were being committed. MySQL
    without them can only wait for a time: a second, and the semi-synchronous time-out if that is on. (Chunks wait for
    more: `commits`, or `visible_within`.)
    """
    offset = current_position(connection, info)
    if info.is_mariadb:
        return offset
    if not info.gtid_mode:
        time.sleep(_commit_wait_s(info))
        return offset
    for _ in range(_GTID_TRIES):
        wait_for_commits(connection, info)
        end = current_position(connection, info)
        if end == offset:
            return end
        offset = end
    # The log moved during each attempt, so the set is derived from the transactions after the position.
    wait_for_commits(connection, info)
    return replace(offset, gtid_set=gtids_before(connection, info, offset))


def gtids_before(connection: Connection[Any], info: MySqlServerInfo, offset: BinlogOffset) -> str:
    """Return MySQL's exact set of transactions before a position near the end of the log, when all of them are
    visible.
    """
    row = query_one(connection, "SELECT @@GLOBAL.gtid_executed")
    executed = MySqlGtidSet.parse(str(row[0] or "").replace("\n", "") if row else "")
    # Every transaction executed by now is in the log by now. The transactions after the position are therefore between
    # the two positions.
    end = current_end(connection, info)
    behind = MySqlGtidSet()
    for file, _ in log_files(connection, info):
        if not offset.file_number <= _file_number(file) <= end.file_number:
            continue
        begin = offset.pos if file == offset.file else 4
        for event in query(connection, "SHOW BINLOG EVENTS IN %s FROM %s", (file, begin)):
            gtid = _GTID_NEXT.search(str(event[5])) if str(event[2]).startswith("Gtid") else None
            if gtid is not None:
                for server, ranges in MySqlGtidSet.parse(gtid[1]).intervals.items():
                    behind.add(server, *ranges[0])
    return str(executed.without(behind))


def wait_for_commits(connection: Connection[Any], info: MySqlServerInfo, *, timeout_s: float = 60.0) -> None:
    """Wait until every transaction that is in MySQL's log now is visible. Only with GTIDs."""
    owned = query_one(connection, "SELECT @@GLOBAL.gtid_owned")
    # gtid_owned contains ``uuid:5#thread:6#thread,…``. Such a GTID is in the log but not visible, or not yet in the
    # log.
    text = str(owned[0] or "").replace("\n", "") if owned else ""
    if gtids := _without_owners(text):
        wait_for_gtid_set(connection, info, gtids, timeout_s=timeout_s)


def wait_for_gtid_set(connection: Connection[Any], info: MySqlServerInfo, gtid_set: str, *, timeout_s: float) -> None:
    """Wait on the server until it has executed `gtid_set` (MySQL). Raises `SourceError` after `timeout_s`."""
    row = query_one(connection, "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", (gtid_set, timeout_s))
    if row is None or row[0] != 0:
        raise SourceError(
            f"{info.address} did not make the transactions {gtid_set} visible within {timeout_s:g} s. "
            f"Is this the server whose log is being read, and is no commit stuck on it?"
        )


def oldest_position(connection: Connection[Any], info: MySqlServerInfo) -> BinlogOffset:
    """Return the first position of the oldest log file that the server still has."""
    files = log_files(connection, info)
    purged = ""
    if not info.is_mariadb and info.gtid_mode:
        row = query_one(connection, "SELECT @@GLOBAL.gtid_purged")
        purged = str(row[0] or "").replace("\n", "") if row else ""
    return BinlogOffset(files[0][0], 4, purged)


def log_files(connection: Connection[Any], info: MySqlServerInfo) -> list[tuple[str, int]]:
    """Return the name and size of every log file, oldest first. Raises `SourceError` if there is none."""
    files = [(str(row[0]), int(row[1])) for row in query(connection, "SHOW BINARY LOGS")]
    if not files:
        raise SourceError(f"{info.address} has no binary log file. Start the server with log_bin.")
    return files


def ensure_available(connection: Connection[Any], info: MySqlServerInfo, offset: BinlogOffset) -> None:
    """Raise `LogLostError` unless the server can serve its log from `offset` on and it is the log we know.

    A file and position mean nothing on another server, however similar its log is: MySQL is identified by its UUID;
    MariaDB has none, but its log must have the same transactions up to the same byte.
    """
    if not info.is_mariadb and info.owner.is_another(offset.server):
        raise LogLostError(
            f"{offset} is a position of the server {offset.server}, and {info.address} is {info.identity}: positions "
            f"of two servers cannot be compared. Point source.host at the old one, or begin on this one with another "
            'pipeline.state, pipeline.on_existing = "merge" and '
            f'startup = {{ mode = "offset", gtid_set = "{offset.gtid_set}" }}.'
        )
    setting = "binlog_expire_logs_seconds" if "binlog_expire_logs_seconds" in info.variables else "expire_logs_days"
    snapshot = RESNAPSHOT_HINT
    if offset.by_gtid and not info.is_mariadb:
        # The server finds the position by the transactions alone: the file may be gone if they are not.
        _ensure_gtid_history(connection, info, offset, snapshot)
        return
    if offset.by_gtid:
        return  # MariaDB reports itself, when the dump is requested, if it lacks the transactions.
    files = log_files(connection, info)
    sizes = dict(files)
    oldest, newest = files[0][0], files[-1][0]
    if offset.file not in sizes:
        if _file_number(oldest) > offset.file_number and _same_base(oldest, offset.file):
            raise LogLostError(
                f"{offset} is purged on {info.address} (oldest is {oldest}). {snapshot}; with a greater "
                f"{setting} the server keeps more."
            )
        raise LogLostError(
            f"{offset} is not in the log of {info.address} (it has {oldest} to {newest}): the log was reset, or this "
            f"is another server. {snapshot}, or point source.host at the server the state belongs to."
        )
    if offset.pos > sizes[offset.file]:
        raise LogLostError(
            f"{offset} is after the end of {offset.file} on {info.address} ({sizes[offset.file]} bytes): the log "
            f"was reset, or this is another server. {snapshot}."
        )
    if info.gtid_mode and not info.is_mariadb and offset.gtid_set:
        _ensure_gtid_history(connection, info, offset, snapshot)
    if info.is_mariadb and offset.gtid_set and offset.mark is None:
        ensure_same_log(connection, info.address, offset, snapshot)


def _ensure_gtid_history(
    connection: Connection[Any], info: MySqlServerInfo, offset: BinlogOffset, snapshot: str
) -> None:
    """Check executed ⊇ ours and ours ⊇ purged, as sets with holes."""
    row = query_one(
        connection,
        "SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed), GTID_SUBTRACT(@@GLOBAL.gtid_purged, %s)",
        (offset.gtid_set, offset.gtid_set),
    )
    unknown, lost = (str(value or "").replace("\n", "") for value in row or ("", ""))
    if unknown:
        raise LogLostError(
            f"{info.address} has not executed the transactions {unknown} that were read up to {offset}: this "
            f"is an unrelated server, or one restored to an earlier state. {snapshot}, or use the server they are from."
        )
    if lost:
        raise LogLostError(
            f"The transactions {lost} after {offset} are purged on {info.address}. {snapshot}; with "
            f"a greater binlog_expire_logs_seconds the server keeps more."
        )


def status_statement(info: MySqlServerInfo) -> str:
    """Return the statement for the end of the log, and the databases by which it is filtered."""
    # MySQL 8.2 renamed the statement and 8.4 removed the old one; MariaDB keeps it as an alias.
    return "SHOW BINARY LOG STATUS" if not info.is_mariadb and info.version >= (8, 2, 0) else "SHOW MASTER STATUS"


def _without_owners(owned: str) -> str:
    """Remove the threads: ``uuid:5#12:6#13,uuid2:7#9`` becomes ``uuid:5:6,uuid2:7``."""
    sources = []
    for source in filter(None, owned.split(",")):
        uuid, *intervals = source.strip().split(":")
        sources.append(":".join([uuid, *(i.partition("#")[0] for i in intervals)]))
    return ",".join(sources)


def _commit_wait_s(info: MySqlServerInfo) -> float:
    for role in ("master", "source"):
        if info.variables.get(f"rpl_semi_sync_{role}_enabled", "").upper() in {"ON", "1"}:
            return _COMMIT_WAIT_S + float(info.variables.get(f"rpl_semi_sync_{role}_timeout", "10000")) / 1000
    return _COMMIT_WAIT_S


def _expire_s(variables: dict[str, str]) -> float:
    """Return the seconds for which log files are kept; 0 means for ever."""
    seconds = float(variables.get("binlog_expire_logs_seconds", "0") or 0)
    return seconds or float(variables.get("expire_logs_days", "0") or 0) * 86400


def _file_number(name: str) -> int:
    return int(name.rpartition(".")[2])


def _same_base(one: str, other: str) -> bool:
    return one.rpartition(".")[0] == other.rpartition(".")[0]
