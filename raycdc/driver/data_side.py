"""The data side of a run: the sink, and everything that rows go through on their way to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from raycdc.config import PipelineConfig
from raycdc.core.activity import ActivityTracker, Stage
from raycdc.delivery.lookup import open_joiner
from raycdc.delivery.lookup.joiner import answers_of
from raycdc.delivery.ports import Routing
from raycdc.delivery.rows.bad_row_filter import BadRowFilter
from raycdc.driver.resolve import ResolvedRun
from raycdc.driver.start_retry import StartRetry
from raycdc.segments.access import ANYWHERE, SegmentAccess
from raycdc.segments.bad_rows import DEAD_LETTER, BadRecords
from raycdc.segments.tasks import TaskLog, TaskRunner
from raycdc.sinks.api import UPSERT, SinkContext
from raycdc.spark.lifecycle import SparkThread, TaskRules, task_runner
from raycdc.state.column_names import keep_column_names
from raycdc.state.full_changelog import FullBy
from raycdc.state.store import CheckpointStore


def bad_records(config: PipelineConfig, store: CheckpointStore) -> BadRecords:
    """The treatment of bad rows, as the configuration has it, for the driver that has the state."""
    action, folder, location = config.pipeline.on_bad_record, "", ""
    if action == DEAD_LETTER:
        folder = str(store.path / "dead_letters")
        location = f"{store.location}/dead_letters"
    upsert, partial = config.sink.write == UPSERT, config.source.repeats_inserts
    return BadRecords(action, folder, upsert, partial, store.generations.own() or 0, location)


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
    """The parts of one run's data side. Without `spark`, and until it is up, threads of this process do its work: rows
    that need it from the first one on are for a data side that is made when it is up.

    `access` is how this process reaches segments.
    """

    resolved: ResolvedRun
    store: CheckpointStore
    access: SegmentAccess
    spark: SparkThread | None

    @property
    def config(self) -> PipelineConfig:
        return self.resolved.config

    @property
    def is_here(self) -> bool:
        """Return True if tasks run on the machine that has the state, that is, on this node."""
        return self.spark is None or self.config.spark.is_here

    def open(
        self, stack: ExitStack, warn: Callable[[str], None], *, patiently: StartRetry, tracker: ActivityTracker
    ) -> Routing:
        """Open the sink and everything else that rows need on their way; `stack` closes it all.

        `patiently` retries servers that are unreachable; `tracker` shows what is waited for.
        """
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
            patiently(partial(sink.open, context))
        stack.callback(sink.close)
        known = None
        if self.resolved.full_by is FullBy.ROW_STORE:
            from raycdc.delivery.rows.row_store import RowStore  # Only here, because it loads Delta's libraries.

            # Row stores lie next to the state, where tasks on other machines could not write them.
            kept = context if here else replace(context, run_tasks=task_runner(None, TaskRules())[0], session=None)
            known = RowStore.opened(self.store.location, replace(kept, access=self.access))
            stack.callback(known.close)
        records = bad_records(self.config, self.store)
        routing = replace(self._routing(records, warn), known=known, log=log)
        lookups, answers = self.config.lookups, answers_of(self.store)
        joiner = partial(open_joiner, lookups, answers, records, self.access, warn)
        return replace(routing, joiner=patiently(lambda: stack.enter_context(joiner())))

    def _routing(self, records: BadRecords, warn: Callable[[str], None]) -> Routing:
        """The targets of tables, and what their rows become on the way."""
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
