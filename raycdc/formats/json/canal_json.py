"""``canal-json``: Canal's flat messages (canal wiki, "Canal Kafka RocketMQ QuickStart"; FlatMessage in its source).

``{"data": [{…}], "database", "es": ms, "id", "isDdl", "mysqlType": {…}, "old": [{…}], "pkNames", "sql", "sqlType",
"table", "ts", "type"}``. One message may hold several rows. For each row of ``data``, ``old`` has an object with the
changed fields. All values are texts, and ``mysqlType`` has their types. The text of a binary column is ISO 8859-1, with
a character for each byte. JSON columns are JSON inside a string. An ENUM is the number of its label, and a SET its
bits; ``mysqlType`` has the labels.
"""

from __future__ import annotations

import json
from typing import ClassVar, Literal

from raycdc.config import option
from raycdc.formats.api import FormatEncoder
from raycdc.formats.decoding.arena import WireColumn
from raycdc.formats.decoding.sql_types import labels_of, parse_type
from raycdc.formats.envelope import FLAG, NESTED, NUMBER, TEXT, Action, EnvelopeSpec, MetadataField, TimeUnit
from raycdc.formats.json.dialect import OPTIONAL_FIX, JsonDialect, names, parsed
from raycdc.formats.loops import code_loops as cells
from raycdc.formats.options import FormatOptions
from raycdc.model import LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import DropTableEvent, SchemaChangeEvent, TruncateTableEvent

_DDL = ("CREATE", "ALTER", "ERASE", "RENAME", "CINDEX", "DINDEX", "QUERY", "INIT", "DBQUERY")

SPEC = EnvelopeSpec(
    type="type",
    after="data",
    before="old",
    database="database",
    table="table",
    time="es",
    time_unit=TimeUnit.MILLIS,
    is_ddl="isDdl",
    ddl="sql",
    patch=True,
    whole_images="Set binlog_row_image = FULL at the server.",
    actions={
        "INSERT": Action.INSERT,
        "UPDATE": Action.UPDATE,
        "DELETE": Action.DELETE,
        "TRUNCATE": Action.TRUNCATE,
        **dict.fromkeys(_DDL, Action.DDL),
        **dict.fromkeys(("GTID", "XACOMMIT", "XAROLLBACK", "MHEARTBEAT"), Action.IGNORE),
    },
    repeats=("mysqlType", "sqlType", "pkNames"),
    version="mysqlType",
    key_list="pkNames",
    metadata={
        "database": MetadataField("database", TEXT),
        "table": MetadataField("table", TEXT),
        "type": MetadataField("type", TEXT),
        "es": MetadataField("es", NUMBER),
        "ts": MetadataField("ts", NUMBER),
        "id": MetadataField("id", NUMBER),
        "gtid": MetadataField("gtid", TEXT),
        "isDdl": MetadataField("isDdl", FLAG),
        "pkNames": MetadataField("pkNames", NESTED),
        "sqlType": MetadataField("sqlType", NESTED),
        "mysqlType": MetadataField("mysqlType", NESTED),
    },
)


class CanalOptions(FormatOptions):
    """Options of ``canal-json``."""

    labels: Literal["auto", "number", "label"] = option(
        "auto",
        help="How values of ENUM and SET columns are spelled. number: the label's number or the set's bits, which "
        "Canal takes from the binlog. label: labels. auto: numbers, unless a value can only be a label; a value that "
        "can be both, with different meanings, cannot be decoded.",
    )


class CanalJson(JsonDialect):
    """Canal's JSON."""

    identifier: ClassVar[str] = "canal-json"
    spec = SPEC
    options: CanalOptions

    def described(self, version: bytes) -> list[WireColumn] | None:
        """Return the columns of a ``mysqlType`` such as ``{"id": "int(11)", "name": "varchar(255)"}``."""
        types = json.loads(version)
        if not isinstance(types, dict):
            return None
        columns = []
        for name, text in types.items():
            logical = parse_type(str(text))
            columns.append(WireColumn(name, logical, self.wire(logical), labels_of(logical)))
        return columns

    def primary_key(self, message: bytes, key: bytes | None) -> tuple[str, ...]:
        """Return the key from ``pkNames``."""
        return names(parsed(message).get("pkNames"))

    def wire(self, logical: LogicalType) -> int:
        """Return the representation of a type's values: bytes are ISO 8859-1, and JSON is inside a string."""
        if labels_of(logical) and self.options.labels != "label":
            return cells.WIRE_ORDINAL if self.options.labels == "auto" else cells.WIRE_NUMBER
        return {TypeKind.BINARY: cells.WIRE_LATIN1, TypeKind.JSON: cells.WIRE_TEXT}.get(logical.kind, cells.WIRE_PLAIN)

    def changes(self, message: bytes, table: TableId) -> tuple[list[SchemaChangeEvent], str]:
        """Return the drop or the truncation of a table, and the statement.

        Other changes are seen in the ``mysqlType`` of the next row.
        """
        found = parsed(message)
        events: list[SchemaChangeEvent] = []
        if found.get("type") == "ERASE":
            events.append(DropTableEvent(table))
        elif found.get("type") == "TRUNCATE":
            events.append(TruncateTableEvent(table))
        return events, str(found.get("sql") or "")

    def before_fix(self, message: bytes) -> str:
        """Return the advice about a missing before-image: Canal writes `old` only with the full row image."""
        return f'Canal writes it as "old" where the server has binlog_row_image = FULL. {OPTIONAL_FIX}'

    def encoder(self, table: TableId, schema: TableSchema) -> FormatEncoder:
        """See `api.Format`."""
        from raycdc.formats.encoding.encoder import canal_encoder

        return canal_encoder(table, schema, self.options)
