"""The questions of `check` and `plan` to the source about its tables and to Spark about transforms. Changes nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raycdc.bridge.bad_rows import DEAD_LETTER, SKIP
from raycdc.checkpoint.changelog import FullBy
from raycdc.checkpoint.names import column_names
from raycdc.checkpoint.place import state_of
from raycdc.checkpoint.store import CheckpointStore
from raycdc.config import PipelineConfig
from raycdc.errors import RaycdcError, SchemaError, StateError
from raycdc.model import TableId, TableSchema
from raycdc.model.names import claimed
from raycdc.model.transform import Transforms
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.preflight import naming_of, source_maker, target_rules
from raycdc.source.checks import CheckResult
from raycdc.source.connector import Source
from raycdc.startup_checks import no_merging
from raycdc.transform import PlainResolver, Resolver, TransformedTables, TransformUse
from raycdc.transform.naming import Naming
from raycdc.transform.plain import is_plain

#: The advice about a `raycdc.source.connector.SourceTable.note`.
CHUNKS_FIX = "For chunks of another column, index it whole, and name it in source.snapshot.key."


def known_source(config: PipelineConfig) -> Source[Any]:
    """The source as a run would make it, except that a run also decides how the changelog becomes full. Changes
    nothing.
    """
    upsert = config.sink.write == "upsert"
    return source_maker(config, upsert=upsert, full_by=FullBy.NOTHING, naming=known_naming(config))()


@contextmanager
def transformed_tables(config: PipelineConfig) -> Iterator[TransformedTables]:
    """The resolved transforms of `config`. Spark is started for as long as the block lasts, if any transform needs it.

    Raises `ConfigError` for functions that cannot be used.
    """
    transforms = config.transformed()
    order_by = config.source.order_column
    upsert = config.sink.write == "upsert"
    proof = ""
    if upsert and any(transform.primary_keys for transform in transforms.all):
        proof = no_merging(config, load_plugin(PluginGroup.SINKS, config.sink.type).create(config.sink))
    leaves_out, adopts = config.pipeline.on_bad_record in (SKIP, DEAD_LETTER), config.pipeline.on_existing == "merge"
    use = TransformUse(upsert, proof, order_by, leaves_out, config.sink.no_layout, adopts)
    naming = known_naming(config)
    if all(is_plain(transform) and not transform.udfs for transform in transforms.all):
        yield TransformedTables(transforms, PlainResolver(), use, config.masked(), naming)
        return
    with _session(config) as session:
        yield TransformedTables(transforms, _resolver(session, transforms), use, config.masked(), naming)


def known_store(config: PipelineConfig) -> CheckpointStore | None:
    """The state, where there is one."""
    place = state_of(config)
    try:
        if place.open().read("meta.json") is None:
            return None
    except StateError:
        return None  # The check of the state reports the reason.
    return CheckpointStore(place, create=False)


def known_naming(config: PipelineConfig) -> Naming:
    """Which columns have another name in targets, those that the state has among them."""
    store = known_store(config)
    return naming_of(config, {} if store is None else column_names(store))


def table_of(finding: CheckResult) -> TableId:
    """The table that one of `table_findings` is about."""
    return TableId.parse(finding.name.removeprefix("table "))


def table_findings(config: PipelineConfig, schemas: Mapping[TableId, TableSchema]) -> list[CheckResult]:
    """Tables that no target can hold as they are, which a run parks, and columns that get another name."""
    rules = target_rules(config, upsert=config.sink.write == "upsert", naming=known_naming(config))
    results: list[CheckResult] = []
    alike = _alike(config, [table for table, schema in sorted(schemas.items()) if not rules.refusal(table, schema)])
    for table, schema in schemas.items():
        if why := rules.refusal(table, schema) or alike.get(table, ""):
            what = "A run parks it." if rules.parks else "A run ends."
            results.append(CheckResult(f"table {table}", why, what, error=SchemaError, parks=True))
        elif names := rules.names(table, schema):
            shown = ", ".join(f"{name!r} is {made!r}" for name, made in names.items())
            text = f"{table}: {shown} in the target, which cannot hold the column's own name."
            fix = 'Give it another by a [[transform]], or set sink.invalid_names = "park".'
            results.append(CheckResult("names", text, fix, required=False))
    return results


def _alike(config: PipelineConfig, tables: Sequence[TableId]) -> dict[TableId, str]:
    """Those of `tables`, in the order of a run, a target of which would have another's place, and why."""
    store, router = known_store(config), config.router()
    record = None if store is None else store.last_commit()
    held = () if record is None else map(TableId.parse, record.tables)
    sources: dict[TableId, TableId] = {}
    for table in tables:
        for target in router.targets(table):
            sources.setdefault(target, table)
    return {
        sources[target]: f"{target}: {why}."
        for target, why in claimed(config.sink.names, sorted(sources), held).items()
    }


def _resolver(session: Any, transforms: Transforms) -> Resolver:
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


def transform_problems(
    tables: TransformedTables, schemas: Mapping[TableId, TableSchema]
) -> Iterator[tuple[TableId, str]]:
    """Tables whose transform or masks cannot be, and why; an empty text for those whose can."""
    for table, schema in schemas.items():
        if tables.transforms.of(table) is None and not any(tables.masks.of(table, c.name) for c in schema.columns):
            continue
        try:
            tables.resolved(table, tables.read(table, schema)[0])
        except RaycdcError as error:
            yield table, str(error)
        else:
            yield table, ""
