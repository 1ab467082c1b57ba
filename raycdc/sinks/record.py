"""The commit record of a target as a row in the commit table of a database, and its format. Pure.

*Format*: ``columns`` is a JSON list of the target's columns. While a schema change waits for the rows of its epoch, it
is ``{"version": 2, "columns": […], "before": …, "intent": …}`` instead. With an ``identity``, the version is 3; with
``demands`` it is 4; if the intent copies columns, it is 5. A newer version is refused.

| field | content | written | removed with |
|---|---|---|---|
| before | the schema before the changes of an epoch whose rows are not written yet | with the change | its rows |
| intent | the schema that a running statement will leave, its mark, and the new columns that get others' values \
(MongoDB, whose documents are changed one after the other) | before the statement | it |
| identity | the identity of the table, if the database has one | with the target's first record | – |
| demands | the columns that the pipeline made NOT NULL there | with the statement | the first NULL |
| digest | that of the epoch's manifest (`CommitVector.digest`); older records and readers have none | always | – |

An epoch may be dropped after its schema changes were made. A later epoch then has the same changes, perhaps followed by
further changes. They are planned from the schema in `Before`, and changes that were already made are skipped (`again`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from raycdc.core.typed_codec import LEFT_OUT, Json, JsonObject, stored
from raycdc.errors import ChangeRefusedError, SinkError
from raycdc.model import Column, TableId
from raycdc.sinks.api import CommitVector
from raycdc.sinks.database_columns import DatabasePlan

_VERSION = 5
_WITHOUT_COPIES = 4
_WITHOUT_CONSTRAINTS = 3
_WITHOUT_IDENTITY = 2


@dataclass(frozen=True, slots=True)
class Before(JsonObject):
    """The target's columns and key before a change. `now` has the present name of each column; None if the column was
    dropped.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    now: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Intent(JsonObject):
    """The record that a target gets once its table bears `marker`. A statement that commits implicitly leaves this mark
    on the table.
    """

    marker: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    before: Before
    demands: tuple[str, ...] = field(default=(), metadata=stored("demands", left_out=True))
    #: New columns, each with the column whose values it gets.
    copies: tuple[tuple[str, str], ...] = field(default=(), metadata=LEFT_OUT)


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """A target's row in the commit table.

    `created` is True if this pipeline created or emptied the target, so that the keys of snapshot rows cannot be in it
    yet. `columns` are the source's columns that the target has; empty if the pipeline never changed the target.
    """

    vector: CommitVector
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    created: bool
    before: Before | None = None
    intent: Intent | None = None
    identity: str = ""
    demands: tuple[str, ...] = ()

    #: The columns of the commit table, in the order of `row`.
    NAMES: ClassVar[tuple[str, ...]] = ("epoch", "step", "generation", "created", "columns", "key")

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> TargetRecord | None:
        """Return the record in a row of the commit table; None if the row is `NO_COMMITS`."""
        epoch, step, generation, created, columns, key = row
        if (epoch, step, generation) == (0, 0, 0):
            return None
        data = json.loads(columns)
        if isinstance(data, list):
            data = {"columns": data}
        elif not _WITHOUT_IDENTITY <= (version := data.get("version", 0)) <= _VERSION:
            raise SinkError(
                f"raycdc_commit has a record of version {version}, and this raycdc reads up to {_VERSION}. Use the "
                "newer one that wrote it."
            )
        before, intent = data.get("before"), data.get("intent")
        return cls(
            CommitVector(epoch, step, generation, data.get("digest", 0)),
            _from_json(data["columns"]),
            tuple(json.loads(key)),
            bool(created),
            Before.from_json(before) if before else None,
            Intent.from_json(intent) if intent else None,
            data.get("identity", ""),
            tuple(data.get("demands", ())),
        )

    def row(self) -> tuple[Any, ...]:
        """Return the values of the columns `NAMES`."""
        vector = self.vector
        data: Any = _to_json(self.columns)
        demands = self.demands or (self.intent is not None and self.intent.demands)
        copies = self.intent is not None and self.intent.copies
        if self.before or self.intent or self.identity or demands or vector.digest:
            version = _WITHOUT_COPIES if demands else _WITHOUT_CONSTRAINTS if self.identity else _WITHOUT_IDENTITY
            version = _VERSION if copies else version
            data = {"version": version, "columns": data}
            data |= {"digest": vector.digest} if vector.digest else {}
            data |= {"identity": self.identity} if self.identity else {}
            data |= {"demands": self.demands} if self.demands else {}
            data |= {"before": self.before.to_json()} if self.before else {}
            data |= {"intent": self.intent.to_json()} if self.intent else {}
        return vector.epoch, vector.step, vector.generation, self.created, json.dumps(data), json.dumps(self.key)

    def known(self, marker: str | None) -> TargetRecord:
        """Return the record that holds for a target that bears `marker`, without an intent. If `marker` is the mark of
        the intent, its statement was carried out, and the intended record is returned. Otherwise the statement was not
        carried out and never will be, and this record is returned.
        """
        if self.intent is None or self.intent.marker != marker:
            return replace(self, intent=None)
        intent = self.intent
        after = replace(self, columns=intent.columns, key=intent.key, before=intent.before, intent=None)
        return replace(after, demands=intent.demands)

    def shape(self) -> Before:
        """Return the columns and key on which the changes of the next epoch with rows are planned."""
        return self.before or Before(self.columns, self.key, tuple(column.name for column in self.columns))

    def written(self, vector: CommitVector) -> TargetRecord:
        """Return the record after rows up to `vector` are written, when `before` and `intent` no longer apply."""
        return TargetRecord(vector, self.columns, self.key, self.created, identity=self.identity, demands=self.demands)


#: An initial row of a target, which can be locked before the first commit.
NO_COMMITS = (0, 0, 0, False, "[]", "[]")


def renamed(before: Before, planned: DatabasePlan) -> Before:
    """Return `before` with the present names of its columns after the `planned` changes."""
    now = {p.origin: p.column.name for p in planned.columns if p.origin is not None}
    return replace(before, now=tuple(now.get(column.name) for column in before.columns))


def again(target: TableId, held: TargetRecord, planned: DatabasePlan) -> DatabasePlan:
    """Return the rest of a plan that starts from ``held.before``, for a target that already has ``held.columns``."""
    if held.before is None:
        return planned
    now = dict(zip((column.name for column in held.before.columns), held.before.now, strict=True))
    added = {column.name: column for column in held.columns if column.name not in now.values()}
    columns = []
    for p in planned.columns:
        if p.origin is not None and now[p.origin] is None:
            raise ChangeRefusedError(
                f"{target}: column {p.origin} went with a change of an epoch that was dropped, and stays in the change "
                "that came instead. Take a new snapshot of the table."
            )
        there = added.get(p.column.name)
        same = there is not None and there.type == p.column.type
        origin = now[p.origin] if p.origin is not None else p.column.name if same else None
        columns.append(replace(p, origin=origin))
    return replace(planned, columns=tuple(columns))


def _to_json(columns: Sequence[Column]) -> Sequence[Mapping[str, Json]]:
    return [column.to_json() for column in columns]


def _from_json(data: Any) -> tuple[Column, ...]:
    return tuple(map(Column.from_json, data))
