"""Who asks for traces without OpenTelemetry's packages is told what to install, by `check` and by a run alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
sys.modules["opentelemetry"] = None
from raycdc.cli import main
for command in ("check", "run"):
    print(command, main([command, "--local", sys.argv[1]]))
"""
CONFIG = """
pipeline = {{ name = "lean", state = "{folder}/state" }}
source = {{ type = "datagen", tables = ["shop.orders"], rows = 10, events = 0 }}
sink = {{ type = "jsonl", path = "{folder}/out" }}
traces = {{ endpoint = "http://127.0.0.1:4318" }}
"""


def test_check_and_run_name_the_extra(tmp_path: Path) -> None:
    config = tmp_path / "traced.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    command = [sys.executable, "-c", PROGRAM, str(config)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert {"check 2", "run 2"} <= set(ended.stdout.splitlines()), ended.stdout
    advice = "[traces] needs a package that is not installed (opentelemetry.exporter). Run: pip install 'raycdc[otel]'"
    for said in (ended.stdout, ended.stderr):
        assert advice in " ".join(said.split())
    assert not (tmp_path / "state").exists()
