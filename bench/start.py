"""Measures the start of a run: the time from the command to the first rows in the lake, and to its end.

| case | what runs |
|---|---|
| ``small`` | the first run of a table of a thousand rows, until it is caught up |
| ``second_run`` | the run after that, for a hundred new rows |
| ``2_million_rows`` | the first run of a table of two million rows |
| ``100_tables``, ``500_tables`` | the first run of so many tables of 200 rows each |
| ``hand_over`` | a run without an end: when its readers are Ray's actors, and when a row inserted then is committed |

Each is measured as users run it (``raycdc``), with ``engines = "always"`` (``waiting``: for Ray and Spark), and
with ``--local``, in turn; the figures are those of the run whose end is the median of the tries. ``goals`` says which
aims were met. CPU time and memory are those of the whole process tree (`peak_pss_mb`: shared pages count once).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import many_tables, tables
from bench.measure import Measurement, Options, progress
from bench.pipeline import Bench
from bench.processes import ProcessTree

CASES = ("small", "second_run", "2_million_rows", "100_tables", "500_tables", "hand_over")
#: The number of runs, of which the median counts.
TRIES = 5

_SMALL_ROWS = 1_000
_NEW_ROWS = 100
_LARGE_ROWS = 2_000_000
#: The aims for the default, in seconds: to the first rows in the lake, and to the end of the run; None: no aim.
GOALS: dict[str, tuple[float | None, float | None]] = {
    "small": (4.0, 5.0),
    "second_run": (4.0, 5.0),
    "2_million_rows": (None, 6.0),
    "100_tables": (8.0, None),
    "500_tables": (15.0, None),
}
#: Keys of ``[pipeline]`` and arguments of the command, by the name of the system in the figures.
SYSTEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "raycdc": ("", ()),
    "waiting": ('engines = "always"', ()),
    "local": ("", ("--local",)),
}


def run(options: Options) -> Iterator[Measurement]:
    """Start a server, and measure each case with all systems."""
    settings: dict[str, str | None] = {"innodb_buffer_pool_size": "1G", "binlog_row_metadata": "FULL"}
    with (
        tempfile.TemporaryDirectory(prefix="raycdc-bench-") as folder,
        tables.server_of(options.server, settings) as server,
    ):
        bench = Starts(Bench(Path(folder), server), tables.connect(server.port), options.tries)
        tables.prepare(bench.connection)
        if {"small", "second_run", "hand_over"} & set(options.cases):
            bench.fill(_SMALL_ROWS)
        if {"small", "second_run"} & set(options.cases):
            yield from bench.small(options.cases)
        if "hand_over" in options.cases:
            yield bench.hand_over()
        if "2_million_rows" in options.cases:
            bench.fill(options.rows or _LARGE_ROWS)
            yield from bench.first_runs("2_million_rows", options.rows or _LARGE_ROWS, ["bench.standard"])
        made = 0
        for case, count in (("100_tables", 100), ("500_tables", 500)):
            if case in options.cases:
                many_tables.make_tables(bench.connection, count, many_tables.ROWS_PER_TABLE, first=made)
                made = count
                names = [many_tables.name_of(number) for number in range(count)]
                yield from bench.first_runs(case, count * many_tables.ROWS_PER_TABLE, names)


def conclusions(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Return each aim with the reached figure, and those of the other systems."""
    goals = {}
    for case, aims in GOALS.items():
        found = {m.system: m.more for m in measurements if m.case == case}
        if "raycdc" not in found:
            continue
        for name, aim in zip(("first_row_s", "exit_s"), aims, strict=True):
            if aim is not None:
                reached = {system: figures[name] for system, figures in found.items()}
                goals[f"{case}: {name}"] = {"aim": aim, "reached": reached["raycdc"] <= aim, **reached}
    return {"goals": goals}


class Starts:
    """The cases, on one server."""

    def __init__(self, bench: Bench, connection: Any, tries: int) -> None:
        self.connection = connection
        self._bench = bench
        self._tries = tries

    def fill(self, rows: int) -> None:
        """Fill the standard table with `rows` rows. They are not logged, which makes no difference to a first run."""
        if not self._bench.rows:
            with self.connection.cursor() as cursor:
                cursor.execute(tables.STANDARD)
        self._bench.fill(self.connection, rows)

    def small(self, cases: Sequence[str]) -> Iterator[Measurement]:
        """Measure a first run of the standard table, and a run after it."""
        first: dict[str, list[Measurement]] = {system: [] for system in SYSTEMS}
        second: dict[str, list[Measurement]] = {system: [] for system in SYSTEMS}
        for number in range(self._tries):
            for system in SYSTEMS:
                progress(f"small: {system}, {number + 1} of {self._tries} ...")
                config = self._configuration(system, ["bench.standard"])
                first[system].append(self._until_caught_up("small", system, self._bench.rows, config))
                if "second_run" in cases:
                    self.fill(self._bench.rows + _NEW_ROWS)
                    second[system].append(self._until_caught_up("second_run", system, _NEW_ROWS, config))
        for case, tries in (("small", first), ("second_run", second)):
            if case in cases:
                yield from map(_median, tries.values())

    def first_runs(self, case: str, rows: int, names: Sequence[str]) -> Iterator[Measurement]:
        """Measure first runs of the tables `names`."""
        found: dict[str, list[Measurement]] = {system: [] for system in SYSTEMS}
        for number in range(self._tries):
            for system in SYSTEMS:
                progress(f"{case}: {system}, {number + 1} of {self._tries} ...")
                config = self._configuration(system, names)
                found[system].append(self._until_caught_up(case, system, rows, config))
        yield from map(_median, found.values())

    def hand_over(self) -> Measurement:
        """Measure one run from its start in this process to the commit of a row that came after the promotion."""
        progress("hand_over: raycdc ...")
        config = self._configuration("raycdc", ["bench.standard"])
        command = [sys.executable, "-m", "raycdc.cli", "run", str(config), "--json"]
        run = many_tables.LiveRun(command, self._bench.folder / "stderr.log")
        with run.watched():
            first_at, _ = run.wait("the first commit", _has_rows, after=0.0)
            handed_at, started = run.wait("the hand-over", lambda event: bool(_readers(event)), after=0.0)
            began = time.monotonic()
            self.fill(self._bench.rows + _NEW_ROWS)
            seen_at, _ = run.wait("the new rows", _has_rows, after=began)
            run.stop()
        tree: ProcessTree = run.tree
        figures = {
            "first_row_s": round(first_at - run.spawned, 2),
            "handed_over_s": round(handed_at - run.spawned, 2),
            "new_rows_s": round(seen_at - began, 2),
            "readers": len(_readers(started)),
            "peak_pss_mb": round(tree.peak_pss_mb),
        }
        cpu_s = sum(tree.cpu_s(time.monotonic()).values())
        wall_s = round(seen_at - run.spawned, 2)
        return Measurement("hand_over", "raycdc", self._bench.rows, wall_s, round(cpu_s, 2), tree.peak_rss_mb, figures)

    def _until_caught_up(self, case: str, system: str, rows: int, config: Path) -> Measurement:
        command = [sys.executable, "-m", "raycdc.cli", "run", str(config), "--json", "--until", "caught-up"]
        found = self._bench.watched([*command, *SYSTEMS[system][1]])
        commits = [at for at, event in found.of("commit") if event["rows"]]
        by_role = found.tree.cpu_s(found.ended)
        figures = {
            "first_row_s": round(commits[0] - found.spawned, 2),
            "last_row_s": round(commits[-1] - found.spawned, 2),
            "exit_s": round(found.ended - found.spawned, 2),
            "peak_pss_mb": round(found.tree.peak_pss_mb),
            "cpu_by_role_s": {role: round(seconds, 2) for role, seconds in by_role.items()},
        }
        cpu_s = round(sum(by_role.values()), 2)
        return Measurement(case, system, rows, figures["exit_s"], cpu_s, round(found.tree.peak_rss_mb, 1), figures)

    def _configuration(self, system: str, names: Sequence[str]) -> Path:
        """Return a configuration whose run is its first one."""
        folder, server = self._bench.folder / system, self._bench.server
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = folder / "start.toml"
        path.write_text(
            f"""
[pipeline]
name = "start"
state = "{folder / "state"}"
{SYSTEMS[system][0]}
[source]
type = "mysql"
port = {server.port}
user = "{server.cdc_user}"
password = "{server.cdc_password}"
tables = [{", ".join(f'"{name}"' for name in names)}]
[sink]
type = "delta"
path = "{folder / "lake"}"
"""
        )
        return path


def _has_rows(event: dict[str, Any]) -> bool:
    return event["event"] == "commit" and bool(event["rows"])


def _readers(event: dict[str, Any]) -> list[int]:
    readers: list[int] = event["pids"]["readers"] if event["event"] == "started" else []
    return readers


def _median(tries: list[Measurement]) -> Measurement:
    """Return the run with the median end, and the ends of all runs."""
    ordered = sorted(tries, key=lambda one: one.wall_s)
    found = ordered[len(ordered) // 2]
    found.more["exits_s"] = [one.wall_s for one in tries]
    return found
