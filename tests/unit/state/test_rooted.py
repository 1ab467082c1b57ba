"""A state on an object store: a stale write is never read, whatever was stopped between its look and its write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from raycdc.errors import FencedError, StateError
from raycdc.state.documents import REQUESTS
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.files.folder import DISK, Disk
from raycdc.state.files.rooted import INLINE_BYTES_MAX, ROOT, RootedFolder
from raycdc.state.files.state_folder import StateFolder
from raycdc.state.location import StateLocation
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import EnumeratorState, SealedSplit
from raycdc.state.store import CheckpointStore, CommitRecord
from raycdc.storage.api import ObjectWritten, PreconditionFailed, Store, Stored, Version
from raycdc.storage.object_store import ObjectStore
from raycdc.storage.url import ObjectLocation, StoreKind
from raycdc.testing.epochs import simple_schema

PLACE = ObjectLocation(StoreKind.S3, "lake", "state")
LARGE = b'{"x": "' + b"x" * INLINE_BYTES_MAX + b'"}'


class Interrupted(ObjectStore):
    """A store, seen by a process that is stopped before it next replaces an object: `meanwhile` is all that happens."""

    meanwhile: Callable[[], Any] | None = None

    def replace_if_match(self, name: str, data: bytes, version: Version) -> ObjectWritten | PreconditionFailed:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().replace_if_match(name, data, version)


@dataclass(frozen=True, slots=True)
class MemoryPlace(StateLocation):
    """A state in memory; `store` is as this process sees it."""

    store: Store | None = field(default=None, compare=False)

    def open(self, disk: Disk = DISK, *, tries_for_s: float = 0) -> StateFolder:
        assert self.store is not None
        return RootedFolder(self.store)


class Bucket:
    """One store for several processes."""

    def __init__(self, work: Path) -> None:
        self.client = MemoryStore()
        self.work = work
        self.objects = ObjectStore(PLACE, client=self.client)

    def seen(self) -> Interrupted:
        return Interrupted(PLACE, client=self.client)

    def state(self, store: Store | None = None, **options: Any) -> CheckpointStore:
        return CheckpointStore(MemoryPlace(PLACE, self.work, store=store or self.seen()), pipeline="shop", **options)


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


def seal(store: CheckpointStore, generation: int = 1) -> None:
    position = SealedSplit.from_json({"position": {"offset": 1}})
    nothing = EnumeratorState.from_json({})
    store.write_manifest(Manifest(store.next_epoch(), generation, 0, {}, {"log": position}, nothing))


def test_documents_have_names_as_in_a_folder(bucket: Bucket) -> None:
    folder = RootedFolder(bucket.objects)
    assert folder.read("a/1") is None
    folder.create_once("a/1", b"first")
    folder.create_once("a/1", b"second")
    folder.write("a/2", LARGE)
    folder.write("b", b"b")
    assert (folder.read("a/1"), folder.read("a/2"), folder.list("a")) == (b"first", LARGE, ["1", "2"])
    folder.rename("a/2", "a/3")
    assert (folder.list("a"), folder.read("a/3")) == (["1", "3"], LARGE)
    folder.delete("a/3")
    folder.delete("a/3")
    assert folder.list("a") == ["1"]
    assert bucket.objects.list("") == [ROOT]
    with pytest.raises(StateError, match=r"s3://lake/state/a/9 cannot be renamed"):
        folder.rename("a/9", "a/1")


def test_a_step_is_there_as_a_whole_or_not_at_all(bucket: Bucket) -> None:
    folder = RootedFolder(bucket.objects)

    def act() -> None:
        folder.write("one", b"1")
        assert folder.read("one") == b"1"
        raise FencedError("too late")

    with pytest.raises(FencedError):
        folder.atomically(act)
    assert folder.read("one") is None


WRITES: dict[str, Callable[[CheckpointStore, DriverGeneration], Any]] = {
    "commit": lambda store, term: store.write_commit(CommitRecord(1, term.generation(), 0, {})),
    "document": lambda store, _: store.documents.write(REQUESTS, {"number": 0, "tables": {}, "start": None}),
    "drop": lambda store, _: store.drop_after(0),
    "generation": lambda store, term: store.generations.raised(term.generation()),
    "manifest": lambda store, _: seal(store),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_driver_that_is_stopped_between_look_and_write_writes_nothing(bucket: Bucket, kind: str) -> None:
    sight = bucket.seen()
    stale = bucket.state(sight)
    term = DriverGeneration(stale)
    seal(bucket.state())
    # It looks, and is stopped; another one takes over and goes on.
    sight.meanwhile = lambda: DriverGeneration(bucket.state())
    with pytest.raises(FencedError, match="another driver took over"):
        WRITES[kind](stale, term)
    sight.meanwhile = None
    now = bucket.state()
    assert now.generations.newest() == 2
    assert (now.sealed_epochs(), now.last_commit(), now.documents.read(REQUESTS)) == ([1], None, None)
    assert now.next_epoch() == 2


def test_what_a_stale_driver_left_is_deleted_by_the_next_one(bucket: Bucket) -> None:
    sight = bucket.seen()
    stale = bucket.state(sight)
    DriverGeneration(stale)
    stale.documents.write("names.json", {"columns": "x" * INLINE_BYTES_MAX})
    sight.meanwhile = bucket.state().generations.next
    with pytest.raises(FencedError):
        stale.documents.write(REQUESTS, {"tables": "x" * INLINE_BYTES_MAX})
    assert len(bucket.objects.list("objects")) == 2
    DriverGeneration(bucket.state())
    assert len(bucket.objects.list("objects")) == 1
    assert bucket.state().documents.read("names.json") == {"version": 1, "columns": "x" * INLINE_BYTES_MAX}


def test_what_the_root_names_stays_whoever_wrote_it(bucket: Bucket) -> None:
    """Commits are written once, and not again by each driver as its documents are."""
    state = bucket.state()
    DriverGeneration(state)
    state.documents.folder.write("committed/0000000001.json", LARGE)
    for _ in range(2):
        DriverGeneration(bucket.state())
        assert bucket.state().documents.folder.read("committed/0000000001.json") == LARGE


def test_of_two_that_write_at_once_both_are_there(bucket: Bucket) -> None:
    sight = bucket.seen()
    one, other = bucket.state(sight), bucket.state()
    DriverGeneration(one)
    sight.meanwhile = lambda: seal(other)
    one.documents.write(REQUESTS, {"number": 7})
    now = bucket.state()
    assert now.sealed_epochs() == [1]
    assert now.documents.read(REQUESTS) == {"version": 1, "number": 7}


def test_a_write_that_was_carried_out_and_followed_by_another_counts(bucket: Bucket) -> None:
    """Its reply was lost, and when the writer looks the root is another's, who had seen it."""

    class Lossy(ObjectStore):
        lose = False

        def replace_if_match(self, name: str, data: bytes, version: Version) -> ObjectWritten | PreconditionFailed:
            outcome = super().replace_if_match(name, data, version)
            if not self.lose or name != ROOT:
                return outcome
            self.lose = False
            bucket.state().documents.write(REQUESTS, {"number": 9})
            return PreconditionFailed(self.read(name))

    sight = Lossy(PLACE, client=bucket.client)
    store = bucket.state(sight)
    term = DriverGeneration(store)
    sight.lose = True
    seal(store)
    sight.lose = True
    store.write_commit(CommitRecord(1, term.generation(), 0, {}))
    sight.lose = True
    assert store.generations.raised(term.generation()) == 2
    now = bucket.state()
    assert (now.sealed_epochs(), now.generations.newest()) == ([1], 2)
    assert now.documents.read(REQUESTS) == {"version": 1, "number": 9}


def test_a_reader_sees_one_moment_while_objects_go(bucket: Bucket) -> None:
    """The object that a root names is deleted when a later root does without it."""
    folder = RootedFolder(bucket.objects)
    folder.write("names.json", LARGE)

    class Late(ObjectStore):
        changed = False

        def read(self, name: str) -> Stored | None:
            if name.startswith("objects/") and not self.changed:
                self.changed = True
                folder.write("names.json", b"new")
            return super().read(name)

    assert RootedFolder(Late(PLACE, client=bucket.client)).read("names.json") == b"new"


def test_an_object_that_is_gone_is_named(bucket: Bucket) -> None:
    folder = RootedFolder(bucket.objects)
    folder.write("names.json", LARGE)
    (name,) = bucket.objects.list("objects")
    bucket.objects.delete(f"objects/{name}")
    with pytest.raises(StateError, match=f"s3://lake/state/objects/{name} is missing although state.json names it"):
        folder.read("names.json")


def test_a_state_without_its_root_is_no_first_start(bucket: Bucket) -> None:
    bucket.state().put_schema(simple_schema())
    bucket.objects.delete(ROOT)
    with pytest.raises(StateError, match=r"s3://lake/state has epochs but no meta\.json"):
        bucket.state()
    with pytest.raises(StateError, match="There is no raycdc state in s3://lake/state"):
        bucket.state(create=False)


def test_a_root_that_is_damaged_or_of_a_newer_version_is_refused(bucket: Bucket) -> None:
    bucket.state()
    bucket.objects.put(ROOT, b'{"version": 1}')
    with pytest.raises(StateError, match=r"s3://lake/state/state\.json cannot be used: its checksum"):
        bucket.state()


def test_a_store_without_conditions_is_refused(bucket: Bucket) -> None:
    class Careless(ObjectStore):
        """Like a server that does not know If-None-Match."""

        def put_if_absent(self, name: str, data: bytes) -> ObjectWritten | PreconditionFailed:
            return self.put(name, data)

    with pytest.raises(StateError, match="does not honour conditional writes"):
        bucket.state(Careless(PLACE, client=bucket.client))
    assert bucket.objects.list("") == []


def test_an_epoch_costs_few_requests_and_no_list(bucket: Bucket) -> None:
    sight = bucket.seen()
    store = bucket.state(sight)
    term = DriverGeneration(store)
    seal(store)
    store.write_commit(CommitRecord(1, term.generation(), 0, {}))
    sight.requests.clear()
    seal(store)
    assert store.manifest_after(1) is not None
    store.write_commit(CommitRecord(2, term.generation(), 0, {}))
    assert dict(sight.requests) == {"get": 4, "put": 2}
