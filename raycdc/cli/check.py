"""``raycdc check``: is the configuration right, and the source fit and permitted? Changes nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from raycdc.checkpoint.changelog import FullBy, begun_with
from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.store import CheckpointStore
from raycdc.cli.check_targets import check_targets
from raycdc.cli.schemas import (
    CHUNKS_FIX,
    SourceTable,
    known_naming,
    known_store,
    source_tables,
    table_findings,
    transform_problems,
    transformed_tables,
)
from raycdc.config import PipelineConfig, RouteOptions, load_config
from raycdc.connectors.mysql.checks import check_source
from raycdc.errors import (
    ConfigError,
    DataError,
    ExitCode,
    LogLostError,
    RaycdcError,
    SinkError,
    SourceError,
)
from raycdc.lookup.checks import check_lookup
from raycdc.model import TableId, TableSchema
from raycdc.model.selector import bare_dot
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.preflight import (
    described,
    refused_at_start,
    require_fitting,
    selection_changes,
    selection_of,
    source_maker,
    told,
)
from raycdc.source.api import TellsBefore
from raycdc.source.checks import CheckResult
from raycdc.source.parking import with_requests
from raycdc.source.selection import known_tables
from raycdc.source.split import StreamSplit
from raycdc.source.stream_state import stream_of
from raycdc.source.table_requests import requests_of
from raycdc.startup_checks import DECISIVE, START_CHECKS, Start, require_known_rows

_MARKS = {"ok": "ok     ", "warning": "warning", "failed": "FAILED "}


def check_config(path: Path, *, as_json: bool, local: bool = False) -> int:
    """Print one finding per line; the exit code is that of the error which a run would end with, or that its tables
    are parked for: the first one's. `local` is a run without Ray and Spark.
    """
    config = load_config(path)
    for warning in config.warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    results: list[CheckResult] = []
    try:
        for found in _findings(config, local=local):
            for result in found:
                _print(result, as_json=as_json)
            results += found
    except RaycdcError as error:
        # What a run would have met before counts, and nothing is told twice.
        if not _failed(results):
            raise
        if str(error) not in {result.text for result in results}:
            results.append(CheckResult("source", str(error), error=type(error)))
            _print(results[-1], as_json=as_json)
    failed = _failed(results)
    if not as_json:
        print(f"\n{len(failed)} of {len(results)} checks failed." if failed else "\nEverything needed is there.")
    return int(failed[0].error.exit_code if failed else ExitCode.DONE)


def _failed(results: Iterable[CheckResult]) -> list[CheckResult]:
    return [result for result in results if result.required and not result.ok]


def _findings(config: PipelineConfig, *, local: bool) -> Iterator[list[CheckResult]]:
    """All findings, in the order in which a run would meet them. Raises `SourceError` where the source is away."""
    start = Start(config, local)
    failed: list[CheckResult] = []
    again = False
    for check in START_CHECKS:
        found = check.results(start)
        yield found
        failed += _failed(found)
        if check.name in DECISIVE and _failed(found):
            return  # Nothing more can be asked.
    fitting = check_fitting(config)
    yield fitting
    selected = check_selection(config)
    match config.source.type:
        case "mysql":
            results, tables = check_mysql(config.source, known_tables(_last_manifest(config)))
        case "kafka":
            results, tables = check_kafka(config)
        case "mongodb":
            first = _last_manifest(config) is None or config.source.bounded
            results, tables = check_mongodb(config.source, complete=first and not selected)
            results += check_copies(config)
        case other:
            raise ConfigError(f'source.type: "{other}" has no check; start the pipeline to see')
    fixes = {result.name: result.fix for result in results}
    selected = [replace(one, fix=fixes.get(one.name, "")) for one in selected]
    yield [*selected, *(result for result in results if result.name not in {one.name for one in selected})]
    yield check_patterns(config)
    if not _failed([*fitting, *selected, *(result for result in results if not result.parks)]):
        results = check_start(config)
        again = any(result.error is LogLostError and not result.required for result in results)
        yield results
    failed += _failed([*fitting, *selected, *(result for result in results if not result.parks)])
    all_known = config.source.type in ("mysql", "mongodb")
    described = _described(config.source, tables)
    refused = check_tables(config, {table: found.schema for table, found in described.items()})
    yield refused
    yield [CheckResult("chunks", found.note, CHUNKS_FIX, required=False) for found in described.values() if found.note]
    yield check_changelog(config, local=local) if tables else []
    yield check_routes(config.routes, tables, all_known=all_known)
    yield check_transforms(config, tables, described, all_known=all_known)
    yield check_hidden(config, tables) if config.source.type == "mongodb" else []
    for number, options in enumerate(config.lookups):
        yield check_lookup(options, number)
    results = check_sink(config, tables)
    yield results
    # What contradicts the state, or does not answer, has been told.
    if not failed and not _failed(results):
        held = {result.name.removeprefix("table ") for result in refused if result.parks}
        yield check_targets(config, [table for table in tables if str(table) not in held], again=again)


def _last_manifest(config: PipelineConfig) -> Manifest | None:
    store = known_store(config)
    return None if store is None else store.last_manifest()


def check_fitting(config: PipelineConfig) -> list[CheckResult]:
    """Whether the state that there is was made with this configuration, in the words of the run's own question."""
    store = known_store(config)
    try:
        fits = [] if store is None else told(require_fitting(config, store))
    except RaycdcError as error:
        return [CheckResult("state", str(error), error=type(error))]
    return [CheckResult("state", text, required=False) for text in fits]


def check_selection(config: PipelineConfig) -> list[CheckResult]:
    """Tables that the configuration names and nobody has or had, in the words of the run's own question."""
    source = load_plugin(PluginGroup.SOURCES, config.source.type).create(config.source)
    store = known_store(config)
    try:
        selection_of(source, store)
    except SourceError:
        # Told of each table; of a source that does not answer what is asked of it next.
        return _missing(source, known_tables(_last_manifest(config)))
    return []


def _missing(source: Any, known: set[str]) -> list[CheckResult]:
    try:
        selection = source.selection()
    except SourceError:
        return []
    return [
        CheckResult(f"table {table}", text)
        for table, text in zip(selection.missing(known), selection.misspelt(known), strict=True)
    ]


def check_patterns(config: PipelineConfig) -> list[CheckResult]:
    """Regular expressions of tables whose dot between database and table stands for any character."""
    source: Any = config.source
    match source.type:
        case "mysql" | "mongodb":
            selector = source.selector()
            texts = [*selector.include, *selector.exclude]
        case "kafka":
            texts = [text for key in ("include", "exclude") for text in source.format.get(key, ())]
        case _:
            texts = []
    return [
        CheckResult("tables", f"The first dot of {text} stands for any character.", f"Write {meant}", required=False)
        for text in texts
        if (meant := bare_dot(text))
    ]


def _described(source: Any, tables: Collection[TableId]) -> dict[TableId, SourceTable]:
    """The tables with their columns; none where messages cannot be decoded, as the findings about their topic say."""
    if not tables:
        return {}
    try:
        return source_tables(source)
    except DataError:
        return {}


def check_sink(config: PipelineConfig, tables: Collection[TableId]) -> list[CheckResult]:
    """What the sink's server, or catalog, says; nothing for folders."""
    targets = list(dict.fromkeys(target for table in tables for target in config.router().targets(table)))
    sink: Any = config.sink
    found: list[CheckResult] = []
    match config.sink.type:
        case "kafka":
            from raycdc.sinks.kafka.checks import check_sink as check_topics

            found = check_topics(sink, targets, pipeline=config.pipeline.name)
        case "iceberg":
            from raycdc.sinks.iceberg.checks import check_sink as check_iceberg

            found = check_iceberg(sink, targets)
        case "jdbc":
            from raycdc.sinks.jdbc.checks import check_sink as check_database

            found = check_database(sink, targets)
        case "mongodb":
            from raycdc.sinks.mongodb.checks import check_sink as check_collections

            found = check_collections(sink, targets)
        case _:
            pass
    return [replace(result, error=SinkError) for result in found]


def check_start(config: PipelineConfig) -> list[CheckResult]:
    """What the source says to a start from the state that there is, in the words of the run's own question."""
    store = known_store(config)
    last = None if store is None else store.last_manifest()
    naming = known_naming(config)
    upsert = config.sink.write == "upsert"
    try:
        source = source_maker(config, upsert=upsert, full_by=FullBy.NOTHING, naming=naming)()
        selection = selection_of(source, store)
        source.preflight(last)
        changes = [] if store is None or selection is None else described(selection_changes(config, store, selection))
        if store is not None and last is not None:
            _as_begun(config, store, last, source)
            refused_at_start(config, store, source)
    except LogLostError as lost:
        again = config.pipeline.on_log_lost == "resnapshot" and last is not None
        fix = "All tables are read again, as pipeline.on_log_lost says." if again else ""
        return [CheckResult("start", str(lost), fix, required=not again, error=LogLostError)]
    except RaycdcError as error:
        return [CheckResult("start", str(error), error=type(error))]
    place = "its present end" if last is None else "where the state is"
    more = [CheckResult("state", text, required=False) for text in changes]
    return [CheckResult("start", f"The source can be read from {place}.", ok=True), *more]


def _as_begun(config: PipelineConfig, store: CheckpointStore, last: Manifest, source: Any) -> None:
    """`ConfigError` where tables would be read in another way than they were begun with."""
    begun_with(store, full=config.source.full_changelog)
    state = stream_of(last)
    if state is not None:
        # What is to be read anew is so in the way that is asked for now.
        state = with_requests(state, requests_of(store))
        state = state.only(filter(config.source.captures, state.followed))
        documents = {one.schema: store.document(one.schema) for one in state.followed.values()}
        source.key_order(StreamSplit(state, documents))


def check_tables(config: PipelineConfig, schemas: Mapping[TableId, TableSchema]) -> list[CheckResult]:
    """Whether targets can hold the tables, and under which names."""
    results = table_findings(config, schemas)
    if schemas and not any(result.parks for result in results):
        results.append(CheckResult("tables", "The targets can hold every table.", ok=True))
    return results


def told_of_state(config: PipelineConfig, store: CheckpointStore) -> list[str]:
    """What a run would do to the state with what changed since it was made, or why it would not begin."""
    try:
        return told(require_fitting(config, store))
    except ConfigError as refused:
        return [f"A run refuses this. {problem}" for problem in refused.problems]


def check_kafka(config: Any) -> tuple[list[CheckResult], list[TableId]]:
    """All findings for topics, in the state that the pipeline has, and the tables they carry.

    Raises `SourceError` when the cluster cannot be asked at all.
    """
    from raycdc.connectors.kafka.checks import check_source as check_topics
    from raycdc.connectors.kafka.split import PartitionState

    store = known_store(config)
    last = None if store is None else store.last_manifest()
    states = None if last is None else [PartitionState.from_json(data) for data in last.to_splits.values()]
    now_ms, hides = time.time_ns() // 1_000_000, bool(config.masks)
    return check_topics(config.source, states, now_ms=now_ms, hides=hides)


def check_mongodb(source: Any, *, complete: bool = True) -> tuple[list[CheckResult], list[TableId]]:
    """All findings for a `MongoDbSourceConfig`, and the collections it captures. `complete`: a named one must be.

    Raises `SourceError` when the server cannot be asked at all.
    """
    from raycdc.connectors.mongodb.checks import check_source as check_collections
    from raycdc.connectors.mongodb.client import connect, probe

    with connect(source.uri) as client:
        return check_collections(client, probe(client), source, complete=complete)


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
            return [CheckResult("masks", str(refused), error=ConfigError)]
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


def check_mysql(source: Any, known: Collection[str] = ()) -> tuple[list[CheckResult], list[TableId]]:
    """All findings for a `MySqlSourceConfig`, and the tables it captures. `known` are those that the state has had.

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
            # One that was followed and is gone was dropped, which the log says.
            *check_source(
                connection,
                info,
                {*found, *(name for name in selector.plain_names if str(name) not in known)},
                server_ids=server_ids,
                accept_cascades=source.on_cascade == "accept",
            ),
        ]
    return results, sorted(found)


def check_changelog(config: PipelineConfig, *, local: bool = False) -> list[CheckResult]:
    """What a full changelog costs, where one is asked for. Raises `SourceError` where the source does not answer."""
    if not config.source.full_changelog:
        return []
    source = load_plugin(PluginGroup.SOURCES, config.source.type).create(config.source)
    if isinstance(source, TellsBefore) and source.tells_before():
        return [
            CheckResult("changelog", "It is full by the images of all collections; no rows are kept for it.", ok=True)
        ]
    try:
        require_known_rows(Start(config, local))
    except ConfigError as error:
        return [CheckResult("changelog", str(error), error=ConfigError)]
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
        required = all_known and route.plain is not None
        results.append(CheckResult("routes", text, fix, required=required, error=ConfigError))
    return results


def check_transforms(
    config: PipelineConfig, found: Collection[TableId], described: Mapping[TableId, SourceTable], *, all_known: bool
) -> list[CheckResult]:
    """Transforms that no table takes, as with routes; and of each table's, whether its columns allow it."""
    transforms = config.transformed()
    results: list[CheckResult] = []
    for index, transform in enumerate(transforms.all):
        if not any(transforms.index(table) == index for table in found):
            named = transform.plain_table is not None
            text = f"transform[{index}].table: no captured table takes {transform.table}{'' if all_known else ' yet'}."
            fix = "Correct the name, or put the transform before others that match the table."
            results.append(CheckResult("transforms", text, fix, required=all_known and named, error=ConfigError))
    for lookup in transforms.lookups:
        if not any(lookup.pattern().fullmatch(str(table)) for table in found):
            text = f"{lookup.place}.table: no captured table takes {lookup.table}{'' if all_known else ' yet'}."
            required = all_known and lookup.plain_table is not None
            results.append(CheckResult("lookups", text, "Correct the name.", required=required, error=ConfigError))
    if not config.masks and not any(transforms.of(table) for table in found):
        return results
    if not all_known:
        text = "What transforms and masks make of topics' tables shows when their first rows are written."
        return [*results, CheckResult("transforms", text, required=False)]
    schemas = {table: one.schema for table, one in described.items()}
    try:
        with transformed_tables(config) as tables:
            for table, problem in transform_problems(tables, schemas):
                text = problem or f"{transforms.place(table) if transforms.of(table) else 'mask'} fits {table}."
                results.append(CheckResult("transforms", text, ok=not problem, error=ConfigError))
    except ConfigError as error:
        results.append(CheckResult("transforms", str(error), error=ConfigError))
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
