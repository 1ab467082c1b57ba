"""What ``python -m bench`` says and how it ends when a case fails, is stopped, or has figures that must not be."""

from __future__ import annotations

import json
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from bench import elastic
from bench.measure import Failure, Measurement, Options
from bench.seen import InIceberg
from raycdc.sinks.iceberg.catalog import HadoopCatalog

GOOD = {
    "rows": 40_000,
    "wall_s": 100.0,
    "nodes": [[0.1, 1], [60.0, 4], [90.0, 1]],
    "all_nodes_read_after_s": 65.0,
    "reader_after_its_node_s": [5.0, 6.0, 7.0],
    "work_done_after_s": 80.0,
    "given_back_after_s": 90.0,
    "given_back": True,
    "lost": 0,
    "repeated": 0,
    "share_of_rows_after_it_came": {"state": 0.55, "vm-1": 0.15, "vm-2": 0.15, "vm-3": 0.15},
    "rows_per_s_by_readers": {"1": 100, "4": 400},
    "reasons": ["one log is left, which one reader reads"],
}


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ({}, ""),
        ({"lost": 2, "repeated": 1}, "2 rows lost, 1 rows repeated"),
        ({"share_of_rows_after_it_came": {"state": 0.05, "vm-1": 0.14}}, "vm-1 read 14.0% of the rows after it came"),
        ({"given_back": False, "nodes": [[0.1, 4]]}, "the nodes were not given back: [[0.1, 4]]"),
    ],
)
def test_elastic_figures_that_must_not_be_are_named(figures: dict[str, Any], told: str) -> None:
    assert elastic.wrong_with(GOOD | figures) == told


def test_a_case_of_elastic_that_fails_is_told_and_the_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"chunks": dict(GOOD), "beside": "Kafka did not start", "datagen": GOOD | {"lost": 1}}
    monkeypatch.setattr(elastic, "_in_own_process", lambda case, rows: told[case])
    results = list(elastic.run(Options(cases=tuple(told), rows=None, server="mysql")))
    assert [(type(result), result.case) for result in results] == [
        (Measurement, "chunks"),
        (Failure, "beside"),
        (Measurement, "datagen"),
        (Failure, "datagen"),
    ]
    assert [result.reason for result in results if isinstance(result, Failure)] == [
        "Kafka did not start",
        "1 rows lost",
    ]


def test_a_case_whose_process_dies_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    (failure,) = elastic.run(Options(cases=("chunks",), rows=None, server="mysql"))
    assert failure == Failure("chunks", "its process ended with 1, without figures")


@pytest.fixture
def bench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Callable[[Callable[[Options], Iterator[Any]]], tuple[Any, dict[str, Any], dict[str, Any]]]]:
    """``python -m bench elastic --json`` with another `run`: its exit code, what it printed, and what it kept."""
    before = signal.getsignal(signal.SIGTERM)

    def play(run: Callable[[Options], Iterator[Any]]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        monkeypatch.setattr(elastic, "run", run)
        kept = tmp_path / "kept.json"
        monkeypatch.setattr(sys, "argv", ["bench", "elastic", "--json", "--out", str(kept), "--case", "chunks"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("bench", run_name="__main__")
        return ended.value.code, json.loads(capsys.readouterr().out), json.loads(kept.read_text())

    yield play
    signal.signal(signal.SIGTERM, before)


MEASURED = Measurement("chunks", "raycdc", 10, 1.0, 0.0, 0.0)


def test_a_benchmark_with_a_failure_prints_all_that_was_measured_and_ends_with_1(bench: Any) -> None:
    code, printed, kept = bench(lambda _: iter([Failure("beside", "no room"), MEASURED]))
    assert code == 1
    assert printed["failed"] == kept["failed"] == [{"case": "beside", "reason": "no room"}]
    assert [m["case"] for m in printed["measurements"]] == [m["case"] for m in kept["measurements"]] == ["chunks"]


def test_a_benchmark_that_is_stopped_prints_what_was_measured_before(bench: Any) -> None:
    def stopped(options: Options) -> Iterator[Measurement]:
        assert options.cases == ("chunks",)
        yield MEASURED
        raise KeyboardInterrupt

    code, printed, _ = bench(stopped)
    assert code == 130
    assert [m["case"] for m in printed["measurements"]] == ["chunks"]


def test_a_benchmark_without_a_failure_ends_with_0(bench: Any) -> None:
    code, printed, _ = bench(lambda _: iter([MEASURED]))
    assert (code, "failed" in printed) == (0, False)


def test_rows_of_an_iceberg_table_are_seen_with_the_first_metadata_that_name_their_file(tmp_path: Path) -> None:
    catalog = HadoopCatalog("peer", tmp_path / "lake")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", LongType()))
    table = catalog.create_table(("shop", "t"), schema)
    table.append(pa.table({"id": [1, 2], "at": [0, 0]}))
    folder = tmp_path / "lake" / "shop" / "t"
    watch = InIceberg(folder, tmp_path / "kept")
    watch.begin()
    try:
        committed_us = {}
        for version, rows in ((3, {"id": [1], "at": [10]}), (4, {"id": [3, 2], "at": [11, 12]})):
            table = catalog.load_table(("shop", "t"))
            table.append(pa.table(rows))
            path = folder / "metadata" / f"v{version}.metadata.json"
            committed_us[version] = path.stat().st_ctime_ns // 1000
        catalog.load_table(("shop", "t")).overwrite(pa.table({"id": [1, 3, 2], "at": [10, 11, 12]}))
        found = watch.seen(5)
        for path in folder.glob("metadata/v*.metadata.json"):
            path.unlink()
        assert watch.seen(5) == found
        assert sorted(found) == [(1, 10), (2, 12), (3, 11)]
        assert found[1, 10] <= found[3, 11] == found[2, 12]
        # The table's own name for the file is the last change to it, unless the watch was faster than this look.
        assert found[1, 10] <= committed_us[3]
        assert found[3, 11] <= committed_us[4]
    finally:
        watch.close()
