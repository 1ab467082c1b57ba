"""Which partitions a table's rows come from, and what emptied it: a truncation has no order to rows elsewhere. Pure.

The enumerator's. Readers tell before they report a seal, so what has no order ends the job before the epoch has a
manifest; tables and partitions are remembered in the state, two partitions of a table at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raycdc.checkpoint.opaque import SealedSplit
from raycdc.connectors.kafka.split import PartitionState
from raycdc.errors import DataError
from raycdc.model import TableId
from raycdc.schema import SchemaChangeEvent

#: More partitions than one are all the same to us.
REMEMBERED = 2


@dataclass(frozen=True, slots=True)
class _Told:
    table: TableId
    split_id: str
    offset: int
    change: SchemaChangeEvent


@dataclass(frozen=True, slots=True)
class SealedHomes:
    """The partitions that have rows of each table, `REMEMBERED` at most, and the one that emptied it, as sealed."""

    homes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    emptied: Mapping[str, str] = field(default_factory=dict)


class TableHomes:
    """See the module's docstring. It goes on from what was `sealed`."""

    def __init__(self, sealed: SealedHomes | None = None) -> None:
        before = sealed or SealedHomes()
        self._homes = {table: list(splits) for table, splits in before.homes.items()}
        self._emptied = dict(before.emptied)
        self._open: list[_Told] = []

    def read(self, table: TableId, split_id: str) -> None:
        """Rows of `table` came from a partition. Raises `DataError` where another one emptied the table."""
        homes = self._homes.setdefault(str(table), [])
        if split_id not in homes and len(homes) < REMEMBERED:
            homes.append(split_id)
        self._check(str(table))

    def emptied(self, table: TableId, split_id: str, *, offset: int, change: SchemaChangeEvent) -> None:
        """A message emptied `table`. Raises `DataError` where its rows are not all in this partition."""
        self.read(table, split_id)
        self._emptied[str(table)] = split_id
        self._open.append(_Told(table, split_id, offset, change))
        self._check(str(table))

    def take(self, splits: Mapping[str, SealedSplit]) -> dict[TableId, list[SchemaChangeEvent]]:
        """The changes of the epoch that ends at `splits`; those that a lost reader had told are not among them."""
        ends = {told.split_id: PartitionState.of(splits[told.split_id]).offset for told in self._open}
        changes: dict[TableId, list[SchemaChangeEvent]] = {}
        for told in self._open:
            if told.offset < ends[told.split_id]:
                changes.setdefault(told.table, []).append(told.change)
        self._open.clear()
        return changes

    def sealed(self) -> SealedHomes:
        """The state after the epoch that is being sealed."""
        return SealedHomes({table: tuple(splits) for table, splits in self._homes.items()}, dict(self._emptied))

    def _check(self, table: str) -> None:
        others = [split_id for split_id in self._homes[table] if split_id != self._emptied.get(table)]
        if table in self._emptied and others:
            raise DataError(
                f"A message in partition {self._emptied[table]} removes all rows of {table}, and partition {others[0]} "
                "has rows of it: nothing says which of them came before. Produce the table's messages to one "
                'partition, or pass over DDL messages with source.format.ddl = "ignore".'
            )
