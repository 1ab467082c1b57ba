"""Transactions of the log to their ends: what takes rows back, what a statement means to its transaction."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from raycdc.connectors.mysql.binlog import event_loops as meanings
from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder

# Named, as its source is then part of what the compiled code below is known by.
from raycdc.connectors.mysql.binlog.event_loops import query_kind
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem, DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.transaction_statements import (
    is_same_name,
    may_be_same_name,
    transaction_statement,
)
from raycdc.connectors.mysql.binlog.whole_transactions import BinlogTransactionAssembler
from raycdc.connectors.mysql.binlog.xa_transactions import finished_xid, xid_text
from raycdc.connectors.mysql.ddl.parse.tokens import LexRules
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.core.compiled import njit
from raycdc.errors import CorruptLogError, DataError
from raycdc.model import TableId
from tests.unit.connectors.mysql.binlog_bytes import LogWriter, int_row

TABLE = MySqlTable(TableId("d", "t"), (MySqlColumn("id", "int"),), ("id",))

#: Each statement with its meaning; `Q_ASK` stands for those that the compiled pass leaves to the lexer.
STATEMENTS = (
    ("BEGIN", meanings.Q_BEGIN, True),
    ("COMMIT", meanings.Q_COMMIT, True),
    ("ROLLBACK", meanings.Q_ROLLBACK, True),
    ("rollback", meanings.Q_ROLLBACK, True),
    ("SAVEPOINT `a b`", meanings.Q_SAVEPOINT, True),
    ('SAVEPOINT "a""b"', meanings.Q_SAVEPOINT, True),
    ("SAVEPOINT a$1", meanings.Q_SAVEPOINT, True),
    ("ROLLBACK TO `a`", meanings.Q_ROLLBACK_TO, True),
    ("XA START X'61',X'',1", meanings.Q_XA_START, True),
    ("XA END X'61',X'',1", meanings.Q_NOTHING, True),
    ("XA COMMIT X'61',X'',1", meanings.Q_XA_FINISH, True),
    ("XA ROLLBACK X'61',X'',1", meanings.Q_XA_FINISH, True),
    ("", meanings.Q_NOTHING, True),
    ("ROLLBACK TO SAVEPOINT `a`", meanings.Q_ROLLBACK_TO, False),
    ("RELEASE SAVEPOINT a", meanings.Q_NOTHING, False),
    ("START TRANSACTION", meanings.Q_BEGIN, False),
    ("COMMIT;", meanings.Q_COMMIT, False),
    ("# a\n/* b */ -- c\n COMMIT /* d */", meanings.Q_COMMIT, False),
    ("/*!40000 ROLLBACK */", meanings.Q_ROLLBACK, False),
    ("/*M!100000 ROLLBACK TO */ `a`", meanings.Q_ROLLBACK_TO, False),
    ("#nightly job\nTRUNCATE TABLE t", meanings.Q_OTHER, False),
    ("-- a\nXA ROLLBACK 'a'", meanings.Q_XA_FINISH, False),
    ("# a comment alone", meanings.Q_NOTHING, False),
    ("/* COMMIT */", meanings.Q_NOTHING, False),
    ("# Dummy event replacing event type 160 that slave cannot handle.   ", meanings.Q_NOTHING, False),
    ("SAVEPOINT `a`; TRUNCATE TABLE t", meanings.Q_DOUBT, False),
    ("SAVEPOINT `a` TRUNCATE", meanings.Q_DOUBT, False),
    ("ROLLBACK TO", meanings.Q_DOUBT, False),
    ("ROLLBACK TO `never ends", meanings.Q_DOUBT, False),
    ("-- a\nSAVEPOINT 'never ends", meanings.Q_DOUBT, False),
    ("COMMITTED", meanings.Q_OTHER, False),
    ("XA", meanings.Q_DOUBT, False),
    ("XA RECOVER", meanings.Q_DOUBT, False),
    ("/* never ends", meanings.Q_OTHER, False),
    ("-- a\nTRUNCATE TABLE `never ends", meanings.Q_OTHER, False),
    ("ALTER TABLE t ADD COLUMN savepoint INT", meanings.Q_OTHER, True),
    ("TRUNCATE TABLE t", meanings.Q_OTHER, True),
)


@njit
def compiled_meaning(data: object, end: object) -> object:
    return query_kind(data, 0, end)


@pytest.mark.parametrize(("statement", "meaning", "known"), STATEMENTS)
def test_a_statement_means_the_same_to_the_compiled_pass_and_to_the_lexer(
    statement: str, meaning: int, known: bool
) -> None:
    body = np.frombuffer(struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0" + statement.encode(), np.uint8)

    found = int(compiled_meaning(body, len(body)))  # type: ignore[call-overload]

    assert (found, transaction_statement(statement, LexRules()).meaning) == (
        meaning if known else meanings.Q_ASK,
        meaning,
    )


def test_savepoints_have_one_name_however_they_are_written() -> None:
    texts = ("SAVEPOINT `a b`", 'SAVEPOINT "a b"', "ROLLBACK TO SAVEPOINT `a b`", '/* */ ROLLBACK TO "a b";')

    assert {transaction_statement(text, LexRules(ansi_quotes=True)).savepoint for text in texts} == {"a b"}


#: Names of savepoints: whether all servers take them for one, and whether some do.
NAMES = (
    ("a", "A", True, True),
    ("é", "é", True, True),
    ("é", "e", False, True),
    ("É", "é", False, True),
    ("ß", "s", False, True),
    ("ж", "Ж", False, True),
    ("ж", "з", False, False),
    ("ж", "zh", False, False),
    ("a", "b", False, False),
    ("a", "a ", False, False),
)


@pytest.mark.parametrize(("one", "other", "same", "may_be"), NAMES)
def test_names_of_savepoints_are_one_as_servers_compare_them(one: str, other: str, same: bool, may_be: bool) -> None:
    assert (is_same_name(one, other), may_be_same_name(one, other)) == (same, may_be)


@pytest.mark.parametrize("piece", ["/**/", "# a\n", "-- a\n", "/*!1 */", " ", "'"])
def test_long_texts_are_read_in_linear_time(piece: str) -> None:
    begin = time.process_time()

    transaction_statement(piece * 50_000 + " COMMIT", LexRules())
    finished_xid(piece * 50_000 + " XA COMMIT 'a'", LexRules())

    assert time.process_time() - begin < 5


def test_a_dummy_in_place_of_rows_is_no_comment() -> None:
    with pytest.raises(DataError, match="event of type 166"):
        transaction_statement("# Dummy event replacing event type 166 that slave cannot handle.", LexRules())


def test_the_name_of_an_xa_transaction_is_read_in_every_form() -> None:
    forms = (
        "XA COMMIT X'61',X'62',7",
        "xa commit 'a', 'b' , 7",
        "/* c */ XA COMMIT 0x61,0x62,7",
        "XA COMMIT X'61',X'62',7 ONE PHASE",
    )

    assert {finished_xid(form, LexRules()) for form in forms} == {(xid_text(b"a", b"b", 7), True)}
    assert finished_xid("XA ROLLBACK 'a'", LexRules()) == (xid_text(b"a", b"", 1), False)
    assert finished_xid("XA START 'a'", LexRules()) is None


@pytest.mark.parametrize("statement", ["XA COMMIT 'a", "XA COMMIT", "XA ROLLBACK X'6', b", "XA COMMIT 'a', 'b', c"])
def test_the_end_of_an_xa_transaction_that_cannot_be_read_is_no_other_statement(statement: str) -> None:
    with pytest.raises(DataError, match="XA transaction that a statement ends cannot be read: XA"):
        finished_xid(statement, LexRules())


def decoder(*, mariadb: bool = False, start: BinlogOffset | None = None) -> BinlogDecoder:
    return BinlogDecoder(
        MapSchemas({TABLE.id: TABLE}),
        wanted=lambda table: table == TABLE.id,
        start=start or BinlogOffset("binlog.000001", 4),
        log=LogKind(mariadb=mariadb),
    )


def row(log: LogWriter, value: int) -> LogWriter:
    return log.table_map(9, b"\x03").rows(30, 9, 1, int_row(value))


def rows_of(
    subject: BinlogDecoder, buffers: Sequence[bytes], whole: BinlogTransactionAssembler | None = None
) -> list[int]:
    whole, rows = whole or BinlogTransactionAssembler(), []
    for buffer in buffers:
        for events in whole.of(buffer):
            for item in subject.items_of_whole(events):
                assert isinstance(item, BinlogRowsItem)
                rows += item.batch.column("id").to_pylist()
    return rows


def nested(log: LogWriter) -> LogWriter:
    """A transaction whose rows 1, 3 and 6 stay."""
    row(log.gtid(1).begin(), 1).query(b"SAVEPOINT `a`")
    row(log, 2).query(b"ROLLBACK TO `a`")
    row(log, 3).query(b"SAVEPOINT `b`")
    row(log, 4).query(b"SAVEPOINT `c`")
    row(log, 5).query(b"/* as written by hand */ rollback to savepoint B")
    return row(log, 6).xid()


def test_rows_behind_a_savepoint_that_is_rolled_back_never_were() -> None:
    log = nested(LogWriter().format())
    row(log.gtid(2).begin(), 7).query(b"ROLLBACK")
    row(log.gtid(3).begin(), 8).xid()
    subject = decoder()

    assert rows_of(subject, [log.take()]) == [1, 3, 6, 8]
    assert (subject.cursor.position.pos, subject.cursor.in_transaction) == (log.position, False)
    assert subject.cursor.position.gtid_set.endswith(":1-3")


def test_a_savepoint_that_is_set_again_or_was_taken_back_is_no_more() -> None:
    log = row(LogWriter().format().gtid(1).begin(), 1).query(b"SAVEPOINT `a`")
    row(log, 2).query(b"SAVEPOINT `b`")
    row(log, 3).query(b"ROLLBACK TO `a`")
    row(log, 4).query(b"SAVEPOINT `B`")
    row(log, 5).query(b"SAVEPOINT `b`")
    row(log, 6).query(b"ROLLBACK TO `b`").xid()
    log.gtid(2).begin().query(b"SAVEPOINT `a`")
    row(log, 7).query(b"SAVEPOINT `b`")
    log.query(b"ROLLBACK TO `a`")
    row(log, 8).query(b"ROLLBACK TO `b`").xid()
    subject, told = decoder(), list[str]()
    subject.mismatches.listener = lambda table, error, before: told.append(str(error))

    assert rows_of(subject, [log.take()]) == [1, 4, 5]
    assert {"'b' in a transaction that has no such savepoint" in text for text in told} == {True}


@pytest.mark.parametrize("size", [100, 300, 1000])
def test_a_transaction_is_whole_however_its_events_come(size: int) -> None:
    events = nested(LogWriter().format()).take()
    buffers: list[bytes] = []
    part, at = b"", 0
    while at < len(events):
        length = int.from_bytes(events[at + 9 : at + 13], "little")
        part, at = part + events[at : at + length], at + length
        if len(part) > size:
            buffers, part = [*buffers, part], b""

    assert rows_of(decoder(), [*buffers, part]) == [1, 3, 6]


def test_a_transaction_that_is_too_large_is_read_again() -> None:
    log = LogWriter().format()
    head = log.take()
    events = nested(log).take()
    rest = row(log.gtid(2).begin(), 7).xid().take()
    whole, subject = BinlogTransactionAssembler(held_bytes_max=200), decoder()

    first = rows_of(subject, [head, events[:0], events + rest], whole)
    assert (first, whole.reads_again) == ([1, 3, 6, 7], False)  # It came at once.

    whole, subject = BinlogTransactionAssembler(held_bytes_max=50), decoder()
    cut = _starts(events)[4]
    assert rows_of(subject, [head, events[:cut], events[cut:] + rest], whole) == []
    assert whole.reads_again

    whole.restart()
    assert rows_of(subject, [events[:cut], events[cut:] + rest], whole) == [1, 3, 6, 7]


def test_a_transaction_that_was_held_is_given_out_in_pieces() -> None:
    log = LogWriter().format()
    head = log.take()
    for number in range(20):
        row(log if number else log.gtid(1).begin(), number)
    events = log.xid().take()
    whole = BinlogTransactionAssembler(piece_bytes=200)
    subject = decoder()
    assert rows_of(subject, [head, events[: _starts(events)[9]]], whole) == []
    pieces = [len(piece.data) for piece in whole.of(events[_starts(events)[9] :])]
    assert max(pieces) <= 200
    assert sum(pieces) == len(events)


def _starts(events: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(events):
        starts.append(at)
        at += int.from_bytes(events[at + 9 : at + 13], "little")
    return starts


def test_a_transaction_that_the_server_died_in_never_was() -> None:
    log = LogWriter().format()
    row(log.gtid(1).begin(), 1).xid()
    row(log.gtid(2).begin(), 2).rotate(b"binlog.000002", position=0)
    first = log.take()
    log.position = 4
    row(log.format(created=1_700_000_000).gtid(2).begin(), 3).xid()
    subject = decoder()

    assert rows_of(subject, [first, log.take()]) == [1, 3]
    assert str(subject.cursor.position) == f"binlog.000002:{log.position}"


def test_the_file_behind_a_torn_transaction_that_is_too_large_is_known_however_it_is_named() -> None:
    log = LogWriter().format()
    head = row(log.gtid(1).begin(), 1).xid().take()
    large = row(row(log.gtid(2).begin(), 2), 2).take()
    named = log.rotate(b"binlog.000002", position=0).take()
    log.position = 4
    after = row(log.format(created=1_700_000_000).gtid(2).begin(), 3).xid().take()

    for buffers in ([head, large, named, after], [head, large + named, after], [head, large, named + after]):
        subject = decoder()
        assert rows_of(subject, buffers, BinlogTransactionAssembler(held_bytes_max=50)) == [1, 3]
        assert str(subject.cursor.position) == f"binlog.000002:{log.position}"


def test_a_file_that_ends_inside_a_transaction_without_a_start_is_damage() -> None:
    log = row(LogWriter().format().gtid(2).begin(), 2).rotate(b"binlog.000002", position=0)
    first = log.take()
    log.position = 4

    with pytest.raises(CorruptLogError, match="in the middle of a transaction"):
        rows_of(decoder(), [first, log.format().take()])


def in_doubt(log: LogWriter, *statements: bytes) -> bytes:
    """A transaction with a row before each of these statements, behind one with row 10 and before one with row 20."""
    row(log.gtid(1).begin(), 10).xid()
    log.gtid(2).begin()
    for number, statement in enumerate(statements, 1):
        row(log, number).query(statement)
    row(log, 9).xid()
    return row(log.gtid(3).begin(), 20).xid().take()


DOUBTS = (
    ((b"ROLLBACK TO `other`",), "no such savepoint"),
    ((b"SAVEPOINT `a`", b"ROLLBACK TO 'a"), "is not understood"),
    ((b"SAVEPOINT `a`", b"ROLLBACK TO `a`; COMMIT"), "is not understood"),
    ((b"SAVEPOINT `e`", "SAVEPOINT `é`".encode(), b"ROLLBACK TO `e`"), "2 savepoints"),
)


@pytest.mark.parametrize(("statements", "why"), DOUBTS)
@pytest.mark.parametrize("held_bytes_max", [1 << 20, 100])
def test_tables_of_a_transaction_of_which_nobody_knows_what_was_taken_back_are_told(
    statements: tuple[bytes, ...], why: str, held_bytes_max: int
) -> None:
    log = LogWriter().format()
    head, events = log.take(), in_doubt(log, *statements)
    whole, subject, told = (
        BinlogTransactionAssembler(held_bytes_max=held_bytes_max),
        decoder(),
        list[tuple[TableId, str]](),
    )
    subject.mismatches.listener = lambda table, error, before: told.append((table, str(error)))
    rows, at = rows_of(subject, [head], whole), 0
    while at < len(events):
        size = int.from_bytes(events[at + 9 : at + 13], "little")
        rows += rows_of(subject, [events[at : at + size]], whole)
        at += size
        if whole.reads_again:
            whole.restart()
            at = subject.cursor.position.pos - 4 - len(head)

    # From there on the table is parked.
    assert [number for number in rows if number != 20] == [10]
    assert {table for table, _ in told} == {TABLE.id}
    assert all(why in text and str(TABLE.id) in text for _, text in told), told


def test_rows_of_a_prepared_transaction_in_doubt_are_missed_where_it_is_committed() -> None:
    """Its table may have begun again meanwhile, by a snapshot that has not seen them."""
    log = LogWriter().format().gtid(1).query(b"XA START X'61',X'',1")
    row(log, 1).query(b"ROLLBACK TO `other`")
    log.query(b"XA END X'61',X'',1").event(38, struct.pack("<BiII", 0, 1, 1, 0) + b"a")
    log.gtid(2).query(b"XA COMMIT X'61',X'',1")
    subject, told = decoder(), list[str]()
    subject.mismatches.listener = lambda table, error, before: told.append(str(error))

    assert rows_of(subject, [log.take()]) == []
    assert ["no such savepoint" in text for text in told] == [True, False]
    assert "XA COMMIT x'61',x'',1 brings rows of d.t that are not in its snapshot" in told[1]


@pytest.mark.parametrize("whole", [True, False])
def test_a_statement_about_no_transaction_that_is_not_understood_ends_the_reading(whole: bool) -> None:
    """Nobody knows which tables it concerns."""
    log = row(LogWriter().format().gtid(1).begin(), 1).xid().gtid(2).query(b"XA COMMITS X'61',X'',1").take()

    with pytest.raises(DataError, match="about a transaction is not understood: XA COMMITS"):
        rows_of(decoder(), [log]) if whole else decoder().feed(log)


def test_a_transaction_in_doubt_is_an_error_where_no_table_may_be_parked() -> None:
    log = LogWriter().format()

    with pytest.raises(DataError, match="no such savepoint"):
        rows_of(decoder(), [log.take(), in_doubt(log, b"ROLLBACK TO `other`")])


def test_names_of_savepoints_are_utf8_and_quoted_by_the_mode_of_the_session() -> None:
    ansi, sjis = struct.pack("<BQ", 1, 4), struct.pack("<BHHH", 4, 95, 45, 45)
    log = row(LogWriter().format().gtid(1).begin(), 1)
    row(log.query(b'SAVEPOINT "a\\"', status=ansi), 2).query(b'ROLLBACK TO "a\\"', status=ansi)
    row(log.query("SAVEPOINT `あ`".encode(), status=sjis), 3).query("ROLLBACK TO `あ`".encode(), status=sjis)
    row(log.query("SAVEPOINT `é`".encode()), 4).query(b"ROLLBACK TO `E`")

    assert rows_of(decoder(), [log.xid().take()]) == [1]


@pytest.mark.parametrize("ended", [True, False])
def test_a_savepoint_inside_a_statement_does_not_take_the_place_of_one_outside(ended: bool) -> None:
    """A trigger's savepoint is one of its own level: which of the two is meant later, nobody can tell for sure."""
    log = row(LogWriter().format().gtid(1).begin(), 1).query(b"SAVEPOINT `a`")
    log.table_map(9, b"\x03").rows(30, 9, 1, int_row(2), ends=ended).query(b"SAVEPOINT `A`")
    row(log, 3).query(b"ROLLBACK TO `a`").xid()
    subject, told = decoder(), list[str]()
    subject.mismatches.listener = lambda table, error, before: told.append(str(error))

    rows = rows_of(subject, [log.take()])

    assert (rows, bool(told)) == (([1, 2], False) if ended else ([], True))


def test_whoever_does_not_look_ahead_is_stopped_at_a_rollback_of_rows() -> None:
    log = row(LogWriter().format().gtid(1).begin(), 1).query(b"ROLLBACK")

    with pytest.raises(DataError, match="rolls back rows"):
        decoder().feed(log.take())


def altered_in_two_phases() -> tuple[bytes, bytes]:
    """An ALTER that begins before rows of another transaction and ends behind them; then one that fails."""
    log, alter = LogWriter().format(b"10.11.6-MariaDB"), b"ALTER TABLE t ADD COLUMN n INT"
    log.mariadb_gtid(1, standalone=True, extra=b"\2").query(alter)
    row(log.mariadb_gtid(2), 1).xid()
    first = log.take()
    log.mariadb_gtid(3, standalone=True, extra=b"\4" + struct.pack("<Q", 1)).query(b"/* c */ " + alter)
    log.mariadb_gtid(4, standalone=True, extra=b"\2").query(b"ALTER TABLE t DROP COLUMN n, ADD UNIQUE (id)")
    log.mariadb_gtid(5, standalone=True, extra=b"\x08" + struct.pack("<Q", 4)).query(
        b"ALTER TABLE t DROP COLUMN n, ADD UNIQUE (id)"
    )
    return first, log.take()


def statements_of(subject: BinlogDecoder, events: bytes) -> list[str]:
    return [item.statement for item in subject.feed(events) if isinstance(item, DdlItem)]


def test_an_alter_in_two_phases_counts_where_it_is_committed() -> None:
    first, second = altered_in_two_phases()
    subject = decoder(mariadb=True)

    assert statements_of(subject, first) == []
    between = BinlogOffset.from_json(subject.cursor.position.to_json())
    assert statements_of(subject, second) == ["/* c */ ALTER TABLE t ADD COLUMN n INT"]
    # A restart between the two needs to know nothing of the first.
    again = decoder(mariadb=True, start=between)
    assert statements_of(again, formatted(first) + second) == ["/* c */ ALTER TABLE t ADD COLUMN n INT"]
    assert again.cursor.position.gtid_set == "0-1-5"


def formatted(events: bytes) -> bytes:
    """The format that a dump begins with inside a file: without a position."""
    event = events[: int.from_bytes(events[9:13], "little")]
    head = event[:13] + bytes(4) + event[17:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def test_extra_flags_are_found_behind_all_that_may_precede_them() -> None:
    log = LogWriter().format(b"10.11.6-MariaDB")
    commit_id, xid = struct.pack("<Q", 7), struct.pack("<IBB", 1, 2, 1) + b"abc"
    for number, (flags, between) in enumerate(((1 | 2, commit_id), (1 | 128, xid), (1 | 2 | 128, commit_id + xid))):
        log.event(162, struct.pack("<QIB", number + 1, 0, flags) + between + b"\2").query(b"ALTER TABLE t COMMENT 'a'")
        log.event(162, struct.pack("<QIB", number + 9, 0, flags) + between).query(b"ALTER TABLE t COMMENT 'b'")

    assert statements_of(decoder(mariadb=True), log.take()) == ["ALTER TABLE t COMMENT 'b'"] * 3
