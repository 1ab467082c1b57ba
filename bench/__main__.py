"""Run one benchmark and print its measurements; progress goes to stderr.

A benchmark is a module of this package with ``CASES`` (names) and ``run(options) -> Iterator[Measurement]``. What it
prints with ``--json`` is one document: machine, options, one entry per measurement, and the ratios between systems.
It may add ``conclusions(measurements)`` to the document, ``report(measurements)`` (head and lines of a table for
people) and ``page(measurements)`` (the same as HTML); ``SERVER`` names its server where ``--server`` does not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Measurement, Options, machine, progress, ratios


def main() -> int:
    """Parse the command line, run, print."""
    names = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if "\nCASES" in p.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(prog="bench", description="Measure raycdc and its peers.")
    parser.add_argument("benchmark", choices=names)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--rows", type=int, default=None, help="rows of the standard case (default: the benchmark's)")
    parser.add_argument("--cases", default="", help="comma-separated; default: all")
    parser.add_argument("--server", choices=["mysql", "mariadb"], default="mysql")
    parser.add_argument("--tries", type=int, default=3, help="of these the best counts, in the mongodb benchmark")
    parser.add_argument("--html", type=Path, default=None, help="write the results there as a page, too")
    arguments = parser.parse_args()
    benchmark = importlib.import_module(f"bench.{arguments.benchmark}")
    cases = tuple(filter(None, arguments.cases.split(","))) or tuple(benchmark.CASES)
    unknown = [case for case in cases if case not in benchmark.CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; there are {', '.join(benchmark.CASES)}")
    options = Options(cases=cases, rows=arguments.rows, server=arguments.server, tries=arguments.tries)
    measurements: list[Measurement] = []
    for measurement in benchmark.run(options):
        measurements.append(measurement)
        progress(measurement.summary())
    compared = ratios(measurements)
    conclusions = benchmark.conclusions(measurements) if hasattr(benchmark, "conclusions") else {}
    if arguments.html is not None:
        if not hasattr(benchmark, "page"):
            parser.error(f"{arguments.benchmark} has no page")
        arguments.html.write_text(benchmark.page(measurements), encoding="utf-8")
    if arguments.json:
        document = {
            "benchmark": arguments.benchmark,
            "machine": machine(),
            "server": getattr(benchmark, "SERVER", options.server),
            "measurements": [m.to_json() for m in measurements],
            "ratios": compared,
            **conclusions,
        }
        print(json.dumps(document, indent=1))
    elif hasattr(benchmark, "report"):
        _print_table(*benchmark.report(measurements))
        for case, advice in conclusions.get("recommendations", {}).items():
            print(f"{case}: {advice['advice']}")
    else:
        for measurement in measurements:
            print(measurement.summary())
        for line in compared:
            print(f"{line['case']}: raycdc is {line['rows_per_cpu_s']}x {line['system']} per CPU-second")
    return 0


def _print_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    for name in head:
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    # As wide as it needs to be: a pipe has no width.
    Console(width=max(Console().width, 220)).print(table)


sys.exit(main())
