"""``maxwell-json``: the messages of Maxwell's daemon (its documentation, "Data Format").

``{"database", "table", "type": "insert", "ts": seconds, "xid", "commit", "data": {…}, "old": {…}}``. The ``old`` of an
update has the changed columns with their old values. A column that it lacks is unchanged; a column with null was null
before. A bootstrap consists of inserts between two marks. Definitions (``table-create`` and others, with
``output_ddl``) describe the whole table. Values of binary columns are base64, values of SET columns arrays, and values
of JSON columns nested JSON.
"""

from __future__ import annotations

from typing import Any, ClassVar

from raycdc.errors import SchemaError
from raycdc.formats.api import FormatEncoder
from raycdc.formats.decoding.arena import WireColumn
from raycdc.formats.decoding.sql_types import parse_type
from raycdc.formats.envelope import FLAG, NESTED, NUMBER, TEXT, Action, EnvelopeSpec, MetadataField, TimeUnit
from raycdc.formats.json.dialect import OPTIONAL_FIX, JsonDialect, names, parsed
from raycdc.model import LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import DropTableEvent, SchemaChangeEvent

SPEC = EnvelopeSpec(
    type="type",
    after="data",
    before="old",
    database="database",
    table="table",
    time="ts",
    time_unit=TimeUnit.SECONDS,
    patch=True,
    whole_images="Set binlog_row_image = FULL at the server, and leave output_nulls as it is in Maxwell (true).",
    actions={
        "insert": Action.INSERT,
        "bootstrap-insert": Action.INSERT,
        "update": Action.UPDATE,
        "delete": Action.DELETE,
        "bootstrap-start": Action.IGNORE,
        "bootstrap-complete": Action.IGNORE,
        "heartbeat": Action.IGNORE,
        "table-create": Action.DDL,
        "table-alter": Action.DDL,
        "table-drop": Action.DDL,
        "database-create": Action.IGNORE,
        "database-alter": Action.IGNORE,
        "database-drop": Action.DDL,
    },
    repeats=("primary_key_columns",),
    key_list="primary_key_columns",
    keyed=True,
    metadata={
        "database": MetadataField("database", TEXT),
        "table": MetadataField("table", TEXT),
        "type": MetadataField("type", TEXT),
        "ts": MetadataField("ts", NUMBER),
        "xid": MetadataField("xid", NUMBER),
        "xoffset": MetadataField("xoffset", NUMBER),
        "commit": MetadataField("commit", FLAG),
        "position": MetadataField("position", TEXT),
        "gtid": MetadataField("gtid", TEXT),
        "server_id": MetadataField("server_id", NUMBER),
        "thread_id": MetadataField("thread_id", NUMBER),
        "schema_id": MetadataField("schema_id", NUMBER),
        "primary_key": MetadataField("primary_key", NESTED),
        "primary_key_columns": MetadataField("primary_key_columns", NESTED),
        "query": MetadataField("query", TEXT),
        "comment": MetadataField("comment", TEXT),
    },
)


class MaxwellJson(JsonDialect):
    """Maxwell's JSON."""

    identifier: ClassVar[str] = "maxwell-json"
    spec = SPEC

    def primary_key(self, message: bytes, key: bytes | None) -> tuple[str, ...]:
        """Return the key from ``primary_key_columns``, or from a message key like ``{"database", "table", "pk.id":
        1}``.
        """
        listed = names(parsed(message).get("primary_key_columns"))
        return listed or tuple(name[3:] for name in parsed(key) if name.startswith("pk."))

    def defined(self, message: bytes) -> tuple[list[WireColumn], tuple[str, ...]] | None:
        """Return the columns and the key after ``table-create`` or ``table-alter``."""
        definition = parsed(message).get("def")
        if not isinstance(definition, dict):
            return None
        columns = [_column(column) for column in definition.get("columns", ())]
        return columns, names(definition.get("primary-key"))

    def changes(self, message: bytes, table: TableId) -> tuple[list[SchemaChangeEvent], str]:
        """Return the drop of a table, and the statement."""
        found = parsed(message)
        dropped: list[SchemaChangeEvent] = [DropTableEvent(table)] if found.get("type") == "table-drop" else []
        return dropped, str(found.get("sql") or "")

    def before_fix(self, message: bytes) -> str:
        """Return the advice about a missing before-image: Maxwell writes `old` by default."""
        return f'Maxwell writes it as "old": keep its filters and scripts from dropping that field. {OPTIONAL_FIX}'

    def encoder(self, table: TableId, schema: TableSchema) -> FormatEncoder:
        """See `api.Format`."""
        from raycdc.formats.encoding.encoder import maxwell_encoder

        return maxwell_encoder(table, schema, self.options)


_GEOMETRIES = {"geometry", "point", "linestring", "polygon"}
_GEOMETRIES |= {"geometrycollection", "multipoint", "multilinestring", "multipolygon"}


def _column(column: Any) -> WireColumn:
    """Return a column of a definition, in which type word, sign, length and labels are separate."""
    try:
        word, name = str(column["type"]).lower(), str(column["name"])
    except (KeyError, TypeError) as cause:
        raise SchemaError("A table definition has a column without name or type") from cause
    if word in ("enum", "set"):
        return WireColumn(name, LogicalType(TypeKind(word), native=word))
    length = column.get("column-length")
    if word == "decimal":
        # The definition has no precision and scale, so the exact digits are kept as text.
        return WireColumn(name, LogicalType(TypeKind.STRING, native="decimal"))
    if word == "bit":
        return WireColumn(name, LogicalType(TypeKind.BIT, length=int(length or 64), native=word))
    if word in _GEOMETRIES:
        # Maxwell writes them as text (WKT), such as POINT (1 2).
        return WireColumn(name, LogicalType(TypeKind.STRING, native=word))
    inside = f"({length})" if length is not None else ""
    unsigned = " unsigned" if column.get("signed") is False else ""
    logical = parse_type(f"{word}{inside}{unsigned}")
    if logical.kind is TypeKind.STRING and column.get("charset") == "binary":
        logical = LogicalType(TypeKind.BINARY, native=word)
    return WireColumn(name, logical)
