"""The composition root, and the Python API: a source, a sink and a state become a running pipeline.

This is the only module that imports every part (Flink CDC's PipelineComposer). It starts the parts in this order, so
that a failed start has nothing to undo: lease, preflight of the source, engines, sink, recovery, source side, epoch
loop. It ends them in the reverse order.

*Locks.* A thread that holds one of these locks takes only locks further down the table, which rules out deadlocks
(`tests/unit/driver/test_lock_order.py` records the order during a run):

| lock | held while |
|---|---|
| supervisor | processes are started, checked and ended, and the steps between two generations are done |
| coordinator's host (``--local``), launcher, Spark's start | a call to one of them runs |
| reporter | listeners receive an event one by one: notifications, control API, log, caller's listener |
| each listener | it keeps, writes or shows the event |
| pipeline, events and queues | a flag is set; nothing is called |

A listener may therefore call `Pipeline.stop`, which takes only the pipeline's lock: the supervisor carries the stop out
on its own thread. A signal handler may take none of these locks, not even that of a `threading.Event`; it puts a value
into a `queue.SimpleQueue`.
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
from raycdc.core.activity import ActivityTracker, Stage
from raycdc.delivery.epoch_loop import EpochLoop, request_resnapshot
from raycdc.delivery.ports import EpochPorts, Routing
from raycdc.delivery.targets.parked_targets import ParkingPolicy, SinkOutagePolicy, parks_of
from raycdc.driver.command_queue import CommandQueue
from raycdc.driver.consumer import Epoch, Ledger
from raycdc.driver.data_side import DataSide, bad_records
from raycdc.driver.engine_promotion import (
    EnginePromotion,
    EnginesDue,
    EnginesNow,
    PromotableLauncher,
    PromotionState,
    RunBeginning,
)
from raycdc.driver.fitting import proving_target
from raycdc.driver.leadership import Leadership, StoppedWaitingError, take
from raycdc.driver.live_commands import POLL_S, POLL_STORE_S, LiveCommands, command_rules
from raycdc.driver.resolve import OutputMode, ResolvedRun, resolve, take_up
from raycdc.driver.source_side import SourceSide, copies_of, handed_launcher, job_spec, new_launcher, new_supervisor
from raycdc.driver.start_retry import StartRetry
from raycdc.driver.startup_checks import Start, begin, no_order, order_by
from raycdc.errors import ClusterLostError, ConfigError, ExitCode, RaycdcError, SegmentUnavailableError, StateError
from raycdc.model.engines import EngineName
from raycdc.model.rules.until import Until
from raycdc.observe.events import Commanded, Failed, Listener
from raycdc.observe.events.log_file import LogFile
from raycdc.observe.notify.notifier import Notifier
from raycdc.observe.status import RunProcess, RunStatus, StatusKeeper
from raycdc.observe.status.progress import ProgressReporter
from raycdc.observe.tracing.traced import traced
from raycdc.observe.watch.run_reports import (
    NewTables,
    PhaseReporter,
    Recoveries,
    phases_at,
    refused_by_targets,
    watching_stores,
)
from raycdc.observe.watch.watchdog import Watchdog
from raycdc.runtime.launcher import JobSpec, Launcher
from raycdc.runtime.restarts import ProcessEnd, RestartBudget
from raycdc.runtime.supervisor import Supervisor
from raycdc.server.service import ControlService
from raycdc.source.selection import known_tables
from raycdc.source.tables.table_requests import complain_of_parked, requests_of
from raycdc.spark.lifecycle import SparkThread, activity, new_session
from raycdc.state.bad_row_counts import bad_rows
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.drivers.holder import RunEnd
from raycdc.state.full_changelog import FullBy
from raycdc.state.location import state_of
from raycdc.state.store import CheckpointStore

#: How often progress is reported, in seconds.
PROGRESS_S = 0.5
#: Ends the warning that rows of a lost node are read again; tests wait for it.
READ_AGAIN = "What it had is read again."
#: Ends the warning that a private Ray was lost.
NEW_RAY = "A new one is started, and the run goes on from what was sealed."


@dataclass(frozen=True, slots=True)
class _Run:
    """The objects that one run has from its start. Closing `stack` ends what the run has started."""

    stack: ExitStack
    leadership: Leadership
    reporter: ProgressReporter

    @property
    def store(self) -> CheckpointStore:
        return self.leadership.store

    @property
    def term(self) -> DriverGeneration:
        return self.leadership.term


class Pipeline:
    """Keeps the tables of one source equal in one sink.

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
        """`options` are those of ``[pipeline]``. Without a `sink` the pipeline serves `epochs` only."""
        if config is None:
            pipeline = PipelineOptions(name=name, state=str(state), **options)
            config = PipelineConfig(pipeline=pipeline, source=source, sink=sink or SinkConfig(type="none"))
        self.config = config
        self._ordered = bool(order_by(config))
        self._has_sink = sink is not None
        #: Reentrant: `stop` may come from a signal handler, in the middle of this very thread.
        self._lock = threading.RLock()
        self._supervisor: Supervisor | None = None
        self._stopping = threading.Event()
        self._keeper = self._keep_status(local=False)

    @classmethod
    def from_config(cls, config: PipelineConfig) -> Pipeline:
        """A pipeline as a TOML file describes it (`raycdc.config.load_config`)."""
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
        """Run in the foreground until stopped, or until ``"caught-up"``. Raises `RaycdcError` for every expected error.

        `local`, like ``pipeline.engines = "never"``, keeps everything in threads of this process: no Ray, no Spark.
        With `standby`, the run first waits until the driver that has the state ends or sends no heartbeat.
        `FencedError` ends a run whose state another driver took over. `listener` receives the events of
        `raycdc.observe.events`, from threads of the pipeline; an error in it is reported once as a warning and does not
        end the run. `show_page` receives the address of the web UI with a login code that is valid for one browser
        within ten minutes (``ADDRESS/#login=CODE``). `planned` is the run as it was resolved for a comparison with a
        plan; its decisions are taken, and not made a second time.
        """
        local = local or self.config.is_local
        log = LogFile(self.config.logging, self.config.pipeline.name)
        keeper = self._keep_status(local=local)
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
        # The control API opens after the checks, which need its port to be free, and before the run waits for the
        # state.
        begun = partial(control.open, reporter.warning)
        with self._one_run(start, reporter, standby=standby, begun=begun) as run:
            control.take(run.leadership, reporter.warning)
            run.stack.callback(control.close)
            ended = self._commit_all(run, start, planned)
            last, record = (run.store.last_manifest(), run.store.last_commit()) if ended else (None, None)
            stopped, complaint = self._stopping.is_set(), None
            if not stopped:
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

    def _keep_status(self, *, local: bool) -> StatusKeeper:
        """A new run's status, from now on."""
        sink = self.config.sink
        run = RunProcess.here(
            self.config.pipeline.name, f"{sink.type} {sink.store or sink.folder}".strip(), local=local
        )
        self._keeper = StatusKeeper(run)
        return self._keeper

    def stop(self) -> None:
        """Seal and commit the rows read so far, then let `run` return.

        Call it from any thread, also within the `listener` of `run`; but not from a signal handler, because it takes
        locks that the interrupted code may hold.
        """
        with self._lock:
            self._stopping.set()
            supervisor = self._supervisor
        if supervisor is not None:
            supervisor.stop()

    def epochs(self, *, until: str | None = None, local: bool = True) -> Iterator[Epoch]:
        """Sealed epochs as Arrow batches, for people who bring their own sink. Each must be acknowledged.

        An epoch that was not acknowledged comes again, the same rows under the same number, after a restart: a
        consumer that records the number together with the rows has them exactly once.
        """
        with self.ledger(until=until, local=local) as ledger:
            yield from ledger.epochs()

    @contextmanager
    def ledger(self, *, until: str | None = None, local: bool = True, in_flight_max: int = 0) -> Iterator[Ledger]:
        """The source side alone, running while the block does: what `epochs` is made of.

        At most `in_flight_max` epochs are sealed and not acknowledged (0: as many as for a sink).
        """
        config, local = self.config, local or self.config.is_local
        if self._ordered:
            raise no_order("a sink of one's own")
        sections = {"route": config.routes, "transform": config.transforms, "lookup": config.lookups}
        for section, entries in {**sections, "mask": config.masks}.items():
            if entries:
                raise ConfigError(f"{section}: epochs for a sink of one's own have the source's tables; leave it out.")
        keeper = self._keep_status(local=local)
        silent = ProgressReporter({}, keeper)
        start = Start(config, local, has_sink=False, asked=_end_of(until))
        with _ending(keeper), self._one_run(start, silent) as run:
            store = run.store
            output_mode = OutputMode.HAND_FOR_SINK if self._has_sink else OutputMode.HAND
            patiently = StartRetry(run.leadership, silent.warning, self._stopping)
            resolved = patiently(partial(resolve, start, store, warn=patiently.warning, output_mode=output_mode))
            if resolved.full_by is FullBy.ROW_STORE:
                raise ConfigError(
                    'source.changelog: "full" is for rows on their way to a sink of raycdc\'s; leave it out, or let '
                    "all captured collections keep images."
                )
            take_up(resolved)
            # A caller that takes epochs itself resnapshots lost rows, so copies of segments would be of no use.
            spec = replace(job_spec(resolved, store), copies=None)
            at_once = in_flight_max or spec.settings.in_flight_max
            spec = replace(spec, settings=replace(spec.settings, in_flight_max=at_once, hand_taken=True))
            CommandQueue(store).judge_rows(command_rules(config, resolved.require_rows))
            store.sweep_spool()
            sealed_before = store.next_epoch() - 1
            launcher = new_launcher(config, spec, store, local=local, reporter=silent)
            run.stack.callback(launcher.close)
            launcher.sweep(store.needed_segments())
            yield Ledger(
                store,
                self._supervised(run, run.stack, launcher, {}),
                bad_records(config, store),
                access=lambda: spec.access.as_of(launcher.flights()),
                generation=run.term.generation,
                sealed_before=sealed_before,
            )

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
        started again. `begin` is called with the start, `begun` once every check passed.
        """
        try:
            with ExitStack() as stack:
                begin(start)
                begun()
                stack.enter_context(watching_stores(reporter.warning))
                options = self.config.pipeline
                store = CheckpointStore(state_of(self.config), pipeline=options.name)
                leadership = take(stack, store, reporter, standby=standby, stopping=self._stopping)
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

    def _stopped_early(self) -> bool:
        return self._stopping.is_set()

    def _commit_all(self, run: _Run, start: Start, planned: ResolvedRun | None) -> bool:
        """Start everything and commit epochs to the end; False where a stop came before there were readers."""
        config, store, reporter, local = self.config, run.store, run.reporter, start.local
        output_mode = OutputMode.SINK if self._has_sink else OutputMode.HAND
        patiently = StartRetry(run.leadership, reporter.warning, self._stopping)
        again = partial(resolve, start, store, warn=patiently.warning, output_mode=output_mode, planned=planned)
        resolved = patiently(again)
        take_up(resolved)
        if self._stopped_early():
            return False
        spec = job_spec(resolved, store)
        begins = RunBeginning.of(config, local=local)
        waits = begins is RunBeginning.ON_ENGINES
        reporter.starting(begins.text(config))
        spark = None
        if begins is not RunBeginning.LOCAL:
            session = partial(new_session, config.spark, store.path, config.sink.type)
            spark = SparkThread(session, at_once=waits, warn=reporter.warning)
            run.stack.callback(spark.end)
        reporter.engines = EnginesNow(config, begins, spark).now
        if spark is not None and begins is RunBeginning.HERE:
            launcher: Launcher = handed_launcher(config, spec, store, spark, reporter=reporter)
        else:
            # In this thread: Ray's processes die with the thread that started them.
            launcher = new_launcher(config, spec, store, local=local, reporter=reporter)
        run.stack.callback(launcher.close)
        if spark is not None:
            run.stack.callback(spark.begin_end)
            if waits:
                spark.session()
        if self._stopped_early():
            return False
        if spark is not None and waits:
            spark.warm_up()
        reporter.starting("asking the sink what it holds")
        data = DataSide(resolved, store, spec.access, spark)
        watchdog = Watchdog(config.pipeline.watchdog.total_seconds(), reporter.notify, reporter.hearers.moved)
        watchdog.tracker.around = partial(activity, spark)
        run.stack.enter_context(watchdog.watching())
        reporter.hearers.on_status.append(watchdog.heard)
        reporter.hearers.on_asking.append(watchdog.asked)
        if spark is not None and not config.spark.is_here:
            from raycdc.spark.executors import probe  # Only here, because most runs have no executors elsewhere.

            reporter.starting("asking an executor of Spark to read rows")
            with watchdog.tracker.doing(Stage.OPEN, "waits for an executor of Spark that reads rows from here"):
                probe(spark.session(), store.spool, spec.access.as_of(launcher.flights()))
        routing = data.open(run.stack, reporter.warning, patiently=patiently, tracker=watchdog.tracker)
        self._commit_epochs(run, resolved, routing, spec, launcher, tracker=watchdog.tracker)
        return True

    def _commit_epochs(
        self,
        run: _Run,
        resolved: ResolvedRun,
        routing: Routing,
        spec: JobSpec,
        launcher: Launcher,
        *,
        tracker: ActivityTracker,
    ) -> None:
        """Recover, then run the source side and the epoch loop together."""
        store, reporter = run.store, run.reporter
        source_side = SourceSide(store, reporter)
        ports = EpochPorts(
            generation=run.term.generation,
            read_by=source_side.readers.get,
            next_sealed=source_side.next_sealed,
            on_committed=source_side.committed,
            access=lambda: spec.access.as_of(launcher.flights()),
            copies=spec.copies,
            routing=routing,
            tracker=tracker,
            request_resnapshot=partial(request_resnapshot, store, reporter.warning),
            parking=ParkingPolicy(
                parks_of(self.config.pipeline),
                on_parked=source_side.parked,
                on_bad_rows=reporter.warning,
                follows=self.config.source.captures,
                waiting=SinkOutagePolicy(self.config.sink.folder, reporter.warning),
            ),
        )
        ports = run.stack.enter_context(traced(self.config, store, ports, reporter))
        loop = EpochLoop(store, resolved.start.sink, ports)
        run.leadership.on_lost(lambda _: loop.stop())
        with proving_target(self.config, store, resolved.changed, loop.written):
            recoveries, phases = Recoveries(run.leadership.before, reporter.notify), phases_at(store, loop.committed)
            recoveries.began(loop.recover())
        for answer in CommandQueue(store).begin(command_rules(self.config, resolved.require_rows)):
            reporter.notify(Commanded(answer))
        last = store.last_manifest()
        # The start itself reports the tables that have requests, so they count as known here.
        known = None if last is None else known_tables(last) | requests_of(store).tables.keys()
        reporter.hearers.on_status.append(NewTables(known, reporter.notify).heard)
        table_states = PhaseReporter(phases, reporter.notify, refused_by_targets(store.last_commit()))
        reporter.hearers.on_parked.append(table_states.parked)
        reporter.hearers.on_status.extend([recoveries.heard, table_states.heard])
        reporter.bad_rows(bad_rows(store, loop.committed))
        losses = RestartBudget()
        while True:
            losses.started(time.monotonic())
            try:
                self._follow(run, resolved, loop, launcher, source_side, recoveries)
                table_states.ended()
                return
            except ClusterLostError as lost:
                source_side.supervisor = self._supervisor = None
                pause_s = losses.pause_after(ProcessEnd.of(lost), time.monotonic())
                if pause_s is None or self._stopped_early() or not launcher.renew():
                    raise
                reporter.warning(f"{lost.what} {NEW_RAY}")
                why = lost.what
            threading.Event().wait(pause_s)
            recoveries.went_on("cluster", why, loop.recover())

    def _follow(
        self,
        run: _Run,
        resolved: ResolvedRun,
        loop: EpochLoop,
        launcher: Launcher,
        source_side: SourceSide,
        recoveries: Recoveries,
    ) -> None:
        """Run the source side together with the recovered epoch loop until the run ends."""
        run.store.sweep_spool()
        needed = run.store.needed_segments()
        launcher.sweep(needed)
        if (copies := copies_of(self.config, run.store)) is not None:
            copies.sweep(needed)
        run.reporter.starting("starting the coordinator and its readers")
        with ExitStack() as stack:
            supervisor = source_side.supervisor = self._supervised(run, stack, launcher, source_side.readers)
            stack.enter_context(run.reporter.watching(supervisor.status, every_s=PROGRESS_S))
            commands = LiveCommands(
                CommandQueue(run.store),
                command_rules(self.config, resolved.require_rows),
                supervisor,
                notify=lambda answer: run.reporter.notify(Commanded(answer)),
                every_s=POLL_STORE_S if run.store.location.on_store else POLL_S,
            )
            stack.callback(commands.close)
            if isinstance(launcher, PromotableLauncher) and launcher.in_process:
                asked, due = PromotionState.of(run.store), EnginesDue(ends_by_itself=resolved.start.until is not None)
                promote = EnginePromotion(launcher, supervisor, asked, notify=run.reporter.notify, due=due)
                stack.callback(promote.close)
            _run_through_losses(loop, supervisor, run.reporter, recoveries)

    def _supervised(
        self, run: _Run, stack: ExitStack, launcher: Launcher, readers: dict[int, EngineName]
    ) -> Supervisor:
        """A supervisor of this run until `stack` ends, which a stop reaches from now on; see `new_supervisor`."""
        supervisor = new_supervisor(self.config, launcher, run.store, run.term, run.reporter, readers)
        stack.callback(supervisor.close)
        run.leadership.on_lost(supervisor.fail)
        with self._lock:
            self._supervisor = supervisor
            stopping = self._stopping.is_set()
        if stopping:
            supervisor.stop()
        return supervisor


@contextmanager
def _ending(keeper: StatusKeeper) -> Iterator[None]:
    """Note in the status how the block ends."""
    try:
        yield
    except BaseException as error:
        keeper.ended(None if isinstance(error, GeneratorExit) else error)
        raise
    keeper.ended()


def _end_with(error: BaseException) -> RunEnd:
    """Return how a run ends that met `error`. A caller that closes `epochs` early counts as done."""
    if isinstance(error, KeyboardInterrupt):
        return RunEnd.now(ExitCode.INTERRUPTED)
    if not isinstance(error, Exception):
        return RunEnd.now(ExitCode.DONE)
    code, reported = error.exit_code if isinstance(error, RaycdcError) else ExitCode.BUG, Failed.of(error)
    return RunEnd.now(code, reported.error, reported.text)


def _end_of(until: str | None) -> Until | None:
    """Return the end that the caller named. Raises `ConfigError` for an unknown name."""
    if until is not None and until not in tuple(Until):
        raise ConfigError(f"until = {until!r} is unknown; it is {' or '.join(map(repr, map(str, Until)))}")
    return None if until is None else Until(until)


def _run_through_losses(
    loop: EpochLoop, supervisor: Supervisor, reporter: ProgressReporter, recoveries: Recoveries
) -> None:
    """Run the loop. If a node is lost with segments that the sink lacks, recover as a new start would, and go on."""
    while True:
        try:
            loop.run()
            return
        except SegmentUnavailableError as lost:
            reporter.warning(f"{lost} {READ_AGAIN}")
            why = str(lost)
        recoveries.went_on("node", why, supervisor.start_over(loop.recover))
