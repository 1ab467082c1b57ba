"""The part of `bench.mongodb` about changes: reads a change stream from a position in the past, over one connection.

| system | what runs |
|---|---|
| ``raycdc`` | the reader of a pipeline: raw events into changelog rows of declared columns |
| ``raw`` | the same cursor, its answers decoded by nobody: what the wire costs |
| ``pymongo`` | plain `watch`, each event a row: the document's fields beside what was done and when |

Six of ten events are inserts, three updates with their documents looked up by the server, one is a deletion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.measure import Measurement, best_of, measure, measured, progress
from bench.mongodb_documents import documents, with_bytes

_PASSES = 3
_BATCH = 10_000


def run(case: str, count: int, types: Mapping[str, str], tries: int) -> Iterator[Measurement]:
    """Change a collection about `count` times, and read that with each system."""
    from raycdc.sandbox.servers import MongoDbServer

    with MongoDbServer() as server, server.client() as client:
        progress(f"{case}: making {count:,d} changes ...")
        begin, events = _change(client, count)
        given = {"uri": server.uri, "begin": begin, "events": events, "types": dict(types)}
        size = _size(server.uri, begin, events)
        for system in ("raycdc", "raw", "pymongo"):
            function = f"bench.mongodb_changes:{system}"
            best = best_of(tries, lambda function=function, system=system: measure(case, system, function, given))  # type: ignore[misc]
            yield with_bytes(best, size * _PASSES)


def _change(client: Any, count: int) -> tuple[int, int]:
    """Make the changes; return the position before them, and their number."""
    import pymongo

    from raycdc.connectors.mongodb.stream.causal import log_end

    orders = client.bench.create_collection("orders")
    begin = log_end(client)
    inserts, updates, deletes = count * 6 // 10, count * 3 // 10, count // 10
    for first in range(0, inserts, _BATCH):
        rows = documents(first, min(first + _BATCH, inserts))
        orders.insert_many({"_id": number, **row} for number, row in enumerate(rows, first))
    for first in range(0, updates, _BATCH):
        numbers = range(first, min(first + _BATCH, updates))
        orders.bulk_write([pymongo.UpdateOne({"_id": n}, {"$set": {"status": "changed"}}) for n in numbers])
    for first in range(updates, updates + deletes, _BATCH):
        numbers = range(first, min(first + _BATCH, updates + deletes))
        orders.bulk_write([pymongo.DeleteOne({"_id": n}) for n in numbers])
    return begin, inserts + updates + deletes


def _stream(uri: str, begin: int) -> Any:
    """Open the cursor as a pipeline does."""
    from raycdc.connectors.mongodb.server.client import connect, probe
    from raycdc.connectors.mongodb.stream.raw_stream import RawStream, stream_options

    config = _config(uri)
    client = connect(config.uri)
    info = probe(client)
    return RawStream(client, info, stream_options(client, info, config.selector()), token=None, after=begin)


def _config(uri: str) -> Any:
    from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig

    return MongoDbSourceConfig.model_validate({"type": "mongodb", "uri": uri, "collections": ["bench.orders"]})


def _answers(uri: str, begin: int, events: int) -> Iterator[bytes]:
    from raycdc.connectors.mongodb.stream.events import Scanner

    stream, scanner, found = _stream(uri, begin), Scanner(lambda _: True), 0
    while found < events:
        data = stream.next().data
        found += len(scanner.scan(data))
        yield data
    stream.close()


def _size(uri: str, begin: int, events: int) -> int:
    return sum(map(len, _answers(uri, begin, events)))


def raw(uri: str, begin: int, events: int, types: dict[str, str]) -> dict[str, Any]:
    """Read the answers without decoding."""
    del types
    answers = sum(1 for _ in _answers(uri, begin, events))
    figures: dict[str, Any] = {"rows": _PASSES * events, "wall_s": 0.0, "cpu_s": 0.0}
    with measured(figures):
        for _ in range(_PASSES):
            stream = _stream(uri, begin)
            for _ in range(answers):
                stream.next()
            stream.close()
    return figures


def raycdc(uri: str, begin: int, events: int, types: dict[str, str]) -> dict[str, Any]:
    """Read changelog rows of declared columns."""
    from raycdc.connectors.mongodb.layout import OnTypeMismatch, Spelling, declared, parse_type
    from raycdc.connectors.mongodb.server.client import connect, probe
    from raycdc.connectors.mongodb.source import MongoDbSource
    from raycdc.connectors.mongodb.stream.resume_token import StreamPosition
    from raycdc.model import TableId
    from raycdc.source.snapshot.log.log_unit import LogTransactions, TransactionPart
    from raycdc.source.snapshot.log.stream_state import StreamState
    from raycdc.source.split import StreamSplit
    from raycdc.source.tables.table_life import Live

    config = _config(uri)
    layout = declared(
        {name: parse_type(text) for name, text in {**types, "_id": "long"}.items()},
        json=Spelling.RELAXED,
        on_type_mismatch=OnTypeMismatch.FAIL,
    )
    document = layout.document()
    with connect(config.uri) as client:
        position = StreamPosition(begin, replica_set=probe(client).replica_set).sealed()
    followed = {TableId("bench", "orders"): Live(document.fingerprint, announced=True, incarnation=0)}
    state = StreamState(position, begin, followed)
    source, split = MongoDbSource(config), StreamSplit(state, {document.fingerprint: document})

    def read() -> int:
        reader, rows = source.log_reader(split), 0
        while rows < events:
            unit = reader.fetch()
            if isinstance(unit, TransactionPart | LogTransactions):
                rows += sum(batch.batch.num_rows for batch in unit.rows)
        reader.close()
        return rows

    figures: dict[str, Any] = {"rows": 0}
    source.warm_up()
    read()
    with measured(figures):
        for _ in range(_PASSES):
            figures["rows"] += read()
    return figures


def pymongo(uri: str, begin: int, events: int, types: dict[str, str]) -> dict[str, Any]:
    """Read a dict for each row."""
    import bson
    import pymongo

    del types
    figures: dict[str, Any] = {"rows": 0}
    with pymongo.MongoClient[dict[str, Any]](uri) as client:

        def read() -> int:
            place = bson.Timestamp((begin + 1) >> 32, (begin + 1) & 0xFFFF_FFFF)
            rows = 0
            with client.bench.orders.watch(full_document="updateLookup", start_at_operation_time=place) as stream:
                for event in stream:
                    after = event.get("fullDocument") or event["documentKey"]
                    _ = {
                        **after,
                        "_op": event["operationType"],
                        "_ts": event["clusterTime"],
                        "_place": event["_id"]["_data"],
                    }
                    rows += 1
                    if rows == events:
                        break
            return rows

        read()
        with measured(figures):
            for _ in range(_PASSES):
                figures["rows"] += read()
    return figures
