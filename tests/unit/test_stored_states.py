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

from raycdc.cli.planning.check import state_effects
from raycdc.cli.tables import table_list
from raycdc.config import config_from_dict
from raycdc.connectors.kafka.enumeration.enumerator import KafkaEnumerator
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.split import PartitionState
from raycdc.connectors.mongodb.stream.resume_token import StreamPosition
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.ddl.follow.history_state import HistoryState
from raycdc.delivery.targets.described_targets import DescribedTargets
from raycdc.driver.resolve import next_run
from raycdc.model import TableId
from raycdc.source.protocol.api import EnumeratorStart, ReaderOutput
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.incremental_enumerator import restore_or_create
from raycdc.source.snapshot.enumerator.snapshot_plan import EnumeratorDialect
from raycdc.source.snapshot.handoff.open_chunk import KeyOrder
from raycdc.source.snapshot.log.log_reader import LogReader, LogReaderSettings
from raycdc.source.snapshot.log.stream_state import StreamState, stream_of
from raycdc.source.split import STREAM_SPLIT_ID, StreamSplit
from raycdc.source.tables.parking import Requests, TableRequest, with_requests
from raycdc.source.tables.table_life import AsOf, Behind, CatchingUp, InSnapshot, Live, Parked, TableState
from raycdc.source.tables.table_requests import ask
from raycdc.state.configured import read_configured
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import EnumeratorState, SealedSplit
from raycdc.state.store import CheckpointStore, RoutedTarget
from raycdc.transform import TransformedTables
from tests.unit.source.enumerator_context import KeptContext

STATES = Path(__file__).parent.parent / "states"
LOGS = ["mariadb", "mysql80", "mongodb", "mysql80_marked"]
#: Tables that are paused, and that go on.
PAUSED = "mariadb_paused"
#: A table whose name a session's temporary table hides.
TEMPORARY = "mariadb_temporary"
#: Targets whose columns the commit record says.
DESCRIBED = "mariadb_described"


class CapturesAll:
    chunk_readers_max = 0
    failover = None

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
        StreamSplit.of(state, lambda fingerprint: document_of(documents, fingerprint)),
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
        cast("EnumeratorDialect", CapturesAll()),
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
    return {type(state[table]) for state in states for table in state.tables}


def documents_of(store: CheckpointStore, state: StreamState) -> dict[str, Any]:
    """The descriptions of all tables that are followed, or may be again."""
    names = {table.schema for each in (state.followed, state.parked, state.catching_up) for table in each.values()}
    return {name: store.document(name) for name in names if name is not None}


@pytest.mark.parametrize("store", [*LOGS, PAUSED, TEMPORARY, DESCRIBED, "kafka"], indirect=True)
def test_every_manifest_and_record_of_a_folder_is_read(store: CheckpointStore) -> None:
    manifests = {manifest.epoch: manifest for manifest in store.manifests(after=0)}
    files = sorted((store.path / "epochs").glob("*.json"))
    assert len(files) == len(manifests) > 0
    for file in files:
        stored = json.loads(file.read_text(encoding="utf-8"))
        del stored["sha"]
        assert manifests[stored["epoch"]].to_json() == stored
    assert store.last_commit() is not None


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (DESCRIBED, {"altered": ("id", "qty"), "live": ("id", "name")}),
        # Nothing is described here, but the log knows its tables: one is parked, and of one that is gone nobody knows.
        (
            "mariadb",
            {
                "again": ("id", "name"),
                "away": (),
                "large": ("id", "name"),
                "live": ("id", "name", "qty"),
                "unfit": ("id", "name"),
            },
        ),
        (PAUSED, {"live": ("id", "name", "qty"), "paused": ("id", "name"), "resuming": ("id", "name")}),
    ],
    indirect=["store"],
)
def test_the_columns_of_targets_are_known_whoever_wrote_the_record(
    store: CheckpointStore, expected: dict[str, tuple[str, ...]]
) -> None:
    record = store.last_commit()
    assert record is not None
    routes = {TableId.parse(name): route for name, route in record.routes.items()}
    targets = DescribedTargets(store, TransformedTables(), routes.get)
    known = {name: routes.get(name, RoutedTarget((str(name),), "")) for name in map(TableId.parse, record.tables)}
    targets.start(known, stream_of(store.manifest(record.epoch)))
    assert {name.table: targets.columns_of(name) for name in targets} == expected


@pytest.mark.parametrize(
    ("store", "kinds", "phases"),
    [
        *((name, {InSnapshot, Live, Parked}, {"snapshot", "stream"}) for name in LOGS),
        (PAUSED, {Live, Parked, CatchingUp}, {"stream", "paused", "resuming"}),
        (TEMPORARY, {Live}, {"stream"}),
        (DESCRIBED, {Live}, {"stream"}),
    ],
    indirect=["store"],
)
def test_a_stored_log_goes_on_where_it_was(
    store: CheckpointStore, kinds: set[type[TableState]], phases: set[str]
) -> None:
    last = store.last_manifest()
    assert last is not None
    stored = last.to_splits[STREAM_SPLIT_ID].to_json()
    state = stream_of(last)
    assert state is not None
    assert state.to_json() == stored
    assert read_again(state, documents_of(store, state)).to_json() == stored
    place: type[BinlogOffset | StreamPosition] = BinlogOffset if "file" in stored["position"] else StreamPosition
    assert place.of(state.position).sealed() == state.position
    assert kinds <= kinds_of([state])
    assert {table["phase"] for table in table_list(store)} >= phases


@pytest.mark.parametrize("store", [TEMPORARY], indirect=True)
def test_a_stored_name_stays_hidden(store: CheckpointStore) -> None:
    state = stream_of(store.last_manifest())
    assert state is not None
    history = HistoryState.from_json(state.notes.to_json())
    (names,) = history.temporary.sessions.values()
    assert names == frozenset(state.followed)
    assert history.temporary.file == state.position.to_json()["file"]
    assert history.to_json() == state.notes.to_json()


@pytest.mark.parametrize("store", [PAUSED], indirect=True)
def test_a_stored_table_that_is_paused_goes_on_and_one_that_goes_on_is_paused(store: CheckpointStore) -> None:
    state = stream_of(store.last_manifest())
    assert state is not None
    (paused,), (resuming,) = state.parked, state.catching_up
    parked, going_on = state.parked[paused], state.catching_up[resuming]
    assert parked.left is not None
    assert parked.left.notes
    asked = {str(paused): TableRequest.RESUME, str(resuming): TableRequest.PAUSE}
    after = with_requests(state, Requests(state.changes, asked))
    assert after.catching_up[paused] == CatchingUp(str(parked.schema), True, parked.position, parked.left)
    assert (after.parked[resuming].left, after.parked[resuming].position) == (going_on.left, going_on.position)
    # It was passed on further than to where it was left, in the shape that it had there.
    assert going_on.ordinal > parked.left.ordinal
    assert going_on.schema != parked.schema
    assert read_again(after, documents_of(store, state)) == after


@pytest.mark.parametrize("store", [PAUSED], indirect=True)
@pytest.mark.parametrize(("server_id", "is_told"), [("5400", True), ("5400-5499", False)])
def test_a_plan_foresees_that_a_table_cannot_go_on_beside_its_log(
    store: CheckpointStore, server_id: str, is_told: bool
) -> None:
    state = stream_of(store.last_manifest())
    assert state is not None
    (paused,), (resuming,) = state.parked, state.catching_up
    source = {"type": "mysql", "host": "h", "user": "u", "password": "p", "tables": [rf"{resuming.db}\..*"]}
    kept = read_configured(store)
    assert kept is not None
    sink = {"type": kept["sink.type"], "write": kept["sink.write"], "path": kept["sink.path"]}
    pipeline = {"name": kept["pipeline.name"], "state": str(store.path)}
    config = config_from_dict({"pipeline": pipeline, "source": source | {"server_id": server_id}, "sink": sink})

    def told() -> list[str]:
        texts = state_effects(next_run(config))
        return [text.partition(" does not go on")[0] for text in texts if "a run parks" in text]

    assert told() == ([str(resuming)] if is_told else [])
    ask(store, [str(paused)], TableRequest.RESUME)
    assert told() == (sorted([str(resuming), str(paused)]) if is_told else [])


@pytest.mark.parametrize(("store", "is_marked"), [("mysql80", False), ("mysql80_marked", True)], indirect=["store"])
def test_a_stored_position_of_a_log_has_what_it_is_known_by_where_that_was_kept(
    store: CheckpointStore, is_marked: bool
) -> None:
    state = stream_of(store.last_manifest())
    assert state is not None
    offset = BinlogOffset.of(state.position)
    assert (offset.mark is not None and offset.mark.at > 0) is is_marked
    assert ("mark" in offset.to_json()) is is_marked


@pytest.mark.parametrize("store", [*LOGS, PAUSED], indirect=True)
def test_a_stored_enumerator_goes_on_where_it_was(store: CheckpointStore) -> None:
    last = store.last_manifest()
    state = stream_of(last)
    assert last is not None
    assert state is not None
    found = taken_over(last, documents_of(store, state))
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


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("simulated", {InSnapshot, AsOf, Behind, Live, Parked}),
        ("simulated_pauses", {InSnapshot, AsOf, Behind, Live, Parked, CatchingUp}),
    ],
)
def test_simulated_states_of_every_kind_go_on_where_they_were(name: str, kinds: set[type[TableState]]) -> None:
    stored = json.loads(gzip.decompress((STATES / f"{name}.json.gz").read_bytes()))
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
    assert len(states) > 100
    assert kinds_of(states) == kinds
