"""Finds the start position of a pipeline without state, and the tables as they were at this position.

Called by `enumerator_dialect` if ``source.startup`` names a position in the past. A start in the past raises two
questions, both answered by reading the log once from there to its end, without decoding a row:

- *Which transactions are before the position?* MySQL has no query for this. The file's PREVIOUS_GTIDS and the events
  after it show the exact set. Without the exact set, a later fail-over or a check against purged transactions would be
  wrong.
- *What was a table's schema there?* The present schema, unless a statement in between changed it. A table created in
  between is followed from its CREATE. A table changed in between is parked, with the statement as the reason; all other
  tables are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import numpy as np
from pymysql.connections import Connection

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.events import DdlItem, as_array
from raycdc.connectors.mysql.binlog.index_loops import HEADER_BYTES
from raycdc.connectors.mysql.binlog.positions.gtid import MariaDbGtidSet, MySqlGtidSet
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.session import dialect_of, dialect_of_session
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.whole_transactions import WholeEvents
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.ddl.apply import DdlDialect, RefusedStatement, affected_tables, apply_ddl, parse_ddl
from raycdc.connectors.mysql.ddl.parse.statements import AlterTable, CreateTable, RenameTable, separated
from raycdc.connectors.mysql.ddl.parse.tokens import mentions, shown
from raycdc.connectors.mysql.plugin import MySqlStartupOptions
from raycdc.connectors.mysql.server.catalog import load_tables
from raycdc.connectors.mysql.server.client import MySqlServerInfo, current_end, log_files
from raycdc.connectors.mysql.server.mariadb_log import POSITION_MAX, UnreportedGtidsError, gtid_at
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import ConfigError, SchemaError, SourceError
from raycdc.model import TableId
from raycdc.source.startup import StartupMode

_READ_BYTES = 4 << 20
_READ_TIMEOUT_S = 10.0
_FORMAT_DESCRIPTION, _PREVIOUS_GTIDS, _GTID_LIST = 15, 35, 163


@dataclass(frozen=True, slots=True)
class PastStart:
    """A position in the past as ``source.startup`` names it; exactly one of the three groups of fields is set."""

    earliest: bool = False
    file: str = ""
    pos: int = 4
    gtid_set: str = ""
    timestamp_ms: int | None = None
    skip_events: int = 0
    skip_rows: int = 0

    @classmethod
    def of(cls, options: MySqlStartupOptions) -> PastStart | None:
        """Return the position that the options name; None if the log begins now."""
        match options.mode:
            case StartupMode.EARLIEST:
                return cls(earliest=True)
            case StartupMode.TIMESTAMP:
                return cls(timestamp_ms=options.timestamp_ms)
            case StartupMode.OFFSET:
                return cls(
                    file=options.file or "",
                    pos=options.pos,
                    gtid_set=options.gtid_set or "",
                    skip_events=options.skip_events,
                    skip_rows=options.skip_rows,
                )
            case _:
                return None


#: Opens the log at a position. The caller closes it.
OpenLog = Callable[[BinlogOffset], BinlogStream]


def past_point(
    connection: Connection[Any],
    info: MySqlServerInfo,
    tables: list[TableId],
    *,
    start: PastStart,
    open_log: OpenLog,
    captured: Callable[[TableId], bool],
) -> tuple[PastTables, BinlogOffset]:
    """Return the position that `start` names, and the tables there, derived from the present ones and the statements
    since.
    """
    position = past_position(connection, info, start, open_log)
    now = load_tables(connection, tables)
    between = statements_between(info, position, current_end(connection, info), open_log)
    return tables_at(now, between, captured=captured, dialect=dialect_of(info)), position


def past_position(
    connection: Connection[Any], info: MySqlServerInfo, start: PastStart, open_log: OpenLog
) -> BinlogOffset:
    """Return the position that `start` names, with its exact GTID set.

    Raises `ConfigError` if the log has no such position.
    """
    files = log_files(connection, info)
    sizes = dict(files)
    if start.gtid_set:
        return _after_gtids(info, start, files[0][0])
    if start.timestamp_ms is not None:
        file = _file_at(info, [name for name, _ in files], start.timestamp_ms, open_log)
        return first_since(info, BinlogOffset(file, 4), start.timestamp_ms, open_log, end=_end(files))
    if start.earliest:
        return _exact(connection, info, BinlogOffset(files[0][0], 4), open_log)
    if start.file not in sizes:
        raise ConfigError(
            f"source.startup.file: {info.address} has no log file {start.file!r} (it has {files[0][0]} to "
            f"{files[-1][0]})."
        )
    if not 4 <= start.pos <= sizes[start.file]:
        raise ConfigError(f"source.startup.pos: {start.file} on {info.address} has {sizes[start.file]} bytes.")
    position = _exact(connection, info, BinlogOffset(start.file, start.pos), open_log)
    return replace(position, skip_events=start.skip_events, skip_rows=start.skip_rows)


@dataclass(frozen=True, slots=True)
class PastTables:
    """Tables as they were at a position in the past.

    `other` are tables whose schema there is unknown, each with the reason. All remaining present tables did not exist
    there.
    """

    tables: Mapping[TableId, MySqlTable]
    other: Mapping[TableId, str]


def tables_at(
    tables: Mapping[TableId, MySqlTable],
    statements: Iterable[DdlItem],
    *,
    captured: Callable[[TableId], bool],
    dialect: DdlDialect,
) -> PastTables:
    """Return the present `tables` as they were before `statements`."""
    earlier = dict(tables)
    other: dict[TableId, str] = {}
    resolved: set[TableId] = set()
    for item in statements:
        read = dialect_of_session(dialect, item.session)
        affected = affected_tables(item.statement, item.db, dialect=read)
        unread = [table for table in tables if affected.unread and mentions(item.statement, table, db=item.db)]
        for table_id in (*affected.tables, *unread):
            if table_id in resolved or not captured(table_id) or table_id not in tables:
                continue
            effect = _effect(item, table_id, tables[table_id], read)
            if effect is _Effect.NONE:
                continue
            resolved.add(table_id)
            del earlier[table_id]
            if effect is _Effect.CHANGED:
                other[table_id] = (
                    f"{item.position}: {table_id} was another table before this statement, so its rows between the "
                    f"start position and here cannot be read: {shown(item.statement)}. Read it as it is now with: "
                    f"raycdc tables resnapshot CONFIG {table_id}; or begin after the statement (source.startup, with "
                    "a pipeline.state of its own)"
                )
    return PastTables(earlier, other)


class _Effect(Enum):
    """What a statement implies about a table before it."""

    #: The table was the same before, if it existed.
    NONE = auto()
    #: The table did not exist before.
    MADE = auto()
    #: Another table had the name before, or the table had another schema.
    CHANGED = auto()


def _effect(item: DdlItem, table_id: TableId, now: MySqlTable, dialect: DdlDialect) -> _Effect:
    parsed = parse_ddl(item.statement, item.db, dialect=dialect)
    if isinstance(parsed, RefusedStatement):
        return _Effect.MADE if parsed.filled else _Effect.CHANGED
    for ddl in separated(parsed):
        match ddl:
            case RenameTable(old, new) if table_id in (old, new):
                # The table that got the name has earlier rows, which are in the log under its former name.
                return _Effect.CHANGED if old == table_id else _Effect.MADE
            case CreateTable(table=table) if table == table_id:
                return _Effect.MADE
            case AlterTable(table=table) if table == table_id:
                try:
                    applied = apply_ddl(now, ddl, dialect=dialect)
                except SchemaError:
                    return _Effect.CHANGED
                if applied.events or applied.rewrites is not None or applied.table != now:
                    return _Effect.CHANGED
            case _:
                pass  # A DROP or TRUNCATE does not show the table's schema, and the log has its effect.
    return _Effect.NONE


def statements_between(
    info: MySqlServerInfo, start: BinlogOffset, end: BinlogOffset, open_log: OpenLog
) -> list[DdlItem]:
    """Return the statements of the log from `start` to `end`, in order."""
    statements: list[DdlItem] = []
    if not start.by_gtid and start >= end:
        return statements
    decoder = _blind_decoder(info, start)
    with closing(open_log(start)) as stream:
        while decoder.cursor.position < end:
            data = stream.read(bytes_max=_READ_BYTES, timeout_s=_READ_TIMEOUT_S)
            # Only statements are read here, so rows are skipped in any form.
            unread = WholeEvents(as_array(data), taken_back=True)
            statements += [item for item in decoder.items_of_whole(unread) if isinstance(item, DdlItem)]
            if len(data) == 0:
                if start.by_gtid:
                    break  # The server skipped all transactions that we have, up to the end of its log.
                raise SourceError(
                    f"{info.address} sent nothing of its log between {decoder.cursor.position} and {end}."
                )
    return statements


def _blind_decoder(info: MySqlServerInfo, start: BinlogOffset) -> BinlogDecoder:
    plain = replace(start, skip_events=0, skip_rows=0)
    # XA transactions that were prepared earlier do not matter here, because no rows are read.
    log = info.log_kind
    return BinlogDecoder(MapSchemas.from_the_log(), wanted=lambda _: False, start=plain, log=log)


def _end(files: list[tuple[str, int]]) -> BinlogOffset:
    return BinlogOffset(*files[-1])


def _after_gtids(info: MySqlServerInfo, start: PastStart, oldest: str) -> BinlogOffset:
    if not info.gtid_mode:
        raise ConfigError(f"source.startup.gtid_set: {info.address} has no GTIDs (gtid_mode). Use file and pos.")
    if not info.is_mariadb:
        MySqlGtidSet.parse(start.gtid_set)
    return BinlogOffset(
        oldest,
        4,
        start.gtid_set,
        server=info.identity,
        by_gtid=True,
        skip_events=start.skip_events,
        skip_rows=start.skip_rows,
    )


def _exact(
    connection: Connection[Any], info: MySqlServerInfo, position: BinlogOffset, open_log: OpenLog
) -> BinlogOffset:
    """Return `position` with the GTID set of everything before it."""
    if info.is_mariadb and position.pos <= POSITION_MAX:
        # If an earlier event is larger than the server accepts from clients, read the log instead.
        with suppress(UnreportedGtidsError):
            return replace(position, gtid_set=gtid_at(connection, position.file, position.pos), server=info.identity)
    if not info.gtid_mode:
        return replace(position, server=info.identity)
    decoder = _blind_decoder(info, BinlogOffset(position.file, 4))
    before: MySqlGtidSet | MariaDbGtidSet | None = None
    with closing(open_log(BinlogOffset(position.file, 4))) as stream:
        while before is None or decoder.cursor.position.pos < position.pos:
            data = bytes(stream.read(bytes_max=_READ_BYTES, timeout_s=_READ_TIMEOUT_S))
            if not data:
                raise SourceError(f"{info.address} sent nothing of {position.file} up to {position}.")
            for start, end, kind in event_bounds(data):
                if kind in (_PREVIOUS_GTIDS, _GTID_LIST):
                    checksum = 4 if info.checksum == "CRC32" else 0
                    body = data[start + HEADER_BYTES : end - checksum]
                    before = MariaDbGtidSet.decode(body) if kind == _GTID_LIST else MySqlGtidSet.decode(body)
                # The position in an event's header has 32 bits, and is 0 in events that belong to the dump.
                is_of_file = data[start + 13 : start + 17] != bytes(4)
                if before is not None and is_of_file and decoder.cursor.event_position.pos + end - start > position.pos:
                    return _checked_position(decoder, before, position, info)
                for _ in decoder.items(np.frombuffer(data[start:end], np.uint8)):
                    pass
    return _checked_position(decoder, before, position, info)


def _checked_position(
    decoder: BinlogDecoder, before: MySqlGtidSet | MariaDbGtidSet, position: BinlogOffset, info: MySqlServerInfo
) -> BinlogOffset:
    if position.pos != 4 and (decoder.cursor.event_position.pos != position.pos or decoder.cursor.in_transaction):
        raise ConfigError(
            f"source.startup.pos: {position} lies inside an event or a transaction; the nearest position before it is "
            f"{decoder.cursor.position}."
        )
    within = decoder.cursor.position.gtid_set if position.pos != 4 else ""
    if isinstance(before, MariaDbGtidSet):
        gtids = str(MariaDbGtidSet({**before.last, **MariaDbGtidSet.parse(within).last}))
        return replace(position, gtid_set=gtids, server=info.identity)
    return _with_previous(replace(position, gtid_set=within), before, info)


def event_bounds(data: bytes) -> Iterable[tuple[int, int, int]]:
    """Yield (start, end, type) of the events in a buffer."""
    at = 0
    while at + HEADER_BYTES <= len(data):
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        yield at, at + length, data[at + 4]
        at += length


def _file_at(info: MySqlServerInfo, files: list[str], timestamp_ms: int, open_log: OpenLog) -> str:
    """Return the newest file that was begun before the time; the oldest file if all were begun later."""
    low, high = 0, len(files) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _begun_ms(info, files[middle], open_log) < timestamp_ms:
            low = middle
        else:
            high = middle - 1
    return files[low]


def _begun_ms(info: MySqlServerInfo, file: str, open_log: OpenLog) -> int:
    """Return the time when a file was begun, from its FORMAT_DESCRIPTION."""
    with closing(open_log(BinlogOffset(file, 4))) as stream:
        for _ in range(5):
            data = bytes(stream.read(bytes_max=1, timeout_s=_READ_TIMEOUT_S))
            for start, _, kind in event_bounds(data):
                if kind == _FORMAT_DESCRIPTION:
                    return int.from_bytes(data[start : start + 4], "little") * 1000
    raise SourceError(f"{info.address} sent no beginning of its log file {file}.")


def first_since(
    info: MySqlServerInfo, begin: BinlogOffset, timestamp_ms: int, open_log: OpenLog, *, end: BinlogOffset
) -> BinlogOffset:
    """Return the end of the last transaction before the first transaction that was committed at or after the time."""
    decoder = _blind_decoder(info, begin)
    previous = MySqlGtidSet()
    position = begin
    exact = False
    with closing(open_log(begin)) as stream:
        while decoder.cursor.position < end:
            data = bytes(stream.read(bytes_max=_READ_BYTES, timeout_s=_READ_TIMEOUT_S))
            if not data:
                raise SourceError(
                    f"{info.address} sent nothing of its log between {decoder.cursor.position} and {end}."
                )
            for start, stop, kind in event_bounds(data):
                if kind == _PREVIOUS_GTIDS and not info.is_mariadb and not previous.intervals:
                    checksum = 4 if info.checksum == "CRC32" else 0
                    previous = MySqlGtidSet.decode(data[start + HEADER_BYTES : stop - checksum])
                if not decoder.cursor.in_transaction:
                    position = decoder.cursor.position
                inside = decoder.cursor.in_transaction
                for _ in decoder.items(np.frombuffer(data[start:stop], np.uint8)):
                    pass
                # MySQL's log has the commit time of the open transaction. Other events have whole seconds.
                exact = int(decoder.cursor.state[index.S_TX_MS]) > 0 or (exact and inside)
                in_transaction = inside or decoder.cursor.in_transaction
                if in_transaction and _since(decoder.cursor.last_ts_ms, timestamp_ms, exact=exact):
                    return _with_previous(position, previous, info)
    return _with_previous(decoder.cursor.position, previous, info)


def _since(event_ms: int, timestamp_ms: int, *, exact: bool) -> bool:
    """Return True if an event counts as at or after the time.

    One in whole seconds stands for any time within its second.
    """
    return (event_ms if exact else event_ms + 999) >= timestamp_ms


def _with_previous(position: BinlogOffset, previous: MySqlGtidSet, info: MySqlServerInfo) -> BinlogOffset:
    if info.is_mariadb or not info.gtid_mode:
        return replace(position, server=info.identity)
    gtids = MySqlGtidSet.parse(position.gtid_set)
    for server, ranges in previous.intervals.items():
        for first, last in ranges:
            gtids.add(server, first, last)
    return replace(position, gtid_set=str(gtids), server=info.identity)
