"""Reads that see everything up to a cluster time, and the cluster time that they saw. All use majority read concern."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.read_concern import ReadConcern

from raycdc.connectors.mongodb.bson.documents import RAW, Document
from raycdc.connectors.mongodb.layout import ID
from raycdc.connectors.mongodb.server.catalog import entries_of
from raycdc.connectors.mongodb.server.client import Client, address_of, errors
from raycdc.connectors.mongodb.stream.token import ordinal_of, seconds_of
from raycdc.errors import SourceError, SourceUnavailableError
from raycdc.model import TableId

MAJORITY = ReadConcern("majority")
#: The codes if the server no longer has, or does not have yet, the documents of a cluster time: SnapshotTooOld,
#: SnapshotUnavailable (the collection's catalog changed since), StaleChunkHistory (documents were moved between
#: shards).
TIME_LOST = frozenset({239, 246, 250})
#: The number of keys in one query, which is then far smaller than the largest message.
_KEYS_AT_ONCE = 1000
#: The number of attempts if a collection is renamed while documents are read from it.
_NAMES = 5


@dataclass(frozen=True, slots=True)
class Found:
    """The raw documents by their BSON keys. A key without a document was deleted by the cluster time `seen`."""

    documents: dict[bytes, bytes]
    seen: int


class AtClusterTimeReadConcern(ReadConcern):
    """A read concern of documents as a majority had them at a cluster time (5.0 and later)."""

    def __init__(self, cluster_time: int) -> None:
        super().__init__("snapshot")
        self._cluster_time = cluster_time

    @property
    def document(self) -> Document:
        return {"level": self.level, "atClusterTime": bson.Timestamp(*seconds_of(self._cluster_time))}


@contextmanager
def session_after(client: Client, cluster_time: int) -> Iterator[ClientSession]:
    """Return a session whose majority reads see everything up to a cluster time (``afterClusterTime``)."""
    with client.start_session(causal_consistency=True) as session:
        session.advance_operation_time(bson.Timestamp(*seconds_of(cluster_time)))
        yield session


def seen_by(client: Client, session: ClientSession, table: TableId) -> int:
    """Return a cluster time that is not before anything the session has read, by one more read of the collection."""
    with errors(client, f"asking for the cluster time of {table}"):
        collection = client[table.db].get_collection(table.table, read_concern=MAJORITY)
        collection.find_one({}, {ID: 1}, session=session)
    return _time(client, session.operation_time)


def log_end(client: Client) -> int:
    """Return the cluster time of the last change. Raises `SourceError` if the server has no cluster times."""
    with errors(client, "asking for its cluster time"):
        answer = client.admin.command("ping")
    return _time(client, answer.get("operationTime"))


def read_documents(
    client: Client, table: TableId, uuid: str, keys: list[Any], cluster_time: int, *, singly: bool = False
) -> Found:
    """Read documents by their keys, as they are at the cluster time or later, together or each `singly`.

    They are read from the collection with this UUID, whatever its present name is; if the UUID is empty, from the
    collection of this name.
    """
    at_once = 1 if singly else _KEYS_AT_ONCE
    database: Database[RawBSONDocument] = client.get_database(table.db, RAW)  # type: ignore[assignment]
    found: dict[bytes, bytes] = {}
    with session_after(client, cluster_time) as session, errors(client, f"reading documents of {table}"):
        name = _name_of(client, table, uuid)
        for _ in range(_NAMES):
            if name is None:
                # The whole collection was dropped, which the stream reports later.
                return Found({}, max(cluster_time, log_end(client)))
            collection = database.get_collection(name, read_concern=MAJORITY)
            for first in range(0, len(keys), at_once):
                some = keys[first : first + at_once]
                wanted = {"$eq": some[0]} if singly else {"$in": some}
                for document in collection.find({ID: wanted}, session=session):
                    found[bson.encode({ID: document[ID]})] = bytes(document.raw)
            before, name = name, _name_of(client, table, uuid)
            if name == before:
                return Found(found, _time(client, session.operation_time))
    raise SourceUnavailableError(f"{table} had another name each time its documents were read.")


def _name_of(client: Client, table: TableId, uuid: str) -> str | None:
    """Return the present name of the collection; None if it was dropped."""
    if not uuid:
        return table.table
    return next((entry.table.table for entry in entries_of(client, table.db) if entry.uuid == uuid), None)


def _time(client: Client, timestamp: bson.Timestamp | None) -> int:
    if timestamp is None:
        raise SourceError(
            f"{address_of(client)} has no cluster time, because it is in no replica set. Make it a replica set of one "
            f"node "
            'to follow changes, or read it once with source.startup = "snapshot".'
        )
    return ordinal_of(timestamp.time, timestamp.inc)
