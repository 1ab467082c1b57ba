"""Reads a collection of MongoDB into Arrow columns over one connection, and compares with peers on the same server.

``snapshot`` reads its documents, ``change_stream`` its changes (`bench.mongodb_changes`).

| system | what runs |
|---|---|
| ``raycdc`` | raw batches into columns that were declared, as a snapshot's reader does it |
| ``raycdc-document`` | the same into `_id` and the whole document as Extended JSON |
| ``raycdc-bson`` | the same into `_id` and the whole document as it is, for a sink that is MongoDB |
| ``raw`` | the raw batches of pymongo alone, decoded by nobody |
| ``pymongo`` | plain dicts |
| ``pymongoarrow`` | `find_arrow_all` with the same columns |
| ``spark-mongodb`` | MongoDB's connector for Spark, read by a job that keeps nothing |

The server is an emulation in memory: wall times say little about a real one, CPU time of the clients does.
``mb_per_cpu_s`` counts the BSON of documents, or of events, for every system alike.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import mongodb_changes
from bench.measure import Measurement, Options, best_of, measure, measured, progress
from bench.mongodb_documents import documents, with_bytes
from bench.pipeline import Bench, figures_of
from bench.sink_homes import jars

if TYPE_CHECKING:
    from raycdc.source.schema_document import SchemaDocument

CASES = ("snapshot", "change_stream")

#: The server is the emulation of raycdc.sandbox.servers, in memory.
SERVER = "mongodb, emulated"

#: The number of documents that fit into the emulation's memory; they are read several times.
_DOCUMENTS = 100_000
_PASSES = 10
_SPARK_PASSES = 3
_CONNECTOR = "org.mongodb.spark:mongo-spark-connector_2.13:10.5.0"
_TYPES = {
    "_id": "objectId",
    "customer": "int",
    "price": "double",
    "quantity": "long",
    "weight": "double",
    "name": "string",
    "note": "string",
    "created": "date",
    "flag": "bool",
    "status": "string",
}


def run(options: Options) -> Iterator[Measurement]:
    """Start a server, fill a collection, and read it with each system; then its changes."""
    count = options.rows or _DOCUMENTS
    if "snapshot" in options.cases:
        yield from _snapshot(count, options.tries)
    if "change_stream" in options.cases:
        yield from mongodb_changes.run("change_stream", count, _TYPES, options.tries)


def _snapshot(count: int, tries: int) -> Iterator[Measurement]:
    from raycdc.sandbox.servers import MongoDbServer

    with tempfile.TemporaryDirectory(prefix="raycdc-bench-") as folder, MongoDbServer() as server:
        progress(f"writing {count:,d} documents ...")
        with server.client() as client:
            for first in range(0, count, 10_000):
                client.bench.orders.insert_many(documents(first, min(first + 10_000, count)))
            size = sum(map(len, client.bench.orders.find_raw_batches()))
        given = {"uri": server.uri, "passes": _PASSES}
        for system in ("raycdc", "raycdc-document", "raycdc-bson", "raw", "pymongo", "pymongoarrow"):
            function = f"bench.mongodb:{system.replace('-', '_')}"
            best = best_of(tries, lambda function=function, system=system: measure("snapshot", system, function, given))  # type: ignore[misc]
            yield with_bytes(best, size * _PASSES)
        yield with_bytes(_spark(Path(folder), server, count), size * _SPARK_PASSES)


def _read(uri: str, passes: int, document: SchemaDocument) -> dict[str, Any]:
    from raycdc.config import Secret
    from raycdc.connectors.mongodb.server.client import connect
    from raycdc.connectors.mongodb.snapshot.chunk_reader import MongoDbChunkReader
    from raycdc.connectors.mongodb.stream.resume_token import NoLogPosition
    from raycdc.model import TableId
    from raycdc.source.split import OpenedAt, SnapshotSplit

    split = SnapshotSplit(TableId("bench", "orders"), 0, "_id", None, None)
    reader = MongoDbChunkReader(connect(Secret(uri)))
    nowhere = OpenedAt(NoLogPosition("").sealed())
    figures: dict[str, Any] = {"rows": 0}
    for _ in reader.read(split, opened_at=nowhere, document=document):
        pass
    with measured(figures):
        for _ in range(passes):
            figures["rows"] += sum(batch.num_rows for batch in reader.read(split, opened_at=nowhere, document=document))
    reader.close()
    return figures


def raycdc(uri: str, passes: int) -> dict[str, Any]:
    """Read declared columns."""
    from raycdc.connectors.mongodb.layout import OnTypeMismatch, Spelling, declared, parse_type

    types = {name: parse_type(text) for name, text in _TYPES.items()}
    return _read(uri, passes, declared(types, json=Spelling.RELAXED, on_type_mismatch=OnTypeMismatch.FAIL).document())


def raycdc_document(uri: str, passes: int) -> dict[str, Any]:
    """Read whole documents as text."""
    from raycdc.connectors.mongodb.layout import Spelling, whole_documents

    return _read(uri, passes, whole_documents(None, json=Spelling.RELAXED).document())


def raycdc_bson(uri: str, passes: int) -> dict[str, Any]:
    """Read whole documents as BSON."""
    from raycdc.connectors.mongodb.layout import Spelling, whole_documents

    return _read(uri, passes, whole_documents(None, json=Spelling.BSON).document())


def _pymongo(uri: str, passes: int, read: Any) -> dict[str, Any]:
    import pymongo

    figures: dict[str, Any] = {"rows": 0}
    with pymongo.MongoClient[dict[str, Any]](uri) as client:
        read(client.bench.orders)
        with measured(figures):
            for _ in range(passes):
                figures["rows"] += read(client.bench.orders)
    return figures


def raw(uri: str, passes: int) -> dict[str, Any]:
    """Read the raw batches without decoding."""
    with_count = _pymongo(uri, passes, lambda orders: sum(1 for _ in orders.find_raw_batches(batch_size=100_000)))
    return with_count | {"rows": passes * _counted(uri)}


def _counted(uri: str) -> int:
    import pymongo

    with pymongo.MongoClient[dict[str, Any]](uri) as client:
        return client.bench.orders.estimated_document_count()


def pymongo(uri: str, passes: int) -> dict[str, Any]:
    """Read a dict for each document."""
    return _pymongo(uri, passes, lambda orders: sum(1 for _ in orders.find(batch_size=100_000)))


def pymongoarrow(uri: str, passes: int) -> dict[str, Any]:
    """Read the same columns by MongoDB's own library."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The library was built for an older Arrow, and warns about each class.
        import bson
        import pyarrow as pa
        from pymongoarrow.api import Schema, find_arrow_all
    types = {"int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "string": pa.string(), "bool": pa.bool_()}
    types |= {"objectId": bson.ObjectId, "date": datetime}
    schema = Schema({name: types[text] for name, text in _TYPES.items()})
    return _pymongo(uri, passes, lambda orders: find_arrow_all(orders, {}, schema=schema).num_rows)


def _spark(folder: Path, server: Any, count: int) -> Measurement:
    progress("snapshot: measuring spark-mongodb ...")
    given = {"uri": server.uri, "jars": jars(_CONNECTOR), "scratch": str(folder), "passes": _SPARK_PASSES}
    run_ = Bench(folder, server).watched([sys.executable, "-m", "bench.spark_mongodb", json.dumps(given)])
    (started, _), (done, _) = run_.of("started")[0], run_.of("done")[0]
    figures = figures_of(run_, started, done)
    return Measurement(case="snapshot", system="spark-mongodb", rows=count * _SPARK_PASSES, **figures)
