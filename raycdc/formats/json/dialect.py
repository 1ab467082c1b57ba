"""The base of the built-in formats, with everything that they share except the envelope."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from raycdc.errors import ConfigError
from raycdc.formats.api import FORMAT_VERSION, FormatDecoder, FormatEncoder
from raycdc.formats.decoding.arena import WireColumn
from raycdc.formats.envelope import EnvelopeSpec
from raycdc.formats.loops import code_loops as cells
from raycdc.formats.options import FormatOptions
from raycdc.model import LogicalType, TableId, TableSchema
from raycdc.model.evolution import SchemaChangeEvent
from raycdc.plugins import did_you_mean


class JsonDialect:
    """A format as an `EnvelopeSpec` and a few methods; see `named_tables.EnvelopeDialect`.

    Formats of other packages may derive from it.
    """

    identifier: ClassVar[str] = ""
    version: ClassVar[int] = FORMAT_VERSION
    spec: EnvelopeSpec

    def __init__(self, options: FormatOptions) -> None:
        self.options = options
        for name in options.metadata:
            if name not in self.spec.metadata:
                known = list(self.spec.metadata)
                raise ConfigError(
                    f"source.format.metadata: {self.identifier} has no field {name!r}{did_you_mean(name, known)} "
                    f"It has {', '.join(known)}."
                )

    def decoder(self, *, keep_null_columns: bool = False, positions: bool = False) -> FormatDecoder:
        """See `api.Format`."""
        from raycdc.formats.decoding.decoder import EnvelopeDecoder

        return EnvelopeDecoder(self, self.options, keep_null_columns=keep_null_columns, positions=positions)

    def encoder(self, table: TableId, schema: TableSchema) -> FormatEncoder:
        """See `api.Format`."""
        raise ConfigError(
            f"sink.format: {self.identifier} can be read, not written. Write maxwell-json, canal-json or debezium-json."
        )

    def table_id(self, database: str, schema: str, table: str, topic: str) -> TableId:
        """Return DATABASE.TABLE.

        If the message names a schema, it becomes a part of the table's name. If the message names no table, the topic
        is used. A schema whose name has a dot is quoted: schema `a.b` with table `c` must differ from schema `a` with
        table `b.c`.
        """
        return TableId(database or NO_DATABASE, str(TableId(schema, table)) if schema else table or topic)

    def described(self, version: bytes) -> list[WireColumn] | None:
        """Return the columns that an embedded schema text describes; None if it describes none."""
        return None

    def has_documents(self, message: bytes) -> bool:
        """Return True if a table's first message holds MongoDB's documents."""
        return False

    def primary_key(self, message: bytes, key: bytes | None) -> tuple[str, ...]:
        """Return the key columns that a table's first message names; empty if it names none."""
        return ()

    def wire(self, logical: LogicalType) -> int:
        """Return the representation of a type's values if no schema is embedded."""
        return cells.WIRE_PLAIN

    def defined(self, message: bytes) -> tuple[list[WireColumn], tuple[str, ...]] | None:
        """Return the columns and the key that a DDL message defines; None if it defines none."""
        return None

    def changes(self, message: bytes, table: TableId) -> tuple[list[SchemaChangeEvent], str]:
        """Return other schema changes of a DDL or truncate message, and its statement."""
        return [], ""

    def before_fix(self, message: bytes) -> str:
        """Return the advice about an update or delete without its before-image."""
        return "Make the connector write before-images."


#: The database of tables whose messages name none.
NO_DATABASE = "topics"

#: The last sentence of every advice about a missing before-image.
OPTIONAL_FIX = 'Or set the format\'s option before_image = "optional", which is enough for a target with a key.'


def names(value: Any) -> tuple[str, ...]:
    """Return a JSON array of column names as a tuple; empty for anything else."""
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def parsed(message: bytes | None) -> dict[str, Any]:
    """Return a message as a dict, for checks that run once per table; empty if it is not an object."""
    if not message:
        return {}
    try:
        found = json.loads(message)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def first_present(data: dict[str, Any], keys: Sequence[str]) -> Any:
    """Return the value of the first of the `keys` that `data` has."""
    return next((data[key] for key in keys if data.get(key) is not None), None)
