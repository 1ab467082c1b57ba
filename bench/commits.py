"""What thousands of commits leave behind: a pipeline without a pause, an epoch for about every transaction, and how
much the next commit, a read of the table, the files and the process have grown by then.

| case | what runs |
|---|---|
| ``delta`` | generated changes of one table, `sink.optimize` every minute, ``raycdc run --local`` |
| ``iceberg`` | the same into an Iceberg table in a folder, which keeps 500 snapshots by default |
| ``iceberg_all`` | without upkeep, with all snapshots (`keep_snapshots = 0`), which costs more and more: a tenth |

The log of the Delta table keeps three minutes, in which as many commits are made as by default in an hour, the least
that `vacuum` keeps. Each case makes `--rows` commits (10,000). The figures are of the first fiftieth and of ten parts
of them: milliseconds of a commit (median, by the run's own events), of CPU of the process for each epoch, its memory,
files and bytes of the table's metadata and of the state, and how long a fresh reader takes for the whole table.
``grown`` has the last part in times of the first one: the aim is 1.5 at most for a commit and a read.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.measure import Failure, Measurement, Options, progress
from bench.processes import process_cpu_s

CASES = ("delta", "iceberg", "iceberg_all")
SERVER = "datagen"
#: The limit of the aim: figures of the last part divided by those of the first.
GROWN_MAX = 1.5

_COMMITS = 10_000
_PARTS = 10
#: The first part is a fiftieth of the commits, before anything has accumulated.
_FIRST = 50
#: The fraction of the commits that a case makes.
_SHARES = {"iceberg_all": 10}
_ROWS = 2_000
#: Transactions a second: about as many as each case can commit one by one on two cores. Where that is too many, epochs
#: have several, each commit has more to do, and figures are of that: `rows_per_commit` says so.
_PER_SECOND = {"delta": 20, "iceberg": 8, "iceberg_all": 8}
_UPKEEP = {
    "delta": 'optimize = { every = "60s", target_file = "16MiB", vacuum = "1h" }',
    "iceberg": 'optimize = { every = "60s", target_file = "16MiB" }',
    "iceberg_all": "keep_snapshots = 0",
}
#: Twenty commits a second are twenty times what a table gets at most by default (`epochs_per_hour`), so its log keeps a
#: twentieth of an hour.
_LAYOUT = {
    "delta": """
[[transform]]
table = "shop.t"
table_options = { "delta.logRetentionDuration" = "interval 3 minutes" }
"""
}
#: The program of a fresh process that reads the table and prints its own seconds and CPU seconds.
_READ = """
import json, os, sys, time
if sys.argv[1] == "delta":
    from deltalake import DeltaTable
    def read(): return DeltaTable(sys.argv[2]).to_pyarrow_table().num_rows
else:
    from pathlib import Path
    from pyiceberg.table import StaticTable
    def read():
        number = Path(sys.argv[2], "metadata", "version-hint.text").read_text()
        metadata = Path(sys.argv[2], "metadata", "v" + number + ".metadata.json")
        return StaticTable.from_metadata(str(metadata)).scan().to_arrow().num_rows
found = []
for left in reversed(range(60)):
    cpu, began = time.process_time(), time.perf_counter()
    try:
        rows = read()
    except FileNotFoundError:
        # The run goes on, and removes old metadata meanwhile.
        if not left:
            raise
        continue
    found.append((time.perf_counter() - began, time.process_time() - cpu))
    if len(found) == 3:
        break
seconds, cpu_seconds = map(min, zip(*found))
print(json.dumps({"rows": rows, "read_s": seconds, "read_cpu_s": cpu_seconds}), flush=True)
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Part:
    """The figures at the end of a part of the commits."""

    commits: int
    rows_per_commit: float
    commit_ms: float
    staging_ms: float
    cpu_ms_per_epoch: float
    rss_mb: float
    table_files: int
    metadata_mb: float
    state_files: int
    state_mb: float
    read_ms: float
    read_cpu_ms: float


def run(options: Options) -> Iterator[Measurement | Failure]:
    """Run each case in its own folder."""
    for case in options.cases:
        with tempfile.TemporaryDirectory(prefix="raycdc-bench-") as folder:
            try:
                yield _case(case, Path(folder), (options.rows or _COMMITS) // _SHARES.get(case, 1))
            except Exception as cause:  # noqa: BLE001 - the other cases are played
                yield Failure(case, f"{type(cause).__name__}: {cause}")


def conclusions(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Return whether the aims were reached."""
    goals = {}
    for measurement in measurements:
        for name, grown in measurement.more["grown"].items():
            if name in ("commit_ms", "read_ms"):
                goals[f"{measurement.case}: {name}"] = {"aim": GROWN_MAX, "reached": grown <= GROWN_MAX, "grown": grown}
    return {"goals": goals}


def report(measurements: Sequence[Measurement]) -> tuple[list[str], list[list[str]]]:
    """Return a line for each part, for people."""
    names = list(Part.__slots__)
    lines = [[m.case, *(f"{part[name]:,.1f}" for name in names)] for m in measurements for part in m.more["parts"]]
    return ["case", *names], lines


def _case(case: str, folder: Path, commits: int) -> Measurement:
    config = folder / "commits.toml"
    config.write_text(
        f"""
[pipeline]
name = "commits"
epoch_interval = "10ms"
[source]
type = "datagen"
tables = ["shop.t"]
rows = {_ROWS}
new_rows = {_ROWS}
per_second = {_PER_SECOND[case]}
[sink]
type = "{_kind(case)}"
path = "./lake"
{_UPKEEP.get(case, "")}
{_LAYOUT.get(case, "")}"""
    )
    command = [sys.executable, "-m", "raycdc.cli", "run", str(config), "--local", "--json"]
    began_s = time.monotonic()
    with (folder / "errors.log").open("w") as errors:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        parts = list(_parts(case, folder, process, commits))
        cpu_s = process_cpu_s(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
    first, last = parts[0], parts[-1]
    names = [name for name in Part.__slots__ if name not in ("commits", "rows_per_commit")]
    grown = {name: round(getattr(last, name) / max(getattr(first, name), 1e-9), 2) for name in names}
    more = {"grown": grown, "parts": [asdict(part) for part in parts]}
    return Measurement(case, "raycdc --local", commits, time.monotonic() - began_s, cpu_s, last.rss_mb, more)


def _kind(case: str) -> str:
    return case.partition("_")[0]


def _parts(case: str, folder: Path, process: subprocess.Popen[str], commits: int) -> Iterator[Part]:
    """Yield the parts of the commits as they come."""
    assert process.stdout is not None
    ends = sorted({max(1, commits // _FIRST), *(max(1, commits * part // _PARTS) for part in range(1, _PARTS + 1))})
    commit_ms: list[float] = []
    staging_ms: list[float] = []
    rows: list[float] = []
    done = 0
    cpu_s = process_cpu_s(process.pid)
    for line in process.stdout:
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") != "commit":
            continue
        done += 1
        if done == 1:
            cpu_s = process_cpu_s(process.pid)  # The start is not counted.
        commit_ms.append(event["commit_s"] * 1000)
        staging_ms.append(event["staging_s"] * 1000)
        rows.append(event["rows"])
        if done < ends[0]:
            continue
        del ends[0]
        cpu_ms = (process_cpu_s(process.pid) - cpu_s) * 1000 / len(commit_ms)
        medians = [round(statistics.median(values), 2) for values in (rows, commit_ms, staging_ms)]
        part = _part(case, folder, process.pid, (done, *medians, round(cpu_ms, 2)))
        progress(f"{case}: {part}")
        yield part
        commit_ms, staging_ms, rows, cpu_s = [], [], [], process_cpu_s(process.pid)
        if not ends:
            return
    raise RuntimeError(f"the run ended: {(folder / 'errors.log').read_text()[-1000:]}")


def _part(case: str, folder: Path, pid: int, of_commits: tuple[int, float, float, float, float]) -> Part:
    """Return the figures of a part; `of_commits` are its first figures."""
    table = folder / "lake" / "shop" / "t"
    table_files, _ = _size(table)
    _, metadata = _size(table / ("_delta_log" if _kind(case) == "delta" else "metadata"))
    state_files, state = _size(folder / "state")
    code = [sys.executable, "-c", _READ, _kind(case), str(table)]
    found = json.loads(subprocess.run(code, check=True, stdout=subprocess.PIPE, text=True).stdout)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Part(
        *of_commits,
        round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
        table_files,
        round(metadata / 2**20, 2),
        state_files,
        round(state / 2**20, 2),
        round(found["read_s"] * 1000, 1),
        round(found["read_cpu_s"] * 1000, 1),
    )


def _size(folder: Path) -> tuple[int, int]:
    """Return the number of files below the folder, and their bytes. Files that are deleted meanwhile do not count."""
    sizes = []
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes.append(Path(parent, name).stat().st_size)
    return len(sizes), sum(sizes)
