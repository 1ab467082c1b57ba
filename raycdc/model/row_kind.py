"""The kind of a changelog row, as in Flink's RowKind, plus truncation."""

from __future__ import annotations

from enum import IntEnum


class RowKind(IntEnum):
    """Stored in a segment as int8 (`_op`), shown to people and sinks as `symbol`."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3
    TRUNCATE = 4

    @property
    def symbol(self) -> str:
        return SYMBOLS[self]


#: Text of each kind, indexed by its code.
SYMBOLS: tuple[str, ...] = ("+I", "-U", "+U", "-D", "T")
