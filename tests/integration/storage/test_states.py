"""A state on servers of each API, as drivers use it: nothing of a driver that was replaced is taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from raycdc.errors import FencedError, StateError
from raycdc.sandbox.servers import AzuriteServer, MotoServer, S3MockServer
from raycdc.state.documents import REQUESTS
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.files.rooted import INLINE_BYTES_MAX
from raycdc.state.location import StateLocation
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import EnumeratorState, SealedSplit
from raycdc.state.store import CheckpointStore, CommitRecord
from raycdc.storage.settings import StorageSettings
from raycdc.storage.url import ObjectLocation, StoreKind
from raycdc.testing.epochs import simple_schema
from tests.support.servers.store_proxy import StoreProxy

pytestmark = pytest.mark.server

LARGE = {"x": "y" * INLINE_BYTES_MAX}


@pytest.fixture(
    params=["moto", *(pytest.param(name, marks=pytest.mark.long(suite="stores")) for name in ("s3mock", "azurite"))]
)
def store(request: pytest.FixtureRequest) -> Iterator[tuple[ObjectLocation, StorageSettings]]:
    """An empty place, and how it is reached."""
    with ExitStack() as stack:
        if request.param == "azurite":
            azurite = stack.enter_context(AzuriteServer())
            yield ObjectLocation(StoreKind.AZURE, azurite.create_container("states"), "shop"), azurite.settings
            return
        moto: MotoServer | S3MockServer
        moto = request.getfixturevalue("moto") if request.param == "moto" else stack.enter_context(S3MockServer())
        proxy = stack.enter_context(StoreProxy(moto))
        yield ObjectLocation(StoreKind.S3, moto.create_bucket("states"), "shop"), proxy.settings


def manifest(epoch: int, generation: int) -> Manifest:
    position = SealedSplit.from_json({"position": {"offset": epoch, **LARGE}})
    return Manifest(epoch, generation, 0, {}, {"log": position}, EnumeratorState.from_json({}))


def test_a_state_lives_through_its_drivers(store: tuple[ObjectLocation, StorageSettings], tmp_path: Path) -> None:
    place, settings = store

    def opened(work: str) -> CheckpointStore:
        return CheckpointStore(StateLocation(place, tmp_path / work, settings), pipeline="shop")

    assert CheckpointStore.there(StateLocation(place, tmp_path, settings)) is None
    first = opened("one")
    term = DriverGeneration(first)
    fingerprint = first.put_schema(simple_schema())
    for epoch in range(1, 14):
        first.write_manifest(manifest(epoch, term.generation()))
        assert first.manifest_after(epoch - 1) == manifest(epoch, 1)
        first.write_commit(CommitRecord(epoch, term.generation(), 0, {}))
    first.write_manifest(manifest(14, 1))
    # Another machine takes over.
    second = opened("two")
    successor = DriverGeneration(second)
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


def test_a_bucket_that_is_not_there_is_named(store: tuple[ObjectLocation, StorageSettings], tmp_path: Path) -> None:
    place, settings = store
    nowhere = ObjectLocation(place.kind, "nobodys", "shop")
    with pytest.raises(StateError, match=r"/shop/?.* cannot be .*there is no such bucket"):
        CheckpointStore(StateLocation(nowhere, tmp_path, settings), pipeline="shop")
