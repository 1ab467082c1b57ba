"""Checks of ``raycdc check`` and ``raycdc plan`` for MongoDB: access, the cut of collections, missing settings.

They change nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from raycdc.config.checks import CheckResult, readable_on_the_way
from raycdc.config.mongodb import open_hosts
from raycdc.connectors.mongodb.layout import Spelling
from raycdc.connectors.mongodb.plugin import MongoDbChunkStrategy, MongoDbSourceConfig
from raycdc.connectors.mongodb.server.catalog import (
    discover,
    layout_of,
    require_followable,
    require_masked,
    require_selectable,
    silently_capped,
    size_of,
)
from raycdc.connectors.mongodb.server.client import (
    VERSION_WITH_POSITIONS,
    Client,
    MongoDbServerInfo,
    connect,
    errors,
    probe,
)
from raycdc.connectors.mongodb.snapshot.chunks import cut
from raycdc.connectors.mongodb.stream.causal import log_end
from raycdc.connectors.mongodb.stream.raw_stream import RawStream, stream_options
from raycdc.errors import ConfigError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.source.connector import SourceContext, SourceFindings, SourceTable
from raycdc.source.selection import pattern_results

_ONLY_NOW = "Only collections that are there when the snapshot begins are read."
_LATER = "Collections that match it and are created while the pipeline runs are followed."


def check_source(
    client: Client, info: MongoDbServerInfo, config: MongoDbSourceConfig, *, complete: bool = True
) -> tuple[list[CheckResult], list[TableId]]:
    """Return all findings, and the existing collections. If `complete`, the named collections must exist.

    Raises `SourceUnavailableError` if no server answers.
    """
    kind = "a mongos" if info.is_mongos else f"replica set {info.replica_set}" if info.replica_set else "a standalone"
    results = [
        CheckResult("connection", f"Connected to MongoDB {info.version_text}, {kind}, at {info.address}.", ok=True)
    ]
    hosts = open_hosts(config.uri.reveal())
    fix = "Add tls=true to source.uri, and tlsCAFile where the authority is your own."
    results += readable_on_the_way(info.address, hosts, encrypted=not hosts, fix=fix)
    if not info.replica_set and not info.is_mongos:
        results.append(_standalone(info, config))
    try:
        found = discover(client, config.selector(), complete=complete)
    except SourceUnavailableError:
        raise
    except SourceError as refused:
        return [*results, CheckResult("collections", str(refused))], []
    fix = _ONLY_NOW if config.bounded else _LATER
    patterns = config.selector().patterns
    results += pattern_results("source.collections", patterns, found, noun="collection", fix=fix)
    if not config.bounded and (info.replica_set or info.is_mongos):
        results += _followable(client, info, config, list(found))
    for table in found:
        results.append(_readable(client, config, table))
        results += _cuts(client, info, config, table)
    return results, list(found)


def _standalone(info: MongoDbServerInfo, config: MongoDbSourceConfig) -> CheckResult:
    if config.bounded:
        text = f"{info.address} is in no replica set: what a majority has acknowledged is what it has itself."
        return CheckResult("replica set", text, "Harmless for a snapshot.", required=False)
    text = f"{info.address} is in no replica set, so it has no change stream."
    fix = 'Make it a replica set of one node, or read it once with source.startup = "snapshot".'
    return CheckResult("replica set", text, fix)


def _followable(
    client: Client, info: MongoDbServerInfo, config: MongoDbSourceConfig, tables: list[TableId]
) -> list[CheckResult]:
    """Check that a change stream can be opened, and report which rows its changes bring."""
    results = []
    for table in tables:
        try:
            require_followable(client, [table])
        except SourceUnavailableError:
            raise
        except SourceError as refused:
            results.append(CheckResult("collation", str(refused)))
    fix = "Upgrade to 5.0 or later, or leave it out (source.exclude)."
    capped = silently_capped(client, info, tables).values()
    results += [CheckResult("capped", text, fix, required=False) for text in capped]
    try:
        options = stream_options(client, info, config.selector())
        RawStream(client, info, options, token=None, after=log_end(client)).close()
    except SourceUnavailableError:
        raise
    except SourceError as refused:
        return [*results, CheckResult("change stream", str(refused))]
    if info.version < VERSION_WITH_POSITIONS:
        text = (
            f"MongoDB {info.version_text} reports no position while nothing happens, so a quiet stream may lose its "
            f"position."
        )
        results.append(CheckResult("change stream", text, "Upgrade to 4.0.7 or later.", required=False))
    images = "with the documents before and after each change" if options.images else "with documents as they are now"
    watched = options.scope.database or "all databases"
    return [*results, CheckResult("change stream", f"Changes of {watched} can be followed, {images}.", ok=True)]


def _readable(client: Client, config: MongoDbSourceConfig, table: TableId) -> CheckResult:
    try:
        with errors(client, f"reading {table}"):
            client[table.db][table.table].find_one({}, {"_id": 1})
        require_selectable(client, table, config.snapshot.selection_of(table))
    except ConfigError as refused:
        return CheckResult("selection", str(refused))
    except SourceUnavailableError:
        raise
    except SourceError as refused:
        return CheckResult("privileges", str(refused))
    return CheckResult("privileges", f"{table} can be read.", ok=True)


def _cuts(client: Client, info: MongoDbServerInfo, config: MongoDbSourceConfig, table: TableId) -> list[CheckResult]:
    """Return how the collection would be cut, and why a configured strategy is not used."""
    try:
        cuts = cut(client, info, table, config.snapshot)
    except SourceUnavailableError:
        raise
    except SourceError as refused:
        return [CheckResult("chunks", str(refused))]
    asked = config.snapshot.strategy_of(table)
    passed_over = [] if asked is MongoDbChunkStrategy.AUTO else list(cuts.passed_over)
    results = [
        CheckResult("chunks", f"{table} is not cut by {reason}.", f"It is cut by {cuts.strategy}.", required=False)
        for reason in passed_over
    ]
    lacking = [reason for reason in cuts.passed_over if "lacks" in reason and asked is MongoDbChunkStrategy.AUTO]
    results += [CheckResult("chunks", f"{table} is not cut by {reason}.", required=False) for reason in lacking]
    text = f"{table} is read in {len(cuts.bounds) + 1} chunks ({cuts.strategy})."
    return [*results, CheckResult("chunks", text, ok=True)]


def findings(config: MongoDbSourceConfig, context: SourceContext, *, complete: bool) -> SourceFindings:
    """Return all findings, and the captured collections. If `complete`, the named collections must exist.

    Raises `SourceError` if the server cannot be queried at all.
    """
    with connect(config.uri) as client:
        results, tables = check_source(client, probe(client), config, complete=complete)
        results += [*_copies(config, context), *_check_masks(client, config, context, tables)]
    return SourceFindings(results, tables)


def captured_collections(config: MongoDbSourceConfig) -> dict[TableId, SourceTable]:
    """Return the captured collections, with the columns that they would get in a run that starts now."""
    with connect(config.uri) as client:
        info = probe(client)
        collections = {}
        for table, uuid in discover(client, config.selector()).items():
            chunks = len(cut(client, info, table, config.snapshot).bounds) + 1
            schema = layout_of(client, config, table, uuid).schema()
            size = size_of(client, table)
            collections[table] = SourceTable(schema, size.documents, chunks, bytes=size.bytes)
    return collections


def _copies(config: MongoDbSourceConfig, context: SourceContext) -> list[CheckResult]:
    """Warn if a MongoDB sink gets values as text."""
    if context.sink != "mongodb" or config.spelling is Spelling.BSON:
        return []
    text = (
        f'source.schema.json = "{config.spelling}": nested values, values of any type, _rest and document become text '
        "in the copy."
    )
    return [CheckResult("documents", text, "Leave it out, and a MongoDB sink gets the values.", required=False)]


def _check_masks(
    client: Client, config: MongoDbSourceConfig, context: SourceContext, tables: Collection[TableId]
) -> list[CheckResult]:
    """Check that masks of fields are effective."""
    masks = context.masking.masks
    if not masks or not tables:
        return []
    try:
        require_masked(client, config, tables, masks)
    except ConfigError as refused:
        return [CheckResult("masks", str(refused), error=ConfigError)]
    return [CheckResult("masks", "No other column has masked values.", ok=True)]
