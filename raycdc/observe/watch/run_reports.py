"""Reports of a run: phases of tables, finished snapshots, new tables, and recoveries.

`PhaseReporter` reports each table that enters a new phase, and each snapshot that is completely in the sink. A table
ends its snapshot when its last chunk is in an epoch. Its rows are in the target when the sink holds this epoch, so the
report waits until then. If the driver dies in between, the next run reports the snapshot.

`NewTables` reports, once, each table that a running pipeline follows although its state did not have the table. Such a
table was created, or renamed so that a pattern selects it.

`Recoveries` reports each recovery of a run that began, or continued, after an unexpected end.

`RunReports` combines all of these with the watchdog, for use by a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack

from raycdc.core.activity import ActivityTracker
from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.outcomes import Recovery
from raycdc.errors import ExitCode, StateError
from raycdc.observe.events import After, NewTable, Recovered, SnapshotDone, SnapshotsDone, TablePhaseChanged, TookOver
from raycdc.observe.status.progress import ProgressReporter
from raycdc.observe.watch.watchdog import Watchdog
from raycdc.source.protocol.job_status import JobStatus
from raycdc.source.selection import known_tables
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.tables.table_life import ParkedPhase, phase_word
from raycdc.source.tables.table_requests import requests_of
from raycdc.state.bad_row_counts import bad_rows
from raycdc.state.drivers.holder import Holder
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.parked import ParkedTarget
from raycdc.state.store import CheckpointStore, CommitRecord

SNAPSHOT = "snapshot"
#: The phase of a table whose snapshot is finished.
_FOLLOWED = "stream"
#: The phase of a table for which the state has only the name.
_NEW = "new"
_PARKED = "parked"

PhaseEvent = TablePhaseChanged | SnapshotDone | SnapshotsDone


class PhaseReporter:
    """A reporter of changed phases of tables, and of finished snapshots.

    `phases` has the phases of the state's tables at the last commit. The phase of any other table is first known from
    the first status that lists the table. `refused` are the tables of which a target had refused rows by the last
    commit.
    """

    def __init__(
        self, phases: Mapping[str, str], notify: Callable[[PhaseEvent], None], refused: Collection[str] = ()
    ) -> None:
        self._phases = dict(phases)
        #: Tables whose rows a target has refused. The target lacks some rows of the snapshot of such a table until the
        #: table is resnapshotted.
        self._refused = {table for table in refused if self._phases.get(table) != SNAPSHOT}
        self._notify = notify
        #: Snapshots whose rows may not be in the sink yet: the number of rows, and the epoch whose commit proves that
        #: the sink has them.
        self._waiting: dict[str, tuple[int, int | None]] = {}
        self._done = 0

    def __repr__(self) -> str:
        return f"PhaseReporter({len(self._phases)} tables, {len(self._waiting)} wait for their commit)"

    def heard(self, status: JobStatus | None) -> None:
        """Handle a status, on the thread that polls statuses."""
        if status is None:
            return
        for table, now in status.tables.items():
            name, phase = str(table), now.progress.phase
            before = self._phases.get(name)
            if phase == before:
                continue
            self._phases[name] = phase
            amount = now.progress.amount
            # New tables are reported by `NewTables`; otherwise a first start would report all of them.
            if before is not None:
                self._notify(TablePhaseChanged(name, before, phase))
            if phase == _FOLLOWED and before in (None, _NEW, SNAPSHOT) and amount is not None:
                self._waiting[name] = _holding(status), amount.rows
            elif phase == SNAPSHOT:
                # The table is resnapshotted before the end of its last snapshot was reported.
                self._waiting.pop(name, None)
                # A target may refuse rows of a table's first snapshot before the table's first status arrives here.
                if before in (_FOLLOWED, _PARKED):
                    self._refused.discard(name)
        idle = _is_idle(status)
        self._report_held(lambda epoch: idle or epoch <= status.committed, lambda: self._all_done(status))

    def parked(self, entries: Mapping[str, ParkedTarget]) -> None:
        """Note that targets have refused rows of these tables.

        The statuses of the source side may show the refusal later, or never.
        """
        for entry in entries.values():
            self._refused.update(entry.sources)

    def ended(self) -> None:
        """Report the remaining snapshots, because the run has committed everything; no more statuses follow."""
        self._report_held(lambda _: True, lambda: SNAPSHOT not in self._phases.values())

    def _report_held(self, held: Callable[[int], bool], all_done: Callable[[], bool]) -> None:
        for name in sorted(name for name, (epoch, _) in self._waiting.items() if held(epoch)):
            _, rows = self._waiting.pop(name)
            # Rows of a parked table may be missing in the target, also after all epochs are committed.
            if name not in self._refused and self._phases[name] != _PARKED:
                self._done += 1
                self._notify(SnapshotDone(name, rows))
        if self._done and not self._waiting and all_done():
            done, self._done = self._done, 0
            self._notify(SnapshotsDone(done))

    def _all_done(self, status: JobStatus) -> bool:
        """Return True if no table is in its snapshot.

        Called only after snapshots were done, because it examines all tables.
        """
        return not status.counts.in_snapshot and SNAPSHOT not in self._phases.values()


def _is_idle(status: JobStatus) -> bool:
    """Return True if all rows that were read are in the sink.

    A chunk without rows adds no unsealed bytes, but the epoch with this chunk creates the table's target, or parks the
    table. It is therefore not idle either.
    """
    on_its_way = status.sealing is not None or status.sealed > status.committed or status.counts.chunks_out
    return not on_its_way and not any(reader.open_bytes for reader in status.readers)


def _holding(status: JobStatus) -> int:
    """Return an epoch that certainly has all rows read so far: the one after the epoch that was sealed last or is
    being sealed.
    """
    return (status.sealed if status.sealing is None else status.sealing.epoch) + 1


def refused_by_targets(record: CommitRecord | None) -> Collection[str]:
    """Return the source tables whose rows a target has refused, as of the last commit."""
    return () if record is None else {table for entry in record.parked.values() for table in entry.sources}


def phases_at(store: CheckpointStore, committed: int) -> dict[str, str]:
    """Return the phase of each table at the epoch `committed`, the last recorded one.

    Phases that changed in later epochs are not included, because they were not reported yet.
    """
    sealed = store.sealed_epochs()
    if not committed or not sealed:
        return {}
    stream = stream_of(_manifest(store, committed if committed in sealed else sealed[-1]) or store.last_manifest())
    return {} if stream is None else {str(table): phase_word(stream[table]) for table in stream.tables}


def _manifest(store: CheckpointStore, epoch: int) -> Manifest | None:
    """Return the manifest; None if it cannot be read.

    Here only messages depend on the manifest; a start reports the damage.
    """
    try:
        return store.manifest(epoch)
    except StateError:
        return None


class NewTables:
    """Reports new tables. `known` are the tables of the state when the run began.

    At a first start (None), the tables of the first status that has any count as known. For a source that finds its
    tables one after another, no table is reported.
    """

    def __init__(self, known: Iterable[str] | None, notify: Callable[[NewTable], None]) -> None:
        self._known = None if known is None else set(known)
        self._notify = notify

    def __repr__(self) -> str:
        return f"NewTables({len(self._known or ())} known)"

    def heard(self, status: JobStatus | None) -> None:
        """Handle a status, on the thread that polls statuses."""
        if status is None or not status.tables:
            return
        progress = {str(table): reported.progress for table, reported in status.tables.items()}
        if self._known is None:
            if any(reader.metrics.partitions is not None for reader in status.readers):
                return
            self._known = set(progress)
        for name in sorted(progress.keys() - self._known):
            parked = progress[name].parked
            if parked is not None and (parked.again or parked.phase is ParkedPhase.ENDED):
                continue  # A probe of the source decides whether the table exists and can be followed.
            self._known.add(name)
            if parked is None:
                self._notify(NewTable(name))


#: Ends of a run after which no recovery is reported.
_IN_ORDER = (int(ExitCode.DONE), int(ExitCode.INTERRUPTED))


class Recoveries:
    """Reports recoveries. `began` and `went_on` are called when sink and record agree again.

    The report waits until processes read, because the first line of a run must name them. `before` is the previous
    driver, from the run's `Leadership`.
    """

    def __init__(self, before: Holder | TookOver | None, notify: Callable[[Recovered], None]) -> None:
        self._cause = _cause(before)
        self._notify = notify
        self._waiting: list[Recovered] = []

    def __repr__(self) -> str:
        return f"Recoveries({self._cause}, {len(self._waiting)} to tell)"

    def began(self, recovery: Recovery) -> None:
        """Report the recovery at the start of the run, if the previous run ended unexpectedly."""
        if self._cause is not None:
            after, why = self._cause
            self._waiting.append(_recovered(after, why, recovery))

    def went_on(self, after: After, why: str, recovery: Recovery) -> None:
        """Report that the run continues after a loss."""
        self._waiting.append(_recovered(after, why, recovery))

    def heard(self, status: JobStatus | None) -> None:
        """Report the pending recoveries when the first status arrives, on the thread that polls statuses."""
        if status is not None:
            while self._waiting:
                self._notify(self._waiting.pop(0))


class RunReports:
    """All reports of a run other than figures: stalls, recoveries, new tables, and phases of tables.

    It receives reports of the run (`ProgressListeners`) from `open` on, and reports tables from `begin` on.
    """

    def __init__(
        self, store: CheckpointStore, reporter: ProgressReporter, watchdog: Watchdog, before: Holder | TookOver | None
    ) -> None:
        """Create the reports; `before` is the previous driver, from the run's `Leadership`."""
        self._store, self._reporter = store, reporter
        self._watchdog = watchdog
        self._recoveries = Recoveries(before, reporter.notify)
        self._phases: PhaseReporter | None = None

    def __repr__(self) -> str:
        return f"RunReports({self._recoveries}, {self._phases})"

    @classmethod
    def open(
        cls,
        stack: ExitStack,
        store: CheckpointStore,
        reporter: ProgressReporter,
        before: Holder | TookOver | None,
        *,
        stalled_after_s: float,
    ) -> RunReports:
        """Create the reports, and watch for stages that do not move for `stalled_after_s`, until `stack` is closed."""
        watchdog = Watchdog(stalled_after_s, reporter.notify, reporter.hearers.moved)
        stack.enter_context(watchdog.watching())
        reporter.hearers.on_status.append(watchdog.heard)
        reporter.hearers.on_asking.append(watchdog.asked)
        return cls(store, reporter, watchdog, before)

    @property
    def tracker(self) -> ActivityTracker:
        """Return the tracker of the driver's activities."""
        return self._watchdog.tracker

    def recover(self, loop: EpochLoop) -> None:
        """Let `loop` recover, and report the recovery if the previous run ended unexpectedly."""
        phases = phases_at(self._store, loop.committed)
        self._recoveries.began(loop.recover())
        self._phases = PhaseReporter(phases, self._reporter.notify, refused_by_targets(self._store.last_commit()))

    def begin(self, committed: int) -> None:
        """Report tables from now on; `committed` is the last recorded epoch.

        Called after waiting commands were carried out.
        """
        store, hearers, last = self._store, self._reporter.hearers, self._store.last_manifest()
        assert self._phases is not None, "it has recovered"
        # The start itself reports the tables that have requests, so they count as known here.
        known = None if last is None else known_tables(last) | requests_of(store).tables.keys()
        hearers.on_parked.append(self._phases.parked)
        hearers.on_status.extend([NewTables(known, self._reporter.notify).heard, self._recoveries.heard])
        hearers.on_status.append(self._phases.heard)
        self._reporter.bad_rows(bad_rows(store, committed))

    def went_on(self, after: After, why: str, recovery: Recovery) -> None:
        """Report that the run goes on after a loss."""
        self._recoveries.went_on(after, why, recovery)

    def ended(self) -> None:
        """Report the snapshots that the last commit has finished."""
        assert self._phases is not None, "it has begun"
        self._phases.ended()


def _recovered(after: After, why: str, recovery: Recovery) -> Recovered:
    return Recovered(after, recovery.epoch, recovery.replayed, recovery.dropped, why.strip().rstrip("."))


def _cause(before: Holder | TookOver | None) -> tuple[After, str] | None:
    """Return the reason for a recovery with its text.

    None if the previous run ended in an orderly way, or if its end is unknown.
    """
    match before:
        case None:
            return None
        case TookOver(reason):
            return "take_over", reason
        case Holder(ended=False):
            return "killed", f"{before}, which ran the pipeline last, did not say that it ended"
        case Holder(end=end):
            if end is None or end.exit_code in _IN_ORDER:
                return None
            return "error", f"the last run ended with exit code {end.exit_code} ({end.error})"
