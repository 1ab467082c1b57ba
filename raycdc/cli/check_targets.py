"""A comparison of the targets with the state, for ``raycdc check``, as a run makes it at its start. Changes nothing.

A run that begins asks the same questions in the same words (`raycdc.epochs.epoch_loop.EpochLoop.recover`,
`raycdc.sinks.api.Sink.apply_schema`). While another run has the state, its targets move on, so they are not compared,
and the output says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from raycdc.bridge.tasks import run_in_process
from raycdc.checkpoint.changelog import FullBy, begun_with
from raycdc.checkpoint.recovery import another_copy
from raycdc.checkpoint.store import CheckpointStore
from raycdc.cli.schemas import known_naming, known_store
from raycdc.config import PipelineConfig
from raycdc.data_side import sink_context
from raycdc.epochs.epoch_loop import EpochLoop
from raycdc.epochs.known_rows import KnownRows
from raycdc.epochs.outcomes import Outlook
from raycdc.epochs.parked_targets import Parking, parks_of
from raycdc.epochs.ports import EpochPorts
from raycdc.epochs.routing import Routing
from raycdc.errors import RaycdcError, SchemaError, SinkError, TableRefusedError
from raycdc.model import TableId
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.preflight import naming_place, require_nothing_written
from raycdc.sinks.api import UPSERT, Sink, SinkContext
from raycdc.source.checks import CheckResult
from raycdc.startup_checks import no_merging
from raycdc.transform import TransformedTables

#: At most so many new targets are examined, because topics and servers are asked one by one.
_NEW_TARGETS_MAX = 200
_PARKED = "A run parks it, and the others go on."


def check_targets(config: PipelineConfig, tables: Collection[TableId], *, again: bool = False) -> list[CheckResult]:
    """All findings; `tables` are those of the source that targets can hold. `again`: a start reads all of them anew, so
    it does not matter what their targets lack.
    """
    sink: Sink = load_plugin(PluginGroup.SINKS, config.sink.type).create(config.sink)
    if not sink.durable:
        return []
    store = known_store(config)
    if store is not None and (pid := store.lock.holder()):
        text = (
            f"The state is in use by process {pid}, so the targets were not compared with it: they move on with that "
            "run, which compared them when it began. Another run is refused meanwhile."
        )
        return [CheckResult("targets", text, "Check again when that run has ended.", required=False)]
    try:
        sink.look(_context(config, store))
        with closing(sink):
            return _findings(config, store, sink, tables, again=again)
    except RaycdcError as error:
        return [CheckResult("targets", str(error), error=type(error))]


def lying_there(config: PipelineConfig, targets: Collection[TableId]) -> dict[TableId, bool | None]:
    """Of each target whether what lies at its place is of this pipeline; None where nothing does. Of a sink that
    remembers nothing, nothing. Raises `SinkError`.
    """
    sink: Sink = load_plugin(PluginGroup.SINKS, config.sink.type).create(config.sink)
    if not sink.durable:
        return {}
    # Whatever lies there is refused, also where a run would take it.
    sink.look(replace(_context(config, known_store(config)), on_existing="fail"))
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


def _findings(
    config: PipelineConfig, store: CheckpointStore | None, sink: Any, tables: Collection[TableId], *, again: bool
) -> list[CheckResult]:
    results: list[CheckResult] = []
    recorded: set[str] = set()
    if again:
        text = "The targets were not compared with the state, because all tables are read again."
        results.append(CheckResult("targets", text, required=False))
    elif store is not None:
        before = _place(store)
        try:
            recorded = _recorded(store)
            results += _compared(config, store, sink)
        except RaycdcError:
            if _place(store) == before:
                raise
        if _place(store) != before:
            text = (
                "The state changed while it was compared with the targets, so the comparison says nothing: a run on "
                "another machine is using it."
            )
            return [CheckResult("targets", text, "Check again when that run has ended.", required=False)]
    router = config.router()
    targets = dict.fromkeys(target for table in sorted(tables) for target in router.targets(table))
    new = [target for target in targets if str(target) not in recorded]
    taken = list(_taken(config, store, sink, new[:_NEW_TARGETS_MAX]))
    if len(new) > _NEW_TARGETS_MAX:
        text = f"Whether something lies at the places of {len(new) - _NEW_TARGETS_MAX} more new targets was not "
        "checked."
        taken.append(CheckResult("targets", text, required=False))
    if not taken:
        text = "Nothing of anybody else lies at the places of new targets."
        taken.append(CheckResult("targets", text, ok=True))
    return [*results, *taken]


def _compared(config: PipelineConfig, store: CheckpointStore, sink: Any) -> list[CheckResult]:
    """The recovery that a start would decide on, by its own code. Raises the error that would end it."""
    with _loop(config, store, sink) as loop, naming_place(config, store):
        require_nothing_written(config, store, loop.written)
        outlook: Outlook = loop.look()
    results = [
        CheckResult(f"target {name}", text, _PARKED, error=SchemaError, parks=True)
        for name, text in sorted(outlook.parked.items())
    ]
    if outlook.unasked:
        nodes = ", ".join(outlook.unasked)
        text = f"Rows that are not written yet lie on {nodes}; whether they are complete was not checked."
        results.append(CheckResult("targets", text, required=False))
    if not results:
        results.append(CheckResult("targets", "The targets hold what the state says.", ok=True))
    return results


def _taken(
    config: PipelineConfig, store: CheckpointStore | None, sink: Any, targets: Collection[TableId]
) -> Iterator[CheckResult]:
    """Targets that the state does not know, at whose place something lies that would keep a run from beginning."""
    parks = parks_of(config.pipeline)
    next_epoch = 1 if store is None else store.next_epoch()
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
def _loop(config: PipelineConfig, store: CheckpointStore, sink: Any) -> Iterator[EpochLoop]:
    """An epoch loop that only looks: it has neither Spark nor lookups."""
    known = None
    if begun_with(store, full=config.source.full_changelog) is FullBy.KNOWN_ROWS:
        known = KnownRows.opened(store.place, _context(config, store))
    upsert = config.sink.write == UPSERT
    transformed = TransformedTables(config.transformed(), masks=config.masked(), naming=known_naming(config))
    routing = Routing(config.router(), upsert, no_merging(config, sink) if upsert else "", transformed, known=known)
    try:
        parking = Parking(parks_of(config.pipeline), follows=config.source.captures)
        no_epoch = EpochPorts(
            generation=_no_generation, next_sealed=lambda _, __: None, routing=routing, parking=parking
        )
        yield EpochLoop(store, sink, no_epoch)
    finally:
        if known is not None:
            known.close()


def as_parked(result: CheckResult, *, parks: bool) -> CheckResult:
    """The `result` about one target, with what a run makes of it: it `parks` the table, or it ends."""
    fix = f"{result.fix} {_PARKED if parks else 'A run ends.'}".strip()
    return replace(result, fix=fix, error=SchemaError if parks else result.error, parks=parks)


def _context(config: PipelineConfig, store: CheckpointStore | None) -> SinkContext:
    """As a run's; without a state there is no identity yet, so nothing is ours."""
    app_id = f"raycdc:{config.pipeline.name}:" if store is None else store.app_id
    return sink_context(config, app_id, run_in_process)


def _recorded(store: CheckpointStore) -> set[str]:
    """The targets that the state says were written."""
    record = store.last_commit()
    return set() if record is None else {*record.tables, *record.parked}


def _place(store: CheckpointStore) -> tuple[int, int, int]:
    """A value that differs as soon as a run has done anything."""
    record = store.last_commit()
    return store.generations.newest(), store.next_epoch(), 0 if record is None else record.epoch


def _no_generation() -> Any:
    raise AssertionError("who only looks has no generation")
