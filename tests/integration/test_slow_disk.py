"""A run whose disk takes longer for an epoch than a reader may be without progress gets through."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from raycdc.config import config_from_dict
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import DatabaseServer
from raycdc.segments import writing
from raycdc.source.protocol.coordinator import SourceCoordinator
from raycdc.state.store import CheckpointStore

pytestmark = pytest.mark.server

TABLES = 8
LIMIT_S = 5.0


def test_a_cut_and_a_manifest_that_take_longer_than_the_limits_are_no_hang(
    mariadb: DatabaseServer, mariadb_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(real: Any, seconds: float) -> Any:
        """Not so slowly that one file alone takes longer than the limit."""

        def slow(*values: Any) -> Any:
            threading.Event().wait(seconds)
            return real(*values)

        return slow

    monkeypatch.setenv("RAYCDC_TEST_PASSWORD", "cdc")
    source = {"type": "mysql", "port": mariadb.port, "user": "cdc", "password": "${env:RAYCDC_TEST_PASSWORD}"}
    limits = {"reader_timeout": f"{LIMIT_S:g}s", "progress_timeout": f"{LIMIT_S:g}s"}
    config = config_from_dict(
        {
            "pipeline": {"name": "slow", "state": str(tmp_path / "state"), "epoch_interval": "10s", **limits},
            "source": {**source, "tables": [rf"{mariadb_database}\..*"]},
            "readers": {"min": 1, "max": 1},
            "sink": {"type": "jsonl", "path": str(tmp_path / "lake"), "write": "changelog"},
        }
    )
    names = [f"t{number}" for number in range(TABLES)]
    mariadb.execute(*(f"CREATE TABLE {name} (id INT PRIMARY KEY)" for name in names), database=mariadb_database)
    Pipeline.from_config(config).run(until="caught-up", local=True)
    mariadb.execute("BEGIN", *(f"INSERT INTO {name} VALUES (1)" for name in names), "COMMIT", database=mariadb_database)
    monkeypatch.setattr(writing._ChecksummedFile, "sync", slowly(writing._ChecksummedFile.sync, LIMIT_S / 3))
    monkeypatch.setattr(CheckpointStore, "write_manifest", slowly(CheckpointStore.write_manifest, LIMIT_S * 2))
    lost: list[str] = []
    lose = SourceCoordinator._lose

    def noted(coordinator: SourceCoordinator, subtask_id: int, reason: str) -> None:
        lost.append(reason)
        lose(coordinator, subtask_id, reason)

    monkeypatch.setattr(SourceCoordinator, "_lose", noted)
    Pipeline.from_config(config).run(until="caught-up", local=True)
    assert lost == []
    lines = [line for file in (tmp_path / "lake").rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(json.loads(line)["_table"] for line in lines) == names
