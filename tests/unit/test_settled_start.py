"""What a start settles before anything runs: the end of the run, and the rules that the source goes by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raycdc.config import PipelineConfig
from raycdc.config.load import config_from_dict
from raycdc.driver.resolve import OutputMode, resolve
from raycdc.driver.startup_checks import START_CHECKS, Start, require_row_store
from raycdc.errors import ConfigError
from raycdc.model.rules.rate_limit import Until
from raycdc.state.store import CheckpointStore


def config_of(folder: Path, *, mode: str = "continuous", source: dict[str, Any]) -> PipelineConfig:
    return config_from_dict(
        {
            "pipeline": {"name": "shop", "state": str(folder / "state"), "mode": mode},
            "source": source,
            "sink": {"type": "delta", "path": str(folder / "lake")},
        }
    )


@pytest.mark.parametrize(
    ("mode", "startup", "until"),
    [
        ("continuous", "initial", None),
        ("continuous", "snapshot", Until.SNAPSHOT),
        ("until-caught-up", "initial", Until.CAUGHT_UP),
        ("snapshot", "initial", Until.SNAPSHOT),
        # Whoever asks for it gets what the log has had since the snapshot, at every start.
        ("until-caught-up", "snapshot", Until.CAUGHT_UP),
    ],
)
def test_the_mode_that_is_asked_for_says_where_a_run_ends(
    tmp_path: Path, mode: str, startup: str, until: Until | None
) -> None:
    source = {"type": "mysql", "user": "cdc", "tables": ["shop.orders"], "startup": {"mode": startup}}
    assert config_of(tmp_path, mode=mode, source=source).until is until


@pytest.mark.parametrize("output_mode", [OutputMode.SINK, OutputMode.HAND_FOR_SINK])
def test_epochs_taken_by_hand_of_a_file_that_names_a_sink_have_the_rows_that_the_sink_would_get(
    tmp_path: Path, output_mode: OutputMode
) -> None:
    config = config_of(tmp_path, source={"type": "datagen", "tables": ["shop.orders"]})
    store = CheckpointStore(tmp_path / "state", pipeline="shop")
    resolved = resolve(Start(config, local=True), store, warn=lambda _: None, output_mode=output_mode)
    context = resolved.make_source().context
    assert (context.sink, context.rules.upsert) == ("delta", True)


def test_known_rows_are_refused_in_a_folder_whose_name_deltas_library_reads_as_another(tmp_path: Path) -> None:
    source = {"type": "datagen", "tables": ["shop.orders"]}
    require_row_store(Start(config_of(tmp_path / "a b", source=source), local=True))
    with pytest.raises(ConfigError, match=r"where Delta's library reads '%20' as something else: give this pipeline a"):
        require_row_store(Start(config_of(tmp_path / "a%20b", source=source), local=True))


def test_a_store_that_does_not_answer_is_asked_once_for_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raycdc.driver.startup_checks.STORE_TRIES_FOR_S", 0.5)
    keys = {"access_key_id": "AK", "secret_access_key": "any", "region": "us-east-1", "allow_http": True}
    config = config_from_dict(
        {
            "pipeline": {"name": "shop", "state": "s3://lake/state", "work_dir": str(tmp_path / "work")},
            "source": {"type": "datagen", "tables": ["shop.orders"]},
            "sink": {"type": "delta", "path": str(tmp_path / "lake")},
            "storage": {"endpoint": "http://127.0.0.1:1", **keys},
        }
    )
    start = Start(config, local=True)
    found = {check.name: check.results(start) for check in START_CHECKS if check.name in ("state", "pipeline")}
    (state,) = found["state"]
    assert not state.ok
    assert "http://127.0.0.1:1/lake/state" in state.text
    (pipeline,) = found["pipeline"]
    assert (pipeline.ok, pipeline.text) == (
        False,
        "The owner of the state in s3://lake/state is unknown, because the state cannot be read.",
    )
