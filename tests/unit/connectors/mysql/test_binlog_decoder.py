"""The binlog decoder on hand-made logs: rows, transactions, positions, GTIDs, DDL, and damage."""

from __future__ import annotations

import gc
import random
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem, DdlItem, LogItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.tables.table_decoding import BatchForm
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable, TypeOptions
from raycdc.errors import CorruptLogError, DataError, PartialRowsError, SchemaError, SchemaMismatchError
from raycdc.model import TableId, changelog_schema
from tests.unit.connectors.mysql.binlog_bytes import UUID, LogWriter, int_row

UUID_TEXT = "00010203-0405-0607-0809-0a0b0c0d0e0f"
TABLE = MySqlTable(TableId("d", "t"), (MySqlColumn("id", "int"),), ("id",))
OTHER = MySqlTable(TableId("d", "u"), (MySqlColumn("id", "int"), MySqlColumn("name", "varchar(10)", "utf8mb4")))
INT, VARCHAR = b"\x03", b"\x0f"


def decoder(
    *tables: MySqlTable, mariadb: bool = False, gtid_set: str = "", verify: bool = True, bytes_max: int = 8 << 20
) -> BinlogDecoder:
    known = {table.id: table for table in tables or (TABLE,)}
    return BinlogDecoder(
        MapSchemas(known),
        wanted=lambda table: table in known,
        start=BinlogOffset("binlog.000001", 4, gtid_set),
        log=LogKind(mariadb=mariadb, verify_checksums=verify),
        form=BatchForm(bytes_max=bytes_max, with_pos=True),
    )


def rows_of(items: list[LogItem]) -> list[tuple[int, int | None]]:
    """(kind, id) of all rows, ordered by `_seq`."""
    rows = [row for item in items if isinstance(item, BinlogRowsItem) for row in item.batch.to_pylist()]
    return [(row["_op"], row["id"]) for row in sorted(rows, key=lambda row: row["_seq"])]


def test_insert_update_and_delete_become_rows_with_metadata() -> None:
    log = LogWriter().format().gtid(5, micros=1_700_000_123_456_789).begin().table_map(9, INT)
    log.rows(30, 9, 1, int_row(1) + int_row(None))
    inserted_at = log.position
    log.rows(31, 9, 1, int_row(1) + int_row(2)).rows(32, 9, 1, int_row(2)).xid()
    subject = decoder()

    [item] = subject.feed(log.take())

    assert isinstance(item, BinlogRowsItem)
    assert item.batch.schema.equals(changelog_schema(TABLE.schema()))
    assert item.batch.slice(0, 2).to_pylist() == [
        {"id": 1, "_op": 0, "_seq": 0, "_ts_ms": 1_700_000_123_456, "_pos": f"binlog.000001:{inserted_at}:0"},
        {"id": None, "_op": 0, "_seq": 1, "_ts_ms": 1_700_000_123_456, "_pos": f"binlog.000001:{inserted_at}:1"},
    ]
    assert rows_of([item]) == [(0, 1), (0, None), (1, 1), (2, 2), (3, 2)]
    assert item.row_pos[:2].tolist() == [inserted_at, inserted_at]
    assert subject.cursor.position == BinlogOffset("binlog.000001", log.position)
    assert subject.cursor.position.gtid_set == f"{UUID_TEXT}:5"
    assert (subject.cursor.next_seq, subject.cursor.in_transaction) == (5, False)


def test_position_stays_at_the_last_complete_transaction() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, INT).rows(30, 9, 1, int_row(1)).xid()
    boundary = log.position
    log.gtid(2).begin().table_map(9, INT).rows(30, 9, 1, int_row(2))
    events = log.take()
    subject = decoder()

    assert subject.cut(events) == boundary - 4
    subject.feed(events)

    position = subject.cursor.position
    assert (position, position.gtid_set) == (BinlogOffset("binlog.000001", boundary), f"{UUID_TEXT}:1")
    assert (subject.cursor.event_position.pos, subject.cursor.in_transaction) == (log.position, True)
    rest = log.xid().take()
    assert subject.cut(rest) == len(rest)
    subject.feed(rest)
    assert (subject.cursor.position.pos, subject.cursor.position.gtid_set) == (log.position, f"{UUID_TEXT}:1-2")


def test_gtids_with_holes_and_of_two_servers_merge_into_the_given_set() -> None:
    log = LogWriter().format()
    other = bytes(16)
    for number, uuid in [(4, UUID), (5, UUID), (9, UUID), (1, other), (10, UUID), (2, other)]:
        log.gtid(number, uuid=uuid).begin().xid()
    subject = decoder(gtid_set=f"{UUID_TEXT}:1-3")

    subject.feed(log.take())

    assert subject.cursor.position.gtid_set == f"00000000-0000-0000-0000-000000000000:1-2,{UUID_TEXT}:1-5:9-10"


def test_mariadb_transactions_end_without_begin_and_keep_one_gtid_per_domain() -> None:
    log = LogWriter().format(b"10.11.6-MariaDB-log").mariadb_gtid(7).table_map(9, INT).rows(23, 9, 1, int_row(1)).xid()
    log.mariadb_gtid(8, domain=3, standalone=True).query(b"CREATE TABLE d.x (a INT)")
    subject = decoder(mariadb=True, gtid_set="0-1-6,2-5-1")

    items = subject.feed(log.take())

    assert rows_of(items) == [(0, 1)]
    assert subject.cursor.position.gtid_set == "0-1-7,2-5-1,3-1-8"
    assert not subject.cursor.in_transaction


def test_ddl_separates_rows_and_its_callback_changes_the_schema_for_those_after_it() -> None:
    wider = MySqlTable(TABLE.id, (*TABLE.columns, MySqlColumn("b", "tinyint")), ("id",))
    log = LogWriter().format().gtid(1).begin().table_map(9, INT).rows(30, 9, 1, int_row(1)).xid()
    before = log.position
    log.gtid(2).query(b"ALTER TABLE t ADD b TINYINT")
    after = log.position
    log.gtid(3).begin().table_map(10, INT + b"\x01").rows(30, 10, 2, int_row(2) + b"\x05").xid()
    seen: list[DdlItem] = []

    def on_ddl(item: DdlItem) -> None:
        seen.append(item)
        subject.set_table(wider)

    subject = BinlogDecoder(
        MapSchemas({TABLE.id: TABLE}),
        wanted=lambda _: True,
        start=BinlogOffset("binlog.000001", 4),
        log=LogKind(),
        on_ddl=on_ddl,
    )
    first, ddl, second = subject.feed(log.take())

    assert isinstance(first, BinlogRowsItem)
    assert isinstance(second, BinlogRowsItem)
    assert seen == [ddl]
    assert (seen[0].db, seen[0].statement) == ("d", "ALTER TABLE t ADD b TINYINT")
    assert (seen[0].before.pos, seen[0].before.gtid_set) == (before, f"{UUID_TEXT}:1")
    assert (seen[0].position.pos, seen[0].position.gtid_set) == (after, f"{UUID_TEXT}:1-2")
    assert (first.batch.column_names[:2], second.batch.column_names[:2]) == (["id", "_op"], ["id", "b"])


def test_rows_of_several_tables_keep_log_order_by_seq() -> None:
    log = LogWriter().format().gtid(1).begin()
    expected = []
    for value in range(20):
        if value % 3:
            log.table_map(9, INT).rows(30, 9, 1, int_row(value))
        else:
            image = b"\0" + struct.pack("<i", value) + b"\x02ab"
            log.table_map(10, INT + VARCHAR, b"\x28\x00", table=b"u").rows(30, 10, 2, image)
        expected.append((0, value))

    items = decoder(TABLE, OTHER).feed(log.xid().take())

    assert {item.table for item in items if isinstance(item, BinlogRowsItem)} == {TABLE.id, OTHER.id}
    assert rows_of(items) == expected


def test_a_table_id_that_is_reused_for_another_table_takes_its_new_map() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, INT).rows(30, 9, 1, int_row(1)).xid()
    log.gtid(2).begin().table_map(9, INT, table=b"x").rows(30, 9, 1, int_row(99)).xid()
    log.gtid(3).begin().table_map(12, INT).rows(30, 12, 1, int_row(3)).xid()

    assert rows_of(decoder().feed(log.take())) == [(0, 1), (0, 3)]


def test_batches_split_by_bytes_but_never_inside_an_update() -> None:
    rows = b"".join(
        b"\0" + struct.pack("<i", i) + b"\x0a0123456789" + b"\0" + struct.pack("<i", i) + b"\x0aabcdefghij"
        for i in range(1000)
    )
    log = LogWriter().format().gtid(1).begin().table_map(10, INT + VARCHAR, b"\x28\x00", table=b"u")
    log.rows(31, 10, 2, rows).xid()

    items = decoder(OTHER, bytes_max=4096).feed(log.take())

    batches = [item.batch for item in items if isinstance(item, BinlogRowsItem)]
    assert len(batches) > 5
    assert all(batch["_op"].to_pylist() == [1, 2] * (batch.num_rows // 2) for batch in batches)
    assert sum(batch.num_rows for batch in batches) == 2000
    assert [seq for batch in batches for seq in batch["_seq"].to_pylist()] == list(range(2000))


def test_text_larger_than_the_arena_makes_it_grow() -> None:
    table = MySqlTable(TableId("d", "t"), (MySqlColumn("body", "longtext", "utf8mb4"),))
    value = b"x" * 300_000
    log = LogWriter().format().gtid(1).begin().table_map(9, b"\xfc", b"\x04")
    log.rows(30, 9, 1, b"\0" + struct.pack("<I", len(value)) + value).xid()

    [item] = decoder(table).feed(log.take())

    assert isinstance(item, BinlogRowsItem)
    assert item.batch["body"].to_pylist() == [value.decode()]


def test_positions_go_on_beyond_4_gib() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, INT).rows(30, 9, 1, int_row(1)).xid()
    start = BinlogOffset("binlog.000001", (1 << 32) - 20)
    log = LogWriter(position=start.pos).gtid(1).begin().table_map(9, INT).rows(30, 9, 1, int_row(1)).xid()
    subject = BinlogDecoder(MapSchemas({TABLE.id: TABLE}), wanted=lambda _: True, start=start, log=LogKind())
    subject.feed(LogWriter().format().take())

    subject.feed(log.take())

    assert subject.cursor.position.pos == log.position > 1 << 32


def test_an_unknown_event_that_may_be_ignored_counts_beyond_4_gib() -> None:
    start = BinlogOffset("binlog.000001", (1 << 32) - 20)
    log = LogWriter(position=start.pos).event(250, bytes(30), flags=0x80)
    log.gtid(1).begin().table_map(9, INT).rows(30, 9, 1, int_row(1)).xid()
    subject = BinlogDecoder(
        MapSchemas({TABLE.id: TABLE}), wanted=lambda _: True, start=start, log=LogKind(whole_file=True)
    )
    subject.feed(LogWriter().format().take())

    [item] = subject.feed(log.take())

    assert isinstance(item, BinlogRowsItem)
    assert subject.cursor.position.pos == log.position > 1 << 32


def test_the_dumps_first_rotate_has_a_checksum_before_the_format_says_so() -> None:
    log = LogWriter().rotate(b"binlog.000007", 154, position=0)
    subject = decoder()

    subject.feed(log.take())

    assert subject.cursor.position == BinlogOffset("binlog.000007", 154)


def test_a_new_file_continues_at_its_fourth_byte() -> None:
    log = LogWriter().format().gtid(1).begin().xid().rotate(b"binlog.000002")
    subject = decoder()

    subject.feed(log.take())

    assert subject.cursor.position == BinlogOffset("binlog.000002", 4)


def test_values_of_an_unwanted_table_are_not_looked_at() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, b"\x7f", table=b"odd").rows(30, 9, 1, b"??").xid()

    assert decoder().feed(log.take()) == []


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (26, b"\1\0\0", "INCIDENT"),
        (164, b"\0" * 10, "START_ENCRYPTION"),
        (99, b"", "unknown event (type 99)"),
    ],
)
def test_events_that_cannot_be_followed_are_refused_by_name(kind: int, body: bytes, text: str) -> None:
    log = LogWriter().format().event(kind, body)

    with pytest.raises(DataError, match=r"binlog\.000001:\d+") as caught:
        decoder().feed(log.take())
    assert text in str(caught.value)


def test_unknown_events_that_say_so_are_skipped() -> None:
    log = LogWriter().format().event(99, b"", flags=0x80)
    subject = decoder()

    subject.feed(log.take())

    assert subject.cursor.position.pos == log.position


def test_an_incomplete_row_image_is_refused_with_the_setting() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(10, INT + VARCHAR, b"\x28\x00", table=b"u")
    log.rows(30, 10, 2, int_row(1), present=b"\x01").xid()

    with pytest.raises(DataError, match="binlog_row_image = FULL"):
        decoder(OTHER).feed(log.take())


@pytest.mark.parametrize(
    ("types", "metadata", "what"),
    [(b"", b"", "0 columns instead of 1"), (b"\x08", b"", "column 'id' is bigint there")],
)
def test_a_table_map_that_does_not_fit_shows_both_shapes(types: bytes, metadata: bytes, what: str) -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, types, metadata)

    with pytest.raises(SchemaError) as caught:
        decoder().feed(log.take())
    assert what in str(caught.value)
    assert "id int" in str(caught.value)


def test_a_column_without_a_name_may_be_one_of_a_functional_index_until_the_rows_have_it() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, INT + INT).rows(30, 9, 2, int_row(1), present=b"\x01").xid()
    batch = next(item for item in decoder().feed(log.take()) if isinstance(item, BinlogRowsItem)).batch
    assert batch.column("id").to_pylist() == [1]

    log = LogWriter().format().gtid(1).begin().table_map(9, INT + INT)
    log.rows(30, 9, 2, int_row(1) + b"\0\0\0\0", present=b"\x03").xid()
    with pytest.raises(SchemaMismatchError, match="2 columns instead of 1"):
        decoder().feed(log.take())


WIDE = TypeOptions(invalid_dates="park", invalid_text="park", tinyint1="boolean")


@dataclass(frozen=True, slots=True)
class Unfit:
    """A row of the table d.t with one column that cannot be told; `when_unproven` is the error without checksums.

    `wire` is the column's type and metadata in its table map.
    """

    why: str
    column: MySqlColumn
    wire: bytes
    image: bytes
    columns: int = 1
    present: bytes | None = None
    mariadb: bool = False
    when_unproven: type[DataError] = SchemaMismatchError


ENUM, SET = MySqlColumn("c", "enum('low','high')", "utf8mb4"), MySqlColumn("c", "set('a','b')", "utf8mb4")
TEXT = MySqlColumn("c", "varchar(9)", "utf8mb4")
UNFIT = {
    "image": Unfit("binlog_row_image", ENUM, b"\xfe\xf7\1", b"\0", present=b"\0", when_unproven=PartialRowsError),
    "columns": Unfit("not fit its table map", ENUM, b"\xfe\xf7\1", b"\0\1", columns=2, when_unproven=CorruptLogError),
    "enum": Unfit("sql_log_bin = 0", ENUM, b"\xfe\xf7\1", b"\0\3"),
    "set": Unfit("sql_log_bin = 0", SET, b"\xfe\xf8\1", b"\0\4"),
    "json": Unfit(
        "is damaged", MySqlColumn("c", "json"), b"\xf5\4", b"\0\2\0\0\0\0\xff", when_unproven=CorruptLogError
    ),
    "date": Unfit("source.types.invalid_dates", MySqlColumn("c", "date"), b"\x0a", b"\0\0\0\0"),
    "boolean": Unfit("source.types.tinyint1", MySqlColumn("c", "tinyint(1)"), b"\1", b"\0\2"),
    "text": Unfit("source.types.invalid_text", TEXT, b"\x0f\x24\0", b"\0\1\xff"),
    "value": Unfit(
        "a length its type",
        MySqlColumn("c", "inet6"),
        b"\xfe\xfe\x10",
        b"\0\x11" + bytes(17),
        mariadb=True,
        when_unproven=CorruptLogError,
    ),
    "bounds": Unfit("end inside its event", TEXT, b"\x0f\x24\0", b"\0\x20a", when_unproven=CorruptLogError),
}


def _unfit_log(unfit: Unfit, *, checksum: bool) -> bytes:
    """Rows of t that fit not, between rows of u, in one transaction."""
    log = LogWriter(checksum=checksum)
    if unfit.mariadb:
        log.format(b"10.11.6-MariaDB-log").mariadb_gtid(7)
    else:
        log.format().gtid(1).begin()
    kind = 23 if unfit.mariadb else 30
    other = b"\0" + struct.pack("<i", 5) + b"\5hello"
    log.table_map(9, unfit.wire[:1], unfit.wire[1:]).table_map(10, INT + VARCHAR, b"\x28\0", table=b"u")
    log.rows(kind, 10, 2, other).rows(kind, 9, unfit.columns, unfit.image, present=unfit.present)
    return log.rows(kind, 10, 2, other).xid().take()


@pytest.mark.parametrize("checksum", [True, False], ids=["proven", "unproven"])
@pytest.mark.parametrize("unfit", UNFIT.values(), ids=UNFIT)
def test_rows_that_cannot_be_told_stop_their_table_alone_and_damage_the_log(unfit: Unfit, *, checksum: bool) -> None:
    table = WIDE.treat_table(MySqlTable(TABLE.id, (unfit.column,)))
    subject = decoder(table, OTHER, mariadb=unfit.mariadb)
    passed_over: list[tuple[TableId, DataError]] = []
    subject.mismatches.listener = lambda table, error, _: passed_over.append((table, error))
    log = _unfit_log(unfit, checksum=checksum)

    if not checksum and unfit.when_unproven is CorruptLogError:
        with pytest.raises(CorruptLogError, match=unfit.why):
            subject.feed(log)
        return
    items = [item for item in subject.feed(log) if isinstance(item, BinlogRowsItem)]

    assert [(item.table, item.rows) for item in items] == [(OTHER.id, 1), (OTHER.id, 1)]
    [(parked, error)] = passed_over
    proven = PartialRowsError if unfit.when_unproven is PartialRowsError else SchemaMismatchError
    assert (parked, type(error)) == (TABLE.id, proven if checksum else unfit.when_unproven)
    assert unfit.why in str(error)
    with pytest.raises(type(error), match=unfit.why):
        decoder(table, OTHER, mariadb=unfit.mariadb).feed(log)


@pytest.mark.parametrize(
    ("types", "metadata", "why"), [(INT + INT, b"", "a functional index"), (b"\xf5", b"\4", "does not fit its table")]
)
def test_partial_updates_that_cannot_be_told_stop_their_table_alone(types: bytes, metadata: bytes, why: str) -> None:
    table = TABLE if types[:1] == INT else MySqlTable(TABLE.id, (MySqlColumn("c", "json"),))
    log = LogWriter().format().gtid(1).begin().table_map(9, types, metadata)
    log.table_map(10, INT + VARCHAR, b"\x28\0", table=b"u").rows(39, 9, len(types), b"\1\0\xff\xff\xff\xff")
    log.rows(30, 10, 2, b"\0" + struct.pack("<i", 5) + b"\5hello").xid()
    events = log.take()
    with pytest.raises(SchemaMismatchError, match=why):
        decoder(table, OTHER).feed(events)
    subject = decoder(table, OTHER)
    passed_over: list[tuple[TableId, str]] = []
    subject.mismatches.listener = lambda table, error, _: passed_over.append((table, str(error)))

    items = [item for item in subject.feed(events) if isinstance(item, BinlogRowsItem)]

    assert [(item.table, item.rows) for item in items] == [(OTHER.id, 1)]
    [(parked, reason)] = passed_over
    assert parked == TABLE.id
    assert why in reason


def test_the_number_0_of_an_enum_is_the_empty_text() -> None:
    table = MySqlTable(TABLE.id, (ENUM,))
    log = LogWriter().format().gtid(1).begin().table_map(9, b"\xfe", b"\xf7\1").rows(30, 9, 1, b"\0\0").xid()
    [item] = [item for item in decoder(table).feed(log.take()) if isinstance(item, BinlogRowsItem)]
    assert item.batch.column("c").to_pylist() == [""]


def test_rows_before_damage_are_seen_and_those_after_it_are_not() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, INT).rows(30, 9, 1, int_row(1)).xid()
    good = len(log.data)
    log.gtid(2).begin().table_map(9, INT).rows(30, 9, 1, int_row(2)).xid()
    events = bytearray(log.take())
    events[good + 30] ^= 1
    subject = decoder()
    seen: list[LogItem] = []

    with pytest.raises(CorruptLogError, match=rf"binlog.000001:{good + 4}: the checksum"):
        seen.extend(subject.items(bytes(events)))

    assert rows_of(seen) == [(0, 1)]


def _long_log(*, checksum: bool) -> bytes:
    log = LogWriter(checksum=checksum).format()
    for number in range(1, 30):
        log.gtid(number).begin().table_map(10, INT + VARCHAR, b"\x28\x00", table=b"u")
        image = b"\0" + struct.pack("<i", number) + b"\x05hello"
        log.rows(30, 10, 2, image * 3).rows(31, 10, 2, image + image).rows(32, 10, 2, image).xid()
    return log.take()


@pytest.mark.parametrize("checksum", [True, False])
def test_flipped_and_missing_bytes_are_named_errors_and_never_more(*, checksum: bool) -> None:
    clean = _long_log(checksum=checksum)
    source = random.Random(20_240_501)
    for _ in range(400):
        events = bytearray(clean)
        for _ in range(source.randint(1, 4)):
            events[source.randrange(len(events))] = source.randrange(256)
        if source.random() < 0.3:
            del events[source.randrange(len(events)) :]
        # CorruptLogError, SchemaError or a refusal; anything else fails the test.
        with suppress(DataError):
            for item in decoder(OTHER, verify=checksum).items(bytes(events)):
                if isinstance(item, BinlogRowsItem):
                    item.batch.validate(full=True)


def test_python_objects_do_not_grow_with_rows() -> None:
    def blocks(rows: int) -> int:
        log = LogWriter().format().gtid(1).begin().table_map(9, INT)
        for _ in range(rows // 500):
            log.rows(30, 9, 1, int_row(7) * 500)
        events = np.frombuffer(log.xid().take(), np.uint8)
        subject = decoder()
        subject.feed(LogWriter().format().take())
        gc.collect()
        before = sys.getallocatedblocks()
        items = subject.feed(events)
        found = sys.getallocatedblocks() - before
        assert sum(item.rows for item in items if isinstance(item, BinlogRowsItem)) == rows
        return found

    blocks(1000)
    assert blocks(50_000) - blocks(5_000) < 500


def test_a_whole_file_ends_where_it_names_the_next_one() -> None:
    """Bytes that were repeated behind it are no rows."""
    log = LogWriter().format().gtid(1).begin().table_map(9, INT).rows(30, 9, 1, int_row(1)).xid()
    whole = log.rotate(b"binlog.000002").take()
    subject = BinlogDecoder(
        MapSchemas({TABLE.id: TABLE}),
        wanted=lambda _: True,
        start=BinlogOffset("binlog.000001", 4),
        log=LogKind(whole_file=True),
    )
    assert sum(item.rows for item in subject.feed(whole) if isinstance(item, BinlogRowsItem)) == 1
    with pytest.raises(CorruptLogError, match="goes on after its last event"):
        subject.feed(whole)


def test_a_next_file_at_an_impossible_place_is_damage() -> None:
    log = LogWriter().format().rotate(b"binlog.000002", (1 << 64) - 1)
    with pytest.raises(CorruptLogError, match="a ROTATE event is damaged"):
        decoder().feed(log.take())


def test_a_date_that_became_null_is_counted_once_however_small_the_batches_are() -> None:
    day = MySqlColumn("day", "date")
    table = MySqlTable(TableId("d", "t"), (MySqlColumn("id", "int"), day), ("id",))
    log = LogWriter().format().gtid(1).begin().table_map(9, INT + b"\x0a")
    log.rows(30, 9, 2, b"".join(int_row(number) + bytes(3) for number in range(6)))
    subject = BinlogDecoder(
        MapSchemas({table.id: table}),
        wanted=lambda _: True,
        start=BinlogOffset("binlog.000001", 4),
        log=LogKind(),
        form=BatchForm(rows_max=2),
    )

    items = subject.feed(log.xid().take())

    assert [item.rows for item in items if isinstance(item, BinlogRowsItem)] == [2, 2, 2]
    assert subject.statistics()["zero_dates"] == 6
