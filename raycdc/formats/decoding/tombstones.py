"""The tables that tombstones and keys of one stream's messages belong to.

A tombstone has a key and no value, so it does not name its table. A topic whose name ends with a table's name has that
table's tombstones; else those of its only table. A tombstone that can belong to several tables is a bad message: the
key of a row of one table may be the key of a row of another one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from raycdc.formats.decoding.tables import TableState
from raycdc.formats.loops import envelope_loops as envelope
from raycdc.model import TableId

#: The number of different sets of key fields that are told apart until a batch ends; each partition has one or few.
KEY_SHAPES_MAX = 4096


class KeyedTables:
    """The facts about one stream's tables that its keys depend on. Owned by its `NamedTables`."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        #: The tables of messages that `include` and `exclude` leave out, as far as seen.
        self.left_out: set[TableId] = set()
        #: The numbers of the shapes that only tombstones have, by table.
        self.shapes: dict[TableId, int] = {}

    def number(self, hashes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], bool]:
        """Return a number for each hash of field names (`key_loops.key_names`), and if earlier numbers are void now."""
        distinct, inverse = np.unique(hashes, return_inverse=True)
        cleared = len(self._numbers) + len(distinct) > KEY_SHAPES_MAX
        if cleared:
            self._numbers.clear()
        numbers = [self._numbers.setdefault(value, len(self._numbers)) for value in distinct.tolist()]
        return np.array(numbers, np.int64)[inverse], cleared

    def table_of(self, topic: str, states: Collection[TableState], *, alone: bool) -> TableState | int:
        """Return the table that tombstones of `topic` belong to, or what they mean without one.

        `states` are the tables of its messages so far. `alone`: a table that is the only one of them may be taken,
        because no table is left out of them.
        """
        if not any(state.primary_key for state in states):
            return envelope.NO_MEANING
        for name in (_full_name, _name_with_schema):
            named = [state for state in states if _ends_in(topic, name(state.id))]
            others = [table for table in self.left_out if _ends_in(topic, name(table))]
            if len(named) == 1 and not others:
                return named[0] if named[0].primary_key else envelope.NO_MEANING
            if named or others:
                return envelope.UNCLEAR
        return next(iter(states)) if alone and len(states) == 1 else envelope.UNCLEAR


def table_of_topic(table: TableId, states: Mapping[TableId, TableState]) -> TableState | int:
    """Return the state of the topic's own `table`, where a message is a row, or what its tombstones mean without it."""
    state = states.get(table)
    return state if state is not None and state.primary_key else envelope.NO_MEANING


def _full_name(table: TableId) -> str:
    return f"{table.db}.{table.table}"


def _name_with_schema(table: TableId) -> str:
    """Return SCHEMA.TABLE; empty for a table without a schema, whose name alone could be that of any database."""
    return table.table if "." in table.table else ""


def _ends_in(topic: str, name: str) -> bool:
    return bool(name) and (topic == name or topic.endswith(f".{name}"))
