"""Resolves a run: makes all decisions about it once, before Ray, Spark or readers start.

| command | use of the `ResolvedRun` |
|---|---|
| ``raycdc check`` | goes through `STEPS`, prints their findings, and continues after a refusal |
| ``raycdc plan`` | shows the tables and their targets |
| ``raycdc run`` | has `resolve` go through `STEPS` up to the first refusal, and calls `take_up` |
| ``raycdc run --plan`` | compares the plan with the `ResolvedRun`, and passes it to the run |

| step of a run | because |
|---|---|
| the state's recorded configuration is compared with the present one | rows already written might not match |
| tables named in the configuration are looked up | a misspelt one would be ignored silently |
| the source's settings and the start of its log are checked | with wrong settings, or a missing start, the source \
cannot be read |
| tables that are new, or selected again, are found | the log from the present position on lacks their existing rows |
| the origin of a full changelog is decided | the source delivers old values, or a row store keeps them |
| tables that the source can follow no further are found | they are parked before reading begins |

Only `take_up` writes, so a refused start leaves the state as it was. The checks that need no server come before
(`raycdc.driver.startup_checks`). Blocks while the source answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache, cached_property, partial
from typing import Any

from raycdc.config import PipelineConfig
from raycdc.config.changes import ConfigChangeClass
from raycdc.config.checks import CheckResult
from raycdc.driver.fitting import effects_of, require_fitting
from raycdc.driver.startup_checks import Start, require_row_store
from raycdc.errors import ConfigError, LogLostError, RaycdcError, SchemaError
from raycdc.model import TableId
from raycdc.model.evolution.effects import LOOSE, SchemaChangeBehavior
from raycdc.model.evolution.events import SchemaChangeEvent
from raycdc.model.rules.selector import TableSelector
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.segments.bad_rows import DEAD_LETTER, SKIP
from raycdc.sinks.api import UPSERT
from raycdc.source.connector import ReadStatement, Restart, Source, SourceContext, SourceTable
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.selection import SelectionChanges, TableSelection, changes_of, known_tables
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.split import BackfillRows, StreamSplit
from raycdc.source.tables.parking import LogStart, Refusal, Requests, TableRequest, with_requests
from raycdc.source.tables.table_requests import all_again, ask, request_resnapshots, requests_of
from raycdc.state.column_names import column_names
from raycdc.state.configured import (
    Difference,
    FullBy,
    begun_with,
    configured_keys,
    keep_changelog,
    kept_texts,
    read_configured,
    write_configured,
)
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore
from raycdc.transform import PlainResolver, TransformedTables, TransformResolver, TransformUse
from raycdc.transform.expression_settings import expression_settings
from raycdc.transform.masks import Masking
from raycdc.transform.naming import Names, Naming
from raycdc.transform.target_rules import TargetRules

#: Messages with DDL statements are parsed as those of this source type, because all formats with DDL come from MySQL.
_STATEMENTS_OF = "mysql"
#: The end of the message about a lost log, if all tables are resnapshotted.
ALL_AGAIN = "All tables are read again, as pipeline.on_log_lost says."

_log = logging.getLogger(__name__)


class OutputMode(Enum):
    """The consumer of a run's epochs: a sink, or a Python caller."""

    #: The sink of the configuration.
    SINK = auto()
    #: A Python caller gets the rows that the configured sink would get.
    HAND_FOR_SINK = auto()
    #: A Python caller; the configuration has no sink.
    HAND = auto()

    @property
    def is_sink(self) -> bool:
        return self is OutputMode.SINK

    @property
    def by_rules_of_sink(self) -> bool:
        """Return True if the source must respect what the configured sink can hold."""
        return self is not OutputMode.HAND


@dataclass(frozen=True, slots=True)
class LostLog:
    """A log that no longer reaches back to the state's position, and the configured new position.

    `text` is the reason.
    """

    text: str
    restart: Restart


@dataclass(frozen=True)
class ResolvedRun:
    """The decisions about a run; see the module's docstring. `store` is the state; None if there is none yet.

    Each property is computed at first use and kept; one that raised an error is computed again. Use it from one thread.
    """

    start: Start
    store: CheckpointStore | None
    output_mode: OutputMode = OutputMode.SINK

    @property
    def config(self) -> PipelineConfig:
        return self.start.config

    def taken(self, start: Start, store: CheckpointStore, output_mode: OutputMode) -> ResolvedRun:
        """Return this run after it has taken the state.

        Decisions that follow from the configuration alone are kept. State and source are read again, because both may
        have changed while the run waited for the state.
        """
        run = ResolvedRun(start, store, output_mode)
        if self.output_mode is output_mode and self.rules.naming.known == column_names(store):
            vars(run).update({name: vars(self)[name] for name in ("rules", "source") if name in vars(self)})
        return run

    @property
    def app_id(self) -> str:
        """Return the identity of the pipeline's commits in a sink. Without a state it matches no commit."""
        return f"raycdc:{self.config.pipeline.name}:" if self.store is None else self.store.app_id

    @cached_property
    def last(self) -> Manifest | None:
        """Return the last sealed epoch, from which the run continues; None at a first start."""
        return None if self.store is None else self.store.last_manifest()

    @cached_property
    def rules(self) -> TargetRules:
        """Return the routes, transforms, masks and names of tables, and the schema changes that targets support."""
        config = self.config
        return TargetRules(
            config.transformed(),
            config.router(),
            self.output_mode.by_rules_of_sink and config.sink.write == UPSERT,
            config.pipeline.schema_changes_left_out,
            config.pipeline.schema_change is SchemaChangeBehavior.IGNORE,
            config.masked(),
            Naming(
                config.sink.names,
                config.sink.invalid_names == "replace",
                config.sink.write == UPSERT,
                {} if self.store is None else column_names(self.store),
            ),
            parks=config.pipeline.on_table_error == "park",
            lost_rows_again=config.pipeline.on_log_lost == "resnapshot",
            fixed_columns=self.output_mode.is_sink and config.sink.type not in LOOSE,
        )

    @cached_property
    def changed(self) -> tuple[Difference, ...]:
        """Return the allowed differences from the configuration of the state. Raises `ConfigError` with all others."""
        if self.store is None:
            return ()
        return tuple(require_fitting(self.config, self.store, has_sink=self.output_mode.is_sink))

    @cached_property
    def source(self) -> Source[Any]:
        """Return the source, which is built before the origin of a full changelog is decided."""
        return self._source_maker(FullBy.NOTHING)()

    @cached_property
    def make_source(self) -> Callable[[], Source[Any]]:
        """Return the function that creates the source in every process of the run."""
        return self._source_maker(self.full_by)

    def _source_maker(self, full_by: FullBy) -> Callable[[], Source[Any]]:
        config = self.config
        context = SourceContext(
            rules=replace(self.rules, keeps_rows=full_by is FullBy.ROW_STORE),
            masking=Masking(config.masked(), config.state_key),
            sink=config.sink.type if self.output_mode.by_rules_of_sink else "",
            needs_before_images=full_by is FullBy.SOURCE,
            read_statement=read_statement,
        )
        return partial(load_plugin(PluginGroup.SOURCES, config.source.type).create, config.source, context)

    @cached_property
    def selection(self) -> TableSelection | None:
        """Return the selected tables that exist; None for a source that finds its tables only by reading."""
        return self.source.selection()

    @cached_property
    def lost(self) -> LostLog | None:
        """Return the new log position if the log is lost and `on_log_lost` is resnapshot; None if the log is intact.

        Raises `SourceError` for missing settings of the source, and `LogLostError` if the lost log ends the run.
        """
        last = self.last
        try:
            self.source.preflight(last)
        except LogLostError as lost:
            again = self.config.pipeline.on_log_lost == "resnapshot" and last is not None
            restart = self.source.restart(last) if again and last is not None else None
            if restart is None:
                raise
            return LostLog(str(lost), restart)
        return None

    @cached_property
    def requests(self) -> Requests:
        """Return the requests about tables with which the run begins, including those because of a `lost` log."""
        asked = Requests() if self.store is None else requests_of(self.store)
        if self.lost is None or self.last is None:
            return asked
        return all_again(asked, self.last, _log_start(self.lost.restart), self.lost.restart.tables)

    @cached_property
    def changes(self) -> SelectionChanges:
        """Return the effect of the changed selection of tables.

        Raises `ConfigError` for tables that cannot be added by a start alone.
        """
        selection = self.selection
        if self.store is None or selection is None:
            return SelectionChanges()
        return _selection_changes(self, self.store, selection)

    @cached_property
    def full_by(self) -> FullBy:
        """Return how a full changelog gets old values, which is fixed from the first epoch on.

        Raises `ConfigError` if rows were already written with a different ``source.changelog``.
        """
        full = self.config.source.full_changelog
        if self.store is not None:
            begun = begun_with(self.store, full=full)
            if self.last is not None:
                return begun
        if not full:
            return FullBy.NOTHING
        return FullBy.SOURCE if self.source.has_before_images() else FullBy.ROW_STORE

    @cached_property
    def refused(self) -> tuple[Refusal, ...]:
        """Return the followed tables that the source cannot follow any more, which are parked.

        Raises `SchemaError` if `on_table_error` is fail.
        """
        stream = stream_of(self.last)
        if stream is None:
            return ()
        refused = tuple(self.make_source().unfollowable(stream))
        if refused and self.config.pipeline.on_table_error == "fail":
            raise SchemaError("\n".join(refusal.reason for refusal in refused))
        return refused

    @cached_property
    def tables(self) -> dict[TableId, SourceTable]:
        """Return the tables that a run would capture if it started now; see `Source.tables`."""
        return self.source.tables()

    def require_as_begun(self) -> None:
        """Raise `ConfigError` if a table would be read in a different way than at the start of its snapshot.

        A run makes this check when it opens the log, because only then it loads the documents of all tables.
        """
        store, state = self.store, stream_of(self.last)
        if store is not None and state is not None:
            # Tables with a pending resnapshot are read by the present configuration.
            state = with_requests(state, self.requests)
            state = state.only(filter(self.config.source.captures, state.followed))
            split = StreamSplit.of(state, lambda fingerprint: SchemaDocument.from_json(store.document(fingerprint)))
            self.source.require_as_begun(split)

    def transformed(
        self, resolver: TransformResolver | None = None, on_names: Callable[[TableId, Names], None] = lambda _, __: None
    ) -> TransformedTables:
        """Return the changes that rows of tables undergo on their way to the sink.

        `resolver` evaluates expressions; None in a run without Spark.
        """
        config, rules = self.config, self.rules
        use = TransformUse(
            rules.upsert,
            self.start.no_merging,
            config.source.order_column,
            config.pipeline.on_bad_record in (SKIP, DEAD_LETTER),
            config.sink.no_layout,
            config.pipeline.on_existing == "merge",
            config.source.why_key_only,
            expression_settings(config.spark.conf),
        )
        return TransformedTables(
            rules.transforms, resolver or PlainResolver(), use, rules.masks, rules.naming, on_names
        )

    def require_rows(self, table: TableId, document: SchemaDocument, again: BackfillRows) -> None:
        """Raise `ConfigError` if the source cannot read these rows again. Any thread may call it."""
        source = self._source_maker(FullBy.NOTHING)().incremental()
        if source is None:
            raise ConfigError(
                f"source.type: {self.config.source.type} keeps no rows that could be read again; messages that it "
                "still has are read again by a pipeline with another pipeline.state and source.startup."
            )
        source.require_rows(table, document, again)


def next_run(config: PipelineConfig) -> ResolvedRun:
    """Return the run that would begin now, for a command that does not start it."""
    start = Start(config)
    return ResolvedRun(start, start.store)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a start.

    `ask` yields the findings of the step. If it raises a `RaycdcError`, the start is refused.
    """

    name: str
    ask: Callable[[ResolvedRun], Iterator[CheckResult]]

    def results(self, run: ResolvedRun) -> list[CheckResult]:
        """Return the findings, each with the error that would end a run."""
        found: list[CheckResult] = []
        try:
            # The findings before an error are kept.
            found.extend(self.ask(run))
        except RaycdcError as error:
            found.append(CheckResult(self.name, str(error), error=type(error)))
        return found


def _fitting(run: ResolvedRun) -> Iterator[CheckResult]:
    """Check that the state was made with a compatible configuration."""
    for text in effects_of(run.changed):
        yield CheckResult("state", text, required=False)


def _selected(run: ResolvedRun) -> Iterator[CheckResult]:
    """Yield a finding for each table that the configuration names, and that neither exists nor existed."""
    if (selection := run.selection) is not None:
        known = known_tables(run.last)
        for table, text in zip(selection.missing(known), selection.misspelt(known), strict=True):
            yield CheckResult(f"table {table}", text)


def _begun(run: ResolvedRun) -> Iterator[CheckResult]:
    """Check that the source can be read from the state's position, and report the effect of the start on tables."""
    lost, changes = run.lost, run.changes
    _log.debug("full by %s; the source can follow %d tables no further", run.full_by, len(run.refused))
    if lost is not None:
        yield CheckResult("start", lost.text, ALL_AGAIN, required=False, error=LogLostError)
    else:
        start = "its present end" if run.last is None else "where the state is"
        yield CheckResult("start", f"The source can be read from {start}.", ok=True)
    for text in described(changes):
        yield CheckResult("state", text, required=False)


#: The order is that of the table in the module's docstring.
FITTING, SELECTED, BEGUN = Step("state", _fitting), Step("tables", _selected), Step("start", _begun)
STEPS = (FITTING, SELECTED, BEGUN)


def resolve(
    start: Start,
    store: CheckpointStore,
    *,
    warn: Callable[[str], None],
    output_mode: OutputMode = OutputMode.SINK,
    planned: ResolvedRun | None = None,
) -> ResolvedRun:
    """Go through `STEPS`; raise the first refusal and pass other findings to `warn`.

    `planned` is the run as it was resolved before the state was taken. Changes nothing. Blocks while the source
    answers.
    """
    run = ResolvedRun(start, store, output_mode) if planned is None else planned.taken(start, store, output_mode)
    for step in STEPS:
        refused = []
        for result in step.ask(run):
            if result.required and not result.ok:
                refused.append(result)
            elif not result.ok:
                warn(f"{result.text} {result.fix}".strip())
        if refused:
            raise refused[0].error("\n".join(result.text for result in refused))
    for text in () if run.selection is None else run.selection.unmatched():
        warn(text)
    if run.full_by is FullBy.ROW_STORE and output_mode.is_sink:
        require_row_store(start)
    return run


def take_up(run: ResolvedRun) -> None:
    """Record the results of `resolve` in the state: table requests, origin of a full changelog, configuration.

    Called under the lease. After a crash within it, the next start finishes it.
    """
    store, last, changes = run.store, run.last, run.changes
    assert store is not None
    if run.lost is not None and last is not None:
        restart = run.lost.restart
        request_resnapshots(store, last, _log_start(restart), restart.tables)
    if changes.new or changes.back:
        ask(store, [*changes.new, *changes.back], TableRequest.RESNAPSHOT)
    if changes.made:
        ask(store, changes.made, TableRequest.FOLLOW)
    if last is None:
        keep_changelog(store, run.full_by)
    # A new location of the target is recorded only after the target there was verified
    # (`raycdc.driver.fitting.proving_target`).
    unproven = (ConfigChangeClass.LOCATION, ConfigChangeClass.NEW_STATE)
    locations = {difference.key: difference.was for difference in run.changed if difference.change in unproven}
    keys = read_configured(store) or {}
    if last is None and not run.output_mode.is_sink:
        # If nothing was sealed, the keys of the sink do not bind a run without one.
        keys = {key: value for key, value in keys.items() if not key.startswith("sink.")}
    write_configured(store, {**keys, **configured_keys(run.config, has_sink=run.output_mode.is_sink), **locations})


def described(changes: SelectionChanges) -> list[str]:
    """Return the effect of this start on tables, for people."""
    said = {
        "selected and new to this pipeline: read with a snapshot while the others go on": changes.new,
        "created since the last run: followed from the log, or snapshotted if the log lacks a part": changes.made,
        "selected again: resnapshotted while the others go on": changes.back,
        "not selected any more: ended, and the target keeps its rows": changes.left,
    }
    return [f"{', '.join(names)}: {text}." for text, names in said.items() if names]


def read_statement(statement: str, default_db: str) -> tuple[SchemaChangeEvent, ...]:
    """Parse a DDL statement in a message with the parser of its source, which takes a moment to load."""
    return _reader_of_statements()(statement, default_db)


@cache
def _reader_of_statements() -> ReadStatement:
    reader: ReadStatement = load_plugin(PluginGroup.SOURCES, _STATEMENTS_OF).read_statement()
    return reader


def _log_start(restart: Restart) -> LogStart:
    return LogStart(restart.position, restart.ordinal)


def _selection_changes(run: ResolvedRun, store: CheckpointStore, selection: TableSelection) -> SelectionChanges:
    was, rules = read_configured(store) or {}, run.rules
    patterns = kept_texts(was, "source.tables") or kept_texts(was, "source.collections")
    #: The selection of the last start; None if the state does not say.
    before = TableSelector(patterns, kept_texts(was, "source.exclude")) if patterns else None
    changes = changes_of(selection, run.last, run.requests, run.config.source.captures)
    every = [*selection.tables, *map(TableId.parse, known_tables(run.last))]
    named = [name for name in changes.new if before is not None and not before.matches(TableId.parse(name))]
    shared = {name: why for name in (*changes.back, *named) if (why := rules.shared(TableId.parse(name), every))}
    if shared:
        how = dict.fromkeys(named, "is selected now")
        texts = (f"{selection.key_path}: {n} {how.get(n, 'was put back')}, but {why}." for n, why in shared.items())
        raise ConfigError(*texts)
    # The patterns of the last start selected the `made` tables already, so they were created after it, and the log has
    # all their rows.
    new = [name for name in changes.new if not rules.shared(TableId.parse(name), every)]
    made = [name for name in new if before is not None and name not in named]
    return replace(changes, new=tuple(name for name in new if name not in made), made=tuple(made))
