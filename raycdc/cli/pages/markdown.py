"""Tables of Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with the titles `head`; every row has as many cells."""
    lines = [_line(row) for row in rows]
    return "\n".join([_line(head), "|" + "---|" * len(head), *lines])


def code(text: str) -> str:
    """`text` as code, or nothing."""
    return f"`{text}`" if text else ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
