"""MariaDB's sequences: the log has their values as rows of a table of their name, which no pipeline follows.

Which names these are is asked where such rows are met, and forgotten where a statement is about the name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from raycdc.model import TableId

_log = logging.getLogger(__name__)


class Sequences:
    """`ask` the server whether a name is a sequence's; None: nobody can be asked."""

    def __init__(self, ask: Callable[[TableId], bool] | None = None) -> None:
        self._ask = ask
        self._known: set[TableId] = set()
        self._told: set[TableId] = set()

    def __contains__(self, table: object) -> bool:
        return table in self._known

    def met(self, table: TableId) -> bool:
        """Whether rows of a `table` of which no schema is known are a sequence's; says so once."""
        if self._ask is None or not self._ask(table):
            return False
        self._known.add(table)
        if table not in self._told:
            self._told.add(table)
            _log.warning("%s is a sequence, which has no rows to follow: it is left out", table)
        return True

    def touched(self, tables: Collection[TableId]) -> None:
        """A statement names these: one may be a table from here on."""
        self._known.difference_update(tables)
