"""A pipeline that runs within a second in this process: generated rows into files of JSON Lines."""

from __future__ import annotations

import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from raycdc.cli.entry import main
from tests.support.forked_commands import nursery
from tests.support.jobs import RUN_TIMEOUT_S

#: The rows of tables by their keys.
Rows = dict[str, dict[int, dict[str, Any]]]
#: Events of a source when it is read first, and later.
FIRST, MORE, MOST = 20, 40, 60


def configured(folder: Path, *, state: str = "", sections: str = "", events: int | None = FIRST) -> Path:
    """Its configuration in `folder`, with the state there too unless `state` says where. The source has so many events
    from the beginning on; None: they come for a while.
    """
    path = folder / "small.toml"
    work = f'work_dir = "{folder / "work"}"' if "://" in state else ""
    path.write_text(
        f"""
[pipeline]
name = "small"
state = "{state or folder / "state"}"
{work}
epoch_interval = "500ms"
[source]
type = "datagen"
tables = ["shop.a", "shop.b"]
rows = 50
events = {1000 if events is None else events}
per_second = {0 if events is not None else 50}
[sink]
type = "jsonl"
path = "{folder / "lake"}"
write = "changelog"
{sections}
"""
    )
    return path


def run(config: Path, *words: str) -> int:
    """The exit code of a run to the end of what there is."""
    return main(["run", str(config), "--local", "--until", "caught-up", "--json", *words])


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code of a command in this process, and what it says."""
    capsys.readouterr()
    code = main(words)
    return code, "".join(capsys.readouterr())


def command(config: Path, *words: str, failpoints: str = "") -> tuple[int, str]:
    """The exit code of a command in a process of its own (negative: the signal that ended it), and what it says."""
    markers = config.parent / "failpoints"
    markers.mkdir(exist_ok=True)
    environment = {**os.environ, "RAYCDC_FAILPOINTS": failpoints, "RAYCDC_FAILPOINT_DIR": str(markers)}
    log = config.parent / "said.log"
    with log.open("wb") as stderr:
        process = nursery().start(words, environment=environment, folder=config.parent, stderr=stderr)
        with process.stdout as stdout:
            said = stdout.read().decode()
        code = process.wait(RUN_TIMEOUT_S)
    return code, said + log.read_text(encoding="utf-8")


def require_exact(folder: Path, events: int = FIRST) -> None:
    """The lake has every one of so many events, and each change once."""
    assert _final(folder / "lake") == expected(events)


@cache
def expected(events: int) -> Rows:
    """The rows of both tables after so many events, as one run has them that nothing happens to."""
    with tempfile.TemporaryDirectory() as name:
        assert run(configured(Path(name), events=events)) == 0
        return _final(Path(name) / "lake")


def _final(lake: Path) -> Rows:
    """The rows that the changes add up to: of each key one insert, then updates and deletions of what was there."""
    found: Rows = {}
    for table in ("a", "b"):
        rows = found[table] = {}
        lines = [line for file in (lake / "shop" / table).glob("*.jsonl") for line in file.read_text().splitlines()]
        for change in sorted(map(json.loads, lines), key=lambda change: int(change["_seq"])):
            values = {name: value for name, value in change.items() if not name.startswith("_")}
            match change["_op"]:
                case "+I":
                    assert change["id"] not in rows, change
                    rows[change["id"]] = values
                case "+U":
                    rows[change["id"]] = values
                case _:
                    assert rows.pop(change["id"]) == values, change
    return found
