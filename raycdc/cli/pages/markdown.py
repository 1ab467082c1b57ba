"""Tables of Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with the titles `head`; each row has as many cells as there are titles."""
    lines = [_line(row) for row in rows]
    return "\n".join([_line(head), "|" + "---|" * len(head), *lines])


def code(text: str) -> str:
    """Return `text` in code quotes; an empty text stays empty."""
    return f"`{text}`" if text else ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
