"""The source side of a run: the values that its processes are made from, their launcher, and their supervisor."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from raycdc.config import PipelineConfig
from raycdc.core import background_tasks
from raycdc.core.terminal_text import printable_text
from raycdc.delivery.outcomes import EpochStatistics
from raycdc.delivery.targets.parked_targets import parks_of
from raycdc.driver.consumer import next_manifest
from raycdc.driver.engine_promotion import Engine, PromotableLauncher
from raycdc.driver.resolve import ResolvedRun
from raycdc.errors import ClusterLostError, ParkReason
from raycdc.model.engines import EngineName
from raycdc.observe.events import SchemaChanged
from raycdc.observe.status.progress import ProgressReporter
from raycdc.runtime.launcher import JobSpec, Launcher, LocalLauncher, this_machine
from raycdc.runtime.scaling import ReaderLimits
from raycdc.runtime.supervisor import Supervisor, SupervisorSettings
from raycdc.segments.certificates import JobAuthority
from raycdc.segments.copies import SegmentCopies
from raycdc.source.protocol.coordinator import CoordinatorSettings
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.tables.table_requests import complete_requests, refusals_of
from raycdc.spark.addresses import own_address
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.parked import ParkedTarget
from raycdc.state.store import CheckpointStore

if TYPE_CHECKING:
    from raycdc.runtime.ray.ray_spools import SpoolSettings
from raycdc.storage.url import ObjectLocation, parse_location


class SourceSide:
    """The epoch loop's access to the source side. During recovery there is no source side yet, and calls do nothing."""

    def __init__(self, store: CheckpointStore, reporter: ProgressReporter) -> None:
        self._store = store
        self._reporter = reporter
        self.supervisor: Supervisor | None = None
        #: Whose readers each coordinator of this run has, by its generation.
        self.readers: dict[int, EngineName] = {}

    def next_sealed(self, after: int, wait_s: float) -> Manifest | None:
        """The first sealed epoch after `after`, or None when there was none for `wait_s`."""
        assert self.supervisor is not None
        return next_manifest(self._store, self.supervisor, after, wait_s)

    def committed(self, figures: EpochStatistics) -> None:
        """Report a commit to listeners and to the source side.

        A recovery that has no source side reports to listeners only: the source side reads the record when it starts.
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
                # Most errors of a target begin with its name.
                self._reporter.warning(f"{name} is parked: {entry.text.removeprefix(f'{name}: ')}")
        if self.supervisor is not None:
            self.supervisor.park_tables(refusals_of(entries))

    def _has_log(self) -> bool:
        return stream_of(self._store.last_manifest()) is not None


def job_spec(resolved: ResolvedRun, store: CheckpointStore) -> JobSpec:
    """The description from which every process of the run is made. Its token is new, so it is this run's alone."""
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
    """The copies of the state's segments; None where there are none."""
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
    """The launcher of the run's processes. Ray's processes die with the thread that calls this."""
    if local:
        return LocalLauncher(spec)
    # An earlier run may still be shutting down its Ray, which this one must not take for its own.
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
    """The settings of the spool servers; they keep the segments of epochs that no record names yet."""
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
        # Whatever a listener or standard error has against it.
        os._exit(int(lost.exit_code))


class Processes:
    """Reports the processes of the source side.

    A `hidden` one is not counted as a reader, because it may outlive the driver.
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
    """The supervisor of coordinator and readers, which starts them; `readers` gets whose they are, by generation."""
    record = store.last_commit

    def next_generation() -> int:
        generation = term.for_coordinator()
        readers[generation] = launcher.engine
        return generation

    # The driver reads by itself until it hands over.
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
