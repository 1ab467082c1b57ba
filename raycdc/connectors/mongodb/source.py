"""The MongoDB source: made from its configuration in every process, it hands out that process's part.

A bounded source so far: collections are read once, in chunks that any reader takes. It runs under the enumerator and
readers of all incremental snapshots, with a log that knows of new beginnings only.
"""

from __future__ import annotations

from typing import Any

from raycdc.connectors.mongodb.catalog import discover, found, layout_of
from raycdc.connectors.mongodb.chunk_reader import MongoDbChunkReader
from raycdc.connectors.mongodb.client import connect, probe
from raycdc.connectors.mongodb.enumerator_dialect import MongoDbEnumeratorDialect
from raycdc.connectors.mongodb.keys import SnapshotKeyOrder
from raycdc.connectors.mongodb.layout import Layout
from raycdc.connectors.mongodb.new_beginnings import NewBeginnings
from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.warm_up import compile_all
from raycdc.errors import ConfigError, SourceError
from raycdc.model import TableId
from raycdc.source.split import StreamSplit


class MongoDbSource:
    """See the module's docstring. Picklable: it holds the configuration, never a connection."""

    #: There are no dropped rows to remember.
    ring_s = 0.0

    def __init__(self, config: MongoDbSourceConfig) -> None:
        self._config = config

    def __repr__(self) -> str:
        return f"MongoDbSource({', '.join(self._config.collections)})"

    def warm_up(self) -> None:
        """Load the compiled loops (or compile them) before there is a document to decode."""
        compile_all()

    def preflight(self, splits: dict[str, Any] | None) -> None:
        """Refuse early, in the driver, what could not work: `splits` are the last sealed states, None at a first start.

        Raises `SourceError` with the fix, also for another replica set than the one a snapshot was begun of.
        """
        with connect(self._config.uri) as client:
            info = probe(client)
            discover(client, self._config.selector())
        for state in (splits or {}).values():
            begun = state["position"].get("replica_set", "")
            if begun and begun != info.replica_set:
                raise SourceError(
                    f"{info.address} belongs to the replica set {info.replica_set or 'none'!r}, and the snapshot was "
                    f"begun of {begun!r}. Point source.uri at that one, or begin with another pipeline.state."
                )

    def enumerator_dialect(self) -> MongoDbEnumeratorDialect:
        return MongoDbEnumeratorDialect(self._config)

    def log_reader(self, split: StreamSplit) -> NewBeginnings:
        parked = split.state.get("parked", {}).items()
        again = [TableId.parse(name) for name, entry in parked if entry["again"]]
        return NewBeginnings(self._look_at, again, split.state["position"])

    def _look_at(self, table: TableId) -> Layout | None:
        with connect(self._config.uri) as client:
            uuid = found(client, table)
            return None if uuid is None else layout_of(client, self._config, table, uuid)

    def chunk_reader(self) -> MongoDbChunkReader:
        return MongoDbChunkReader(connect(self._config.uri))

    def key_order(self, split: StreamSplit) -> SnapshotKeyOrder:
        """Raises `ConfigError` where a collection was begun in another way than it would be now."""
        for name, table in split.state["tables"].items():
            begun = Layout.from_document(split.schemas[table["schema"]]).asked
            now = self._config.asked_of(TableId.parse(name))
            if begun != now:
                raise ConfigError(
                    f"source.schema, source.columns: {name} was begun with {begun}, and has {now} now; the target "
                    "would mix both. Put the old ones back, or begin with a new pipeline.state and an empty target, or "
                    "pipeline.on_existing."
                )
        return SnapshotKeyOrder()
