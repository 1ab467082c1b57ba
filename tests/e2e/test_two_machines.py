"""Two plain machines with ``ray start``, by the commands of the manual's page, word by word."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from raycdc.cli.docs import MANUAL
from tests.e2e.machines import Machine, machines

pytestmark = [
    pytest.mark.server,
    pytest.mark.long(suite="deploy"),
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "deploy" / "two_machines" / "shop.toml"
ROWS = 30_000
#: The example with a source that needs no server, which lasts until readers are on both machines.
OTHERWISE = """
[pipeline]
name = "shop"
state = "{folder}/state"

[source]
type = "datagen"
tables = ["shop.orders"]
rows = {rows}
chunk_rows = 500
events = 0
faults = {{ chunk_rows_per_second = 100 }}

[ray]
address = "{address}"
flight = "{flight}"

[readers]
min = 1
max = {readers}
cpus = {cpus}

[spark]
master = "local[1]"

[sink]
type = "delta"
path = "{folder}/lake"
write = "changelog"
"""


def commands() -> list[str]:
    """The three blocks of the section: the first machine, the second one, and the run."""
    section = (MANUAL / "deploy.md").read_text().partition("## Two machines\n")[2].partition("\n## ")[0]
    return re.findall(r"^```bash\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def events(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def test_the_commands_of_the_manual_make_one_cluster_of_two_machines(tmp_path: Path) -> None:
    head, node, run = commands()
    assert "raycdc run shop.toml\n" in run
    token = tmp_path / "ray.token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    head, node, run = (text.replace("/etc/raycdc/ray.token", str(token)) for text in (head, node, run))
    example = tomllib.loads(EXAMPLE.read_text().replace("${", "$ {"))
    words = example["ray"] | {"readers": example["readers"]["max"], "cpus": example["readers"]["cpus"]}
    (tmp_path / "shop.toml").write_text(OTHERWISE.format(folder=tmp_path, rows=ROWS, **words))
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    surroundings = {**os.environ, "PATH": os.pathsep.join(paths)}
    with machines("10.0.0") as (first, second):
        first.run(head, tmp_path / "head.log", surroundings, timeout_s=600)
        second.run(node, tmp_path / "node.log", surroundings, timeout_s=600)
        run = head.splitlines()[0] + "\ncd " + str(tmp_path) + "\n" + run.rstrip() + " --until caught-up --json"
        told = _followed(first, run, tmp_path, surroundings)
    nodes = {reader["node"] for event in told if event["event"] == "progress" for reader in event["readers"]}
    assert len(nodes) == 2, nodes
    rows = DeltaTable(str(tmp_path / "lake" / "shop" / "orders")).to_pyarrow_table(columns=["id"])["id"].to_pylist()
    assert (len(rows), len(set(rows))) == (ROWS, ROWS)


def _followed(machine: Machine, script: str, folder: Path, environment: dict[str, str]) -> list[dict[str, Any]]:
    machine.run(script, folder / "run.log", environment, timeout_s=2400)
    return events(folder / "run.log")
