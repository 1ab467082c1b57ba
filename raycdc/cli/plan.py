"""``raycdc plan``: the targets that a pipeline would make. Asks the source; changes nothing anywhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from raycdc.cli.check import check_changelog, told_of_pace, told_of_state
from raycdc.cli.schemas import (
    CHUNKS_FIX,
    known_source,
    known_store,
    table_findings,
    transform_problems,
    transformed_tables,
)
from raycdc.config import PipelineConfig, load_config
from raycdc.errors import ConfigError, ExitCode
from raycdc.model import TableId, TableSchema
from raycdc.printable import printable, printable_json, printable_text
from raycdc.schema.events import CreateTableEvent
from raycdc.schema.targets import targets_of
from raycdc.sinks.statements import shape_of
from raycdc.source.connector import SourceTable
from raycdc.startup_checks import Start
from raycdc.transform import ResolvedTransform, TransformedTables, layout_of


def plan_config(path: Path, *, as_json: bool) -> int:
    """Print each target with its source tables, columns and statement. `ConfigError` with all transforms that are
    wrong; `SchemaError` for tables that cannot be merged.
    """
    config = load_config(path)
    source = known_source(config)
    if not source.knows_tables:
        print("Only the last messages of the topics were read, so more tables and columns may come.",
              file=sys.stderr)  # fmt: skip
    tables = source.tables()
    for text in told_of_pace(config):
        print(printable_text(f"Pace: {text}"), file=sys.stderr)
    for result in check_changelog(config, source) if tables else ():
        print(printable_text(f"Changelog: {result.text}"), file=sys.stderr)
    parked: set[TableId] = set()
    for result in table_findings(config, {name: table.schema for name, table in tables.items()}):
        parked |= {TableId.parse(result.name.removeprefix("table "))} if result.parks else set()
        print(printable_text(f"{'Parked' if result.parks else 'Names'}: {result.text}"), file=sys.stderr)
    for name, table in tables.items():
        if table.note and name not in parked:
            print(printable_text(f"Chunks: {table.note} {CHUNKS_FIX}"), file=sys.stderr)
    tables = {name: table for name, table in tables.items() if name not in parked}
    with transformed_tables(config) as transforms:
        for target in planned(config, tables, transforms):
            _print(target, as_json=as_json)
    store = known_store(config)
    for text in told_of_state(config, store) if store is not None else ():
        print(printable_text(f"State: {text}"), file=sys.stderr)
    if not tables and not parked:
        print("No table is captured yet.", file=sys.stderr)
    return int(ExitCode.DONE)


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A source table of a target: its size, as far as it is known, and how its rows become the target's."""

    table: str
    rows: int
    chunks: int
    transform: str
    how: str


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column of a target, with its type as Spark spells it."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class PlannedTarget:
    """A target as a run would make it; as JSON, its fields are the keys. `ddl` is empty where the sink has none."""

    target: str
    write: str
    sources: tuple[PlannedSource, ...]
    columns: tuple[PlannedColumn, ...]
    primary_key: tuple[str, ...]
    ddl: str


def planned(
    config: PipelineConfig, tables: Mapping[TableId, SourceTable], transforms: TransformedTables
) -> list[PlannedTarget]:
    """The targets of the tables that there are."""
    problems = [
        text for _, text in transform_problems(transforms, {name: t.schema for name, t in tables.items()}) if text
    ]
    if problems:
        raise ConfigError(*problems)
    schemas: dict[TableId, TableSchema] = {}
    transformed: dict[TableId, ResolvedTransform] = {}
    for name, table in tables.items():
        schema, _ = transforms.read(name, table.schema)
        resolved = transforms.resolved(name, schema)
        schemas[name] = schema if resolved is None else resolved.schema
        transformed |= {} if resolved is None else {name: resolved}
    created = {name: (schema, [CreateTableEvent(name, schema)]) for name, schema in schemas.items()}
    upsert = config.sink.write == "upsert"
    sink = Start(config).sink
    made = targets_of(created, {}, config.router(), upsert=upsert)
    return [
        PlannedTarget(
            target=str(share.name),
            write=config.sink.write,
            sources=tuple(_source(name, tables[name], transforms) for name in share.sources),
            columns=tuple(PlannedColumn(c.name, c.type.spark(), c.nullable) for c in share.schema.columns),
            primary_key=share.schema.primary_key,
            ddl=sink.statement(
                shape_of(config.sink.write, share.name, share.schema, layout_of(share.name, transformed, share.sources))
            ),
        )
        for share, _ in made
    ]


def _source(name: TableId, table: SourceTable, transforms: TransformedTables) -> PlannedSource:
    schema, _ = transforms.read(name, table.schema)
    resolved = transforms.resolved(name, schema)
    how = "as it is" if schema == table.schema else "masked"
    transform = transforms.transforms.of(name)
    if resolved is not None and transform is None:
        how = f"{how}, under names that the target can hold"
    elif resolved is not None:
        how = "computed by Spark" if transforms.derived(resolved) else "columns chosen or renamed, without Spark"
        joined = [f"joined with {one.lookup.dimension.partition(' ')[2]} by {one.key}" for one in resolved.lookups]
        how = ", ".join([*([] if joined and not transforms.derived(resolved) else [how]), *joined])
    place = transforms.transforms.place(name) if transform is not None else ""
    return PlannedSource(str(name), table.rows, table.chunks, place, how)


def _print(target: PlannedTarget, *, as_json: bool) -> None:
    if as_json:
        print(printable_json(json.dumps(asdict(target), ensure_ascii=False)))
        return
    key = f", key {', '.join(target.primary_key)}" if target.primary_key else ", no key"
    print(printable(f"{target.target}  ({target.write}{key})"))
    for source in target.sources:
        how = f"{source.transform}, {source.how}" if source.transform else source.how
        size = f"about {source.rows} rows in {source.chunks} chunks, " if source.chunks else ""
        print(printable(f"  from {source.table}: {size}{how}"))
    for column in target.columns:
        print(printable(f"  {column.name} {column.type}{'' if column.nullable else ' not null'}"))
    ddl = printable_text(target.ddl, indent="  ")
    print(f"  {ddl}\n" if ddl else "")
