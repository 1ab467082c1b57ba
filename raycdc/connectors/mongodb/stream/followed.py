"""Which collections a change stream is followed for, and what its events about collections themselves do to them.

| event | of a collection that is followed | of a captured one that is not |
|---|---|---|
| a change of a document | rows | it is parked, to begin again |
| drop | gone: its target is emptied | what was seen of it is out of date |
| rename, away | ended: its target keeps what it has | out of date |
| rename, to it | it begins again | it begins again |
| create | nothing, or it begins again where it is another one | it is parked, to begin again |
| reshardCollection | it begins again | out of date |
| what changes no document | nothing | nothing |
| anything unknown | it is parked | nothing |

*Parked, to begin again* is how every collection that appears is begun: it is looked at, and when the stream has passed
that look its chunks are read (`raycdc.source.parking`). A collection that the user paused or left out stays as it is.
Pure but for the looks. One thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raycdc.connectors.mongodb.catalog import uuid_of
from raycdc.connectors.mongodb.layout import Layout, OnConflict
from raycdc.connectors.mongodb.stream.drift import Widening, added, kinds_of, widened
from raycdc.connectors.mongodb.stream.events import RowWriter
from raycdc.connectors.mongodb.stream.new_beginnings import begins_again, emptied
from raycdc.model import TableId
from raycdc.schema.events import DropTableEvent, TruncateTableEvent
from raycdc.source.parking import TableLooks
from raycdc.source.snapshot.hand_off import LogRows
from raycdc.source.snapshot.log_unit import SchemaUpdate, TableAltered, TableDropped, TableParked
from raycdc.source.table_life import Parked, Parking, Phase
from raycdc.transform.followed import TargetRules

_log = logging.getLogger(__name__)

#: Times a collection may widen within so many seconds.
_WIDENED_MAX, _LATELY_S = 10, 60.0

#: Events that leave every document as it is (MongoDB manual, "Change Events").
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


@dataclass(frozen=True, slots=True)
class Look:
    """How a collection looks, or why it cannot be followed; `ordinal` is a cluster time not before that."""

    layout: Layout | None
    ordinal: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """What an event about a collection comes to: `rows` follow the `update`, which begins an epoch."""

    update: SchemaUpdate
    rows: tuple[LogRows, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the stream something is said: position as state has it, ordinal, and the time in Unix milliseconds."""

    position: dict[str, Any]
    ordinal: int
    ts_ms: int


class FollowedCollections:
    """See the module's docstring."""

    def __init__(
        self,
        layouts: Mapping[TableId, Layout],
        *,
        parked: Mapping[TableId, Parked],
        captures: Callable[[TableId], bool],
        look: Callable[[TableId], Look | None],
        left_out: Collection[str] = (),
        widens: Callable[[TableId], Widening | None] = lambda _: None,
        rules: TargetRules | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`layouts` are of the collections that are followed, `parked` as the stream's state has it.

        Changes that are `left_out` empty no target. `widens` says how a collection gets more columns, None: not.
        `rules` say what targets can follow: a collection that cannot be emptied by itself waits for somebody to decide.
        """
        self._rules = rules or TargetRules()
        self._left_out = frozenset(left_out)
        self._captures = captures
        self._widens = widens
        self._writers = {table: self._writer_of(table, layout) for table, layout in layouts.items()}
        #: Collections that have more columns from the next place between two transactions on, with those they had.
        self._wider: dict[TableId, tuple[Layout, Layout]] = {}
        self._clock = clock
        #: When collections widened lately.
        self._widened_s: dict[TableId, deque[float]] = {}
        self._told: set[TableId] = set()
        waiting = [table for table, state in parked.items() if state.again]
        self._waiting = set(waiting)
        #: Collections of which targets have, or may have, rows.
        self._known = {*layouts, *(table for table, state in parked.items() if state.announced)}
        self._left = {t for t, state in parked.items() if not state.again and state.phase is not Phase.ENDED}
        self._looks: TableLooks[Look] = TableLooks(look, waiting)

    def __repr__(self) -> str:
        return f"FollowedCollections({len(self._writers)}, waiting={sorted(map(str, self._waiting))})"

    def writer(self, table: TableId) -> RowWriter | None:
        """What makes rows of the collection's changes; None where it has none."""
        return self._writers.get(table)

    def is_new(self, table: TableId) -> bool:
        """Whether a change of the collection is the first that is heard of it."""
        return table not in self._writers and table not in self._waiting and table not in self._left

    def first_seen(self, table: TableId, place: Place) -> TableParked:
        """A captured collection appeared: it is parked, to begin again."""
        return self._again(table, f"{table} appeared, and is read from its beginning", place)

    def unfit(self, table: TableId, why: str, place: Place) -> TableParked:
        """The collection cannot be followed: it is parked until somebody decides."""
        self._left.add(table)
        return self._parked(table, why, place)

    def begun_again(self, place: Place, *, seq: int) -> list[Change]:
        """Collections whose look holds at `place`, each once."""
        changes = []
        for table, look in self._looks.ready(place.ordinal):
            self._waiting.discard(table)
            if look is None:
                why = f"there is no collection {table} any more; the target keeps what it had"
                changes.append(Change(self._parked(table, why, place, phase=Phase.ENDED)))
                continue
            if look.layout is None:
                changes.append(Change(self.unfit(table, look.refused, place)))
                continue
            self._writers[table] = self._writer_of(table, look.layout)
            self._known.add(table)
            rows = emptied(table, look.layout, seq=seq, ts_ms=place.ts_ms, ordinal=place.ordinal)
            changes.append(Change(begins_again(table, look.layout), (rows,)))
            seq += 1
        return changes

    def widen(self, table: TableId, data: bytes, *, at_once: bool) -> bool:
        """Look at what the rows last made of `data` showed; True where they are to be made again.

        That is where they have more columns `at_once`; else `widenings` says so later, and the rest has it until then.
        So it is, too, for a collection that widened often lately: each time is the end of an epoch, and chunks that are
        being read are read again.
        """
        writer = self._writers[table]
        met = writer.met(data)
        how = self._widens(table)
        if not met or how is None:
            return False
        begun, layout = self._wider.get(table, (writer.layout, writer.layout))
        wider = widened(table, layout, kinds_of(met), self._allowed(table, how))
        if (wider.left or writer.met_all) and table not in self._told:
            self._told.add(table)
            shown = ", ".join(map(repr, wider.left[:5])) or "and more"
            _log.warning("%s: fields, or values of another type, stay in the column _rest: %.300s", table, shown)
        if wider.layout != layout:
            self._wider[table] = begun, wider.layout
            at_once = at_once and self._may_widen(table)
            if at_once:
                self._writers[table] = self._writer_of(table, wider.layout)
        return at_once

    def widenings(self, place: Place, *, seq: int) -> list[Change]:
        """Collections that have more columns from `place` on, each once."""
        changes = []
        for table, (before, layout) in list(self._wider.items()):
            writer = self._writers.get(table)
            if writer is not None and writer.layout != layout:
                if not self._may_widen(table):
                    continue
                self._writers[table] = self._writer_of(table, layout)
            del self._wider[table]
            if writer is None:
                continue
            self._widened_s.setdefault(table, deque(maxlen=_WIDENED_MAX)).append(self._clock())
            events = added(table, before, layout)
            if events is None:
                _log.warning("%s is read again from its beginning, as a column of it becomes text", table)
                rows = emptied(table, layout, seq=seq, ts_ms=place.ts_ms, ordinal=place.ordinal)
                changes.append(Change(begins_again(table, layout), (rows,)))
                seq += 1
                continue
            changes.append(Change(TableAltered(table, tuple(events), layout.document())))
        return changes

    def _may_widen(self, table: TableId) -> bool:
        lately = self._widened_s.get(table)
        return lately is None or len(lately) < _WIDENED_MAX or self._clock() - lately[0] >= _LATELY_S

    def _allowed(self, table: TableId, how: Widening) -> Widening:
        """With columns beside others where the targets could not follow a new beginning: they would keep their rows."""
        rules = how.rules
        barred = not rules.upsert or TruncateTableEvent.type in self._left_out or rules.shared(table, self._known)
        return replace(how, on_conflict=OnConflict.UNION) if barred and how.on_conflict is OnConflict.TEXT else how

    def _writer_of(self, table: TableId, layout: Layout) -> RowWriter:
        return RowWriter(table, layout, watched=self._widens(table) is not None)

    def change(self, event: Mapping[str, Any], place: Place, *, seq: int, whole: bool = True) -> list[Change]:
        """What an event that is no change of a document comes to.

        Where it is not `whole`, because rows of its transaction were passed on, nothing but parking can be said.
        """
        kind = event["operationType"]
        table = _table(event.get("ns"))
        changes: list[Change] = []
        if kind in _HARMLESS:
            return changes
        if table is not None and self._captures(table):
            changes += self._own(kind, table, event, place, seq=seq, whole=whole)
        moved_to = _table(event.get("to"))
        if kind == "rename" and moved_to is not None and self._captures(moved_to):
            self._touched(moved_to, place)
            if moved_to not in self._waiting and moved_to not in self._left:
                why = f"another collection took the name {moved_to}"
                changes.append(Change(self._again(moved_to, why, place)))
        return changes

    def _own(
        self, kind: str, table: TableId, event: Mapping[str, Any], place: Place, *, seq: int, whole: bool
    ) -> list[Change]:
        self._touched(table, place)
        writer = self._writers.get(table)
        if writer is None:
            created = kind == "create" and self.is_new(table)
            return [Change(self.first_seen(table, place))] if created else []
        uuid = uuid_of({"info": {"uuid": event.get("collectionUUID")}})
        other = bool(uuid and writer.layout.uuid and uuid != writer.layout.uuid)
        match kind:
            case "drop" | "rename" if other:
                # Of a collection that had the name before the one that is followed.
                return []
            case "drop" if not whole:
                return [Change(self._again(table, f"{table} was dropped", place))]
            case "drop" if why := self._rules.objection(
                table, writer.layout.schema(), None, [DropTableEvent(table)], self._known
            ):
                return [Change(self.unfit(table, why, place))]
            case "drop":
                del self._writers[table]
                self._known.discard(table)
                update = TableDropped(table, (DropTableEvent(table),))
                if DropTableEvent.type in self._left_out:
                    return [Change(update)]
                rows = emptied(table, writer.layout, seq=seq, ts_ms=place.ts_ms, ordinal=place.ordinal)
                return [Change(update, (rows,))]
            case "rename":
                why = f"{table} was renamed to {_table(event.get('to'))}; the target keeps what it had"
                return [Change(self._parked(table, why, place, phase=Phase.ENDED))]
            case "create" if not other:
                return []
            case "create" | "reshardCollection":
                return [Change(self._again(table, f"{table} was made anew ({kind})", place))]
            case _:
                _log.warning("%s is parked: its stream has an event %s", table, kind)
                why = f"the change stream has an event {kind!r} of {table}, which raycdc does not know"
                return [Change(self.unfit(table, why, place))]

    def _touched(self, table: TableId, place: Place) -> None:
        self._looks.touched(table, place.ordinal)

    def _again(self, table: TableId, why: str, place: Place) -> TableParked:
        if table in self._known and (shared := self._rules.shared(table, self._known)):
            return self.unfit(table, f"{why}\nIt cannot begin again by itself: {shared}.", place)
        self._waiting.add(table)
        self._looks.want(table)
        return self._parked(table, why, place, again=True)

    def _parked(
        self, table: TableId, why: str, place: Place, *, again: bool = False, phase: Phase = Phase.PARKED
    ) -> TableParked:
        self._writers.pop(table, None)
        return TableParked(table, Parking(why, place.position, place.ts_ms, again=again, phase=phase))


def _table(namespace: Mapping[str, Any] | None) -> TableId | None:
    if namespace is None or "coll" not in namespace:
        return None
    return TableId(namespace["db"], namespace["coll"])
