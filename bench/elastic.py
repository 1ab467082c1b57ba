"""Readers on a Ray cluster that scales: 1 → 4 → 1 nodes under one run, and what each node read of it.

| case | reads | grows because | shrinks because |
|---|---|---|---|
| ``chunks`` | a table of MariaDB, by chunks, at a pace | chunks wait | only the log is left |
| ``partitions`` | a topic of eight partitions that somebody writes to | nothing is known at the start | no backlog |
| ``beside`` | two tables, in two pipelines on the same cluster | chunks wait | only the logs are left |
| ``datagen`` | a generated table, by chunks, slowly by each reader | chunks wait | only the log is left |
| ``autoscaler_v1`` | as ``chunks``, under the older one of Ray's autoscalers | chunks wait | only the log is left |

The cluster is Ray's own autoscaler (v2, but for the last case) over raylets of this machine
(`tests.support.ray_cluster`); each node has one CPU, and each reader needs one. Rows per node are counted from
manifests. ``rows`` are those of the source; ``lost`` and ``repeated`` are counted in the sink's files. Times are those
of this machine, which starts the nodes itself, in seconds since the jobs were started; ``reader_after_its_node_s`` and
the time from ``work_done_after_s`` to ``given_back_after_s`` are what raycdc and the autoscaler take to react.

Each case is a process (`bench.elastic_cases`). One that fails is told, and the others follow; so is one whose figures
are not as they must be: no row lost or repeated, at least `SHARE_LEAST` of the rows for each node that came, and all
of them given back.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from bench.measure import Failure, Measurement, Options, progress

CASES = ("chunks", "partitions", "beside", "datagen", "autoscaler_v1")
SERVER = "mariadb and kafka"

ROWS = 30_000
SHARE_LEAST = 0.15
#: The approximate seconds of each case on two cores, for the remaining time that is shown.
EXPECTED_S = {"chunks": 190.0, "partitions": 310.0, "beside": 270.0, "datagen": 210.0, "autoscaler_v1": 190.0}
#: Every step within a case has its own limit, so this limit only ends a case that hangs.
LIMIT_S = 3600.0
#: Seconds for servers, raylets and jobs to end after Ctrl-C.
END_S = 120.0


def run(options: Options) -> Iterator[Measurement | Failure]:
    """Run each case on its own cluster."""
    begun_s, expected_s = time.monotonic(), 0.0
    for number, case in enumerate(options.cases, start=1):
        slow = (time.monotonic() - begun_s) / expected_s if expected_s else 1.0
        left_s = slow * sum(EXPECTED_S[later] for later in options.cases[number - 1 :])
        place = f"{number} of {len(options.cases)}"
        progress(f"{case} ({place}): starting a cluster and a server; about {left_s / 60:.0f} min to the end of all")
        told = _in_own_process(case, options.rows or ROWS)
        expected_s += EXPECTED_S[case]
        if isinstance(told, str):
            yield Failure(case, told)
            continue
        rows, wall_s = told.pop("rows"), told.pop("wall_s")
        measurement = Measurement(case, "raycdc", rows, wall_s, 0.0, 0.0, told)
        yield measurement
        _tell(measurement)
        if wrong := wrong_with(told):
            yield Failure(case, wrong)


def wrong_with(figures: dict[str, Any]) -> str:
    """Return what differs from the expected figures, in words; empty if nothing does."""
    wrong = [f"{figures[name]} rows {name}" for name in ("lost", "repeated") if figures[name]]
    shares = _new_shares(figures)
    wrong += [f"{node} read {share:.1%} of the rows after it came" for node, share in shares if share < SHARE_LEAST]
    if not figures["given_back"]:
        wrong.append(f"the nodes were not given back: {figures['nodes']}")
    return ", ".join(wrong)


def report(measurements: Sequence[Measurement]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the lines of a table for people."""
    head = ["case", "rows", "lost", "repeated", "rows/s by readers", "all nodes read", "reader after its node"]
    head += ["share of each new node", "work done", "all given back"]
    lines = []
    for measurement in measurements:
        figures = measurement.more
        rates = ", ".join(f"{readers}: {rate:,}" for readers, rate in figures["rows_per_s_by_readers"].items())
        line = [measurement.case, f"{measurement.rows:,}", str(figures["lost"]), str(figures["repeated"]), rates]
        line += [f"{figures['all_nodes_read_after_s']:.0f} s"]
        line += [", ".join(f"{seconds:.0f}" for seconds in figures["reader_after_its_node_s"]) + " s"]
        line += [", ".join(f"{share:.0%}" for _, share in _new_shares(figures))]
        line += [f"{figures['work_done_after_s']:.0f} s", f"{figures['given_back_after_s']:.0f} s"]
        lines.append(line)
    return head, lines


def _new_shares(figures: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the fractions by new node, without the head, which has the driver and existed before."""
    return [(node, share) for node, share in figures["share_of_rows_after_it_came"].items() if node != "state"]


def _tell(measurement: Measurement) -> None:
    head, (line,) = report([measurement])
    for name, value in zip(head, line, strict=True):
        progress(f"    {name}: {value}")
    for reason in measurement.more["reasons"]:
        progress(f"    reason: {reason}")


def _in_own_process(case: str, rows: int) -> dict[str, Any] | str:
    """Return the figures of a case, or the error that ended it."""
    # The process has its own session: Ctrl-C reaches it once, from here, and its end is waited for.
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.elastic_cases", case, str(rows)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"it did not end within {LIMIT_S:.0f} s"
    finally:
        _end(process)
    try:
        document = json.loads(told.rstrip().rpartition("\n")[2])
    except json.JSONDecodeError:
        return f"its process ended with {process.returncode}, without figures"
    return str(document["failed"]) if "failed" in document else dict(document["figures"])


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            _kill(process.pid)
            process.wait()


def _kill(pid: int) -> None:
    """End the process and all processes that it has started."""
    from tests.support.ray_cluster import with_children

    for each in with_children([pid]):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
