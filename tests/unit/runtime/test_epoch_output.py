"""Numbers of rows: whatever was held, and for however long, `_seq` orders each key's changes as they happened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raycdc.errors import DataError
from raycdc.model import TableId, lost_values
from raycdc.model.batch import is_masked, with_lost_values
from raycdc.model.rules.mask import Mask, Masks
from raycdc.runtime.reader import output as open_epoch
from raycdc.runtime.reader.output import EpochOutput
from raycdc.segments import read_segment
from raycdc.segments.access import SegmentAccess, SpoolAddress
from raycdc.source.protocol.metrics import CutProgress
from raycdc.source.snapshot.handoff.hand_off import LogRows
from raycdc.state.manifests.manifest import EPOCH_MAX, SEQ_COUNTER_BITS, Segment, seq_base

ORDERS, ITEMS = TableId("shop", "orders"), TableId("shop", "items")
OWN = SegmentAccess("here")
SCHEMA = pa.schema([("id", pa.int64()), ("_op", pa.int8()), ("_seq", pa.int64())])


def rows(*seqs: int) -> pa.RecordBatch:
    arrays = [pa.array(seqs, pa.int64()), pa.array([0] * len(seqs), pa.int8()), pa.array(seqs, pa.int64())]
    return pa.record_batch(arrays, SCHEMA)


@pytest.fixture
def output(tmp_path: Path) -> Iterator[EpochOutput]:
    made = EpochOutput(SpoolAddress(tmp_path, "here"))
    yield made
    made.close()


def collect(output: EpochOutput, *seqs: int, table: TableId = ORDERS) -> None:
    output.collect(table, fingerprint="f", batch=rows(*seqs), split_id="stream")


def cut(output: EpochOutput, epoch: int) -> list[Segment]:
    return list(output.cut(epoch))


def numbered(segments: list[Segment]) -> list[int]:
    """Ids of the rows in the order of their absolute `_seq`; an id is the row's number in the log."""
    read = [row for s in segments for batch in read_segment(s, access=OWN) for row in batch.to_pylist()]
    return [row["id"] for row in sorted(read, key=lambda row: int(row["_seq"]))]


def absolute(segments: list[Segment]) -> list[int]:
    return sorted(v for s in segments for b in read_segment(s, access=OWN) for v in b.column("_seq").to_pylist())


def test_rows_held_since_earlier_epochs_keep_their_place_before_newer_ones(output: EpochOutput) -> None:
    collect(output, 10, 12)
    first = cut(output, 1)
    collect(output, 20, 21)
    collect(output, 3, 11)
    second = cut(output, 2)
    assert numbered(first) == [10, 12]
    assert numbered(second) == [3, 11, 20, 21]
    assert max(absolute(first)) < min(absolute(second))


def test_numbers_of_one_epoch_are_shared_by_its_tables(output: EpochOutput) -> None:
    collect(output, 7, 9)
    collect(output, 8, table=ITEMS)
    assert numbered(cut(output, 1)) == [7, 8, 9]


def test_snapshot_rows_precede_the_log_rows_of_their_epoch(output: EpochOutput, tmp_path: Path) -> None:
    chunks: list[Segment] = []
    for _ in range(2):
        made = EpochOutput(SpoolAddress(tmp_path, "here"))
        collect(made, 0, 1)
        chunks += made.cut(1)
    collect(output, 5)
    output.publish([replace(chunk, kind="snapshot") for chunk in chunks])
    segments = cut(output, 4)
    assert [(s.kind, s.seq_base - seq_base(4, log=False)) for s in segments if s.kind == "snapshot"] == [
        ("snapshot", 0),
        ("snapshot", 2),
    ]
    assert absolute(segments)[:4] == [seq_base(4, log=False, offset=n) for n in range(4)]
    assert absolute(segments)[4:] == [seq_base(4, log=True)]


def test_dropped_rows_use_up_no_numbers_however_many_they_are(output: EpochOutput) -> None:
    far = 10 << SEQ_COUNTER_BITS
    collect(output, far, far + 1)
    assert absolute(cut(output, 9)) == [seq_base(9, log=True), seq_base(9, log=True, offset=1)]


def test_an_epoch_that_would_run_out_of_numbers_is_refused(output: EpochOutput) -> None:
    collect(output, 0)
    collect(output, 1 << SEQ_COUNTER_BITS)
    with pytest.raises(DataError, match="at most"):
        output.cut(1)


def test_an_empty_epoch_has_no_segments_and_the_next_starts_afresh(output: EpochOutput) -> None:
    assert cut(output, 1) == []
    collect(output, 4)
    assert absolute(cut(output, 2)) == [seq_base(2, log=True)]


def test_held_rows_are_written_for_another_reader_without_entering_the_epoch(output: EpochOutput) -> None:
    parts = [LogRows(ORDERS, rows(1, 2), np.array([1, 2])), LogRows(ORDERS, rows(5), np.array([5]))]
    (delta,) = output.write_delta(parts, fingerprint="f", split_id="c")
    assert numbered([delta]) == [1, 2, 5]
    assert output.open_bytes == 0
    assert cut(output, 1) == []


def test_closing_removes_what_belongs_to_no_epoch(output: EpochOutput, tmp_path: Path) -> None:
    collect(output, *range(1000))
    assert len(list(tmp_path.iterdir())) == 1
    output.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("epoch", "offset"), [(-1, 0), (EPOCH_MAX + 1, 0), (1, 1 << SEQ_COUNTER_BITS)])
def test_numbers_out_of_range_are_refused(epoch: int, offset: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        seq_base(epoch, log=True, offset=offset)


def test_numbers_grow_with_the_epoch_and_fit_64_bits() -> None:
    assert seq_base(1, log=True) < seq_base(2, log=False) < seq_base(2, log=True)
    assert seq_base(EPOCH_MAX, log=True, offset=(1 << SEQ_COUNTER_BITS) - 1) < 1 << 63


def test_a_cut_says_after_each_file_how_many_are_on_disk(tmp_path: Path) -> None:
    told: list[CutProgress] = []
    output = EpochOutput(SpoolAddress(tmp_path, "here"), on_progress=told.append)
    collect(output, 1)
    collect(output, 2, table=ITEMS)
    segments = cut(output, 7)
    first, second = (segment.bytes for segment in segments)
    assert told == [CutProgress(7, 1, 2, first), CutProgress(7, 2, 2, first + second)]


def test_full_files_are_on_disk_before_the_cut_and_go_with_a_reader_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_epoch, "SEGMENT_BYTES_MAX", 1)
    told: list[CutProgress] = []
    output = EpochOutput(SpoolAddress(tmp_path, "here"), on_progress=told.append)
    for number in range(4):
        collect(output, number)
    assert len([*tmp_path.glob("*.arrow")]) == 3
    segments = cut(output, 1)
    assert ([step.files for step in told], numbered(segments)) == ([1], [0, 1, 2, 3])
    collect(output, 5)
    collect(output, 6)
    output.close()
    assert {path.name for path in tmp_path.iterdir()} == {Path(segment.path).name for segment in segments}


def test_held_rows_come_back_from_the_spool_as_they_were_as_often_as_wanted(tmp_path: Path) -> None:
    output = EpochOutput(SpoolAddress(tmp_path, "here"))
    held = [LogRows(ORDERS, rows(1, 2), np.array([7, 8])), LogRows(ORDERS, with_lost_values(rows(3), 2), np.array([9]))]
    spilled = output.spill(held)
    for _ in range(2):
        found = [*spilled]
        assert [(part.batch.to_pylist(), part.ordinals.tolist(), is_masked(part.batch)) for part in found] == [
            (part.batch.to_pylist(), part.ordinals.tolist(), True) for part in held
        ]
        assert [lost_values(part.batch) for part in found] == [0, 2]
    assert [path.suffix for path in tmp_path.iterdir()] == [".open"]
    spilled.delete()
    spilled.delete()
    assert [*tmp_path.iterdir()] == []


def test_held_rows_are_masked_before_they_are_put_down_and_once(tmp_path: Path) -> None:
    names = pa.schema([("id", pa.int64()), ("name", pa.string()), *SCHEMA.remove(0)])
    clear = pa.record_batch([pa.array([1]), pa.array(["secret"]), pa.array([0], pa.int8()), pa.array([1])], names)
    masks = Masks([Mask("shop.orders.name", "hash", key=b"k" * 32)])
    output = EpochOutput(SpoolAddress(tmp_path, "here"), masks=masks)
    spilled = output.spill([LogRows(ORDERS, clear, np.array([7]))])
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.iterdir())
    (held,) = spilled
    for batch in (held.batch, clear):
        output.collect(ORDERS, fingerprint="f", batch=batch, split_id="stream", key=["id"])
    (segment,) = cut(output, 1)
    first, second = (row["name"] for read in read_segment(segment, access=OWN) for row in read.to_pylist())
    assert first == second != "secret"
