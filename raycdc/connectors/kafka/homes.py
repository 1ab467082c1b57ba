"""Which partitions a table's rows come from, and what emptied it: a truncation has no order to rows elsewhere. Pure.

The enumerator's. Readers tell before they report a seal, so what has no order ends the job before the epoch has a
manifest; tables and partitions are remembered in the state, two partitions of a table at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raycdc.connectors.kafka.split import PartitionState
from raycdc.errors import DataError
from raycdc.model import TableId

#: More partitions than one are all the same to us.
REMEMBERED = 2


@dataclass(frozen=True, slots=True)
class _Told:
    table: TableId
    split_id: str
    offset: int
    change: Mapping[str, Any]


class TableHomes:
    """See the module's docstring; `state` is what `to_json` gave."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self._homes: dict[str, list[str]] = {table: list(splits) for table, splits in state.get("homes", {}).items()}
        self._emptied: dict[str, str] = dict(state.get("emptied", {}))
        self._open: list[_Told] = []

    def read(self, table: TableId, split_id: str) -> None:
        """Rows of `table` came from a partition. Raises `DataError` where another one emptied the table."""
        homes = self._homes.setdefault(str(table), [])
        if split_id not in homes and len(homes) < REMEMBERED:
            homes.append(split_id)
        self._check(str(table))

    def emptied(self, table: TableId, split_id: str, *, offset: int, change: Mapping[str, Any]) -> None:
        """A message emptied `table`. Raises `DataError` where its rows are not all in this partition."""
        self.read(table, split_id)
        self._emptied[str(table)] = split_id
        self._open.append(_Told(table, split_id, offset, change))
        self._check(str(table))

    def sealed(self, splits: Mapping[str, Any]) -> dict[TableId, list[Mapping[str, Any]]]:
        """The changes of the epoch that ends at `splits`; those that a lost reader had told are not among them."""
        ends = {told.split_id: PartitionState.from_json(splits[told.split_id]).offset for told in self._open}
        found: dict[TableId, list[Mapping[str, Any]]] = {}
        for told in self._open:
            if told.offset < ends[told.split_id]:
                found.setdefault(told.table, []).append(told.change)
        self._open.clear()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"homes": self._homes, "emptied": self._emptied}

    def _check(self, table: str) -> None:
        others = [split_id for split_id in self._homes[table] if split_id != self._emptied.get(table)]
        if table in self._emptied and others:
            raise DataError(
                f"A message in partition {self._emptied[table]} removes all rows of {table}, and partition {others[0]} "
                "has rows of it: nothing says which of them came before. Produce the table's messages to one "
                'partition, or pass over DDL messages with source.format.ddl = "ignore".'
            )
