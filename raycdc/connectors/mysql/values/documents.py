"""Schema documents: a table's logical schema together with the server's description, for states.

The log reader, the chunk readers and the enumerator exchange tables only in this form; ``fingerprint`` names the
version everywhere (segments, manifests, the schema store).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.tables.resnapshots import TableVersion


@dataclass(frozen=True, slots=True)
class Capture:
    """The captured part of a table: rows that meet `filter`, and the listed `columns` (None: all).

    It is part of the state, like the schema, because the target's rows were selected with it.
    """

    filter: str | None = None
    columns: tuple[str, ...] | None = None

    def narrowed(self, table: MySqlTable) -> MySqlTable:
        """Return the table with the captured columns only, as its target has it."""
        if self.columns is None:
            return table
        return replace(table, columns=tuple(column for column in table.columns if column.name in self.columns))

    def __str__(self) -> str:
        columns = "all columns" if self.columns is None else f"the columns {', '.join(self.columns)}"
        return f"{columns}, {f'the filter {self.filter!r}' if self.filter else 'no filter'}"


ALL = Capture()


def document_of(table: MySqlTable, capture: Capture = ALL) -> SchemaDocument:
    """Return ``columns`` and ``primary_key`` as `TableSchema.to_json`, ``source`` as `MySqlTable.to_json`.

    ``columns`` has the captured columns only; ``source`` has all columns, like the log.
    """
    body = {**capture.narrowed(table).schema().to_json(), "source": table.to_json()}
    if capture.columns is not None:
        body["listed"] = list(capture.columns)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
    return SchemaDocument.from_json({**body, "filter": capture.filter, "fingerprint": fingerprint})


def version_of(table: MySqlTable) -> TableVersion:
    """Return the table with its schema document, captured completely."""
    return TableVersion(table.schema(), document_of(table))


def capture_of(document: SchemaDocument) -> Capture:
    """Return the captured part of a document's table."""
    listed = document.own("listed")
    return Capture(document.own("filter"), None if listed is None else tuple(listed))


def table_of(document: SchemaDocument) -> MySqlTable:
    """Return the source's table, with all its columns."""
    return MySqlTable.from_json(document.own("source"))
