"""Compares the tables of a configuration, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from raycdc.config import PipelineConfig
from raycdc.driver.fitting import require_fitting
from raycdc.driver.resolve import ResolvedRun
from raycdc.driver.startup_checks import Start
from raycdc.errors import ConfigError, SchemaError, StateError, TableRefusedError
from raycdc.model import TableId, TableSchema
from raycdc.model.column_names import find_name, spark_fold
from raycdc.model.evolution.effects import SchemaChangeBehavior
from raycdc.model.rules.selector import plain_table
from raycdc.state.bad_row_counts import bad_rows
from raycdc.state.location import state_of
from raycdc.state.store import CheckpointStore
from raycdc.transform import TransformedTables, TransformUse
from raycdc.transform.masks import Masking
from raycdc.transform.resolved import ResolvedTransform
from raycdc.verify.canonical import CanonicalForm, Compared, ComparedColumn
from raycdc.verify.expressions import Expressions
from raycdc.verify.pipeline_state import CommittedState, PipelineState
from raycdc.verify.results import TableResult
from raycdc.verify.source_rows import ReadUpTo, RowMaker, SourceTableRows
from raycdc.verify.table import ComparisonTimeouts, Reading, Sides, TableComparison
from raycdc.verify.targets.api import NotComparedError
from raycdc.verify.targets.open import open_target


@dataclass(frozen=True, slots=True)
class Watched:
    """The table that is being compared, with its progress. `about` is its estimated number of rows (0: unknown)."""

    table: str
    reading: Reading
    about: int = 0


class Verifier:
    """Compares the tables of one configuration. `on_table` is called with each table before it is compared."""

    def __init__(self, config: PipelineConfig, terms: ComparisonTimeouts, on_table: Callable[[Watched], None]) -> None:
        """Open the pipeline's state and source.

        Raises `ConfigError` and `StateError` for problems that concern every table.
        """
        store = CheckpointStore.there(state_of(config), pipeline=config.pipeline.name)
        if store is None:
            raise StateError(f"There is no state in {state_of(config)}: the pipeline has not run yet.")
        run = ResolvedRun(Start(config), store)
        require_fitting(config, store)
        self._config = config
        self._terms = terms
        self._on_table = on_table
        self._upsert, self._naming = run.rules.upsert, run.rules.naming
        source = run.source.incremental()
        if source is None:
            raise ConfigError(
                f"source.type: verify reads tables again, and {config.source.type} keeps none that it could read."
            )
        self._source = source
        self._state = PipelineState(store)
        use, transforms = TransformUse(self._upsert), config.transformed()
        self._expressions = Expressions(config.spark, transforms)
        self._transforms = TransformedTables(transforms, self._expressions, use, config.masked(), self._naming)

    def close(self) -> None:
        """End Spark, if a table needed it."""
        self._expressions.close()

    def tables(self, names: Sequence[str]) -> list[TableId]:
        """Return the tables called `names`, or all tables of the pipeline. Raises `ConfigError` for an unknown one."""
        stream = self._state.held().stream
        known = {str(table): table for table in stream.tables}
        if not names:
            return [known[name] for name in sorted(known)]
        chosen = []
        for name in names:
            table = plain_table(name)
            if table is None or str(table) not in known:
                raise ConfigError(f"{name} is none of the pipeline's tables ({', '.join(sorted(known))}).")
            chosen.append(table)
        return chosen

    def compare(self, tables: Sequence[TableId]) -> Iterator[TableResult]:
        """Yield each table's result when it is known.

        Errors of the source, the target's store or the state end the iteration.
        """
        for table in tables:
            targets = self._config.router().targets(table)
            for target in targets:
                yield self._result(table, target)

    def source_batches(self, table: TableId) -> Iterator[pa.RecordBatch]:
        """Yield the source's rows as they are read, without any processing; for benchmarks."""
        held = self._state.held()
        document = held.document(table)
        schema, resolved = self._transformed(table, document.schema)
        maker = self._maker(table, schema, resolved)
        yield from SourceTableRows(self._source, table, document, maker).batches(held.position, ReadUpTo())

    def _result(self, table: TableId, target: TableId) -> TableResult:
        reading = Reading()
        notes: list[str] = []
        if why := self._state.held().why_left_out(table):
            return TableResult(str(table), str(target), reason=f"{why.rstrip('.')}.", is_left_out=True)
        try:
            self._require_alone(table, target)
            schema, _ = self._transformed(table, self._state.held().document(table).schema)
            about = open_target(self._config, target, schema).rows_about()
            self._on_table(Watched(str(table), reading, about))
            open_sides = partial(self._sides, table, target, notes)
            comparison = TableComparison(self._state, open_sides, self._terms, reading).run()
        except NotComparedError as why:
            return TableResult.refused(str(table), str(target), why=str(why), notes=notes)
        if comparison.sample < 1:
            notes.append("only a sample of its ranges was read, and rows too many in the target were not looked for")
        if comparison.counts.missing and (left := self._left_out(table)):
            notes.append(f"{left} rows were left out as bad rows, as pipeline.on_bad_record says, and are missing")
        notes += [
            f"the values of {column.name} are in the target's column {column.moved_to}, which the source has not: it "
            "was renamed by somebody, or at the source while a raycdc wrote here that left its new name without them. "
            f"Read the table anew: raycdc tables resnapshot CONFIG {table}"
            for column in comparison.columns
            if column.moved_to
        ]
        return TableResult(str(table), str(target), comparison, notes=tuple(dict.fromkeys(notes)))

    def _left_out(self, table: TableId) -> int:
        return bad_rows(self._state.store, self._state.held().record.epoch).get(str(table), 0)

    def _require_alone(self, table: TableId, target: TableId) -> None:
        """Raise `NotComparedError` if the target also has rows of other tables."""
        if not self._source.takes_snapshot:
            raise NotComparedError(
                "the pipeline began without a snapshot (source.startup), so its targets lack older rows"
            )
        entry = self._state.held().record.routes.get(str(target))
        if entry is not None and (others := sorted(set(entry.sources) - {str(table)})):
            raise NotComparedError(f"{target} also has rows of {', '.join(others)}, which cannot be told from its own")
        if self._config.pipeline.on_existing == "merge":
            raise NotComparedError(
                f'{target} may have had rows of others, which pipeline.on_existing = "merge" keeps and which look like '
                "rows too many"
            )

    def _sides(self, table: TableId, target: TableId, notes: list[str], held: CommittedState) -> Sides:
        document = held.document(table)
        schema, resolved = self._transformed(table, document.schema)
        maker = self._maker(table, schema, resolved)
        if not schema.primary_key:
            raise NotComparedError("it has no primary key, by which rows of both sides could be matched")
        varying = [column.name for column in schema.columns if column.name not in maker.names]
        if invalid := sorted(set(varying) & set(schema.primary_key)):
            raise NotComparedError(f"its key has {', '.join(invalid)}, which is another value in each change")
        rows = open_target(self._config, target, schema)
        there = rows.columns()
        names = {name: match for name in maker.names if (match := find_name(name, there, spark_fold)) is not None}
        absent = [name for name in maker.names if name not in names]
        if absent:
            self._judge_absent(target, absent, schema.primary_key, notes)
        columns = tuple(
            ComparedColumn(name, CanonicalForm.of(schema.column(name).type, one_zero=rows.one_zero)) for name in names
        )
        by_name = {column.name: column for column in columns}
        compared = Compared(columns, tuple(by_name[name] for name in schema.primary_key))
        source = SourceTableRows(self._source, table, document, maker)
        source_key = _source_key(document.schema, resolved)
        if resolved is not None and resolved.transform.soft:
            deleted = find_name(resolved.transform.deleted_column, there, spark_fold)
            assert deleted is not None
            counts = partial(_present, deleted=deleted)
            return Sides(source, rows, compared, names, counts, (deleted,), source_key=source_key, leaves_rows_out=True)
        filtered, changes = resolved is not None and bool(resolved.transform.filter), not self._upsert
        return Sides(
            source, rows, compared, names, is_changelog=changes, source_key=source_key, leaves_rows_out=filtered
        )

    def _maker(self, table: TableId, schema: TableSchema, resolved: ResolvedTransform | None) -> RowMaker:
        masking = Masking(self._config.masked(), self._config.state_key)
        return RowMaker(table, schema, masking, self._expressions, resolved)

    def _judge_absent(self, target: TableId, absent: Sequence[str], key: Sequence[str], notes: list[str]) -> None:
        config = self._config.pipeline
        named = ", ".join(absent)
        lets = config.schema_change in (SchemaChangeBehavior.IGNORE, SchemaChangeBehavior.TRY_EVOLVE)
        if set(absent) & set(key) or not (lets or config.schema_changes_left_out):
            raise NotComparedError(f"{target} has no column {named}, so every row differs from the source's")
        notes.append(f"{target} has no column {named}, which the source has (pipeline.schema_change lets that be)")

    def _transformed(self, table: TableId, schema: TableSchema) -> tuple[TableSchema, ResolvedTransform | None]:
        """Return the columns of the target's rows, and the transform that makes them.

        Raises `NotComparedError` if they cannot be determined.
        """
        asked = self._transforms.transforms.of(table)
        if asked is not None and asked.lookups:
            raise NotComparedError("it is joined with a [[lookup]], whose answers change by themselves")

        try:
            read, _ = self._transforms.read(table, schema)
            resolved = self._transforms.resolved(table, read)
        except (TableRefusedError, ConfigError, SchemaError) as cause:
            raise NotComparedError(str(cause).rstrip(".")) from cause
        return (read if resolved is None else resolved.schema), resolved


def _source_key(schema: TableSchema, resolved: ResolvedTransform | None) -> Mapping[str, str]:
    """Return the source's column of each part of the target's key.

    Empty if the target's key does not identify a row of the source.
    """
    if resolved is None:
        return {name: name for name in schema.primary_key}
    stored = {column.name: column.stored for column in resolved.columns}
    named = {name: stored.get(name, "") for name in resolved.schema.primary_key}
    return named if sorted(named.values()) == sorted(schema.primary_key) else {}


def _present(batch: pa.RecordBatch, *, deleted: str) -> pa.RecordBatch:
    """Return the rows that are not marked as deleted."""
    return batch.filter(pc.invert(pc.fill_null(batch.column(deleted), fill_value=False)))
