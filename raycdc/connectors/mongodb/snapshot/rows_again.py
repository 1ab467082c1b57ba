"""The documents that a backfill reads again (`raycdc.source.split.RowsAgain`), as a query.

A predicate is a filter in Extended JSON, as ``find`` takes it. Before anything begins the server is asked to read it,
so that one that it does not understand ends nothing.
"""

from __future__ import annotations

from dataclasses import replace

from bson import json_util
from pymongo.errors import ExecutionTimeout, OperationFailure

from raycdc.connectors.mongodb.bson.documents import CANONICAL
from raycdc.connectors.mongodb.client import Client, errors
from raycdc.connectors.mongodb.layout import ID, Layout
from raycdc.connectors.mongodb.snapshot.keys import as_bson
from raycdc.connectors.mongodb.snapshot.selection import Selection, require_filter
from raycdc.errors import ConfigError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.source.snapshot.key_list import keys_of_text
from raycdc.source.split import RowsAgain

#: A filter has at most so many characters: it is in the state, and in each of its chunks.
WHERE_MAX = 16_384
#: How long the server looks for a first document, to see that it takes the filter.
ASKED_MS = 1_000


def with_rows(selection: Selection, layout: Layout, again: RowsAgain | None) -> Selection:
    """`selection`, and that a document is one of those that are read again."""
    if again is None:
        return selection
    parts = [part for part in (selection.filter, again.where) if part]
    if again.keys:
        logical = layout.columns[0].type
        values = keys_of_text(again.keys).column(0).to_pylist()
        wanted = {ID: {"$in": [as_bson(value, logical) for value in values]}}
        parts.append(json_util.dumps(wanted, json_options=CANONICAL))
    return replace(selection, filter=parts[0] if len(parts) == 1 else f'{{"$and": [{", ".join(parts)}]}}')


def require_rows(client: Client, table: TableId, layout: Layout, again: RowsAgain) -> None:
    """`ConfigError` unless the server can be asked for these documents. Blocks."""
    if len(again.where) > WHERE_MAX:
        raise ConfigError(f"The filter has {len(again.where):,} characters, and at most {WHERE_MAX:,} can be taken.")
    try:
        if again.where:
            require_filter(again.where)
        query = with_rows(Selection(), layout, again).query()
    except ValueError as cause:
        raise ConfigError(f"{cause}. Nothing was begun.") from cause
    try:
        with errors(client, f"asking for documents of {table}"):
            next(client[table.db][table.table].find(query).limit(1).max_time_ms(ASKED_MS), None)
    except SourceError as cause:
        if isinstance(cause.__cause__, ExecutionTimeout):
            return  # It understands the filter, and no document met it so far.
        if isinstance(cause, SourceUnavailableError) or not isinstance(cause.__cause__, OperationFailure):
            raise
        raise ConfigError(
            f"The server takes {again.where!r} for no filter of {table} ({_said(cause.__cause__)}). Write a filter as "
            "find takes it; nothing was begun."
        ) from cause


def _said(cause: OperationFailure) -> str:
    """What the server says, without the query that it repeats."""
    return str((cause.details or {}).get("errmsg", cause))
