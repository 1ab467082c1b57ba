"""The common part of all benchmarks: measurements, child processes that measure themselves, ratios, progress.

Each system runs in a process of its own, which does its imports and warm-up first, then calls `measured` around the
work; CPU time is the process's (user and system, all threads, and the children it waited for).
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line; `rows` None means the benchmark's default."""

    cases: tuple[str, ...]
    rows: int | None
    server: str
    #: The number of measurements of each system, of which the best counts.
    tries: int = 3


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurement of one system on one case.

    `rows` are source rows (an update is one); `more` has figures of this benchmark only.
    """

    case: str
    system: str
    rows: int
    wall_s: float
    cpu_s: float
    peak_rss_mb: float
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def rows_per_cpu_s(self) -> int:
        return round(self.rows / max(self.cpu_s, 1e-6))

    def to_json(self) -> dict[str, Any]:
        """Return all figures, with the derived ones."""
        figures = asdict(self) | {
            "rows_per_s": round(self.rows / max(self.wall_s, 1e-6)),
            "rows_per_cpu_s": self.rows_per_cpu_s,
        }
        more: dict[str, Any] = figures.pop("more")
        return figures | more

    def summary(self) -> str:
        """Return one line for people."""
        first = f"  first row {self.more['first_row_s']:.2f} s" if "first_row_s" in self.more else ""
        head = f"{self.case:24s} {self.system:20s} {self.rows:>10,d} rows  {self.wall_s:8.2f} s wall"
        if not self.cpu_s:
            # Systems with many processes, also on servers, have no CPU time of their own.
            return f"{head}{first}"
        cpu = f"{self.cpu_s:8.2f} s CPU  {self.rows_per_cpu_s:>12,d} rows/CPU-s"
        return f"{head}  {cpu}  {self.peak_rss_mb:7.0f} MB{first}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that could not be measured, or with unexpected figures; the other cases follow."""

    case: str
    reason: str

    def to_json(self) -> dict[str, str]:
        return {"case": self.case, "reason": self.reason}


def progress(text: str) -> None:
    """Print a line on stderr immediately."""
    print(text, file=sys.stderr, flush=True)


def _cpu_s() -> float:
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usages)


@contextmanager
def measured(figures: dict[str, Any]) -> Iterator[None]:
    """Add ``wall_s``, ``cpu_s`` and ``peak_rss_mb`` of the block to `figures`."""
    cpu, wall = _cpu_s(), time.perf_counter()
    yield
    figures["wall_s"] = round(time.perf_counter() - wall, 4)
    figures["cpu_s"] = round(_cpu_s() - cpu, 4)
    figures["peak_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def in_child(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run ``module:function(**arguments)`` in a fresh process and return the figures it returns."""
    module, _, name = function.partition(":")
    code = (
        "import importlib, json, sys; "
        f"print(json.dumps(getattr(importlib.import_module({module!r}), {name!r})(**json.loads(sys.argv[1]))))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)], check=True, stdout=subprocess.PIPE, text=True
    )
    figures: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return figures


def measure(case: str, system: str, function: str, arguments: dict[str, Any]) -> Measurement:
    """Call `in_child` and return its figures as a `Measurement`.

    They include at least rows and what `measured` adds.
    """
    progress(f"{case}: measuring {system} ...")
    figures = in_child(function, arguments)
    known = {name: figures.pop(name) for name in ("rows", "wall_s", "cpu_s", "peak_rss_mb")}
    return Measurement(case=case, system=system, **known, more=figures)


def best_of(times: int, once: Callable[[], Measurement]) -> Measurement:
    """Return the run with the least CPU time, because other load on the machine only ever adds to it."""
    return min((once() for _ in range(times)), key=lambda m: m.cpu_s)


def ratios(measurements: Iterable[Measurement], *, ours: str = "raycdc") -> list[dict[str, Any]]:
    """Return for each case how many times as fast as each other system raycdc is."""
    known = list(measurements)
    lines: list[dict[str, Any]] = []
    for mine in (m for m in known if m.system == ours):
        for other in (m for m in known if m.case == mine.case and m.system != ours):
            per_cpu = mine.rows_per_cpu_s / max(other.rows_per_cpu_s, 1)
            wall = (mine.rows / max(mine.wall_s, 1e-6)) / max(other.rows / max(other.wall_s, 1e-6), 1e-6)
            lines.append(
                {
                    "case": mine.case,
                    "system": other.system,
                    "rows_per_cpu_s": round(per_cpu, 2),
                    "rows_per_s": round(wall, 2),
                }
            )
    return lines


def machine() -> dict[str, Any]:
    """Return the description of the machine."""
    return {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 2), "python": platform.python_version()}
