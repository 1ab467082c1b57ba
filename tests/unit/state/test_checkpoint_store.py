"""The checkpoint store: what it wrote it reads, what it cannot read it refuses, and numbers are used once."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import FencedError, ParkReason, StateError
from raycdc.model import TableId
from raycdc.segments import verify_segments
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.tables.table_life import Live, ParkingCause, parked_from
from raycdc.state import codec
from raycdc.state.files.folder import Disk, LocalFolder
from raycdc.state.manifests.manifest import STATE_NODE, Manifest, Segment, TableEpoch, UnknownChange
from raycdc.state.opaque import EnumeratorState, Opaque, Position, SealedSplit
from raycdc.state.parked import ParkedTarget
from raycdc.state.store import KEEP_COMMITTED, CheckpointStore, CommitRecord, RoutedTarget
from raycdc.testing.epochs import simple_schema

GOLDEN = Path(__file__).parent / "golden"
ORDERS = TableId("shop", "orders")


def parked_manifest() -> Manifest:
    """`manifest` with one table that is followed and one that is parked."""
    followed = {"schema": "0123456789abcdef", "announced": True, "incarnation": 2, "snapshot": None}
    place = Position.from_json({"file": "binlog.000001", "pos": 4, "gtid_set": ""})
    why = ParkingCause("ALTER TABLE `ä` … cannot be followed", place, 1_700_000_000_000)
    before = Live("0123456789abcdef", announced=True, incarnation=0)
    parked = parked_from(before, why, incarnation=1).to_json()
    stream = {"position": place.to_json(), "ordinal": 4, "changes": 2, "tables": {"shop.orders": followed}}
    return replace(manifest(1), to_splits={"stream": SealedSplit.from_json({**stream, "parked": {"shop.ä": parked}})})


def manifest(epoch: int, generation: int = 1) -> Manifest:
    """One of everything a manifest may hold."""
    unreadable = UnknownChange(0, Opaque.from_json({"type": "create_table"}))
    segment = Segment(
        node="node-1",
        path="1.arrow",
        flight="",
        table=ORDERS,
        schema="0123456789abcdef",
        split_id="log",
        partition=0,
        kind="log",
        seq_base=8589934592,
        rows=3,
        bytes=1024,
        crc32=123,
    )
    return Manifest(
        epoch=epoch,
        generation=generation,
        created_ms=1_700_000_000_000,
        from_splits={},
        to_splits={"log": SealedSplit.from_json({"position": {"file": "binlog.000001", "pos": 4, "gtid_set": "ä"}})},
        enumerator=EnumeratorState.from_json({"planned": []}),
        segments=(segment,),
        tables={
            ORDERS: TableEpoch(
                "0123456789abcdef",
                snapshot=True,
                unknown=(unreadable,),
            )
        },
        watermark_ms=None,
        final=False,
    )


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "state", pipeline="shop")
    assert store.generations.next() == 1
    return store


def test_manifest_round_trip(store: CheckpointStore) -> None:
    store.write_manifest(manifest(1))
    assert store.manifest(1) == manifest(1)
    assert store.last_manifest() == manifest(1)
    assert list(CheckpointStore(store.path).manifests()) == [manifest(1)]


def test_golden_manifest_of_version_3_is_written_unchanged(store: CheckpointStore) -> None:
    golden = (GOLDEN / "manifest-v3.json").read_bytes()
    store.write_manifest(parked_manifest())
    assert (store.path / "epochs" / "0000000001.json").read_bytes() == golden


def test_golden_manifest_of_version_2_is_read_as_one_without_parked_tables(store: CheckpointStore) -> None:
    (store.path / "epochs" / "0000000001.json").write_bytes((GOLDEN / "manifest-v2.json").read_bytes())
    assert store.manifest(1) == manifest(1)


def test_golden_commit_records_with_and_without_described_and_parked_targets_are_read_and_written_unchanged(
    store: CheckpointStore,
) -> None:
    plain = CommitRecord(1, 1, 1_700_000_000_000, {"shop.orders": (1, 3)})
    routed = CommitRecord(
        2,
        1,
        1_700_000_000_000,
        {"lake.items": (2, 3), "shop.orders": (1, 3)},
        {
            "lake.items": RoutedTarget(("shop.item_1", "shop.item_2"), "0123456789abcdef", {"shop.item_1": ["gone"]}),
            "shop.orders": RoutedTarget(("shop.orders",), "fedcba9876543210"),
        },
    )
    parked = replace(
        plain,
        epoch=3,
        parked={
            "shop.items": ParkedTarget(
                3,
                (2, 1),
                ParkReason.CHANGE,
                "refused",
                1_700_000_000_000,
                {"shop.items": 4},
                {"stream": Position.from_json({"file": "binlog.000001", "pos": 4})},
            )
        },
    )
    refused = replace(routed.routes["shop.orders"], refused=("aaaaaaaaaaaaaaaa",))
    described = replace(routed, epoch=4, routes={**routed.routes, "shop.orders": refused}, parked=parked.parked)
    golden = (("commit-v1.json", plain), ("commit-v2-parked.json", parked), ("commit-v4.json", described))
    for name, record in golden:
        store.write_commit(record)
        written = store.path / "commits" / f"{record.epoch:010d}.json"
        assert written.read_bytes() == (GOLDEN / name).read_bytes()
        assert store.last_commit() == record
    written = store.path / "commits" / "0000000005.json"
    written.write_bytes((GOLDEN / "commit-v1-routes.json").read_bytes())
    assert store.last_commit() == routed


def test_a_schema_that_a_target_had_first_is_one_that_a_source_may_come_to(store: CheckpointStore) -> None:
    document = SchemaDocument.of(simple_schema())
    assert store.put_schema(simple_schema()) == document.fingerprint
    store.put_documents({document.fingerprint: document.to_json()})
    kept = CheckpointStore(store.path, create=False).document(document.fingerprint)
    assert SchemaDocument.from_json(kept).schema == simple_schema()
    assert kept["fingerprint"] == document.fingerprint


def test_a_stream_state_of_version_2_has_no_parked_tables() -> None:
    old = {"version": 1, "position": {}, "ordinal": 4, "tables": {"shop.a": {"schema": "f", "snapshot": None}}}
    document = {**manifest(1).to_json(), "version": 2, "to_splits": {"stream": old}}
    stream = codec.manifest_of(codec.decode(codec.encode(document), origin="here"), origin="here").to_splits["stream"]
    table = {"schema": "f", "snapshot": None, "incarnation": 0}
    assert stream.to_json() == {**old, "changes": 0, "parked": {}, "tables": {"shop.a": table}}


def test_golden_manifest_of_version_1_is_read_with_its_segments_in_the_spool_of_the_state(
    store: CheckpointStore,
) -> None:
    (store.path / "epochs" / "0000000001.json").write_bytes((GOLDEN / "manifest-v1.json").read_bytes())
    segment = replace(manifest(1).segments[0], node=STATE_NODE, path=str(store.spool / "1.arrow"))
    assert store.manifest(1) == replace(manifest(1), segments=(segment,))


def test_a_state_folder_that_was_moved_has_its_segments_still(store: CheckpointStore, tmp_path: Path) -> None:
    segment = replace(manifest(1).segments[0], node=STATE_NODE, path=str(store.spool / "1.arrow"), bytes=4)
    (store.spool / "1.arrow").write_bytes(b"rows")
    store.write_manifest(replace(manifest(1), segments=(segment,)))
    moved = CheckpointStore(store.path.rename(tmp_path / "elsewhere"))
    assert verify_segments(moved.manifest(1).segments)


def test_of_two_writers_of_one_epoch_the_second_is_refused_even_at_the_last_moment(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalFolder.create_once

    def overtaken(folder: LocalFolder, name: str, data: bytes) -> None:
        monkeypatch.setattr(LocalFolder, "create_once", real)
        CheckpointStore(store.path).write_manifest(replace(manifest(1), created_ms=5))
        real(folder, name, data)

    monkeypatch.setattr(LocalFolder, "create_once", overtaken)
    with pytest.raises(StateError, match="exists already"):
        store.write_manifest(manifest(1))
    assert store.manifest(1) == replace(manifest(1), created_ms=5)


def test_first_start_knows_nothing(store: CheckpointStore) -> None:
    assert store.last_manifest() is None
    assert store.last_commit() is None
    assert store.next_epoch() == 1


def test_epoch_numbers_are_used_once_even_after_dropping(store: CheckpointStore) -> None:
    for epoch in (1, 2, 3):
        store.write_manifest(manifest(epoch))
    assert store.drop_after(1) == [2, 3]
    assert store.sealed_epochs() == [1]
    assert store.next_epoch() == 4
    with pytest.raises(StateError, match=r"Epoch 2 .* used once"):
        store.write_manifest(manifest(2))
    store.write_manifest(manifest(4))
    assert store.sealed_epochs(after=1) == [4]


def test_writing_the_same_manifest_twice_is_harmless_another_one_is_refused(store: CheckpointStore) -> None:
    store.write_manifest(manifest(1))
    store.write_manifest(manifest(1))
    with pytest.raises(StateError, match="exists already"):
        store.write_manifest(replace(manifest(1), created_ms=5))


def test_older_generation_is_fenced(store: CheckpointStore) -> None:
    assert store.generations.next() == 2
    with pytest.raises(FencedError, match="generation 1, but 2 is the newest"):
        store.write_manifest(manifest(1, generation=1))
    with pytest.raises(FencedError):
        store.write_commit(CommitRecord(1, 1, 0, {}))


def test_commit_record_round_trip_and_pruning(store: CheckpointStore) -> None:
    epochs = range(1, KEEP_COMMITTED + 4)
    for epoch in epochs:
        store.write_manifest(manifest(epoch))
        store.write_commit(CommitRecord(epoch, 1, 17, {"shop.orders": (epoch, 3)}))
    assert store.last_commit() == CommitRecord(epochs[-1], 1, 17, {"shop.orders": (epochs[-1], 3)})
    assert store.sealed_epochs() == list(epochs[-KEEP_COMMITTED:])


def test_uncommitted_epochs_are_never_pruned(store: CheckpointStore) -> None:
    for epoch in range(1, 2 * KEEP_COMMITTED):
        store.write_manifest(manifest(epoch))
    store.write_commit(CommitRecord(1, 1, 0, {}))
    assert len(store.sealed_epochs()) == 2 * KEEP_COMMITTED - 1


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 1}', b"[]"])
def test_damaged_manifest_is_an_error_naming_the_file(store: CheckpointStore, damage: bytes) -> None:
    store.write_manifest(manifest(1))
    path = store.path / "epochs" / "0000000001.json"
    path.write_bytes(damage)
    with pytest.raises(StateError, match=r"0000000001\.json cannot be used"):
        store.manifest(1)


def test_a_changed_byte_is_noticed(store: CheckpointStore) -> None:
    store.write_manifest(manifest(1))
    path = store.path / "epochs" / "0000000001.json"
    path.write_bytes(path.read_bytes().replace(b'"pos": 4', b'"pos": 5'))
    with pytest.raises(StateError, match="checksum"):
        store.manifest(1)


def test_newer_version_is_refused_with_the_way_out(store: CheckpointStore) -> None:
    from raycdc.state import codec

    meta = json.loads((store.path / "meta.json").read_bytes())
    del meta["sha"]
    (store.path / "meta.json").write_bytes(codec.encode({**meta, "version": 99}))
    with pytest.raises(StateError, match=r"newer raycdc \(format version 99"):
        CheckpointStore(store.path)


def test_lost_identity_is_an_error_and_never_a_first_start(store: CheckpointStore) -> None:
    store.write_manifest(manifest(1))
    (store.path / "meta.json").unlink()
    with pytest.raises(StateError, match=r"no meta\.json"):
        CheckpointStore(store.path, pipeline="shop")


def test_state_of_another_pipeline_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(StateError, match="belongs to pipeline 'shop'"):
        CheckpointStore(store.path, pipeline="other")


def test_opening_without_creating_refuses_an_empty_place(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no raycdc state"):
        CheckpointStore(tmp_path / "nothing", create=False)


def test_identity_survives_reopening_and_differs_after_deletion(store: CheckpointStore, tmp_path: Path) -> None:
    assert CheckpointStore(store.path).app_id == store.app_id
    assert CheckpointStore(tmp_path / "again", pipeline="shop").app_id != store.app_id


def test_lease_names_the_process_that_has_it(store: CheckpointStore) -> None:
    other = (
        "import sys; from raycdc.state.store import CheckpointStore\n"
        "try: CheckpointStore(sys.argv[1]).lease()\n"
        "except Exception as e: print(type(e).__name__, e)"
    )
    with store.lease():
        answer = subprocess.run([sys.executable, "-c", other, store.path], capture_output=True, text=True, check=True)
        assert answer.stdout.startswith("StateError")
        assert f"in use by process {os.getpid()}" in answer.stdout
    store.lease().release()


def test_schemas_are_kept_by_fingerprint(store: CheckpointStore) -> None:
    fingerprint = store.put_schema(simple_schema())
    assert store.put_schema(simple_schema()) == fingerprint
    assert CheckpointStore(store.path).schema(fingerprint) == simple_schema()
    with pytest.raises(StateError, match="state is incomplete"):
        store.schema("ffffffffffffffff")


def test_files_are_for_the_owner_alone(store: CheckpointStore) -> None:
    store.write_manifest(manifest(1))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in store.path.rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_leftovers_of_an_interrupted_write_are_ignored(store: CheckpointStore) -> None:
    (store.path / "epochs" / ".0000000001.json.abc.tmp").write_bytes(b"half")
    assert store.sealed_epochs() == []
    assert store.next_epoch() == 1


def test_the_spool_is_swept_of_what_no_uncommitted_epoch_needs(store: CheckpointStore) -> None:
    needed, committed, orphan = (store.spool / f"{name}.arrow" for name in ("needed", "committed", "orphan"))
    for epoch, path in ((1, committed), (2, needed)):
        segment = replace(manifest(epoch).segments[0], path=str(path))
        store.write_manifest(replace(manifest(epoch), segments=(segment,)))
    store.write_commit(CommitRecord(1, 1, 1_700_000_000_000, {}))
    for path in (needed, committed, orphan, store.spool / "half.arrow.open"):
        path.write_bytes(b"rows")
    assert store.sweep_spool() == 3
    assert list(store.spool.iterdir()) == [needed]


def test_two_first_starts_at_once_go_by_one_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = LocalFolder.create
    others: list[CheckpointStore] = []

    def slow_create(folder: LocalFolder, *names: str) -> None:
        create(folder, *names)
        monkeypatch.setattr(LocalFolder, "create", create)
        others.append(CheckpointStore(tmp_path, pipeline="shop"))

    monkeypatch.setattr(LocalFolder, "create", slow_create)
    store = CheckpointStore(tmp_path, pipeline="shop")

    assert store.checkpoint == others[0].checkpoint == CheckpointStore(tmp_path).checkpoint


def test_asking_for_the_holder_of_a_lease_keeps_nobody_from_it(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.lock.holder() == ""
    with store.lease():
        assert store.lock.holder() == str(os.getpid())
    assert store.lock.holder() == ""
    # Somebody asks at the very moment at which a driver starts.
    asking = os.open(store.path / "lease", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    # Whoever asks has its answer while the driver waits for another try.
    monkeypatch.setattr("raycdc.state.files.folder.time.sleep", lambda _: os.close(asking))
    store.lease().release()


def test_a_store_that_is_looked_for_is_not_made(tmp_path: Path) -> None:
    assert CheckpointStore.there(tmp_path / "state", pipeline="shop") is None
    assert not (tmp_path / "state").exists()
    made = CheckpointStore(tmp_path / "state", pipeline="shop")
    found = CheckpointStore.there(tmp_path / "state", pipeline="shop")
    assert found is not None
    assert found.app_id == made.app_id
    with pytest.raises(StateError, match="belongs to pipeline 'shop', not 'other'"):
        CheckpointStore.there(tmp_path / "state", pipeline="other")
    (tmp_path / "state" / "epochs" / "0000000001.json").write_text("{}")
    (tmp_path / "state" / "meta.json").unlink()
    with pytest.raises(StateError, match=r"epochs but no meta\.json"):
        CheckpointStore.there(tmp_path / "state", pipeline="shop")


def test_changes_that_this_version_cannot_read_are_written_again_where_they_stood() -> None:
    drop, later = {"type": "drop_table", "db": "shop", "table": "orders"}, {"type": "fold_table", "into": "x"}
    written: Any = {"schema": "f", "snapshot": False, "changes": [later, drop, later, later, drop]}
    read = TableEpoch.from_json(written)
    assert ([change.index for change in read.unknown], len(read.changes)) == ([0, 2, 3], 2)
    assert read.to_json() == written


class NotingDisk(Disk):
    """Notes what is done to documents of schemas, which other threads may do, too."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def sync(self, path: Path) -> None:
        super().sync(path)
        self._note("sync", path)

    def rename(self, path: Path, to: Path) -> None:
        super().rename(path, to)
        self._note("rename", to)

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self._note("sync folder", folder / "all")

    def _note(self, what: str, path: Path) -> None:
        if path.parent.name == "schemas":
            self.done.append(what)


def test_schemas_of_many_tables_are_durable_before_they_have_names_and_wait_for_the_disk_together(
    tmp_path: Path,
) -> None:
    disk = NotingDisk()
    store = CheckpointStore(tmp_path, disk=disk)
    documents = {f"{number:016x}": {"number": number} for number in range(3)}
    store.put_documents(documents)
    assert disk.done == ["sync"] * 3 + ["rename"] * 3 + ["sync folder"]
    assert {name: store.document(name)["number"] for name in documents} == {name: n for n, name in enumerate(documents)}
    store.put_documents({**documents, f"{3:016x}": {"number": 3}})
    assert disk.done[7:] == ["sync", "rename", "sync folder"]
    CheckpointStore(tmp_path, disk=disk).put_documents(documents)
    assert disk.done[10:] == ["sync folder"], "somebody may have died before"


class FullDisk(Disk):
    """Syncs nothing, and does not delete what it was asked to delete first."""

    def __init__(self) -> None:
        self.stays: Path | None = None

    def sync_all(self, paths: Sequence[Path]) -> None:
        raise OSError(28, "No space left on device")

    def delete(self, path: Path) -> None:
        self.stays = self.stays or path
        if path == self.stays:
            raise OSError(5, "Input/output error")
        super().delete(path)


def test_a_file_that_cannot_be_deleted_keeps_no_other_of_those_that_were_not_written(tmp_path: Path) -> None:
    disk = FullDisk()
    with pytest.raises(StateError, match="No space left"):
        LocalFolder(tmp_path, disk=disk).write_all({f"{number}.json": b"{}" for number in range(4)})
    assert list(tmp_path.iterdir()) == [disk.stays]
