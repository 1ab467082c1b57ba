"""The data side of a run: opens the sink and the other parts that rows pass on their way to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from raycdc.config import PipelineConfig
from raycdc.core.activity import ActivityTracker, Stage
from raycdc.delivery.epoch_loop import EpochLoop, request_resnapshot
from raycdc.delivery.lookup import open_joiner
from raycdc.delivery.lookup.joiner import answers_of
from raycdc.delivery.ports import EpochPorts, Routing
from raycdc.delivery.rows.bad_row_filter import BadRowFilter
from raycdc.delivery.targets.parked_targets import ParkingPolicy, SinkOutagePolicy, parks_of
from raycdc.driver.leadership import Leadership
from raycdc.driver.resolve import ResolvedRun
from raycdc.driver.source_side import SourceSide
from raycdc.driver.start_retry import StartRetry
from raycdc.observe.status.progress import ProgressReporter
from raycdc.observe.tracing.traced import traced
from raycdc.segments.access import ANYWHERE, SegmentAccess
from raycdc.segments.bad_rows import DEAD_LETTER, BadRecords
from raycdc.segments.tasks import TaskLog, TaskRunner
from raycdc.sinks.api import UPSERT, SinkContext
from raycdc.spark.lifecycle import SparkThread, TaskRules, activity, task_runner
from raycdc.state.column_names import keep_column_names
from raycdc.state.configured import FullBy
from raycdc.state.store import CheckpointStore


def bad_records(config: PipelineConfig, store: CheckpointStore) -> BadRecords:
    """Return the treatment of bad rows by the configuration, for the driver that has the state."""
    action, folder, location = config.pipeline.on_bad_record, "", ""
    if action == DEAD_LETTER:
        folder = str(store.path / "dead_letters")
        location = f"{store.location}/dead_letters"
    upsert, partial = config.sink.write == UPSERT, config.source.repeats_inserts
    ordered = bool(config.source.order_column)  # Then nothing is deleted.
    return BadRecords(action, folder, upsert, partial, store.generations.own() or 0, location, ordered)


def sink_context(config: PipelineConfig, app_id: str, run_tasks: TaskRunner) -> SinkContext:
    """Return the part of the configuration that a sink needs."""
    return SinkContext(
        app_id=app_id,
        write=config.sink.write,
        run_tasks=run_tasks,
        on_existing=config.pipeline.on_existing,
        schema_change=config.pipeline.schema_change,
        left_out=config.pipeline.schema_changes_left_out,
        storage=config.storage.settings(),
    )


@dataclass(frozen=True, slots=True)
class DataSide:
    """The parts of one run's data side.

    Without Spark, and until Spark is up, threads of this process do its work. If rows need Spark, the data side is
    created only after Spark is up.
    """

    resolved: ResolvedRun
    store: CheckpointStore
    source_side: SourceSide

    @property
    def config(self) -> PipelineConfig:
        return self.resolved.config

    @property
    def access(self) -> SegmentAccess:
        """Return how this process reaches segments."""
        return self.source_side.spec.access

    @property
    def spark(self) -> SparkThread | None:
        return self.source_side.spark

    @property
    def is_here(self) -> bool:
        """Return True if tasks run on the machine that has the state, that is, on this node."""
        return self.spark is None or self.config.spark.is_here

    def open_loop(
        self,
        stack: ExitStack,
        leadership: Leadership,
        reporter: ProgressReporter,
        *,
        start_retry: StartRetry,
        tracker: ActivityTracker,
    ) -> EpochLoop:
        """Open the sink and the other parts that rows pass; return the loop that commits into the sink.

        `stack` closes all of them. The loop stops when another driver takes the state. `start_retry` retries the
        calls of unreachable servers; `tracker` shows what the driver waits for.
        """
        config, store, source_side = self.config, self.store, self.source_side
        reporter.starting("asking the sink for its committed epochs")
        tracker.around = partial(activity, self.spark)
        if self.spark is not None:
            self._prepare_spark(self.spark, reporter, tracker)
        ports = EpochPorts(
            generation=leadership.term.generation,
            read_by=source_side.readers.get,
            next_sealed=source_side.next_sealed,
            on_committed=source_side.committed,
            access=source_side.access,
            copies=source_side.spec.copies,
            routing=self._open_sink(stack, reporter.warning, start_retry=start_retry, tracker=tracker),
            tracker=tracker,
            stopping=start_retry.stopping,
            request_resnapshot=partial(request_resnapshot, store, reporter.warning),
            parking=ParkingPolicy(
                parks_of(config.pipeline),
                on_parked=source_side.parked,
                on_bad_rows=reporter.warning,
                follows=config.source.captures,
                waiting=SinkOutagePolicy(config.sink.folder, reporter.warning),
            ),
        )
        ports = stack.enter_context(traced(config, store, ports, reporter))
        loop = EpochLoop(store, self.resolved.start.sink, ports)
        leadership.on_lost(lambda _: loop.stop())
        return loop

    def _prepare_spark(self, spark: SparkThread, reporter: ProgressReporter, tracker: ActivityTracker) -> None:
        """Start the workers of the running Spark.

        If its executors are on other machines, check that they can read rows from this one.
        """
        if spark.now is not None:
            spark.warm_up()
        if not self.config.spark.is_here:
            from raycdc.spark.executors import (
                probe,
            )  # The import is here, because most runs have no executors on other machines.

            reporter.starting("asking an executor of Spark to read rows")
            with tracker.doing(Stage.OPEN, "waits for an executor of Spark to read rows from this machine"):
                probe(spark.session(), self.store.spool, self.source_side.access())

    def _open_sink(
        self, stack: ExitStack, warn: Callable[[str], None], *, start_retry: StartRetry, tracker: ActivityTracker
    ) -> Routing:
        """Open the sink, and return the routing with the transforms, lookups and row store that rows pass."""
        here, sink, private = self.is_here, self.resolved.start.sink, self.store.path / "private"
        from_bytes, log = self.config.spark_from_bytes, TaskLog()
        run_tasks, at_once = task_runner(self.spark, TaskRules(from_bytes, None if here else private, log), warn)
        context = replace(
            sink_context(self.config, self.store.app_id, run_tasks),
            parallelism=self.config.sink.parallelism or at_once,
            access=self.access if here else replace(self.access, node=ANYWHERE),
            session=None if self.spark is None else self.spark.again,
            from_bytes=None if self.spark is None else from_bytes,
            order_by=self.config.source.order_column,
            private=str(private),
            warn=warn,
        )
        with tracker.doing(Stage.OPEN, "waits for the sink to let it in"):
            start_retry(partial(sink.open, context))
        stack.callback(sink.close)
        known = None
        if self.resolved.full_by is FullBy.ROW_STORE:
            from raycdc.delivery.rows.row_store import (
                RowStore,
            )  # The import is here, because it loads Delta's libraries.

            # A row store lies next to the state, and tasks on other machines could not write there.
            kept = context if here else replace(context, run_tasks=task_runner(None, TaskRules())[0], session=None)
            known = RowStore.opened(self.store.location, replace(kept, access=self.access))
            stack.callback(known.close)
        records = bad_records(self.config, self.store)
        routing = replace(self._routing(records, warn), known=known, log=log)
        lookups, answers = self.config.lookups, answers_of(self.store)
        joiner = partial(open_joiner, lookups, answers, records, self.access, warn, start_retry.stopping)
        return replace(routing, joiner=start_retry(lambda: stack.enter_context(joiner())))

    def _routing(self, records: BadRecords, warn: Callable[[str], None]) -> Routing:
        """Return the targets of tables, and the changes that rows undergo on the way."""
        rules, unmerged = self.resolved.rules, self.resolved.start.no_merging
        folder = self.store.path / "derived"
        sieve = BadRowFilter(records, folder, access=self.access)
        if not (rules.transforms or rules.masks or rules.naming.acts):
            return Routing(rules.router, rules.upsert, unmerged, bad_row_filter=sieve, records=records)
        resolver = deriver = None
        if self.spark is not None and self.spark.now is not None:
            from raycdc.spark.derive import Deriver
            from raycdc.spark.transforms import SparkResolver, TransformSession

            session = TransformSession(self.spark.again, rules.transforms)
            resolver = SparkResolver(session)
            deriver = Deriver(session, folder, access=self.access, upsert=rules.upsert, records=records)
        tables = self.resolved.transformed(resolver, partial(keep_column_names, self.store, warn))
        return Routing(rules.router, rules.upsert, unmerged, tables, deriver, sieve, records)
