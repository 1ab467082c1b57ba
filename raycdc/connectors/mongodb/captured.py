"""The questions of ``raycdc check`` and ``raycdc plan`` to a MongoDB about its captured
collections. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from raycdc.connectors.mongodb.catalog import discover, layout_of, size_of
from raycdc.connectors.mongodb.checks import check_source
from raycdc.connectors.mongodb.client import Client, connect, probe
from raycdc.connectors.mongodb.hidden import require_hidden
from raycdc.connectors.mongodb.layout import Spelling
from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.snapshot.chunks import cut
from raycdc.errors import ConfigError
from raycdc.model import TableId
from raycdc.source.checks import CheckResult
from raycdc.source.connector import SourceContext, SourceFindings, SourceTable


def findings(config: MongoDbSourceConfig, context: SourceContext, *, complete: bool) -> SourceFindings:
    """All findings, and the collections that are captured. `complete`: one that is named must be there.

    Raises `SourceError` when the server cannot be asked at all.
    """
    with connect(config.uri) as client:
        results, tables = check_source(client, probe(client), config, complete=complete)
        results += [*_copies(config, context), *_hidden(client, config, context, tables)]
    return SourceFindings(results, tables)


def captured_collections(config: MongoDbSourceConfig) -> dict[TableId, SourceTable]:
    """The collections that are captured, with the columns that a run which starts now gives them."""
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
    """A warning where a MongoDB sink gets values as text."""
    if context.sink != "mongodb" or config.spelling is Spelling.BSON:
        return []
    text = (
        f'source.schema.json = "{config.spelling}": what is nested, of any type or in _rest or document arrives in '
        "the copy as text."
    )
    return [CheckResult("documents", text, "Leave it out, and a MongoDB sink gets the values.", required=False)]


def _hidden(
    client: Client, config: MongoDbSourceConfig, context: SourceContext, tables: Collection[TableId]
) -> list[CheckResult]:
    """Whether masks of collections' fields hide them."""
    masks = context.hiding.masks
    if not masks or not tables:
        return []
    try:
        require_hidden(client, config, tables, masks)
    except ConfigError as refused:
        return [CheckResult("masks", str(refused), error=ConfigError)]
    return [CheckResult("masks", "What masks hide stands in no other column.", ok=True)]
