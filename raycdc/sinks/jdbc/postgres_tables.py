"""Creates, adopts and alters target tables of a PostgreSQL server, in the transaction of their record."""

from __future__ import annotations

from collections.abc import Sequence

from raycdc.clients.postgres import quote
from raycdc.errors import TargetExistsError
from raycdc.model import Column, TableId, TypeKind
from raycdc.sinks.database_columns import DatabasePlan
from raycdc.sinks.jdbc.database import Made
from raycdc.sinks.jdbc.plugin import Address
from raycdc.sinks.jdbc.staging import StatementExecutor
from raycdc.sinks.jdbc.types import postgres_type
from raycdc.sinks.jdbc.unsupported_features import TableRequirements, postgres_unsupported

#: How long a change of a table's schema waits for other sessions that use the table.
CHANGE_LOCK_TIMEOUT_S = 2


class PostgresTables:
    """The target tables of a PostgreSQL server; see `database.JdbcTables`."""

    def __init__(self, statements: StatementExecutor, address: Address) -> None:
        self._run, self._rows = statements.run, statements.rows
        self._address = address

    def there(self, target: TableId) -> str | None:
        rows = self._rows(
            "SELECT c.oid::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE nspname = $1 AND relname = $2 AND relkind IN ('r', 'p')",
            target.db,
            target.table,
        )
        return str(rows[0][0]) if rows else None

    def folded(self, app_id: str, target: TableId) -> str | None:
        return None

    def marker(self, target: TableId) -> str | None:
        return None  # The table and its record are created in one transaction, so no mark is needed.

    def is_empty(self, target: TableId) -> bool:
        return not self._rows(f"SELECT 1 FROM {quote(target.db, target.table)} LIMIT 1")

    def _change(self, statement: str) -> None:
        """Change a table's schema. While the statement waits for sessions that read the table, new readers of the table
        must wait, too. The statement therefore waits only for a short time, and is retried.
        """
        self._run(f"SET LOCAL lock_timeout = '{CHANGE_LOCK_TIMEOUT_S}s'")
        self._run(statement)
        self._run("SET LOCAL lock_timeout TO DEFAULT")

    def create(self, target: TableId, made: Made, marker: str, *, replace: bool) -> None:
        self._run(f"CREATE SCHEMA IF NOT EXISTS {quote(target.db)}")
        if replace:
            self._change(f"DROP TABLE {quote(target.db, target.table)}")
        parts = [
            f"{quote(c.name)} {postgres_type(c.type)}{' NOT NULL' if c.name in made.demands else ''}"
            for c in made.columns
        ]
        if made.key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quote, made.key))})")
        self._run(f"CREATE TABLE {quote(target.db, target.table)} ({', '.join(parts)})")

    def require_adoptable(self, target: TableId) -> None:
        demands = TableRequirements({}, (), adopts=True)
        _, unsupported = postgres_unsupported(self._rows, quote(target.db, target.table), demands)
        if unsupported is not None:
            raise unsupported.taken(target, str(self._address))

    def adopt(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        types = dict(
            self._rows(
                "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a "
                "WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped",
                quote(target.db, target.table),
            )
        )
        for column in columns:
            wanted, have = postgres_type(column.type), types.get(column.name)
            if have is None:
                self._change(f"ALTER TABLE {quote(target.db, target.table)} ADD COLUMN {quote(column.name)} {wanted}")
            elif have != wanted:
                raise TargetExistsError(
                    f"{target}: column {column.name} is {have} in the table that exists in {self._address}, and its "
                    f"values need {wanted}. Change its type, or choose another target."
                )
        demands = TableRequirements({column.name: postgres_type(column.type) for column in columns}, key, adopts=True)
        _, unsupported = postgres_unsupported(self._rows, quote(target.db, target.table), demands)
        if unsupported is not None:
            raise unsupported.taken(target, str(self._address))

    def is_ours_alone(self, target: TableId, columns: Sequence[Column]) -> bool:
        relation = quote(target.db, target.table)
        if self._rows("SELECT 1 FROM pg_constraint WHERE confrelid = to_regclass($1) LIMIT 1", relation):
            return False
        rows = self._rows(
            "SELECT attname::text FROM pg_attribute "
            "WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
            relation,
        )
        return {name for (name,) in rows} <= {column.name for column in columns}

    def untouched(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> str | None:
        demands = TableRequirements({column.name: postgres_type(column.type) for column in columns}, key)
        identity, unsupported = postgres_unsupported(self._rows, quote(target.db, target.table), demands)
        if unsupported is not None:
            raise unsupported.modified_error(target, str(self._address))
        return identity or None

    def alter(self, target: TableId, present: Made, plan: DatabasePlan, key: Sequence[str], marker: str) -> None:
        table = quote(target.db, target.table)
        if plan.emptied:
            self.empty(target)
        before = {column.name: column for column in present.columns}
        columns = {p.origin: p.column for p in plan.columns if p.origin is not None}
        if plan.rekeyed:
            self._drop_key(target)
        for name in before.keys() - columns.keys():
            self._change(f"ALTER TABLE {table} DROP COLUMN {quote(name)}")
        # Columns are renamed in two steps, because two columns may exchange their names.
        moved = [(old, column.name) for old, column in columns.items() if old != column.name]
        for number, (old, _) in enumerate(moved):
            self._change(f"ALTER TABLE {table} RENAME COLUMN {quote(old)} TO {quote(f'raycdc_rename_{number}')}")
        for number, (_, new) in enumerate(moved):
            self._change(f"ALTER TABLE {table} RENAME COLUMN {quote(f'raycdc_rename_{number}')} TO {quote(new)}")
        for old, column in columns.items():
            old_type, new_type = postgres_type(before[old].type), postgres_type(column.type)
            if old_type != new_type:
                using = f"NULL::{new_type}" if plan.emptied else f"{quote(column.name)}::{new_type}"
                self._change(f"ALTER TABLE {table} ALTER COLUMN {quote(column.name)} TYPE {new_type} USING {using}")
        for column in (p.column for p in plan.columns if p.origin is None):
            self._change(f"ALTER TABLE {table} ADD COLUMN {quote(column.name)} {postgres_type(column.type)}")
        if plan.rekeyed:
            self._change(f"ALTER TABLE {table} ADD PRIMARY KEY ({', '.join(map(quote, key))})")
        if plan.copied:
            types = {p.column.name: postgres_type(p.column.type) for p in plan.columns}
            values = ", ".join(f"{quote(name)} = {quote(old)}::{types[name]}" for name, old in plan.copied)
            self._run(f"UPDATE {table} SET {values}")
        for column in plan.filled:
            default, value = str(column.default), f"CAST($1::text AS {postgres_type(column.type)})"
            if column.type.kind is TypeKind.BINARY:
                default, value = default.encode().hex(), "decode($1::text, 'hex')"
            self._run(f"UPDATE {table} SET {quote(column.name)} = {value}", default)
        demanded = {p.column.name: p.origin is not None and p.origin in present.demands for p in plan.columns}
        for name, was in demanded.items():
            # Key columns are always NOT NULL, and the server refuses to change that.
            if was != (name in plan.demands) and name not in key:
                self._change(f"ALTER TABLE {table} ALTER COLUMN {quote(name)} {'DROP' if was else 'SET'} NOT NULL")

    def has_null(self, target: TableId, column: str) -> bool:
        return bool(self._rows(f"SELECT 1 FROM {quote(target.db, target.table)} WHERE {quote(column)} IS NULL LIMIT 1"))

    def loosen(self, target: TableId, columns: Sequence[Column]) -> None:
        parts = ", ".join(f"ALTER COLUMN {quote(column.name)} DROP NOT NULL" for column in columns)
        self._change(f"ALTER TABLE {quote(target.db, target.table)} {parts}")

    def _drop_key(self, target: TableId) -> None:
        """Drop the primary key, and allow NULL in its columns."""
        table = quote(target.db, target.table)
        rows = self._rows(
            "SELECT c.conname::text, a.attname::text FROM pg_constraint c JOIN pg_attribute a "
            "ON a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey) "
            "WHERE c.conrelid = to_regclass($1) AND c.contype = 'p'",
            table,
        )
        for name in {name for name, _ in rows}:
            self._change(f"ALTER TABLE {table} DROP CONSTRAINT {quote(name)}")
        for _, column in rows:
            self._change(f"ALTER TABLE {table} ALTER COLUMN {quote(column)} DROP NOT NULL")

    def empty(self, target: TableId) -> None:
        self._run(f"DELETE FROM {quote(target.db, target.table)}")
