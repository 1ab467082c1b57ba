"""Lookup joins through the epoch loop: what rows get, what is left out, and that it is settled once, whatever dies."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
import pytest

from raycdc.config import LookupOptions
from raycdc.core.failpoints import FailpointError
from raycdc.delivery.lookup.mongodb import MongoDbDimension
from raycdc.errors import ConfigError, DataError, SchemaError, SourceUnavailableError, StateError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.rules.routes import Route
from raycdc.model.rules.transform import Transform
from raycdc.sandbox.servers import MongoDb, MongoDbServer
from raycdc.testing.epochs import Row, ScriptedTable
from tests.epochs.transform_world import TransformedWorld, add_column, new_world

pytestmark = pytest.mark.server


@pytest.fixture
def database(mongodb: MongoDb) -> Iterator[str]:
    with mongodb.fresh_database("dim") as name, mongodb.client() as client:
        client[name].users.insert_many({"_id": n, "name": f"user {n}", "vip": n % 2 == 0} for n in range(10))
        yield name


@pytest.fixture
def users(mongodb: MongoDb, database: str) -> Iterator[Any]:
    with mongodb.client() as client:
        yield client[database].users


Make = Callable[..., TransformedWorld]


@pytest.fixture
def make(mongodb: MongoDb, database: str, tmp_path: Path) -> Iterator[Make]:
    """A world whose shop.orders look `qty` up among users; keyword arguments are those of the ``[[lookup]]``."""
    worlds: list[TransformedWorld] = []

    def made(kind: str = "delta-upsert", *transforms: Transform, **options: Any) -> TransformedWorld:
        settings = {
            "table": "shop.orders",
            "uri": mongodb.uri,
            "collection": f"{database}.users",
            "on": {"qty": "_id"},
            "columns": {"name": "string", "vip": "bool"},
            "prefix": "user_",
            "retry_wait": "1ms",
        }
        lookup = LookupOptions.model_validate(settings | options)
        worlds.append(replace(new_world(kind, tmp_path), transforms=transforms, lookups=(lookup,)))
        return worlds[-1]

    yield made
    for world in worlds:
        for lookups in world.opened:
            lookups.close()


def orders_of(world: TransformedWorld) -> ScriptedTable:
    return world.script.table("shop.orders")


def order(number: int, qty: int | None) -> Row:
    return {"id": number, "name": "n", "qty": qty}


def found(world: TransformedWorld, *names: str) -> list[tuple[Any, ...]]:
    """Rows of the target as tuples: `id` and the columns `names`."""
    rows = world.target_rows("shop.orders")
    return sorted((row["id"], *(row[name] for name in names or ("qty", "user_name", "user_vip"))) for row in rows)


def run(world: TransformedWorld) -> None:
    world.loop().run()
    assert list((world.root / "looked_up").iterdir()) == []


# -- what rows get


@pytest.mark.parametrize("kind", ["delta-upsert", "delta-tasks-upsert", "jsonl", "parquet"])
def test_rows_get_the_columns_of_their_document_in_their_own_order(make: Make, kind: str) -> None:
    world = make(kind)
    numbers = [(n * 7) % 13 for n in range(200)]
    orders_of(world).read([order(n, qty) for n, qty in enumerate(numbers[:100])])
    for n, qty in enumerate(numbers[100:], start=100):
        orders_of(world).insert(order(n, qty))
    orders_of(world).insert(order(900, None))
    world.script.seal(final=True)
    run(world)
    rows = world.target_rows("shop.orders")
    if not world.upsert:
        assert [row["id"] for row in sorted(rows, key=lambda row: row["_seq"])] == [*range(200), 900]
    expected = [(n, q, f"user {q}" if q < 10 else None, q % 2 == 0 if q < 10 else None) for n, q in enumerate(numbers)]
    assert found(world) == [*expected, (900, None, None, None)]


def test_updates_and_deletions_follow_where_rows_are_updated(make: Make, users: Any) -> None:
    world, orders = make(), None
    orders = orders_of(world)
    orders.read([order(n, n) for n in range(4)])
    world.script.seal()
    orders.update((0,), qty=5)
    orders.update((1,), name="same key")
    orders.update((2,), id=20)
    orders.delete((3,))
    world.script.seal(final=True)
    users.update_one({"_id": 1}, {"$set": {"name": "before all"}})
    run(world)
    assert found(world, "user_name") == [(0, "user 5"), (1, "before all"), (20, "user 2")]


def test_rows_without_a_document_are_left_out_and_go_when_an_update_makes_them_so(make: Make) -> None:
    world = make(missing="drop")
    orders = orders_of(world)
    orders.read([order(n, n) for n in range(4)] + [order(4, 77), order(5, None)])
    world.script.seal()
    orders.update((0,), qty=77)  # goes
    orders.update((4,), qty=4)  # comes
    orders.update((5,), name="still without one")
    orders.delete((1,))
    orders.insert(order(6, 78))
    orders.delete((6,))  # was never there
    orders.update((2,), id=22, qty=77)  # its old key goes
    orders.update((3,), id=33)
    world.script.seal(final=True)
    run(world)
    assert found(world, "qty", "user_name") == [(4, 4, "user 4"), (33, 3, "user 3")]


@pytest.mark.parametrize("gone", ["the document", "the key"])
def test_a_row_goes_though_its_insert_was_delivered(make: Make, users: Any, gone: str) -> None:
    """The before-image's document is gone too: what was delivered must not be asked of the dimension."""
    world = make(missing="drop")
    orders_of(world).insert(order(1, 1))
    world.script.seal()
    world.restart()
    assert found(world, "user_name") == [(1, "user 1")]
    if gone == "the document":
        users.delete_one({"_id": 1})
        orders_of(world).update((1,), name="changed")
    else:
        orders_of(world).update((1,), qty=None)
    world.script.seal(final=True)
    world.restart()
    assert found(world) == []


def test_images_that_lack_the_row_before_take_the_old_row_with_them(make: Make, users: Any) -> None:
    """As change streams without images have it: an update comes alone, and a chunk's rows are never deletions."""
    world = replace(make(missing="drop"), partial=True)
    orders = orders_of(world)
    orders.read([order(1, 1), order(2, 2), order(3, 77)])
    world.script.seal()
    for key in (1, 2):
        orders.update((key,), name="changed")
    orders.log = [row for row in orders.log if row[0].symbol != "-U"]
    users.delete_one({"_id": 1})
    world.script.seal(final=True)
    run(world)
    assert found(world, "name", "user_name") == [(2, "changed", "user 2")]


def test_a_changelog_is_exact_or_refused(make: Make) -> None:
    world = make("jsonl", missing="drop")
    orders = orders_of(world)
    orders.insert(order(1, 1))
    orders.insert(order(2, None))
    orders.update((2,), qty=2)
    orders.insert(order(3, None))
    orders.delete((3,))
    world.script.seal()
    world.restart()
    rows = sorted(world.target_rows("shop.orders"), key=lambda row: row["_seq"])
    assert [(row["_op"], row["id"], row["user_name"]) for row in rows] == [("+I", 1, "user 1"), ("+I", 2, "user 2")]
    orders.update((1,), name="changed")
    world.script.seal(final=True)
    with pytest.raises(
        DataError,
        match=r"lookup\[0\]: the row at .* with its key in \(id\) was updated or deleted, and in a",
    ):
        world.restart()


def test_an_emptied_table_empties_its_target(make: Make) -> None:
    world = make(missing="drop")
    orders_of(world).insert(order(1, 1))
    world.script.seal()
    orders_of(world).truncate()
    orders_of(world).insert(order(2, 2))
    world.script.seal(final=True)
    run(world)
    assert found(world, "user_name") == [(2, "user 2")]


# -- settled once


@pytest.mark.parametrize("point", ["after_lookup", "before_commit", "in_commit", "after_last_commit"])
@pytest.mark.parametrize("kind", ["delta-tasks-upsert", "jsonl"])
def test_what_was_found_is_settled_whatever_dies(
    make: Make, users: Any, kind: str, point: str, fail_at: Callable[[str, int], None]
) -> None:
    world = make(kind, missing="drop")
    orders_of(world).read([order(n, n) for n in range(8)])
    for n in range(100, 108):
        orders_of(world).insert(order(n, n - 100))
    world.script.seal(final=True)
    fail_at(point, 2 if point == "after_lookup" else 1)
    with pytest.raises(FailpointError):
        world.loop().run()
    users.update_many({}, {"$set": {"name": "later"}})
    users.delete_one({"_id": 3})
    world.restart()
    assert found(world, "user_name") == [(n, f"user {n % 100}") for n in (*range(8), *range(100, 108))]
    world.restart()  # which sweeps what the first one still had to ask for
    assert list((world.root / "looked_up").iterdir()) == []


def test_a_segment_that_was_only_begun_is_asked_for_again(make: Make, users: Any, monkeypatch: Any) -> None:
    world = make()
    orders_of(world).insert(order(1, 1))
    world.script.seal(final=True)

    def die(*_: object) -> None:
        raise FailpointError("between the segment's file and its note")

    with monkeypatch.context() as patched:
        patched.setattr("raycdc.state.files.folder.LocalFolder.write_all", die)
        with pytest.raises(FailpointError):
            world.loop().run()
    users.update_many({}, {"$set": {"name": "later"}})
    world.restart()
    assert found(world, "user_name") == [(1, "later")]
    assert list((world.root / "looked_up").iterdir()) == []


def test_what_was_found_and_is_gone_is_refused(make: Make, fail_at: Callable[[str, int], None]) -> None:
    world = make()
    orders_of(world).insert(order(1, 1))
    world.script.seal(final=True)
    fail_at("before_commit", 1)
    with pytest.raises(FailpointError):
        world.loop().run()
    with pytest.raises(StateError, match=r"of shop\.orders differs from when epoch 1 was begun"):
        replace(world, lookups=(world.lookups[0].model_copy(update={"prefix": "other_"}),)).restart()
    (joined,) = (world.root / "looked_up").glob("*.arrow")
    joined.write_bytes(b"")
    with pytest.raises(StateError, match=r"is missing or damaged\. It has the answers of lookups for epoch 1"):
        world.restart()


# -- asking


def test_keys_are_asked_once_a_segment_in_batches_with_few_requests_at_once(make: Make, monkeypatch: Any) -> None:
    asked: list[list[int]] = []
    under_way, both = [0, 0], threading.Barrier(2, timeout=120)
    fetch = MongoDbDimension.fetch

    def watched(self: MongoDbDimension, keys: Any) -> Any:
        under_way[0] += 1
        both.wait()  # two are under way, or this breaks
        under_way[1] = max(under_way)
        both.wait()
        under_way[0] -= 1
        asked.append(keys.to_pylist())
        return fetch(self, keys)

    monkeypatch.setattr(MongoDbDimension, "fetch", watched)
    world = make(batch=3, requests=2)
    orders_of(world).read([order(n, n % 10) for n in range(300)])
    world.script.seal(final=True)
    run(world)
    assert sorted(itertools.chain(*asked)) == list(range(10))
    assert (max(map(len, asked)), under_way[1]) == (3, 2)
    assert found(world, "user_name") == [(n, f"user {n % 10}") for n in range(300)]


def test_a_cache_answers_until_its_time_is_over_and_forgets_the_oldest(
    make: Make, users: Any, monkeypatch: Any
) -> None:
    now, room = [1000.0], {"bytes_max": 1 << 20}
    monkeypatch.setattr(
        "raycdc.delivery.lookup.queries.Cache.__init__.__kwdefaults__", {"clock": lambda: now[0]} | room
    )
    world = make(cache_ttl="1m", cache_rows=3)
    orders = orders_of(world)

    def next_epoch(number: int, *keys: int) -> None:
        for key in keys:
            orders.insert(order(number + key, key))
        world.script.seal()

    def seen(number: int) -> list[str | None]:
        return [row[1] for row in found(world, "user_name") if number <= row[0] < number + 100]

    epochs: list[Callable[[], None]] = []

    def sealed(after: int, _: float) -> Any:
        if not world.store.sealed_epochs(after):
            if not epochs:
                loop.stop()
                return None
            if after > loop.committed:
                return None
            epochs.pop(0)()
        return next(iter(world.store.manifests(after)), None)

    def changed_within() -> None:
        users.update_many({}, {"$set": {"name": "later"}})
        users.insert_one({"_id": 50, "name": "new"})
        now[0] += 59.0
        next_epoch(200, 1, 2, 50)

    def over() -> None:
        now[0] += 2.0
        next_epoch(300, 1, 50)

    def last() -> None:
        users.update_many({}, {"$set": {"name": "last"}})
        next_epoch(500, 1, 4)

    loop = world.loop(next_sealed=sealed)
    epochs += [lambda: next_epoch(100, 1, 2, 50), changed_within, over, lambda: next_epoch(400, 2, 3, 4), last]
    loop.run()
    assert seen(100) == ["user 1", "user 2", None]
    assert seen(200) == ["user 1", "user 2", None]
    assert seen(300) == ["later", "new"]
    # Four of three remembered keys are too many: 1 and 50 went, the others stay.
    assert seen(500) == ["last", "later"]


def test_a_server_that_fails_for_a_moment_is_asked_again(make: Make, mongodb: MongoDb) -> None:
    if not isinstance(mongodb, MongoDbServer):
        pytest.skip("only the emulated server fails when it is told to")
    world = make(retries=3)
    orders_of(world).insert(order(1, 1))
    world.script.seal()
    # The driver tries a read twice by itself.
    mongodb.fail(["find"], times=6, errorCode=262)
    world.restart()
    assert found(world, "user_name") == [(1, "user 1")]
    orders_of(world).insert(order(2, 2))
    world.script.seal(final=True)
    mongodb.fail(["find"], times=-1, errorCode=262)
    try:
        with pytest.raises(SourceUnavailableError, match=r"looking up 1 keys in .*users"):
            world.restart()
    finally:
        mongodb.unfail()
    world.restart()
    assert found(world, "user_name") == [(1, "user 1"), (2, "user 2")]


# -- keys and values


def text_table(world: TransformedWorld, kind: TypeKind = TypeKind.STRING) -> ScriptedTable:
    world.script.tables = {}
    number, text = LogicalType(TypeKind.INT64), LogicalType(kind)
    return world.script.table(
        "shop.orders", TableSchema((Column("id", number, nullable=False), Column("who", text)), ("id",))
    )


def test_texts_find_object_ids_and_strings_and_bytes_find_bytes(make: Make, users: Any) -> None:
    key = bson.ObjectId()
    users.insert_many([{"_id": key, "name": "by id"}, {"_id": "s", "name": "by text"}])
    users.insert_one({"_id": b"\x00\xff", "name": "by bytes"})
    for options, kind, values, names in (
        ({"key_type": "objectId"}, TypeKind.STRING, [str(key).upper(), "s", None], ["by id", None, None]),
        ({}, TypeKind.STRING, ["s", str(key), "S"], ["by text", None, None]),
        ({}, TypeKind.BINARY, [b"\x00\xff", b"", None], ["by bytes", None, None]),
    ):
        world = make("jsonl", on="who", **options)
        world = replace(world, root=world.root / f"{kind}{len(options)}")
        world.root.mkdir()
        world.script = type(world.script)(type(world.store)(world.root / "state", pipeline="shop"))
        orders = text_table(world, kind)
        for n, value in enumerate(values):
            orders.insert({"id": n, "who": value})
        world.script.seal(final=True)
        run(world)
        assert [name for _, name in found(world, "user_name")] == names


def test_another_field_gives_one_document_or_the_run_ends(make: Make, users: Any) -> None:
    users.insert_many({"_id": f"m{n}", "mail": mail} for n, mail in enumerate(["a", "b", "b", ["a", "c"], 5]))
    world = make("jsonl", on={"who": "mail"}, columns={"_id": "json"})
    orders = text_table(world)
    for n, mail in enumerate("ac"):
        orders.insert({"id": n, "who": mail})
    world.script.seal()
    world.restart()
    assert found(world, "user__id") == [(0, "m0"), (1, None)]
    orders.insert({"id": 3, "who": "b"})
    world.script.seal(final=True)
    with pytest.raises(DataError, match=r"lookup\[0\]: several documents of .*users have the same mail"):
        world.restart()
    (one,) = world.lookups
    with pytest.raises(StateError, match=r"The transform or mask of shop\.orders differs"):
        replace(world, lookups=(one.model_copy(update={"prefix": "other_"}),)).restart()
    replace(world, lookups=(one.model_copy(update={"many": "first"}),)).restart()
    assert found(world, "user__id")[2:] == [(3, "m1")]


def test_the_first_of_several_documents_is_the_first_by_id(make: Make, users: Any) -> None:
    users.insert_many([{"_id": n, "mail": "b"} for n in (30, 20, 25)])
    world = make("jsonl", on={"who": "mail"}, columns={"_id": "long"}, many="first")
    text_table(world).insert({"id": 1, "who": "b"})
    world.script.seal(final=True)
    run(world)
    assert found(world, "user__id") == [(1, 20)]


def test_values_that_fit_no_column_end_the_run_or_are_null_and_told(make: Make, users: Any) -> None:
    users.update_one({"_id": 1}, {"$set": {"vip": "maybe"}, "$unset": {"name": 1}})
    world = make()
    orders_of(world).insert(order(1, 1))
    world.script.seal(final=True)
    where = r"users: a document: vip, a column of type bool, is of type string.*Give it another type in "
    with pytest.raises(DataError, match=where + r"lookup\[0\].columns .* lookup\[0\].on_type_mismatch = \"null\""):
        world.loop().run()
    world = replace(world, lookups=(world.lookups[0].model_copy(update={"on_type_mismatch": "null"}),))
    world.restart()
    assert found(world) == [(1, 1, None, None)]
    assert world.warnings == ["shop.orders: 1 values that lookup[0] found do not fit their columns, and are NULL."]


# -- transforms, routes, and changes of the table


def test_rows_are_joined_behind_their_transform_and_with_several_lookups(make: Make) -> None:
    world = make("delta-upsert", Transform(table="shop.orders", projection="id, qty AS who, 'x' AS x"), on="who")
    (one,) = world.lookups
    again = one.model_copy(update={"prefix": "again_", "columns": {"name": "string"}})
    world = replace(world, lookups=(one, again))
    orders_of(world).insert(order(1, 1))
    world.script.seal(final=True)
    run(world)
    assert world.target_rows("shop.orders") == [
        {"id": 1, "who": 1, "x": "x", "user_name": "user 1", "user_vip": False, "again_name": "user 1"}
    ]


def test_a_later_column_of_the_table_stands_before_those_looked_up(make: Make) -> None:
    world = make("jsonl")
    orders_of(world).insert(order(1, 1))
    world.script.seal()
    add_column(orders_of(world), "note")
    orders_of(world).insert({**order(2, 2), "note": "n"})
    world.script.seal(final=True)
    run(world)
    last = max(world.target_rows("shop.orders"), key=lambda row: row["_seq"])
    assert list(last)[:6] == ["id", "name", "qty", "note", "user_name", "user_vip"]
    assert (last["note"], last["user_name"]) == ("n", "user 2")


def test_a_column_of_the_table_with_the_name_of_one_looked_up_is_refused(make: Make) -> None:
    world = make()
    orders_of(world).insert(order(1, 1))
    world.script.seal()
    add_column(orders_of(world), "user_name")
    world.script.seal(final=True)
    with pytest.raises(SchemaError, match="the column 'user_name' is in the result twice"):
        world.loop().run()


def test_what_cannot_be_right_is_refused(make: Make) -> None:
    for options, transform, error, text in (
        ({"on": "nobody"}, None, SchemaError, r"lookup\[0\].on: there is no column 'nobody'"),
        ({"key_type": "uuid"}, None, SchemaError, "'qty', a column of type int32, cannot be looked up by as uuid"),
        ({"missing": "drop"}, {"on_delete": "soft"}, ConfigError, "may never have been there to be marked"),
        ({}, {"primary_keys": ("user_name",)}, SchemaError, "which is looked up, and may be another value next time"),
    ):
        transforms = [Transform(table="shop.orders", **transform)] if transform else []
        world = make("delta-upsert", *transforms, **options)
        if not world.store.sealed_epochs(0):
            orders_of(world).insert(order(1, 1))
            world.script.seal(final=True)
        with pytest.raises(error, match=text):
            world.loop().run()


def test_rows_left_out_cannot_be_merged_with_other_tables(make: Make) -> None:
    world = replace(make(missing="drop"), routes=(Route(r"shop\..*", "lake.all"),))
    orders_of(world).insert(order(1, 1))
    world.script.table("shop.others").insert(order(2, 2))
    world.script.seal(final=True)
    with pytest.raises(ConfigError, match=r'lookup\[0\].missing = "drop": shop.orders is merged with other tables'):
        world.loop().run()
    assert TableId("shop", "others") in world.script.tables
