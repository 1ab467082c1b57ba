"""The effects of schema changes on targets, as one table: by kind of change, behaviour, and kind of target. Pure.

`raycdc docs changes` prints this table (`raycdc.cli.pages.listings`), and `tests/epochs/test_epoch_behaviors.py` checks
every cell with every sink. If a sink's behaviour is to change, change this table first.

The behaviours are the five of Flink CDC. The table has the effects that readers of a target see; each sink brings them
about in its own way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class SchemaChangeBehavior(StrEnum):
    """The values of ``pipeline.schema_change``."""

    FAIL = "fail"
    EVOLVE = "evolve"
    TRY_EVOLVE = "try_evolve"
    LENIENT = "lenient"
    IGNORE = "ignore"

    @property
    def in_place(self) -> bool:
        """Return True if columns of a target are renamed, moved and dropped like those of the source."""
        return self in (SchemaChangeBehavior.EVOLVE, SchemaChangeBehavior.TRY_EVOLVE)


class ChangeEffect(StrEnum):
    """The effect of a change on a target."""

    #: The target and its existing rows change as the source table and its rows did.
    FOLLOWS = "follows"
    #: The target stays unchanged. Later rows have null in a dropped column, and an added column is left out.
    STAYS = "stays"
    #: The target keeps all its columns, and gets the added ones.
    BOTH = "keeps both"
    #: The table is parked before a row with the new schema is written (under ``fail`` the run ends).
    REFUSED = "refused"


#: The kinds of targets, by ``sink.type`` and, for `jdbc`, the kind of server.
LAKES = ("delta", "iceberg")
DATABASES = ("postgres", "mysql", "mongodb")
FILES = ("parquet", "jsonl")
TOPICS = ("kafka",)
TARGETS = (*LAKES, *DATABASES, *FILES, *TOPICS)
#: The targets in which names that differ only in case mean the same column, for the target itself or for most of its
#: readers.
FOLDING = ("delta", "iceberg", "mysql")
#: The targets whose columns have positions. `evolve` gives them the positions that the columns have in the source.
PLACED = LAKES
#: The targets whose files or messages have only the columns of their own rows.
LOOSE = (*FILES, *TOPICS)

Effects = tuple[ChangeEffect, ChangeEffect, ChangeEffect]


@dataclass(frozen=True, slots=True)
class ChangeKind:
    """A kind of change, described for people: the change at the source, and the effect on existing rows of an upsert
    target, for `evolve` and `lenient`.

    `effects` has the effects under `evolve` (and ``try_evolve``), `lenient` and `ignore`; `where` has the targets with
    other effects.
    """

    statement: str
    effects: Effects
    evolve_rows: str = "the same as before"
    lenient_rows: str = "the same as before"
    where: Mapping[str, Effects] = field(default_factory=dict)


_FOLLOWS, _STAYS, _BOTH, _REFUSED = ChangeEffect.FOLLOWS, ChangeEffect.STAYS, ChangeEffect.BOTH, ChangeEffect.REFUSED
_ALWAYS: Effects = (_FOLLOWS, _FOLLOWS, _FOLLOWS)
_UNCHANGED: Effects = (_STAYS, _STAYS, _STAYS)
_NEVER: Effects = (_REFUSED, _REFUSED, _REFUSED)
#: The effect for formats without a message for a truncation. Formats with such a message report that the rows were
#: deleted.
_EMPTIED: Mapping[str, Effects] = {"kafka": _NEVER}
_LOOSE: Mapping[str, Effects] = dict.fromkeys(LOOSE, _ALWAYS)

CHANGES: Mapping[str, ChangeKind] = {
    "add_column": ChangeKind(
        "a column is added",
        (_FOLLOWS, _FOLLOWS, _STAYS),
        "the column's constant default; without one, null",
        "the same",
        _LOOSE,
    ),
    "drop_column": ChangeKind(
        "a column is dropped", (_FOLLOWS, _STAYS, _STAYS), "the remaining columns", "the same as before", _LOOSE
    ),
    "rename_column": ChangeKind(
        "a column is renamed",
        (_FOLLOWS, _BOTH, _STAYS),
        "the column's values, under the new name",
        "the column's values, under both names",
        _LOOSE,
    ),
    "rename_case": ChangeKind(
        "… to a name that differs in case only",
        (_FOLLOWS, _BOTH, _STAYS),
        "the column's values, under the new name",
        "the column's values, under both names; under the new name, if the target does not distinguish case",
        {**_LOOSE, **dict.fromkeys(FOLDING, _ALWAYS)},
    ),
    "wider_type": ChangeKind(
        "a column gets a wider type (`INT` to `BIGINT`)",
        (_FOLLOWS, _FOLLOWS, _REFUSED),
        "the same values in the new type",
        "the same",
        _LOOSE,
    ),
    "other_type": ChangeKind(
        "a column gets a new type that is not wider, and the table is not resnapshotted", _NEVER, where=_LOOSE
    ),
    "alter_column_position": ChangeKind(
        "a column moves",
        (_FOLLOWS, _STAYS, _STAYS),
        where={**_LOOSE, **dict.fromkeys(DATABASES, _UNCHANGED)},
    ),
    "alter_primary_key": ChangeKind("the primary key is changed", _NEVER),
    "alter_table_comment": ChangeKind("the table's comment is changed", _UNCHANGED),
    "rename_table": ChangeKind("the table is renamed", _NEVER),
    "truncate_table": ChangeKind(
        "the table is emptied", _ALWAYS, "the rows are deleted", "the rows are deleted", _EMPTIED
    ),
    "drop_table": ChangeKind(
        "the table is dropped, and created again with the same columns",
        _ALWAYS,
        "the rows are deleted",
        "the rows are deleted",
        _EMPTIED,
    ),
    "begins_again": ChangeKind(
        "the table is resnapshotted with different columns",
        (_FOLLOWS, _BOTH, _STAYS),
        "the rows are deleted; so are columns that the source no longer has",
        "the rows are deleted; columns that the source no longer has stay, with null",
        {**_LOOSE, **_EMPTIED},
    ),
}


def effect(target: str, behavior: SchemaChangeBehavior, change: str) -> ChangeEffect:
    """Return the effect of the change on a target of this kind (`TARGETS`)."""
    reported = CHANGES[change]
    evolve, lenient, ignore = reported.where.get(target, reported.effects)
    match behavior:
        case SchemaChangeBehavior.FAIL:
            return ChangeEffect.REFUSED
        case SchemaChangeBehavior.LENIENT:
            return lenient
        case SchemaChangeBehavior.IGNORE:
            return ignore
        case SchemaChangeBehavior.EVOLVE | SchemaChangeBehavior.TRY_EVOLVE:
            return evolve
