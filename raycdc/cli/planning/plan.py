"""``raycdc plan``: prints the targets that a pipeline would create. Asks the source; changes nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import time_ns

from raycdc.cli.planning.check import REFUSED, check_changelog, rate_limit_lines, state_effects
from raycdc.cli.planning.check_targets import lying_there
from raycdc.cli.planning.plan_file import (
    NO_STATE,
    NOTHING,
    OTHER,
    OWN,
    VERSION,
    PlannedColumn,
    PlannedSource,
    PlannedTable,
    PlannedTarget,
    SealedPlan,
    differences,
    read_plan,
    write_plan,
)
from raycdc.cli.planning.schemas import CHUNKS_FIX, table_findings, table_of, transform_problems, transformed_tables
from raycdc.cli.screens.formatting import counted, duration_text, size_text
from raycdc.config import PipelineConfig, load_config
from raycdc.core.terminal_text import printable, printable_json, printable_text
from raycdc.driver.resolve import ResolvedRun, next_run
from raycdc.errors import ConfigError, ExitCode
from raycdc.model import TableId, TableSchema
from raycdc.model.evolution.events import CreateTableEvent
from raycdc.model.evolution.targets import targets_of
from raycdc.sinks.targets import shape_of
from raycdc.source.connector import SourceTable
from raycdc.source.selection import known_tables
from raycdc.state.configured import all_keys
from raycdc.transform import ResolvedTransform, TransformedTables, layout_of

#: The number of narrow rows per second that two cores read and write (`raycdc docs benchmarks`). The estimate uses it,
#: because the speed of the user's machine is unknown before a run.
ROWS_PER_S = 500_000


def plan_config(path: Path, *, as_json: bool, out: Path | None = None) -> int:
    """Print each target with its source tables, columns and statement; seal the plan in the file `out`.

    Raises `ConfigError` with all invalid transforms, or if a plan is to be sealed and a run would be refused. Raises
    `SchemaError` for tables that cannot be merged.
    """
    config = load_config(path)
    run = next_run(config)
    if not run.source.knows_tables:
        print("Only the last messages of the topics were read, so more tables and columns may come.",
              file=sys.stderr)  # fmt: skip
    tables = run.tables
    for text in rate_limit_lines(config):
        print(printable_text(f"Pace: {text}"), file=sys.stderr)
    for result in check_changelog(run) if tables else ():
        print(printable_text(f"Changelog: {result.text}"), file=sys.stderr)
    parked: set[TableId] = set()
    for result in table_findings(run, {name: table.schema for name, table in tables.items()}):
        parked |= {table_of(result)} if result.parks else set()
        print(printable_text(f"{'Parked' if result.parks else 'Names'}: {result.text}"), file=sys.stderr)
    for name, table in tables.items():
        if table.note and name not in parked:
            print(printable_text(f"Chunks: {table.note} {CHUNKS_FIX}"), file=sys.stderr)
    tables = {name: table for name, table in tables.items() if name not in parked}
    with transformed_tables(run) as transforms:
        targets = planned(run, tables, transforms)
    for target in targets:
        _print(target, as_json=as_json)
    effects = state_effects(run)
    for text in effects:
        print(printable_text(f"State: {text}"), file=sys.stderr)
    if not tables and not parked:
        print("No table is captured yet.", file=sys.stderr)
    if not as_json and (total := _total(run, tables)):
        print(printable_text(total))
    if out is not None:
        if any(text.startswith(REFUSED) for text in effects):
            raise ConfigError("The plan is not sealed, because a run would not begin, as was said above.")
        write_plan(out, _sealed(run, tables, targets, effects, config))
        print(printable_text(f"Sealed as {out}: raycdc run {path} --plan {out}"), file=sys.stderr)
    return int(ExitCode.DONE)


def require_planned(run: ResolvedRun, written: PipelineConfig, path: Path) -> None:
    """Raise `ConfigError` with every difference from the plan in the file `path`. Asks source and sink.

    `written` is the configuration as in its file. A plan is made from this, and does not depend on the engines that the
    command line names.
    """
    sealed = read_plan(path)
    findings = table_findings(run, {name: table.schema for name, table in run.tables.items()})
    parked = {table_of(finding) for finding in findings if finding.parks}
    tables = {name: table for name, table in run.tables.items() if name not in parked}
    with transformed_tables(run) as transforms:
        targets = planned(run, tables, transforms)
    reported = differences(sealed, _sealed(run, tables, targets, state_effects(run), written))
    if reported:
        raise ConfigError(
            f"The run did not begin, because not all is as {path} has it:",
            *(f"  {text}" for text in reported),
            "If that is right, make a new plan (raycdc plan CONFIG --out FILE), or run without --plan.",
        )


def _sealed(
    run: ResolvedRun,
    tables: Mapping[TableId, SourceTable],
    targets: Sequence[PlannedTarget],
    effects: Sequence[str],
    written: PipelineConfig,
) -> SealedPlan:
    from raycdc import __version__

    return SealedPlan(
        version=VERSION,
        raycdc=__version__,
        pipeline=run.config.pipeline.name,
        made_ms=time_ns() // 1_000_000,
        configuration={key: json.dumps(value, sort_keys=True) for key, value in all_keys(written).items()},
        tables=tuple(
            PlannedTable(
                str(name),
                tuple(PlannedColumn(c.name, c.type.spark(), c.nullable) for c in table.schema.columns),
                table.schema.primary_key,
                table.rows,
                table.bytes,
                table.chunks,
            )
            for name, table in sorted(tables.items())
        ),
        targets=tuple(targets),
        locations=_existing(run, [TableId.parse(target.target) for target in targets]),
        state=NO_STATE if run.store is None else run.store.checkpoint,
        effects=tuple(effects),
    )


def _existing(run: ResolvedRun, targets: Sequence[TableId]) -> dict[str, str]:
    """Return the kind of object at each target's location; empty for sinks that store nothing."""
    words = {None: NOTHING, True: OWN, False: OTHER}
    return {str(target): words[own] for target, own in lying_there(run, targets).items()}


def _total(run: ResolvedRun, tables: Mapping[TableId, SourceTable]) -> str:
    """Return the rows and bytes that a snapshot of all new tables reads, and the minimum time that takes."""
    followed = known_tables(run.last)
    new = [table for name, table in tables.items() if str(name) not in followed]
    said = f"In the state, and not read again: {len(tables) - len(new)} of {counted(len(tables), 'table')}. "
    said = said if len(new) < len(tables) else ""
    rows, size, chunks = (sum(getattr(table, each) for table in new) for each in ("rows", "bytes", "chunks"))
    if not rows:
        return said.rstrip()  # The size of topics is unknown before they are read.
    source = run.config.source
    rate_limit, slowest = source.rate_limit, min(source.rows_per_second or ROWS_PER_S, ROWS_PER_S)
    seconds = max(rows / slowest, size / source.bytes_per_second if source.bytes_per_second else 0)
    limit = f"at the pace of {rate_limit}" if rate_limit else f"at {ROWS_PER_S:,} rows/s, as two cores do narrow rows"
    about = f"about {counted(rows, 'row')}{f' ({size_text(size)})' if size else ''} in {counted(chunks, 'chunk')}"
    takes = f"{duration_text(seconds * 1000)} at best ({limit})"
    return f"{said}A snapshot of {counted(len(new), 'table')} reads {about}: {takes}."


def planned(
    run: ResolvedRun, tables: Mapping[TableId, SourceTable], transforms: TransformedTables
) -> list[PlannedTarget]:
    """Return the targets of the existing tables."""
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
    sink, write = run.start.sink, run.config.sink.write
    made = targets_of(created, {}, run.rules.router, upsert=run.rules.upsert)
    return [
        PlannedTarget(
            target=str(target_epoch.name),
            write=write,
            sources=tuple(_source(name, tables[name], transforms) for name in target_epoch.sources),
            columns=tuple(PlannedColumn(c.name, c.type.spark(), c.nullable) for c in target_epoch.schema.columns),
            primary_key=target_epoch.schema.primary_key,
            ddl=sink.statement(
                shape_of(
                    write,
                    target_epoch.name,
                    target_epoch.schema,
                    layout_of(target_epoch.name, transformed, target_epoch.sources),
                )
            ),
        )
        for target_epoch, _ in made
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
    key_path = transforms.transforms.key_path(name) if transform is not None else ""
    return PlannedSource(str(name), table.rows, table.chunks, key_path, how)


def _print(target: PlannedTarget, *, as_json: bool) -> None:
    if as_json:
        print(printable_json(json.dumps(asdict(target), ensure_ascii=False)))
        return
    key = f", key {', '.join(target.primary_key)}" if target.primary_key else ", no key"
    print(printable(f"{target.target}  ({target.write}{key})"))
    for source in target.sources:
        how = f"{source.transform}, {source.how}" if source.transform else source.how
        rows = f"about {counted(source.rows, 'row')} " if source.rows else ""
        size = f"{rows}in {counted(source.chunks, 'chunk')}, " if source.chunks else ""
        print(printable(f"  from {source.table}: {size}{how}"))
    for column in target.columns:
        print(printable(f"  {column.name} {column.type}{'' if column.nullable else ' not null'}"))
    ddl = printable_text(target.ddl, indent="  ")
    print(f"  {ddl}\n" if ddl else "")
