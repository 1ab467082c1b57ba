"""MariaDB's transactions at a position of its log, queried from the server.

MariaDB has no UUID. The transactions before a position therefore show whether its file and byte are still the same
position. The server reports these transactions only for positions up to 4 GiB (32 bits). For a later position, they are
derived from the transactions after the position, which are few, because a file ends soon after the huge transaction
that made it so large.
"""

from __future__ import annotations

import re
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import address_of, query, query_one
from raycdc.connectors.mysql.binlog.positions.gtid import MariaDbGtidSet
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.errors import LogLostError, SourceError, SourceUnavailableError

#: The largest position for BINLOG_GTID_POS, which returns NULL beyond.
POSITION_MAX = (1 << 32) - 1
#: The number of events at the head of a file: its format and the list of earlier transactions, maybe with an encryption
#: event between them.
_HEAD_EVENTS = 5
_GTID = re.compile(r"(?<!\d)(\d+)-(\d+)-(\d+)")


class UnreportedGtidsError(SourceError):
    """MariaDB cannot report its transactions up to a position, because an earlier event is larger than it accepts from
    clients.
    """

    cure = "Raise max_allowed_packet on the server (SET GLOBAL max_allowed_packet = …, up to 1 GiB)."


def ensure_same_log(connection: Connection[Any], address: str, offset: BinlogOffset, snapshot: str) -> None:
    """Raise `LogLostError` unless MariaDB's transactions before our position are the transactions that we read.

    They differ after RESET MASTER, and on other servers. If we know a domain that the file does not have, the domain
    was deleted since (FLUSH BINARY LOGS DELETE_DOMAIN_ID).
    """
    ours = MariaDbGtidSet.parse(offset.gtid_set).last
    try:
        theirs = _transactions_before(connection, offset) if offset.pos <= POSITION_MAX else None
    except UnreportedGtidsError:
        theirs = None
    if theirs is None:
        same, theirs = _compared_with_what_follows(connection, offset, ours)
    else:
        same = bool(theirs) and all(ours.get(domain) == last for domain, last in theirs.items())
    if not same:
        gtids = str(MariaDbGtidSet(theirs)) or "none"
        raise LogLostError(
            f"{offset} on {address} comes after the transactions {gtids}, but those read up to there were "
            f"{offset.gtid_set}: the log was reset (RESET MASTER), or this is another server. {snapshot}, or point "
            f"source.host at the server the state belongs to."
        )


def gtid_at(connection: Connection[Any], file: str, position: int) -> str:
    """Return MariaDB's GTID position at a log position of up to `POSITION_MAX`; the server reads the file up to there.

    Raises `UnreportedGtidsError` if the server cannot: it reads no event larger than it accepts from a client.
    """
    row = query_one(connection, "SELECT BINLOG_GTID_POS(%s, %s), @@max_allowed_packet", (file, position))
    assert row is not None
    if row[0] is None:
        raise UnreportedGtidsError(
            f"{address_of(connection)} cannot report its transactions up to {file}:{position}: it has no such file, or "
            f"an event in it is larger than max_allowed_packet ({row[1]} bytes). Raise that on the server (SET GLOBAL "
            f"max_allowed_packet = …, up to 1 GiB), and start again."
        )
    return str(row[0])


def gtid_binlog_pos(connection: Connection[Any]) -> str:
    """Return the last transaction of each domain in the whole log."""
    row = query_one(connection, "SELECT @@GLOBAL.gtid_binlog_pos")
    return str(row[0] or "") if row else ""


def listed_before(connection: Connection[Any], file: str) -> list[tuple[int, int, int]]:
    """Return (domain, server id, sequence number) of all transactions before a file, from the list at its head.

    The last entry of a domain counts.
    """
    head = query(connection, f"SHOW BINLOG EVENTS IN %s LIMIT {_HEAD_EVENTS}", (file,))
    listed = "".join(str(event[5]) for event in head if str(event[2]).lower() == "gtid_list")
    return [(int(domain), int(server), int(sequence)) for domain, server, sequence in _GTID.findall(listed)]


def _transactions_before(connection: Connection[Any], offset: BinlogOffset) -> dict[int, tuple[int, int]]:
    """Return the server's answer; empty if the position is inside an event, and therefore of another log."""
    try:
        return MariaDbGtidSet.parse(gtid_at(connection, offset.file, offset.pos)).last
    except SourceUnavailableError:
        raise
    except SourceError:
        if _is_between_events(connection, offset):
            raise
        return {}


def _compared_with_what_follows(
    connection: Connection[Any], offset: BinlogOffset, ours: dict[int, tuple[int, int]]
) -> tuple[bool, dict[int, tuple[int, int]]]:
    """Compare `ours` with the transactions in the log after the position.

    Returns True if `ours` can be the transactions before the position, and the last transaction of each domain at the
    end of the position's file.

    If a domain continues after the position, it must continue after our last transaction of the domain. Otherwise our
    last transaction must be the domain's last one.
    """
    files = [str(row[0]) for row in query(connection, "SHOW BINARY LOGS")]
    following = files[files.index(offset.file) + 1 :]
    # The newest file is queried last, because transactions that commit meanwhile are appended to it, after the
    # position.
    last = MariaDbGtidSet.parse(gtid_binlog_pos(connection)).last
    if following:
        last = {domain: (server, sequence) for domain, server, sequence in listed_before(connection, following[0])}
    try:
        events = query(connection, "SHOW BINLOG EVENTS IN %s FROM %s", (offset.file, offset.pos))
    except SourceUnavailableError:
        raise
    except SourceError:
        return False, {}
    goes_on: dict[int, int] = {}
    for event in events:
        if str(event[2]).lower() == "gtid" and (gtid := _GTID.search(str(event[5]))) is not None:
            goes_on.setdefault(int(gtid[1]), int(gtid[3]))
    same = all(ours.get(domain, (0, 0))[1] < sequence for domain, sequence in goes_on.items())
    return same and all(ours.get(d) == gtid for d, gtid in last.items() if d not in goes_on), last


def _is_between_events(connection: Connection[Any], offset: BinlogOffset) -> bool:
    try:
        query(connection, "SHOW BINLOG EVENTS IN %s FROM %s LIMIT 1", (offset.file, offset.pos))
    except SourceUnavailableError:
        raise
    except SourceError:
        return False
    return True
