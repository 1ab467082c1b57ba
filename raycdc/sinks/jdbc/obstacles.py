"""Things of a table by which its server would lose, change or double the rows that are written to it, in silence.

Looked at when somebody's table is taken over, and in the transaction of each commit behind its statements: whoever adds
such a thing waits for that transaction, so one that could have acted on the rows is seen, and the rows are undone.
Harmless are triggers behind a row (AFTER), foreign keys and unique indexes: they refuse rows aloud, or act elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from raycdc.errors import TargetTakenError, TargetTouchedError
from raycdc.model import TableId

Rows = Callable[..., list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The table `does` what it must not, and `way` ends it; both as parts of a sentence."""

    does: str
    way: str

    def taken(self, target: TableId, where: str) -> TargetTakenError:
        """The error about somebody's table that cannot be taken over."""
        return TargetTakenError(f"{target} exists in {where} and {self.does}. {self.way}, or choose another target.")

    def touched(self, target: TableId, where: str) -> TargetTouchedError:
        """The error about a table that was written to before."""
        return TargetTouchedError(f"{target} in {where} {self.does}. Nothing was written. {self.way}.")


def postgres_look(rows: Rows, relation: str, columns: Collection[str]) -> tuple[str, Obstacle | None]:
    """Which table `relation` is (its oid; empty: it is gone), and its first obstacle for rows with these `columns`.

    Asked in each commit, so it looks at what the catalog notes of a table (its manual, "pg_class": that it has, or once
    had, such a thing), and at the things themselves only where there may be some.
    """
    found = rows(
        "SELECT oid::text, relpersistence <> 'p' OR relrowsecurity OR relhasrules OR relhassubclass OR relhastriggers "
        "OR EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND NOT attisdropped "
        "AND (attgenerated <> '' OR attidentity = 'a')) FROM pg_class c WHERE oid = to_regclass($1)",
        relation,
    )
    if not found:
        return "", None
    ((identity, maybe),) = found
    return identity, postgres_obstacle(rows, relation, columns) if maybe else None


def postgres_obstacle(rows: Rows, relation: str, columns: Collection[str]) -> Obstacle | None:
    """The first obstacle of a table, which `relation` names in SQL, for rows with these `columns`."""
    ((persistence, hidden, rule, child, trigger, made),) = rows(
        "SELECT relpersistence::text, row_security_active(oid), "
        "(SELECT min(rulename::text) FROM pg_rewrite WHERE ev_class = c.oid AND ev_enabled <> 'D'), "
        "(SELECT min(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = c.oid AND c.relkind = 'r'), "
        # Bits: 1 for each row, 2 before it. A session that replicates fires other triggers than one of people.
        "(SELECT min(tgname::text) FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal AND tgtype & 3 = 3 "
        "AND tgenabled IN ('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END)"
        "), (SELECT string_agg(attname::text, chr(31)) FROM pg_attribute WHERE attrelid = c.oid AND NOT attisdropped "
        "AND (attgenerated <> '' OR attidentity = 'a')) FROM pg_class c WHERE oid = to_regclass($1)",
        relation,
    )
    if persistence != "p":
        return Obstacle("is UNLOGGED: after a crash the server empties it", "ALTER TABLE … SET LOGGED")
    if hidden:
        return Obstacle(
            "has row-level security, which hides rows from this account, so that they are neither updated nor deleted",
            "Give the account BYPASSRLS",
        )
    if rule:
        return Obstacle(f"has rewrite rules ({rule}), which may put rows elsewhere", "DROP RULE")
    if child:
        return Obstacle(
            f"has a child by INHERITS ({child}), whose rows count as its own and whose keys may come a second time",
            "ALTER TABLE … NO INHERIT",
        )
    if trigger:
        return _trigger(trigger)
    return _generated((made or "").split(chr(31)), columns)


def mysql_look(rows: Rows, target: TableId, columns: Collection[str]) -> tuple[str | None, Obstacle | None]:
    """The comment of a table (None: it is gone), and its first obstacle for rows with these `columns`. One question, as
    it is asked in each commit; more only where there is something.

    An account sees triggers with the privilege TRIGGER only, which ``raycdc check`` therefore asks for.
    """
    place = (target.db, target.table)
    found = rows(
        "SELECT TABLE_COMMENT, ENGINE, "
        "(SELECT MIN(TRIGGER_NAME) FROM information_schema.TRIGGERS "
        "WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s AND ACTION_TIMING = 'BEFORE'), "
        "(SELECT COUNT(*) FROM information_schema.COLUMNS "
        f"WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND {_COMPUTED}) "
        "FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE = 'BASE TABLE'",
        *place * 3,
    )
    if not found:
        return None, None
    ((comment, engine, trigger, computed),) = found
    if engine != "InnoDB" and rows("SELECT TRANSACTIONS FROM information_schema.ENGINES WHERE ENGINE = %s", engine) != [
        ("YES",)
    ]:
        return comment, Obstacle(
            f"is a table of {engine}, which has no transactions: an epoch could be in it in part, or twice",
            "ALTER TABLE … ENGINE=InnoDB",
        )
    if trigger is not None:
        return comment, _trigger(str(trigger))
    if not computed:
        return comment, None
    made = rows(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS "
        f"WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND {_COMPUTED}",
        *place,
    )
    return comment, _generated([str(name) for (name,) in made], columns)


#: Of ``information_schema.COLUMNS``: columns that the server computes.
_COMPUTED = "EXTRA LIKE '%%GENERATED' AND GENERATION_EXPRESSION <> ''"


def _trigger(name: str) -> Obstacle:
    return Obstacle(
        f"has a trigger ({name}) before each row, which may change rows or leave them out",
        "DROP TRIGGER, or let it act AFTER the row",
    )


def _generated(made: Collection[str], columns: Collection[str]) -> Obstacle | None:
    names = {column.casefold() for column in columns}
    column = next((name for name in made if name.casefold() in names), None)
    if column is None:
        return None
    return Obstacle(
        f"has a column {column} that the server computes, so that the source's value cannot be in it",
        "Make it a plain column",
    )
