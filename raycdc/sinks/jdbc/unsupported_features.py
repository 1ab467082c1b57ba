"""Finds features of a table with which its server would silently lose, change or duplicate written rows.

The check is made when another writer's table is adopted, and at the end of each commit's transaction. Adding such a
feature waits for that transaction, so a feature that could have affected the rows is found, and the rows are rolled
back. Triggers after a row (AFTER), foreign keys and unique indexes are harmless: they reject rows with an error, or act
on other tables.

`check_postgres` and `check_mysql` decide if another writer's table can be adopted, so that rows are found by the
source's key, and different rows are not silently merged. They are called with the session's `rows`, if
``pipeline.on_existing = "merge"``. Names and types of columns are compared elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from raycdc.errors import TargetExistsError, TargetModifiedError
from raycdc.model import Column, TableId
from raycdc.model.column_names import mysql_fold

Rows = Callable[..., list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class UnsupportedFeature:
    """A feature that is not supported: the table `does` something, and `way` is the solution.

    Both are parts of a sentence.
    """

    does: str
    way: str
    #: Rows that are written to such a table are not taken back when the transaction ends with an error.
    keeps_rows: bool = False

    def taken(self, target: TableId, where: str) -> TargetExistsError:
        """Return the error for another writer's table that cannot be adopted."""
        return TargetExistsError(f"{target} exists in {where} and {self.does}. {self.way}, or choose another target.")

    def modified_error(self, target: TableId, where: str) -> TargetModifiedError:
        """Return the error for a table that this pipeline wrote to before."""
        written = "" if self.keeps_rows else " Nothing was written."
        error = TargetModifiedError(f"{target} in {where} {self.does}.{written} {self.way}.")
        error.partly_written = self.keeps_rows
        return error


def inspect_postgres_table(
    rows: Rows, relation: str, columns: Collection[str]
) -> tuple[str, UnsupportedFeature | None]:
    """Return the oid of `relation` (empty: there is no such table), and its first unsupported feature for rows with
    `columns`.

    It is called in each commit. It therefore first reads flags in the catalog (the manual's "pg_class"), which say that
    a table has, or once had, such a feature, and reads the features themselves only if a flag is set.
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
    return identity, postgres_unsupported(rows, relation, columns) if maybe else None


def postgres_unsupported(rows: Rows, relation: str, columns: Collection[str]) -> UnsupportedFeature | None:
    """Return the first unsupported feature of a table, which `relation` names in SQL, for rows with these `columns`."""
    ((persistence, hidden, rule, child, trigger, made),) = rows(
        "SELECT relpersistence::text, row_security_active(oid), "
        "(SELECT min(rulename::text) FROM pg_rewrite WHERE ev_class = c.oid AND ev_enabled <> 'D'), "
        "(SELECT min(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = c.oid AND c.relkind = 'r'), "
        # The bits of tgtype: 1 means for each row, 2 means before it. Which triggers fire depends on
        # session_replication_role.
        "(SELECT min(tgname::text) FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal AND tgtype & 3 = 3 "
        "AND tgenabled IN ('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END)"
        "), (SELECT string_agg(attname::text, chr(31)) FROM pg_attribute WHERE attrelid = c.oid AND NOT attisdropped "
        "AND (attgenerated <> '' OR attidentity = 'a')) FROM pg_class c WHERE oid = to_regclass($1)",
        relation,
    )
    if persistence != "p":
        return UnsupportedFeature("is UNLOGGED: after a crash the server empties it", "ALTER TABLE … SET LOGGED")
    if hidden:
        return UnsupportedFeature(
            "has row-level security, which hides rows from this account, so that they are neither updated nor deleted",
            "Give the account BYPASSRLS",
        )
    if rule:
        return UnsupportedFeature(f"has rewrite rules ({rule}), which may put rows elsewhere", "DROP RULE")
    if child:
        return UnsupportedFeature(
            f"has a child by INHERITS ({child}), whose rows count as its own and whose keys may come a second time",
            "ALTER TABLE … NO INHERIT",
        )
    if trigger:
        return _trigger(trigger)
    return _generated((made or "").split(chr(31)), columns)


def inspect_mysql_table(
    rows: Rows, target: TableId, columns: Collection[str]
) -> tuple[str | None, UnsupportedFeature | None]:
    """Return the comment of a table (None: there is no such table), and its first unsupported feature for rows with
    `columns`.

    This takes one query, because it is called in each commit, and more queries only if there is a feature. An account
    only sees triggers if it has the privilege TRIGGER, which ``raycdc check`` therefore requires.
    """
    location = (target.db, target.table)
    found = rows(
        "SELECT TABLE_COMMENT, ENGINE, "
        "(SELECT MIN(TRIGGER_NAME) FROM information_schema.TRIGGERS "
        "WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s AND ACTION_TIMING = 'BEFORE'), "
        "(SELECT COUNT(*) FROM information_schema.COLUMNS "
        f"WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND {_COMPUTED}) "
        "FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE = 'BASE TABLE'",
        *location * 3,
    )
    if not found:
        return None, None
    ((comment, engine, trigger, computed),) = found
    if engine != "InnoDB" and rows("SELECT TRANSACTIONS FROM information_schema.ENGINES WHERE ENGINE = %s", engine) != [
        ("YES",)
    ]:
        return comment, UnsupportedFeature(
            f"is a table of {engine}, which has no transactions: an epoch could be in it in part, or twice",
            "ALTER TABLE … ENGINE=InnoDB",
            keeps_rows=True,
        )
    if trigger is not None:
        return comment, _trigger(str(trigger))
    if not computed:
        return comment, None
    made = rows(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS "
        f"WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND {_COMPUTED}",
        *location,
    )
    return comment, _generated([str(name) for (name,) in made], columns)


#: The condition on ``information_schema.COLUMNS`` for columns whose values the server computes.
_COMPUTED = "EXTRA LIKE '%%GENERATED' AND GENERATION_EXPRESSION <> ''"


def _trigger(name: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"has a trigger ({name}) before each row, which may change rows or leave them out",
        "DROP TRIGGER, or let it act AFTER the row",
    )


def _generated(made: Collection[str], columns: Collection[str]) -> UnsupportedFeature | None:
    names = {mysql_fold(column) for column in columns}
    column = next((name for name in made if mysql_fold(name) in names), None)
    if column is None:
        return None
    return UnsupportedFeature(
        f"has a column {column} that the server computes, so that the source's value cannot be in it",
        "Make it a plain column",
    )


def check_postgres(
    rows: Rows, target: TableId, columns: Sequence[Column], key: Sequence[str], *, relation: str, where: str
) -> None:
    """Raise `SinkError` for a table with an unsupported feature, or with other keys than the source.

    `relation` is the name of the table in SQL, `where` describes the server for people.
    """
    if (unsupported := postgres_unsupported(rows, relation, [column.name for column in columns])) is not None:
        raise unsupported.taken(target, where)
    if not key:
        return
    loose = rows(
        "SELECT a.attname::text FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation "
        "WHERE a.attrelid = to_regclass($1) AND NOT c.collisdeterministic AND NOT a.attisdropped",
        relation,
    )
    if column := next((name for (name,) in loose if name in key), None):
        raise _merging(target, where, column, "a nondeterministic collation")
    indexes = rows(
        "SELECT i.indexrelid::regclass::text FROM pg_index i, unnest(i.indcollation::oid[]) AS used (collation_id) "
        "JOIN pg_collation c ON c.oid = used.collation_id "
        "WHERE i.indrelid = to_regclass($1) AND i.indisunique AND NOT c.collisdeterministic",
        relation,
    )
    if indexes:
        raise _merging(target, where, f"of index {indexes[0][0]}", "a nondeterministic collation")
    if tuple(sorted(key)) not in _postgres_keys(rows, relation):
        raise TargetExistsError(
            f"{target} exists in {where} without a primary key or unique index on ({', '.join(key)}), by which rows "
            "are merged. Create one, or choose another target."
        )


def _postgres_keys(rows: Rows, relation: str) -> set[tuple[str, ...]]:
    """Return the columns, sorted, of each unique index that covers all rows and is not deferrable."""
    found = rows(
        "SELECT array_to_string(array_agg(a.attname::text ORDER BY a.attname::text), chr(31)) FROM pg_index i "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[]) "
        "WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL "
        "AND i.indisvalid AND i.indnkeyatts = i.indnatts AND i.indimmediate GROUP BY i.indexrelid",
        relation,
    )
    return {tuple(sorted(names.split(chr(31)))) for (names,) in found}


def check_mysql(
    rows: Rows, target: TableId, columns: Sequence[Column], key: Sequence[str], *, exact: Sequence[str], where: str
) -> None:
    """Raise `SinkError` for a table with an unsupported feature, or with other keys than the source.

    Values that the server itself sets, and a key that treats different values as equal, are refused, too. `exact` are
    the collations that distinguish all texts, best first.
    """
    _, unsupported = inspect_mysql_table(rows, target, [column.name for column in columns])
    if unsupported is not None:
        raise unsupported.taken(target, where)
    found = rows(
        "SELECT COLUMN_NAME, DATA_TYPE, COLLATION_NAME, EXTRA, IS_NULLABLE FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        target.db,
        target.table,
    )
    ours = {mysql_fold(column.name) for column in columns}
    names = {mysql_fold(name) for name in key}
    for name, kind, collation, extra, nullable in found:
        if mysql_fold(name) in names and collation is not None and collation not in exact:
            raise _merging(target, where, name, f"the collation {collation}", f" COLLATE {exact[0]}")
        moment = kind == "timestamp" and nullable == "NO" and mysql_fold(name) not in names
        if mysql_fold(name) in ours and ("on update" in extra.lower() or moment):
            does = f"has a column {name} that the server may set to the time of a change"
            raise UnsupportedFeature(does, "Make it TIMESTAMP NULL without ON UPDATE").taken(target, where)
    _check_mysql_keys(rows, target, key, where)


def _check_mysql_keys(rows: Rows, target: TableId, key: Sequence[str], where: str) -> None:
    indexes: dict[str, list[str]] = {}
    for index, column, cut in rows(
        "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0",
        target.db,
        target.table,
    ):
        if key and cut is not None:
            raise _merging(target, where, f"{column} of index {index}", f"only its first {cut} characters")
        indexes.setdefault(index, []).append(mysql_fold(str(column)))
    if key and [sorted(names) for names in indexes.values()] != [sorted(mysql_fold(name) for name in key)]:
        raise TargetExistsError(
            f"{target} exists in {where} with other unique indexes than one on ({', '.join(key)}), by which rows are "
            "merged. Give it this one alone, or choose another target."
        )


def _merging(target: TableId, where: str, column: str, by: str, way: str = "") -> TargetExistsError:
    does = f"compares key column {column} by {by}, which takes different keys of the source for one"
    return UnsupportedFeature(does, f"Compare the whole text exactly{way}").taken(target, where)
