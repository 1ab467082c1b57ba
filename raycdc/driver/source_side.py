"""The source side of a run: the inputs of its processes, their launcher, and their supervisor."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from raycdc.config import PipelineConfig
from raycdc.core import background_tasks
from raycdc.core.terminal_text import printable_text
from raycdc.delivery.outcomes import EpochStatistics
from raycdc.delivery.targets.parked_targets import parks_of
from raycdc.driver.consumer import next_manifest
from raycdc.driver.engine_promotion import (
    Engine,
    EnginePromotion,
    EnginesDue,
    EnginesNow,
    PromotableLauncher,
    PromotionState,
    RunBeginning,
)
from raycdc.driver.leadership import Leadership
from raycdc.driver.resolve import ResolvedRun
from raycdc.errors import ClusterLostError, ParkReason
from raycdc.model.engines import EngineName
from raycdc.observe.events import SchemaChanged
from raycdc.observe.status.progress import ProgressReporter
from raycdc.runtime.launcher import JobSpec, Launcher, LocalLauncher, this_machine
from raycdc.runtime.scaling import ReaderLimits
from raycdc.runtime.supervisor import Supervisor, SupervisorSettings
from raycdc.segments.access import SegmentAccess
from raycdc.segments.certificates import JobAuthority
from raycdc.segments.copies import SegmentCopies
from raycdc.source.protocol.coordinator import CoordinatorSettings
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.tables.table_requests import complete_requests, refusals_of
from raycdc.spark.executors import own_address
from raycdc.spark.lifecycle import SparkThread, new_session
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.parked import ParkedTarget
from raycdc.state.store import CheckpointStore

if TYPE_CHECKING:
    from raycdc.runtime.ray.ray_spools import SpoolSettings
from raycdc.storage.url import ObjectLocation, parse_location


class SourceSide:
    """The source side of a run: the inputs of its processes, their launcher, and their supervisor.

    The epoch loop calls `next_sealed`, `committed` and `parked`. During recovery there is no supervisor, and the calls
    that need one do nothing.
    """

    def __init__(
        self,
        config: PipelineConfig,
        store: CheckpointStore,
        reporter: ProgressReporter,
        spec: JobSpec,
        launcher: Launcher,
        spark: SparkThread | None = None,
    ) -> None:
        self._config, self._store, self._reporter = config, store, reporter
        self._launcher = launcher
        self.spec = spec
        #: None in a run without Spark.
        self.spark = spark
        self.supervisor: Supervisor | None = None
        #: The engine of the readers of each coordinator of this run, by its generation.
        self.readers: dict[int, EngineName] = {}

    @classmethod
    def open(
        cls, stack: ExitStack, resolved: ResolvedRun, store: CheckpointStore, reporter: ProgressReporter
    ) -> SourceSide:
        """Start the engines with which the run begins, and prepare its processes; `stack` ends all of them.

        Blocks while Ray and Spark start, if the run begins on them. Call it in the thread that runs to the end: Ray's
        processes die with the thread that started them.
        """
        config, local = resolved.config, resolved.start.local
        spec, begins = job_spec(resolved, store), RunBeginning.of(config, local=local)
        reporter.starting(begins.text(config))
        reporter.engines = EnginesNow(config, begins, None).now
        if begins is RunBeginning.LOCAL:
            launcher = new_launcher(config, spec, store, local=local, reporter=reporter)
            stack.callback(launcher.close)
            return cls(config, store, reporter, spec, launcher)
        waits = begins is RunBeginning.ON_ENGINES
        session = partial(new_session, config.spark, store.path, config.sink.type)
        spark = SparkThread(session, at_once=waits, warn=reporter.warning)
        stack.callback(spark.end)
        reporter.engines = EnginesNow(config, begins, spark).now
        if waits:
            launcher = new_launcher(config, spec, store, local=local, reporter=reporter)
        else:
            launcher = handed_launcher(config, spec, store, spark, reporter=reporter)
        stack.callback(launcher.close)
        stack.callback(spark.begin_end)
        if waits:
            spark.session()
        return cls(config, store, reporter, spec, launcher, spark)

    def access(self) -> SegmentAccess:
        """Return the present access to segments."""
        return self.spec.access.as_of(self._launcher.flights())

    def sweep(self) -> None:
        """Delete the segments that no sealed epoch needs, with their copies, here and on other nodes."""
        self._store.sweep_spool()
        needed = self._store.needed_segments()
        self._launcher.sweep(needed)
        if self.spec.copies is not None:
            self.spec.copies.sweep(needed)

    def supervise(self, stack: ExitStack, leadership: Leadership) -> Supervisor:
        """Start coordinator and readers under a supervisor, until `stack` closes or the state is lost."""
        supervisor = new_supervisor(
            self._config, self._launcher, self._store, leadership.term, self._reporter, self.readers
        )
        stack.callback(supervisor.close)
        leadership.on_lost(supervisor.fail)
        self.supervisor = supervisor
        return supervisor

    def promote_engines(self, stack: ExitStack, *, ends_by_itself: bool) -> None:
        """Move a run that began in this process to Ray and Spark when these are up, until `stack` closes."""
        launcher, supervisor = self._launcher, self.supervisor
        if isinstance(launcher, PromotableLauncher) and launcher.in_process and supervisor is not None:
            asked, due = PromotionState.of(self._store), EnginesDue(ends_by_itself=ends_by_itself)
            promote = EnginePromotion(launcher, supervisor, asked, notify=self._reporter.notify, due=due)
            stack.callback(promote.close)

    def renew(self) -> bool:
        """Forget the processes of a lost cluster; return True if a new cluster was started."""
        self.supervisor = None
        return self._launcher.renew()

    def next_sealed(self, after: int, wait_s: float) -> Manifest | None:
        """Return the first sealed epoch after `after`, or None if there is none within `wait_s`."""
        assert self.supervisor is not None
        return next_manifest(self._store, self.supervisor, after, wait_s)

    def committed(self, figures: EpochStatistics) -> None:
        """Report a commit to listeners and to the source side.

        During a recovery, only listeners get the report. The source side reads the commit record when it starts.
        """
        if self.supervisor is None:
            self._reporter.recovered(figures)
        else:
            complete_requests(self._store, figures.epoch)
            self.supervisor.epoch_committed(figures.epoch)
            self._reporter.committed(figures)
        for change in figures.schema_changes:
            self._reporter.notify(SchemaChanged(change.table, change.target, figures.epoch, change.changes))

    def parked(self, entries: Mapping[str, ParkedTarget]) -> None:
        """Report parked targets to the source side.

        Without a supervisor, the source side reads the record when it starts.

        A source with a log parks the tables and reports each in its status (`TableParked`); for other sources, this
        method is the only report.
        """
        self._reporter.hearers.parked(entries)
        if not self._has_log():
            for name, entry in sorted(entries.items()):
                # The texts of most target errors begin with the target's name.
                self._reporter.warning(f"{name} is parked: {entry.text.removeprefix(f'{name}: ')}")
        if self.supervisor is not None:
            self.supervisor.park_tables(refusals_of(entries))

    def _has_log(self) -> bool:
        return stream_of(self._store.last_manifest()) is not None


def job_spec(resolved: ResolvedRun, store: CheckpointStore) -> JobSpec:
    """Return the description from which every process of the run is created. Its token is new, for this run only."""
    config, rules = resolved.config, resolved.rules
    options = config.pipeline
    return JobSpec(
        state=store.location,
        make_source=resolved.make_source,
        refused=resolved.refused,
        settings=CoordinatorSettings(
            epoch_interval_s=options.epoch_interval.total_seconds(),
            epoch_bytes_max=options.epoch_bytes_max,
            reader_timeout_s=options.reader_timeout.total_seconds(),
            progress_timeout_s=options.progress_timeout.total_seconds(),
            is_rate_limited=bool(config.source.rate_limit),
            epochs_per_hour=config.early_epochs_per_hour,
        ),
        until=resolved.start.until,
        parking=parks_of(options)(ParkReason.CHANGE),
        fetchers=config.readers.fetchers,
        partitioned=rules.upsert,
        masks=rules.masks,
        token=secrets.token_urlsafe(24),
        copies=copies_of(config, store),
        authority=JobAuthority.new() if config.flies else None,
    )


def copies_of(config: PipelineConfig, store: CheckpointStore) -> SegmentCopies | None:
    """Return the access to copies of the state's segments; None if no copies are configured."""
    if not config.pipeline.spool:
        return None
    location = parse_location(config.pipeline.spool)
    assert isinstance(location, ObjectLocation)
    return SegmentCopies(location.below(store.checkpoint), config.storage.settings())


def limits_of(config: PipelineConfig) -> ReaderLimits:
    """Return the limits on the number of readers, and on their work."""
    readers = config.readers
    return ReaderLimits(readers.min, readers.max, config.source.readers_max, readers.cpus, config.source.rate_limit)


def new_launcher(
    config: PipelineConfig, spec: JobSpec, store: CheckpointStore, *, local: bool, reporter: ProgressReporter
) -> Launcher:
    """Return the launcher of the run's processes. Ray's processes die with the thread that calls this."""
    if local:
        return LocalLauncher(spec)
    # An earlier run may still be shutting down its Ray, which this run must not use.
    background_tasks.wait_for(background_tasks.now())
    return _ray_launcher(config, spec, store, reporter)


def handed_launcher(
    config: PipelineConfig, spec: JobSpec, store: CheckpointStore, spark: Engine, *, reporter: ProgressReporter
) -> PromotableLauncher:
    """Return the launcher of a run that begins in this process; Ray and `spark` start in the background."""
    return PromotableLauncher(LocalLauncher(spec), partial(_ray_launcher, config, spec, store, reporter), spark)


def _ray_launcher(
    config: PipelineConfig,
    spec: JobSpec,
    store: CheckpointStore,
    reporter: ProgressReporter,
    readers: int | None = None,
) -> Launcher:
    """Start Ray with the processes of this many `readers` (None: the number for the start)."""
    from raycdc.runtime.ray.ray_private import prepare

    prepare(config.ray.address)
    from raycdc.runtime.ray.ray_launcher import RayLauncher, RayListeners
    from raycdc.runtime.ray.ray_nodes import ReaderNeeds

    options = config.ray
    limits, here = limits_of(config), [this_machine()]
    if readers is None:
        readers = limits.bounds(here)[0] if store.sealed_epochs() else limits.first(here)
    needs = ReaderNeeds(config.readers.cpus, config.readers.resources, config.readers.labels)
    alone = options.address == "local" and config.spark.is_here
    listeners = RayListeners(reporter.warning, reporter.failed, partial(_end_process, reporter))
    return RayLauncher(
        spec,
        address=options.address,
        readers=readers,
        spools=None if alone else _spools_of(config, spec, store),
        listeners=listeners,
        needs=needs,
    )


def _spools_of(config: PipelineConfig, spec: JobSpec, store: CheckpointStore) -> SpoolSettings:
    """Return the settings of the spool servers.

    They keep the segments of epochs that are not recorded as committed yet.
    """
    from raycdc.runtime.ray.ray_spools import SpoolSettings

    address = "" if config.spark.is_here else own_address(config.spark.master, config.spark.conf)
    record = store.last_commit()
    waiting = store.manifests(record.epoch if record else 0)
    return SpoolSettings(
        store.path,
        store.checkpoint,
        spec.token or "",
        config.ray.spool,
        spec.authority,
        address,
        owing=frozenset(segment.node for manifest in waiting for segment in manifest.segments),
    )


def _end_process(reporter: ProgressReporter, lost: ClusterLostError) -> None:
    """Report `lost` and end the process, before Ray does so with its own message and another exit code."""
    try:
        reporter.failed(lost)
        sys.stderr.write(f"{printable_text(str(lost))}\n")
        sys.stderr.flush()
        reporter.hearers.exits(lost)
    finally:
        # The process ends even if a listener or standard error fails.
        os._exit(int(lost.exit_code))


class Processes:
    """Reports the processes of the source side when they change.

    The process `hidden` is not reported, because it may outlive the driver.
    """

    def __init__(self, notify: Callable[[int, Sequence[int]], None], *, hidden: int | None = None) -> None:
        self._notify, self._hidden = notify, hidden
        self._reported: tuple[int, tuple[int, ...]] | None = None

    def __call__(self, enumerator: int, readers: Sequence[int]) -> None:
        shown = (enumerator, tuple(pid for pid in readers if pid != self._hidden))
        if shown != self._reported:
            self._reported = shown
            self._notify(*shown)


def new_supervisor(
    config: PipelineConfig,
    launcher: Launcher,
    store: CheckpointStore,
    term: DriverGeneration,
    reporter: ProgressReporter,
    readers: dict[int, EngineName],
) -> Supervisor:
    """Return the supervisor, which starts coordinator and readers; `readers` gets the engine of each generation.

    The supervisor starts both immediately.
    """
    record = store.last_commit

    def next_generation() -> int:
        generation = term.for_coordinator()
        readers[generation] = launcher.engine
        return generation

    # The driver's process reads until the promotion.
    hidden = os.getpid() if isinstance(launcher, PromotableLauncher) else None
    return Supervisor(
        launcher,
        SupervisorSettings(
            limits=limits_of(config),
            next_generation=next_generation,
            committed=lambda: commit.epoch if (commit := record()) else 0,
            on_processes=Processes(reporter.processes, hidden=hidden),
            on_warning=reporter.warning,
            on_scaled=reporter.scaled,
        ),
    )
