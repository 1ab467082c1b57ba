"""The format of a source, opened from its section of the configuration; and undecodable messages as dead-letter
rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from raycdc.errors import ConfigError
from raycdc.formats.api import BadMessage, Format
from raycdc.formats.plugins import load_format
from raycdc.model import Column, LogicalType, RowKind, TableSchema, TypeKind, changelog_schema

#: The columns of `DEAD_LETTERS`. Its rows go through the same sink, exactly once.
DEAD_LETTER_SCHEMA = TableSchema(
    (
        Column("topic", LogicalType(TypeKind.STRING), nullable=False),
        Column("partition", LogicalType(TypeKind.INT32), nullable=False),
        Column("offset", LogicalType(TypeKind.INT64), nullable=False),
        Column("key", LogicalType(TypeKind.BINARY)),
        Column("value", LogicalType(TypeKind.BINARY)),
        Column("reason", LogicalType(TypeKind.STRING)),
    ),
    ("topic", "partition", "offset"),
)


def open_format(section: Mapping[str, Any]) -> Format:
    """Open the format that ``source.format`` describes. Raises ValueError with every problem of the section."""
    identifier = str(section.get("type", ""))
    if not identifier:
        raise ValueError('needs type, e.g. { type = "maxwell-json" }')
    options = {key: value for key, value in section.items() if key != "type"}
    try:
        return load_format(identifier, **options)
    except ConfigError as cause:
        raise ValueError("; ".join(cause.problems)) from cause


def keeps_dead_letters(section: Mapping[str, Any]) -> bool:
    """Return True if messages that cannot be decoded are kept as rows of `DEAD_LETTERS`."""
    return section.get("on_error") == "dead-letter"


def dead_letters(bad: Sequence[BadMessage], *, now_ms: int, hide: bool = False) -> pa.RecordBatch:
    """Return undecodable messages as inserts into `DEAD_LETTERS` (`_seq` from 0).

    If `hide` is set, the rows have no contents, because nothing can be masked in a message that cannot be decoded.
    """
    count = len(bad)
    if hide:
        bad = [replace(message, key=None, value=None) for message in bad]
    columns: list[Sequence[Any]] = [
        [message.origin.topic for message in bad],
        [message.origin.partition for message in bad],
        [message.offset for message in bad],
        [message.key for message in bad],
        [message.value for message in bad],
        [str(message.error) for message in bad],
        [int(RowKind.INSERT)] * count,
        range(count),
        [now_ms] * count,
        [message.origin.location(message.offset) for message in bad],
    ]
    schema = changelog_schema(DEAD_LETTER_SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
