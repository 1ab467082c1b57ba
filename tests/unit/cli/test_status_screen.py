"""A pipeline's status on a screen as narrow as terminals are by habit."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from raycdc.cli.screens.status_screen import screen
from raycdc.observe.status import CommitReport
from raycdc.observe.status.model import (
    VERSION,
    BackfillReport,
    JobReport,
    ReaderReport,
    ResumingReport,
    RunReport,
    SnapshotReport,
    Status,
    TableReport,
)

NOW_MS = 1_800_000_000_000
STREAM = TableReport("shop.orders", "stream", ("shop.orders",), rows=300_000, lag_ms=514)
STREAM = replace(STREAM, last_commit=CommitReport(2, NOW_MS - 11_800, 299_999))


def shown(*tables: TableReport, width: int = 80, job: JobReport | None = None) -> list[str]:
    run = RunReport("db7", 42, NOW_MS - 60_000, "running", local=True)
    said = Status(
        VERSION,
        NOW_MS,
        "shop",
        running=True,
        said="",
        sink="delta ./lake",
        run=run,
        job=job or JobReport(),
        tables=tables,
    )
    output = StringIO()
    Console(width=width, file=output).print(screen(said))
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_names_are_whole_on_eighty_columns() -> None:
    lines = shown(STREAM, replace(STREAM, table="shop.people", targets=("shop.people",)))
    assert lines[2].split() == ["table", "phase", "rows", "behind", "last", "commit"]
    assert lines[3] == "shop.orders  stream  300,000  514 ms  11.8 s ago, 299,999 rows"
    assert lines[4].startswith("shop.people  stream")


def test_a_table_that_goes_on_says_why_it_gets_no_further() -> None:
    resuming = ResumingReport(4, "The connection was lost.", NOW_MS + 250_000)
    lines = shown(replace(STREAM, phase="resuming", resuming=resuming), width=200)
    [told] = [line for line in lines if "goes on as soon as" in line]
    assert told.strip() == (
        "shop.orders goes on as soon as the log can be read (try 4, for 4 min more, then it is parked): The connection "
        "was lost."
    )


def test_columns_are_there_while_a_table_needs_them() -> None:
    reading = replace(STREAM, phase="snapshot", snapshot=SnapshotReport(3, 12, 75_000, 300_000, percent=25.0))
    (head, row) = shown(replace(reading, targets=("lake.orders",), last_commit=None), width=120)[2:4]
    assert head.split() == ["table", "phase", "rows", "done", "behind", "target"]
    assert "75,000 of about 300,000  25 % (3/12)" in row
    assert row.endswith("lake.orders")


def test_a_backfill_is_told_beside_its_table() -> None:
    begun = replace(STREAM, backfill=BackfillReport(0, None, 0))
    assert "stream, backfill" in shown(begun, width=120)[3]
    reading = replace(STREAM, backfill=BackfillReport(3, 12, 1_250, percent=25.0, eta_seconds=90))
    (head, row, *_, note) = shown(reading, width=120)[2:]
    assert head.split() == ["table", "phase", "rows", "done", "left", "behind", "last", "commit"]
    assert "stream, backfill  300,000  25 % (3/12)" in row
    assert note == "shop.orders: 1,250 rows read again by a backfill"


def test_readers_are_told_by_machine_where_they_are_on_several() -> None:
    readers = tuple(
        ReaderReport(n, "", 10 + n, reads_log=False, chunks=0, partitions=0, open_bytes=0) for n in range(3)
    )
    assert "3 readers" in shown(STREAM, job=JobReport(readers=readers, nodes={"state": 3}))[1].split(", ")
    spread = shown(STREAM, job=JobReport(readers=readers, nodes={"state": 1, "db8": 2}))
    assert "3 readers (1 on the driver's machine, 2 on db8)" in "\n".join(spread)
