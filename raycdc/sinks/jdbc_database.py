"""What the database sink asks of a server: one transaction with the commit record and the rows in it.

Implemented by `jdbc_postgres` and `jdbc_mysql`; called by `raycdc.sinks.jdbc` on the driver, and by `jdbc_tasks`, which
loads rows into staging tables from wherever tasks run. A session belongs to one thread.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from raycdc.errors import SinkError
from raycdc.model import Column, TableId
from raycdc.sinks.api import CommitVector
from raycdc.sinks.jdbc_columns import Plan
from raycdc.sinks.jdbc_plugin import Address

#: Name of the table with the commit records, in the database (PostgreSQL: its schema ``public``) that the URL names.
COMMIT_TABLE = "raycdc_commit"

#: Begins the names of staging tables.
STAGE_PREFIX = "raycdc_stage_"

_IMPLEMENTATIONS = {
    "postgresql": "raycdc.sinks.jdbc_postgres:PostgresDatabase",
    "mysql": "raycdc.sinks.jdbc_mysql:MySqlDatabase",
    "mariadb": "raycdc.sinks.jdbc_mysql:MySqlDatabase",
}


@dataclass(frozen=True, slots=True)
class Held:
    """A target's row in the commit table. `created` says that this pipeline created or emptied the target, so that
    a snapshot row cannot be in it yet; `columns` are the source's columns that the target has.
    """

    vector: CommitVector
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    created: bool

    #: The columns of the commit table that say it, in the order of `row`.
    NAMES: ClassVar[tuple[str, ...]] = ("epoch", "step", "generation", "created", "columns", "key")

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Held:
        """What the commit table says."""
        epoch, step, generation, created, columns, key = row
        known = tuple(map(Column.from_json, json.loads(columns)))
        return cls(CommitVector(epoch, step, generation), known, tuple(json.loads(key)), bool(created))

    def row(self) -> tuple[Any, ...]:
        """The values of `NAMES`."""
        vector = self.vector
        columns = json.dumps([column.to_json() for column in self.columns])
        return vector.epoch, vector.step, vector.generation, self.created, columns, json.dumps(self.key)


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A table of rows that no reader of the target sees yet (the result of `jdbc_tasks.load`)."""

    name: str
    rows: int
    deleted: int = 0
    truncated: bool = False


class Session(Protocol):
    """One transaction; what `commit` was not called for never happened. DDL on MySQL is the exception: its methods are
    judged by what the target has, so doing them again is harmless.
    """

    def held(self, app_id: str, target: TableId, *, lock: bool = False) -> Held | None:
        """The record of `target`; with `lock` nobody else can commit to it before this session ends."""

    def hold(self, app_id: str, target: TableId, held: Held, positions: Mapping[str, Any]) -> None:
        """Write the record."""

    def forget_others(self, app_id: str, target: TableId) -> None:
        """Remove the records of other pipelines: what they wrote to `target` is gone."""

    def exists(self, target: TableId) -> bool: ...

    def made_by(self, target: TableId, marker: str) -> bool:
        """Whether the target was made by whom `marker` names, although no record says so (DDL outran its record)."""

    def create(
        self, target: TableId, columns: Sequence[Column], key: Sequence[str], marker: str, *, replace: bool
    ) -> None:
        """Make the target; with `replace` in place of the table that is there."""

    def adopt(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        """Make somebody's table fit: add the columns it lacks. `SinkError` where types or key are others."""

    def alter(self, target: TableId, present: Sequence[Column], plan: Plan, key: Sequence[str], marker: str) -> None:
        """Carry `plan` out on the target, which has the columns `present`."""

    def empty(self, target: TableId) -> None: ...

    def staged_rows(self, name: str) -> int:
        """How many rows a staging table has."""

    def append(self, target: TableId, columns: Sequence[Column], name: str) -> None:
        """Add the rows of a staging table."""

    def merge(
        self, target: TableId, columns: Sequence[Column], key: Sequence[str], gone: Sequence[str], staged: StagedTable
    ) -> None:
        """Upsert and delete the rows of a staging table with `DELETED`; columns `gone` at the source become null."""

    def commit(self) -> None: ...


class Database(Protocol):
    """A server and how to speak to it."""

    #: What ``sink.url`` calls it, for people.
    kind: ClassVar[str]

    def __init__(self, address: Address) -> None: ...

    def prepare(self) -> None:
        """Make the commit table and the place of staging tables, where they are missing."""

    def session(self) -> AbstractContextManager[Session]: ...

    def check_columns(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        """`SinkError` by name for what the server cannot have."""

    def retyped(self, old: Column, new: Column) -> bool:
        """Whether the column's type is another one here."""

    def load(
        self,
        name: str,
        columns: Sequence[Column],
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
        *,
        compacted: bool,
    ) -> int:
        """Make the staging table `name` with the rows of `batches` (with `DELETED` where `compacted`), all or none of
        them, and return how many. A value the server cannot hold is a `SinkError`.
        """

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
