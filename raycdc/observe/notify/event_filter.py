"""Chooses the events of a run that are reported, and makes their messages. Pure: the input is events and times.

An id identifies the event, not the message. Facts in the state (a parked table, rows left out) are reported at each
start, under the same id as before, so that neither a receiver nor `outbox.Sent` takes such a report for a new event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raycdc.config.sections.notifications import NotificationKind
from raycdc.observe.events import (
    After,
    CaughtUp,
    Committed,
    Failed,
    Recovered,
    RunEvent,
    RunProgress,
    SchemaChanged,
    SnapshotDone,
    SnapshotsDone,
    StageResumed,
    StageStalled,
    Stopped,
    TableParked,
    TablePhaseChanged,
)
from raycdc.observe.notify.messages import (
    Data,
    EndedWithErrorNotification,
    Message,
    RetentionAtRiskNotification,
    RowsLeftOutNotification,
    message_id,
)
from raycdc.observe.notify.messages import RecoveredNotification as RecoveredData
from raycdc.observe.notify.messages import SchemaChangedNotification as SchemaChangedData
from raycdc.observe.notify.messages import SnapshotDoneNotification as SnapshotDoneData
from raycdc.observe.notify.messages import SnapshotsDoneNotification as SnapshotsDoneData
from raycdc.observe.notify.messages import TableParkedNotification as TableParkedData
from raycdc.observe.status import RunStatus
from raycdc.source.tables.table_life import ParkedPhase

#: The shortest time between two reports of left-out rows of one table, in seconds.
LEFT_OUT_EVERY_S = 600.0
#: The log retention is at risk if the source deletes unread parts of its log in less than this time, as in the alert
#: RaycdcLogAtRisk. The risk has ended when the time is a quarter longer than this.
RETENTION_S = 6 * 3600
_ENOUGH = 1.25
#: Lines of the run report every stall. A notification reports only the end of a stall that was longer than this.
STOOD_S = 300.0


@dataclass(frozen=True, slots=True)
class PipelineInfo:
    """The pipeline of the messages. `state` distinguishes it from another pipeline of the same name."""

    pipeline: str
    state: str
    host: str
    #: The identity of this run, for events that only this run can report.
    run: str


class EventFilter:
    """The filter of one run. Not thread-safe. `now_s` only ever grows; `at_ms` is wall-clock time."""

    def __init__(self, about: PipelineInfo) -> None:
        self._about = about
        self._recovering: list[tuple[After, str]] = []
        self._left_out_reported: dict[str, tuple[int, float]] = {}
        self._parked: set[str] = set()
        self._at_risk = False
        self._count = 0

    def __repr__(self) -> str:
        return f"EventFilter({self._about.pipeline!r})"

    def heard(self, event: RunEvent, status: RunStatus, *, now_s: float, at_ms: int) -> list[Message]:
        """Return the messages for an event of the run, which `status` includes already."""
        return [*self._heard(event, status, now_s, at_ms)]

    def retention(self, headroom_s: float | None, *, at_ms: int) -> list[Message]:
        """Return the messages about the log retention.

        `kept_s` is the time for which the unread log is kept; None if it is unknown.
        """
        if headroom_s is None:
            return []
        if headroom_s < RETENTION_S and not self._at_risk:
            self._at_risk = True
            text = f"the source deletes unread parts of its log in {headroom_s / 3600:.1f} hours; keep the log longer"
            data = RetentionAtRiskNotification(headroom_seconds=round(headroom_s))
            return [self._once(NotificationKind.RETENTION_AT_RISK, at_ms, text, data)]
        if headroom_s >= RETENTION_S * _ENOUGH and self._at_risk:
            self._at_risk = False
            text = "the source keeps unread parts of its log long enough again"
            return [self._once(NotificationKind.RECOVERED, at_ms, text, RecoveredData(after="retention", table=None))]
        return []

    def ended(self, error: Failed, exit_code: int, status: RunStatus, *, at_ms: int) -> list[Message]:
        """Return the messages for the error that the run ends with."""
        data = EndedWithErrorNotification(error=error.error, exit_code=exit_code)
        text = f"the run has ended with exit code {exit_code}: {error.text}"
        return [
            *self._rows(status, float("inf"), at_ms),
            self._once(NotificationKind.ENDED_WITH_ERROR, at_ms, text, data),
        ]

    def _heard(self, event: RunEvent, status: RunStatus, now_s: float, at_ms: int) -> Iterator[Message]:
        match event:
            case SnapshotDone(table, rows):
                data = SnapshotDoneData(table=table, rows=rows)
                yield self._once(NotificationKind.SNAPSHOT_DONE, at_ms, str(event), data)
            case SnapshotsDone(tables):
                yield self._once(NotificationKind.SNAPSHOTS_DONE, at_ms, str(event), SnapshotsDoneData(tables=tables))
            case SchemaChanged(table, target, epoch, changes):
                changed = SchemaChangedData(table=table, epoch=epoch, changes=[*changes])
                yield self._message(NotificationKind.SCHEMA_CHANGED, at_ms, str(event), changed, (table, target, epoch))
            case TableParked(table, parked) if parked.phase is ParkedPhase.PARKED and not parked.again:
                self._parked.add(table)
                remedy = "" if "raycdc tables" in parked.reason else f"raycdc tables resnapshot CONFIG {table}"
                found = TableParkedData(
                    table=table,
                    reason=parked.reason,
                    remedy=remedy or "the reason says it",
                    since_ms=parked.ts_ms,
                )
                more = f" After the cause is fixed, resnapshot it with: {remedy}" if remedy else ""
                text = f"{table} is parked, and the other tables go on: {parked.reason}{more}"
                yield self._message(
                    NotificationKind.TABLE_PARKED, at_ms, text, found, (table, parked.incarnation, parked.ts_ms)
                )
            case TablePhaseChanged(table, _, after) if table in self._parked and after in (
                "snapshot",
                "stream",
                "resuming",
            ):
                self._parked.discard(table)
                back = RecoveredData(after="parked", table=table)
                yield self._once(
                    NotificationKind.RECOVERED, at_ms, f"{table}, which was parked, is followed again", back
                )
            case StageResumed(stood) if stood.seconds >= STOOD_S:
                moved = RecoveredData(after="stalled", table=stood.table or None)
                yield self._once(NotificationKind.RECOVERED, at_ms, str(event), moved)
            case Recovered(after):
                self._recovering.append((after, str(event)))
            case RunProgress():
                yield from self._rows(status, now_s, at_ms)
            case Committed() | CaughtUp():
                yield from self._recovered(at_ms)
                if isinstance(event, CaughtUp):
                    yield from self._rows(status, float("inf"), at_ms)
            case Stopped():
                yield from self._rows(status, float("inf"), at_ms)
            case StageStalled() | _:
                pass

    def _recovered(self, at_ms: int) -> Iterator[Message]:
        """Yield the message that the run has recovered, when its progress shows that."""
        recovering, self._recovering = self._recovering, []
        for after, text in recovering:
            yield self._once(NotificationKind.RECOVERED, at_ms, text, RecoveredData(after=after, table=None))

    def _rows(self, status: RunStatus, now_s: float, at_ms: int) -> Iterator[Message]:
        """Yield a message for each table with more left-out rows, if its last report is old enough."""
        if status.tables.rows_left_out == sum(rows for rows, _ in self._left_out_reported.values()):
            return
        left_out = {name: each.figures.bad_rows or 0 for name, each in status.tables.known.items()}
        for table, rows in sorted(left_out.items()):
            reported, reported_s = self._left_out_reported.get(table, (0, float("-inf")))
            if rows > reported and now_s - reported_s >= LEFT_OUT_EVERY_S:
                self._left_out_reported[table] = rows, now_s
                text = f"{rows} rows of {table} have been left out so far, as pipeline.on_bad_record says"
                data = RowsLeftOutNotification(table=table, rows=rows)
                yield self._message(NotificationKind.ROWS_LEFT_OUT, at_ms, text, data, (table, rows))

    def _once(self, happening: NotificationKind, at_ms: int, text: str, data: Data) -> Message:
        """Return a message for an event that only this run reports, with a new id."""
        self._count += 1
        return self._message(happening, at_ms, text, data, (self._about.run, self._count))

    def _message(
        self, happening: NotificationKind, at_ms: int, text: str, data: Data, named: tuple[str | int, ...]
    ) -> Message:
        about = self._about
        reported = f"{about.pipeline}: {text}"
        identity = message_id(about.pipeline, about.state, str(happening), *named)
        return Message(identity, happening, at_ms, about.pipeline, about.host, reported, data)
