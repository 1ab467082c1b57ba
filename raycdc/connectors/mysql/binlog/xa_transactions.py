"""XA transactions of the log, from XA START to XA COMMIT or XA ROLLBACK.

Called by `XaRows`. XA PREPARE writes a transaction's rows to the log, under a GTID of its own; XA COMMIT or XA ROLLBACK
follows at any distance, or never. Until then a `PreparedTransaction` is part of every position (`stored`), so that it
survives a restart on any node.

Every prepared transaction is remembered, with or without rows of captured tables: if an unknown transaction is
committed, it was prepared before the job began, and its rows are missing (`Unseen`). Of tables that are not selected,
only the names are remembered. If such a table is selected before XA COMMIT, its snapshot lacks these rows.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

import msgpack

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog.event_loops import Q_COMMIT, Q_XA_START
from raycdc.connectors.mysql.binlog.events import parse_query
from raycdc.connectors.mysql.binlog.index_loops import HEADER_BYTES
from raycdc.connectors.mysql.binlog.tables.table_map import parse_table_map
from raycdc.connectors.mysql.binlog.transaction_statements import rules_of, transaction_statement
from raycdc.connectors.mysql.ddl.parse.tokens import LexError, LexRules, Token, TokenKind, shown, tokenize
from raycdc.core.typed_codec import JsonObject, stored
from raycdc.errors import CorruptLogError, DataError, StateError
from raycdc.model import TableId

#: The most bytes of rows in all prepared transactions together, because they are written with every checkpoint.
STORED_BYTES_MAX = 64 << 20

#: The prefix of the text since this version. Version 1 has no prefix, and held raw events.
_VERSION = "2:"

_COMMIT_WORD, _ROLLBACK_WORD = "COMMIT", "ROLLBACK"


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """Rows of one table, as `raycdc.connectors.mysql.binlog.xa_rows.RowKeeper` keeps them.

    `version` is the table's version with which they were decoded. It is empty for a table that was parked at XA
    PREPARE: its rows are raw events. The `_seq` of decoded rows counts from the transaction's first row.
    """

    table: TableId
    version: str
    rows: bytes


def _written_rows(rows: Iterable[PreparedRows]) -> list[tuple[str, str, str, bytes]]:
    return [(part.table.db, part.table.table, part.version, part.rows) for part in rows]


def _read_rows(written: Iterable[tuple[str, str, str, bytes]]) -> tuple[PreparedRows, ...]:
    return tuple(PreparedRows(TableId(db, table), version, rows) for db, table, version, rows in written)


def _written_tables(tables: Iterable[TableId]) -> list[tuple[str, str]]:
    return [(table.db, table.table) for table in tables]


def _read_tables(written: Iterable[tuple[str, str]]) -> tuple[TableId, ...]:
    return tuple(TableId(db, table) for db, table in written)


@dataclass(frozen=True, slots=True)
class PreparedTransaction(JsonObject):
    """One prepared transaction of `count` rows.

    `unknown` are tables that were parked or not selected at XA PREPARE, and whose rows were not kept. `events` replace
    the rows if they are not decoded ahead: in states of version 1, and if no schema is certain.
    """

    rows: tuple[PreparedRows, ...] = field(default=(), metadata=stored(write=_written_rows, read=_read_rows))
    count: int = 0
    unknown: tuple[TableId, ...] = field(default=(), metadata=stored(write=_written_tables, read=_read_tables))
    events: tuple[bytes, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(len(part.rows) for part in self.rows) + sum(map(len, self.events))


@dataclass(frozen=True, slots=True)
class Preparing:
    """An XA PREPARE: the `events` must be converted for `XaTransactions.keep`.

    There are also rows of the tables `others`.
    """

    xid: str
    events: tuple[bytes, ...]
    others: tuple[TableId, ...] = ()


@dataclass(frozen=True, slots=True)
class Counting:
    """The commit of a transaction that was not prepared: the rows of its events are emitted from here on."""

    events: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Committing:
    """The commit of a prepared transaction: its rows are emitted from here on."""

    xid: str
    prepared: PreparedTransaction


@dataclass(frozen=True, slots=True)
class Unseen:
    """The commit of a transaction that was prepared before the job began: its rows are unknown."""

    xid: str


XaStep = Preparing | Counting | Committing | Unseen


class XaTransactions:
    """The XA transactions of one decoder. `stored` is the text that an earlier decoder stored."""

    def __init__(self, stored: str = "") -> None:
        self._prepared = _read(stored) if stored else {}
        #: All prepared transactions as text; empty when there are none.
        self.stored = stored
        #: True if a transaction has begun that may be prepared; then its table maps and row events.
        self.is_open = False
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._table_ids: set[bytes] = set()
        self._unfollowed: dict[bytes, TableId] = {}
        self._unfollowed_with_rows: dict[TableId, None] = {}

    def __repr__(self) -> str:
        return f"XaTransactions(prepared={list(self._prepared)}, open={len(self._open)} events)"

    def take_events(self) -> list[Preparing]:
        """Return the transactions that are kept as raw events, and must be passed to `keep` again."""
        return [Preparing(xid, prepared.events) for xid, prepared in self._prepared.items() if prepared.events]

    def keep(self, *kept: tuple[str, PreparedTransaction]) -> None:
        """Add prepared transactions. Raises `DataError` if all together are too large."""
        self._prepared.update(kept)
        self._store()

    def on_event(self, event: bytes, *, wanted: Callable[[TableId], bool], from_the_start: bool) -> XaStep | None:
        """Take an event of an XA transaction, without checksum; return what to do with rows here.

        `from_the_start`: an unknown transaction does not matter. Raises `DataError` and `CorruptLogError` without a
        position.
        """
        body = event[HEADER_BYTES:]
        match event[4]:
            case index.XA_PREPARE:
                xid, one_phase = prepared_xid(body)
                events, self._open, self.is_open = tuple(self._open), [], False
                return Counting(events) if one_phase else Preparing(xid, events, tuple(self._unfollowed_with_rows))
            case index.QUERY:
                query = parse_query(body)
                rules = rules_of(query.session)
                finished = finished_xid(query.text, rules)
                if finished is not None:
                    return self._finish(*finished, from_the_start=from_the_start)
                meaning = transaction_statement(query.text, rules).meaning
                if meaning != Q_XA_START:
                    # A ROLLBACK or COMMIT of a transaction that was never prepared.
                    return self._end(commits=meaning == Q_COMMIT)
                self._begin()
            case index.MARIADB_GTID:
                self._begin()
            case index.TABLE_MAP:
                table = parse_table_map(body[8:], mariadb=False).table
                self._keep(event, other=None if wanted(table) else table)
            case _:
                self._keep(event)
        return None

    def forget_open(self) -> None:
        """Forget the open transaction, as if it had never begun."""
        self._open, self.is_open = [], False

    def _begin(self) -> None:
        self._open, self._open_bytes, self.is_open = [], 0, True
        self._table_ids.clear()
        self._unfollowed.clear()
        self._unfollowed_with_rows.clear()

    def _keep(self, event: bytes, *, other: TableId | None = None) -> None:
        """Keep an event of the open transaction. `other` is the table of a table map whose rows are not wanted."""
        table_id = event[HEADER_BYTES : HEADER_BYTES + 6]
        if event[4] == index.TABLE_MAP:
            self._table_ids.discard(table_id)
            self._unfollowed.pop(table_id, None)
            if other is None:
                self._table_ids.add(table_id)
            else:
                self._unfollowed[table_id] = other
        elif table_id in self._unfollowed:
            self._unfollowed_with_rows[self._unfollowed[table_id]] = None
        if table_id in self._table_ids:
            self._open.append(event)
            self._open_bytes += len(event)
            if self._open_bytes > STORED_BYTES_MAX:
                raise DataError(
                    f"an XA transaction with more than {STORED_BYTES_MAX >> 20} MiB of rows cannot be kept until its "
                    "XA COMMIT; use smaller transactions or ordinary ones"
                )

    def _end(self, *, commits: bool) -> Counting | None:
        """End the open transaction, which was not prepared. Returns its events if it commits."""
        events, self._open, self.is_open = tuple(self._open), [], False
        return Counting(events) if commits else None

    def _finish(self, xid: str, commits: bool, *, from_the_start: bool) -> Committing | Counting | Unseen | None:
        if self.is_open and xid not in self._prepared:
            return self._end(commits=commits)
        prepared = self._prepared.pop(xid, None)
        if prepared is None and commits and not from_the_start:
            return Unseen(xid)
        self._store()
        return Committing(xid, prepared) if prepared is not None and commits else None

    def _store(self) -> None:
        if sum(prepared.bytes for prepared in self._prepared.values()) > STORED_BYTES_MAX:
            raise DataError(
                f"prepared XA transactions hold more than {STORED_BYTES_MAX >> 20} MiB of rows; commit or roll back "
                "the old ones (XA RECOVER lists them)"
            )
        self.stored = _written(self._prepared) if self._prepared else ""


def _written(prepared: dict[str, PreparedTransaction]) -> str:
    content = {xid: one.to_json() for xid, one in prepared.items()}
    return _VERSION + base64.b64encode(zlib.compress(msgpack.packb(content), 1)).decode()


def _read(stored: str) -> dict[str, PreparedTransaction]:
    """Decode stored transactions. Raises `StateError` for another version's format."""
    version, found, text = stored.rpartition(":")
    if found and version + found != _VERSION:
        raise StateError(
            f"The position's prepared XA transactions have version {version!r}, which this raycdc does not know. "
            "Upgrade raycdc."
        )
    packed = msgpack.unpackb(zlib.decompress(base64.b64decode(text)))
    if not found:
        return {xid: PreparedTransaction(events=tuple(events)) for xid, events in packed.items()}
    return {xid: PreparedTransaction.from_json(one) for xid, one in packed.items()}


def prepared_xid(body: bytes) -> tuple[str, bool]:
    """Return (name, True for XA COMMIT ONE PHASE) of an XA_PREPARE event.

    Body: one_phase(1) format(4) gtrid_length(4) bqual_length(4) gtrid bqual.
    """
    if len(body) < 13:
        raise CorruptLogError("an XA_PREPARE event is too short")
    one_phase, format_, first, second = struct.unpack_from("<BiII", body)
    names = body[13 : 13 + first + second]
    if first > 64 or second > 64 or len(names) != first + second:
        raise CorruptLogError("an XA_PREPARE event is damaged")
    return xid_text(names[:first], names[first:], format_), one_phase != 0


def finished_xid(statement: str, rules: LexRules) -> tuple[str, bool] | None:
    """Return (name, True for a commit) of ``XA COMMIT X'..',X'..',1`` or ``XA ROLLBACK …``; None for another statement.

    `statement` is `QueryEvent.text`. Raises `DataError` if the name cannot be read, because any transaction may be
    meant.
    """
    tokens = tokenize(statement, rules)
    try:
        # The first two words tell if this is an XA statement, so the rest of other statements is not read.
        words = [token.text.upper() for token in islice(tokens, 2)]
    except LexError:
        return None
    if words not in (["XA", _COMMIT_WORD], ["XA", _ROLLBACK_WORD]):
        return None
    try:
        return _finished_name(list(tokens)), words[1] == _COMMIT_WORD
    except (ValueError, IndexError) as cause:  # `LexError` is a ValueError.
        raise DataError(f"the XA transaction that a statement ends cannot be read: {shown(statement)}") from cause


def _finished_name(tokens: Iterable[Token]) -> str:
    """Return the transaction's name from the `tokens` after the first two words; it has up to three parts."""
    parts = [token for token in tokens if token.text not in ("", ",", ";")]
    end = next((at for at, token in enumerate(parts) if token.text.upper() == "ONE"), len(parts))
    gtrid, *others = parts[: min(end, 3)]
    bqual = _name_bytes(others[0]) if others else b""
    return xid_text(_name_bytes(gtrid), bqual, int(others[1].text) if len(others) > 1 else 1)


def _name_bytes(token: Token) -> bytes:
    """Return a part of a name: ``X'6162'`` or ``'ab'``."""
    if token.kind is TokenKind.STRING:
        return token.text.encode("utf-8", "surrogateescape")
    return bytes.fromhex(token.text[2:].strip("'"))


def xid_text(gtrid: bytes, bqual: bytes, format_: int) -> str:
    """Return a transaction's name as the statements of the log write it, in lower case."""
    return f"x'{gtrid.hex()}',x'{bqual.hex()}',{format_}"


def events_by_table(events: tuple[bytes, ...]) -> dict[TableId, list[bytes]]:
    """Return the row events of each table, with its table maps."""
    names: dict[bytes, TableId] = {}
    events_of: dict[TableId, list[bytes]] = {}
    with_rows = set()
    for event in events:
        body = event[HEADER_BYTES:]
        if event[4] == index.TABLE_MAP:
            names[body[:6]] = parse_table_map(body[8:], mariadb=False).table
        else:
            with_rows.add(names[body[:6]])
        events_of.setdefault(names[body[:6]], []).append(event)
    return {table: of_table for table, of_table in events_of.items() if table in with_rows}


def relocated(events: tuple[bytes, ...], *, seconds: bytes, end: bytes) -> bytes:
    """Return the events with another time and end position, of four bytes each."""
    return b"".join(seconds + event[4:9] + len(event).to_bytes(4, "little") + end + event[17:] for event in events)
