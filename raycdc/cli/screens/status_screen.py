"""Shows a pipeline's status: a few lines about the whole, a line for each table, and problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raycdc.cli.screens.formatting import PHASE_ORDER, PHASE_STYLES, counted, duration_text, size_text
from raycdc.core.terminal_text import printable, printable_text
from raycdc.model.engines import EngineRows
from raycdc.observe.status import CommitReport, RunMessage
from raycdc.observe.status.model import EndReport, RunCounts, RunReport, Status, TableReport
from raycdc.state.manifests.manifest import STATE_NODE

#: The number of newest warnings and errors shown.
NOTES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Column:
    """A column that is shown if any table has a value in it."""

    name: str
    justify: Literal["left", "right"] = "right"
    folds: bool = False


_COLUMNS = (
    _Column("table", "left", folds=True),
    _Column("phase", "left", folds=True),
    _Column("rows"),
    _Column("done"),
    _Column("rows/s"),
    _Column("left"),
    _Column("behind"),
    _Column("last commit", "left"),
    _Column("target", "left", folds=True),
)


def screen(status: Status, *, height: int | None = None) -> RenderableType:
    """Return the whole screen; tables that do not fit into `height` lines are only counted."""
    head = [Text(printable_text(line, indent="    ")) for line in _headlines(status)]
    notes = [Text(line, style="yellow") for line in _notes(status)]
    room = len(status.tables) if height is None else max(3, height - len(head) - len(notes) - 3)
    return Group(*head, *_tables(status, room), *notes)


def _headlines(status: Status) -> Iterator[str]:
    run, job = status.run, status.job
    sink = f" into {status.sink}" if status.sink else ""
    if run is None:
        yield f"{status.pipeline}: {status.said}."
        if (end := status.last_end) is not None:
            yield f"{_end(end, status.at_ms)}."
    else:
        local = ", --local" if run.local else ""
        since = duration_text(status.at_ms - run.started_ms)
        yield f"{status.pipeline}{sink}: {run.step} since {since} (process {run.pid} on {run.host}{local})"
    if run is not None and (engines := _engines(run, job.counts)):
        yield engines
    yield ", ".join(_whole(status))
    if (bottleneck := job.bottleneck) is not None:
        yield f"most time goes to {bottleneck.stage} ({100 * bottleneck.share:.0f} %): {bottleneck.why}"


def _engines(run: RunReport, counts: RunCounts | None) -> str:
    """Return the engines that read and write now, and the number of rows of each."""
    names = {"driver": "this process", "ray": "Ray", "spark": "Spark"}
    now = [f"{names[by]} {verb}" for by, verb in ((run.read_by, "reads"), (run.written_by, "writes")) if by in names]
    if run.written_by == "spark":
        now[-1] += " epochs of spark.from_bytes and more"
    if counts is None:
        return ", ".join(now)
    done = EngineRows.from_json({"rows_read_by": counts.rows_read_by, "rows_written_by": counts.rows_written_by})
    return "; ".join(part for part in (", ".join(now), str(done)) if part)


def _end(end: EndReport, now_ms: int) -> str:
    if end.at_ms is None:
        return "its last run did not say how it ended: it was killed, or its machine went"
    ago = f"its last run ended {duration_text(now_ms - end.at_ms)} ago"
    if not end.exit_code:
        return f"{ago}, in order"
    return f"{ago} with exit code {end.exit_code}{f': {end.text}' if end.text else ''}".rstrip(".")


def _whole(status: Status) -> Iterator[str]:
    job, backlog = status.job, status.job.backlog
    if job.nodes:
        nodes = ", ".join(f"{count} on {_machine(node)}" for node, count in job.nodes.items() if node)
        nodes = nodes if set(job.nodes) - {"", STATE_NODE} else ""
        yield f"{counted(len(job.readers), 'reader')}{f' ({nodes})' if nodes else ''}"
    if job.chunks_waiting:
        yield f"{counted(job.chunks_waiting, 'chunk')} to read at least"
    if job.rows_per_second is not None:
        yield f"{job.rows_per_second:,.0f} rows/s"
    if job.lag_ms is not None:
        yield f"{duration_text(job.lag_ms)} behind"
    if backlog.records is not None:
        yield f"{backlog.records:,} messages unread"
    if backlog.bytes is not None:
        yield f"{size_text(backlog.bytes)} unread"
    if backlog.seconds is not None:
        yield f"{duration_text(1000 * backlog.seconds)} to read them"
    if backlog.retention_headroom_seconds is not None:
        yield f"log retention: {duration_text(1000 * backlog.retention_headroom_seconds)} left"
    if backlog.kept_until_deleted:
        yield "log retention: until the log is deleted"
    yield (
        "nothing committed yet" if job.last_commit is None else f"last commit {_commit(job.last_commit, status.at_ms)}"
    )


def _tables(status: Status, room: int) -> Iterator[RenderableType]:
    if not status.tables:
        return
    tables = sorted(status.tables, key=lambda each: (PHASE_ORDER.get(each.phase, 9), -(each.lag_ms or 0), each.table))
    cells = [dict(_cells(table, status)) for table in tables[:room]]
    view = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    # Empty columns would take space from the others.
    columns = [column for column in _COLUMNS if any(column.name in row for row in cells)]
    for column in columns:
        view.add_column(column.name, justify=column.justify, no_wrap=not column.folds, overflow="fold")
    for row in cells:
        view.add_row(*(row.get(column.name, "") for column in columns))
    yield view
    if len(tables) > room:
        yield Text(f"… and {counted(len(tables) - room, 'more table')}", style="dim")


def _cells(table: TableReport, status: Status) -> Iterator[tuple[str, Text]]:
    """Yield the values of a table by column."""
    snapshot = table.snapshot
    yield "table", Text(printable(table.table))
    asked = f" ({table.asked} asked)" if table.asked else ""
    suffix = ", backfill" if table.backfill is not None else ""
    yield "phase", Text(table.phase + suffix + asked, style=PHASE_STYLES.get(table.phase, "dim"))
    if table.phase == "snapshot" and snapshot is not None:
        about = "" if snapshot.rows_estimated is None else f" of about {snapshot.rows_estimated:,}"
        if snapshot.rows_done is not None:
            yield "rows", Text(f"{snapshot.rows_done:,}{about}")
        chunks = f" ({snapshot.chunks_done}/{snapshot.chunks_total})" if snapshot.chunks_total else ""
        if snapshot.percent is not None or chunks:
            yield "done", Text(f"{'' if snapshot.percent is None else f'{snapshot.percent:.0f} %'}{chunks}".strip())
    elif table.rows is not None:
        yield "rows", Text(f"{table.rows:,}")
    if (backfill := table.backfill) is not None:
        chunks = f" ({backfill.chunks_done}/{backfill.chunks_total})" if backfill.chunks_total else ""
        percent = "" if backfill.percent is None else f"{backfill.percent:.0f} %"
        yield "done", Text(f"{percent}{chunks}")
        if backfill.eta_seconds is not None:
            yield "left", Text(duration_text(1000 * backfill.eta_seconds))
    if table.rows_per_second:
        yield "rows/s", Text(f"{table.rows_per_second:,.0f}")
    if snapshot is not None and snapshot.eta_seconds is not None:
        yield "left", Text(duration_text(1000 * snapshot.eta_seconds))
    if table.lag_ms is not None:
        yield "behind", Text(duration_text(table.lag_ms))
    if (commit := table.last_commit) is not None:
        yield "last commit", Text(f"{_ago(commit, status.at_ms)}{_rows(commit)}")
    if table.targets not in ((), (table.table,)):
        yield "target", Text(printable(", ".join(table.targets)))


def _notes(status: Status) -> Iterator[str]:
    for table in status.tables:
        if (parked := table.parked) is not None:
            position = f" at {parked.position.partition('   ')[0]}" if parked.position else ""
            again = "begins again with a new snapshot" if parked.again else f"is {table.phase}{position}"
            yield _indented(f"{table.table} {again}: {parked.reason}")
        if (outage := table.resuming) is not None:
            left = duration_text(max(0, outage.until_ms - status.at_ms))
            tried = f"try {outage.tries}, for {left} more, then it is parked"
            yield _indented(f"{table.table} goes on as soon as the log can be read ({tried}): {outage.error}")
        if table.backfill is not None:
            yield _indented(f"{table.table}: {counted(table.backfill.rows_done, 'row')} read again by a backfill")
        if table.rows_left_out:
            yield _indented(f"{table.table}: {counted(table.rows_left_out, 'row')} left out")
        if table.values_lost:
            yield _indented(f"{table.table}: {counted(table.values_lost, 'value')} lost (invalid dates or text)")
    for kind, notes in (("warning", status.job.warnings), ("error", status.job.errors)):
        if len(notes) > NOTES_SHOWN:
            yield f"… {counted(len(notes) - NOTES_SHOWN, f'older {kind}')}"
        for note in notes[-NOTES_SHOWN:]:
            yield _indented(f"{kind} {_time(note)}: {note.text}")


def _machine(node: str) -> str:
    """Return the machine of a reader. A reader that uses the state's spool runs on the driver's machine."""
    return "the driver's machine" if node == STATE_NODE else node


def _commit(commit: CommitReport, now_ms: int) -> str:
    if commit.at_ms is None:
        return _ago(commit, now_ms)
    return f"{_ago(commit, now_ms)} (epoch {commit.epoch}{_rows(commit)})"


def _ago(commit: CommitReport, now_ms: int) -> str:
    """Return the age of the commit, or its epoch if the time is unknown."""
    return f"epoch {commit.epoch}" if commit.at_ms is None else f"{duration_text(now_ms - commit.at_ms)} ago"


def _rows(commit: CommitReport) -> str:
    return "" if commit.rows is None else f", {counted(commit.rows, 'row')}"


def _indented(text: str) -> str:
    return printable_text(text, indent="    ")


def _time(note: RunMessage) -> str:
    return datetime.fromtimestamp(note.at_ms / 1000, UTC).astimezone().strftime("%H:%M:%S")
