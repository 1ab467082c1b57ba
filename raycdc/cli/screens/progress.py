"""The views of a run for people: a live table, or plain lines.

Both are called with each event of the run (`raycdc.observe.events`), and read the run's status
(`raycdc.observe.status`), of which they keep no copy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import assert_never

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raycdc.cli.screens.formatting import PHASE_ORDER, PHASE_STYLES, counted, duration_text
from raycdc.core.terminal_text import printable, printable_text
from raycdc.observe.events import (
    CaughtUp,
    Commanded,
    Committed,
    EnginesPromoted,
    Failed,
    NewTable,
    PartitionLags,
    Recovered,
    RunEvent,
    RunProgress,
    Scaling,
    SchemaChanged,
    SnapshotDone,
    SnapshotsDone,
    StageResumed,
    StageStalled,
    StandbyWaiting,
    Started,
    Starting,
    Stopped,
    TableFigures,
    TableParked,
    TablePhaseChanged,
    TookOver,
    Warned,
)
from raycdc.observe.status import KnownTable, RunStatus

#: Seconds between two lines about the same thing in the plain view: a log file should stay readable.
PLAIN_INTERVAL_S = 5.0

#: After this many seconds without output the plain view prints that all is well, or that the run is still starting.
HEARTBEAT_S = 60.0
STARTING_S = 5.0
#: A pipeline with at most this lag counts as up to date, because epochs take time.
UP_TO_DATE_MS = 10_000

#: If there are more tables than this, the plain view has one line for all tables, instead of a line for each.
PLAIN_TABLES_MAX = 20


def lag_text(status: RunStatus) -> str:
    """Return the lag of the sink, or of the last commit with the time since the source was last active.

    A known bottleneck is added.
    """
    parts = _behind_texts(status)
    if status.progress.bottleneck:
        parts.append(f"bottleneck: {status.progress.bottleneck.replace('_', ' ')}")
    return ", ".join(parts)


def _behind_texts(status: RunStatus) -> list[str]:
    behind_ms, lags = status.progress.behind_ms, status.progress.lags
    if behind_ms is not None:
        up_to_date = behind_ms <= UP_TO_DATE_MS and not status.tables.phases.get("snapshot")
        return [f"{'up to date, ' if up_to_date else ''}{duration_text(behind_ms)} behind"]
    common = lags.common if isinstance(lags, PartitionLags) else lags
    parts = [] if common.emit_ms is None else [f"lag {duration_text(common.emit_ms)}"]
    if common.idle_ms is not None and common.idle_ms >= 1000:
        parts.append(f"source idle {duration_text(common.idle_ms)}")
    return parts


def step_text(status: RunStatus) -> str:
    """Return the present step of a run that has no figures yet."""
    steps = {"starting": "asking the source what it lacks", "running": "waiting for the first rows"}
    return steps.get(status.step, status.step)


def _left_s(table: KnownTable, now_s: float) -> float | None:
    """Return the estimated remaining time of a snapshot with known size; the number of chunks alone says little."""
    return None if table.figures.rows_about is None else table.snapshot_left_s(now_s)


class PlainView:
    """Prints one line per change, for logs and pipes.

    At most one progress line per table in five seconds, and one for all tables if there are many.
    """

    def __init__(
        self, status: Callable[[], RunStatus], pipeline: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the view.

        `status` returns the status of the run, which is updated with each event before the view is called.
        """
        self._status = status
        self._pipeline = pipeline
        self._clock = clock
        self._began = self._spoke = clock()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        self._shown: dict[str, tuple[float, str]] = {}
        #: The last line about the processes, and the last one about their number. An equal line is not printed again
        #: after a restart.
        self._said: dict[type[Started | Scaling], str] = {}
        self._commit_tables: set[str] = set()
        self._commit_rows = 0
        self._commit_shown = float("-inf")

    def show(self, event: RunEvent) -> None:
        with self._lock:
            self._show(event)

    def _show(self, event: RunEvent) -> None:
        match event:
            case Starting(step):
                self._line(step)
            case StandbyWaiting() | TookOver():
                self._line(str(event))
            case Started():
                self._unless_said(event, f"started: {_pids_text(event)}")
            case RunProgress():
                # The lines of all tables are checked, because lines of earlier events may have had to wait.
                self._progress(self._status().tables.in_order())
            case Committed():
                self._commit(event)
            case CaughtUp():
                self._flush_commits()
                self._line("caught up with the source")
            case Stopped():
                self._flush_commits()
            case Failed():
                self._flush_commits()
            case Warned(text):
                # After the end of a process, the same line is printed again, because it shows that the processes are
                # running again.
                self._said.clear()
                self._line(text, "WARNING")
            case Scaling():
                self._unless_said(event, str(event))
            case EnginesPromoted() | StageStalled() | StageResumed() | Commanded() | NewTable():
                self._line(str(event))
            case SnapshotsDone() | SchemaChanged() | Recovered():
                self._line(str(event))
            case SnapshotDone():
                if len(self._status().tables.known) <= PLAIN_TABLES_MAX:
                    self._line(str(event))
            case TablePhaseChanged():
                pass  # The progress line of the table shows its phase.
            case TableParked():
                self._line(parked_text(event), "WARNING")
            case other:
                assert_never(other)

    def note(self, text: str) -> None:
        self._line(text)

    def announce(self, text: str) -> None:
        with self._lock:
            self._line(text)

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._flush_commits()
            if (end := end_text(self._status(), self._clock() - self._began)) is not None:
                self._line(end)

    def _beat(self) -> None:
        # If the output is broken, the next event's line ends the run.
        with suppress(BrokenPipeError):
            while not self._closed.wait(1.0):
                with self._lock:
                    self._breathe()

    def _breathe(self) -> None:
        if self._commit_rows and self._clock() - self._commit_shown >= PLAIN_INTERVAL_S:
            self._flush_commits()
        silent_s = self._clock() - self._spoke
        status = self._status()
        if not status.tables.known and not status.end and silent_s >= STARTING_S:
            self._line(f"{step_text(status)}, since {self._clock() - self._began:.0f} s")
        elif silent_s >= HEARTBEAT_S:
            self._line(self._heartbeat(status))

    def _heartbeat(self, status: RunStatus) -> str:
        commit = status.commits.last
        committed = "nothing committed yet" if commit is None else f"epoch {commit.epoch}"
        return ", ".join(part for part in (lag_text(status) or step_text(status), committed) if part)

    def _progress(self, tables: Collection[KnownTable]) -> None:
        if len(tables) > PLAIN_TABLES_MAX:
            self._table(_summed_up([table.figures for table in tables]), None)
            return
        for table in tables:
            self._table(table.figures, _left_s(table, self._clock()))

    def _table(self, table: TableFigures, left_s: float | None) -> None:
        name, phase = printable(table.table), table.phase
        text = f"{name}: {phase}{_chunks_text(table)}, {_rows_text(table)}{_backfill_text(table)}"
        if table.rows_per_s:
            text += f", {_number(table.rows_per_s)} rows/s"
        if left_s is not None:
            text += f", {duration_text(1000 * left_s)} left"
        text += _lost_text(table)
        shown_at, shown = self._shown.get(name, (float("-inf"), ""))
        # One table's new phase is printed immediately; the phases of many tables change continually.
        phase_changed = not shown.startswith(f"{name}: {phase}") and (not shown or "," not in phase)
        if text != shown and (phase_changed or self._clock() - shown_at >= PLAIN_INTERVAL_S):
            self._shown[name] = (self._clock(), text)
            self._line(text)

    def _commit(self, event: Committed) -> None:
        self._commit_rows += event.rows
        self._commit_tables |= set(event.tables)
        if self._commit_rows and self._clock() - self._commit_shown >= PLAIN_INTERVAL_S:
            self._flush_commits()

    def _flush_commits(self) -> None:
        if self._commit_rows:
            status = self._status()
            epoch = 0 if status.commits.last is None else status.commits.last.epoch
            rows = f"{counted(self._commit_rows, 'row')} of {counted(len(self._commit_tables), 'table')}"
            lag = lag_text(status)
            self._line(f"committed up to epoch {epoch}: {rows}{', ' + lag if lag else ''}")
        self._commit_rows, self._commit_tables = 0, set()
        self._commit_shown = self._clock()

    def _unless_said(self, event: Started | Scaling, text: str) -> None:
        if self._said.get(type(event)) != text:
            self._said[type(event)] = text
            self._line(text)

    def _line(self, text: str, level: str = "INFO") -> None:
        self._spoke = self._clock()
        # Further lines of a text are indented, so that none of them looks like the beginning of a log line.
        head = " ".join(part for part in (time.strftime("%Y-%m-%d %H:%M:%S"), level, printable(self._pipeline)) if part)
        print(f"{head}: {printable_text(text, indent=' ' * 9)}", flush=True)


class LiveView:
    """Shows a table on the terminal that is redrawn four times a second; its last state remains at the end."""

    def __init__(
        self,
        status: Callable[[], RunStatus],
        title: str,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the view.

        `status` returns the status of the run, which is updated with each event before the view is called.
        """
        self._status = status
        self._title = title
        self._clock = clock
        self._started = clock()
        self._note = ""
        self._console = console or Console()
        self._live = Live(get_renderable=self.render, console=self._console, refresh_per_second=4, redirect_stderr=True)
        self._live.start()

    def show(self, event: RunEvent) -> None:
        match event:
            case Warned(text):
                self.note(text)
            case EnginesPromoted() | StageStalled() | StageResumed() | Commanded() | NewTable():
                self.note(str(event))
            case SnapshotsDone() | SchemaChanged() | Recovered():
                self.note(str(event))
            case TableParked():
                self.note(parked_text(event))
            case Started() | Scaling() | CaughtUp() | Stopped() | StandbyWaiting() | TookOver():
                self._live.refresh()
            case Starting() | RunProgress() | Committed() | Failed() | TablePhaseChanged() | SnapshotDone():
                pass
            case other:
                assert_never(other)

    def note(self, text: str) -> None:
        self._note = text

    def announce(self, text: str) -> None:
        """Print a text above the table, where it stays."""
        self._console.print(Text(printable_text(text)), soft_wrap=True)

    def close(self) -> None:
        if (end := end_text(self._status(), self._clock() - self._started)) is not None:
            self._note = end
        self._live.stop()

    def render(self) -> RenderableType:
        """Return the whole view. It is public for tests."""
        status = self._status()
        return Group(
            self._headline(status),
            *self._tables(status),
            *(
                [Text(str(status.started.engines), style="dim")]
                if status.started is not None and not status.end
                else []
            ),
            *([Text(printable_text(self._note), style="yellow")] if self._note else []),
        )

    def _headline(self, status: RunStatus) -> Text:
        commits = status.commits
        parts = [_clock_text(self._clock() - self._started)]
        if status.readers:
            why = f" ({printable_text(status.scaling)})" if status.scaling else ""
            parts.append(counted(status.readers, "reader") + why)
        if commits.last is None:
            parts.append("nothing committed yet" if status.tables.known else step_text(status))
        else:
            committed = f"epoch {commits.last.epoch}, {_number(commits.rows)} rows committed"
            parts.append(f"{committed} (last in {commits.seconds:.2f} s)")
        parts.append(status.end or lag_text(status))
        return Text.assemble((printable(self._title), "bold"), "  ", " · ".join(part for part in parts if part))

    def _tables(self, status: RunStatus) -> list[RenderableType]:
        known = status.tables.known
        if not known:
            return []
        every = (table.figures for table in known.values())
        tables = sorted(every, key=lambda table: (PHASE_ORDER.get(table.phase, 9), table.table))
        # Six lines are needed for the headline, the header, the other tables, the engines, the note and the prompt.
        room = max(3, self._console.size.height - 7)
        view = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        view.add_column("table", overflow="ellipsis", no_wrap=True, min_width=12)
        view.add_column("phase", no_wrap=True)
        view.add_column("snapshot", no_wrap=True)
        view.add_column("", justify="right", no_wrap=True)
        view.add_column("rows", justify="right", no_wrap=True)
        view.add_column("rows/s", justify="right", no_wrap=True)
        view.add_column("left", justify="right", no_wrap=True)
        for table in tables[:room]:
            view.add_row(*_cells(table, _left_s(known[table.table], self._clock())))
        rest = len(tables) - room
        more = [] if rest <= 0 else [Text(f"… and {counted(rest, 'more table')}", style="dim")]
        again = [f"{table.table}{_backfill_text(table)}" for table in tables if table.backfill is not None]
        notes = [Text(printable("; ".join(again)))] if again else []
        lost = [f"{table.table}{_lost_text(table)}" for table in tables if _lost_text(table)]
        return [view, *more, *notes, *([Text(printable("; ".join(lost)), style="yellow")] if lost else [])]


def _summed_up(tables: Sequence[TableFigures]) -> TableFigures:
    """Return figures of many tables as those of one table, which is in all of their phases."""
    phases = [table.phase for table in tables]
    counts = {phase: phases.count(phase) for phase in sorted(set(phases), key=lambda p: PHASE_ORDER.get(p, 9))}
    return TableFigures(
        table=f"{len(tables)} tables",
        phase=", ".join(f"{count} {phase}" for phase, count in counts.items()),
        chunks_done=sum(table.chunks_done for table in tables),
        chunks_total=sum(table.chunks_total for table in tables),
        rows=sum(table.rows for table in tables),
        rows_per_s=sum(table.rows_per_s for table in tables),
        lost_values=sum(table.lost_values for table in tables),
        bad_rows=sum(table.bad_rows or 0 for table in tables),
    )


def _cells(table: TableFigures, left_s: float | None) -> tuple[RenderableType, ...]:
    done, total, percent = table.chunks_done, table.chunks_total, table.percent
    style = PHASE_STYLES.get(table.phase, "dim")
    bar: RenderableType = ""
    if total:
        bar = ProgressBar(total=100.0, completed=percent or 0.0, width=15)
    return (
        # Plain strings in a cell would be parsed as markup of rich.
        Text(printable(table.table)),
        Text(table.phase, style=style),
        bar,
        f"{percent:.0f} %" if table.amount is not None and percent is not None else f"{done}/{total}" if total else "",
        _rows_of(table),
        _number(table.rows_per_s),
        "" if left_s is None else duration_text(1000 * left_s),
    )


def _rows_of(table: TableFigures) -> str:
    """Return the rows of a snapshot's chunks with the estimated total; for other tables the rows of this run."""
    if table.phase != "snapshot" or table.amount is None:
        return _number(table.rows)
    about = table.rows_about
    return _number(table.amount.rows) + ("" if about is None else f" of about {_number(about)}")


def _rows_text(table: TableFigures) -> str:
    """Return the rows of a table in words, with the percentage of a snapshot."""
    if table.phase != "snapshot" or table.amount is None or table.rows_about is None:
        return counted(table.rows, "row")
    return f"{_rows_of(table)} rows ({table.percent:.0f} %)"


def end_text(status: RunStatus, seconds: float) -> str | None:
    """Return the last line about a run that ended normally; None otherwise."""
    if not status.ended_in_order:
        return None
    last = status.commits.last
    committed = "nothing was committed" if last is None else f"{counted(status.commits.rows, 'row')} committed"
    up_to = "" if last is None else f" up to epoch {last.epoch}"
    by = f"; {status.commits.engines}" if str(status.commits.engines) else ""
    return f"{status.end} after {_clock_text(seconds)}: {committed}{up_to}{by}"


def parked_text(event: TableParked) -> str:
    """Return the text of the event, in one line or two."""
    table, parked = printable(event.table), event.parked
    if parked.again:
        return f"{table} is resnapshotted: {parked.reason}"
    return f"{table} is not followed ({parked.phase}): {parked.reason}"


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _chunks_text(table: TableFigures) -> str:
    return f" {table.chunks_done}/{table.chunks_total} chunks" if table.chunks_total else ""


def _backfill_text(table: TableFigures) -> str:
    if (backfill := table.backfill) is None:
        return ""
    percent = backfill.percent
    of = "" if percent is None else f" {backfill.chunks_done}/{backfill.chunks_total} chunks ({percent:.0f} %)"
    return f", backfill{of}, {counted(backfill.rows, 'row')} read again"


def _lost_text(table: TableFigures) -> str:
    lost = table.lost_values
    text = f", {counted(lost, 'value')} lost (invalid dates or text)" if lost else ""
    return text + (f", {counted(table.bad_rows, 'row')} left out" if table.bad_rows else "")


def _pids_text(started: Started) -> str:
    if {started.driver} == {started.enumerator, *started.readers}:
        return f"{started.engines} (process {started.driver})"
    parts = [f"driver {started.driver}", f"enumerator {started.enumerator}"]
    parts += [f"readers {', '.join(map(str, started.readers))}"] if started.readers else []
    return f"{started.engines} ({', '.join(parts)})"


def _number(value: float) -> str:
    return f"{round(value):,}"
