"""Compares the targets with the state, as a run does at its start, for ``raycdc check``. Changes nothing.

It uses the code of a run (`raycdc.delivery.epoch_loop.EpochLoop.recover`, `raycdc.sinks.api.Sink.apply_schema`). While
another run has the state, its targets change, so they are not compared, and the output says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from raycdc.config import PipelineConfig
from raycdc.config.checks import CheckResult
from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.outcomes import StartForecast
from raycdc.delivery.ports import EpochPorts, Routing
from raycdc.delivery.rows.row_store import RowStore
from raycdc.delivery.targets.parked_targets import ParkingPolicy, parks_of
from raycdc.driver.data_side import sink_context
from raycdc.driver.fitting import naming_location, require_nothing_written
from raycdc.driver.resolve import ResolvedRun
from raycdc.driver.startup_checks import Start
from raycdc.errors import ParkReason, RaycdcError, RoutesRefusedError, SchemaError, SinkError, TableRefusedError
from raycdc.model import TableId
from raycdc.segments.tasks import run_in_process
from raycdc.sinks.api import SinkContext
from raycdc.state.configured import FullBy
from raycdc.state.recovery import CommitVector, another_copy
from raycdc.state.store import CheckpointStore

#: The maximum number of new targets that are examined, because topics and servers are queried one by one.
_NEW_TARGETS_MAX = 200
_PARKED = "A run parks it, and the others go on."


def check_targets(run: ResolvedRun, tables: Collection[TableId], *, again: bool = False) -> list[CheckResult]:
    """Return all findings; `tables` are those of the source that targets can hold.

    If `again` is True, a start reads all tables again, so missing rows in their targets do not matter.
    """
    sink, store = run.start.sink, run.store
    if not sink.durable:
        return []
    if store is not None and (pid := store.lock.holder()):
        text = (
            f"The state is in use by process {pid}, so the targets were not compared with it: that run changes "
            "them, and compared them when it began. Another run is refused meanwhile."
        )
        return [CheckResult("targets", text, "Check again when that run has ended.", required=False)]
    try:
        sink.inspect(_context(run))
        with closing(sink):
            return _findings(run, sink, tables, again=again)
    except RaycdcError as error:
        return [CheckResult("targets", str(error), error=type(error))]


def lying_there(run: ResolvedRun, targets: Collection[TableId]) -> dict[TableId, bool | None]:
    """Return for each target if the object at its location belongs to this pipeline; None if there is no object.

    Empty for a sink that stores nothing. Raises `SinkError`.
    """
    sink = run.start.sink
    if not sink.durable:
        return {}
    # Existing objects are reported, even if a run would adopt or replace them.
    sink.inspect(replace(_context(run), on_existing="fail"))
    lying: dict[TableId, bool | None] = {}
    with closing(sink):
        for target in targets:
            try:
                lying[target] = True if sink.committed(target) is not None else None
                if not lying[target]:
                    sink.require_free(target)
            except TableRefusedError:
                lying[target] = False
    return lying


def held_targets(
    config: PipelineConfig, app_id: str, targets: Collection[TableId]
) -> tuple[dict[TableId, CommitVector | None], set[TableId]]:
    """Return the vectors that `targets` hold, and the targets that their sink refuses. Changes nothing.

    Both are empty for a sink that keeps no record. Raises `SinkError`.
    """
    sink = Start(config).sink
    holds: dict[TableId, CommitVector | None] = {}
    refused: set[TableId] = set()
    if not sink.durable:
        return holds, refused
    sink.inspect(sink_context(config, app_id, run_in_process))
    with closing(sink):
        for target in targets:
            try:
                holds[target] = sink.committed(target)
            except TableRefusedError:
                refused.add(target)
    return holds, refused


def _findings(run: ResolvedRun, sink: Any, tables: Collection[TableId], *, again: bool) -> list[CheckResult]:
    store = run.store
    results: list[CheckResult] = []
    recorded: set[str] = set()
    if again:
        text = "The targets were not compared with the state, because all tables are read again."
        results.append(CheckResult("targets", text, required=False))
    elif store is not None:
        before = _state_marker(store)
        try:
            recorded = _recorded(store)
            results += _compared(run, store, sink)
        except RaycdcError:
            if _state_marker(store) == before:
                raise
        if _state_marker(store) != before:
            text = (
                "The state changed while it was compared with the targets, so the comparison says nothing: a run on "
                "another machine is using it."
            )
            return [CheckResult("targets", text, "Check again when that run has ended.", required=False)]
    router = run.rules.router
    targets = dict.fromkeys(target for table in sorted(tables) for target in router.targets(table))
    results += _merged(run, sink, tables)
    new = [target for target in targets if str(target) not in recorded]
    taken = list(_taken(run, sink, new[:_NEW_TARGETS_MAX]))
    if len(new) > _NEW_TARGETS_MAX:
        text = f"The locations of {len(new) - _NEW_TARGETS_MAX} more new targets were not "
        "checked."
        taken.append(CheckResult("targets", text, required=False))
    if not taken:
        text = "The locations of new targets have no objects of others."
        taken.append(CheckResult("targets", text, ok=True))
    return [*results, *taken]


def _compared(run: ResolvedRun, store: CheckpointStore, sink: Any) -> list[CheckResult]:
    """Return the findings of the recovery that a start would do, by the code of a start.

    Raises the error that would end the start.
    """
    with _loop(run, store, sink) as loop, naming_location(run.changed):
        require_nothing_written(run.changed, store, loop.written)
        forecast: StartForecast = loop.inspect()
    results = [
        CheckResult(f"target {name}", text, _PARKED, error=SchemaError, parks=True)
        for name, text in sorted(forecast.parked.items())
    ]
    if forecast.unasked:
        nodes = ", ".join(forecast.unasked)
        text = f"Rows that are not written yet lie on {nodes}; whether they are complete was not checked."
        results.append(CheckResult("targets", text, required=False))
    if not results:
        results.append(CheckResult("targets", "The targets hold what the state says.", ok=True))
    return results


def _merged(run: ResolvedRun, sink: Any, tables: Collection[TableId]) -> Iterator[CheckResult]:
    """Yield a finding per target that cannot have the rows of all tables that routes give it."""
    sources: dict[TableId, list[TableId]] = {}
    for table in sorted(tables):
        for target in run.rules.router.targets(table):
            sources.setdefault(target, []).append(table)
    parks = parks_of(run.config.pipeline)(ParkReason.RULES)
    for target, merged in sources.items():
        if len(merged) > 1 and (why := run.start.no_merging or sink.no_merging(target)):
            text = f"route: {', '.join(map(str, merged))} all go to {target}, and {why}"
            yield as_parked(CheckResult(f"target {target}", text, error=RoutesRefusedError), parks=parks)


def _taken(run: ResolvedRun, sink: Any, targets: Collection[TableId]) -> Iterator[CheckResult]:
    """Yield a finding per target that is unknown to the state and whose location has an object that prevents a run."""
    parks = parks_of(run.config.pipeline)
    next_epoch = 1 if run.store is None else run.store.next_epoch()
    for target in targets:
        try:
            held = sink.committed(target)
            if held is None:
                sink.require_free(target)
            elif held.epoch >= next_epoch:
                raise SinkError(another_copy(target, held.epoch))
        except TableRefusedError as error:
            refused = CheckResult(f"target {target}", str(error), error=type(error))
            yield as_parked(refused, parks=parks(error.reason))


@contextmanager
def _loop(run: ResolvedRun, store: CheckpointStore, sink: Any) -> Iterator[EpochLoop]:
    """Provide an epoch loop that only inspects targets: it has neither Spark nor lookups."""
    known = None
    if run.last is not None and run.full_by is FullBy.ROW_STORE:
        known = RowStore.opened(store.location, _context(run))
    routing = Routing(run.rules.router, run.rules.upsert, run.start.no_merging, run.transformed(), known=known)
    try:
        parking = ParkingPolicy(parks_of(run.config.pipeline), follows=run.config.source.captures)
        no_epoch = EpochPorts(
            generation=_no_generation, next_sealed=lambda _, __: None, routing=routing, parking=parking
        )
        yield EpochLoop(store, sink, no_epoch)
    finally:
        if known is not None:
            known.close()


def as_parked(result: CheckResult, *, parks: bool) -> CheckResult:
    """Return the `result` about one target with the reaction of a run: the run parks the table if `parks` is True,
    else it ends.
    """
    fix = f"{result.fix} {_PARKED if parks else 'A run ends.'}".strip()
    return replace(result, fix=fix, error=SchemaError if parks else result.error, parks=parks)


def _context(run: ResolvedRun) -> SinkContext:
    """Return the sink context as in a run."""
    return sink_context(run.config, run.app_id, run_in_process)


def _recorded(store: CheckpointStore) -> set[str]:
    """Return the targets that were written according to the state."""
    record = store.last_commit()
    return set() if record is None else {*record.tables, *record.parked}


def _state_marker(store: CheckpointStore) -> tuple[int, int, int]:
    """Return a value that differs after any action of a run."""
    record = store.last_commit()
    return store.generations.newest(), store.next_epoch(), 0 if record is None else record.epoch


def _no_generation() -> Any:
    raise AssertionError("an inspection has no generation")
