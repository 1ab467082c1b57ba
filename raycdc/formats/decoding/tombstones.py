"""Finds the tables to which tombstones and keys of one stream's messages belong.

A tombstone has a key and no value. Its key may name its table (`TABLE_FIELD`). If it does not, and if the topic's name
ends with the name of a table, the tombstone belongs to this table. Otherwise it belongs to the only table of the topic.
If several tables are possible, the tombstone is a bad message, because rows of different tables may have equal keys.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from raycdc.formats.decoding.tables import TableState
from raycdc.formats.loops import envelope_loops as envelope
from raycdc.formats.options import TABLE_FIELD
from raycdc.model import TableId

#: The maximum number of different sets of key fields that are distinguished within a batch. Each partition has one or a
#: few.
KEY_SHAPES_MAX = 4096


class KeyedTables:
    """The facts about one stream's tables on which the meaning of keys depends. Owned by the stream's `NamedTables`."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        #: The tables that messages named so far and that `include` and `exclude` leave out.
        self.left_out: set[TableId] = set()
        #: The numbers of the shapes that only tombstones have, by table.
        self.shapes: dict[TableId, int] = {}

    def number(self, hashes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], bool]:
        """Return a number for each hash of field names (`key_loops.key_names`), and True if earlier numbers are not
        valid any more.
        """
        distinct, inverse = np.unique(hashes, return_inverse=True)
        cleared = len(self._numbers) + len(distinct) > KEY_SHAPES_MAX
        if cleared:
            self._numbers.clear()
        numbers = [self._numbers.setdefault(value, len(self._numbers)) for value in distinct.tolist()]
        return np.array(numbers, np.int64)[inverse], cleared

    def table_of_key(self, key: bytes | None, states: Collection[TableState]) -> TableState | int:
        """Return the table that a tombstone's key names, or the tombstone's meaning if there is no such table.

        A table that is left out, or that no message has named before, has no row that the tombstone could delete.
        """
        name = _table_field(key)
        known = [state for state in states if state.primary_key]
        exact = [state for state in known if str(state.id) == name]
        named = exact or [state for state in known if _ends_in(name, _full_name(state.id))]
        if any(str(table) == name for table in self.left_out) or not named:
            return envelope.NO_MEANING
        return named[0] if len(named) == 1 else envelope.UNCLEAR

    def table_of(self, topic: str, states: Collection[TableState], *, alone: bool) -> TableState | int:
        """Return the table to which tombstones of `topic` belong, or their meaning if there is no such table.

        `states` are the tables that the topic's messages have named so far. If `alone` is True, no table is left out,
        so the only table of `states` may be taken.
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
    """Return the state of the topic's own `table`, for formats in which a message is a row; or the meaning of its
    tombstones if there is no state.
    """
    state = states.get(table)
    return state if state is not None and state.primary_key else envelope.NO_MEANING


def _table_field(key: bytes | None) -> str:
    """Return the name of the table in a key, which is an object and may be in an envelope with its schema."""
    fields = json.loads(key or b"{}")
    return str((fields["payload"] if "schema" in fields and "payload" in fields else fields).get(TABLE_FIELD, ""))


def _full_name(table: TableId) -> str:
    return f"{table.db}.{table.table}"


def _name_with_schema(table: TableId) -> str:
    """Return SCHEMA.TABLE; empty for a table without a schema, because tables of several databases could have its
    name.
    """
    return table.table if "." in table.table else ""


def _ends_in(topic: str, name: str) -> bool:
    return bool(name) and (topic == name or topic.endswith(f".{name}"))
