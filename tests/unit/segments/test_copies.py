"""Copies of segments on a store: taken before anybody hears of a segment, and used when no node has it any more."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from raycdc.errors import SpoolError
from raycdc.model import TableId
from raycdc.segments import copies as module
from raycdc.segments.access import HERE, SpoolAddress
from raycdc.segments.copies import SegmentCopies
from raycdc.segments.reading import read_segment, verify_segments
from raycdc.segments.writing import SegmentContents, SegmentWriter
from raycdc.state.manifests.manifest import STATE_NODE, Manifest, Segment
from raycdc.state.opaque import EnumeratorState
from raycdc.storage.object_store import ObjectStore
from raycdc.storage.settings import StorageSettings
from raycdc.storage.url import ObjectLocation, StoreKind

PLACE = ObjectLocation(StoreKind.S3, "lake", "spool/c1")
#: To segments, rows are rows: this one's columns matter to nobody here.
ROWS = pa.record_batch({"id": [1, 2, 3], "_seq": pa.array([0, 1, 2], pa.int64())})
COPIES = SegmentCopies(PLACE, StorageSettings())


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    store = ObjectStore(PLACE, client=MemoryStore())
    monkeypatch.setattr(module, "_store", lambda _: store)
    return store


def written(folder: Path, name: str, node: str = STATE_NODE) -> Segment:
    contents = SegmentContents(TableId("shop", "t"), "f", "log", "log")
    writer = SegmentWriter(SpoolAddress(folder, node, copies=COPIES), contents, name=name)
    writer.append(ROWS)
    return writer.finish()


def manifest(*segments: Segment) -> Manifest:
    return Manifest(1, 1, 0, {}, {}, EnumeratorState.from_json({}), segments=segments)


def test_a_segment_whose_node_is_lost_comes_from_its_copy(store: ObjectStore, tmp_path: Path) -> None:
    own, other = written(tmp_path / "own", "a.arrow"), written(tmp_path / "other", "b.arrow", node="db2-1")
    assert store.list("") == ["a.arrow", "b.arrow"]
    rows = list(read_segment(own))
    for segment in (own, other):
        Path(segment.path).unlink()
    spool = tmp_path / "own"
    restored = COPIES.restored(manifest(own, other), spool, HERE).segments
    assert [(s.node, s.path, s.flight) for s in restored] == [
        (STATE_NODE, str(spool / "a.arrow"), ""),
        (STATE_NODE, str(spool / "b.arrow"), ""),
    ]
    assert verify_segments(restored, checksum=True)
    assert list(read_segment(restored[0])) == rows
    COPIES.forget(restored)
    assert store.list("") == []


def test_a_segment_that_its_node_has_is_left_there(store: ObjectStore, tmp_path: Path) -> None:
    other = written(tmp_path / "other", "b.arrow", node="db2-1")
    there = HERE.as_of({"db2-1": "grpc://10.0.0.2:7000"})
    assert COPIES.restored(manifest(other), tmp_path, there).segments == (other,)


def test_a_copy_that_is_not_what_its_segment_says_is_none(store: ObjectStore, tmp_path: Path) -> None:
    segment = written(tmp_path, "a.arrow")
    data = Path(segment.path).read_bytes()
    Path(segment.path).unlink()
    for damaged in (data[:-1] + b"!", data[:-1], None):
        if damaged is None:
            store.delete("a.arrow")
        else:
            store.put("a.arrow", damaged)
        assert COPIES.restored(manifest(segment), tmp_path, HERE).segments == (segment,)
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_needs_is_swept(store: ObjectStore, tmp_path: Path) -> None:
    for name in ("a.arrow", "b.arrow"):
        written(tmp_path, name)
    COPIES.sweep({"b.arrow"})
    assert store.list("") == ["b.arrow"]


def test_a_segment_is_not_told_of_before_its_copy_is_safe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere = StorageSettings(endpoint="http://127.0.0.1:1", access_key_id="a", secret_access_key="b", allow_http=True)
    away = ObjectStore(PLACE, nowhere, tries_for_s=0)
    monkeypatch.setattr(module, "_store", lambda _: away)
    with pytest.raises(SpoolError, match="It is the copy of a segment"):
        written(tmp_path, "a.arrow")
