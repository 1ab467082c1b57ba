"""The epoch loop with transforms into lakes, databases and topics: the same rows everywhere, whatever dies where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from raycdc.core.failpoints import FailpointError
from raycdc.delivery.outcomes import Recovery
from raycdc.errors import DataError, SinkError
from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.model.rules.routes import Route
from raycdc.model.rules.transform import Transform
from raycdc.sandbox.servers import KafkaServer
from tests.epochs.sink_world import COLLECTIONS, DATABASES, TOPICS, World, world_of
from tests.epochs.transform_world import TransformedWorld, new_world, play, play_names, play_passed_names, play_shards

pytestmark = [
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

UPSERTS = (
    "delta-upsert",
    "iceberg-upsert",
    "postgres-upsert",
    "mysql-upsert",
    "mongodb-upsert",
    "mongodb-parts-upsert",
)
#: What is staged again is the same wherever it is; each mechanism dies at each point in `tests/epochs/test_epoch_loop`.
DEATHS = [
    *((kind, "in_commit") for kind in ("kafka", "postgres-upsert", "postgres-changelog", "mysql-upsert", *COLLECTIONS)),
    *(
        pytest.param(kind, at, marks=pytest.mark.long(suite="sinks"))
        for kind in ("kafka", "postgres-upsert")
        for at in ("before_commit", "after_last_commit")
    ),
]
#: Two rows with one key: within an epoch that is found before a sink has a part in it, so that one kind shows it;
#: the suite ``sinks`` plays all.
CLASHES = [
    pytest.param(kind, together, marks=[pytest.mark.long(suite="sinks")] if together and kind != "delta-upsert" else [])
    for kind in UPSERTS
    for together in (True, False)
]


Make = Callable[..., TransformedWorld]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path, spark: Any) -> Make:
    """A world whose targets are on an empty server."""

    def made(kind: str, *transforms: Transform) -> TransformedWorld:
        return new_world(kind, tmp_path, *transforms, spark=spark, place=world_of(request, kind, tmp_path))

    return made


@pytest.mark.long_variants("kafka-parts", "*-changelog", "mongodb-parts-*", suite="sinks")
@pytest.mark.parametrize("kind", [*TOPICS, *DATABASES, *COLLECTIONS, "mysql-changelog"])
def test_rows_are_computed_and_filtered_and_a_later_column_flows(kind: str, make: Make) -> None:
    world = make(kind)
    orders = play(world)
    world.loop().run()
    world.check_table(orders)
    assert world.restart() == Recovery(4)


@pytest.mark.long_variants("*-changelog-*", "mysql-*", "mongodb-parts-*", suite="sinks")
@pytest.mark.parametrize(("kind", "point"), DEATHS)
def test_an_epoch_that_is_staged_again_has_the_same_rows(
    kind: str, point: str, make: Make, fail_at: Callable[[str, int], None]
) -> None:
    world = make(kind)
    orders = play(world)
    fail_at(point, 3)
    with pytest.raises((FailpointError, SinkError)):
        world.loop().run()
    world.restart()
    world.check_table(orders)


@pytest.mark.long_variants("mysql-*", "mongodb-*", suite="sinks")
@pytest.mark.parametrize("kind", UPSERTS)
def test_deleted_rows_are_marked_behind_a_filter_and_live_again(kind: str, make: Make) -> None:
    soft = Transform(table="shop.orders", filter="qty > 0", on_delete="soft", deleted_column="gone")
    world = make(kind, soft)
    orders = world.script.table("shop.orders")
    orders.read([{"id": i, "name": "a", "qty": i} for i in range(5)])
    orders.update((1,), qty=0)
    orders.delete((2,))
    world.script.seal()
    orders.update((0,), qty=9)
    orders.update((3,), id=30)
    orders.insert({"id": 2, "name": "again", "qty": 5})
    world.script.seal(final=True)
    world.loop().run()
    found = {row["id"]: (row["qty"], bool(row["gone"])) for row in world.target_rows("shop.orders")}
    assert found == {0: (9, False), 1: (1, True), 2: (5, False), 3: (3, True), 30: (3, False), 4: (4, False)}


#: MySQL has no key of texts without a length, and expressions give none.
BY_NAME = Transform(table="shop.orders", projection="upper(name) AS name, qty", primary_keys=("name",))
BY_NUMBER = Transform(
    table="shop.orders", projection="CAST(substr(name, 2) AS INT) AS name, qty", primary_keys=("name",)
)


def key_of(kind: str, name: str) -> str | int:
    return int(name[1:]) if kind.startswith("mysql") else name


@pytest.mark.long_variants("mysql-*", "mongodb-*", suite="sinks")
@pytest.mark.parametrize("kind", UPSERTS)
def test_rows_are_updated_by_another_key(kind: str, make: Make) -> None:
    world = make(kind, BY_NUMBER if kind.startswith("mysql") else BY_NAME)
    play_names(world)
    world.loop().run()
    found = {row["name"]: row["qty"] for row in world.target_rows("shop.orders")}
    assert found == {key_of(kind, f"N{name}"): qty for name, qty in ((0, 7), (8, 1), (2, 20), (3, 3))}


@pytest.mark.long_variants("mysql-*", "mongodb-*", suite="sinks")
@pytest.mark.parametrize("kind", UPSERTS)
def test_a_key_that_passes_between_rows_within_an_epoch_is_the_last_owners(kind: str, make: Make) -> None:
    """The key of the table, by which rows are told apart, is not in the target."""
    world = make(kind, BY_NUMBER if kind.startswith("mysql") else BY_NAME)
    wanted = play_passed_names(world)
    world.loop().run()
    found = {row["name"]: row["qty"] for row in world.target_rows("shop.orders")}
    assert found == {key_of(kind, f"N{name}"): qty for name, qty in wanted.items()}


@pytest.mark.long_variants("mysql-*", "mongodb-*", suite="sinks")
@pytest.mark.parametrize(("kind", "together"), CLASHES)
def test_two_rows_with_one_new_key_are_refused(kind: str, together: bool, make: Make) -> None:
    world = make(kind, BY_NUMBER if kind.startswith("mysql") else BY_NAME)
    orders = world.script.table("shop.orders")
    orders.read([{"id": 1, "name": "N1", "qty": 1}])
    if not together:
        world.script.seal()
    orders.insert({"id": 2, "name": "N1", "qty": 2})
    world.script.seal(final=True)
    with pytest.raises(DataError, match=r"shop.orders: more than one row has the same key \(name\), which"):
        world.loop().run()


@pytest.mark.long_variants("mysql-*", "mongodb-*", suite="sinks")
@pytest.mark.parametrize("kind", UPSERTS)
def test_transformed_shards_are_merged_and_go_to_a_second_target(kind: str, make: Make) -> None:
    shard = r"shop\.orders_(\d)"
    world = make(kind, Transform(table=shard, projection="id * 10 + CAST(right(_table, 1) AS INT) AS key, name",
                                 primary_keys=("key",), filter="qty > 0"))  # fmt: skip
    world.routes = (Route(shard, "shop.all"), Route(shard, "shop.copy_$1"))
    play_shards(world)
    world.loop().run()
    first, second = {31: "orders_1", 51: "orders_1"}, {12: "orders_2", 22: "orders_2", 32: "orders_2"}
    held = [{row["key"]: row["name"] for row in world.target_rows(f"shop.{t}")} for t in ("all", "copy_1", "copy_2")]
    assert held == [first | second, first, second]


NOTHING = Transform(table="shop.nothing")
SHARDS = r"shop\.orders_(\d)"


@pytest.mark.long_variants("mysql-*", "mongodb-*", suite="sinks")
@pytest.mark.parametrize(("kind", "together"), CLASHES)
def test_a_key_of_two_shards_is_refused_before_a_row_of_it_is_written(kind: str, together: bool, make: Make) -> None:
    world = make(kind, NOTHING)
    world.routes = (Route(SHARDS, "shop.all"),)
    one, two = world.script.table("shop.orders_1"), world.script.table("shop.orders_2")
    one.read([{"id": 1, "name": "one", "qty": 1}])
    if not together:
        world.script.seal()
    two.insert({"id": 1, "name": "two", "qty": 2})
    world.script.seal(final=True)
    with pytest.raises(DataError, match=r"shop\.all: a row of the same key \(id\) comes from more than one of the"):
        world.loop().run()
    assert [row["name"] for row in world.target_rows("shop.all")] == ([] if together else ["one"])


@pytest.mark.long_variants("mysql-*", "mongodb-*", suite="sinks")
@pytest.mark.parametrize("kind", UPSERTS)
def test_rows_move_between_shards_and_others_stay(kind: str, make: Make) -> None:
    world = make(kind, NOTHING)
    world.routes = (Route(SHARDS, "shop.all"),)
    one, two = world.script.table("shop.orders_1"), world.script.table("shop.orders_2")
    for shard, keys in ((one, range(4)), (two, range(4, 8))):
        shard.read([{"id": key, "name": "old", "qty": key} for key in keys])
    world.script.seal()
    # A row that was there and gone within the epoch says nothing of the other shard's row.
    one.insert({"id": 4, "name": "short", "qty": 0})
    one.delete((4,))
    one.delete((1,))
    two.insert({"id": 1, "name": "moved", "qty": 1})
    two.delete((6,))
    world.script.seal(final=True)
    world.loop().run()
    held = {row["id"]: row["name"] for row in world.target_rows("shop.all")}
    assert held == {0: "old", 1: "moved", 2: "old", 3: "old", 4: "old", 5: "old", 7: "old"}


@pytest.mark.long_variants("postgres-*", "mysql-*", "mongodb-*", suite="sinks")
@pytest.mark.parametrize("kind", ["jsonl", "kafka", "postgres-changelog", "mysql-changelog", "mongodb-changelog"])
def test_in_a_changelog_another_key_makes_an_update_a_deletion_and_an_insert(kind: str, make: Make) -> None:
    by = Transform(table="shop.orders", projection="qty % 10 AS id, name", primary_keys=("id",))
    world = make(kind, by)
    orders = world.script.table("shop.orders")
    orders.insert({"id": 1, "name": "a", "qty": 1})
    orders.update((1,), qty=11)
    orders.update((1,), qty=12)
    orders.update((1,), name="b")
    world.script.seal(final=True)
    world.loop().run()
    number = Column("id", LogicalType(TypeKind.INT32), nullable=False)
    shape = TableSchema((number, Column("name", LogicalType(TypeKind.STRING))), ("id",))
    rows = sorted(world.target_rows("shop.orders", shape), key=lambda row: row["_seq"])
    assert [(row["_op"], row["id"], row["name"]) for row in rows] == [
        ("+I", 1, "a"), ("-U", 1, "a"), ("+U", 1, "a"), ("-D", 1, "a"), ("+I", 2, "a"), ("-U", 2, "a"), ("+U", 2, "b")
    ]  # fmt: skip


def last_messages(kafka: KafkaServer, topic: str, partitions: int) -> dict[str, bytes | None]:
    """The last message of each key: what compaction leaves of the topic."""
    reader = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer(reader)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: dict[str, bytes | None] = {}
    ended = 0
    while ended < partitions:
        for message in consumer.consume(1000, timeout=5):
            key = message.key()
            ended += message.error() is not None
            if message.error() is None and key is not None:
                found[json.loads(key)["pk.name"]] = message.value()
    consumer.close()
    return found


@pytest.mark.parametrize(("kind", "partitions"), [("kafka", 1), ("kafka-parts", 3)])
def test_a_key_that_passes_between_rows_has_no_tombstone_as_its_last_message(
    kind: str, partitions: int, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = vars(World)["settings"].fget
    monkeypatch.setattr(World, "settings", property(lambda self: {**plain(self), "tombstones": True}))
    world = make(kind, Transform(table="shop.orders", primary_keys=("name",)))
    wanted = play_passed_names(world)
    world.loop().run()
    assert world.kafka is not None
    last = last_messages(world.kafka, world.topic(world.script.table("shop.orders")), partitions)
    found = {name: json.loads(value)["data"]["qty"] for name, value in last.items() if value is not None}
    assert found == {f"N{name}": qty for name, qty in wanted.items()}
