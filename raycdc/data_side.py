"""The data side of a run: the sink, and everything that rows go through on their way to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from raycdc.bridge.access import ANYWHERE, SegmentAccess
from raycdc.bridge.bad_rows import DEAD_LETTER, BadRecords
from raycdc.bridge.tasks import TaskRunner
from raycdc.checkpoint.changelog import FullBy
from raycdc.checkpoint.names import keep_column_names
from raycdc.checkpoint.store import CheckpointStore
from raycdc.config import PipelineConfig
from raycdc.driver.start_patience import StartPatience
from raycdc.epochs.routing import Routing
from raycdc.epochs.sieve import Sieve
from raycdc.lookup import open_joiner
from raycdc.lookup.answers import answers_of
from raycdc.preflight import Settled
from raycdc.sinks.api import UPSERT, Sink, SinkContext
from raycdc.spark.lifecycle import SparkThread, task_runner
from raycdc.startup_checks import no_merging, order_by
from raycdc.transform import PlainResolver, Resolver, TransformedTables, TransformUse
from raycdc.waiting.stages import Board, Stage


def bad_records(config: PipelineConfig, store: CheckpointStore) -> BadRecords:
    """The treatment of bad rows, as the configuration has it, for the driver that has the state."""
    action, folder, place = config.pipeline.on_bad_record, "", ""
    if action == DEAD_LETTER:
        folder = str(store.path / "dead_letters")
        place = f"{store.place}/dead_letters"
    upsert, partial = config.sink.write == UPSERT, config.source.repeats_inserts
    return BadRecords(action, folder, upsert, partial, store.generations.own() or 0, place)


def sink_context(config: PipelineConfig, app_id: str, run_tasks: TaskRunner) -> SinkContext:
    """All that a sink is told which the configuration says."""
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

    config: PipelineConfig
    store: CheckpointStore
    settled: Settled
    access: SegmentAccess
    spark: SparkThread | None

    @property
    def is_here(self) -> bool:
        """Whether tasks run on the machine with the state, which is then the node they are on."""
        return self.spark is None or self.config.spark.is_here

    def open(
        self, stack: ExitStack, sink: Sink, warn: Callable[[str], None], *, patiently: StartPatience, board: Board
    ) -> Routing:
        """Open `sink`, and whatever else rows need on their way; `stack` closes it all. Servers that are away are
        waited for as `patiently` does; `board` shows what is waited for.
        """
        here, private = self.is_here, self.store.path / "private"
        run_tasks, at_once = task_runner(self.spark, None if here else private, warn)
        context = replace(
            sink_context(self.config, self.store.app_id, run_tasks),
            parallelism=self.config.sink.parallelism or at_once,
            access=self.access if here else replace(self.access, node=ANYWHERE),
            session=None if self.spark is None else self.spark.again,
            order_by=order_by(self.config),
            private=str(private),
            warn=warn,
        )
        with board.doing(Stage.OPEN, "waits for the sink to let it in"):
            patiently(partial(sink.open, context))
        stack.callback(sink.close)
        known = None
        if self.settled.full_by is FullBy.KNOWN_ROWS:
            from raycdc.epochs.known_rows import KnownRows  # Only here, because it loads Delta's libraries.

            # They are beside the state, where tasks on other machines could not write them.
            kept = context if here else replace(context, run_tasks=task_runner(None)[0], session=None)
            known = KnownRows.opened(self.store.place, replace(kept, access=self.access))
            stack.callback(known.close)
        records = bad_records(self.config, self.store)
        routing = replace(self._routing(sink, records, warn), known=known)
        lookups, answers = self.config.lookups, answers_of(self.store)
        joiner = partial(open_joiner, lookups, answers, records, self.access, warn)
        return replace(routing, joiner=patiently(lambda: stack.enter_context(joiner())))

    def _routing(self, sink: Sink, records: BadRecords, warn: Callable[[str], None]) -> Routing:
        """The targets of tables, and what their rows become on the way."""
        config = self.config
        upsert = config.sink.write == UPSERT
        unmerged = no_merging(config, sink) if upsert else ""
        transforms, masks, naming = config.transformed(), config.masked(), self.settled.naming
        folder = self.store.path / "derived"
        sieve = Sieve(records, folder, access=self.access)
        if not (transforms or masks or naming.acts):
            return Routing(config.router(), upsert, unmerged, sieve=sieve, records=records)
        adopts = config.pipeline.on_existing == "merge"
        use = TransformUse(upsert, unmerged, order_by(config), records.leaves_out, config.sink.no_layout, adopts)
        resolver: Resolver = PlainResolver()
        deriver = None
        if self.spark is not None and self.spark.now is not None:
            from raycdc.spark.derive import Deriver
            from raycdc.spark.transforms import SparkResolver, TransformSession

            session = TransformSession(self.spark.again, transforms)
            resolver = SparkResolver(session)
            deriver = Deriver(session, folder, access=self.access, upsert=upsert, records=records)
        on_names = partial(keep_column_names, self.store, warn)
        tables = TransformedTables(transforms, resolver, use, masks, naming, on_names)
        return Routing(config.router(), upsert, unmerged, tables, deriver, sieve, records)
