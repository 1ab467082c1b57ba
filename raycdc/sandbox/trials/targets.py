"""The targets of the demo's pipeline: local folders, or a sandbox server. They are read without code of raycdc.

A target has its section of the configuration, the location of its tables, code that shows them, and the rows of a table
of the shop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import pyarrow as pa

from raycdc.model import TableId
from raycdc.sandbox.compare import read_changelog, read_delta
from raycdc.sandbox.trials.databases import MySqlSandbox, PostgresSandbox
from raycdc.sandbox.trials.kafka import KafkaSandbox
from raycdc.sandbox.trials.kinds import new_trial
from raycdc.sandbox.trials.mongodb import MongoDbSandbox
from raycdc.sandbox.trials.trial import COMPARED, DATABASE
from raycdc.storage.settings import LIKE_ANYBODY

#: The table in the examples for people.
SHOWN = "orders"


class SandboxTarget(AbstractContextManager["SandboxTarget"], ABC):
    """A target of the demo; see the module's docstring.

    A ``with`` block starts its server, if it has one, and ends it.
    """

    #: True if the target is a server that ends with the ``with`` block.
    is_server = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    @abstractmethod
    def keys(self) -> Mapping[str, str]:
        """Return the keys of ``[sink]``."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Return the location of the tables, for people."""

    @property
    @abstractmethod
    def preview_code(self) -> str:
        """Return Python code that prints a few rows."""

    @abstractmethod
    def held(self, table: str) -> dict[int, str]:
        """Return the rows of a table of the shop, as `raycdc.sandbox.trials.SandboxSourceServer.held` does."""


class SandboxFolder(SandboxTarget):
    """Tables in a folder. `kind` is delta, iceberg, parquet or jsonl."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder

    @property
    def keys(self) -> Mapping[str, str]:
        return {"type": self._kind, "path": f"./{self._folder}"}

    @property
    def where(self) -> str:
        return f"in ./{self._folder / DATABASE}, a folder for each table"

    @property
    def preview_code(self) -> str:
        location = self._folder / DATABASE / SHOWN
        return _PREVIEWS[self._kind].format(location=location)

    def held(self, table: str) -> dict[int, str]:
        location, column = self._folder / DATABASE / table, COMPARED[table]
        match self._kind:
            case "delta":
                return _held(read_delta(location), column)
            case "iceberg":
                from raycdc.verify.targets.iceberg import Warehouse

                warehouse = Warehouse("hadoop", "raycdc", str(self._folder), "", {}, LIKE_ANYBODY)
                return _held(warehouse.table(TableId(DATABASE, table)).scan().to_arrow(), column)
            case _:
                return _folded(location, self._kind, column)


class SandboxServerTarget(SandboxTarget):
    """A sandbox server as a target. `kind` is one of `SERVERS`."""

    is_server = True

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._trial = new_trial(kind)

    def __enter__(self) -> Self:
        self._trial.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._trial.__exit__()

    @property
    def keys(self) -> Mapping[str, str]:
        return self._trial.as_sink

    @property
    def where(self) -> str:
        return f"in {self._kind}, at {self._trial.url}"

    @property
    def preview_code(self) -> str:
        return self._trial.preview_code(DATABASE, SHOWN)

    def held(self, table: str) -> dict[int, str]:
        match self._trial:
            case KafkaSandbox() as kafka:
                return kafka.written(table)
            case MySqlSandbox() | PostgresSandbox() | MongoDbSandbox() as database:
                return database.held(table)
            case _:
                raise AssertionError(f"{self._trial!r} is no target of the demo")


#: The kind of server of each sink that people can type.
SERVERS = ("postgres", "mysql", "mariadb", "mongodb", "kafka")
FOLDERS = ("delta", "iceberg", "parquet", "jsonl")

_PREVIEWS: Mapping[str, str] = {
    # `to_pyarrow_table` is not used: a process that calls it and ends immediately is often aborted by a thread of
    # Arrow.
    "delta": """from deltalake import DeltaTable, QueryBuilder
from pyarrow import table
lake = QueryBuilder().register("orders", DeltaTable("{location}"))
rows = lake.execute("SELECT * FROM orders LIMIT 5").read_all()
print(*table(rows).to_pylist(), sep="\\n")""",
    "iceberg": """from pathlib import Path
from pyiceberg.table import StaticTable
versions = Path("{location}/metadata").glob("v*.metadata.json")
newest = max(versions, key=lambda path: (len(path.name), path.name))
rows = StaticTable.from_metadata(str(newest)).scan(limit=5).to_arrow()
print(*rows.to_pylist(), sep="\\n")""",
    "parquet": """from pyarrow.dataset import dataset
rows = dataset("{location}", format="parquet").head(5)
print(*rows.to_pylist(), sep="\\n")""",
    "jsonl": """from pathlib import Path
files = sorted(Path("{location}").glob("*.jsonl"))
lines = [line for file in files for line in file.open()]
print(*lines[:5], sep="")""",
}


def new_target(kind: str, folder: Path) -> SandboxTarget:
    """Return a target of `FOLDERS` or `SERVERS`, which is not started yet."""
    return SandboxFolder(kind, folder) if kind in FOLDERS else SandboxServerTarget(kind)


def _held(table: pa.Table, column: str) -> dict[int, str]:
    if not table.num_rows:
        return {}
    key = "id" if "id" in table.column_names else "_id"
    pairs: Iterable[tuple[int, object]] = zip(table[key].to_pylist(), table[column].to_pylist(), strict=True)
    return {int(number): str(value) for number, value in pairs}


def _folded(location: Path, kind: str, column: str) -> dict[int, str]:
    """Return the rows that result from a changelog."""
    held: dict[int, str] = {}
    for row in sorted(read_changelog(location, kind), key=lambda each: int(each["_seq"])):
        number = int(row["id"] if "id" in row else row["_id"])
        if row["_op"] in ("+I", "+U"):
            held[number] = str(row[column])
        else:
            held.pop(number, None)
    return held
