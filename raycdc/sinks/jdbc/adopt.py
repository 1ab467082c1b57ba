"""Whether somebody's table may take a pipeline's rows by its keys: nothing of it may merge them in silence.

Called by `postgres` and `mysql` with their session's `rows`, where ``pipeline.on_existing = "merge"`` meets a
table that the pipeline did not make. Names and types of columns are theirs to compare; `obstacles` has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from raycdc.errors import TargetTakenError
from raycdc.model import Column, TableId
from raycdc.sinks.jdbc.obstacles import Obstacle, Rows, mysql_look, postgres_obstacle


def check_postgres(
    rows: Rows, target: TableId, columns: Sequence[Column], key: Sequence[str], *, relation: str, where: str
) -> None:
    """`SinkError` for a table with an obstacle, or whose keys are not the source's.

    `relation` is the table as SQL writes it, `where` the server for people.
    """
    if (obstacle := postgres_obstacle(rows, relation, [column.name for column in columns])) is not None:
        raise obstacle.taken(target, where)
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
        raise TargetTakenError(
            f"{target} exists in {where} without a primary key or unique index on ({', '.join(key)}), by which rows "
            "are merged. Create one, or choose another target."
        )


def _postgres_keys(rows: Rows, relation: str) -> set[tuple[str, ...]]:
    """The columns, sorted, of each unique index that sees all rows at once."""
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
    """`SinkError` for a table with an obstacle, one that sets values by itself, and one whose keys merge others.

    `exact` are the collations that tell apart all texts, the best that the server has first.
    """
    _, obstacle = mysql_look(rows, target, [column.name for column in columns])
    if obstacle is not None:
        raise obstacle.taken(target, where)
    found = rows(
        "SELECT COLUMN_NAME, DATA_TYPE, COLLATION_NAME, EXTRA, IS_NULLABLE FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        target.db,
        target.table,
    )
    ours = {column.name.casefold() for column in columns}
    names = {name.casefold() for name in key}
    for name, kind, collation, extra, nullable in found:
        if name.casefold() in names and collation is not None and collation not in exact:
            raise _merging(target, where, name, f"the collation {collation}", f" COLLATE {exact[0]}")
        moment = kind == "timestamp" and nullable == "NO" and name.casefold() not in names
        if name.casefold() in ours and ("on update" in extra.lower() or moment):
            does = f"has a column {name} that the server may set to the time of a change"
            raise Obstacle(does, "Make it TIMESTAMP NULL without ON UPDATE").taken(target, where)
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
        indexes.setdefault(index, []).append(str(column).casefold())
    if key and [sorted(names) for names in indexes.values()] != [sorted(name.casefold() for name in key)]:
        raise TargetTakenError(
            f"{target} exists in {where} with other unique indexes than one on ({', '.join(key)}), by which rows are "
            "merged. Give it this one alone, or choose another target."
        )


def _merging(target: TableId, where: str, column: str, by: str, way: str = "") -> TargetTakenError:
    does = f"compares key column {column} by {by}, which takes different keys of the source for one"
    return Obstacle(does, f"Compare the whole text exactly{way}").taken(target, where)
