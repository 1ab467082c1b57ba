"""A driver's own generation: what it writes after another one took over is refused, and it never takes its number."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import FencedError, StateError
from raycdc.state import codec
from raycdc.state.documents import REQUESTS, DriverDocuments
from raycdc.state.drivers.driver_generation import DriverGeneration, brief_term
from raycdc.state.drivers.generations import Generations
from raycdc.state.files.folder import LocalFolder
from raycdc.state.store import CheckpointStore, CommitRecord
from raycdc.testing.epochs import EpochScript, simple_schema


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "state", pipeline="shop")


def record(store: CheckpointStore, term: DriverGeneration) -> None:
    store.write_commit(CommitRecord(1, term.generation(), 0, {}))


#: Everything of the store and its parts that changes the state, as a driver calls it; what is harmless says why.
WRITES: dict[str, Callable[[CheckpointStore, DriverGeneration], Any] | str] = {
    "write_commit": record,
    "documents.write": lambda store, _: store.documents.write(REQUESTS, {"number": 0, "tables": {}, "start": None}),
    "documents.as_driver": lambda store, _: store.documents.as_driver(
        "a note", lambda: store.documents.folder.write("commits/note.json", b"{}")
    ),
    "drop_after": lambda store, _: store.drop_after(0),
    "generations.raised": lambda store, term: store.generations.raised(term.generation()),
    "write_manifest": lambda store, _: EpochScript.seal(stale_script(store)),
    "documents.take_over": "in a document of one's own generation, which nobody reads once there is a newer one",
    "generations.next": "how a driver takes over",
    "generations.take_over": "how one does that waited",
    "generations.show": "of one's own generation, whose signs nobody looks for once there is a newer one",
    "put_schema": "named by its content",
    "put_documents": "named by their contents",
    "sweep_spool": "under the lease, before the term's readers start",
    "generations.sweep": "only what drivers older than the one that begins left where nobody reads it",
    "generations.write_as": "changes nothing on disk",
}
#: What changes nothing.
READS = {
    "manifest_after",
    *(
        "document",
        "last_commit",
        "last_manifest",
        "lease",
        "manifest",
        "manifests",
        "needed_segments",
    ),
    *("next_epoch", "schema", "sealed_epochs", "documents.read", "generations.newest", "generations.own"),
    *(
        "generations.newest_holder",
        "generations.holder",
        "generations.require_driver",
        "generations.require_newest",
        "generations.require_own",
    ),
}


def stale_script(store: CheckpointStore) -> EpochScript:
    script = EpochScript(CheckpointStore(store.path))
    script.table("shop.t").read([{"id": 1, "name": "a", "qty": 1}])
    store.generations.next()
    return script


def test_every_write_of_the_store_is_refused_to_a_stale_driver_or_said_to_be_harmless() -> None:
    parts = {"": CheckpointStore, "generations.": Generations, "documents.": DriverDocuments}
    methods = {
        f"{part}{name}"
        for part, cls in parts.items()
        for name, _ in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods == {*READS, *WRITES}


@pytest.mark.parametrize("name", [name for name, call in WRITES.items() if not isinstance(call, str)])
def test_a_driver_that_was_replaced_writes_nothing_more(store: CheckpointStore, name: str) -> None:
    term = DriverGeneration(store)
    call = WRITES[name]
    assert not isinstance(call, str)
    # On another machine the lease says nothing of ours: the file was replaced, or binds that machine alone.
    (store.path / "lease").unlink(missing_ok=True)
    successor = DriverGeneration(CheckpointStore(store.path))
    before = {path: path.read_bytes() for path in store.path.glob("[!g]*/*.json")}
    with pytest.raises(FencedError, match="another driver took over"):
        call(store, term)
    assert {path: path.read_bytes() for path in store.path.glob("[!gs]*/*.json")} == before
    assert successor.generation() > term.generation() == 1


def test_a_replaced_coordinator_raises_the_number_of_its_own_driver_alone(store: CheckpointStore) -> None:
    term = DriverGeneration(store)
    assert [term.for_coordinator(), term.for_coordinator(), term.generation()] == [1, 2, 2]
    successor = DriverGeneration(CheckpointStore(store.path))
    with pytest.raises(FencedError, match="generation 2, but 3 is the newest"):
        term.for_coordinator()
    assert (term.generation(), successor.generation(), store.generations.newest()) == (2, 3, 3)


def test_two_drivers_that_start_at_once_get_two_numbers(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = CheckpointStore(store.path)
    real, taken = LocalFolder.create_once, list[int]()

    def late(folder: LocalFolder, name: str, data: bytes) -> None:
        if name.startswith("generations/") and not taken:
            taken.append(0)
            taken[0] = other.generations.next()
        real(folder, name, data)

    monkeypatch.setattr(LocalFolder, "create_once", late)
    assert (store.generations.next(), *taken) == (2, 1)


def test_a_state_of_an_older_version_goes_on_counting(store: CheckpointStore) -> None:
    (store.path / "gen").write_bytes(codec.encode({"version": 1, "generation": 7}))
    assert store.generations.newest() == 7
    assert DriverGeneration(store).generation() == 8


def test_new_parents_of_the_state_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    CheckpointStore(tmp_path / "a" / "b" / "state", pipeline="shop")
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a/b"), str(tmp_path / "a/b/state")} <= set(synced)


def test_a_rename_that_fails_names_both_files(store: CheckpointStore) -> None:
    with pytest.raises(StateError, match=r"0000000001\.json cannot be renamed to .*0000000001\.json\.dropped: .*Errno"):
        LocalFolder(store.path).rename("epochs/0000000001.json", "epochs/0000000001.json.dropped")


def test_schemas_are_written_by_whoever_has_them(store: CheckpointStore) -> None:
    DriverGeneration(store)
    DriverGeneration(CheckpointStore(store.path))
    assert store.schema(store.put_schema(simple_schema())) == simple_schema()


def test_a_driver_that_wakes_up_does_not_write_over_what_was_asked_meanwhile(store: CheckpointStore) -> None:
    """It has settled what was asked before, and never knows of the rest."""
    DriverGeneration(store)
    settled: dict[str, Any] = {"number": 0, "tables": {}, "start": None}
    asked = {**settled, "tables": {"shop.t": "pause"}}
    other = CheckpointStore(store.path)
    with brief_term(other):
        other.documents.write(REQUESTS, asked)
    with pytest.raises(FencedError, match="another driver took over"):
        store.documents.write(REQUESTS, settled)
    assert store.documents.read(REQUESTS) == {"version": 1, **asked}
    holder = store.generations.holder(store.generations.newest())
    assert holder is not None
    assert holder.ended
