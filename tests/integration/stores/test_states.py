"""A state on servers of each API, as drivers use it: nothing of a driver that was replaced is taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from raycdc.checkpoint.documents import REQUESTS
from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.opaque import EnumeratorState, SealedSplit
from raycdc.checkpoint.place import StatePlace
from raycdc.checkpoint.root import INLINE_BYTES_MAX
from raycdc.checkpoint.store import CheckpointStore, CommitRecord
from raycdc.checkpoint.term import DriverTerm
from raycdc.errors import FencedError, StateError
from raycdc.stores.settings import StorageSettings
from raycdc.stores.url import ObjectPlace, StoreKind
from raycdc.testing.epochs import simple_schema
from raycdc.testing.servers import AzuriteServer, MotoServer, S3MockServer, StoreProxy

pytestmark = pytest.mark.server

LARGE = {"x": "y" * INLINE_BYTES_MAX}


@pytest.fixture(params=["moto", *(pytest.param(name, marks=pytest.mark.long) for name in ("s3mock", "azurite"))])
def store(request: pytest.FixtureRequest) -> Iterator[tuple[ObjectPlace, StorageSettings]]:
    """An empty place, and how it is reached."""
    with ExitStack() as stack:
        if request.param == "azurite":
            azurite = stack.enter_context(AzuriteServer())
            yield ObjectPlace(StoreKind.AZURE, azurite.create_container("states"), "shop"), azurite.settings
            return
        moto: MotoServer | S3MockServer
        moto = request.getfixturevalue("moto") if request.param == "moto" else stack.enter_context(S3MockServer())
        proxy = stack.enter_context(StoreProxy(moto))
        yield ObjectPlace(StoreKind.S3, moto.create_bucket("states"), "shop"), proxy.settings


def manifest(epoch: int, generation: int) -> Manifest:
    position = SealedSplit.from_json({"position": {"offset": epoch, **LARGE}})
    return Manifest(epoch, generation, 0, {}, {"log": position}, EnumeratorState.from_json({}))


def test_a_state_lives_through_its_drivers(store: tuple[ObjectPlace, StorageSettings], tmp_path: Path) -> None:
    place, settings = store

    def opened(work: str) -> CheckpointStore:
        return CheckpointStore(StatePlace(place, tmp_path / work, settings), pipeline="shop")

    assert CheckpointStore.there(StatePlace(place, tmp_path, settings)) is None
    first = opened("one")
    term = DriverTerm(first)
    fingerprint = first.put_schema(simple_schema())
    for epoch in range(1, 14):
        first.write_manifest(manifest(epoch, term.generation()))
        assert first.manifest_after(epoch - 1) == manifest(epoch, 1)
        first.write_commit(CommitRecord(epoch, term.generation(), 0, {}))
    first.write_manifest(manifest(14, 1))
    # Another machine takes over.
    second = opened("two")
    successor = DriverTerm(second)
    with pytest.raises(FencedError):
        first.write_manifest(manifest(15, term.generation()))
    with pytest.raises(FencedError):
        first.documents.write(REQUESTS, {"number": 1})
    assert second.drop_after(13) == [14]
    assert (second.sealed_epochs(), second.next_epoch()) == (list(range(4, 14)), 15)
    second.documents.write(REQUESTS, {"number": 2, **LARGE})
    second.write_manifest(manifest(15, successor.generation()))
    now = opened("three")
    assert now.documents.read(REQUESTS) == {"version": 1, "number": 2, **LARGE}
    assert now.last_manifest() == manifest(15, 2)
    assert now.schema(fingerprint) == simple_schema()
    record = now.last_commit()
    assert record is not None
    assert (record.epoch, record.generation) == (13, 1)


def test_a_bucket_that_is_not_there_is_named(store: tuple[ObjectPlace, StorageSettings], tmp_path: Path) -> None:
    place, settings = store
    nowhere = ObjectPlace(place.kind, "nobodys", "shop")
    with pytest.raises(StateError, match=r"/shop/?.* cannot be .*there is no such bucket"):
        CheckpointStore(StatePlace(nowhere, tmp_path, settings), pipeline="shop")
