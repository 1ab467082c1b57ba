"""Examines the tables of the source, and their transforms by Spark, for `check` and `plan`. Changes nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raycdc.config import PipelineConfig
from raycdc.config.checks import CheckResult
from raycdc.driver.resolve import ResolvedRun
from raycdc.errors import RaycdcError, SchemaError
from raycdc.model import TableId, TableSchema
from raycdc.model.rules.layout import ANY_LAYOUT
from raycdc.model.rules.names import claimed
from raycdc.model.rules.transform import Transforms
from raycdc.sinks.targets import shape_of
from raycdc.transform import TransformedTables, TransformResolver
from raycdc.transform.resolved import is_plain

#: The advice about a `raycdc.source.connector.SourceTable.note`.
CHUNKS_FIX = "For chunks of another column, index it whole, and name it in source.snapshot.key."


@contextmanager
def transformed_tables(run: ResolvedRun) -> Iterator[TransformedTables]:
    """Yield the resolved transforms of `run`. Spark runs within the block if any transform needs it.

    Raises `ConfigError` for functions that cannot be used.
    """
    transforms = run.rules.transforms
    if all(is_plain(transform) and not transform.udfs for transform in transforms.all):
        yield run.transformed()
        return
    with _session(run.config) as session:
        yield run.transformed(_resolver(session, transforms))


def table_of(finding: CheckResult) -> TableId:
    """Return the table that one of `table_findings` is about."""
    return TableId.parse(finding.name.removeprefix("table "))


def table_findings(run: ResolvedRun, schemas: Mapping[TableId, TableSchema]) -> list[CheckResult]:
    """Return findings about tables that no target can hold, which a run parks, and about columns that get a
    different name.
    """
    rules = run.rules
    results: list[CheckResult] = []
    shared = _shared_locations(
        run, [table for table, schema in sorted(schemas.items()) if not rules.refusal(table, schema)]
    )
    for table, schema in schemas.items():
        if why := rules.refusal(table, schema) or shared.get(table, ""):
            what = "A run parks it." if rules.parks else "A run ends."
            results.append(CheckResult(f"table {table}", why, what, error=SchemaError, parks=True))
        elif names := rules.names(table, schema):
            shown = ", ".join(f"{name!r} is {made!r}" for name, made in names.items())
            text = f"{table}: {shown} in the target, which cannot hold the column's own name."
            fix = 'Give it another by a [[transform]], or set sink.invalid_names = "park".'
            results.append(CheckResult("names", text, fix, required=False))
    return results


def _shared_locations(run: ResolvedRun, tables: Sequence[TableId]) -> dict[TableId, str]:
    """Return the tables whose target has the location of another target, with the reason.

    `tables` are in the order of a run.
    """
    record = None if run.store is None else run.store.last_commit()
    held = () if record is None else map(TableId.parse, record.tables)
    sources: dict[TableId, TableId] = {}
    for table in tables:
        for target in run.rules.router.targets(table):
            sources.setdefault(target, table)
    return {
        sources[target]: f"{target}: {why}."
        for target, why in claimed(run.config.sink.names, sorted(sources), held).items()
    }


def _resolver(session: Any, transforms: Transforms) -> TransformResolver:
    from raycdc.spark.transforms import SparkResolver, TransformSession

    return SparkResolver(TransformSession(lambda: session, transforms))


@contextmanager
def _session(config: PipelineConfig) -> Iterator[Any]:
    from raycdc.spark.session import spark_session

    with tempfile.TemporaryDirectory(prefix="raycdc-plan-") as scratch:
        session = spark_session("local[1]", Path(scratch), config.spark.conf)
        try:
            yield session
        finally:
            session.stop()


def unfit_results(
    run: ResolvedRun, tables: TransformedTables, schemas: Mapping[TableId, TableSchema]
) -> Iterator[CheckResult]:
    """Yield a finding for each table with columns that its targets cannot have, so that a run parks the table. The
    columns are those after transforms and masks.
    """
    sink, write = run.start.sink, run.config.sink.write
    for table, schema in schemas.items():
        read = tables.read(table, schema)[0]
        resolved = tables.resolved(table, read)
        made, layout = (read, ANY_LAYOUT) if resolved is None else (resolved.schema, resolved.layout)
        for target in run.rules.router.targets(table):
            try:
                sink.statement(shape_of(write, target, made, layout))
            except RaycdcError as error:
                yield CheckResult(f"table {table}", str(error), "A run parks it.", error=SchemaError, parks=True)


def transform_problems(
    tables: TransformedTables, schemas: Mapping[TableId, TableSchema]
) -> Iterator[tuple[TableId, str]]:
    """Yield the problem of each table with a transform or masks; empty if there is none."""
    for table, schema in schemas.items():
        if tables.transforms.of(table) is None and not any(tables.masks.of(table, c.name) for c in schema.columns):
            continue
        try:
            tables.resolved(table, tables.read(table, schema)[0])
        except RaycdcError as error:
            yield table, str(error)
        else:
            yield table, ""
