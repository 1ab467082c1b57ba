"""A state's epochs are for one reader: a sink by `raycdc run`, or whoever takes and acknowledges them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raycdc.config import PipelineConfig, config_from_dict
from raycdc.driver.consumer import Ledger
from raycdc.driver.fitting import require_fitting
from raycdc.errors import ConfigError, ParkReason
from raycdc.segments.access import HERE
from raycdc.segments.bad_rows import BadRecords
from raycdc.state.configured import configured_keys, write_configured
from raycdc.state.parked import ParkedTarget
from raycdc.state.store import CheckpointStore, CommitRecord, RoutedTarget
from raycdc.testing.epochs import EpochScript


def config() -> PipelineConfig:
    return config_from_dict(
        {
            "pipeline": {"name": "shop"},
            "source": {"type": "mysql", "user": "cdc", "password": "geheim", "tables": ["shop.a"]},
            "sink": {"type": "delta", "path": "./lake"},
        }
    )


def script_of(folder: Path) -> EpochScript:
    script = EpochScript(CheckpointStore(folder, pipeline="shop"), seed=1)
    for name in ("shop.a", "shop.b"):
        script.table(name).insert({"id": 1, "name": "x", "qty": 1})
    script.seal()
    return script


@pytest.mark.parametrize(
    ("made_by_run", "said"),
    [
        (True, r"go to a delta sink, by `raycdc run`.*would not write.*Use another pipeline\.state"),
        (False, r"were read, and the sink would lack what their reader acknowledged\. Use another pipeline\.state"),
    ],
)
def test_what_one_reader_had_the_other_would_lack_in_silence(tmp_path: Path, made_by_run: bool, said: str) -> None:
    store = script_of(tmp_path).store
    write_configured(store, configured_keys(config(), has_sink=made_by_run))
    require_fitting(config(), store, has_sink=made_by_run)
    with pytest.raises(ConfigError, match=said):
        require_fitting(config(), store, has_sink=not made_by_run)


def test_a_start_that_sealed_nothing_leaves_the_state_to_anybody(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, pipeline="shop")
    write_configured(store, configured_keys(config()))
    assert require_fitting(config(), store, has_sink=False) == []


def test_acknowledging_keeps_what_else_is_recorded(tmp_path: Path) -> None:
    script = script_of(tmp_path)
    parked: Mapping[str, ParkedTarget] = {
        "shop.c": ParkedTarget(1, None, ParkReason.VALUE, "refused", 7, {"shop.c": 0})
    }
    routes, known = {"lake.a": RoutedTarget(("shop.a",), "")}, {"known rows of shop.a": (1, 3)}
    script.store.write_commit(CommitRecord(1, script.generation, 5, {"shop.b": (1, 3)}, routes, known, parked))
    script.table("shop.a").insert({"id": 2, "name": "x", "qty": 1})
    script.seal()
    supervisor: Any = SimpleNamespace(epoch_committed=lambda _: None)
    ledger = Ledger(script.store, supervisor, BadRecords(), access=lambda: HERE, generation=lambda: script.generation)
    ledger.acknowledge(2)
    record = script.store.last_commit()
    assert record is not None
    assert (record.epoch, record.tables) == (2, {"shop.a": (2, 0), "shop.b": (1, 3)})
    assert (record.routes, record.known, record.parked) == (routes, known, parked)
