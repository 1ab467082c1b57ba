"""``python -m tests.fuzz.binlog [--mutations N] [--seed S] [--only FILE:SEED]``: real binlogs, damaged at random.

Bytes are flipped, cut out, repeated, and parts of other files put in. Whatever comes of it must be rows as they were,
then the end or an error with file and position: no other exception, no crash, no second of CPU time, no memory. Where
events have checksums, the rows are exactly the first of the undamaged file's.

Each mutation runs in a worker process and has a number; a worker that dies leaves it behind, so that it can be
repeated alone with ``--only``.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import random
import resource
import signal
import sys
import time
from dataclasses import dataclass
from functools import cache
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem, FormatDescription
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.wire.file import BinlogFile
from raycdc.errors import DataError

CORPUS = Path(__file__).with_name("corpus")
#: CPU seconds that one damaged file may take.
CPU_S_MAX = 1.0
#: Address space of a worker above what it starts with.
MEMORY_MAX = 1 << 30
#: Wall-clock seconds after which a worker that does not answer is taken for hanging.
HANG_S = 60

Row = tuple[Any, ...]


class FuzzError(Exception):
    """A mutation that broke a promise; the text says which one."""


def mutate(data: bytes, number: int, others: list[bytes]) -> bytes:
    """Mutation `number` of a file; the head of 4 bytes stays."""
    source = random.Random(number)
    out = bytearray(data)
    for _ in range(source.choice([1, 1, 1, 2, 3])):
        if len(out) <= 4:
            break  # An earlier change has left nothing to damage.
        at = source.randrange(4, len(out)) if len(out) > 8 else 4
        size = source.choice([1, 2, 4, 19, 50, source.randrange(1, 2000)])
        match source.randrange(9):
            case 0 | 1:
                out[at] ^= 1 << source.randrange(8)
            case 2:
                out[at] = source.choice([0, 255, 127, 128, 251, 252, 253, 254])
            case 3:
                value = source.choice([0, 2**31 - 1, 2**32 - 1, len(out), 19])
                out[at : at + 4] = value.to_bytes(4, "little")
            case 4:
                del out[at : at + size]
            case 5:
                del out[at:]
            case 6:
                out[at:at] = out[at : at + size]
            case 7:
                events = event_bounds(bytes(out))
                if events:
                    first, last = sorted((source.choice(events), source.choice(events)))
                    piece = out[first[0] : last[1]]
                    if source.random() < 0.5:
                        out[last[1] : last[1]] = piece
                    else:
                        del out[first[0] : last[1]]
            case _:
                other = source.choice(others)
                start = source.randrange(4, len(other))
                out[at : at + size] = other[start : start + size]
    return bytes(out)


def event_bounds(data: bytes) -> list[tuple[int, int]]:
    """Start and end of the events, as far as their lengths make sense."""
    found, at = [], 4
    while at + 19 <= len(data):
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        if length < 19 or at + length > len(data):
            break
        found.append((at, at + length))
        at += length
    return found


def rows_of(data: bytes, *, mariadb: bool, whole: bool) -> tuple[list[Row], str]:
    """(rows in log order, the error's text or ""); lets through whatever is no `DataError`.

    `whole`: values are what a server wrote, so batches must be valid to the last digit.
    """
    rows: list[tuple[int, Row]] = []
    decoder = BinlogDecoder(
        MapSchemas.from_the_log(),
        wanted=lambda _: True,
        start=BinlogOffset("binlog.000001", 4),
        log=LogKind(mariadb=mariadb, whole_file=True),
    )
    file = BinlogFile("binlog.000001", np.frombuffer(data, np.uint8), FormatDescription("", 0))
    try:
        for piece in file.pieces():
            for item in decoder.items(piece):
                if isinstance(item, BinlogRowsItem):
                    item.batch.validate(full=whole)
                    rows += numbered(item)
    except DataError as error:
        text = str(error)
        if not text.startswith("binlog.00000"):
            raise FuzzError(f"the error names no position: {text}") from error
        return [row for _, row in sorted(rows)], text
    return [row for _, row in sorted(rows)], ""


def numbered(item: BinlogRowsItem) -> list[tuple[int, Row]]:
    """A batch's rows with their number; temporal values as numbers, as damaged ones may be out of Python's range."""
    batch = item.batch
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in ("_seq", "_pos"):
            continue
        temporal = pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)
        numbers = pa.int32() if temporal and column.type.bit_width == 32 else pa.int64()
        columns.append((column.view(numbers) if temporal else column).to_pylist())
    values = zip(*columns, strict=True)
    return [(seq, (str(item.table), repr(row))) for seq, row in zip(batch["_seq"].to_pylist(), values, strict=True)]


@dataclass(frozen=True, slots=True)
class Original:
    """An undamaged file and its rows."""

    name: str
    data: bytes
    rows: list[Row]
    has_checksums: bool

    def check(self, number: int, others: list[bytes]) -> None:
        """Raise `FuzzError` when mutation `number` breaks a promise."""
        damaged = mutate(self.data, number, others)
        started = time.process_time()
        rows, _ = rows_of(damaged, mariadb="mariadb" in self.name, whole=self.has_checksums)
        took = time.process_time() - started
        if took > CPU_S_MAX:
            raise FuzzError(f"{took:.1f} s of CPU time")
        if self.has_checksums and rows != self.rows[: len(rows)]:
            raise FuzzError("rows that the undamaged file does not have there")


@cache
def corpus() -> list[Original]:
    """Every file of the corpus, decoded."""
    found = []
    for path in sorted(CORPUS.iterdir()):
        data = path.read_bytes()
        rows, error = rows_of(data, mariadb="mariadb" in path.name, whole=True)
        assert not error, f"{path.name}: {error}"
        assert len(rows) > 10, path.name
        found.append(Original(path.name, data, rows, "crc32" in path.name))
    return found


def check_one(mutation: int) -> None:
    """Run one mutation; files take turns."""
    files = corpus()
    files[mutation % len(files)].check(mutation, [file.data for file in files])


def _work(first: int, last: int, at: Synchronized[int], report: Any) -> None:
    faulthandler.enable()
    corpus()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_MAX, used + MEMORY_MAX))
    for mutation in range(first, last):
        at.value = mutation
        try:
            check_one(mutation)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the finding
            report.put((mutation, f"{type(error).__name__}: {error}"))
            return
    at.value = last
    report.put((last, ""))


def run(first: int, count: int, *, workers: int, seconds: float | None = None) -> tuple[int, list[str]]:
    """Run mutations until done, out of time, or something is found: (how many, the findings)."""
    corpus()
    context = multiprocessing.get_context("fork")
    report = context.Queue()
    share = (count + workers - 1) // workers
    jobs = []
    for number in range(workers):
        begin = first + number * share
        at: Any = context.Value("q", begin)
        process = context.Process(
            target=_work, args=(begin, min(begin + share, first + count), at, report), daemon=True
        )
        process.start()
        jobs.append((process, at, begin))
    started = time.monotonic()
    seen = dict.fromkeys(range(workers), (-1, started))
    findings: list[str] = []
    while any(process.is_alive() for process, _, _ in jobs) and not findings:
        jobs[0][0].join(0.2)
        now = time.monotonic()
        for number, (process, at, _) in enumerate(jobs):
            if at.value != seen[number][0]:
                seen[number] = (at.value, now)
            elif process.is_alive() and now - seen[number][1] > HANG_S:
                findings.append(f"mutation {at.value} hangs")
        if seconds is not None and now - started > seconds:
            break
    for process, at, _ in jobs:
        if process.is_alive():
            process.kill()
        process.join()
        if process.exitcode not in (0, -signal.SIGKILL):
            findings.append(f"mutation {at.value} ended the process (exit code {process.exitcode})")
    while not report.empty():
        mutation, text = report.get()
        if text:
            findings.append(f"mutation {mutation}: {text}")
    done = sum(at.value - begin for _, at, begin in jobs)
    return done, findings


def main(arguments: list[str]) -> int:
    """Run and say what was found; 1 when something was."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.binlog", description=__doc__)
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first mutation")
    parser.add_argument("--seconds", type=float, default=None, help="stop after this time")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, default=None, help="run this mutation here, with its traceback")
    chosen = parser.parse_args(arguments)
    if chosen.only is not None:
        check_one(chosen.only)
        return 0
    started = time.monotonic()
    done, findings = run(chosen.seed, chosen.mutations, workers=chosen.workers, seconds=chosen.seconds)
    took = time.monotonic() - started
    sys.stdout.write(f"{done} mutations of {len(corpus())} files in {took:.0f} s, {len(findings)} findings\n")
    sys.stderr.writelines(f"{finding}\n" for finding in findings)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
