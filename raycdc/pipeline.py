"""The composition root, and the Python API: a source, a sink and a state become a running pipeline.

The only module that knows everything (Flink CDC's PipelineComposer). It starts things in an order in which nothing has
to be undone: lease, preflight of the source, engines, sink, recovery, source side, epoch loop; and ends them in the
reverse one.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from raycdc.bridge import ANYWHERE
from raycdc.bridge.access import SegmentAccess
from raycdc.bridge.bad_rows import DEAD_LETTER, BadRecords
from raycdc.checkpoint.bad_rows import bad_rows
from raycdc.checkpoint.changelog import FullBy
from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.names import add_column_names, column_names
from raycdc.checkpoint.parked import ParkedTarget
from raycdc.checkpoint.store import CheckpointStore, CommitRecord
from raycdc.checkpoint.term import DriverTerm
from raycdc.config import Mode, PipelineConfig, PipelineOptions, SinkConfig, SourceConfig
from raycdc.consumer import Epoch, Ledger
from raycdc.epochs.epoch_loop import EpochLoop
from raycdc.epochs.known_rows import KnownRows
from raycdc.epochs.outcomes import EpochStatistics
from raycdc.epochs.parked_targets import Parking, Waiting, parks_of
from raycdc.epochs.ports import EpochPorts
from raycdc.epochs.routing import Routing
from raycdc.epochs.sieve import Sieve
from raycdc.errors import ConfigError, SegmentUnavailableError, StateError
from raycdc.lookup import open_joiner
from raycdc.model import TableId
from raycdc.preflight import naming_of, naming_place, preflight, refused_at_start, settle_place, source_maker
from raycdc.progress import ProgressReporter
from raycdc.runtime.launcher import JobSpec, Launcher, LocalLauncher
from raycdc.runtime.supervisor import Supervisor, SupervisorSettings
from raycdc.schema.behavior import SchemaChangeBehavior
from raycdc.sinks.api import UPSERT, Sink, SinkContext
from raycdc.source.connector import Source
from raycdc.source.parking import Refusal
from raycdc.source.protocol.coordinator import CoordinatorSettings
from raycdc.source.split import STREAM_SPLIT_ID
from raycdc.source.table_requests import ask_for_lost_rows, complain_of_parked, refusals_of, settle
from raycdc.spark.lifecycle import SparkThread, task_runner
from raycdc.startup_checks import Start, begin, no_merging, no_order, order_by, require_known_rows
from raycdc.transform import PlainResolver, Resolver, TransformedTables, TransformUse
from raycdc.transform.naming import Names

Listener = Callable[[dict[str, Any]], None]
Ended = tuple[Manifest | None, CommitRecord | None]

#: How often progress is reported.
PROGRESS_S = 0.5


class Pipeline:
    """One source kept equal in one sink. It may run again after it ended, and `stop` be called from any thread.

    ``Pipeline.from_config(load_config("shop.toml"))``, or in Python
    ``Pipeline(name="shop", state="./state/shop", source=MySqlSource(...), sink=DeltaSink(...))``.
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
        self._order_by = order_by(config)
        self._has_sink = sink is not None
        #: Reentrant: `stop` may come from a signal handler, in the middle of this very thread.
        self._lock = threading.RLock()
        self._supervisor: Supervisor | None = None
        self._stop_requested = False
        self._full_by = FullBy.NOTHING
        self._refused: tuple[Refusal, ...] = ()
        self._naming = naming_of(config, {})

    @classmethod
    def from_config(cls, config: PipelineConfig) -> Pipeline:
        """A pipeline as a TOML file describes it (`raycdc.config.load_config`)."""
        return cls(source=config.source, sink=config.sink, config=config)

    def run(self, *, until: str | None = None, local: bool = False, listener: Listener = lambda _: None) -> None:
        """Run in the foreground until stopped, or until ``"caught-up"``. Raises `RaycdcError` for everything named.

        `local` keeps everything in threads of this process: no Ray, no Spark. `listener` gets the events of
        ``raycdc run --json``, from threads of the pipeline.
        """
        reporter = ProgressReporter(listener, driver_pid=os.getpid())
        with self._one_run(), ExitStack() as stack:
            last, record = self._run(stack, reporter, until=until, local=local)
            stack.close()
            # After everything was told: also that the tables were parked, and when.
            if not self._stop_requested:
                complain_of_parked(last, record, selects=self.config.source.captures)
            reporter.finished(stopped=self._stop_requested)

    def _run(self, stack: ExitStack, reporter: ProgressReporter, *, until: str | None, local: bool) -> Ended:
        """The run itself; what it starts is on `stack`. Returns the manifest and the record it ended with.

        Before there are readers, a stop just leaves.
        """
        start = Start(self.config, local, self._has_sink)
        begin(start)
        store, term = self._open_store(stack)
        self._preflight(store, reporter)
        if self._full_by is FullBy.KNOWN_ROWS:
            require_known_rows(start)
        if self._stopped_early():
            return None, None
        spec = self._spec(store, until)
        reporter.starting("starting" if local else "starting Ray and Spark")
        spark = None if local else SparkThread(partial(self._session, store))
        if spark is not None:
            stack.callback(spark.end)
        # In this thread: Ray's processes die with the thread that started them.
        launcher = self._launcher(spec, store, local=local, warn=reporter.warning)
        stack.callback(launcher.close)
        if spark is not None:
            stack.callback(spark.begin_end)
        session = spark.session() if spark else None
        if self._stopped_early():
            return None, None
        if spark is not None:
            spark.warm_up()
        reporter.starting("asking the sink what it holds")
        sink, known = self._open_sink(stack, store, spec, session, start.sink)
        routing = replace(self._routing(store, sink, session, spec.access, reporter), known=known)
        warn, here = reporter.warning, session is None or self._spark_is_here
        joiner = open_joiner(stack, self.config.lookups, store.path, routing.records, spec.access, here, warn)
        self._run_epochs(stack, store, term, sink, launcher, spec, reporter, replace(routing, joiner=joiner))
        return store.last_manifest(), store.last_commit()

    def stop(self) -> None:
        """Seal and commit what was read, then let `run` return."""
        with self._lock:
            self._stop_requested = True
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
        if self._order_by:
            raise no_order("a sink of one's own")
        for section in ("route", "transform", "lookup", "mask"):
            if getattr(self.config, f"{section}s"):
                raise ConfigError(f"{section}: epochs for a sink of one's own have the source's tables; leave it out.")
        with self._one_run(), ExitStack() as stack:
            begin(Start(self.config, local, has_sink=False))
            store, term = self._open_store(stack)
            silent = ProgressReporter(lambda _: None, driver_pid=os.getpid())
            self._preflight(store, silent, has_sink=False)
            if self._full_by is FullBy.KNOWN_ROWS:
                raise ConfigError(
                    'source.changelog: "full" is for rows on their way to a sink of raycdc\'s; leave it out, or let '
                    "all captured collections keep images."
                )
            spec = self._spec(store, until)
            if in_flight_max:
                spec = replace(spec, settings=replace(spec.settings, in_flight_max=in_flight_max))
            store.sweep_spool()
            sealed_before = store.next_epoch() - 1
            launcher = self._launcher(spec, store, local=local, warn=silent.warning)
            stack.callback(launcher.close)
            launcher.sweep(store.needed_segments())
            supervisor = self._supervise(stack, store, launcher, silent, term=term)
            bad = self._bad_records(store)
            yield Ledger(
                store,
                supervisor,
                bad,
                access=lambda: spec.access.as_of(launcher.flights()),
                generation=term.generation,
                sealed_before=sealed_before,
            )

    def _stopped_early(self) -> bool:
        return self._stop_requested

    @contextmanager
    def _one_run(self) -> Iterator[None]:
        """A stop is for the run under way, or for the next one; afterwards the pipeline is as new."""
        try:
            yield
        finally:
            with self._lock:
                self._supervisor, self._stop_requested = None, False

    # --- parts ----------------------------------------------------------------------------------------------------

    def _open_store(self, stack: ExitStack) -> tuple[CheckpointStore, DriverTerm]:
        options = self.config.pipeline
        store = CheckpointStore(options.state, pipeline=options.name)
        lease = store.lease()
        stack.callback(lease.release)
        return store, DriverTerm(store)

    def _preflight(self, store: CheckpointStore, reporter: ProgressReporter, *, has_sink: bool = True) -> None:
        self._naming = naming_of(self.config, column_names(store))
        self._full_by = preflight(self.config, store, self._make_source(), warn=reporter.warning, has_sink=has_sink)
        self._refused = refused_at_start(self.config, store, self._make_source()())

    def _make_source(self) -> Callable[[], Source[Any]]:
        upsert = self._has_sink and self.config.sink.write == UPSERT
        how: dict[str, Any] = {"full_by": self._full_by, "naming": self._naming, "has_sink": self._has_sink}
        return source_maker(self.config, upsert=upsert, **how)

    def _spec(self, store: CheckpointStore, until: str | None) -> JobSpec:
        options = self.config.pipeline
        mode = self.config.mode
        if until is None and mode is not Mode.CONTINUOUS:
            until = "snapshot" if mode is Mode.SNAPSHOT else "caught-up"
        return JobSpec(
            state=store.path,
            make_source=self._make_source(),
            refused=self._refused,
            settings=CoordinatorSettings(
                epoch_interval_s=options.epoch_interval.total_seconds(),
                epoch_bytes_max=options.epoch_bytes_max,
                reader_timeout_s=options.reader_timeout.total_seconds(),
                progress_timeout_s=options.progress_timeout.total_seconds(),
            ),
            until=until,
            parking=options.schema_change != "exception" and options.on_table_error == "park",
            partitioned=self._has_sink and self.config.sink.write == UPSERT,
            masks=self.config.masked(),
            token=secrets.token_urlsafe(24),
        )

    def _launcher(self, spec: JobSpec, store: CheckpointStore, *, local: bool, warn: Callable[[str], None]) -> Launcher:
        if local:
            return LocalLauncher(spec)
        from raycdc.runtime.ray_environment import prepare

        prepare(self.config.ray.address)
        from raycdc.runtime.ray_launcher import RayLauncher
        from raycdc.runtime.ray_spools import SpoolSettings

        options = self.config.ray
        readers = self.readers_max if store.last_manifest() is None else self.config.readers.min
        spools = SpoolSettings(
            store.path, store.checkpoint, spec.token or "", options.spool, network=options.flight == "network"
        )
        alone = options.address == "local" and self._spark_is_here
        return RayLauncher(spec, address=options.address, readers=readers, spools=None if alone else spools, warn=warn)

    @property
    def readers_max(self) -> int:
        """As many as may be, and can have work."""
        readers = self.config.readers
        return max(readers.min, min(readers.max, self.config.source.readers_max or readers.max))

    @property
    def _spark_is_here(self) -> bool:
        """Whether Spark's tasks run on the machine with the state, which is then the node they are on."""
        return self.config.spark.master.startswith("local")

    def _session(self, store: CheckpointStore) -> Any:
        from raycdc.spark.session import spark_session

        return spark_session(self.config.spark.master, store.path / "spark", self.config.spark.conf)

    def _open_sink(
        self, stack: ExitStack, store: CheckpointStore, spec: JobSpec, session: Any, sink: Sink
    ) -> tuple[Sink, KnownRows | None]:
        """The sink, and the known rows that changes on their way to it are made exact by, where that is how."""
        run_tasks, at_once = task_runner(session)
        context = SinkContext(
            app_id=store.app_id,
            write=self.config.sink.write,
            run_tasks=run_tasks,
            on_existing=self.config.pipeline.on_existing,
            schema_change=SchemaChangeBehavior(self.config.pipeline.schema_change),
            left_out=self.config.pipeline.schema_changes_left_out,
            parallelism=self.config.sink.parallelism or at_once,
            access=spec.access if self._spark_is_here else replace(spec.access, node=ANYWHERE),
            spark=session,
            order_by=self._order_by,
            private=str(store.path / "private"),
        )
        sink.open(context)
        stack.callback(sink.close)
        if self._full_by is not FullBy.KNOWN_ROWS:
            return sink, None
        known = KnownRows.opened(store.path, context)
        stack.callback(known.close)
        return sink, known

    def _routing(
        self, store: CheckpointStore, sink: Sink, session: Any, access: SegmentAccess, reporter: ProgressReporter
    ) -> Routing:
        """Where tables go, and what their rows become on the way."""
        upsert = self.config.sink.write == UPSERT
        unmerged = no_merging(self.config, sink) if upsert else ""
        transforms, masks = self.config.transformed(), self.config.masked()
        records = self._bad_records(store)
        sieve = Sieve(records, store.path / "derived", access=access, local=session is None or self._spark_is_here)
        if not (transforms or masks or self._naming.acts):
            return Routing(self.config.router(), upsert, unmerged, sieve=sieve, records=records)
        adopts = self.config.pipeline.on_existing == "merge"
        use = TransformUse(upsert, unmerged, self._order_by, records.leaves_out, self.config.sink.no_layout, adopts)
        resolver: Resolver = PlainResolver()
        deriver = None
        if session is not None:
            from raycdc.spark.derive import Deriver
            from raycdc.spark.transforms import SparkResolver

            resolver = SparkResolver(session, transforms)
            deriver = Deriver(session, store.path / "derived", access=access, upsert=upsert, records=records)
        on_names = partial(_keep_names, store, reporter)
        tables = TransformedTables(transforms, resolver, use, masks, self._naming, on_names)
        return Routing(self.config.router(), upsert, unmerged, tables, deriver, sieve, records)

    def _bad_records(self, store: CheckpointStore) -> BadRecords:
        action = self.config.pipeline.on_bad_record
        letters = str(store.path / "dead_letters") if action == DEAD_LETTER else ""
        return BadRecords(action, letters, self.config.sink.write == UPSERT, self.config.source.repeats_inserts)

    def _run_epochs(
        self,
        stack: ExitStack,
        store: CheckpointStore,
        term: DriverTerm,
        sink: Sink,
        launcher: Launcher,
        spec: JobSpec,
        reporter: ProgressReporter,
        routing: Routing,
    ) -> None:
        supervisors: list[Supervisor] = []

        def committed(figures: EpochStatistics) -> None:
            settle(store, figures.epoch)
            supervisors[0].epoch_committed(figures.epoch)
            reporter.committed(figures)

        ports = EpochPorts(
            generation=term.generation,
            next_sealed=lambda after, wait_s: next_manifest(store, supervisors[0], after, wait_s),
            on_committed=lambda figures: committed(figures) if supervisors else None,
            access=lambda: spec.access.as_of(launcher.flights()),
            routing=routing,
            begin_again=partial(_begin_again, store, reporter),
            parking=self._parking(reporter, supervisors),
        )
        loop = EpochLoop(store, sink, ports)
        with naming_place(self.config, store):
            loop.recover()
        settle_place(self.config, store)
        reporter.bad_rows(bad_rows(store, loop.committed))
        store.sweep_spool()
        launcher.sweep(store.needed_segments())
        reporter.starting("starting the coordinator and its readers")
        supervisor = self._supervise(stack, store, launcher, reporter, term=term)
        supervisors.append(supervisor)
        stack.enter_context(reporter.watching(supervisor.status, every_s=PROGRESS_S))
        _run_through_losses(loop, supervisor, reporter)

    def _parking(self, reporter: ProgressReporter, supervisors: Sequence[Supervisor]) -> Parking:
        """What parks a target instead of ending the run; the source is told by the supervisor, once there is one."""

        def parked(entries: Mapping[str, ParkedTarget]) -> None:
            for name, entry in sorted(entries.items()):
                reporter.warning(f"{name} is parked: {entry.text}")
            if supervisors:
                supervisors[0].park_tables(refusals_of(entries))

        return Parking(
            parks_of(self.config.pipeline),
            on_parked=parked,
            on_bad_rows=reporter.warning,
            follows=self.config.source.captures,
            waiting=Waiting(self.config.sink.folder, reporter.warning),
        )

    def _supervise(
        self,
        stack: ExitStack,
        store: CheckpointStore,
        launcher: Launcher,
        reporter: ProgressReporter,
        *,
        term: DriverTerm,
    ) -> Supervisor:
        record = store.last_commit
        supervisor = Supervisor(
            launcher,
            SupervisorSettings(
                readers_min=self.config.readers.min,
                readers_max=self.readers_max,
                next_generation=term.for_coordinator,
                committed=lambda: commit.epoch if (commit := record()) else 0,
                on_processes=reporter.processes,
                on_warning=reporter.warning,
            ),
        )
        stack.callback(supervisor.close)
        with self._lock:
            self._supervisor = supervisor
            stopping = self._stop_requested
        if stopping:
            supervisor.stop()
        return supervisor


def _keep_names(store: CheckpointStore, reporter: ProgressReporter, table: TableId, names: Names) -> None:
    """Remember, before any row is written, which columns have another name in the target; told once."""
    if new := add_column_names(store, str(table), names):
        shown = ", ".join(f"{name!r} is {made!r}" for name, made in new.items())
        reporter.warning(f"{table}: {shown} in the target, which cannot hold the column's own name.")


def _run_through_losses(loop: EpochLoop, supervisor: Supervisor, reporter: ProgressReporter) -> None:
    """Run the loop; when a node is gone with segments that the sink lacks, recover as a new start would."""
    while True:
        try:
            loop.run()
            return
        except SegmentUnavailableError as lost:
            reporter.warning(f"{lost} What it had is read again.")
        supervisor.start_over(loop.recover)


def _begin_again(
    store: CheckpointStore, reporter: ProgressReporter, manifest: Manifest, tables: Sequence[TableId], text: str
) -> None:
    """Tables whose rows of an epoch are gone are read anew by the source side that starts next, from that epoch on."""
    if STREAM_SPLIT_ID not in manifest.to_splits:
        raise StateError(text)  # Nothing like a snapshot can be taken of this source.
    names = [str(table) for table in tables]
    ask_for_lost_rows(store, manifest, names)
    reporter.warning(f"Rows of an epoch are lost before they were written: {', '.join(names)} will be read again.")


def next_manifest(store: CheckpointStore, supervisor: Supervisor, after: int, wait_s: float) -> Manifest | None:
    """The first sealed epoch after `after`, or None when there was none for `wait_s`."""
    epoch, _ = supervisor.next_sealed(after, wait_s=wait_s)
    if epoch is None:
        return None
    sealed = store.sealed_epochs(after)
    if not sealed:
        raise StateError(f"Epoch {epoch} was sealed, but its manifest is not in {store.path}. Is the folder shared?")
    return store.manifest(sealed[0])
