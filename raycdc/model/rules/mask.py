"""``[[mask]]``: the effect of a mask on a column's values, and the types that masked columns have. Pure.

| method | a value becomes | type |
|---|---|---|
| ``drop`` | nothing: the column is left out | none |
| ``hash`` | the HMAC-SHA-256 of its text under the mask's key, in hexadecimal digits; equal values stay equal | \
STRING |
| ``truncate`` | its first `length` characters (bytes of a binary) | BINARY for a BINARY column; STRING for a text |
| ``mask`` | `length` asterisks, the same for all values | STRING |

NULL stays NULL. The text of a value is the one that Arrow makes: numbers in decimal digits, instants in UTC. The first
mask that matches ``DATABASE.TABLE.COLUMN`` in full is applied to the column. Parts of a plain name may be in
backquotes, as in names of tables (`raycdc.model.rules.selector`). A regular expression is matched with the text without
backquotes, and without regard to case.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from raycdc.errors import ConfigError
from raycdc.model.column_names import spark_fold
from raycdc.model.rules.selector import METACHARACTERS, UNQUOTED
from raycdc.model.table import TableId, quoted_parts
from raycdc.model.types import LogicalType, TypeKind


@dataclass(frozen=True, slots=True)
class Mask:
    """A ``[[mask]]``. `length` is for ``truncate`` and ``mask``, `key` for ``hash``; ``repr`` does not show it."""

    columns: str
    method: Literal["drop", "hash", "truncate", "mask"]
    length: int = 0
    key: bytes = field(default=b"", repr=False)

    @property
    def plain(self) -> tuple[TableId, str] | None:
        """Return the one column that the mask names, as three parts; None for a regular expression."""
        if (quoted := quoted_parts(self.columns, *[UNQUOTED] * 3)) is not None:
            return TableId(quoted[0], quoted[1]), quoted[2]
        parts = self.columns.split(".")
        if len(parts) != 3 or METACHARACTERS & set(self.columns):
            return None
        return TableId(parts[0], parts[1]), parts[2]

    def pattern(self) -> re.Pattern[str]:
        """Return the expression for names of columns.

        It ignores case, as servers do for names of columns, and ``.`` matches a line break too: whoever may create a
        column may choose its spelling, and no spelling of a hidden name may be shown.
        """
        return re.compile(re.escape(self.columns) if self.plain else self.columns, re.IGNORECASE | re.DOTALL)

    def identity(self) -> str:
        """Return a text that differs if masked values would differ. It does not reveal the key."""
        keyed = hashlib.sha256(b"raycdc mask\0" + self.key).hexdigest() if self.key else ""
        return hashlib.sha256(repr((self.columns, self.method, self.length, keyed)).encode()).hexdigest()[:16]

    def takes(self, arrow: pa.DataType) -> bool:
        """Return True if the mask can hide values of this type."""
        return self.method != "truncate" or pa.types.is_string(arrow) or pa.types.is_binary(arrow)

    def type(self, have: LogicalType) -> LogicalType | None:
        """Return the type of a masked column whose own type is `have`; None for a dropped column.

        Raises ValueError if the mask cannot be applied to the type.
        """
        if self.method == "drop":
            return None
        if self.method != "truncate":
            return LogicalType(TypeKind.STRING)
        if have.kind is TypeKind.BINARY:
            return have
        if not self.takes(have.arrow()):
            raise ValueError(f'method = "truncate" is for texts and binaries, and it is {have.kind}; use mask or hash')
        return LogicalType(TypeKind.STRING)


class Masks:
    """The masks of a pipeline. Picklable. The pickle contains the masks' keys; no ``repr`` shows them."""

    def __init__(self, masks: Sequence[Mask] = ()) -> None:
        self.all = tuple(masks)
        self._patterns = [mask.pattern() for mask in self.all]

    def __bool__(self) -> bool:
        """Return True if there is any mask."""
        return bool(self.all)

    def __repr__(self) -> str:
        return f"Masks({list(self.all)!r})"

    def of(self, table: TableId, column: str) -> Mask | None:
        """Return the mask of `column`, whose name may be written in another case; None if it is not masked."""
        name = f"{table.dotted}.{column}"
        for mask, pattern in zip(self.all, self._patterns, strict=True):
            plain = mask.plain
            if plain is not None:
                if plain[0] == table and spark_fold(plain[1]) == spark_fold(column):
                    return mask
            elif pattern.fullmatch(name):
                return mask
        return None

    def check_key(self, table: TableId, key: Sequence[str]) -> None:
        """Raise `ConfigError` if a column of the table's `key` is masked: the key must identify rows."""
        for column in key:
            if self.of(table, column) is not None:
                raise ConfigError(
                    f"mask: {table}.{column} belongs to the key, by which readers tell rows apart, and cannot be "
                    "masked. Name the other columns in mask.columns, or give the table another key."
                )

    def identity(self, table: TableId) -> str:
        """Return a text that differs if masked values of `table` would differ; empty if no mask can apply
        to the table.
        """
        about = [mask.identity() for mask in self.all if mask.plain is None or mask.plain[0] == table]
        return "-".join(about)
