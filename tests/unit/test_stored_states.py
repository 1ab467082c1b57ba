"""States that an earlier version wrote are read, and what is sealed right after they were read is what was stored.

`tests/states` has one state folder for each source, with tables in every state that there is, and the states of many
simulated jobs; `tests/states/make.py` says how they were made.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.opaque import EnumeratorState, SealedSplit
from raycdc.checkpoint.store import CheckpointStore
from raycdc.cli.tables import table_list
from raycdc.connectors.kafka.enumerator import KafkaEnumerator
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.split import PartitionState
from raycdc.connectors.mongodb.stream.position import StreamPosition
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.source.protocol.api import EnumeratorStart, ReaderOutput
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator import restore_or_create
from raycdc.source.snapshot.key_index import KeyOrder
from raycdc.source.snapshot.log_reader import LogReader, LogReaderSettings
from raycdc.source.snapshot.snapshot_plan import EnumeratorDialect
from raycdc.source.snapshot.stream_state import StreamState, stream_of
from raycdc.source.split import STREAM_SPLIT_ID, StreamSplit
from raycdc.source.table_life import AsOf, Behind, InSnapshot, Live, Parked, TableState
from tests.unit.source.enumerator_context import KeptContext

STATES = Path(__file__).parent.parent / "states"
LOGS = ["mariadb", "mysql80", "mongodb"]


class Dialect:
    chunk_readers_max = 0

    def captures(self, table: Any) -> bool:
        return True


class Order:
    """Keys of a simulated table, or of a server's, that nobody compares here."""

    def bound(self, table: Any, raw: Any) -> tuple[int, str]:
        return (0, json.dumps(raw).rjust(20)) if raw is not None else (1, "")


class Nowhere:
    open_bytes = 0
    spill = None


def document_of(documents: Mapping[str, Any], fingerprint: str) -> SchemaDocument:
    return SchemaDocument.from_json(documents[fingerprint])


def read_again(state: StreamState, documents: Mapping[str, Any]) -> StreamState:
    """The state after a log reader took it over and was asked for it."""
    reader = LogReader(
        StreamSplit(
            state,
            {table.schema: SchemaDocument.from_json(documents[table.schema]) for table in state.followed.values()},
        ),
        key_order=cast("KeyOrder", Order()),
        output=cast("ReaderOutput", Nowhere()),
        send_event=lambda _: None,
        settings=LogReaderSettings(1000),
        now_s=0.0,
    )
    return reader.state()


def taken_over(manifest: Manifest, documents: Mapping[str, Any]) -> dict[str, Any]:
    """The enumerator's state after one took it over, with its attempts as they were."""
    context = KeptContext(open_epoch=99)
    enumerator = restore_or_create(
        context,
        cast("EnumeratorDialect", Dialect()),
        EnumeratorStart(None, manifest, lambda name: document_of(documents, name)),
    )
    state: dict[str, Any] = enumerator.snapshot_state(manifest.epoch).to_json()
    for chunk in state["unfinished"]:
        chunk["attempt"] -= 1  # Each is read again, as another attempt.
    return state


def no_cluster() -> Any:
    raise AssertionError("nobody is asked here")


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    with tarfile.open(STATES / f"{request.param}.tar.gz") as stored:
        stored.extractall(tmp_path / "state", filter="data")
    return CheckpointStore(tmp_path / "state", create=False)


def kinds_of(states: Sequence[StreamState]) -> set[type[TableState]]:
    return {type(table) for state in states for table in (*state.followed.values(), *state.parked.values())}


@pytest.mark.parametrize("store", [*LOGS, "kafka"], indirect=True)
def test_every_manifest_and_record_of_a_folder_is_read(store: CheckpointStore) -> None:
    manifests = {manifest.epoch: manifest for manifest in store.manifests(after=0)}
    files = sorted((store.path / "epochs").glob("*.json"))
    assert len(files) == len(manifests) > 0
    for file in files:
        stored = json.loads(file.read_text(encoding="utf-8"))
        del stored["sha"]
        assert manifests[stored["epoch"]].to_json() == stored
    assert store.last_commit() is not None


@pytest.mark.parametrize("store", LOGS, indirect=True)
def test_a_stored_log_goes_on_where_it_was(store: CheckpointStore) -> None:
    last = store.last_manifest()
    assert last is not None
    stored = last.to_splits[STREAM_SPLIT_ID].to_json()
    state = stream_of(last)
    assert state is not None
    documents = {table.schema: store.document(table.schema) for table in state.followed.values()}
    assert state.to_json() == stored
    assert read_again(state, documents).to_json() == stored
    place: type[BinlogOffset | StreamPosition] = BinlogOffset if "file" in stored["position"] else StreamPosition
    assert place.of(state.position).sealed() == state.position
    assert {InSnapshot, Live, Parked} <= kinds_of([state])
    assert {table["phase"] for table in table_list(store)} >= {"snapshot", "stream"}


@pytest.mark.parametrize("store", LOGS, indirect=True)
def test_a_stored_enumerator_goes_on_where_it_was(store: CheckpointStore) -> None:
    last = store.last_manifest()
    state = stream_of(last)
    assert last is not None
    assert state is not None
    documents = {table.schema: store.document(table.schema) for table in state.followed.values()}
    found = taken_over(last, documents)
    # Of a table that ended its planning is forgotten, as it was when that was sealed.
    stored = last.enumerator.to_json()
    assert {**found, "tables": {}} == {**stored, "tables": {}}
    assert found["tables"].items() <= stored["tables"].items()


@pytest.mark.parametrize("store", ["kafka"], indirect=True)
def test_stored_partitions_and_their_enumerator_go_on_where_they_were(store: CheckpointStore) -> None:
    last = store.last_manifest()
    assert last is not None
    assert len(last.to_splits) == 2
    for stored in last.to_splits.values():
        assert PartitionState.of(stored).sealed() == stored
    config = KafkaSourceConfig(bootstrap_servers="k:1", topics=("kept",), format={"type": "maxwell-json"})
    enumerator = KafkaEnumerator(KeptContext(open_epoch=99), config, cluster=no_cluster, until=None)
    enumerator.restore(last, document=lambda name: SchemaDocument.from_json(store.document(name)))
    assert enumerator.snapshot_state(last.epoch) == last.enumerator


def test_simulated_states_of_every_kind_go_on_where_they_were() -> None:
    stored = json.loads(gzip.decompress((STATES / "simulated.json.gz").read_bytes()))
    documents = stored["documents"]
    states = []
    for kept in stored["states"]:
        splits = {split: SealedSplit.from_json(state) for split, state in kept["to_splits"].items()}
        manifest = Manifest(1, 1, 0, {}, splits, EnumeratorState.from_json(kept["enumerator"]))
        if (state := stream_of(manifest)) is None:
            continue
        states.append(state)
        assert state.to_json() == kept["to_splits"][STREAM_SPLIT_ID]
        assert read_again(state, documents) == state
        found = taken_over(manifest, documents)
        assert {**found, "tables": {}} == {**kept["enumerator"], "tables": {}}
    assert len(states) > 200
    assert kinds_of(states) == {InSnapshot, AsOf, Behind, Live, Parked}
