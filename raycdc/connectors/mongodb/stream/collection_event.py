"""An event of a change stream that is no change of a document, as it came from the server."""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.connectors.mongodb.bson.documents import Document
from raycdc.connectors.mongodb.catalog import uuid_text
from raycdc.model import TableId


@dataclass(frozen=True, slots=True)
class CollectionEvent:
    """`kind` is the server's word for it (MongoDB manual, "Change Events").

    `table` is the collection that it is about, None for an event of a database or of the stream; `to` is the name that
    a renamed collection has from there on. `uuid` is the collection's, in hexadecimal ("": not told).
    """

    kind: str
    table: TableId | None = None
    to: TableId | None = None
    uuid: str = ""

    @classmethod
    def of(cls, event: Document) -> CollectionEvent:
        uuid = uuid_text(event.get("collectionUUID"))
        return cls(event["operationType"], table_of(event.get("ns")), table_of(event.get("to")), uuid)


def table_of(namespace: Document | None) -> TableId | None:
    """The collection that the ``ns`` of an event names; None where it names none."""
    if namespace is None or "coll" not in namespace:
        return None
    return TableId(namespace["db"], namespace["coll"])
