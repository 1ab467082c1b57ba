"""Finds features of a table with which its server would silently lose, change, merge or duplicate written rows.

`postgres_unsupported` and `mysql_unsupported` search a table for such features. The search is made when another
writer's table is adopted (``pipeline.on_existing = "merge"``), at each start, before each change of the table's
columns, after a refused statement, and at the end of each commit's transaction. A statement that adds such a feature
waits until the commit's transaction ends. A feature that could have affected the rows is therefore found by the last
search, and the rows are rolled back. Foreign keys without an action (CASCADE, SET NULL), unique indexes and CHECKs are
harmless, because they reject rows with an error. So are a trigger that acts on other tables only, and a type of which
the server stores each value unchanged or rejects it (`raycdc.sinks.jdbc.types`). A partitioned table of PostgreSQL is
searched with all its partitions.

The functions send queries through the session's `rows`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raycdc.errors import TargetExistsError, TargetModifiedError
from raycdc.model import TableId
from raycdc.model.column_names import Fold, mysql_fold
from raycdc.sinks.jdbc.requirements import Requirement
from raycdc.sinks.jdbc.types import mysql_keeps, postgres_keeps

Rows = Callable[..., list[tuple[Any, ...]]]

#: Separators in lists that the server makes of names.
_UNIT, _RECORD = "chr(31)", "chr(30)"


@dataclass(frozen=True, slots=True)
class TableRequirements:
    """The requirements for the columns of a target: their `types` by name, as the server spells them, and the `key`, by
    which rows are found (empty: a changelog).

    `adopts` is True if another writer's table is about to be adopted and has no rows of this pipeline yet. In that
    case, the table must have no further unique index that would merge rows, and its types are compared elsewhere.
    """

    types: Mapping[str, str]
    key: Sequence[str]
    adopts: bool = False


@dataclass(frozen=True, slots=True)
class UnsupportedFeature:
    """A feature by which a table does not meet `requirement`. `does` says what the table does because of it, and `way`
    is the solution; both are parts of a sentence.
    """

    requirement: Requirement
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


def postgres_unsupported(
    rows: Rows, relation: str, demands: TableRequirements
) -> tuple[str, UnsupportedFeature | None]:
    """Return the oid of `relation` (empty: there is no such table), and its first unsupported feature.

    The function is called in each commit, so it must be fast. It first reads flags in the catalog ("pg_class" in the
    manual). A flag is set if the table has, or once had, a feature that acts on rows. The features themselves are read
    only if a flag is set.
    """
    found = rows(
        "SELECT oid::text, relpersistence <> 'p' OR relrowsecurity OR relhasrules OR relhassubclass OR relhastriggers "
        "OR relkind = 'p', "
        f"(SELECT string_agg(concat_ws({_UNIT}, attname, format_type(atttypid, atttypmod), "
        "(attgenerated <> '' OR attidentity = 'a')::text, coalesce(l.collisdeterministic, true)::text), "
        f"{_RECORD}) FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation "
        "WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) FROM pg_class c WHERE oid = to_regclass($1)",
        relation,
    )
    if not found:
        return "", None
    ((identity, maybe, listed),) = found
    if maybe and (feature := _postgres_acting(rows, relation)) is not None:
        return identity, feature
    columns = [text.split(chr(31)) for text in (listed or "").split(chr(30)) if text]
    made = [name for name, _, computed, _ in columns if computed == "true"]
    if (feature := _generated(made, demands, str)) is not None:
        return identity, feature
    types = {name: kind for name, kind, _, _ in columns}
    if not demands.adopts and (feature := _retyped(types, demands, postgres_keeps, str)) is not None:
        return identity, feature
    loose = [name for name, _, _, exact in columns if exact != "true" and name in demands.key]
    if loose:
        return identity, _merging(loose[0], "a nondeterministic collation")
    return identity, _postgres_key(rows, relation, demands) if demands.key else None


def _postgres_acting(rows: Rows, relation: str) -> UnsupportedFeature | None:
    """Return the first feature of a table, or of one of its partitions, that acts on written rows."""
    ((unsafe, hidden, rule, child, trigger, cascade, names),) = rows(
        f"{_PARTS} SELECT (SELECT min(concat_ws({_UNIT}, relkind, CASE WHEN o.oid <> c.oid THEN o.oid::regclass END)) "
        "FROM part JOIN pg_class o USING (oid) "
        "WHERE relpersistence <> 'p' OR relkind NOT IN ('r', 'p')), row_security_active(c.oid), "
        "(SELECT min(rulename::text) FROM pg_rewrite WHERE ev_class = c.oid AND ev_enabled <> 'D'), "
        "(SELECT min(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = c.oid AND c.relkind = 'r'), "
        # The bits of tgtype: 1 means for each row, 2 means before it.
        f"(SELECT min({_TRIGGER}) FROM pg_trigger, part WHERE {_FIRES} AND tgtype & 3 = 3), "
        # The actions "no action" and "restrict" change no rows.
        "(SELECT min(conname::text) FROM pg_constraint, part WHERE conrelid = part.oid AND contype = 'f' "
        "AND NOT (confdeltype IN ('a', 'r') AND confupdtype IN ('a', 'r'))), "
        f"concat_ws({_UNIT}, n.nspname, c.relname) "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = to_regclass($1)",
        relation,
    )
    if unsafe:
        return _without_transactions(*str(unsafe).split(chr(31)))
    if hidden:
        return UnsupportedFeature(
            Requirement.VISIBLE_ROWS,
            "has row-level security, which hides rows from this account, so that they are neither updated nor deleted",
            "Give the account BYPASSRLS",
        )
    if rule:
        return UnsupportedFeature(
            Requirement.NO_RULES, f"has rewrite rules ({rule}), which may put rows elsewhere", "DROP RULE"
        )
    if child:
        return UnsupportedFeature(
            Requirement.OWN_ROWS,
            f"has a child by INHERITS ({child}), whose rows count as its own and whose keys may come a second time",
            "ALTER TABLE … NO INHERIT",
        )
    if trigger:
        return _trigger(trigger)
    if cascade:
        return _cascade(cascade)
    others = rows(
        f"{_PARTS} SELECT {_TRIGGER}, prosrc, nspname::text, relname::text FROM part, pg_trigger "
        "JOIN pg_proc p ON p.oid = tgfoid JOIN pg_class o ON o.oid = tgrelid "
        "JOIN pg_namespace n ON n.oid = relnamespace "
        f"WHERE {_FIRES} AND tgtype & 3 <> 3 ORDER BY 1",
        relation,
    )
    tables = {(str(schema), str(table)) for *_, schema, table in others} | {tuple(str(names).split(chr(31)))}
    writing = next(
        (name for name, text, *_ in others if any(_writes_to(str(text), *table) for table in sorted(tables))), None
    )
    if writing is None:
        return None
    does = f"has a trigger ({writing}) whose function writes to the table itself, and so changes rows of the source"
    return UnsupportedFeature(
        Requirement.NO_WRITING_TRIGGERS, does, "DROP TRIGGER, or let its function write to other tables only"
    )


#: The beginning of a query: `part` has the table and, if it is partitioned, its partitions, which hold its rows.
_PARTS = (
    "WITH RECURSIVE part (oid) AS (SELECT to_regclass($1)::oid UNION ALL SELECT inhrelid FROM part "
    "JOIN pg_class p ON p.oid = part.oid AND p.relkind = 'p' JOIN pg_inherits ON inhparent = p.oid)"
)

#: The name of a trigger in SQL, with that of its table if that is a partition.
_TRIGGER = "tgname || CASE WHEN tgrelid = to_regclass($1) THEN '' ELSE ' of ' || tgrelid::regclass END"

#: The SQL condition for triggers of the table or partition `part` that fire for statements of raycdc. It depends on
#: session_replication_role.
_FIRES = (
    "tgrelid = part.oid AND NOT tgisinternal AND tgenabled IN "
    "('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END)"
)


def _writes_to(body: str, schema: str, table: str) -> bool:
    """Return True if the text of a trigger's function has a statement that writes to the table, or builds a statement
    from the name of the trigger's table.
    """
    location = rf'(?:"?{re.escape(schema)}"?\s*\.\s*)?"?{re.escape(table)}"?(?![\w$"])'
    executes = re.search(r"\bexecute\b", body, re.IGNORECASE)
    if executes is None:
        body = re.sub(r"'(?:[^']|'')*'", "''", body)  # No statement is in a text.
    verbs = r"(?:insert\s+into|update|delete\s+from|truncate(?:\s+table)?|merge\s+into|copy)"
    if re.search(rf"\b{verbs}\s+(?:only\s+)?{location}", body, re.IGNORECASE):
        return True
    built = re.search(r"\btg_(?:table_name|relname|relid)\b", body[executes.end() :] if executes else "", re.IGNORECASE)
    return built is not None


def _postgres_key(rows: Rows, relation: str, demands: TableRequirements) -> UnsupportedFeature | None:
    indexes = rows(
        "SELECT i.indexrelid::regclass::text, "
        f"(SELECT string_agg(a.attname::text, {_UNIT}) FROM pg_attribute a "
        "WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])), "
        "i.indpred IS NULL AND i.indexprs IS NULL AND i.indisvalid AND i.indnkeyatts = i.indnatts AND i.indimmediate, "
        "EXISTS (SELECT FROM unnest(i.indcollation::oid[]) AS used (id) JOIN pg_collation c ON c.oid = used.id "
        "WHERE NOT c.collisdeterministic) FROM pg_index i WHERE i.indrelid = to_regclass($1) AND i.indisunique",
        relation,
    )
    found = False
    for name, columns, sees_all, loose in indexes:
        # ON CONFLICT uses every unique index on the key's columns, of any collation.
        is_key = set(str(columns or "").split(chr(31))) == set(demands.key)
        if loose and (is_key or demands.adopts):
            return _merging(f"of index {name}", "a nondeterministic collation")
        found |= is_key and sees_all
    return None if found else _no_key(demands.key)


def mysql_unsupported(
    rows: Rows, target: TableId, demands: TableRequirements, *, exact: Callable[[], Sequence[str]]
) -> tuple[str | None, UnsupportedFeature | None]:
    """Return the comment of a table (None: there is no such table), and its first unsupported feature.

    `exact` returns the collations that distinguish all texts, best first. The function is called in each commit, so it
    makes only three queries, and more only if there is such a feature. An account sees triggers only if it has the
    privilege TRIGGER, which ``raycdc check`` therefore requires. Triggers AFTER a row are harmless, because MySQL does
    not let them write to their own table.
    """
    location = (target.db, target.table)
    found = rows(
        "SELECT TABLE_COMMENT, ENGINE, "
        "(SELECT MIN(TRIGGER_NAME) FROM information_schema.TRIGGERS "
        "WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s AND ACTION_TIMING = 'BEFORE'), "
        "(SELECT MIN(CONSTRAINT_NAME) FROM information_schema.REFERENTIAL_CONSTRAINTS "
        "WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s "
        "AND NOT (DELETE_RULE IN ('RESTRICT', 'NO ACTION') AND UPDATE_RULE IN ('RESTRICT', 'NO ACTION'))) "
        "FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE = 'BASE TABLE'",
        *location * 3,
    )
    if not found:
        return None, None
    ((comment, engine, trigger, cascade),) = found
    if engine != "InnoDB" and rows("SELECT TRANSACTIONS FROM information_schema.ENGINES WHERE ENGINE = %s", engine) != [
        ("YES",)
    ]:
        return comment, UnsupportedFeature(
            Requirement.TRANSACTIONS,
            f"is a table of {engine}, which has no transactions: an epoch could be in it in part, or twice",
            "ALTER TABLE … ENGINE=InnoDB",
            keeps_rows=True,
        )
    if trigger is not None:
        return comment, _trigger(str(trigger))
    if cascade is not None:
        return comment, _cascade(str(cascade))
    return comment, _mysql_columns(rows, location, demands, exact) or _mysql_key(rows, location, demands)


def _mysql_columns(
    rows: Rows, location: tuple[str, str], demands: TableRequirements, exact: Callable[[], Sequence[str]]
) -> UnsupportedFeature | None:
    columns = rows(
        "SELECT COLUMN_NAME, COLUMN_TYPE, COLLATION_NAME, EXTRA, IS_NULLABLE, GENERATION_EXPRESSION "
        "FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        *location,
    )
    made = [str(name) for name, _, _, extra, _, text in columns if str(extra).endswith("GENERATED") and text]
    if (feature := _generated(made, demands, mysql_fold)) is not None:
        return feature
    types = {str(name): column_type(str(kind)) for name, kind, *_ in columns}
    if not demands.adopts and (feature := _retyped(types, demands, mysql_keeps, mysql_fold)) is not None:
        return feature
    ours = {mysql_fold(name) for name in demands.types}
    key = {mysql_fold(name) for name in demands.key}
    for name, kind, collation, extra, nullable, _ in columns:
        folded = mysql_fold(name)
        if folded in key and collation is not None and collation not in (known := exact()):
            return _merging(name, f"the collation {collation}", f" COLLATE {known[0]}")
        moment = str(kind).startswith("timestamp") and nullable == "NO" and folded not in key
        updated = "on update" in str(extra).lower() and (demands.adopts or folded not in key)
        if folded in ours and (updated or moment):
            does = f"has a column {name} that the server may set to the time of a change"
            return UnsupportedFeature(Requirement.TIMES, does, "Make it TIMESTAMP NULL without ON UPDATE")
    return None


def _mysql_key(rows: Rows, location: tuple[str, str], demands: TableRequirements) -> UnsupportedFeature | None:
    if not demands.key:
        return None
    indexes: dict[str, list[str]] = {}
    parts: set[str] = set()
    for index, column, part in rows(
        "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0",
        *location,
    ):
        if part is not None and demands.adopts:
            return _merging(
                f"{column} of index {index}", f"only its first {part} characters", requirement=Requirement.WHOLE_KEY
            )
        parts |= {index} if part is not None else set()
        indexes.setdefault(index, []).append(mysql_fold(str(column)))
    key = sorted(map(mysql_fold, demands.key))
    if demands.adopts and any(sorted(names) != key for names in indexes.values()):
        return UnsupportedFeature(
            Requirement.ONE_KEY,
            f"has other unique indexes than one on ({', '.join(demands.key)}), by which rows are merged",
            "Give it this one alone",
        )
    if not any(sorted(names) == key and index not in parts for index, names in indexes.items()):
        return _no_key(demands.key)
    return None


def column_type(kind: str) -> str:
    """Return a COLUMN_TYPE of ``information_schema`` as `mysql_type` spells it, without the display width that older
    servers add.
    """
    return kind if kind == "tinyint(1)" else _WIDTH.sub(r"\1", kind)


_WIDTH = re.compile(r"^((?:tiny|small|medium|big)?int)\(\d+\)")


def _trigger(name: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        Requirement.NO_TRIGGERS,
        f"has a trigger ({name}) before each row, which may change rows or leave them out",
        "DROP TRIGGER, or let it act AFTER the row",
    )


def _cascade(name: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        Requirement.NO_CASCADES,
        f"has a foreign key ({name}) with an action (CASCADE, SET NULL, SET DEFAULT): a change of another table "
        "deletes or changes rows that the source has",
        "Make the foreign key again with ON DELETE NO ACTION ON UPDATE NO ACTION, or drop it",
    )


def _without_transactions(kind: str, partition: str = "") -> UnsupportedFeature:
    """Return the feature of a table, or of its `partition`, of this `kind` (``pg_class.relkind``)."""
    if kind == "f":
        does = f"has a partition {partition} on another server, where an epoch could be in it in part, or twice"
        return UnsupportedFeature(Requirement.TRANSACTIONS, does, f"DETACH PARTITION {partition}")
    is_what = f"has an UNLOGGED partition {partition}" if partition else "is UNLOGGED"
    does = f"{is_what}: after a crash the server empties it"
    return UnsupportedFeature(Requirement.TRANSACTIONS, does, "ALTER TABLE … SET LOGGED")


def _generated(made: Collection[str], demands: TableRequirements, fold: Fold) -> UnsupportedFeature | None:
    names = {fold(column) for column in demands.types}
    column = next((name for name in made if fold(name) in names), None)
    if column is None:
        return None
    return UnsupportedFeature(
        Requirement.PLAIN_COLUMNS,
        f"has a column {column} that the server computes, so that the source's value cannot be in it",
        "Make it a plain column",
    )


def _retyped(
    types: Mapping[str, str], demands: TableRequirements, keeps: Callable[[str, str], bool], fold: Fold
) -> UnsupportedFeature | None:
    """Return the feature of a column that another client dropped, or gave a type that changes values in silence."""
    have = {fold(name): kind for name, kind in types.items()}
    for name, wanted in demands.types.items():
        kind = have.get(fold(name))
        if kind is None:
            return UnsupportedFeature(
                Requirement.COLUMNS, f"lacks the column {name}, which the pipeline made", f"Add it again as {wanted}"
            )
        if not keeps(kind, wanted):
            return UnsupportedFeature(
                Requirement.TYPES,
                f"has the column {name} as {kind}, and the pipeline made it {wanted}: the server may round, cut or pad "
                "values of the source, without an error",
                f"Make it {wanted} again, and take a new snapshot of the table",
            )
    return None


def _no_key(key: Sequence[str]) -> UnsupportedFeature:
    does = f"has no primary key or unique index on ({', '.join(key)}), by which rows are merged"
    return UnsupportedFeature(Requirement.UNIQUE_KEY, does, "Create one")


def _merging(
    column: str, by: str, way: str = "", *, requirement: Requirement = Requirement.EXACT_KEY
) -> UnsupportedFeature:
    does = f"compares key column {column} by {by}, which takes different keys of the source for one"
    return UnsupportedFeature(requirement, does, f"Compare the whole text exactly{way}")
