"""The database sink's interface to a server: sessions, each of which writes rows and the commit record in one
transaction.

`CommitTable` and `raycdc.sinks.jdbc.staging` are the same for all kinds of servers; `postgres` and `mysql` implement
the rest. `sink` uses the interface on the driver. `tasks` uses it where tasks run, to load rows into staging tables. A
session belongs to one thread.

`CommitTable` has the records of targets in ``raycdc_commit``, one row per pipeline and target. A record never replaces
a newer one. A driver that commits to a target, or alters it, locks the target's row in this table until the transaction
ends.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from raycdc.errors import FencedError, SinkError, SinkLockedError
from raycdc.model import Column, TableId
from raycdc.sinks.database_columns import DatabasePlan
from raycdc.sinks.jdbc.plugin import Address
from raycdc.sinks.jdbc.staging import SqlDialect, Staging, StatementExecutor
from raycdc.sinks.record import NO_COMMITS, TargetRecord
from raycdc.state.opaque import Positions


class CommitTable:
    """The table with the commit records of all pipelines on a server, used in one transaction. `table` is the name of
    ``raycdc_commit`` in SQL.
    """

    def __init__(self, statements: StatementExecutor, dialect: SqlDialect, table: str) -> None:
        self._statements = statements
        self._dialect = dialect
        self._table = table
        self._names = tuple(map(dialect.quote, TargetRecord.NAMES))

    def held(self, app_id: str, target: TableId, *, marker: Callable[[TableId], str | None]) -> TargetRecord | None:
        """Return the record of `target`. `marker` is the mark that the target bears; it shows if a recorded intent was
        carried out (`TargetRecord.known`).
        """
        return self._known(self._found(app_id, target), target, marker)

    def locked(self, app_id: str, target: TableId, *, marker: Callable[[TableId], str | None]) -> TargetRecord | None:
        """Return the record of `target` like `held`, and lock it until this transaction ends, even if there is no
        record yet.

        While the record is locked, no other session can commit to `target` or alter it. Raises `SinkError` if another
        session has the lock for a minute.
        """
        rows = self._found(app_id, target, " FOR UPDATE")
        if not rows:
            # A missing row cannot be locked, so it is inserted. A second session waits here for the first.
            quote, parameters = self._dialect.quote, self._dialect.parameters(2 + len(NO_COMMITS))
            columns = ", ".join(map(quote, ("app_id", "target", *TargetRecord.NAMES, "positions", "committed_at")))
            self._statements.run(
                f"INSERT INTO {self._table} ({columns}) VALUES ({', '.join(parameters)}, '{{}}', {self._dialect.now}) "
                f"{self._dialect.or_stays('app_id')}",
                app_id,
                str(target),
                *NO_COMMITS,
            )
            rows = self._found(app_id, target, " FOR UPDATE")
        return self._known(rows, target, marker)

    def is_free(self, app_id: str, target: TableId) -> bool:
        """Return True if no other session has the record of `target` locked. Waits for a lock up to the session's lock
        timeout. The transaction must be rolled back afterwards.
        """
        try:
            self._found(app_id, target, " FOR UPDATE")
        except SinkLockedError:
            return False
        return True

    def hold(self, app_id: str, target: TableId, held: TargetRecord, positions: Positions) -> None:
        """Write the `locked` record. Raises `FencedError` if the existing record is of a newer driver or of a later
        step.

        Does not end the transaction.
        """
        vector, dialect = held.vector, self._dialect
        given = [*held.row(), json.dumps(dict(positions)), app_id, str(target)]
        names = [*self._names, dialect.quote("positions")]
        *sets, app, name, generation, later, same, step = dialect.parameters(len(given) + 4)
        changed = ", ".join(f"{column} = {value}" for column, value in zip(names, sets, strict=True))
        written = self._statements.changed(
            f"UPDATE {self._table} SET {changed}, {dialect.quote('committed_at')} = {dialect.now} "
            f"WHERE {dialect.quote('app_id')} = {app} AND {dialect.quote('target')} = {name} "
            f"AND {dialect.quote('generation')} <= {generation} AND ({dialect.quote('epoch')} < {later} "
            f"OR ({dialect.quote('epoch')} = {same} AND {dialect.quote('step')} <= {step}))",
            *given,
            vector.generation,
            vector.epoch,
            vector.epoch,
            vector.step,
        )
        if written != 1:
            raise FencedError(f"The record of {target} was written by a newer driver.")

    def owners(self, target: TableId) -> dict[str, bool]:
        """Return the identities of all pipelines with a record of `target`, with True if the pipeline created the
        table.
        """
        quote, (location,) = self._dialect.quote, self._dialect.parameters(1)
        rows = self._statements.rows(
            f"SELECT {quote('app_id')}, {quote('created')} FROM {self._table} WHERE {quote('target')} = {location}",
            str(target),
        )
        return {str(app_id): bool(created) for app_id, created in rows}

    def forget_other_writers(self, app_id: str, target: TableId) -> None:
        """Delete the records of other pipelines, whose rows in `target` were removed."""
        quote, (name, app) = self._dialect.quote, self._dialect.parameters(2)
        self._statements.run(
            f"DELETE FROM {self._table} WHERE {quote('target')} = {name} AND {quote('app_id')} <> {app}",
            str(target),
            app_id,
        )

    def _found(self, app_id: str, target: TableId, lock: str = "") -> list[tuple[Any, ...]]:
        quote, (app, name) = self._dialect.quote, self._dialect.parameters(2)
        return self._statements.rows(
            f"SELECT {', '.join(self._names)} FROM {self._table} "
            f"WHERE {quote('app_id')} = {app} AND {quote('target')} = {name}{lock}",
            app_id,
            str(target),
        )

    @staticmethod
    def _known(
        rows: list[tuple[Any, ...]], target: TableId, marker: Callable[[TableId], str | None]
    ) -> TargetRecord | None:
        held = TargetRecord.from_row(rows[0]) if rows else None
        return held.known(marker(target)) if held is not None and held.intent is not None else held


#: How long to wait for another session's lock, because a replaced driver may be in its last commit.
LOCK_TIMEOUT_S = 60
#: The time in seconds after which the server ends an idle session of raycdc and frees its locks. A driver that was
#: suspended in a commit, or whose machine is gone, therefore does not block its successor.
IDLE_TIMEOUT_S = 30

_IMPLEMENTATIONS = {
    "postgresql": "raycdc.sinks.jdbc.postgres:PostgresDatabase",
    "mysql": "raycdc.sinks.jdbc.mysql:MySqlDatabase",
    "mariadb": "raycdc.sinks.jdbc.mysql:MySqlDatabase",
}


@dataclass(frozen=True, slots=True)
class Made:
    """The schema of a target: its columns, its key (empty: a changelog), and the other columns that are NOT NULL."""

    columns: Sequence[Column]
    key: Sequence[str]
    demands: Collection[str] = ()


#: The identity of a table on a server without identities of tables: it bears a mark of raycdc.
MARKED = "marked"


def is_same_table(held: str, identity: str) -> bool:
    """Return True if a target whose record has the identity `held` is the table with this `identity`
    (`JdbcTables.there`).

    A table that another pipeline had marked for a target of its own gets our mark with its first change of columns.
    """
    return not held or held == identity or (identity == MARKED and held.startswith(MARKED))


class JdbcTables(Protocol):
    """The target tables of a server: finds, creates and alters them."""

    def folded(self, app_id: str, target: TableId) -> str | None:
        """Return another target of the pipeline that is the same table, because names on this server ignore case; else
        None.
        """

    def there(self, target: TableId) -> str | None:
        """Return an identity of the table, which a later table with the same name does not have; None if there is no
        table. Empty if the server has no such identities.
        """

    def marker(self, target: TableId) -> str | None:
        """Return the mark that `create` or `alter` last left on the table, if DDL commits before the record; else
        None.
        """

    def is_empty(self, target: TableId) -> bool: ...

    def create(self, target: TableId, made: Made, marker: str, *, replace: bool) -> None:
        """Create the target. With `replace`, replace an existing table."""

    def require_adoptable(self, target: TableId) -> None:
        """Raise `TargetExistsError` if another writer's table would lose or change rows, independently of its
        columns.
        """

    def adopt(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        """Adopt another writer's table, and add the columns that it lacks. Raises `SinkError` if rows would be lost or
        changed.
        """

    def is_ours_alone(self, target: TableId, columns: Sequence[Column]) -> bool:
        """Return True if a row can be deleted and inserted again without a loss.

        This requires that the table has no column besides `columns`, and that no foreign key refers to it.
        """

    def untouched(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> str | None:
        """Return the table's identity like `there`, and check that other writers did not change the table. `columns`
        are the columns that the pipeline gave the target, and `key` is the key by which rows are found. Raises
        `TargetModifiedError` if such a change would lose, change or merge rows.
        """

    def alter(self, target: TableId, present: Made, plan: DatabasePlan, key: Sequence[str], marker: str) -> None:
        """Apply `plan` to the target. `present` is the target's schema before the change, and `key` is its key
        afterwards.
        """

    def has_null(self, target: TableId, column: str) -> bool:
        """Return True if a row of the target has NULL in the column."""

    def loosen(self, target: TableId, columns: Sequence[Column]) -> None:
        """Remove the NOT NULL constraints of `columns`, which are not in the key."""

    def empty(self, target: TableId) -> None: ...


class DatabaseSession(Protocol):
    """One transaction. Changes without a `commit` are undone.

    On MySQL, a DDL statement commits itself and all earlier changes. Methods of `tables` can be repeated, because they
    first check which changes the target already has.
    """

    #: True if a rollback undoes DDL, too.
    transactional_ddl: ClassVar[bool]

    @property
    def commits(self) -> CommitTable:
        """Return the table of commit records."""

    @property
    def tables(self) -> JdbcTables:
        """Return the target tables."""

    @property
    def staging(self) -> Staging:
        """Return the staging tables."""

    def lacking(self, databases: Sequence[str]) -> list[str] | None:
        """Return the statements that grant the missing permissions in the commit table's schema and the targets'
        `databases`; None if the permissions of the account are unknown.
        """

    def is_prepared(self) -> bool:
        """Return True if the commit table exists. While it does not exist, before the first run, only `tables.there`
        may be called.
        """

    def held(self, app_id: str, target: TableId, *, lock: bool = False) -> TargetRecord | None:
        """Return the record of `target`.

        With `lock`, no other session can commit to it or alter it before this session ends, even if there is no record
        yet. Raises `SinkError` if another session has the lock for a minute.
        """

    def holders(self, app_id: str, target: TableId, *, wholly: bool) -> str:
        """Return a sentence about who has the target locked (`raycdc.sinks.jdbc.lock_holders`). The session must do
        nothing else. The pipeline's record of `target` is checked first: if a session has the record locked, the
        sentence names that session, and not a session that only reads the table.
        """

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """Undo the changes since the last `commit`, and begin a new transaction."""


class JdbcDatabase(Protocol):
    """A server, with the methods that depend on its kind."""

    #: The name in ``sink.url``, for people.
    kind: ClassVar[str]
    #: True if column names that differ only in case are equal.
    ignores_case: ClassVar[bool]

    def __init__(self, address: Address) -> None: ...

    @property
    def address(self) -> Address:
        """Return the server's address."""

    def prepare(self) -> None:
        """Create the commit table and the schema of staging tables if they are missing."""

    def session(self) -> AbstractContextManager[DatabaseSession]: ...

    def check_columns(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        """Raise `SinkError` for columns that the server cannot have."""

    def retyped(self, old: Column, new: Column, *, key: bool) -> bool:
        """Return True if the change gives the column another type on this server. `key` is True if the column is in the
        key.
        """

    def load(
        self,
        name: str,
        columns: Sequence[Column],
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
        *,
        flags: Sequence[str],
    ) -> int:
        """Create the staging table `name` with all rows of `batches`, and return their number. After an error, no row
        is staged. The boolean columns `flags` come after the other columns. Raises `SinkError` for a value that the
        server cannot hold.
        """

    def unrepresentable(self, rows: pa.RecordBatch, columns: Sequence[Column], key: Sequence[str]) -> pa.Array:
        """Return the reasons why the server can never hold rows, as `raycdc.sinks.api.Sink.unrepresentable` does."""

    def drop_stages(self, prefix: str, *, up_to: str) -> None:
        """Drop staging tables whose names begin with `prefix` and are not greater than `up_to`. Ignores errors."""

    def close(self) -> None:
        """Close this process's idle connections."""


def open_database(address: Address) -> JdbcDatabase:
    """Return the implementation for the kind of server. The client library of the server is imported only when this
    function is called.
    """
    module, _, name = _IMPLEMENTATIONS[address.kind].partition(":")
    try:
        implementation = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as cause:
        raise SinkError(
            f"The jdbc sink needs the package {cause.name} for {address.kind}. Install raycdc[postgresql]."
        ) from cause
    database: JdbcDatabase = implementation(address)
    return database


def short(text: str) -> str:
    """Return eight hexadecimal digits that stand for `text` in a name of limited length."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
