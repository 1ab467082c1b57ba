"""Rows and keys as they may stand in the state: masked columns are masked, and values to compare by are encrypted.

Handed to sources (`raycdc.source.connector.SourceContext`), which keep bounds of chunks and rows that wait. Pure,
picklable.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from raycdc.errors import ConfigError
from raycdc.model import META_COLUMNS, TableId
from raycdc.model.batch import with_masked
from raycdc.model.mask import Masks
from raycdc.model.state_key import StateKey, is_sealed, no_key
from raycdc.transform.masking import masked


@dataclass(frozen=True, slots=True)
class Hiding:
    """The pipeline's masks, and the key that encrypts what cannot be masked; ``repr`` shows neither key."""

    masks: Masks = field(default_factory=Masks)
    state_key: StateKey | None = None

    def hides(self, table: TableId, columns: Collection[str]) -> bool:
        """Whether a mask is about one of these columns."""
        return any(self.masks.of(table, column) is not None for column in columns)

    def concerns(self, table: TableId) -> bool:
        """Whether a mask can be about a column of `table`."""
        return any(mask.plain is None or mask.plain[0] == table for mask in self.masks.all)

    def batch(self, table: TableId, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of `table` as segments have them; the batch says that masks have been over it."""
        return with_masked(masked(batch, table, self.masks), masked=True) if self.masks else batch

    def without_unfit(self, table: TableId, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` with NULL in columns that their masks cannot hide: where targets are the table is parked for these
        (`masked_schema` refuses them), and its rows are written nowhere. For readers that cannot park a table.
        """
        for index, field_ in enumerate(batch.schema):
            mask = None if field_.name in META_COLUMNS else self.masks.of(table, field_.name)
            if mask is not None and not mask.takes(field_.type):
                nothing = pa.nulls(batch.num_rows, pa.string())
                batch = batch.set_column(index, pa.field(field_.name, pa.string()), nothing)
        return batch

    def seal(self, table: TableId, data: bytes) -> str:
        """`data`, which has values that a mask of `table` hides, as an encrypted text. `ConfigError` without a key."""
        if self.state_key is None:
            raise ConfigError(
                f"pipeline.state_key is not set, and {table} is cut into chunks by a column that a mask hides: the "
                "state would have its values in the clear. Set pipeline.state_key, for instance to "
                '"${env:STATE_KEY}", or name another column in source.snapshot.key.'
            )
        return self.state_key.seal(data)

    def open(self, text: str) -> bytes:
        """Inverse of `seal`. Raises `StateError` without the key, and for another one."""
        if self.state_key is None:
            raise no_key()
        return self.state_key.open(text)

    def seal_json(self, table: TableId, columns: Collection[str], value: Any) -> Any:
        """A JSON value with values of `columns`, in the form that the state may have."""
        return self.seal(table, json.dumps(value).encode()) if self.hides(table, columns) else value

    def open_json(self, value: Any) -> Any:
        """Inverse of `seal_json`; a value that was not sealed is itself."""
        return json.loads(self.open(value)) if is_sealed(value) else value
