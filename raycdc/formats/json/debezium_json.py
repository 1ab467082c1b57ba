"""``debezium-json``: Debezium's change events through Kafka Connect's JSON converter, with and without their schema.

``{"before": {…}, "after": {…}, "source": {"db", "table", …}, "op": "u", "ts_ms"}``, or, with ``schemas.enable``, an
object that has this event as ``payload``, and its ``schema``. The schema describes the representation of values
(`debezium_schema`). Without a schema, the options describe it; they have Debezium's defaults. MongoDB's events hold
documents inside strings, in extended JSON. Reference: Debezium documentation, "Change events" and "Data type mappings"
of each connector.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from raycdc.config import option
from raycdc.formats.api import FormatEncoder
from raycdc.formats.decoding.arena import WireColumn
from raycdc.formats.envelope import NESTED, NUMBER, TEXT, Action, EnvelopeSpec, MetadataField, TimeUnit
from raycdc.formats.json.debezium_schema import described_columns
from raycdc.formats.json.dialect import NO_DATABASE, OPTIONAL_FIX, JsonDialect, parsed
from raycdc.formats.loops import code_loops as cells
from raycdc.formats.options import TABLE_FIELD, UNAVAILABLE, FormatOptions
from raycdc.model import LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import DropTableEvent, SchemaChangeEvent, TruncateTableEvent

#: The most bytes of a placeholder. Its forms are up to twelve times as long; the loops have 16 bits for their lengths.
PLACEHOLDER_MAX = 5_000


class DebeziumOptions(FormatOptions):
    """Options of ``debezium-json``.

    The options for the representation of values are used only if no schema is embedded.
    """

    decimal: Literal["auto", "base64", "text"] = option(
        "auto",
        help="How decimals are spelled (decimal.handling.mode): base64 is precise, text is string or double. auto: as "
        "each value shows; a text that is both a number and base64, such as 1234, cannot be decoded.",
    )
    binary: Literal["base64", "hex"] = option("base64", help="How bytes are spelled (binary.handling.mode).")
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = option(
        "auto",
        help="Unit of moments that are numbers (time.precision.mode). auto: milliseconds for columns of up to three "
        "fractional digits, else microseconds.",
    )
    placeholder: str = option(
        UNAVAILABLE,
        help="What the connector writes instead of a large value that did not change (unavailable.value.placeholder). "
        "A row with it, and without the value in its other image, cannot be decoded.",
        min_length=1,
    )

    missing_after: Literal["fail", "skip"] = option(
        "fail",
        help="The treatment of an update of a MongoDB document without the document after it. fail: the message cannot "
        "be decoded. skip: it is left out, which is right if the connector looks documents up (capture.mode = "
        "change_streams_update_full or change_streams_update_full_with_pre_image): the document was deleted before it "
        "was looked up, and its delete follows.",
    )

    @field_validator("placeholder")
    @classmethod
    def _hexadecimal(cls, value: str) -> str:
        if value.startswith("hex:"):
            bytes.fromhex(value[4:])
        if len(value.encode()) > PLACEHOLDER_MAX:
            raise ValueError(f"is longer than {PLACEHOLDER_MAX:,} bytes")
        return value

    @property
    def unavailable_placeholder(self) -> str:
        return self.placeholder

    @property
    def skips_missing_after(self) -> bool:
        return self.missing_after == "skip"


SPEC = EnvelopeSpec(
    type="op",
    after="after",
    before="before",
    database="source.db",
    schema="source.schema",
    table="source.table|source.collection",
    time="source.ts_ms",
    time_unit=TimeUnit.MILLIS,
    ddl="ddl",
    wrapper="payload",
    documents=True,
    extended=True,
    unavailable=True,
    actions={
        "c": Action.INSERT,
        "r": Action.INSERT,
        "u": Action.UPDATE,
        "d": Action.DELETE,
        "t": Action.TRUNCATE,
        "m": Action.IGNORE,
    },
    repeats=("schema",),
    version="schema",
    keyed=True,
    metadata={
        "op": MetadataField("op", TEXT),
        "ts_ms": MetadataField("ts_ms", NUMBER),
        "source": MetadataField("source", NESTED),
        "transaction": MetadataField("transaction", NESTED),
        "database": MetadataField("source.db", TEXT),
        "schema": MetadataField("source.schema", TEXT),
        "table": MetadataField("source.table", TEXT),
        "collection": MetadataField("source.collection", TEXT),
        "connector": MetadataField("source.connector", TEXT),
        "snapshot": MetadataField("source.snapshot", TEXT),
        "updateDescription": MetadataField("updateDescription", NESTED),
    },
)

_UNITS = {"s": cells.WIRE_SECONDS, "ms": cells.WIRE_MILLIS, "us": cells.WIRE_MICROS, "ns": cells.WIRE_NANOS}


class DebeziumJson(JsonDialect):
    """Debezium's JSON."""

    identifier: ClassVar[str] = "debezium-json"
    spec = SPEC
    options: DebeziumOptions

    def table_id(self, database: str, schema: str, table: str, topic: str) -> TableId:
        """Return DATABASE.TABLE or DATABASE.SCHEMA.TABLE.

        The table of an event without a source is named after its topic.
        """
        if not table:
            return TableId(NO_DATABASE, topic)
        return super().table_id(database, schema, table, topic)

    def described(self, version: bytes) -> list[WireColumn] | None:
        """Return the columns of ``after`` (or ``before``) in the embedded schema; None for MongoDB's documents."""
        return described_columns(json.loads(version))

    def has_documents(self, message: bytes) -> bool:
        """Return True if the event holds MongoDB's documents.

        Events of older versions do not name the connector, and are recognised by their strings.
        """
        event = _event(message)
        source = event.get("source")
        if isinstance(source, dict) and source.get("connector") == "mongodb":
            return True
        return any(isinstance(event.get(side), str) for side in ("after", "before"))

    def primary_key(self, message: bytes, key: bytes | None) -> tuple[str, ...]:
        """Return the fields of the message's key; for a document, its ``_id``."""
        if self.has_documents(message):
            return ("_id",)
        found = parsed(key)
        payload = found.get("payload") if "schema" in found else found
        return tuple(name for name in payload if name != TABLE_FIELD) if isinstance(payload, dict) else ()

    def wire(self, logical: LogicalType) -> int:
        """Return Debezium's default representation, or the one that the options set."""
        match logical.kind:
            case TypeKind.DECIMAL | TypeKind.UINT64:
                return {"auto": cells.WIRE_EITHER, "base64": cells.WIRE_BASE64}.get(
                    self.options.decimal, cells.WIRE_PLAIN
                )
            case TypeKind.BINARY:
                return cells.WIRE_HEX if self.options.binary == "hex" else cells.WIRE_PLAIN
            case TypeKind.BIT:
                return cells.WIRE_BASE64
            case TypeKind.JSON:
                return cells.WIRE_TEXT
            case TypeKind.DATE:
                return cells.WIRE_DAYS
            case TypeKind.DATETIME | TypeKind.TIMESTAMP:
                return _UNITS.get(self.options.time_unit, cells.WIRE_MICROS if logical.fsp > 3 else cells.WIRE_MILLIS)
            case TypeKind.TIME:
                return _UNITS.get(self.options.time_unit, cells.WIRE_MICROS)
            case _:
                return cells.WIRE_PLAIN

    def changes(self, message: bytes, table: TableId) -> tuple[list[SchemaChangeEvent], str]:
        """Return a truncation, or the changes of a schema-change event."""
        event = _event(message)
        if event.get("op") == "t":
            return [TruncateTableEvent(table)], ""
        dropped = any(change.get("type") == "DROP" for change in event.get("tableChanges") or ())
        source = event.get("source")
        # Statements of other databases are not parsed. Their effects on rows and columns are in the messages.
        mysql = isinstance(source, dict) and source.get("connector") in ("mysql", "mariadb")
        return ([DropTableEvent(table)] if dropped else []), str(event.get("ddl") or "") if mysql else ""

    def before_fix(self, message: bytes) -> str:
        """Return the advice about a missing before-image. Each database has its own setting for it."""
        source = _event(message).get("source")
        connector = source.get("connector") if isinstance(source, dict) else None
        return f"{_FIXES.get(str(connector), _FIX)} {OPTIONAL_FIX}"

    def encoder(self, table: TableId, schema: TableSchema) -> FormatEncoder:
        """See `api.Format`."""
        from raycdc.formats.encoding.encoder import debezium_encoder

        return debezium_encoder(table, schema, self.options)


_FIX = (
    "Let the database log it: for PostgreSQL ALTER TABLE … REPLICA IDENTITY FULL, for MySQL binlog_row_image = FULL, "
    "for MongoDB pre-images (capture.mode = change_streams_update_full_with_pre_image)."
)
_FIXES = {
    "postgresql": "Let PostgreSQL log it: ALTER TABLE … REPLICA IDENTITY FULL.",
    "mysql": "Let MySQL log it: binlog_row_image = FULL.",
    "mariadb": "Let MariaDB log it: binlog_row_image = FULL.",
    "mongodb": "Let MongoDB record pre-images (changeStreamPreAndPostImages on the collection) and Debezium pass them "
    "on (capture.mode = change_streams_update_full_with_pre_image).",
}


def _event(message: bytes) -> dict[str, Any]:
    found = parsed(message)
    payload = found.get("payload")
    return payload if isinstance(payload, dict) else found
