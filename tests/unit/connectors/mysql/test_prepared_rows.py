"""Rows of prepared XA transactions: masked while they wait, given once, and never decoded by another shape."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem, LogItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.tables.table_decoding import BatchForm
from raycdc.connectors.mysql.log.log_filter import KeptRows
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import ConfigError, StateError
from raycdc.model import RowKind, TableId, lost_values, with_lost_values
from raycdc.model.batch import is_masked, with_masked
from raycdc.model.rules.mask import Mask, Masks
from raycdc.model.state_key import StateKey
from raycdc.runtime.reader.output import EpochOutput
from raycdc.segments import read_segment
from raycdc.segments.access import SpoolAddress
from raycdc.source.snapshot.log.log_rows import LogRows, split_moves, take
from raycdc.transform.masks import Masking
from tests.leaks import leaks
from tests.unit.connectors.mysql.binlog_bytes import LogWriter

PEOPLE = TableId("d", "t")
TABLE = MySqlTable(PEOPLE, (MySqlColumn("id", "int"), MySqlColumn("email", "varchar(40)", "utf8mb4")), ("id",))
TYPES, META = b"\x03\x0f", struct.pack("<H", 160)
MASKS = Masks([Mask("d.t.email", "hash", key=b"k")])
KEY = StateKey("a key of sixteen or more")
SECRET = "planted-email"


def row(number: int, email: str) -> bytes:
    return b"\0" + struct.pack("<I", number) + bytes([len(email)]) + email.encode()


def prepared_log(*, email: str = SECRET) -> LogWriter:
    log = LogWriter().format().gtid(1).query(b"XA START X'7831',X'',1").table_map(9, TYPES, metadata=META)
    log.rows(30, 9, 2, row(1, email) + row(2, email))
    return log.query(b"XA END X'7831',X'',1").event(38, b"\0" + struct.pack("<III", 1, 2, 0) + b"x1")


def commit(log: LogWriter, number: int = 2) -> bytes:
    return log.gtid(number, micros=1_700_000_999_000_000).query(b"XA COMMIT X'7831',X'',1").take()


def decoder(
    hiding: Masking | None = None,
    *,
    start: BinlogOffset | None = None,
    table: MySqlTable = TABLE,
    cut_by: Collection[str] = (),
    parked: bool = False,
) -> tuple[BinlogDecoder, list[str]]:
    mismatches: list[str] = []
    subject = BinlogDecoder(
        MapSchemas({} if parked else {PEOPLE: table}),
        wanted=lambda _: not parked and not mismatches,
        start=start or BinlogOffset("binlog.000001", 4),
        log=LogKind(),
        form=BatchForm(with_pos=True),
    )
    subject.xa.keeps = lambda _: True
    subject.mismatches.listener = lambda _, error, __: mismatches.append(str(error))
    subject.xa.keeper = KeptRows(hiding or Masking(MASKS), lambda _: cut_by, None)
    return subject, mismatches


def rows(items: list[LogItem]) -> list[dict[str, Any]]:
    return [row for item in items if isinstance(item, BinlogRowsItem) for row in item.batch.to_pylist()]


def restarted(position: BinlogOffset) -> BinlogOffset:
    return BinlogOffset.from_json(json.loads(json.dumps(position.to_json())))


def shows(tmp_path: Path, position: BinlogOffset) -> list[str]:
    (tmp_path / "position").write_text(json.dumps(position.to_json()))
    return leaks([tmp_path / "position"], [SECRET])


DIGEST = hmac.new(b"k", SECRET.encode(), hashlib.sha256).hexdigest()


def test_rows_wait_masked_and_are_not_masked_again(tmp_path: Path) -> None:
    log = prepared_log()
    subject, _ = decoder()
    assert subject.feed(log.take()) == []
    assert subject.cursor.position.prepared
    assert shows(tmp_path, subject.cursor.position) == []
    second, mismatches = decoder(start=restarted(subject.cursor.position))
    [item] = second.feed(commit(LogWriter(position=subject.cursor.position.pos).format()))
    assert isinstance(item, BinlogRowsItem)
    assert (item.kept, mismatches, second.cursor.position.prepared) == (True, [], "")
    end = second.cursor.position.pos
    assert item.row_pos.tolist() == [end, end]
    meta = {"_op": 0, "_ts_ms": 1_700_000_999_000}
    assert item.batch.to_pylist() == [
        {"id": n, "email": DIGEST, **meta, "_seq": n - 1, "_pos": f"binlog.000001:{end}:{n - 1}"} for n in (1, 2)
    ]
    # The output masks what it is given, other rows of the same table too.
    output = EpochOutput(SpoolAddress(tmp_path, "state"), masks=MASKS)
    clear = with_masked(item.batch, masked=False).set_column(1, "email", pa.array([SECRET, None]))
    for batch in (item.batch, clear):
        output.collect(PEOPLE, fingerprint="f", batch=batch, split_id="stream", key=("id",))
    [data] = output.cut(1)
    batches = read_segment(data)
    written = [email for batch in batches for email in batch["email"].to_pylist()]
    assert written == [DIGEST, DIGEST, DIGEST, None]


def test_what_the_hand_off_makes_of_masked_rows_is_masked_still() -> None:
    ops = pa.array([RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.INSERT], pa.int8())
    batch = pa.record_batch({"id": [1, 2, 3], "_op": ops})
    masked = with_lost_values(with_masked(batch, masked=True), 3)
    moved = split_moves(masked, np.array([0, 1, 1]), ["id"])
    part = take(LogRows(PEOPLE, moved, np.arange(3)), np.array([True, True, False]))
    assert part is not None
    assert (is_masked(part.batch), lost_values(part.batch), part.batch.num_rows) == (True, 2, 2)


def test_numbers_of_rows_that_wait_are_given_once() -> None:
    log = prepared_log()
    log.gtid(2).begin().table_map(9, TYPES, metadata=META).rows(30, 9, 2, row(3, "c")).xid()
    subject, _ = decoder(Masking())
    found = rows(subject.feed(log.take() + commit(LogWriter(position=log.position), 3)))
    assert [(one["id"], one["_seq"]) for one in found] == [(3, 0), (1, 1), (2, 2)]
    assert subject.statistics()["rows"] == 3


def test_a_table_cut_by_a_masked_column_is_kept_encrypted(tmp_path: Path) -> None:
    log, hiding = prepared_log(), Masking(MASKS, KEY)
    subject, _ = decoder(hiding, cut_by=["email"])
    subject.feed(log.take())
    assert shows(tmp_path, subject.cursor.position) == []
    for wrong, why in ((Masking(MASKS), "is not set"), (Masking(MASKS, StateKey("another key, as long")), "another")):
        other, _ = decoder(wrong, start=restarted(subject.cursor.position), cut_by=["email"])
        with pytest.raises(StateError, match=rf"pipeline\.state_key.*{why}|{why} pipeline\.state_key"):
            other.feed(commit(LogWriter(position=subject.cursor.position.pos).format()))
    second, _ = decoder(hiding, start=restarted(subject.cursor.position), cut_by=["email"])
    [item] = second.feed(commit(LogWriter(position=subject.cursor.position.pos).format()))
    assert isinstance(item, BinlogRowsItem)
    assert item.batch["email"].to_pylist() == [SECRET, SECRET]
    assert not is_masked(item.batch)
    unkeyed, _ = decoder(cut_by=["email"])
    with pytest.raises(ConfigError, match=r"^pipeline\.state_key is not set, and d\.t is cut"):
        unkeyed.feed(prepared_log().take())


def test_rows_of_another_shape_park_their_table_instead_of_being_bent() -> None:
    log = prepared_log()
    subject, _ = decoder()
    subject.feed(log.take())
    wider = MySqlTable(PEOPLE, (*TABLE.columns, MySqlColumn("more", "int")), ("id",))
    second, mismatches = decoder(start=restarted(subject.cursor.position), table=wider)
    assert second.feed(commit(LogWriter(position=subject.cursor.position.pos).format())) == []
    assert "were prepared when it had other columns" in mismatches[0]


@pytest.mark.parametrize(("hiding", "kept"), [(Masking(), True), (Masking(MASKS, KEY), True), (Masking(MASKS), False)])
def test_rows_of_a_parked_table_wait_where_nothing_shows_and_park_it_again_otherwise(
    tmp_path: Path, hiding: Masking, kept: bool
) -> None:
    log = prepared_log()
    subject, _ = decoder(hiding, parked=True)
    subject.feed(log.take())
    assert bool(shows(tmp_path, subject.cursor.position)) == (not hiding.masks)
    second, mismatches = decoder(hiding, start=restarted(subject.cursor.position))
    found = rows(second.feed(commit(LogWriter(position=subject.cursor.position.pos).format())))
    assert [one["email"] for one in found] == ([SECRET, SECRET] if kept else [])
    assert [text[:22] for text in mismatches] == (
        [] if kept else [f"binlog.000001:{second.cursor.position.pos}: XA "[:22]]
    )
    third, mismatches = decoder(hiding, start=restarted(subject.cursor.position), parked=True)
    assert third.feed(commit(LogWriter(position=subject.cursor.position.pos).format())) == []
    assert mismatches == []


def version_1(log: LogWriter) -> str:
    """As raycdc wrote positions before rows were masked: the events, without checksums."""
    events, at, data = [], 0, log.take()
    while at < len(data):
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        if data[at + 4] in (19, 30):
            events.append(data[at : at + length - 4])
        at += length
    return base64.b64encode(zlib.compress(msgpack.packb({"x'7831',x'',1": events}), 1)).decode()


def test_a_state_with_raw_events_is_masked_before_its_next_manifest(tmp_path: Path) -> None:
    log = prepared_log()
    start = BinlogOffset("binlog.000001", log.position, "", prepared=version_1(log))
    assert shows(tmp_path, start) != []
    subject, _ = decoder(start=start)
    ordinary = LogWriter(position=start.pos).format().gtid(2).begin().xid()
    assert subject.feed(ordinary.take()) == []
    assert shows(tmp_path, subject.cursor.position) == []
    assert subject.cursor.position.pos == ordinary.position
    found = rows(subject.feed(commit(ordinary, 3)))
    assert [(one["id"], one["email"], one["_seq"]) for one in found] == [(1, DIGEST, 0), (2, DIGEST, 1)]


def test_the_golden_position_of_version_1_is_read() -> None:
    golden = json.loads((Path(__file__).parent / "golden" / "binlog-position-prepared-v1.json").read_text())
    table = MySqlTable(PEOPLE, (MySqlColumn("id", "int", nullable=False),), ("id",))
    subject, _ = decoder(Masking(), start=BinlogOffset.from_json(golden), table=table)
    [item] = subject.feed(commit(LogWriter(position=golden["pos"]).format(), 3))
    assert isinstance(item, BinlogRowsItem)
    assert item.batch["id"].to_pylist() == [1]


def test_a_position_of_a_newer_version_is_refused() -> None:
    with pytest.raises(StateError, match="version '3'"):
        decoder(start=BinlogOffset("binlog.000001", 4, prepared="3:abc"))


def test_rows_of_a_table_that_was_selected_since_park_it_as_its_snapshot_lacks_them() -> None:
    log = prepared_log()
    subject, _ = decoder(parked=True)
    subject.xa.keeps = lambda _: False
    subject.feed(log.take())
    second, mismatches = decoder(start=restarted(subject.cursor.position))
    assert second.feed(commit(LogWriter(position=subject.cursor.position.pos).format())) == []
    [why] = mismatches
    assert "x'7831',x'',1 brings rows of d.t that are not in its snapshot" in why
    assert "raycdc tables resnapshot CONFIG d.t" in why
    third, mismatches = decoder(start=restarted(subject.cursor.position), parked=True)
    assert third.feed(commit(LogWriter(position=subject.cursor.position.pos).format())) == []
    assert mismatches == []


def test_a_table_map_alone_is_no_row_that_a_snapshot_lacks() -> None:
    log = LogWriter().format().gtid(1).query(b"XA START X'7831',X'',1").table_map(9, TYPES, metadata=META)
    log.query(b"XA END X'7831',X'',1").event(38, b"\0" + struct.pack("<III", 1, 2, 0) + b"x1")
    subject, _ = decoder(parked=True)
    subject.xa.keeps = lambda _: False
    subject.feed(log.take())
    second, mismatches = decoder(start=restarted(subject.cursor.position))
    assert second.feed(commit(LogWriter(position=subject.cursor.position.pos).format())) == []
    assert mismatches == []


def test_what_was_prepared_before_the_job_began_parks_the_tables_that_are_followed_and_ends_no_run() -> None:
    subject, mismatches = decoder()
    log = LogWriter().format()
    assert subject.feed(commit(log, 1)) == []
    [why] = mismatches
    assert why.startswith(f"binlog.000001:{log.position}: XA COMMIT x'7831',x'',1: the transaction was prepared before")
    assert "raycdc tables resnapshot CONFIG d.t" in why
    assert subject.cursor.position.pos == log.position
