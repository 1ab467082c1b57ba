"""The rows that a changelog leaves, for stories that are about something else than its order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def rows_left(rows: Iterable[dict[str, Any]], key: str = "id") -> dict[Any, dict[str, Any]]:
    """The newest row of each key that is there in the end; `rows` are a changelog's, in any order."""
    left: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda each: int(each["_seq"])):
        match row["_op"]:
            case "T":
                left.clear()
            case "+I" | "+U":
                left[row[key]] = row
            case _:
                left.pop(row[key], None)
    return left
