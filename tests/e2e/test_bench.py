"""`raycdc bench`: the command finds the benchmarks, and a small run of one says what it must."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_bench_splits_prints_one_document_with_a_recommendation_per_table(tmp_path: Path) -> None:
    page = tmp_path / "splits.html"
    words = ["bench", "splits", "--json", "--rows", "20000", "--cases", "skewed,string", "--server", "mariadb"]
    command = [sys.executable, "-m", "raycdc.cli", *words, "--html", str(page)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = {(m["case"], m["system"]): m for m in document["measurements"]}
    strategies = ("uneven", "sampled", "auto")
    assert set(found) == {("skewed", "even")} | {(case, s) for case in ("skewed", "string") for s in strategies}
    assert {measurement["rows"] for measurement in found.values()} == {20_000}
    assert set(document["recommendations"]) == {"skewed", "string"}
    for case in ("skewed", "string"):
        # A walk reads the whole index; estimates do not, and make chunks of about the size that was asked for.
        assert found[case, "uneven"]["planning_rows_read"] > 20_000
        assert found[case, "sampled"]["planning_rows_read"] < 15_000
        assert found[case, "sampled"]["chunk_rows"]["max"] < 3 * 200
    assert "snapshot.strategy" in page.read_text()


def test_bench_topic_reads_every_message_of_a_topic_it_filled(tmp_path: Path) -> None:
    words = ["bench", "topic", "--json", "--rows", "5000", "--cases", "consume"]
    command = [sys.executable, "-m", "raycdc.cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = {(m["case"], m["system"]): m["rows"] for m in json.loads(done.stdout)["measurements"]}
    assert found == {("consume", "confluent-kafka"): 5000, ("consume", "raycdc"): 5000}


def test_bench_splits_covers_the_strategies_for_collections(tmp_path: Path) -> None:
    words = ["bench", "splits", "--json", "--rows", "6000", "--cases", "collection"]
    command = [sys.executable, "-m", "raycdc.cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = {m["system"]: m for m in document["measurements"]}
    assert set(found) == {"sharded", "splitVector", "sample", "single"}
    assert {measurement["rows"] for measurement in found.values()} == {6000}
    assert found["single"]["chunks"] == 1
    assert min(found[strategy]["chunks"] for strategy in ("sharded", "splitVector", "sample")) > 2
    assert set(document["recommendations"]) == {"collection"}


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
    command = [sys.executable, "-m", "raycdc.cli", "bench", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=True)
    assert "{binlog,elastic,formats,mongodb,pipeline,scale,sinks,snapshot,splits,topic}" in done.stdout


pytestmark = pytest.mark.server
