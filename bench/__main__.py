"""Runs one benchmark and prints its measurements; progress goes to stderr.

A benchmark is a module of this package with ``CASES`` (names) and ``run(options) -> Iterator[Measurement | Failure]``.
What it prints with ``--json`` is one document: machine, options, one entry per measurement, the ratios between systems,
and the cases that failed, after which the exit code is 1. After Ctrl-C it has the measurements until then. A benchmark
may add ``conclusions(measurements)`` to the document, ``report(measurements)`` (head and lines of a table for people)
and ``page(measurements)`` (the same as HTML); ``SERVER`` names its server where ``--server`` does not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure import Failure, Measurement, Options, machine, progress, ratios


def main() -> int:
    """Parse the command line, run the benchmark, and print its measurements."""
    names = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if "\nCASES" in p.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(prog="bench", description="Measure raycdc and its peers.")
    parser.add_argument("benchmark", choices=names)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--rows", type=int, default=None, help="rows of the standard case (default: the benchmark's)")
    parser.add_argument("--cases", "--case", default="", help="comma-separated; default: all")
    parser.add_argument("--server", choices=["mysql", "mariadb"], default="mysql")
    parser.add_argument("--tries", type=int, help="runs of each: mongodb counts the best (3), start the median (5)")
    parser.add_argument("--html", type=Path, default=None, help="write the results there as a page, too")
    parser.add_argument("--out", type=Path, default=None, help="write the JSON document there after each measurement")
    arguments = parser.parse_args()
    # The benchmark's servers and processes end with it, and the measurements until then are printed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    benchmark = importlib.import_module(f"bench.{arguments.benchmark}")
    cases = tuple(filter(None, arguments.cases.split(","))) or tuple(benchmark.CASES)
    unknown = [case for case in cases if case not in benchmark.CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; there are {', '.join(benchmark.CASES)}")
    options = Options(
        cases=cases,
        rows=arguments.rows,
        server=arguments.server,
        tries=arguments.tries or getattr(benchmark, "TRIES", 3),
    )
    if arguments.html is not None and not hasattr(benchmark, "page"):
        parser.error(f"{arguments.benchmark} has no page")
    measurements: list[Measurement] = []
    failures: list[Failure] = []
    interrupted = False
    try:
        for told in benchmark.run(options):
            if isinstance(told, Failure):
                failures.append(told)
                progress(f"{told.case} FAILED: {told.reason}")
            else:
                measurements.append(told)
                progress(told.summary())
            if arguments.out is not None:
                document = _document(arguments.benchmark, benchmark, options, measurements, failures)
                arguments.out.write_text(json.dumps(document, indent=1), encoding="utf-8")
    except KeyboardInterrupt:
        interrupted = True
        progress(f"interrupted after {len(measurements)} measurements")
    if arguments.html is not None:
        arguments.html.write_text(benchmark.page(measurements), encoding="utf-8")
    if arguments.json:
        print(json.dumps(_document(arguments.benchmark, benchmark, options, measurements, failures), indent=1))
    else:
        _print(benchmark, measurements, failures)
    return 130 if interrupted else 1 if failures else 0


def _document(
    name: str, benchmark: Any, options: Options, measurements: Sequence[Measurement], failures: Sequence[Failure]
) -> dict[str, Any]:
    """Return the document that ``--json`` prints."""
    return {
        "benchmark": name,
        "machine": machine(),
        "server": getattr(benchmark, "SERVER", options.server),
        "measurements": [m.to_json() for m in measurements],
        "ratios": ratios(measurements),
        **({"failed": [failure.to_json() for failure in failures]} if failures else {}),
        **_conclusions(benchmark, measurements),
    }


def _conclusions(benchmark: Any, measurements: Sequence[Measurement]) -> dict[str, Any]:
    return dict(benchmark.conclusions(measurements)) if hasattr(benchmark, "conclusions") else {}


def _print(benchmark: Any, measurements: Sequence[Measurement], failures: Sequence[Failure]) -> None:
    """Print the measurements for people."""
    if hasattr(benchmark, "report"):
        _print_table(*benchmark.report(measurements))
        for case, advice in _conclusions(benchmark, measurements).get("recommendations", {}).items():
            print(f"{case}: {advice['advice']}")
    else:
        for measurement in measurements:
            print(measurement.summary())
        for line in ratios(measurements):
            print(f"{line['case']}: raycdc is {line['rows_per_cpu_s']}x {line['system']} per CPU-second")
    for failure in failures:
        print(f"{failure.case} FAILED: {failure.reason}")


def _print_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    for name in head:
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    # The table is as wide as it needs to be, because a pipe has no width.
    Console(width=max(Console().width, 220)).print(table)


sys.exit(main())
