"""The questions that are asked and decided before anything slow is started, in this order, with named refusals.

Called by `raycdc.pipeline` at every start, under the lease; parts of it by ``raycdc check``, which changes nothing.

| step | because |
|---|---|
| what the state was made with is compared with the configuration | rows already written would not match |
| tables that the configuration names are looked for | one that is misspelt would be ignored for ever |
| the source is asked what it lacks, and whether its log reaches back | nothing else matters where it does not |
| tables that are new, or were put back, are asked to be read | their rows are in no part of the log that is to come |
| how the changelog becomes full is settled | sources are made so that they tell it, or known rows are kept |

Blocks while the source answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache, partial
from typing import Any, assert_never

from raycdc.checkpoint.changelog import FullBy, settle_changelog
from raycdc.checkpoint.configured import (
    Difference,
    Setting,
    configured_keys,
    differences,
    kept_sink,
    kept_texts,
    read_configured,
    write_configured,
)
from raycdc.checkpoint.names import column_names
from raycdc.checkpoint.store import CheckpointStore
from raycdc.config import PipelineConfig
from raycdc.config.changes import Change
from raycdc.errors import ConfigError, LogLostError, SchemaError, SinkError, SourceError
from raycdc.model import TableId
from raycdc.model.behavior import SchemaChangeBehavior
from raycdc.model.selector import TableSelector
from raycdc.model.state_key import require_state_key
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.schema.events import SchemaChangeEvent
from raycdc.sinks.api import UPSERT
from raycdc.source.connector import ReadStatement, Source, SourceContext
from raycdc.source.parking import LogStart, Refusal, TableRequest
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.selection import Selection, SelectionChanges, changes_of, known_tables
from raycdc.source.snapshot.stream_state import stream_of
from raycdc.source.split import RowsAgain
from raycdc.source.table_commands import RequireRows
from raycdc.source.table_requests import ask, ask_to_begin_again, requests_of
from raycdc.transform.followed import TargetRules
from raycdc.transform.hiding import Hiding
from raycdc.transform.naming import Names, Naming

#: The type of source whose DDL statements stand in messages: all formats that have any are of MySQL's world.
_STATEMENTS_OF = "mysql"


class Taker(Enum):
    """Who takes the epochs of a run."""

    #: The sink of the configuration.
    SINK = auto()
    #: Somebody by hand, who gets the rows that the sink of the configuration would get.
    HAND_FOR_SINK = auto()
    #: Somebody by hand; the configuration names no sink.
    HAND = auto()

    @property
    def is_sink(self) -> bool:
        return self is Taker.SINK

    @property
    def by_rules_of_sink(self) -> bool:
        """Whether the source goes by what the sink of the configuration can hold."""
        return self is not Taker.HAND


def preflight(
    config: PipelineConfig,
    store: CheckpointStore,
    make_source: Callable[[], Source[Any]],
    *,
    warn: Callable[[str], None],
    taker: Taker = Taker.SINK,
) -> FullBy:
    """Do the steps of the module's docstring; says how the changelog becomes full. `warn` hears of what is done."""
    changed = require_fitting(config, store, has_sink=taker.is_sink)
    for text in told(changed):
        warn(text)
    source = make_source()
    selection = selection_of(source, store)
    _reach_back(config, store, source, warn)
    if selection is not None:
        _follow_selection(config, store, selection, warn)
    full = config.source.full_changelog
    first = store.last_manifest() is None
    tells = full and first and source.tells_before()
    full_by = settle_changelog(store, full=full, source_tells=tells)
    # Where the target is now is believed when it has shown what it holds (`settle_place`).
    unproven = (Change.PLACE, Change.NEW_STATE)
    places = {difference.key: difference.was for difference in changed if difference.change in unproven}
    keys = read_configured(store) or {}
    if first and not taker.is_sink:
        # A start that sealed nothing was for a sink.
        keys = {key: value for key, value in keys.items() if not key.startswith("sink.")}
    write_configured(store, {**keys, **configured_keys(config, has_sink=taker.is_sink), **places})
    return full_by


@dataclass(frozen=True, slots=True)
class Settled:
    """All that a start settles before anything slow is started.

    `refused` are followed tables that the source can follow no further. `make_source` makes the source in any process.
    """

    full_by: FullBy
    naming: Naming
    refused: tuple[Refusal, ...]
    make_source: Callable[[], Source[Any]]


def settle_start(
    config: PipelineConfig,
    store: CheckpointStore,
    *,
    warn: Callable[[str], None],
    taker: Taker = Taker.SINK,
) -> Settled:
    """`preflight`, and what follows from it. Blocks while the source answers."""
    naming = naming_of(config, column_names(store))
    upsert = taker.by_rules_of_sink and config.sink.write == UPSERT
    maker = partial(source_maker, config, upsert=upsert, naming=naming, has_sink=taker.by_rules_of_sink)
    full_by = preflight(config, store, maker(full_by=FullBy.NOTHING), warn=warn, taker=taker)
    make_source = maker(full_by=full_by)
    return Settled(full_by, naming, refused_at_start(config, store, make_source()), make_source)


@contextmanager
def naming_place(config: PipelineConfig, store: CheckpointStore) -> Iterator[None]:
    """Has the `SinkError` of a target that is not the one name the keys by which it is another."""
    try:
        yield
    except SinkError as error:
        was = read_configured(store) or {}
        changes = differences(was, configured_keys(config), config)
        places = [f"{d}. Take it back, or move the whole target there." for d in changes if d.change is Change.PLACE]
        raise SinkError("\n".join([*places, str(error)])) if places else error from error.__cause__


def settle_corrected(config: PipelineConfig, store: CheckpointStore, written: Callable[[], Sequence[TableId]]) -> None:
    """Take the keys that were corrected before anything was committed, now that `written` has been asked."""
    corrected = require_nothing_written(config, store, written)
    if corrected:
        was = read_configured(store) or {}
        write_configured(store, {**was, **{difference.key: difference.now for difference in corrected}})


def require_nothing_written(
    config: PipelineConfig, store: CheckpointStore, written: Callable[[], Sequence[TableId]]
) -> list[Difference]:
    """The keys that were corrected before anything was committed. `ConfigError` where a target holds rows nevertheless:
    a run died between writing them and recording that. `written` asks the targets, of which some may hold an epoch.
    """
    changes = differences(read_configured(store) or {}, configured_keys(config), config)
    corrected = [difference for difference in changes if _is_correction(difference, store)]
    if corrected and (targets := written()):
        named = ", ".join(map(str, targets))
        raise ConfigError(*(f"{d}: {_NEW_STATE} Rows are in {named} already." for d in corrected))
    return corrected


def _is_correction(difference: Difference, store: CheckpointStore) -> bool:
    """Whether the key says where and how the sink writes, which is free to change until it has written anything. Rows
    that are read for another sink, or for another way of writing, would be others.
    """
    of_sink = difference.key.startswith("sink.") and difference.key not in ("sink.type", "sink.write")
    return of_sink and difference.change is Change.NEW_STATE and store.last_commit() is None


def settle_place(config: PipelineConfig, store: CheckpointStore) -> None:
    """The target holds what was committed, so it is the one, wherever it is now."""
    write_configured(store, configured_keys(config))


def require_fitting(config: PipelineConfig, store: CheckpointStore, *, has_sink: bool = True) -> list[Difference]:
    """The allowed differences from the configuration of the state. `ConfigError` with all others, and ways out;
    `StateError` for another ``pipeline.state_key``.
    """
    was, last = read_configured(store), store.last_manifest()
    if last is not None:
        states = [state.to_json() for state in (*last.to_splits.values(), last.enumerator)]
        require_state_key(config.state_key, json.dumps(states))
    if was is None or last is None:
        return []  # Nothing was written yet, or by a version that did not remember.
    changes = differences(was, configured_keys(config, has_sink=has_sink), config)
    if other_reader := _other_reader(was, has_sink=has_sink):
        raise ConfigError(other_reader)
    other = [d for d in changes if d.change is Change.NEW_STATE and not _is_correction(d, store)]
    problems = [f"{d}: {_NEW_STATE}" for d in other]
    stream = stream_of(last)
    for difference in (d for d in changes if d.change is Change.NEW_SNAPSHOT):
        if stream is None:
            problems.append(f"{difference}: {_NEW_STATE}")
            continue
        requests = requests_of(store)
        followed = [str(table) for table in stream.followed if config.source.captures(table)]
        stay = [n for n in difference.tables(followed) if not requests.acts_on(n, stream)]
        if stay:
            each = "; ".join(f"raycdc tables resnapshot CONFIG {name}" for name in stay)
            problems.append(
                f"{difference}: rows of {', '.join(stay)} already written would not match later ones. Take it "
                f"back, or read these tables anew, and start again: {each}"
            )
    if problems:
        raise ConfigError(*problems)
    return changes


def _other_reader(was: Mapping[str, Setting], *, has_sink: bool) -> str:
    """Why this state's epochs are not for whoever asks now: what the one has the other would never get."""
    kind = kept_sink(was)
    if has_sink == (kind is not None):
        return ""
    done = f"epochs of this state go to a {kind} sink, by `raycdc run`" if kind else "epochs of this state were read"
    asks = f"`raycdc run` would not write to {kind or 'its sink'}" if not has_sink else "the sink would lack"
    rest = f"{asks} what is acknowledged here" if not has_sink else f"{asks} what their reader acknowledged"
    return f"pipeline.state: {done}, and {rest}. Use another pipeline.state, which begins with a new snapshot."


def told(changed: list[Difference]) -> list[str]:
    """The effect of a changed key on a state, for people."""
    said = []
    for difference in changed:
        match difference.change:
            case Change.NEW_TABLES:
                said.append(f"{difference}: it applies to tables that begin from now on.")
            case Change.PLACE:
                said.append(f"{difference}: the run goes on only if the target there holds what was committed.")
            case Change.JUDGED:
                said.append(f"{difference.key} changed: tables whose rows already written would not match are refused.")
            case Change.NEW_STATE:
                said.append(f"{difference}: it is taken, because nothing was committed yet.")
            case Change.FREE | Change.NEW_SNAPSHOT:
                pass
            case other:
                assert_never(other)
    return said


_NEW_STATE = (
    "rows already written would not match. Take it back, or begin with another pipeline.state, a new snapshot and "
    'another target; or with pipeline.on_existing = "replace", for which the old target is emptied.'
)


def naming_of(config: PipelineConfig, known: Mapping[str, Names]) -> Naming:
    """Which columns have another name in targets; `known` are those that the state has, by their tables."""
    return Naming(config.sink.names, config.sink.invalid_names == "replace", config.sink.write == UPSERT, known)


def target_rules(config: PipelineConfig, *, upsert: bool, naming: Naming, keeps_rows: bool = False) -> TargetRules:
    """The rules about changes that targets can follow and names they can hold. `upsert`: they have one row per key."""
    left_out = config.pipeline.schema_changes_left_out
    ignored = config.pipeline.schema_change is SchemaChangeBehavior.IGNORE
    return TargetRules(
        config.transformed(),
        config.router(),
        upsert,
        left_out,
        ignored,
        config.masked(),
        naming,
        parks=config.pipeline.on_table_error == "park",
        keeps_rows=keeps_rows,
        lost_rows_again=config.pipeline.on_log_lost == "resnapshot",
    )


def source_maker(
    config: PipelineConfig, *, upsert: bool, full_by: FullBy, naming: Naming | None = None, has_sink: bool = True
) -> Callable[[], Source[Any]]:
    """The factory of the configured source in every process. `upsert`: its targets hold one row per key."""
    plugin = load_plugin(PluginGroup.SOURCES, config.source.type)
    keeps_rows = full_by is FullBy.KNOWN_ROWS
    context = SourceContext(
        rules=target_rules(config, upsert=upsert, naming=naming or naming_of(config, {}), keeps_rows=keeps_rows),
        hiding=Hiding(config.masked(), config.state_key),
        sink=config.sink.type if has_sink else "",
        demands_before=full_by is FullBy.SOURCE,
        read_statement=read_statement,
    )
    return partial(plugin.create, config.source, context)


def rows_judge(config: PipelineConfig) -> RequireRows:
    """What the configured source says of rows that are to be read again."""

    def require_rows(table: TableId, document: SchemaDocument, again: RowsAgain) -> None:
        source = source_maker(config, upsert=config.sink.write == UPSERT, full_by=FullBy.NOTHING)().incremental()
        if source is None:
            raise ConfigError(
                f"source.type: {config.source.type} keeps no rows that could be read again; messages that it still has "
                "are read again by a pipeline with another pipeline.state and source.startup."
            )
        source.require_rows(table, document, again)

    return require_rows


def read_statement(statement: str, default_db: str) -> tuple[SchemaChangeEvent, ...]:
    """DDL in messages, read by the source that it is of; its parser takes a moment to load."""
    return _reader_of_statements()(statement, default_db)


@cache
def _reader_of_statements() -> ReadStatement:
    reader: ReadStatement = load_plugin(PluginGroup.SOURCES, _STATEMENTS_OF).read_statement()
    return reader


def selection_of(source: Source[Any], store: CheckpointStore | None) -> Selection | None:
    """The existing tables among the selected ones; None for a source whose tables only reading tells.

    `SourceError` for names that are nobody's.
    """
    selection = source.selection()
    if selection is None:
        return None
    if misspelt := selection.misspelt(known_tables(store.last_manifest() if store is not None else None)):
        raise SourceError("\n".join(misspelt))
    return selection


def selection_changes(config: PipelineConfig, store: CheckpointStore, selection: Selection) -> SelectionChanges:
    """The effect of a start on the selection. `ConfigError` for tables that cannot begin by themselves."""
    before = _selector_before(store)
    changes = changes_of(selection, store.last_manifest(), requests_of(store), config.source.captures)
    rules = TargetRules(router=config.router(), upsert=config.sink.write == UPSERT)
    every = [*selection.tables, *map(TableId.parse, known_tables(store.last_manifest()))]
    named = [name for name in changes.new if before is not None and not before.matches(TableId.parse(name))]
    shared = {name: why for name in (*changes.back, *named) if (why := rules.shared(TableId.parse(name), every))}
    if shared:
        how = dict.fromkeys(named, "is selected now")
        texts = (f"{selection.place}: {n} {how.get(n, 'was put back')}, but {why}." for n, why in shared.items())
        raise ConfigError(*texts)
    # A table that was selected before, and is new and merged with others, was created since, so the log has all of it.
    new = tuple(name for name in changes.new if not rules.shared(TableId.parse(name), every))
    return replace(changes, new=new)


def _selector_before(store: CheckpointStore) -> TableSelector | None:
    """The patterns of the configuration at the last start; None where the state does not say."""
    was = read_configured(store) or {}
    tables = kept_texts(was, "source.tables") or kept_texts(was, "source.collections")
    return TableSelector(tables, kept_texts(was, "source.exclude")) if tables else None


def _follow_selection(
    config: PipelineConfig, store: CheckpointStore, selection: Selection, warn: Callable[[str], None]
) -> None:
    """Ask for snapshots of what the state does not follow and the configuration selects, and say what happens."""
    for text in selection.unmatched():
        warn(text)
    changes = selection_changes(config, store, selection)
    if changes.new or changes.back:
        ask(store, [*changes.new, *changes.back], TableRequest.RESNAPSHOT)
    for text in described(changes):
        warn(text)


def refused_at_start(config: PipelineConfig, store: CheckpointStore, source: Source[Any]) -> tuple[Refusal, ...]:
    """Followed tables that the source can follow no further, which are parked; `SchemaError` where none is to be."""
    stream = stream_of(store.last_manifest())
    if stream is None:
        return ()
    refused = tuple(source.unfollowable(stream))
    if refused and config.pipeline.on_table_error == "fail":
        raise SchemaError("\n".join(refusal.reason for refusal in refused))
    return refused


def described(changes: SelectionChanges) -> list[str]:
    """The effect of this start on tables, for people."""
    said = {
        "selected and new to this pipeline: read with a snapshot while the others go on": changes.new,
        "selected again: read anew while the others go on": changes.back,
        "not selected any more: ended, and the target keeps what it had": changes.left,
    }
    return [f"{', '.join(names)}: {text}." for text, names in said.items() if names]


def _reach_back(
    config: PipelineConfig, store: CheckpointStore, source: Source[Any], warn: Callable[[str], None]
) -> None:
    """Ask the source what it lacks; where its log is lost, ask for new snapshots if the configuration wants them."""
    last = store.last_manifest()
    try:
        source.preflight(last)
    except LogLostError as lost:
        again = config.pipeline.on_log_lost == "resnapshot" and last is not None
        restart = source.restart(last) if again and last is not None else None
        if restart is None or last is None:
            raise
        ask_to_begin_again(store, last, LogStart(restart.position, restart.ordinal), list(restart.tables))
        warn(f"{lost} All tables are read again, as pipeline.on_log_lost says.")
