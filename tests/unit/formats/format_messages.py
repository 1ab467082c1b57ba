"""Shared by the tests of formats: messages in, rows as people read them out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.formats.api import ChangeItem, Decoded, Format, FormatDecoder, MessageBatch, Origin, RowsItem
from raycdc.formats.plugins import CANAL_JSON, DEBEZIUM_JSON, MAXWELL_JSON, OGG_JSON, PLAIN_JSON
from raycdc.model.batch import SYMBOLS
from raycdc.model.evolution import SchemaChangeEvent

PLUGINS = {p.name: p for p in (MAXWELL_JSON, CANAL_JSON, DEBEZIUM_JSON, OGG_JSON, PLAIN_JSON)}
Message = bytes | str | dict[str, Any] | None


def raw(message: Message) -> bytes | None:
    if isinstance(message, dict):
        return json.dumps(message, ensure_ascii=False).encode()
    return message.encode() if isinstance(message, str) else message


def batch(messages: Sequence[Message], *, first: int = 1, keys: list[bytes | None] | None = None) -> MessageBatch:
    values = pa.array([raw(m) for m in messages], pa.large_binary())
    offsets = np.arange(first, first + len(messages))
    return MessageBatch(Origin("topic", 3), values, offsets, keys=None if keys is None else pa.array(keys, pa.binary()))


def make(name: str, **options: Any) -> Format:
    plugin = PLUGINS[name]
    made: Format = plugin.create(plugin.config(type=name, **options))
    return made


def decoder(name: str, **options: Any) -> FormatDecoder:
    keep = options.pop("keep", True)
    return make(name, **options).decoder(keep_null_columns=keep)


def rows_of(decoded: Decoded) -> list[tuple[str, dict[str, Any]]]:
    """(op, row) of every row, in the order of the messages."""
    found: list[tuple[int, str, dict[str, Any]]] = []
    for item in decoded.items:
        if isinstance(item, RowsItem):
            names = [c.name for c in item.schema.columns]
            rows = item.batch.to_pylist()
            found += [(row["_seq"], SYMBOLS[row["_op"]], {name: row[name] for name in names}) for row in rows]
    return [(op, row) for _, op, row in sorted(found, key=lambda entry: entry[0])]


def events_of(decoded: Decoded) -> list[SchemaChangeEvent]:
    return [event for item in decoded.items if isinstance(item, ChangeItem) for event in item.events]


def decode(name: str, *messages: Message, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    """The rows of messages that are all fine."""
    decoded = decoder(name, **options).decode(batch(list(messages)))
    assert decoded.failure is None, decoded.failure
    return rows_of(decoded)


def failure(name: str, *messages: Message, **options: Any) -> str:
    """The error of messages one of which is bad, as ``ClassName: text``."""
    decoded = decoder(name, **options).decode(batch(list(messages)))
    assert decoded.failure is not None
    return f"{type(decoded.failure).__name__}: {decoded.failure}"
