"""What Ray's own state says of a running job: its actors are called as FLIP-27 calls the two sides of a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from ray._private import state as ray_state

from raycdc.connectors.datagen.plugin import DatagenSourceConfig
from raycdc.connectors.datagen.source import DatagenSource
from raycdc.runtime.coordinator.coordinator_host import CoordinatorStart
from raycdc.runtime.launcher import JobSpec
from raycdc.runtime.ray.ray_launcher import RayLauncher, RayListeners
from raycdc.runtime.reader.reader_worker import ReaderIdentity
from raycdc.source.protocol.coordinator import CoordinatorSettings
from raycdc.state.store import CheckpointStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

READERS = 2


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[RayLauncher]:
    config = DatagenSourceConfig(type="datagen", tables=("shop.orders",))
    store = CheckpointStore(tmp_path / "state", pipeline="names")
    spec = JobSpec(store.location, partial(DatagenSource, config), CoordinatorSettings(), until=None)
    listeners = RayListeners(warn=lambda _: None, lost=lambda _: None, stuck=lambda _: None)
    with closing(RayLauncher(spec, address="local", readers=READERS, spools=None, listeners=listeners)) as made:
        yield made


def test_actors_are_called_split_enumerator_and_source_reader(launcher: RayLauncher) -> None:
    coordinator = launcher.start_coordinator(CoordinatorStart(generation=1, committed=0))
    readers = [launcher.start_reader(ReaderIdentity(number, 1, 1), coordinator) for number in range(READERS)]
    # `ray list actors` shows the same table, by way of a dashboard, which a private Ray does not have.
    names = Counter(actor["ActorClassName"] for actor in ray_state.actors().values())
    assert names == {"SplitEnumerator": 1, "SourceReader": READERS}
    for reader in readers:
        reader.kill()
    coordinator.close()
