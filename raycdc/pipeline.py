"""The composition root, and the Python API: a source, a sink and a state become a running pipeline.

This is the only module that imports every part (as PipelineComposer is in Flink CDC). It starts the parts in this
order: lease, checks of the source, engines, sink, recovery, source side, epoch loop. In this order, a failed start has
nothing to undo. The parts end in the reverse order.

*Locks.* A thread that holds one of these locks takes only locks further down the table, which rules out deadlocks
(`tests/unit/driver/test_lock_order.py` records the order during a run):

| lock | held while |
|---|---|
| supervisor | processes are started, checked and ended, and the steps between two generations are done |
| coordinator's host (``--local``), launcher, Spark's start | the coordinator, the launcher or Spark's start is called |
| reporter | listeners receive an event one by one: notifications, control API, log, caller's listener |
| each listener | the listener keeps, writes or shows the event |
| pipeline, events and queues | a flag is set; nothing is called |

A listener may therefore call `Pipeline.stop`, which takes only the pipeline's lock; the supervisor carries out the stop
on its own thread. A signal handler must not take any of these locks, nor the lock inside a `threading.Event`. It puts a
value into a `queue.SimpleQueue` instead. The `get` of this queue has no timeout, because in CPython 3.11 a `get` with a
timeout waits forever if its thread does not run before the timeout has passed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from raycdc.config import PipelineConfig, PipelineOptions, SinkConfig, SourceConfig
from raycdc.core.stopping import StoppedWaitingError, StopRequest
from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.driver.consumer import Epoch, Ledger
from raycdc.driver.data_side import DataSide, bad_records
from raycdc.driver.fitting import proving_target
from raycdc.driver.leadership import Leadership, acquire
from raycdc.driver.live_commands import RunCommands
from raycdc.driver.resolve import OutputMode, ResolvedRun, resolve, take_up
from raycdc.driver.source_side import SourceSide, job_spec, new_launcher
from raycdc.driver.start_retry import StartRetry
from raycdc.driver.startup_checks import Start, begin, no_order, order_by
from raycdc.errors import ClusterLostError, ConfigError, ExitCode, RaycdcError, SegmentUnavailableError, StateError
from raycdc.model.rules.rate_limit import Until
from raycdc.observe.events import Failed, Listener
from raycdc.observe.events.log_file import LogFile
from raycdc.observe.notify.notifier import Notifier
from raycdc.observe.status import RunStatus, StatusKeeper
from raycdc.observe.status.progress import ProgressReporter
from raycdc.observe.watch.run_reports import RunReports
from raycdc.runtime.restarts import ProcessEnd, RestartBudget
from raycdc.runtime.supervisor import Supervisor
from raycdc.server.service import ControlService
from raycdc.source.tables.table_requests import complain_of_parked
from raycdc.state.configured import FullBy
from raycdc.state.drivers.holder import RunEnd
from raycdc.state.store import CheckpointStore

#: How often progress is reported, in seconds.
PROGRESS_S = 0.5
#: The end of the warning that rows of a lost node are read again. Tests wait for this text.
READ_AGAIN = "What it had is read again."
#: The end of the warning that a private Ray was lost.
NEW_RAY = "A new one is started, and the run goes on from what was sealed."


@dataclass(frozen=True, slots=True)
class _Run:
    """The objects of one run that exist from its start.

    Closing `stack` ends everything that the run has started.
    """

    stack: ExitStack
    leadership: Leadership
    reporter: ProgressReporter

    @property
    def store(self) -> CheckpointStore:
        return self.leadership.store


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts of a run after recovery. `ends_by_itself` is True if the run ends without being stopped."""

    source_side: SourceSide
    loop: EpochLoop
    reports: RunReports
    commands: RunCommands
    ends_by_itself: bool


class Pipeline:
    """A pipeline, which keeps the tables of one sink equal to those of one source.

    ``Pipeline.from_config(load_config("shop.toml"))``, or in Python ``Pipeline(name="shop", state="./state/shop",
    source=MySqlSource(...), sink=DeltaSink(...))``. A pipeline may run again after its run ended. `stop` may be called
    from any thread.
    """

    def __init__(
        self,
        *,
        source: SourceConfig,
        sink: SinkConfig | None = None,
        name: str = "",
        state: str | Path = "",
        config: PipelineConfig | None = None,
        **options: Any,
    ) -> None:
        """Make a pipeline with the `options` of ``[pipeline]``. Without a `sink` it only serves `epochs`."""
        if config is None:
            pipeline = PipelineOptions(name=name, state=str(state), **options)
            config = PipelineConfig(pipeline=pipeline, source=source, sink=sink or SinkConfig(type="none"))
        self.config = config
        self._ordered = bool(order_by(config))
        self._has_sink = sink is not None
        #: Reentrant, because `stop` may be called by a signal handler that interrupts this very thread.
        self._lock = threading.RLock()
        self._supervisor: Supervisor | None = None
        self._stopping = StopRequest()
        self._keeper = StatusKeeper.of(config, local=False)

    @classmethod
    def from_config(cls, config: PipelineConfig) -> Pipeline:
        """Make the pipeline that a TOML file describes (`raycdc.config.load_config`)."""
        return cls(source=config.source, sink=config.sink, config=config)

    def run(
        self,
        *,
        until: str | None = None,
        local: bool = False,
        standby: bool = False,
        listener: Listener = lambda _: None,
        show_page: Callable[[str, str], None] | None = None,
        planned: ResolvedRun | None = None,
    ) -> None:
        """Run in the foreground until stopped, or until ``"caught-up"``.

        Raises `RaycdcError` for every expected error.

        If `local` is True, or with ``pipeline.engines = "never"``, all work is done by threads of this process, without
        Ray and Spark. If `standby` is True, the run first waits until the driver that has the state ends or sends no
        heartbeat. `FencedError` ends a run whose state another driver took over. `listener` receives the events of
        `raycdc.observe.events`, from threads of the pipeline. An error in `listener` is reported once as a warning, and
        does not end the run. `show_page` receives the address of the web UI with a login code that is valid for one
        browser within ten minutes (``ADDRESS/#login=CODE``). `planned` has decisions that were already made, for a
        comparison with a plan; the run uses these instead of deciding again.
        """
        local = local or self.config.is_local
        log = LogFile(self.config.logging, self.config.pipeline.name)
        keeper = self._keeper = StatusKeeper.of(self.config, local=local)
        notifier = Notifier(self.config, keeper)
        control = ControlService(self.config, keeper, show_page=show_page)
        listeners = {
            "control": control.listen,
            "notifications": notifier.listen,
            "log file": log.listen,
            "listener of Pipeline.run": listener,
        }
        reporter = ProgressReporter(listeners, keeper)
        reporter.hearers.on_exit.append(notifier.failed_at_once)
        notifier.open(reporter.warning, lambda: None if (room := control.log_retention()) is None else room.kept_s)
        with log.writing():
            try:
                start = Start(self.config, local, self._has_sink, _end_of(until))
                stopped = self._run(start, reporter, control, standby=standby, planned=planned)
                # The notifier ends first, because its warnings about receivers must precede the run's last message.
                notifier.ended(stopped=stopped)
                reporter.finished(stopped=stopped)
            except StoppedWaitingError:
                notifier.ended(stopped=True)
                reporter.finished(stopped=True)
            except BaseException as error:
                keeper.ended(error)
                notifier.failed(error)
                log.failed(error)
                raise
            finally:
                control.close()

    def _run(
        self,
        start: Start,
        reporter: ProgressReporter,
        control: ControlService,
        *,
        standby: bool,
        planned: ResolvedRun | None,
    ) -> bool:
        """Run once; return True if the run was stopped before it reached its end."""
        # The control API opens after the checks, because one of them requires its port to be free, and before the run
        # waits for the state.
        begun = partial(control.open, reporter.warning)
        with self._one_run(start, reporter, standby=standby, begun=begun) as run:
            control.take(run.leadership, reporter.warning)
            run.stack.callback(control.close)
            self._commit_all(run, start, planned)
            stopped, complaint = self._stopping.is_set(), None
            if not stopped:
                last, record = run.store.last_manifest(), run.store.last_commit()
                try:
                    complain_of_parked(last, record, selects=self.config.source.captures)
                except RaycdcError as error:
                    complaint = error
            run.leadership.ends(RunEnd.now(ExitCode.DONE) if complaint is None else _end_with(complaint))
            run.stack.close()
            # Raised last, after all events were reported, including which tables were parked.
            if complaint is not None:
                raise complaint
            return stopped

    def status(self) -> RunStatus:
        """Return the status of the current run, or the final status of the last one. May be called from any thread."""
        return self._keeper.status

    def stop(self) -> None:
        """Seal and commit the rows read so far, then let `run` return.

        Call it from any thread, also within the `listener` of `run`; but not from a signal handler, because it takes
        locks that the interrupted code may hold.
        """
        with self._lock:
            self._stopping.ask()
            supervisor = self._supervisor
        if supervisor is not None:
            supervisor.stop()

    def epochs(self, *, until: str | None = None, local: bool = True) -> Iterator[Epoch]:
        """Yield sealed epochs as Arrow batches, for callers that bring their own sink.

        Each epoch must be acknowledged.

        After a restart, an epoch that was not acknowledged comes again with the same rows and the same number. A
        consumer that records the number together with the rows therefore has each row exactly once.
        """
        with self.ledger(until=until, local=local) as ledger:
            yield from ledger.epochs()

    @contextmanager
    def ledger(self, *, until: str | None = None, local: bool = True, in_flight_max: int = 0) -> Iterator[Ledger]:
        """Run the source side alone within the block, and return its ledger of epochs, from which `epochs` is made.

        At most `in_flight_max` sealed epochs wait for their acknowledgement (0: as many as for a sink).
        """
        config, local = self.config, local or self.config.is_local
        if self._ordered:
            raise no_order("a sink of one's own")
        sections = {"route": config.routes, "transform": config.transforms, "lookup": config.lookups}
        for section, entries in {**sections, "mask": config.masks}.items():
            if entries:
                raise ConfigError(f"{section}: epochs for a sink of one's own have the source's tables; leave it out.")
        keeper = self._keeper = StatusKeeper.of(config, local=local)
        silent = ProgressReporter({}, keeper)
        start = Start(config, local, has_sink=False, asked=_end_of(until))
        with _ending(keeper), self._one_run(start, silent) as run:
            store = run.store
            output_mode = OutputMode.HAND_FOR_SINK if self._has_sink else OutputMode.HAND
            start_retry = StartRetry(run.leadership, silent.warning, self._stopping)
            resolved = start_retry(partial(resolve, start, store, warn=start_retry.warning, output_mode=output_mode))
            if resolved.full_by is FullBy.ROW_STORE:
                raise ConfigError(
                    'source.changelog: "full" is for rows on their way to a sink of raycdc\'s; leave it out, or let '
                    "all captured collections keep images."
                )
            take_up(resolved)
            # If a caller takes the epochs and rows are lost, the tables are resnapshotted, so copies of segments would
            # be of no use.
            spec = replace(job_spec(resolved, store), copies=None)
            at_once = in_flight_max or spec.settings.in_flight_max
            spec = replace(spec, settings=replace(spec.settings, in_flight_max=at_once, hand_taken=True))
            RunCommands(resolved, store, silent.notify).judge_rows()
            launcher = new_launcher(config, spec, store, local=local, reporter=silent)
            run.stack.callback(launcher.close)
            source_side = SourceSide(config, store, silent, spec, launcher)
            source_side.sweep()
            sealed_before = store.next_epoch() - 1
            ledger = Ledger(
                store,
                self._supervised(run, run.stack, source_side),
                bad_records(config, store),
                access=source_side.access,
                generation=run.leadership.term.generation,
                sealed_before=sealed_before,
            )
            try:
                yield ledger
            finally:
                ledger.close()

    @contextmanager
    def _one_run(
        self,
        start: Start,
        reporter: ProgressReporter,
        *,
        standby: bool = False,
        begun: Callable[[], None] = lambda: None,
    ) -> Iterator[_Run]:
        """Do one run under the state's lease.

        A stop applies to the current run or, if there is none, to the next one; after the run the pipeline can be
        started again. `begin` is called at the start, and `begun` once every check has passed.
        """
        try:
            with ExitStack() as stack:
                begin(start)
                begun()
                leadership = acquire(stack, self.config, reporter, standby=standby, stopping=self._stopping)
                try:
                    yield _Run(stack, leadership, reporter)
                    leadership.ends(RunEnd.now(ExitCode.DONE))
                except BaseException as error:
                    leadership.ends(_end_with(error))
                    raise
                finally:
                    # If this driver lost the state to another one, that fact replaces the error it ran into.
                    with suppress(StateError):
                        leadership.require_held()
        finally:
            with self._lock:
                self._supervisor = None
                self._stopping.clear()

    def _require_going(self) -> None:
        """Raise `StoppedWaitingError` if the run is to stop before it has readers."""
        self._stopping.require_going()

    def _commit_all(self, run: _Run, start: Start, planned: ResolvedRun | None) -> None:
        """Start all parts, and commit epochs until the run ends.

        Raises `StoppedWaitingError` if a stop comes before readers exist.
        """
        config, store, stack, reporter = self.config, run.store, run.stack, run.reporter
        output_mode = OutputMode.SINK if self._has_sink else OutputMode.HAND
        start_retry = StartRetry(run.leadership, reporter.warning, self._stopping)
        again = partial(resolve, start, store, warn=start_retry.warning, output_mode=output_mode, planned=planned)
        resolved = start_retry(again)
        take_up(resolved)
        self._require_going()
        source_side = SourceSide.open(stack, resolved, store, reporter)
        self._require_going()
        stalled_after_s = config.pipeline.watchdog.total_seconds()
        reports = RunReports.open(stack, store, reporter, run.leadership.before, stalled_after_s=stalled_after_s)
        data = DataSide(resolved, store, source_side)
        loop = data.open_loop(stack, run.leadership, reporter, start_retry=start_retry, tracker=reports.tracker)
        with proving_target(config, store, resolved.changed, loop.written):
            reports.recover(loop)
        commands = RunCommands(resolved, store, reporter.notify)
        commands.begin()
        reports.begin(loop.committed)
        parts = _Parts(
            source_side=source_side,
            loop=loop,
            reports=reports,
            commands=commands,
            ends_by_itself=start.until is not None,
        )
        self._follow_through_losses(run, parts)

    def _follow_through_losses(self, run: _Run, parts: _Parts) -> None:
        """Run all parts until the run ends. A private Ray that is lost is started again."""
        losses = RestartBudget()
        while True:
            losses.started(time.monotonic())
            try:
                self._follow(run, parts)
                parts.reports.ended()
                return
            except ClusterLostError as lost:
                self._supervisor = None
                pause_s = losses.pause_after(ProcessEnd.of(lost), time.monotonic())
                if pause_s is None or self._stopping.is_set() or not parts.source_side.renew():
                    raise
                run.reporter.warning(f"{lost.what} {NEW_RAY}")
                why = lost.what
            self._stopping.pause(pause_s)
            parts.reports.went_on("cluster", why, parts.loop.recover())

    def _follow(self, run: _Run, parts: _Parts) -> None:
        """Run the source side together with the recovered epoch loop until the run ends."""
        source_side, reporter = parts.source_side, run.reporter
        source_side.sweep()
        reporter.starting("starting the coordinator and its readers")
        with ExitStack() as stack:
            supervisor = self._supervised(run, stack, source_side)
            stack.enter_context(reporter.watching(supervisor.status, every_s=PROGRESS_S))
            stack.callback(parts.commands.follow(supervisor).close)
            source_side.promote_engines(stack, ends_by_itself=parts.ends_by_itself)
            _run_through_losses(parts.loop, supervisor, reporter, parts.reports)

    def _supervised(self, run: _Run, stack: ExitStack, source_side: SourceSide) -> Supervisor:
        """Start the processes of `source_side`, which run until `stack` closes. From now on a stop reaches them."""
        supervisor = source_side.supervise(stack, run.leadership)
        with self._lock:
            self._supervisor = supervisor
            stopping = self._stopping.is_set()
        if stopping:
            supervisor.stop()
        return supervisor


@contextmanager
def _ending(keeper: StatusKeeper) -> Iterator[None]:
    """Record in the status how the block ends."""
    try:
        yield
    except BaseException as error:
        keeper.ended(None if isinstance(error, GeneratorExit) else error)
        raise
    keeper.ended()


def _end_with(error: BaseException) -> RunEnd:
    """Return how a run ends after `error`. A stop, and a caller that closes `epochs` early, count as success."""
    if isinstance(error, KeyboardInterrupt):
        return RunEnd.now(ExitCode.INTERRUPTED)
    if not isinstance(error, Exception) or isinstance(error, StoppedWaitingError):
        return RunEnd.now(ExitCode.DONE)
    code, reported = error.exit_code if isinstance(error, RaycdcError) else ExitCode.BUG, Failed.of(error)
    return RunEnd.now(code, reported.error, reported.text)


def _end_of(until: str | None) -> Until | None:
    """Return the end that the caller named. Raises `ConfigError` for an unknown name."""
    if until is not None and until not in tuple(Until):
        raise ConfigError(f"until = {until!r} is unknown; it is {' or '.join(map(repr, map(str, Until)))}")
    return None if until is None else Until(until)


def _run_through_losses(
    loop: EpochLoop, supervisor: Supervisor, reporter: ProgressReporter, reports: RunReports
) -> None:
    """Run the loop. If a node is lost with segments that the sink lacks, recover as a new start would, and go on."""
    while True:
        try:
            loop.run()
            return
        except SegmentUnavailableError as lost:
            reporter.warning(f"{lost} {READ_AGAIN}")
            why = str(lost)
        reports.went_on("node", why, supervisor.start_over(loop.recover))
