"""A pipeline that runs within a second in this process: generated rows into files of JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from raycdc.cli.entry import main


def configured(folder: Path, *, state: str = "", pipeline: str = "", events: int = 100, sections: str = "") -> Path:
    """Its configuration in `folder`, with the state there too unless `state` says where."""
    path = folder / "small.toml"
    work = f'work = "{folder / "work"}"' if "://" in state else ""
    path.write_text(
        f"""
[pipeline]
name = "small"
state = "{state or folder / "state"}"
{work}
{pipeline}
[source]
type = "datagen"
tables = ["shop.a", "shop.b"]
rows = 50
events = {events}
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


def rows(folder: Path) -> list[tuple[str, int, str]]:
    """Every change in the lake: its table, key and kind, sorted. None may be there twice."""
    found = list(_changes(folder))
    assert len(set(found)) == len(found), "a change is there twice"
    return sorted((table, key, kind) for table, key, kind, _ in found)


def _changes(folder: Path) -> Iterator[tuple[str, int, str, int]]:
    for file in sorted((folder / "lake").rglob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            change = json.loads(line)
            yield file.parent.name, change["id"], change["_op"], change["_seq"]
