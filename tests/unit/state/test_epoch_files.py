"""A driver that is stopped between a look at the generations and its act changes nothing behind its successor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import FencedError
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.files.folder import LocalFolder
from raycdc.state.store import CheckpointStore
from raycdc.testing.epochs import EpochScript


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "state", pipeline="shop")


@pytest.fixture
def script(store: CheckpointStore) -> EpochScript:
    """Writes epochs under the generation of a driver that has begun."""
    script = EpochScript(store)
    script.generation = DriverGeneration(store).generation()
    return script


def seal(script: EpochScript, count: int) -> None:
    for number in range(count):
        script.table("shop.t").read([{"id": number, "name": "a", "qty": 1}])
        script.seal()


def taken_over_before(
    store: CheckpointStore, patch: pytest.MonkeyPatch, call: str, concerns: Callable[..., bool]
) -> list[CheckpointStore]:
    """The store of a successor that begins right before the first `call` of a folder that `concerns` somebody."""
    successors: list[CheckpointStore] = []
    real = getattr(LocalFolder, call)

    def late(folder: LocalFolder, *args: Any) -> None:
        if not successors and concerns(*args):
            successors.append(CheckpointStore(store.path))
            DriverGeneration(successors[0])
        real(folder, *args)

    patch.setattr(LocalFolder, call, late)
    return successors


def test_a_manifest_that_a_stale_driver_renames_away_counts_as_before(
    store: CheckpointStore, script: EpochScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(script, 3)
    successors = taken_over_before(store, monkeypatch, "rename", lambda name, _: name.startswith("epochs/"))
    store.drop_after(1)
    [successor] = successors
    # Of the two documents about what is left, that of the driver that began last is read.
    assert successor.sealed_epochs() == [1]
    assert successor.next_epoch() == 4


def test_a_stale_driver_that_had_not_said_yet_what_it_drops_drops_nothing(
    store: CheckpointStore, script: EpochScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(script, 3)
    successors = taken_over_before(store, monkeypatch, "write", lambda name, _: name.endswith(".epochs.json"))
    store.drop_after(1)
    [successor] = successors
    assert not (store.path / "epochs" / "0000000003.json").exists()
    assert [manifest.epoch for manifest in successor.manifests()] == [1, 2, 3]
    last = successor.last_manifest()
    assert last is not None
    assert last.epoch == 3
    assert (successor.drop_after(2), successor.sealed_epochs()) == ([3], [1, 2])


def test_a_manifest_that_a_stale_coordinator_writes_does_not_count(
    store: CheckpointStore, script: EpochScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(script, 1)
    successors = taken_over_before(store, monkeypatch, "create_once", lambda name, _: name.startswith("epochs/"))
    seal(script, 1)
    [successor] = successors
    assert (successor.sealed_epochs(), successor.next_epoch()) == ([1], 3)
    with pytest.raises(FencedError):
        seal(script, 1)
    monkeypatch.undo()
    seal(EpochScript(successor), 1)
    assert successor.sealed_epochs() == [1, 3]


def test_a_state_of_an_older_version_has_the_epochs_that_it_has(store: CheckpointStore) -> None:
    script = EpochScript(store)
    script.generation = store.generations.next()
    seal(script, 3)
    store.drop_after(2)
    assert store.sealed_epochs() == [1, 2]
    DriverGeneration(store)
    assert store.sealed_epochs() == [1, 2]
