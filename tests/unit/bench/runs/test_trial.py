"""The configuration of a run that is measured, which nobody takes for the real pipeline."""

from __future__ import annotations

from pathlib import Path

from raycdc.bench.runs.measured import trial_config
from raycdc.config.fields import TomlTable
from raycdc.config.sections.observability import LoggingOptions, MetricsOptions, TracesOptions


def test_nobody_hears_of_a_measured_run(tmp_path: Path) -> None:
    data: TomlTable = {
        "pipeline": {"name": "shop", "state": str(tmp_path / "state")},
        "source": {"type": "datagen", "tables": ["shop.orders"]},
        "sink": {"type": "delta", "path": str(tmp_path / "lake")},
        "traces": {"endpoint": "http://127.0.0.1:4318"},
        "metrics": {"address": "127.0.0.1:9464"},
        "logging": {"file": str(tmp_path / "log")},
        "notify": [{"type": "command", "command": ["true"]}],
    }
    trial = trial_config(data, (), tmp_path / "trial")
    assert (trial.traces, trial.metrics, trial.logging) == (TracesOptions(), MetricsOptions(), LoggingOptions())
    assert trial.notifications == ()
    assert not trial.control.enabled
