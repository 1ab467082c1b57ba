"""The bridge: a segment read from disk and through Flight is the same segment, and damage is noticed."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from raycdc.errors import SegmentUnavailableError, SpoolError, StateError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind, changelog_schema
from raycdc.model.batch import BATCH_BYTES_MAX, BATCH_ROWS_MAX
from raycdc.segments import (
    ANYWHERE,
    SegmentContents,
    SegmentWriter,
    SpoolAddress,
    delete_there,
    read_segment,
    segment_schema,
    verify_segments,
)
from raycdc.segments.access import SegmentAccess
from raycdc.segments.flight import FlightServer
from raycdc.state.manifests.manifest import Segment

TOKEN = "secret"
HERE = "node-with-the-file"
ELSEWHERE = "another-node"
SCHEMA = TableSchema(
    (
        Column("id", LogicalType(TypeKind.INT64), nullable=False),
        Column("tiny", LogicalType(TypeKind.INT8)),
        Column("wide", LogicalType(TypeKind.UINT64)),
        Column("at", LogicalType(TypeKind.DATETIME, fsp=6)),
        Column("text", LogicalType(TypeKind.STRING)),
        Column("blob", LogicalType(TypeKind.BINARY)),
        Column("empty", LogicalType(TypeKind.INT16)),
    ),
    ("id",),
)


def batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "id": i,
                "tiny": i % 100,
                "wide": Decimal(2**64 - 1),
                "at": dt.datetime(2026, 1, 1),  # noqa: DTZ001 - DATETIME has no zone
                "text": f"ä{i}" if i % 3 else None,
                "blob": b"\x00\xff",
                "empty": None,
                "_op": i % 4,
                "_seq": i,
                "_ts_ms": 1,
                "_pos": f"p{i}",
            }
            for i in range(start, start + rows)
        ],
        schema=changelog_schema(SCHEMA),
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FlightServer]:
    server = FlightServer(tmp_path / "spool", token=TOKEN)
    yield server
    server.shutdown()


@pytest.fixture
def segment(tmp_path: Path, server: FlightServer) -> Segment:
    writer = new_writer(tmp_path / "spool", server.endpoint)
    for start in range(0, 6000, 600):
        writer.append(batch(start, 600))
    return writer.finish(seq_base=1 << 33)


def new_writer(spool: Path, flight: str = "") -> SegmentWriter:
    contents = SegmentContents(TableId("shop", "orders"), SCHEMA.fingerprint(), "log", "log")
    return SegmentWriter(SpoolAddress(spool, HERE, flight), contents, name="1.arrow")


def table(segment: Segment, node: str, columns: list[str] | None = None, part: tuple[int, int] = (0, 1)) -> pa.Table:
    return pa.Table.from_batches(
        read_segment(segment, columns, access=SegmentAccess(node, TOKEN), part=part, symbols=True)
    )


def test_rows_that_came_one_by_one_are_few_batches_in_their_order(tmp_path: Path) -> None:
    """Whoever reads them has work for each batch: as many as there were transactions would cost a sink its pace."""
    writer, sizes = new_writer(tmp_path / "spool"), [1, 3, 2, 600, 1, 1, 511, 5000, *[7] * 1500]
    rows = 0
    for size in sizes:
        writer.append(batch(rows, size))
        rows += size
        assert 0 < writer.bytes < 8 << 20
    segment = writer.finish(seq_base=1 << 33)
    batches = list(read_segment(segment, access=SegmentAccess(HERE)))
    assert [part.num_rows for part in batches[:4]] == [6, 600, 513, 5000]
    assert len(batches) < 30
    read = pa.Table.from_batches(batches)
    names = ["id", "text", "_op"]
    assert read.select(names).to_pylist() == pa.Table.from_batches([batch(0, rows)]).select(names).to_pylist()
    assert read.column("_seq").to_pylist() == [(1 << 33) + number for number in range(rows)]
    assert verify_segments([segment], access=SegmentAccess(HERE), checksum=True)


@pytest.mark.parametrize("columns", [None, ["_table", "id", "_op", "_seq", "_db"], ["text"]])
def test_mapped_and_flight_read_the_same_rows(segment: Segment, columns: list[str] | None) -> None:
    here, elsewhere = table(segment, HERE, columns), table(segment, ELSEWHERE, columns)
    assert here.equals(elsewhere)
    assert here.num_rows == segment.rows == 6000
    assert table(segment, HERE, columns).equals(here)


def test_columns_of_the_descriptor_are_added_and_seq_becomes_absolute(segment: Segment) -> None:
    row = table(segment, ELSEWHERE, ["_db", "_table", "_seq", "_op", "wide"]).slice(3, 1).to_pylist()
    expected = {"_db": "shop", "_table": "orders", "_seq": (1 << 33) + 3, "_op": "-D", "wide": Decimal(2**64 - 1)}
    assert row == [expected]


@pytest.mark.parametrize("node", [HERE, ELSEWHERE])
def test_parts_cover_every_row_once(segment: Segment, node: str) -> None:
    parts = [table(segment, node, ["id"], (i, 3)) for i in range(3)]
    assert pa.concat_tables(parts).column("id").to_pylist() == list(range(6000))
    assert segment_schema(segment, access=SegmentAccess(node, TOKEN)).equals(changelog_schema(SCHEMA))


def test_flight_refuses_a_wrong_token_and_files_outside_the_spool(segment: Segment, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="wrong or missing token"):
        list(read_segment(segment, access=SegmentAccess(ELSEWHERE, "guessed")))
    secret = tmp_path / "secret.arrow"
    secret.write_bytes(Path(segment.path).read_bytes())
    for path in (str(secret), f"{tmp_path}/spool/../secret.arrow"):
        with pytest.raises(StateError, match="not in the spool"):
            list(read_segment(replace(segment, path=path), access=SegmentAccess(ELSEWHERE, TOKEN)))


@pytest.mark.parametrize("node", [HERE, ELSEWHERE])
def test_damage_and_loss_are_noticed(segment: Segment, node: str) -> None:
    assert verify_segments([segment], access=SegmentAccess(node, TOKEN), checksum=True)
    path = Path(segment.path)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    assert verify_segments([segment], access=SegmentAccess(node, TOKEN))
    assert not verify_segments([segment], access=SegmentAccess(node, TOKEN), checksum=True)
    path.write_bytes(content[:-1])
    assert not verify_segments([segment], access=SegmentAccess(node, TOKEN))
    with pytest.raises(StateError, match="bytes instead of"):
        table(segment, node)
    path.unlink()
    assert not verify_segments([segment], access=SegmentAccess(node, TOKEN))
    with pytest.raises(StateError, match=r"1\.arrow cannot be read"):
        table(segment, node)


def test_a_node_that_is_gone_has_no_intact_segments(segment: Segment, server: FlightServer) -> None:
    server.shutdown()
    assert not verify_segments([segment], access=SegmentAccess(ELSEWHERE, TOKEN))


def test_a_segment_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    assert list(tmp_path.iterdir()) == []
    writer.append(batch(0, 600))
    writer.append(batch(0, 0))
    assert [path.name for path in tmp_path.iterdir()] == ["1.arrow.open"]
    segment = writer.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["1.arrow"]
    assert segment.rows == 600
    writer.abort()
    assert verify_segments([segment], access=SegmentAccess(HERE), checksum=True)


def test_an_aborted_segment_leaves_nothing(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.append(batch(0, 600))
    writer.append(batch(600, 3))
    writer.abort()
    new_writer(tmp_path).abort()
    assert list(tmp_path.iterdir()) == []


def test_a_spool_that_takes_no_rows_is_named_and_worth_another_try(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file where a folder should be")
    with pytest.raises(SpoolError, match=rf"Rows of shop\.\w+ cannot be written to {tmp_path}/spool: ") as refused:
        new_writer(tmp_path / "spool").append(batch(0, 600))
    assert refused.value.retryable
    few = new_writer(tmp_path / "spool")
    few.append(batch(0, 1))
    with pytest.raises(SpoolError, match="cannot be written to"):
        few.finish()


def test_large_batches_are_cut_to_the_limits(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    one = batch(0, 1)
    writer.append(pa.Table.from_batches([one] * (BATCH_ROWS_MAX + 1)).combine_chunks().to_batches()[0])
    segment = writer.finish()
    sizes = [(b.num_rows, b.nbytes) for b in read_segment(segment, access=SegmentAccess(HERE))]
    assert sum(rows for rows, _ in sizes) == BATCH_ROWS_MAX + 1
    assert all(rows <= BATCH_ROWS_MAX and size <= BATCH_BYTES_MAX for rows, size in sizes)
    assert len(sizes) > 1


def test_a_segment_is_found_by_its_name_alone_and_deleted_on_its_node(segment: Segment, server: FlightServer) -> None:
    named = segment.located(None, flight=server.endpoint)
    assert named.path == "1.arrow"
    assert table(named, ELSEWHERE).equals(table(segment, HERE))
    delete_there(named, SegmentAccess(HERE, TOKEN))
    delete_there(named, SegmentAccess(HERE, TOKEN))
    assert not Path(segment.path).exists()
    with pytest.raises(StateError, match="not in the spool"):
        delete_there(replace(segment, path="../outside"), SegmentAccess(HERE, TOKEN))


def test_a_node_that_does_not_answer_is_worth_another_try_and_a_damaged_file_is_not(
    segment: Segment, server: FlightServer
) -> None:
    with pytest.raises(SegmentUnavailableError, match="not there now"):
        table(replace(segment, flight=""), ELSEWHERE)
    server.shutdown()
    with pytest.raises(SegmentUnavailableError, match="cannot be read from"):
        table(segment, ELSEWHERE)


def test_a_task_that_may_run_anywhere_maps_the_file_where_it_is_and_asks_its_node_elsewhere(segment: Segment) -> None:
    here, named = table(replace(segment, flight=""), ANYWHERE), table(replace(segment, path="1.arrow"), ANYWHERE)
    assert here.equals(named)
    assert here.num_rows == segment.rows


def test_how_segments_are_reached_travels_between_processes_and_shows_no_token(segment: Segment) -> None:
    access = SegmentAccess(ELSEWHERE, TOKEN).as_of({HERE: segment.flight})
    assert pickle.loads(pickle.dumps(access)) == access
    assert TOKEN not in repr(access)
    assert access.located([replace(segment, flight="")]) == (segment,)
    assert access.as_of({}).located([segment]) == (replace(segment, flight=""),)
    assert (access.is_own(segment), SegmentAccess(HERE).is_own(segment)) == (False, True)
