"""What of a source table's changes its targets cannot follow, judged where the log is read. Pure, picklable.

There a table can be parked at the statement, and the others go on (`raycdc.source.parking`); behind the manifest the
same would end the run at every start. So names are looked for in the text of expressions, which takes in more than an
analyzer would (a function's name, too): a table that is parked needlessly is seen, and can be read anew.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from raycdc.model import TableId, TableSchema
from raycdc.model.mask import Masks
from raycdc.model.routes import Router
from raycdc.model.transform import Constant, Expression, Renamed, Star, Transform, Transforms, unquoted
from raycdc.schema.events import (
    AddColumnEvent,
    DropColumnEvent,
    DropTableEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
)

_TEXTS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_NAME = re.compile(r"[^\W\d]\w*|`(?:[^`]|``)+`")


@dataclass(frozen=True, slots=True)
class TargetRules:
    """See the module's docstring. `upsert`: targets hold a row per key. Changes that are `left_out` reach no target,
    nor does any change of columns where they are `ignored`.
    """

    transforms: Transforms = field(default_factory=Transforms)
    router: Router = field(default_factory=Router)
    upsert: bool = False
    left_out: frozenset[str] = frozenset()
    ignored: bool = False
    masks: Masks = field(default_factory=Masks)

    @property
    def gets_added(self) -> bool:
        """Whether targets get the columns that are added."""
        return not self.ignored and AddColumnEvent.type not in self.left_out

    def speaks_of(self, table: TableId, column: str) -> bool:
        """Whether a transform or a mask of the table names the column, so that what is in it must stay there."""
        transform = self.transforms.of(table)
        return self.masks.of(table, column) is not None or (
            transform is not None and column.casefold() in named(transform)
        )

    def shared(self, table: TableId, tables: Collection[TableId]) -> str:
        """Why `table`, one of `tables`, cannot begin again or be emptied by itself; empty where it can."""
        if not self.upsert:
            return ""
        for target in self.router.targets(table):
            others = sorted(str(one) for one in tables if one != table and target in self.router.targets(one))
            if others:
                more = f" and {len(others) - 3} more" if len(others) > 3 else ""
                return (
                    f"its rows in {target} cannot be told from those of {', '.join(others[:3])}{more}, which are "
                    "merged there: take a new snapshot of all of them with another pipeline.state, or leave it out "
                    "(source.exclude)"
                )
        return ""

    def objection(
        self,
        table: TableId,
        before: TableSchema,
        after: TableSchema | None,
        events: Sequence[SchemaChangeEvent],
        tables: Collection[TableId],
    ) -> str:
        """Why its targets cannot follow `events`, which make `after` of `before`; empty where they can."""
        emptying = [event.type for event in events if isinstance(event, TruncateTableEvent | DropTableEvent)]
        if (left := [kind for kind in emptying if kind not in self.left_out]) and (why := self.shared(table, tables)):
            return f"{left[0]} of {table}: {why}"
        transform = self.transforms.of(table)
        if transform is None or after is None:
            return ""
        here = {column.name.casefold() for column in after.columns}
        gone = [c.name for c in before.columns if c.name.casefold() in named(transform) - here]
        lost = [*gone, *filter(None, (_lost(event, transform) for event in events))]
        if not lost:
            return ""
        return (
            f"the table's {self.transforms.place(table)} names {lost[0]!r}, and would mean something else from here "
            f"on. Its columns were ({_shown(before)}) and are ({_shown(after)}). Change the transform or the table, "
            f"then read it anew with: raycdc tables resnapshot CONFIG {table}"
        )


def _lost(event: SchemaChangeEvent, transform: Transform) -> str:
    """The column of which the transform speaks, and that `event` takes from it or puts in its place."""
    match event:
        case DropColumnEvent(_, name):
            return name if name.casefold() in named(transform) else ""
        case RenameColumnEvent(_, name, new_name):
            gone = name if name.casefold() in named(transform) else ""
            return gone or (new_name if new_name.casefold() in _taken(transform) else "")
        case AddColumnEvent(_, column, _):
            return column.name if column.name.casefold() in _taken(transform) else ""
        case _:
            return ""


def named(transform: Transform) -> set[str]:
    """All names in the transform, in lower case: of columns, of what columns become, and of functions."""
    keys = [lookup.key for lookup in transform.lookups]
    found = {name.casefold() for name in (*transform.primary_keys, *transform.layout.columns, *keys)}
    for item in transform.items:
        match item:
            case Star(left_out, _):
                found |= {name.casefold() for name in left_out}
            case Renamed(column, _, _):
                found.add(column.casefold())
            case Expression(sql, _):
                found |= set(_names(sql))
    return found | set(_names(transform.filter))


def _taken(transform: Transform) -> set[str]:
    """Names that the transform gives to columns beside those that ``*`` brings, in lower case; a table's column of such
    a name would be in the result twice.
    """
    stars = [item for item in transform.items if isinstance(item, Star)]
    if not stars:
        return set()
    found = {transform.deleted_column.casefold()} if transform.soft else set()
    found |= {column.name.casefold() for lookup in transform.lookups for column in lookup.columns}
    for item in transform.items:
        match item:
            case Renamed(_, name, _) | Constant(_, name, _):
                found.add(name.casefold())
            case Expression(sql, _):
                found |= set(_names(sql)[-1:])
    return found - {name.casefold() for name in stars[0].left_out}


def _names(sql: str) -> list[str]:
    return [unquoted(name).casefold() for name in _NAME.findall(_TEXTS.sub(" ", sql))]


def _shown(schema: TableSchema) -> str:
    return ", ".join(column.name for column in schema.columns)
