"""``raycdc check``: is the configuration right, and the source fit and permitted? Changes nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from raycdc.config import PipelineConfig, RouteOptions, load_config
from raycdc.connectors.mysql.checks import check_source
from raycdc.errors import ConfigError, ExitCode
from raycdc.lookup.checks import check_lookup
from raycdc.model import TableId
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.source.api import TellsBefore
from raycdc.source.checks import CheckResult

_MARKS = {"ok": "ok     ", "warning": "warning", "failed": "FAILED "}


def check_config(path: Path, *, as_json: bool) -> int:
    """Print one finding per line; the exit code is the source's (3), that of a wrong transform (2) or the sink's (5)
    when a required one failed.
    """
    config = load_config(path)
    for warning in config.warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    match config.source.type:
        case "mysql":
            results, tables = check_mysql(config.source)
        case "kafka":
            results, tables = check_kafka(config)
        case "mongodb":
            results, tables = check_mongodb(config.source)
            results += check_copies(config)
        case other:
            raise ConfigError(f'source.type: "{other}" has no check; start the pipeline to see')
    all_known = config.source.type in ("mysql", "mongodb")
    results += check_changelog(config) if tables else []
    results = [*results, *check_routes(config.routes, tables, all_known=all_known)]
    for result in results:
        _print(result, as_json=as_json)
    transforms = check_transforms(config, tables, all_known=all_known)
    transforms += check_hidden(config, tables) if config.source.type == "mongodb" else []
    for result in transforms:
        _print(result, as_json=as_json)
    dimensions = [result for number, options in enumerate(config.lookups) for result in check_lookup(options, number)]
    for result in dimensions:
        _print(result, as_json=as_json)
    at_sink = []
    if config.sink.type == "kafka":
        from raycdc.sinks.kafka.checks import check_sink

        targets = dict.fromkeys(target for table in tables for target in config.router().targets(table))
        at_sink = check_sink(config.sink, list(targets), pipeline=config.pipeline.name)  # type: ignore[arg-type]
    elif config.sink.type == "iceberg":
        from raycdc.sinks.iceberg.checks import check_sink as check_iceberg

        targets = dict.fromkeys(target for table in tables for target in config.router().targets(table))
        at_sink = check_iceberg(config.sink, list(targets))  # type: ignore[arg-type]
    elif config.sink.type == "jdbc":
        from raycdc.sinks.jdbc.checks import check_sink as check_database

        targets = dict.fromkeys(target for table in tables for target in config.router().targets(table))
        at_sink = check_database(config.sink, list(targets))  # type: ignore[arg-type]
    elif config.sink.type == "mongodb":
        from raycdc.sinks.mongodb.checks import check_sink as check_collections

        targets = dict.fromkeys(target for table in tables for target in config.router().targets(table))
        at_sink = check_collections(config.sink, list(targets))  # type: ignore[arg-type]
    for result in at_sink:
        _print(result, as_json=as_json)
    sources = [*results, *dimensions]
    parts = ((ExitCode.SOURCE, sources), (ExitCode.CONFIG, transforms), (ExitCode.SINK, at_sink))
    failed = {code: _failed(found) for code, found in parts}
    if not as_json:
        count, total = sum(failed.values()), sum(len(found) for _, found in parts)
        print(f"\n{count} of {total} checks failed." if count else "\nEverything needed is there.")
    return int(next((code for code, count in failed.items() if count), ExitCode.DONE))


def _failed(results: Sequence[CheckResult]) -> int:
    return sum(1 for result in results if result.required and not result.ok)


def check_kafka(config: Any) -> tuple[list[CheckResult], list[TableId]]:
    """All findings for topics, in the state that the pipeline has, and the tables they carry.

    Raises `SourceError` when the cluster cannot be asked at all.
    """
    from raycdc.checkpoint.store import CheckpointStore
    from raycdc.connectors.kafka.checks import check_source as check_topics
    from raycdc.connectors.kafka.split import PartitionState

    state = Path(config.pipeline.state)
    last = CheckpointStore(state, create=False).last_manifest() if (state / "meta.json").exists() else None
    states = None if last is None else [PartitionState.from_json(data) for data in last.to_splits.values()]
    return check_topics(config.source, states, now_ms=time.time_ns() // 1_000_000)


def check_mongodb(source: Any) -> tuple[list[CheckResult], list[TableId]]:
    """All findings for a `MongoDbSourceConfig`, and the collections it captures.

    Raises `SourceError` when the server cannot be asked at all.
    """
    from raycdc.connectors.mongodb.checks import check_source as check_collections
    from raycdc.connectors.mongodb.client import connect, probe

    with connect(source.uri) as client:
        return check_collections(client, probe(client), source)


def check_hidden(config: PipelineConfig, tables: Collection[TableId]) -> list[CheckResult]:
    """Whether masks of collections' fields hide them. Raises `SourceError` when the server cannot be asked."""
    from raycdc.connectors.mongodb.client import connect
    from raycdc.connectors.mongodb.hidden import require_hidden

    source: Any = config.source
    if not config.masks or not tables:
        return []
    with connect(source.uri) as client:
        try:
            require_hidden(client, source, tables, config.masked())
        except ConfigError as refused:
            return [CheckResult("masks", str(refused))]
    return [CheckResult("masks", "What masks hide stands in no other column.", ok=True)]


def check_copies(config: PipelineConfig) -> list[CheckResult]:
    """A warning where a MongoDB sink gets text of what were values of a MongoDB source."""
    from raycdc.connectors.mongodb.layout import Spelling

    source: Any = config.source
    if config.sink.type != "mongodb" or source.spelling is Spelling.BSON:
        return []
    text = (
        f'source.schema.json = "{source.spelling}": what is nested, of any type or in _rest or document arrives in '
        "the copy as text."
    )
    return [CheckResult("documents", text, "Leave it out, and a MongoDB sink gets the values.", required=False)]


def check_mysql(source: Any) -> tuple[list[CheckResult], list[TableId]]:
    """All findings for a `MySqlSourceConfig`, and the tables it captures.

    Raises `SourceError` when the server cannot be asked at all.
    """
    from raycdc.connectors.mysql.catalog import discover_tables
    from raycdc.connectors.mysql.connection import connect
    from raycdc.connectors.mysql.server import probe

    selector = source.selector()
    with closing(connect(source.settings())) as connection:
        info = probe(connection)
        found = discover_tables(connection, selector, named=selector.plain_names)
        server_ids = range(source.server_id.first, source.server_id.last + 1)
        results = [
            CheckResult(
                "connection", f"Connected to {info.flavor_name} {info.version_text} at {info.address}.", ok=True
            ),
            *_patterns(selector.patterns, [str(table) for table in found]),
            # Plain names are checked whether they were found or not: a missing one is an error, not a surprise later.
            *check_source(
                connection,
                info,
                {*found, *selector.plain_names},
                server_ids=server_ids,
                accept_cascades=source.on_cascade == "accept",
            ),
        ]
    return results, sorted(found)


def check_changelog(config: PipelineConfig) -> list[CheckResult]:
    """What a full changelog costs, where one is asked for. Raises `SourceError` where the source does not answer."""
    if not config.source.full_changelog:
        return []
    source = load_plugin(PluginGroup.SOURCES, config.source.type).create(config.source)
    if isinstance(source, TellsBefore) and source.tells_before():
        return [
            CheckResult("changelog", "It is full by the images of all collections; no rows are kept for it.", ok=True)
        ]
    text = "It is made full by the last row of each key, which is kept under pipeline.state: one row per key and table."
    return [CheckResult("changelog", text, ok=True)]


def check_routes(
    routes: Sequence[RouteOptions], found: Collection[TableId], *, all_known: bool = True
) -> list[CheckResult]:
    """Routes that no table takes: a mistake where one names a table and the tables are `all_known`, else a warning."""
    results: list[CheckResult] = []
    for index, options in enumerate(routes):
        route = options.route()
        pattern = route.pattern()
        if any(pattern.fullmatch(str(table)) for table in found):
            continue
        if route.plain is not None:
            fix = "Correct the name, or leave the route out."
            text = f"route[{index}].table: there is no table {route.plain}{'' if all_known else ' yet'}."
        else:
            fix = "Tables that match it and are created while the pipeline runs take it."
            text = f"route[{index}].table: the pattern {route.table} matches no captured table yet."
        results.append(CheckResult("routes", text, fix, required=all_known and route.plain is not None))
    return results


def check_transforms(config: PipelineConfig, found: Collection[TableId], *, all_known: bool) -> list[CheckResult]:
    """Transforms that no table takes, as with routes; and of each table's, whether its columns allow it."""
    from raycdc.cli.schemas import source_tables, transform_problems, transformed_tables

    transforms = config.transformed()
    results: list[CheckResult] = []
    for index, transform in enumerate(transforms.all):
        if not any(transforms.index(table) == index for table in found):
            named = transform.plain_table is not None
            text = f"transform[{index}].table: no captured table takes {transform.table}{'' if all_known else ' yet'}."
            fix = "Correct the name, or put the transform before others that match the table."
            results.append(CheckResult("transforms", text, fix, required=all_known and named))
    for lookup in transforms.lookups:
        if not any(lookup.pattern().fullmatch(str(table)) for table in found):
            text = f"{lookup.place}.table: no captured table takes {lookup.table}{'' if all_known else ' yet'}."
            required = all_known and lookup.plain_table is not None
            results.append(CheckResult("lookups", text, "Correct the name.", required=required))
    if not config.masks and not any(transforms.of(table) for table in found):
        return results
    if not all_known:
        text = "What transforms and masks make of topics' tables shows when their first rows are written."
        return [*results, CheckResult("transforms", text, required=False)]
    schemas = {table: described.schema for table, described in source_tables(config.source).items()}
    try:
        with transformed_tables(config) as tables:
            for table, problem in transform_problems(tables, schemas):
                text = problem or f"{transforms.place(table) if transforms.of(table) else 'mask'} fits {table}."
                results.append(CheckResult("transforms", text, ok=not problem))
    except ConfigError as error:
        results.append(CheckResult("transforms", str(error)))
    return results


def _patterns(patterns: tuple[str, ...], found: list[str]) -> list[CheckResult]:
    import re

    return [
        CheckResult(
            "tables",
            f"The pattern {pattern} of source.tables matches no table yet.",
            "Tables that match it and are created while the pipeline runs are followed.",
            required=False,
        )
        for pattern in patterns
        if not any(re.fullmatch(pattern, name) for name in found)
    ]


def _print(result: CheckResult, *, as_json: bool) -> None:
    status = "ok" if result.ok else "failed" if result.required else "warning"
    if as_json:
        fix = "" if result.ok else result.fix
        print(json.dumps({"check": result.name, "status": status, "text": result.text, "fix": fix}))
        return
    print(f"{_MARKS[status]}  {result.text}")
    if result.fix and not result.ok:
        print(f"         {result.fix}")
