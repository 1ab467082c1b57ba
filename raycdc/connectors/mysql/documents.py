"""Schema documents: a table's logical schema together with the server's own description, as kept in state.

The log reader, the chunk readers and the enumerator exchange tables only in this form; ``fingerprint`` names the
version everywhere (segments, manifests, the schema store).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from raycdc.connectors.mysql.types import MySqlTable


def document_of(table: MySqlTable) -> dict[str, Any]:
    """``columns`` and ``primary_key`` as `TableSchema.to_json`, ``source`` as `MySqlTable.to_json`."""
    body = {**table.schema().to_json(), "source": table.to_json()}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return {**body, "fingerprint": hashlib.sha256(text.encode()).hexdigest()[:16]}


def with_filter(document: dict[str, Any], row_filter: str | None) -> dict[str, Any]:
    """The document of a table whose rows are captured by `row_filter`; it belongs to the state, as the schema does."""
    return {**document, "filter": row_filter}


def table_of(document: dict[str, Any]) -> MySqlTable:
    """Inverse of `document_of`."""
    return MySqlTable.from_json(document["source"])
