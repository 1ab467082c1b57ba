"""The example of a third party's format, installed as its own package and used from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_commands import completed

ROOT = Path(__file__).resolve().parents[2]
HEAD = {"where": {"db": "shop", "table": "t"}}
FULL, EMPTY = {"id": 1, "photo": "00ff"}, {"id": 1, "photo": None}
MESSAGES: list[dict[str, Any]] = [
    {**HEAD, "what": "added", "at": 5, "row": FULL, "key": ["id"]},
    {**HEAD, "what": "alive", "at": 6},
    {**HEAD, "what": "changed", "at": 7, "row": EMPTY, "was": {"photo": "00ff"}},
    {**HEAD, "what": "removed", "at": 8, "row": EMPTY, "who": {"user": "ann"}},
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the package is installed in a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation"]
    subprocess.run([*uv, "--target", target, ROOT / "examples" / "custom_format"], check=True, stdin=subprocess.DEVNULL)
    paths = [str(ROOT), str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def raycdc(environment: dict[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    return completed(list(map(str, words)), environment=environment, folder=Path.cwd())


def test_the_package_is_listed(environment: dict[str, str]) -> None:
    listed = [json.loads(line) for line in raycdc(environment, "plugins", "--json").stdout.splitlines()]
    flat = listed[0] if len(listed) == 1 and isinstance(listed[0], list) else listed
    assert any(entry.get("type") == "pulse-json" and not entry.get("error") for entry in flat)


def test_its_messages_are_decoded(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "changes.jsonl"
    file.write_text("".join(json.dumps(message) + "\n" for message in MESSAGES))
    found = raycdc(environment, "inspect", "messages", "--format", "pulse-json", file, "--schema", "id INT, photo BLOB")
    assert (found.returncode, found.stderr) == (0, "")
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    photo = {"$binary": "AP8="}
    assert [(line["op"], line["row"]) for line in lines] == [
        ("+I", {"id": 1, "photo": photo}),
        ("-U", {"id": 1, "photo": photo}),
        ("+U", {"id": 1, "photo": None}),
        ("-D", {"id": 1, "photo": None}),
    ]
    assert lines[-1]["metadata"] == {"database": "shop", "table": "t", "at": 8, "user": "ann", "time_ms": 8}


def test_its_refusals_name_its_own_fix(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "changes.jsonl"
    file.write_text(json.dumps({**MESSAGES[2], "was": None}))
    found = raycdc(environment, "inspect", "messages", "--format", "pulse-json", file)
    assert found.returncode == 4
    assert (
        "changes.jsonl:1: an update without the row as it was before. Run Pulse with --with-previous." in found.stderr
    )
