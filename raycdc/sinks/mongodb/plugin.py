"""The section ``[sink] type = "mongodb"`` of the configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import field_validator

from raycdc.config import Secret, SinkConfig, option
from raycdc.config.mongodb import parse_mongodb_uri
from raycdc.model.rules.names import NAMES, NameRules
from raycdc.plugins import Plugin

#: The collections of the database `MongoDbSinkConfig.record` (`raycdc.sinks.mongodb.commits`).
COMMITS = "raycdc_commit"
FENCES = "raycdc_fence"
ROWS = "raycdc_row"


class MongoDbSinkConfig(SinkConfig):
    """``[sink] type = "mongodb"``: table DB.TABLE is collection TABLE of database DB."""

    type: Literal["mongodb"] = option("mongodb", help="Collections of a MongoDB replica set or sharded cluster.")
    uri: Secret = option(
        help="Connection string: the servers and the account, with secrets by reference.",
        example="mongodb://cdc:${env:MONGODB_PASSWORD}@127.0.0.1:27017/?replicaSet=rs0&authSource=admin",
    )
    record: str = option(
        "raycdc",
        help="Database that holds the record of commits (raycdc_commit, raycdc_fence and raycdc_row).",
        min_length=1,
    )

    @field_validator("uri")
    @classmethod
    def _understood(cls, value: Secret) -> Secret:
        parse_mongodb_uri(value.reveal())
        return value

    @property
    def names(self) -> NameRules:
        ours = frozenset(f"{self.record.lower()}.{name}" for name in (COMMITS, FENCES, ROWS))
        return replace(NAMES["mongodb"], ours=ours)


MONGODB = Plugin(
    "mongodb",
    "MongoDB collections, upsert or changelog",
    MongoDbSinkConfig,
    "raycdc.sinks.mongodb.sink:MongoDbSink",
)
