"""The sandbox server of MongoDB's protocol: a replica set of one node, as a source and a target."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from raycdc.sandbox.servers.mongodb import MongoDbServer
from raycdc.sandbox.shop import ShopSize
from raycdc.sandbox.trials.goods import Row, SandboxRowChange, SandboxRows
from raycdc.sandbox.trials.trial import COMPARED, DATABASE, SandboxSourceServer

#: The column of the shop that is the key of a document.
KEY = "_id"


class MongoDbSandbox(SandboxSourceServer):
    """A replica set that keeps everything in memory and has no users: any account works."""

    title: ClassVar[str] = "MongoDB"

    def __init__(self, server: MongoDbServer) -> None:
        super().__init__(server)
        self._server = server
        self._goods: SandboxRows | None = None
        self._client: Any = None

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
        super().__exit__()

    @property
    def version(self) -> str:
        return f"An emulated MongoDB {self._server.version}"

    @property
    def url(self) -> str:
        return self._server.uri

    def preview_code(self, database: str, table: str) -> str:
        return f"""import pymongo
client = pymongo.MongoClient("{self.url}")
print(*client.{database}.{table}.find().limit(5), sep="\\n")"""

    @property
    def environment(self) -> Mapping[str, str]:
        return {"MONGODB_URI": self.url}

    @property
    def as_source(self) -> Mapping[str, str | int | Sequence[str]]:
        names = [f"{DATABASE}.{table}" for table in COMPARED]
        return {"type": "mongodb", "uri": self.url, "collections": names}

    @property
    def as_sink(self) -> Mapping[str, str]:
        return {"type": "mongodb", "uri": self.url}

    @property
    def init_words(self) -> Sequence[str]:
        return ["--uri", "${env:MONGODB_URI}", "--table", rf"{DATABASE}\..*"]

    def fill(self, size: ShopSize) -> None:
        self._goods = SandboxRows(size, seed=random.randrange(2**31))
        for table, rows in self._goods.rows.items():
            self._database[table].insert_many([_document(row) for row in rows.values()])

    def step(self) -> None:
        assert self._goods is not None, "the shop is filled first"
        for change in self._goods.step():
            self._write(change)

    def summary(self) -> str:
        assert self._goods is not None, "the shop is filled first"
        return self._goods.summary()

    def held(self, table: str) -> dict[int, str]:
        column = COMPARED[table]
        # Rows of tables keep their own key in addition to the document's key.
        return {int(row.get("id", row[KEY])): str(row[column]) for row in self._server.find(DATABASE, table)}

    def _write(self, change: SandboxRowChange) -> None:
        collection = self._database[change.table]
        if change.after is None:
            assert change.before is not None
            collection.delete_one({KEY: change.before["id"]})
        else:
            collection.replace_one({KEY: change.after["id"]}, _document(change.after), upsert=True)

    @property
    def _database(self) -> Any:
        if self._client is None:
            self._client = self._server.client()
        return self._client[DATABASE]


def _document(row: Row) -> Row:
    return {KEY if name == "id" else name: value for name, value in row.items()}
