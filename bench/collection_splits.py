"""The part of `bench.splits` about MongoDB: the four strategies on a collection with skewed sizes and mixed keys.

The server is an emulation that looks through the whole collection for each chunk, so figures of time compare strategies
with each other only; what is real is how even the chunks are, and how many commands planning takes. It knows no
cluster: for `sharded`, the bounds of a cluster's chunks are written where a cluster keeps them.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.measure import Measurement, measured, progress

if TYPE_CHECKING:
    from raycdc.source.schema_document import SchemaDocument

STRATEGIES = ("sharded", "splitVector", "sample", "single")
#: As many as the emulation reads in all chunks of all readers within minutes.
DOCUMENTS_MAX = 200_000
#: Of a chunk, for each document that there is: about thirty chunks, however many these are.
_CHUNK_BYTES_EACH = 5
_READERS = (1, 2, 4)


def run(case: str, rows: int, cpu_s: Any) -> Iterator[Measurement]:
    """Fill a collection and plan and read it with each strategy; `cpu_s` tells the CPU time of a process."""
    import bson

    from raycdc.connectors.mongodb.snapshot import chunks as splits
    from raycdc.testing.servers import MongoDbServer

    count = min(rows, DOCUMENTS_MAX)
    # The configuration speaks of whole MiB; the collection is as small as the emulation is slow.
    splits._MIB = _CHUNK_BYTES_EACH * count
    with MongoDbServer() as server, server.client() as client:
        progress(f"{case}: writing {count:,d} documents ...")
        keys = [_key(number) for number in range(count)]
        documents = [{"_id": key, "t": "x" * (400 if n < count // 10 else 40)} for n, key in enumerate(keys)]
        for first in range(0, count, 10_000):
            client.bench[case].insert_many(documents[first : first + 10_000])
        _as_if_sharded(client, case, keys)
        wanted = count * _CHUNK_BYTES_EACH * count // sum(len(bson.encode(document)) for document in documents)
        for strategy in STRATEGIES:
            yield _measure(server, case, strategy, count, cpu_s, wanted)


def _key(number: int) -> Any:
    return (number, f"key {number:07d}", {"shop": number % 7, "number": number})[number % 3]


def _as_if_sharded(client: Any, case: str, keys: Sequence[Any]) -> None:
    import bson

    from raycdc.connectors.mongodb.snapshot.keys import sort_key

    ordered = sorted(keys, key=sort_key)
    bounds = [bson.MinKey(), *ordered[len(ordered) // 20 :: len(ordered) // 20], bson.MaxKey()]
    name = f"bench.{case}"
    client.config.collections.insert_one({"_id": name, "key": {"_id": 1}})
    client.config.chunks.insert_many(
        {"ns": name, "min": {"_id": low}, "max": {"_id": high}} for low, high in pairwise(bounds)
    )


def _measure(server: Any, case: str, strategy: str, count: int, cpu_s: Any, wanted: int) -> Measurement:
    from raycdc.checkpoint.opaque import PlannerState
    from raycdc.connectors.mongodb.enumerator_dialect import MongoDbEnumeratorDialect
    from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig

    progress(f"{case}: measuring {strategy} ...")
    options = {"collections": [f"bench.{case}"], "startup": "snapshot", "schema": "document"}
    config = MongoDbSourceConfig.model_validate(
        {"type": "mongodb", "uri": server.uri, **options, "snapshot": {"strategy": strategy, "chunk_mb": 1}}
    )
    figures: dict[str, Any] = {}
    dialect = MongoDbEnumeratorDialect(config)
    (table,) = dialect.start_point().tables
    before, started = cpu_s(server.pid), time.perf_counter()
    with _commands() as sent, measured(figures):
        chunks = dialect.plan(table.document, table.table, PlannerState.from_json({"key": "_id"}), 0).splits
        planning_s, planning_cpu_s = time.perf_counter() - started, cpu_s(server.pid) - before
        queries = len(sent)
        read = {str(readers): _read(config, table.document, chunks, readers) for readers in _READERS}
    sizes = sorted(read[str(_READERS[0])].pop("sizes"))
    for other in _READERS[1:]:
        assert sorted(read[str(other)].pop("sizes")) == sizes, "readers found different chunks"
    assert sum(sizes) == count, f"{strategy} read {sum(sizes)} of {count} documents"
    more = {
        "planning_s": round(planning_s, 3),
        "first_chunks_s": round(planning_s, 3),
        "planning_queries": queries,
        "planning_rows_read": None,
        "planning_server_cpu_s": round(planning_cpu_s, 2),
        "table": str(table.table),
        "key": "_id",
        "chunks": len(sizes),
        "chunk_rows": {
            "wanted": wanted,
            "p50": round(statistics.median(sizes)),
            "p99": sizes[min(len(sizes) - 1, len(sizes) * 99 // 100)],
            "max": sizes[-1],
        },
        "readers": read,
        "server_cpu_s": round(cpu_s(server.pid) - before, 2),
    }
    wall = round(planning_s + read[str(_READERS[-1])]["wall_s"], 3)
    rest = {"cpu_s": figures["cpu_s"], "peak_rss_mb": figures["peak_rss_mb"]}
    return Measurement(case=case, system=strategy, rows=sum(sizes), wall_s=wall, **rest, more=more)


@contextmanager
def _commands() -> Iterator[list[str]]:
    """Names of the commands that clients made within the block send."""
    from pymongo import monitoring

    sent: list[str] = []

    class Listener(monitoring.CommandListener):
        def started(self, event: Any) -> None:
            if event.command_name not in ("hello", "ismaster", "endSessions"):
                sent.append(event.command_name)

        def succeeded(self, event: Any) -> None: ...

        def failed(self, event: Any) -> None: ...

    monitoring.register(Listener())
    yield sent


def _read(config: Any, document: SchemaDocument, chunks: Sequence[Any], readers: int) -> dict[str, Any]:
    """Read every chunk, each reader taking the next one when it is free."""
    from raycdc.connectors.mongodb.client import connect
    from raycdc.connectors.mongodb.snapshot.chunk_reader import MongoDbChunkReader
    from raycdc.connectors.mongodb.stream.position import NoLogPosition
    from raycdc.source.split import OpenedAt

    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for chunk in chunks:
        waiting.put(chunk)
    rows, ended = [0] * readers, [0.0] * readers
    sizes: list[int] = []
    nowhere = OpenedAt(NoLogPosition("").sealed())
    started = time.perf_counter()

    def work(number: int) -> None:
        reader = MongoDbChunkReader(connect(config.uri))
        try:
            while True:
                chunk = waiting.get_nowait()
                size = sum(batch.num_rows for batch in reader.read(chunk, opened_at=nowhere, document=document))
                rows[number] += size
                sizes.append(size)
        except queue.Empty:
            ended[number] = time.perf_counter() - started
        finally:
            reader.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = max(ended)
    return {
        "wall_s": round(wall, 3),
        "rows_per_s": round(sum(rows) / max(wall, 1e-6)),
        "idle_at_the_end": round(1 - sum(ended) / (readers * max(wall, 1e-6)), 3),
        "rows_most_over_least": round(max(rows) / max(1, min(rows)), 2),
        "sizes": sizes,
    }
