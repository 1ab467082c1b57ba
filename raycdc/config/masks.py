"""``[[mask]]``: columns whose values no reader lets out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import field_validator, model_validator

from raycdc.config.fields import Options, Secret, option
from raycdc.model.mask import Mask, Masks
from raycdc.model.table import TableId


def hiding_problems(masks: Masks, chunk_keys: Mapping[TableId, str]) -> list[str]:
    """Problems of chunk keys that a mask hides, for a configuration that has nothing to encrypt the
    bounds of chunks.
    """
    return [
        f"source.snapshot.key: {table} is cut into chunks by {column}, which a mask hides, so that the state would "
        'have its values. Set pipeline.state_key, for instance to "${env:STATE_KEY}", or name another column.'
        for table, column in chunk_keys.items()
        if masks.of(table, column) is not None
    ]


class MaskOptions(Options):
    """Columns that the reader hides before a row is written anywhere. The first one that matches a
    column is applied.
    """

    columns: str = option(
        help="DATABASE.TABLE.COLUMN (odd parts between backquotes), or a regular expression that matches it in full.",
        example=r"shop\.customers\.(email|phone)",
    )
    method: Literal["drop", "hash", "truncate", "mask"] = option(
        help="drop: no column. hash: HMAC-SHA-256 of its text. truncate: its first `length` characters. mask: `length` "
        "asterisks."
    )
    key: Secret = option(Secret(""), help='The key of method = "hash", by reference.', example="${env:MASK_KEY}")
    length: int = option(0, help="Characters that truncate keeps, or asterisks that mask shows (8).", ge=0, le=1000)

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: str) -> str:
        if Mask(columns, "drop").plain is None:
            if "." not in columns:
                raise ValueError(f"'{columns}' can match no column: it needs DATABASE.TABLE.COLUMN")
            try:
                re.compile(columns)
            except re.error as error:
                raise ValueError(f"'{columns}' is not a regular expression: {error.msg}") from error
        return columns

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.method == "hash") != bool(self.key):
            raise ValueError('method = "hash" needs a key' if not self.key else 'key is for method = "hash" alone')
        if self.length and self.method not in ("truncate", "mask"):
            raise ValueError('length is for method = "truncate" and "mask" alone')
        if not self.length and self.method == "truncate":
            raise ValueError('method = "truncate" needs a length, of at least 1')
        return self

    def mask(self) -> Mask:
        """The mask as readers have it."""
        length = self.length or (8 if self.method == "mask" else 0)
        return Mask(self.columns, self.method, length, self.key.reveal().encode())
