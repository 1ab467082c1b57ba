"""What `check` and `plan` ask the source of its tables, and Spark of their transforms. Changes nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raycdc.bridge.bad_rows import DEAD_LETTER, SKIP
from raycdc.checkpoint.names import column_names
from raycdc.checkpoint.store import CheckpointStore
from raycdc.config import PipelineConfig
from raycdc.errors import RaycdcError, SchemaError
from raycdc.model import TableId, TableSchema
from raycdc.model.transform import Transforms
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.preflight import naming_of, target_rules
from raycdc.source.checks import CheckResult
from raycdc.startup_checks import no_merging
from raycdc.transform import PlainResolver, Resolver, TransformedTables, TransformUse
from raycdc.transform.naming import Naming
from raycdc.transform.plain import is_plain


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A captured table: its schema as it is read, and about how many rows it has and chunks these are; `note` says
    where these are not what one would expect.
    """

    schema: TableSchema
    rows: int
    chunks: int
    note: str = ""


#: What to do about a `SourceTable.note`.
CHUNKS_FIX = "For chunks of another column, index it whole, and name it in source.snapshot.key."


def source_tables(source: Any, *, hides: bool = False) -> dict[TableId, SourceTable]:
    """The tables that a source captures, as they are now, or as the last messages show them. Raises `SourceError`, and
    `DataError` for messages that cannot be decoded, without their contents where the pipeline `hides` some.
    """
    match source.type:
        case "mongodb":
            return mongodb_tables(source)
        case "kafka":
            return kafka_tables(source, hides=hides)
        case _:
            return mysql_tables(source)


def kafka_tables(source: Any, *, hides: bool = False) -> dict[TableId, SourceTable]:
    """The tables that a topic's last messages are of, with the columns known by them; how many rows is not known."""
    from raycdc.connectors.kafka.checks import tables_of_last_messages

    found = tables_of_last_messages(source, hides=hides)
    return {table: SourceTable(schema, 0, 0) for table, schema in sorted(found.items())}


def mongodb_tables(source: Any) -> dict[TableId, SourceTable]:
    """The collections that a `MongoDbSourceConfig` captures, with the columns a run that starts now gives them."""
    from raycdc.connectors.mongodb.catalog import discover, layout_of, size_of
    from raycdc.connectors.mongodb.client import connect, probe
    from raycdc.connectors.mongodb.splits import cut

    with connect(source.uri) as client:
        info = probe(client)
        found = {}
        for table, uuid in discover(client, source.selector()).items():
            chunks = len(cut(client, info, table, source.snapshot).bounds) + 1
            schema = layout_of(client, source, table, uuid).schema()
            found[table] = SourceTable(schema, size_of(client, table).documents, chunks)
    return found


def mysql_tables(source: Any) -> dict[TableId, SourceTable]:
    """The tables that a `MySqlSourceConfig` captures, as they are now. Raises `SourceError`."""
    from raycdc.connectors.mysql.catalog import discover_tables, load_tables, table_sizes
    from raycdc.connectors.mysql.connection import connect
    from raycdc.connectors.mysql.snapshot.chunk_keys import prefix_note
    from raycdc.connectors.mysql.values.documents import Capture

    selector = source.selector()
    with closing(connect(source.settings())) as connection:
        names = discover_tables(connection, selector, named=selector.plain_names)
        described, sizes = load_tables(connection, names), table_sizes(connection, names)
        named = source.snapshot.key
        notes = {table: prefix_note(connection, columns, named.get(str(table))) for table, columns in described.items()}
    types = source.types.options()
    found = {}
    for table, columns in sorted(described.items()):
        listed = source.columns.get(str(table))
        capture = Capture(None, None if listed is None else tuple(listed))
        rows = sizes[table].rows if table in sizes else 0
        schema = capture.narrowed(types.treat_table(columns)).schema()
        chunks = 1 if "one piece" in notes[table] else max(1, -(-rows // source.snapshot.chunk_rows))
        found[table] = SourceTable(schema, rows, chunks, notes[table])
    return found


@contextmanager
def transformed_tables(config: PipelineConfig) -> Iterator[TransformedTables]:
    """What resolves the transforms of `config`: Spark, started for as long as this lasts, where any needs it.

    Raises `ConfigError` for functions that cannot be used.
    """
    transforms = config.transformed()
    order_by = getattr(config.source, "order_by", None) or ""
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
    state = Path(config.pipeline.state)
    try:
        return CheckpointStore(state, create=False) if (state / "meta.json").exists() else None
    except OSError:
        return None  # The check of the state says why.


def known_naming(config: PipelineConfig) -> Naming:
    """Which columns have another name in targets, those that the state has among them."""
    store = known_store(config)
    return naming_of(config, {} if store is None else column_names(store))


def table_findings(config: PipelineConfig, schemas: Mapping[TableId, TableSchema]) -> list[CheckResult]:
    """Tables that no target can hold as they are, which a run parks, and columns that get another name."""
    rules = target_rules(config, upsert=config.sink.write == "upsert", naming=known_naming(config))
    results: list[CheckResult] = []
    for table, schema in schemas.items():
        if why := rules.refusal(table, schema):
            what = "A run parks it." if rules.parks else "A run ends."
            results.append(CheckResult(f"table {table}", why, what, error=SchemaError, parks=True))
        elif names := rules.names(table, schema):
            shown = ", ".join(f"{name!r} is {made!r}" for name, made in names.items())
            text = f"{table}: {shown} in the target, which cannot hold the column's own name."
            fix = 'Give it another by a [[transform]], or set sink.invalid_names = "park".'
            results.append(CheckResult("names", text, fix, required=False))
    return results


def _resolver(session: Any, transforms: Transforms) -> Resolver:
    from raycdc.spark.transforms import SparkResolver

    return SparkResolver(session, transforms)


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
