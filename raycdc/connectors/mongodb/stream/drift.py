"""Widens inferred collections while they are followed: adds columns for new fields, and for values that fit no column.

The fields of a change are examined before its rows are passed on; the decoder reports each name and type that went to
`REST` once, so that no Python code runs for each row. The treatment:

| the field or value | and its treatment |
|---|---|
| a field without a column | a column of the type that the values at hand have, at the end |
| … whose name differs from a column's only in case, is invalid or reserved, or exceeds the limit | nothing: it stays \
in the rest |
| a value that its field's column cannot hold, by `OnConflict` ``union`` | an additional column of JSON for such \
values |
| … ``text`` | the column becomes JSON, and the collection is resnapshotted: rows already written cannot get another \
type |
| … ``rest`` | nothing: it stays in the rest |
| a field with only nulls so far | nothing |

A collection is not widened if added columns would not reach the targets, nor if a transform or a mask applies to the
rest column, nor in `Spelling.BSON`. A masked column gets no additional column, because a different mask would apply to
it. Pure.

`Widenings` decides which collections are widened, and when. Each widening ends the epoch, and unfinished chunks are
read again. A collection that was widened often lately therefore waits before the next widening. Until then, its new
fields are in the rest column.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from raycdc.connectors.mongodb.bson.documents import RAW
from raycdc.connectors.mongodb.layout import CollectionLayout, OnConflict, parse_type
from raycdc.connectors.mongodb.server.catalog import common_type, is_fit, kind_of
from raycdc.connectors.mongodb.stream.events import RowWriter
from raycdc.model import Column, TableId, TableSchema
from raycdc.model.column_names import spark_fold
from raycdc.model.evolution.events import AddColumnEvent
from raycdc.transform.target_rules import TargetRules

#: The suffix of an additional column's name.
OTHER = "__other"
#: The most bytes of a column name in every target: PostgreSQL's limit.
NAME_BYTES_MAX = 63


@dataclass(frozen=True, slots=True)
class Widening:
    """The limits of widening: at most `fields_max` columns, within the `rules` of the targets."""

    fields_max: int
    on_conflict: OnConflict
    rules: TargetRules = field(default_factory=TargetRules)


@dataclass(frozen=True, slots=True)
class Wider:
    """A widened layout. `left` are the fields that stay in the rest column."""

    layout: CollectionLayout
    left: tuple[str, ...]


def kinds_of(elements: Iterable[bytes]) -> dict[str, set[str]]:
    """Return the types of the values in `elements` of BSON by their fields, as `catalog.kind_of` names them."""
    kinds: dict[str, set[str]] = {}
    for element in elements:
        size = (len(element) + 5).to_bytes(4, "little")
        try:
            for name, value in RawBSONDocument(size + element + b"\0", RAW).items():
                kinds.setdefault(name, set()).add(kind_of(value))
        except BSONError:
            continue  # An element that cannot be decoded has no type. It is in the rest column, or was refused there.
    return kinds


def widened(table: TableId, layout: CollectionLayout, met: Mapping[str, set[str]], how: Widening) -> Wider:
    """Return `layout` with columns for the fields in `met`, which has their types; `layout` itself if nothing
    changes.
    """
    found = layout
    left = []
    for name, kinds in met.items():
        wider = _with(table, found, name, kinds, how)
        if wider is None:
            left.append(name)
        else:
            found = wider
    return Wider(found, tuple(left))


def added(table: TableId, before: CollectionLayout, after: CollectionLayout) -> tuple[AddColumnEvent, ...] | None:
    """Return the changes from `before` to `after`; None if a column's type differs, because written rows cannot change
    it.
    """
    known = {column.name: column for column in before.columns}
    if any(column != known.get(column.name, column) for column in after.columns):
        return None
    return tuple(AddColumnEvent(table, column) for column in after.columns if column.name not in known)


def _with(
    table: TableId, layout: CollectionLayout, name: str, kinds: set[str], how: Widening
) -> CollectionLayout | None:
    """Return the layout with the column that one field needs; None if no column is added or changed."""
    columns = {column.name: column for column in layout.fields}
    if name not in columns:
        column = Column(name, parse_type(common_type(kinds, key=False)))
        return _with_column(table, layout, column, how)
    match how.on_conflict:
        case OnConflict.UNION if name not in dict(layout.others):
            other = name + OTHER
            shown = how.rules.masks.of(table, name) == how.rules.masks.of(table, other)
            wider_layout = _with_column(table, layout, Column(other, parse_type("json")), how) if shown else None
            return None if wider_layout is None else replace(wider_layout, others=(*layout.others, (name, other)))
        case OnConflict.TEXT if columns[name].type != parse_type("json"):
            retyped = (replace(c, type=parse_type("json")) if c.name == name else c for c in layout.columns)
            return replace(layout, columns=tuple(retyped))
        case _:
            return None


def _with_column(table: TableId, layout: CollectionLayout, column: Column, how: Widening) -> CollectionLayout | None:
    taken = {spark_fold(known.name) for known in layout.columns}
    full = len(layout.columns) - int(layout.rest) >= how.fields_max
    unfit = not is_fit(column.name) or len(column.name.encode()) > NAME_BYTES_MAX
    if full or unfit or spark_fold(column.name) in taken:
        return None
    schema = TableSchema(layout.columns, (layout.columns[0].name,))
    if how.rules.objection(table, schema, schema, [AddColumnEvent(table, column)], ()):
        return None
    return replace(layout, columns=(*layout.columns, column))


_log = logging.getLogger(__name__)

#: The number of widenings of one collection that are allowed within this number of seconds.
_WIDENED_MAX, _LATELY_S = 10, 60.0


class Widenings:
    """The widenings of all collections; see the module's docstring.

    `how` returns how a collection gets more columns, or None if it does not.
    """

    def __init__(
        self, how: Callable[[TableId], Widening | None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._how = how
        self._clock = clock
        #: The layouts before and after of collections that get more columns at the next position between two
        #: transactions.
        self._wider: dict[TableId, tuple[CollectionLayout, CollectionLayout]] = {}
        #: The times of each collection's last widenings.
        self._widened_s: dict[TableId, deque[float]] = {}
        self._reported: set[TableId] = set()

    def watches(self, table: TableId) -> bool:
        """Return True if the collection may be widened, so that its documents' fields are examined."""
        return self._how(table) is not None

    def observe(
        self, table: TableId, writer: RowWriter, data: bytes, *, at_once: bool, fixed: bool
    ) -> CollectionLayout | None:
        """Examine the fields of the rows last made of `data`; return the layout for making the rows again, or None.

        The layout is returned if it has more columns and `at_once` is set; otherwise the widening is due later. The
        columns of a `fixed` collection keep their types, because its targets could not follow a resnapshot.
        """
        met = writer.met(data)
        how = self._how(table)
        if not met or how is None:
            return None
        if fixed and how.on_conflict is OnConflict.TEXT:
            how = replace(how, on_conflict=OnConflict.UNION)
        begun, layout = self._wider.get(table, (writer.layout, writer.layout))
        wider = widened(table, layout, kinds_of(met), how)
        if (wider.left or writer.met_all) and table not in self._reported:
            self._reported.add(table)
            shown = ", ".join(map(repr, wider.left[:5])) or "and more"
            _log.warning("%s: fields, or values of another type, stay in the column _rest: %.300s", table, shown)
        if wider.layout == layout:
            return None
        self._wider[table] = begun, wider.layout
        return wider.layout if at_once and self._may_widen(table) else None

    def take_due(
        self, writers: Mapping[TableId, RowWriter]
    ) -> Iterator[tuple[TableId, CollectionLayout, CollectionLayout]]:
        """Yield the collections that are widened from here on, once, with the old and the new layout.

        A collection that is not in `writers` is not followed any more, and is left out.
        """
        for table, (before, layout) in list(self._wider.items()):
            writer = writers.get(table)
            if writer is not None and writer.layout != layout and not self._may_widen(table):
                continue
            del self._wider[table]
            if writer is not None:
                self._widened_s.setdefault(table, deque(maxlen=_WIDENED_MAX)).append(self._clock())
                yield table, before, layout

    def _may_widen(self, table: TableId) -> bool:
        lately = self._widened_s.get(table)
        return lately is None or len(lately) < _WIDENED_MAX or self._clock() - lately[0] >= _LATELY_S
