"""Names of tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TableId:
    """A table (or collection, or topic's table) by database and name, in the source's own spelling."""

    db: str
    table: str

    def __str__(self) -> str:
        return f"{self.db}.{self.table}"

    @classmethod
    def parse(cls, text: str) -> TableId:
        """Inverse of ``str``; the database ends at the first dot."""
        db, dot, table = text.partition(".")
        if not dot or not db or not table:
            raise ValueError(f"{text!r} is not DATABASE.TABLE")
        return cls(db, table)
