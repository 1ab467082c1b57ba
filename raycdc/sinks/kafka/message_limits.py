"""The size of messages that topics allow, and the rows whose messages are larger.

librdkafka checks the size of a message with its key before it sends it, and brokers check the compressed batch. Its own
limit is 1,000,000 bytes, whatever the topic allows, so each producer gets the topic's limit.

A row is unrepresentable if its message as that of an insert exceeds librdkafka's limit. The check is the same for each
message of the row, so the deletion of a row that was left out is left out, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.model import RowKind, TableId, TableSchema
from raycdc.sinks.api import TableCommit
from raycdc.sinks.kafka.tasks import STORED, FormatSection, open_format
from raycdc.sinks.kafka.transactions import MESSAGE_BYTES, MESSAGE_BYTES_DEFAULT
from raycdc.sinks.rows import reasons, value_bytes


class MessageLimits:
    """The limits of the topics of one sink.

    `properties` are those of librdkafka. `read` returns the limit of a topic, or 0 if it is unknown. It is called once
    for each topic, and again after `forget`. Threads may use an object concurrently.
    """

    def __init__(self, properties: Mapping[str, str], section: FormatSection, read: Callable[[str], int]) -> None:
        self._properties = properties
        self._section = section
        self._read = read
        self._known: dict[str, int] = {}

    def of(self, topic: str) -> int:
        """Return the limit that the topic sets; 0 if it is unknown."""
        if topic not in self._known:
            self._known[topic] = self._read(topic)
        return self._known[topic]

    def forget(self, topic: str) -> None:
        """Have the limit read again: the topic was created, or a message was refused."""
        self._known.pop(topic, None)

    def unrepresentable(self, work: TableCommit, topic: str, rows: pa.RecordBatch) -> pa.Array:
        """Return the reasons of `raycdc.sinks.api.Sink.unrepresentable` for rows of `topic`."""
        limit = int(self._properties.get(MESSAGE_BYTES) or self.of(topic) or MESSAGE_BYTES_DEFAULT)
        large = _message_bytes(self._section, work.target, work.schema, rows) > limit
        names = work.schema.arrow().names
        widest = np.array([value_bytes(rows.column(name)) for name in names]).argmax(axis=0)
        end = f"makes the message larger than the {limit} bytes that its topic (max.message.bytes) or properties allow"
        bad = ((pa.array(large & (widest == number)), f"column {name} {end}") for number, name in enumerate(names))
        return reasons(rows.num_rows, bad)


def _message_bytes(
    section: FormatSection, table: TableId, schema: TableSchema, rows: pa.RecordBatch
) -> npt.NDArray[np.int64]:
    """Return the bytes of each row's message with its key, if the row is inserted."""
    count = rows.num_rows
    columns = [rows.column(name) for name in schema.arrow().names]
    meta = [
        pa.array(np.full(count, RowKind.INSERT), pa.int8()),
        pa.array(np.zeros(count, np.int64)),
        # Times have as many digits until the year 2286.
        pa.array(np.full(count, 10**12), pa.int64()),
        pa.nulls(count, pa.string()),
    ]
    batch = pa.RecordBatch.from_arrays([*columns, *meta], names=[*schema.arrow().names, *STORED])
    encoded = open_format(section).encoder(table, schema).encode(batch)
    sizes: npt.NDArray[np.int64] = value_bytes(encoded.keys) + value_bytes(encoded.values)
    return sizes
