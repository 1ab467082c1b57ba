"""The database sink's interface to a server: one transaction with the commit record and the rows in it.

The parts that all servers have in common are written once (`commits`, `staging`), the others by `postgres` and `mysql`.
Called by `sink` on the driver, and by `tasks`, which loads rows into staging tables from wherever tasks run. A session
belongs to one thread.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import pyarrow as pa

from raycdc.errors import SinkError
from raycdc.model import Column, TableId
from raycdc.sinks.columns import Plan
from raycdc.sinks.jdbc.commits import Commits
from raycdc.sinks.jdbc.plugin import Address
from raycdc.sinks.jdbc.staging import Staging
from raycdc.sinks.record import Held

#: How long to wait for another session that has a lock which we need: a driver that was replaced may be in its last
#: commit.
LOCK_TIMEOUT_S = 60
#: After which the server ends a session of ours that sleeps, and frees its locks: a driver that was stopped in the
#: middle of a commit, or whose machine is gone, must not hold up its successor.
IDLE_TIMEOUT_S = 30

_IMPLEMENTATIONS = {
    "postgresql": "raycdc.sinks.jdbc.postgres:PostgresDatabase",
    "mysql": "raycdc.sinks.jdbc.mysql:MySqlDatabase",
    "mariadb": "raycdc.sinks.jdbc.mysql:MySqlDatabase",
}


@dataclass(frozen=True, slots=True)
class Made:
    """The shape of a target: its columns, its key (none: a changelog) and the columns beside it that take no NULL."""

    columns: Sequence[Column]
    key: Sequence[str]
    demands: Collection[str] = ()


class Tables(Protocol):
    """The targets of a server: whether they are there, and what is made of them."""

    def folded(self, app_id: str, target: TableId) -> str | None:
        """Another target of the pipeline that is the same table on this server, whose names ignore case."""

    def there(self, target: TableId) -> str | None:
        """What tells the table from a later one of its name, as far as the server can tell (else empty); None where
        there is no table.
        """

    def marker(self, target: TableId) -> str | None:
        """The mark that `create` or `alter` last left, where DDL may outrun its record; else None."""

    def is_empty(self, target: TableId) -> bool: ...

    def create(self, target: TableId, made: Made, marker: str, *, replace: bool) -> None:
        """Make the target; with `replace` in place of the table that is there."""

    def require_adoptable(self, target: TableId) -> None:
        """`TargetTakenError` where somebody's table would lose or change rows whatever their columns are."""

    def adopt(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        """Make somebody's table fit: add the columns it lacks. `SinkError` for what would lose or change rows in it."""

    def is_ours_alone(self, target: TableId, columns: Sequence[Column]) -> bool:
        """Whether a row can be deleted and put in again without a loss: nobody else has a column in it beside
        `columns`, or refers to it by a foreign key.
        """

    def untouched(self, target: TableId, columns: Sequence[Column]) -> str | None:
        """As `there`. `TargetTouchedError` where somebody gave the target what would lose or change the rows that were
        written.
        """

    def alter(self, target: TableId, present: Made, plan: Plan, key: Sequence[str], marker: str) -> None:
        """Carry `plan` out on the target, which is as `present` says; `key` is the one to come."""

    def has_null(self, target: TableId, column: str) -> bool:
        """Whether a row of the target has NULL in the column."""

    def loosen(self, target: TableId, columns: Sequence[Column]) -> None:
        """Let `columns`, none of which is of the key, take NULL again."""

    def empty(self, target: TableId) -> None: ...


class Session(Protocol):
    """One transaction; what `commit` was not called for never happened. DDL on MySQL is the exception: it commits what
    was done before it and itself, and `tables` are judged by what the target has, so doing it again is harmless.
    """

    #: Whether DDL is undone with the rest.
    transactional_ddl: ClassVar[bool]

    @property
    def commits(self) -> Commits:
        """The records of targets."""

    @property
    def tables(self) -> Tables:
        """The targets."""

    @property
    def staging(self) -> Staging:
        """The rows on their way into targets."""

    def lacking(self, databases: Sequence[str]) -> list[str] | None:
        """Statements that would permit what the account may not do yet, in the place of the commit records and in the
        `databases` of targets; None where that cannot be told.
        """

    def is_prepared(self) -> bool:
        """Whether there is the commit table: before the first run only `tables.there` may be asked."""

    def held(self, app_id: str, target: TableId, *, lock: bool = False) -> Held | None:
        """The record of `target`; with `lock` nobody else can commit to it or alter it before this session ends, even
        where there is no record yet. `SinkError` when another session has the lock for a minute.
        """

    def holders(self, app_id: str, target: TableId, *, wholly: bool) -> str:
        """`raycdc.sinks.jdbc.lock_holders`: for a session that does nothing else. The pipeline's record of `target` is
        looked at first: whoever has that locked is the cause, and no reader of the table.
        """

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """Undo what was done since the last `commit`, and go on."""


class Database(Protocol):
    """A server and how to speak to it."""

    #: Its name in ``sink.url``, for people.
    kind: ClassVar[str]
    #: Whether names of columns that differ in case only are one.
    ignores_case: ClassVar[bool]

    def __init__(self, address: Address) -> None: ...

    @property
    def address(self) -> Address:
        """Where it is."""

    def prepare(self) -> None:
        """Make the commit table and the place of staging tables, where they are missing."""

    def session(self) -> AbstractContextManager[Session]: ...

    def check_columns(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        """`SinkError` by name for what the server cannot have."""

    def retyped(self, old: Column, new: Column, *, key: bool) -> bool:
        """Whether the column, of the `key` or not, has another type here."""

    def load(
        self,
        name: str,
        columns: Sequence[Column],
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
        *,
        flags: Sequence[str],
    ) -> int:
        """Make the staging table `name` with the rows of `batches` (with the boolean columns `flags` behind the
        others), all or none of them, and return how many. A value the server cannot hold is a `SinkError`.
        """

    def misfits(self, rows: pa.RecordBatch, columns: Sequence[Column], key: Sequence[str]) -> pa.Array:
        """See `raycdc.sinks.api.Sink.misfits`."""

    def drop_stages(self, prefix: str, *, up_to: str) -> None:
        """Remove staging tables whose names begin with `prefix` and do not come after `up_to`; best effort."""

    def close(self) -> None:
        """Close this process's idle connections."""


def open_database(address: Address) -> Database:
    """The implementation for the kind of server; its driver is imported here."""
    module, _, name = _IMPLEMENTATIONS[address.kind].partition(":")
    try:
        implementation = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as cause:
        raise SinkError(
            f"The jdbc sink needs the package {cause.name} for {address.kind}. Install raycdc[postgresql]."
        ) from cause
    database: Database = implementation(address)
    return database
