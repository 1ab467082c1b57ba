"""Pairs of a source and a target with one large table, for `test_verify_long`: how each is filled and meddled with.

The table has the numbers from 1 on as its key, `a` (the key modulo 97), `b` (a text of the key) and further columns.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymongo
from bson import Int64
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from raycdc.sandbox.background import again_and_again
from raycdc.sandbox.servers import MariaDbServer, MongoDb, PostgresServer
from tests.e2e.test_jdbc import sink_keys
from tests.e2e.verified import written_to
from tests.support.jobs import CollectionJob, Job

#: Documents that are put into a collection at once.
_INSERTED_AT_ONCE = 20_000
_TRIES = 50
#: Rows go back and forth so often, and then rest for a moment, in which they may be seen to be equal.
BURST = 2
QUIET_S = 0.5


class Target(ABC):
    """The target of `job` as somebody else changes it. Each call is one change of it."""

    def __init__(self, job: Job, key: str) -> None:
        self.job = job
        self.key = key

    @abstractmethod
    def delete(self, *keys: int) -> None:
        """Take rows away."""

    @abstractmethod
    def change(self, values: Mapping[int, int]) -> None:
        """Set `a` in the rows with these keys."""

    @abstractmethod
    def add(self, *keys: int) -> None:
        """Rows with these keys, which may be there already."""

    def _listed(self, keys: Sequence[int]) -> str:
        return f"{self.key} IN ({', '.join(map(str, keys))})"

    def _cases(self, values: Mapping[int, int]) -> str:
        return f"CASE {self.key} " + " ".join(f"WHEN {key} THEN {value}" for key, value in values.items()) + " END"

    def _rows(self, schema: pa.Schema, keys: Sequence[int]) -> pa.Table:
        columns = {self.key: list(keys), "a": [key % 97 for key in keys], "b": [f"row number {key}" for key in keys]}
        arrays = [pa.array(columns.get(field.name, [None] * len(keys)), field.type) for field in schema]
        return pa.table(arrays, schema=schema)


class DeltaTarget(Target):
    @property
    def _place(self) -> str:
        return str(self.job.lake / self.job.database / "t")

    def delete(self, *keys: int) -> None:
        DeltaTable(self._place).delete(self._listed(keys))

    def change(self, values: Mapping[int, int]) -> None:
        DeltaTable(self._place).update(updates={"a": self._cases(values)}, predicate=self._listed(list(values)))

    def add(self, *keys: int) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                rows = self._rows(pa.schema(DeltaTable(self._place).schema().to_arrow()), keys)
                return write_deltalake(self._place, rows, mode="append")
            except CommitFailedError:
                if not tries_left:
                    raise
        raise AssertionError


class IcebergTarget(Target):
    """Tables of a SQL catalog, as those of a bare folder have no catalog that others could write with."""

    def _table(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("raycdc", type="sql", uri=catalog_uri(self.job)).load_table((self.job.database, "t"))

    def delete(self, *keys: int) -> None:
        self._table().delete(self._listed(keys))

    def change(self, values: Mapping[int, int]) -> None:
        table = self._table()
        rows = table.scan(row_filter=self._listed(list(values))).to_arrow()
        index = rows.schema.get_field_index("a")
        changed = pa.array([values[key] for key in rows.column(self.key).to_pylist()], rows.schema.field(index).type)
        table.overwrite(
            rows.set_column(index, rows.schema.field(index), changed), overwrite_filter=self._listed(list(values))
        )

    def add(self, *keys: int) -> None:
        table = self._table()
        table.append(self._rows(table.schema().as_arrow(), keys))


def catalog_uri(job: Job) -> str:
    return f"sqlite:///{job.folder}/catalog.db"


class PostgresTarget(Target):
    def __init__(self, job: Job, key: str, server: PostgresServer, database: str) -> None:
        super().__init__(job, key)
        self._server, self._database = server, database

    def _execute(self, sql: str) -> None:
        with self._server.connect(self._database) as connection:
            with connection.cursor() as cursor:
                cursor.execute(sql)
            connection.commit()

    @property
    def _name(self) -> str:
        return f'"{self.job.database}".t'

    def delete(self, *keys: int) -> None:
        self._execute(f"DELETE FROM {self._name} WHERE {self._listed(keys)}")

    def change(self, values: Mapping[int, int]) -> None:
        self._execute(f"UPDATE {self._name} SET a = {self._cases(values)} WHERE {self._listed(list(values))}")

    def add(self, *keys: int) -> None:
        rows = ", ".join(f"({key}, {key % 97}, 'row number {key}')" for key in keys)
        self._execute(f"INSERT INTO {self._name} (id, a, b) VALUES {rows}")


@dataclass
class VerifiedSource(ABC):
    """A source with `rows` rows, and how a target is opened. Each `job` is a pipeline of its own."""

    rows: int
    #: Whether a target holds a row twice.
    keeps_doubles: bool = True

    @abstractmethod
    def fill(self) -> None:
        """Make the source's table."""

    @abstractmethod
    def job(self, folder: Path, *, chunk_rows: int) -> Job:
        """A pipeline that has not run yet."""

    @abstractmethod
    def target(self, job: Job) -> Target: ...

    @abstractmethod
    def anywhere(self, job: Job, generator: random.Random) -> AbstractContextManager[None]:
        """Changes of random rows all the time, some of which go and come again."""

    @abstractmethod
    def back_and_forth(self, job: Job) -> AbstractContextManager[None]:
        """The same few hundred rows change all the time, and become what they were."""


@dataclass
class SqlWorld(VerifiedSource):
    server: MariaDbServer = None  # type: ignore[assignment]
    database: str = ""
    #: What `job` changes of a pipeline for its target, and how that is opened.
    aim: Callable[[Job], None] = lambda _: None
    opened: Callable[[Job], Target] = lambda job: DeltaTarget(job, "id")

    def fill(self) -> None:
        self.server.execute(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, b VARCHAR(40), c DECIMAL(12, 2), at DATETIME(6))",
            "INSERT INTO t SELECT seq, seq % 97, CONCAT('row number ', seq), seq / 4, "
            f"'2024-01-01' + INTERVAL seq SECOND FROM seq_1_to_{self.rows}",
            database=self.database,
        )

    def job(self, folder: Path, *, chunk_rows: int) -> Job:
        made = Job(folder, self.server, self.database, ("t",), local=True, chunk_rows=chunk_rows)
        self.aim(made)
        return made

    def target(self, job: Job) -> Target:
        return self.opened(job)

    def anywhere(self, job: Job, generator: random.Random) -> AbstractContextManager[None]:
        def statements() -> list[str]:
            first, gone, one = (generator.randrange(2000, self.rows - 100) for _ in range(3))
            return [
                f"UPDATE t SET a = a + 1 WHERE id BETWEEN {first} AND {first + generator.randrange(20)}",
                f"REPLACE INTO t SELECT id, a + 5, b, c, at FROM t WHERE id = {gone}",
                f"UPDATE t SET c = c + 0.25 WHERE id = {one}",
            ]

        return written_to(job, statements, pause_s=0.002)

    def back_and_forth(self, job: Job) -> AbstractContextManager[None]:
        statements = [
            "UPDATE t SET a = -a WHERE id BETWEEN 100 AND 300",
            "DELETE FROM t WHERE id = 5000",
            "UPDATE t SET id = id + 10000000 WHERE id BETWEEN 600 AND 610",
            "UPDATE t SET a = -a WHERE id BETWEEN 100 AND 300",
            "INSERT INTO t VALUES (5000, 3, 'row number 5000', 1, '2024-01-01')",
            "UPDATE t SET id = id - 10000000 WHERE id BETWEEN 10000600 AND 10000610",
        ]
        return written_to(job, lambda: statements * BURST, pause_s=QUIET_S)


@dataclass
class DocumentWorld(VerifiedSource):
    server: MongoDb = None  # type: ignore[assignment]
    database: str = ""

    def fill(self) -> None:
        with self.server.client() as client:
            documents = client[self.database].t
            for first in range(1, self.rows + 1, _INSERTED_AT_ONCE):
                keys = range(first, min(first + _INSERTED_AT_ONCE, self.rows + 1))
                documents.insert_many([self._document(key) for key in keys])

    @staticmethod
    def _document(key: int) -> dict[str, Any]:
        return {"_id": Int64(key), "a": Int64(key % 97), "b": f"row number {key}", "c": key / 4}

    def job(self, folder: Path, *, chunk_rows: int) -> Job:
        nobody: Any = None
        made = CollectionJob(folder, nobody, self.database, ("t",), local=True, uri=self.server.uri, startup="initial")
        made.source = 'snapshot = { chunk_size = "1MiB" }'
        return made

    def target(self, job: Job) -> Target:
        return DeltaTarget(job, "_id")

    def anywhere(self, job: Job, generator: random.Random) -> AbstractContextManager[None]:
        def step(documents: Any) -> None:
            one, gone, other = (generator.randrange(2000, self.rows - 100) for _ in range(3))
            documents.update_many({"_id": {"$gte": one, "$lt": one + generator.randrange(1, 20)}}, {"$inc": {"a": 1}})
            documents.delete_one({"_id": gone})
            documents.insert_one(self._document(gone) | {"a": Int64(5)})
            documents.update_one({"_id": other}, {"$inc": {"c": 0.25}})

        return self._written(step)

    def back_and_forth(self, job: Job) -> AbstractContextManager[None]:
        def step(documents: Any) -> None:
            documents.update_many({"_id": {"$gte": 100, "$lte": 300}}, {"$mul": {"a": Int64(-1)}})
            documents.delete_one({"_id": 5000})
            documents.update_many({"_id": {"$gte": 100, "$lte": 300}}, {"$mul": {"a": Int64(-1)}})
            documents.insert_one(self._document(5000))

        def burst(documents: Any) -> None:
            for _ in range(BURST):
                step(documents)

        return self._written(burst, pause_s=QUIET_S)

    @contextmanager
    def _written(self, step: Callable[[Any], object], *, pause_s: float = 0.002) -> Iterator[None]:
        with pymongo.MongoClient[dict[str, Any]](self.server.uri) as client:
            documents = client[self.database].t
            with again_and_again(lambda: step(documents), pause_s=pause_s):
                yield


def into_iceberg(job: Job) -> None:
    job.sink = "iceberg"
    job.sink_keys = f'catalog = {{ type = "sql", uri = "{catalog_uri(job)}", warehouse = "{job.lake}" }}'


def into_postgres(postgres: PostgresServer, database: str, job: Job) -> None:
    job.sink, job.sink_keys = "jdbc", sink_keys(postgres, database)


__all__ = [
    "DeltaTarget",
    "DocumentWorld",
    "IcebergTarget",
    "PostgresTarget",
    "SqlWorld",
    "Target",
    "VerifiedSource",
    "into_iceberg",
    "into_postgres",
]
