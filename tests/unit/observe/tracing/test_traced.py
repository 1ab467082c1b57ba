"""A run with and without `[traces]`: who hears of its epochs, and what cannot keep it from going on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raycdc.config import PipelineConfig, config_from_dict
from raycdc.core.activity import EpochPart, Stage
from raycdc.delivery.ports import EpochPorts
from raycdc.observe.events import RunEvent, Warned
from raycdc.observe.status.progress import ProgressReporter
from raycdc.observe.tracing.traced import traced
from raycdc.state.drivers.generations import OwnGeneration
from raycdc.state.location import state_of
from raycdc.state.store import CheckpointStore
from tests.collector import collecting


def config_of(folder: Path, **traces: str) -> PipelineConfig:
    return config_from_dict(
        {
            "pipeline": {"name": "n", "state": str(folder / "state")},
            "source": {"type": "datagen", "tables": ["a.b"]},
            "sink": {"type": "jsonl", "path": str(folder / "out")},
            "traces": traces,
        }
    )


def played(config: PipelineConfig, play: Callable[[EpochPorts], None]) -> list[str]:
    """The warnings of a run that does `play`, which is given its ports."""
    events: list[RunEvent] = []
    ports = EpochPorts(generation=lambda: OwnGeneration(1), next_sealed=lambda *_: None)
    store = CheckpointStore(state_of(config), pipeline="n")
    with traced(config, store, ports, ProgressReporter({"test": events.append})) as heard:
        play(heard)
        assert (heard is ports) == (ports.tracker.on_part is None)
    return [event.text for event in events if isinstance(event, Warned)]


def staged(ports: EpochPorts) -> None:
    with ports.tracker.doing(Stage.STAGE, "writes rows", part=EpochPart(1, 1, 1)):
        """The epoch has no more parts."""


def test_without_the_section_nobody_hears_of_a_part(tmp_path: Path) -> None:
    assert played(config_of(tmp_path), staged) == []


def test_a_variable_of_the_library_that_is_wrong_is_a_warning_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many")
    (warning,) = played(config_of(tmp_path, endpoint="http://127.0.0.1:1"), staged)
    assert warning.startswith("traces: none is sent to http://127.0.0.1:1: ")
    assert "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT" in warning


def test_the_end_sends_what_is_known_with_the_error_of_the_run(tmp_path: Path) -> None:
    def fails(ports: EpochPorts) -> None:
        staged(ports)
        raise KeyError("a value")

    with collecting() as collector:
        config = config_of(tmp_path, endpoint=collector.url, end_wait="10m")
        assert played(config, staged) == []
        with pytest.raises(KeyError):
            played(config, fails)
    assert [(root.error, root.attributes["raycdc.committed"]) for root in collector.roots()] == [
        ("", False),
        ("KeyError", False),
    ]


def test_an_interrupt_waits_for_no_collector(tmp_path: Path) -> None:
    def interrupted(ports: EpochPorts) -> None:
        staged(ports)
        raise KeyboardInterrupt

    with collecting() as collector:
        collector.free.clear()
        with pytest.raises(KeyboardInterrupt):
            played(config_of(tmp_path, endpoint=collector.url, end_wait="10m", timeout="10m"), interrupted)
