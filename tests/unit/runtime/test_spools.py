"""A spool's name belongs to its folder: two nodes on one machine differ, a server started again is the same one."""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.model import TableId, TableSchema, changelog_schema
from raycdc.runtime.reader.chunk_fetcher import ChunkFiles
from raycdc.runtime.reader.heartbeats import Stopwatch
from raycdc.runtime.spools import FOLDER_VARIABLE, NAME_FILE, SpoolServer, spool_folder, spool_name
from raycdc.segments import SegmentContents, SegmentWriter, read_segment
from raycdc.segments.access import SegmentAccess, SpoolAddress
from raycdc.state.manifests.manifest import STATE_NODE, Segment
from raycdc.testing.epochs import simple_schema

TOKEN = "secret"


def server(folder: Path, *, name: str | None = None, port: int = 0) -> SpoolServer:
    return SpoolServer(folder, name=name, token=TOKEN, host="127.0.0.1", port=port)


def segment_in(address: SpoolAddress, name: str = "1.arrow") -> Segment:
    import pyarrow as pa

    schema: TableSchema = simple_schema()
    contents = SegmentContents(TableId("shop", "orders"), schema.fingerprint(), "s", "log")
    writer = SegmentWriter(address, contents, name=name)
    row = {"id": 1, "_op": 0, "_seq": 0, "_ts_ms": 0}
    writer.append(pa.RecordBatch.from_pylist([row], schema=changelog_schema(schema)))
    return writer.finish()


def test_two_folders_on_one_machine_are_two_nodes_and_keep_their_names(tmp_path: Path) -> None:
    first, second = spool_name(tmp_path / "a"), spool_name(tmp_path / "b")
    assert first != second
    assert STATE_NODE not in (first, second)
    assert spool_name(tmp_path / "a") == first


def test_the_folder_of_a_ray_node_is_what_it_was_started_with_and_never_shared_by_two_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spool_folder(str(tmp_path), "c1") != spool_folder(str(tmp_path), "c2")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "mine"))
    assert spool_folder(str(tmp_path), "c1") == tmp_path / "mine" / "c1"


def test_a_server_started_again_has_the_same_name_and_place_and_the_old_segments(tmp_path: Path) -> None:
    before = server(tmp_path)
    segment = segment_in(before.address)
    before.close()
    after = server(tmp_path, port=before.port)
    assert after.address == before.address
    assert sum(batch.num_rows for batch in read_segment(segment, access=SegmentAccess(token=TOKEN))) == 1
    after.close()


def test_a_sweep_leaves_the_name_and_what_is_needed(tmp_path: Path) -> None:
    spool = server(tmp_path)
    for name in ("needed.arrow", "orphan.arrow"):
        segment_in(spool.address, name)
    assert spool.sweep({"needed.arrow"}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["needed.arrow", NAME_FILE]
    spool.close()


def test_a_sweep_leaves_a_folder_that_somebody_made_there(tmp_path: Path) -> None:
    spool = server(tmp_path)
    (tmp_path / "log-1.arrow").mkdir()
    assert spool.sweep(set()) == 0
    assert (tmp_path / "log-1.arrow").is_dir()
    spool.close()


def test_what_another_node_wrote_for_a_chunk_is_deleted_there(tmp_path: Path) -> None:
    spool = server(tmp_path / "state", name=STATE_NODE)
    segment = segment_in(spool.address)
    own = segment_in(SpoolAddress(tmp_path / "own", "own"))

    files = ChunkFiles(SpoolAddress(tmp_path / "own", "own"), stopwatch=Stopwatch(), access=SegmentAccess("own", TOKEN))
    files.discard([segment, own])
    assert [path.name for path in tmp_path.rglob("*.arrow")] == []
    spool.close()
