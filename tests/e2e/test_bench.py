"""`raycdc bench`: the command finds the benchmarks, and a small run of one says what it must."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_bench_topic_reads_every_message_of_a_topic_it_filled(tmp_path: Path) -> None:
    words = ["bench", "topic", "--json", "--rows", "5000", "--cases", "consume"]
    command = [sys.executable, "-m", "raycdc.cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = {(m["case"], m["system"]): m["rows"] for m in json.loads(done.stdout)["measurements"]}
    assert found == {("consume", "confluent-kafka"): 5000, ("consume", "raycdc"): 5000}


def test_bench_mongodb_follows_every_change(tmp_path: Path) -> None:
    words = ["bench", "mongodb", "--json", "--rows", "3000", "--tries", "1", "--cases", "change_stream"]
    command = [sys.executable, "-m", "raycdc.cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = {(m["case"], m["system"]): m["rows"] for m in json.loads(done.stdout)["measurements"]}
    assert found == {("change_stream", system): 9_000 for system in ("raycdc", "raw", "pymongo")}


@pytest.mark.long
@pytest.mark.spark
def test_bench_mongodb_reads_every_document_and_change_with_every_system(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "raycdc.cli", "bench", "mongodb", "--json", "--rows", "3000", "--tries", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = {(m["case"], m["system"]): m["rows"] for m in json.loads(done.stdout)["measurements"]}
    ours = ("raycdc", "raycdc-document", "raycdc-bson")
    ten_passes = {("snapshot", system): 30_000 for system in (*ours, "raw", "pymongo", "pymongoarrow")}
    changes = {("change_stream", system): 9_000 for system in ("raycdc", "raw", "pymongo")}
    assert found == {**ten_passes, ("snapshot", "spark-mongodb"): 9_000, **changes}


def test_bench_lists_the_benchmarks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "raycdc.cli", "bench", "checkout", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=True)
    assert (
        "{advice,binlog,commits,elastic,formats,latency,mongodb,pipeline,scale,sinks,snapshot,start,topic}"
        in done.stdout
    )


pytestmark = pytest.mark.server
