"""The collections that a change stream follows, and the effect of events about collections.

| event | on a followed collection | on a captured collection that is not followed |
|---|---|---|
| a change of a document | rows | it is parked for a resnapshot |
| drop | it ends: its target is emptied | an earlier probe of it is out of date |
| rename to another name | it has ended: its target keeps its rows | the same |
| rename of another collection to its name | it is resnapshotted | it is resnapshotted |
| create | nothing, or a resnapshot if it is a different collection | it is parked for a resnapshot |
| reshardCollection | it is resnapshotted | an earlier probe of it is out of date |
| an event that changes no document | nothing | nothing |
| anything unknown | it is parked | nothing |

Every new collection begins as *parked for a resnapshot*: it is probed, and when the stream has passed the probe, its
chunks are read (`raycdc.source.tables.parking`). A collection that the user paused or left out is not changed. Pure
except for the probes. One thread. `raycdc.connectors.mongodb.stream.drift` decides which collections get more columns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from raycdc.connectors.mongodb.layout import COLLECTION, ID, CollectionLayout
from raycdc.connectors.mongodb.stream.drift import Widenings, added
from raycdc.connectors.mongodb.stream.events import CollectionEvent, RowWriter
from raycdc.model import TableId
from raycdc.model.evolution.events import DropTableEvent, TruncateTableEvent
from raycdc.source.snapshot.log.log_unit import AlterTableUpdate, DropTableUpdate, ParkTableUpdate
from raycdc.source.tables.parked_tables import ParkedKind, ParkedTables, ParkingSetup
from raycdc.source.tables.resnapshots import FollowableTable, StatementPosition, TableChange, begin, truncation, unread
from raycdc.source.tables.table_life import ParkedPhase

_log = logging.getLogger(__name__)

#: Events that change no document (MongoDB manual, "Change Events").
_HARMLESS = frozenset(
    {
        "createIndexes",
        "dropIndexes",
        "modify",
        "shardCollection",
        "refineCollectionShardKey",
        "dropDatabase",
        "invalidate",
    }
)


class CollectionRowNumbers:
    """The counter of row numbers over all collections, in the order in which rows are passed on.

    Numbers may be left out.
    """

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int = 1) -> int:
        """Return the first of `count` numbers that are greater than all earlier ones."""
        first = self._next
        self._next += count
        return first


class FollowedCollections:
    """The collections that one change stream follows; see the module's docstring."""

    def __init__(
        self,
        layouts: Mapping[TableId, CollectionLayout],
        *,
        captures: Callable[[TableId], bool],
        terms: ParkingSetup[CollectionLayout],
        widenings: Widenings | None = None,
    ) -> None:
        """Begin with the layouts of the followed collections."""
        self.numbers = CollectionRowNumbers()
        self._rules = terms.rules
        self._captures = captures
        self._widenings = widenings or Widenings(lambda _: None)
        self._writers = {table: self._writer_of(table, layout) for table, layout in layouts.items()}
        self._parked = ParkedTables(terms, followed=layouts, noun=COLLECTION)

    def __repr__(self) -> str:
        return f"FollowedCollections({len(self._writers)}, waiting={sorted(map(str, self._parked.waiting))})"

    def writer(self, table: TableId) -> RowWriter | None:
        """Return the writer of the collection's rows; None if it is not followed."""
        return self._writers.get(table)

    def is_new(self, table: TableId) -> bool:
        """Return True if a change of the collection is its first event."""
        return table not in self._writers and self._is_free(table)

    def first_seen(self, table: TableId, position: StatementPosition) -> ParkTableUpdate:
        """Park a captured collection that appeared, for a resnapshot."""
        return self._again(table, f"{table} appeared, and is read from its beginning", position)

    def unfit(self, table: TableId, why: str, position: StatementPosition) -> ParkTableUpdate:
        """Park a collection that cannot be followed, until a user acts."""
        self._writers.pop(table, None)
        return self._parked.park(table, why, position)

    def take_probed(self, position: StatementPosition) -> list[TableChange]:
        """Return the changes of collections whose probe holds at `position`, each once."""
        changes = []
        for table, probe in self._parked.take_probed(position):
            if not isinstance(probe, FollowableTable):
                changes.append(TableChange(probe))
                continue
            self._parked.follow(table)
            self._writers[table] = self._writer_of(table, probe.described)
            changes.append(begin(table, probe.described.version(), probe.snapshot, position, seq=self.numbers.take()))
        return changes

    def widen(self, table: TableId, data: bytes, *, at_once: bool) -> bool:
        """Examine the fields of the rows last made of `data`; return True if they must be made again.

        They must be made again if the collection gets more columns and `at_once` is set. Otherwise `widenings` returns
        the columns later, and the rest column has the fields until then.
        """
        # Targets that do not apply a resnapshot would keep their old rows.
        keeps = not self._rules.upsert or TruncateTableEvent.type in self._rules.left_out
        fixed = keeps or bool(self._parked.shared(table))
        layout = self._widenings.observe(table, self._writers[table], data, at_once=at_once, fixed=fixed)
        if layout is None:
            return False
        self._writers[table] = self._writer_of(table, layout)
        return True

    def widenings(self, position: StatementPosition) -> list[TableChange]:
        """Return the changes of collections that have more columns from `position` on, each once."""
        changes = []
        for table, before, layout in self._widenings.take_due(self._writers):
            if self._writers[table].layout != layout:
                self._writers[table] = self._writer_of(table, layout)
            events = added(table, before, layout)
            if events is None:
                _log.warning("%s is read again from its beginning, as a column of it becomes text", table)
                changes.append(begin(table, layout.version(), unread(ID), position, seq=self.numbers.take()))
                continue
            changes.append(TableChange(AlterTableUpdate(table, tuple(events), layout.document())))
        return changes

    def _writer_of(self, table: TableId, layout: CollectionLayout) -> RowWriter:
        return RowWriter(table, layout, watched=self._widenings.watches(table))

    def change(self, event: CollectionEvent, position: StatementPosition, *, whole: bool = True) -> list[TableChange]:
        """Return the effect of an event that changes no document.

        If it is not `whole`, because rows of its transaction were passed on, only parking is possible.
        """
        changes: list[TableChange] = []
        if event.kind in _HARMLESS:
            return changes
        if event.table is not None and self._captures(event.table):
            changes += self._own(event.table, event, position, whole=whole)
        moved_to = event.to
        if event.kind == "rename" and moved_to is not None and self._captures(moved_to):
            self._parked.invalidate(moved_to, position.ordinal)
            if self._is_free(moved_to):
                why = f"another collection took the name {moved_to}"
                changes.append(TableChange(self._again(moved_to, why, position)))
        return changes

    def _own(
        self, table: TableId, event: CollectionEvent, position: StatementPosition, *, whole: bool
    ) -> list[TableChange]:
        self._parked.invalidate(table, position.ordinal)
        writer = self._writers.get(table)
        if writer is None:
            created = event.kind == "create" and self.is_new(table)
            return [TableChange(self.first_seen(table, position))] if created else []
        other = bool(event.uuid and writer.layout.uuid and event.uuid != writer.layout.uuid)
        match event.kind:
            case "drop" | "rename" if other:
                # The event concerns an earlier collection of the same name.
                return []
            case "drop" if not whole:
                return [TableChange(self._again(table, f"{table} was dropped", position))]
            case "drop":
                return [self._dropped(table, writer.layout, position)]
            case "rename":
                why = f"{table} was renamed to {event.to}; the target keeps what it had"
                del self._writers[table]
                return [TableChange(self._parked.park(table, why, position, phase=ParkedPhase.ENDED))]
            case "create" if not other:
                return []
            case "create" | "reshardCollection" as kind:
                return [TableChange(self._again(table, f"{table} was created again ({kind})", position))]
            case kind:
                _log.warning("%s is parked: its stream has an event %s", table, kind)
                why = f"the change stream has an event {kind!r} of {table}, which raycdc does not know"
                return [TableChange(self.unfit(table, why, position))]

    def _dropped(self, table: TableId, layout: CollectionLayout, position: StatementPosition) -> TableChange:
        event = DropTableEvent(table)
        if why := self._parked.objection(table, layout.schema(), None, [event]):
            return TableChange(self.unfit(table, why, position))
        del self._writers[table]
        update = DropTableUpdate(table, (event,))
        if DropTableEvent.type in self._rules.left_out:
            return TableChange(update)
        return TableChange(update, (truncation(table, layout.schema(), position, seq=self.numbers.take()),))

    def _is_free(self, table: TableId) -> bool:
        """Return True if nothing is pending under the name, so that a new collection of this name is a different
        one.
        """
        return self._parked[table] in (None, ParkedKind.ENDED)

    def _again(self, table: TableId, why: str, position: StatementPosition) -> ParkTableUpdate:
        self._writers.pop(table, None)
        return self._parked.park(table, why, position, again=True)
