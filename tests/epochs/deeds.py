"""What other writers do to the target of shop.items: the deeds of the table in `test_other_writers`.

Each does one thing by the means of the store, as a person or another program would, and may return what undoes it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import adbc_driver_manager
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyiceberg.table import Table
from pyiceberg.types import StringType
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

from raycdc.sandbox.servers import MongoDbServer, PostgresServer
from raycdc.sinks.iceberg.catalog import HadoopCatalog
from raycdc.sinks.iceberg.snapshot_lineage import CONFIRMED
from raycdc.sinks.kafka.transactions import identity_of
from raycdc.testing.epochs import ScriptedTable
from tests.epochs.sink_world import HOME, Server, World

Undo = Callable[[], object]
Deed = Callable[[World], Undo | None]


#: What reading a target raises that is gone or has other columns, or may not be read.
NOT_THERE = (FileNotFoundError, TableNotFoundError, pymysql.Error, adbc_driver_manager.Error, OperationFailure)
#: The sink's user of a database where the kind of a world says so, and its password.
LOADER = "loader"


def items_of(world: World) -> ScriptedTable:
    return world.script.table("shop.items")


def folder(world: World) -> Path:
    return world.root / "lake" / "shop" / "items"


# -- any folder


def delete_folder(world: World) -> None:
    shutil.rmtree(folder(world))


def take_files_away(world: World) -> None:
    """As a loader does with files that it has read."""
    files = [path for path in folder(world).iterdir() if path.is_file()]
    assert len(files) == 2
    for path in files:
        path.unlink()


def files_made_again(world: World) -> None:
    delete_folder(world)
    files_append(world)


def files_append(world: World) -> None:
    folder(world).mkdir(parents=True, exist_ok=True)
    (folder(world) / "theirs.jsonl").write_text('{"_op": "+I", "_seq": 0, "id": 50, "name": "theirs", "qty": 1}\n')


def files_change(world: World) -> None:
    for path in folder(world).glob("*.jsonl"):
        path.write_text(path.read_text().replace("read", "READ"))


# -- Delta


def delta(world: World) -> DeltaTable:
    return DeltaTable(str(folder(world)))


def restores(world: World) -> Undo:
    version = delta(world).version()
    return lambda: delta(world).restore(version)


def delta_delete(world: World) -> Undo:
    undo = restores(world)
    delta(world).delete("id = 3")
    return undo


def delta_overwrite(world: World) -> Undo:
    undo = restores(world)
    table = delta(world)
    write_deltalake(table, table.to_pyarrow_table(), mode="overwrite")
    return undo


def delta_update(world: World) -> Undo:
    """There are as many rows as before."""
    undo = restores(world)
    delta(world).update({"name": "'theirs'"}, predicate="id = 3")
    return undo


def delta_note(world: World) -> None:
    """A column of another writer's, with values."""
    delta(world).alter.add_columns([*Schema.from_arrow(pa.schema([("note", pa.string())])).fields])
    delta(world).update({"note": "'theirs ' || CAST(id AS VARCHAR)"})


def delta_note_and_update(world: World) -> Undo:
    undo = restores(world)
    delta_note(world)
    delta_update(world)
    return undo


def delta_restore_before(world: World) -> None:
    table = delta(world)
    table.restore(table.version() - 1)


def delta_delete_and_restore(world: World) -> None:
    delta_delete(world)()


def delta_update_and_restore(world: World) -> None:
    delta_update(world)()


def delta_compact(world: World) -> None:
    delta(world).optimize.compact()


def delta_vacuum(world: World) -> None:
    delta(world).vacuum(0, dry_run=False, enforce_retention_duration=False)


def delta_append(world: World) -> None:
    rows = pa.table({"id": [50], "name": ["theirs"], "qty": pa.array([1], pa.int32())})
    write_deltalake(str(folder(world)), rows, mode="append")


def delta_constraint(expression: str) -> Deed:
    def add(world: World) -> None:
        delta(world).alter.add_constraint({"sound": expression})

    return add


def delta_made_again(world: World) -> None:
    """Another table with the same columns, rows of others, and more versions than there were."""
    schema = delta(world).schema()
    delete_folder(world)
    DeltaTable.create(str(folder(world)), schema)
    for number in range(6):
        row = {"id": 100 + number, "name": "theirs", "qty": 1}
        rows = pa.Table.from_pylist([row], schema=pa.schema(schema.to_arrow()))
        write_deltalake(str(folder(world)), rows, mode="append")


def delta_made_otherwise(world: World) -> None:
    """A table with other columns."""
    delete_folder(world)
    write_deltalake(str(folder(world)), pa.table({"id": pa.array([1], pa.int64())}))


# -- Iceberg


def iceberg(world: World) -> Table:
    return HadoopCatalog("other", world.root / "lake").load_table(("shop", "items"))


def iceberg_confirm(world: World) -> None:
    """What messages advise those who know that the table is as it should be."""
    with iceberg(world).transaction() as transaction:
        transaction.set_properties({CONFIRMED: str(iceberg(world).metadata.current_snapshot_id)})


def iceberg_rewrite(world: World, change: Callable[[pa.Table], pa.Table]) -> None:
    """As an engine with copy-on-write does it: files go and others come, in one snapshot or two."""
    table = iceberg(world)
    table.overwrite(change(table.scan().to_arrow()))


def iceberg_delete(world: World) -> None:
    iceberg(world).delete("id = 3")


def iceberg_update(world: World) -> None:
    names = pa.array(["theirs"] * 4)
    iceberg_rewrite(world, lambda rows: rows.set_column(rows.schema.get_field_index("name"), "name", names))


def iceberg_overwrite(world: World) -> None:
    """With fewer rows than there were."""
    iceberg_rewrite(world, lambda rows: rows.slice(0, 1))


def iceberg_append(world: World) -> None:
    table = iceberg(world)
    schema = pa.schema([(field.name, field.type) for field in table.schema().as_arrow()])
    row = {"id": 50, "name": "theirs", "qty": 1}
    table.append(pa.Table.from_pylist([{**dict.fromkeys(schema.names), **row}], schema=schema))


def iceberg_append_and_delete(world: World) -> None:
    iceberg_append(world)
    iceberg(world).delete("id = 50")


def iceberg_compact(world: World) -> None:
    iceberg_rewrite(world, lambda rows: rows)


def iceberg_expire(world: World, *, keep: int = 1) -> None:
    table = iceberg(world)
    older = [snapshot.snapshot_id for snapshot in table.snapshots()[:-keep]]
    table.maintenance.expire_snapshots().by_ids(older).commit()


def iceberg_compact_and_expire_some(world: World) -> None:
    """The newest three stay: an overwrite makes two."""
    iceberg_compact(world)
    iceberg_expire(world, keep=3)
    assert len(iceberg(world).snapshots()) == 3


def iceberg_maintain(world: World) -> None:
    """As the manual recommends it: compactions, then an expiry that leaves the newest snapshot alone."""
    for _ in range(3):
        iceberg_compact(world)
    iceberg_expire(world)


def iceberg_delete_and_expire(world: World) -> None:
    """The snapshot that shows the deletion is gone, with those before it."""
    iceberg_delete(world)
    iceberg_append(world)
    iceberg_expire(world)


def iceberg_delete_and_roll_back(world: World) -> None:
    ours = iceberg(world).metadata.current_snapshot_id
    assert ours is not None
    iceberg_delete(world)
    iceberg(world).manage_snapshots().rollback_to_snapshot(ours).commit()


def iceberg_roll_back(world: World) -> Undo:
    snapshot = iceberg(world).current_snapshot()
    assert snapshot is not None
    assert snapshot.parent_snapshot_id is not None
    iceberg(world).manage_snapshots().rollback_to_snapshot(snapshot.parent_snapshot_id).commit()
    newest = snapshot.snapshot_id
    return lambda: iceberg(world).manage_snapshots().set_current_snapshot(newest).commit()


def iceberg_roll_back_and_compact(world: World) -> None:
    iceberg_roll_back(world)
    iceberg_compact(world)


def iceberg_roll_back_and_maintain(world: World) -> None:
    iceberg_roll_back(world)
    iceberg_maintain(world)


def iceberg_made_again(world: World) -> None:
    schema = iceberg(world).schema().as_arrow()
    delete_folder(world)
    table = HadoopCatalog("other", world.root / "lake").create_table(("shop", "items"), schema)
    table.append(pa.Table.from_pylist([{"id": 100, "name": "theirs", "qty": 1}], schema=table.schema().as_arrow()))


def iceberg_note(world: World) -> None:
    table = iceberg(world)
    with table.update_schema() as update:
        update.add_column("note", StringType())
    rows = table.scan().to_arrow()
    notes = pa.array([f"theirs {number}" for number in rows.column("id").to_pylist()])
    table.overwrite(rows.set_column(rows.schema.get_field_index("note"), "note", notes))


def iceberg_require(*names: str, identify: bool = False) -> Deed:
    """Make columns NOT NULL, and the identifier fields if `identify`, as Spark's ALTER TABLE does."""

    def require(world: World) -> Undo:
        with iceberg(world).update_schema(allow_incompatible_changes=True) as update:
            for name in names:
                update.update_column(name, required=True)
        if identify:
            with iceberg(world).update_schema() as update:
                update.set_identifier_fields(*names)

        def relax() -> None:
            with iceberg(world).update_schema() as update:
                update.set_identifier_fields()
            with iceberg(world).update_schema() as update:
                for name in names:
                    update.update_column(name, required=False)

        return relax

    return require


def iceberg_add_file(world: World) -> None:
    """A data file as another program wrote it, without field ids, with a key that the pipeline changes next."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("qty", pa.int32())])
    path = world.root / "theirs.parquet"
    pq.write_table(pa.Table.from_pylist([{"id": 2, "name": "theirs", "qty": 1}], schema=schema), path)
    iceberg(world).add_files([path.as_uri()])


# -- databases


def sql(*statements: str) -> Deed:
    """Statements of an administrator."""

    def execute(world: World) -> None:
        assert world.server is not None
        world.server.execute(*statements)

    return execute


def undone(statements: tuple[str, ...], by: tuple[str, ...]) -> Deed:
    """Statements of an administrator, and those that mend it."""

    def execute(world: World) -> Undo:
        sql(*statements)(world)
        return lambda: sql(*by)(world)

    return execute


@contextmanager
def loader(server: Server) -> Iterator[None]:
    """The user of a sink who owns its tables and may do nothing else; of MySQL by the privileges of each table."""
    if isinstance(server, PostgresServer):
        server.execute(
            f"CREATE ROLE {LOADER} LOGIN PASSWORD '{LOADER}'",
            f"GRANT CREATE ON DATABASE postgres TO {LOADER}",
            f"GRANT ALL ON SCHEMA public TO {LOADER}",
        )
        gone = [f"DROP OWNED BY {LOADER} CASCADE", f"DROP ROLE {LOADER}"]
    else:
        grants = (f"GRANT ALL ON {name}.* TO {LOADER}" for name in ("shop", HOME))
        server.execute(f"CREATE USER {LOADER} IDENTIFIED BY '{LOADER}'", *grants)
        gone = [f"DROP USER {LOADER}"]
    try:
        yield
    finally:
        server.execute(*gone)


def session(*statements: str) -> Deed:
    """Another session, in a transaction or with a lock, until somebody ends it."""

    def keep(world: World) -> Undo:
        server = world.server
        assert server is not None
        is_postgres = isinstance(server, PostgresServer)
        connection = server.connect()
        cursor = connection.cursor()
        cursor.execute(f"SELECT {'pg_backend_pid' if is_postgres else 'CONNECTION_ID'}()")
        number = cursor.fetchall()[0][0]
        for statement in statements:
            cursor.execute(statement)

        def end() -> None:
            server.execute(f"SELECT pg_terminate_backend({number})" if is_postgres else f"KILL {number}")
            for one in (cursor, connection):
                with suppress(pymysql.Error, adbc_driver_manager.Error):
                    one.close()

        return end

    return keep


# -- collections


def shop(deed: Callable[[Database[Any]], object]) -> Deed:
    """In the database of the collection."""

    def execute(world: World) -> None:
        assert world.mongodb is not None
        with world.mongodb.client() as client:
            deed(client["shop"])

    return execute


def collection(deed: Callable[[Collection[Any]], object]) -> Deed:
    return shop(lambda database: deed(database["items"]))


def made_again(database: Database[Any]) -> None:
    database.drop_collection("items")
    database.create_collection("items")


def validator(rule: dict[str, Any]) -> Deed:
    """A rule of documents; an empty one takes it back."""

    def execute(world: World) -> Undo:
        shop(lambda database: database.command({"collMod": "items", "validator": rule}))(world)
        return lambda: shop(lambda database: database.command({"collMod": "items", "validator": {}}))(world)

    return execute


def deny(world: World) -> Undo:
    """The rights to the collection; the server quotes the commands that it refuses, and so the keys of a query."""
    server = world.mongodb
    assert isinstance(server, MongoDbServer)
    server.deny("shop.items", ("find", "insert", "update", "delete"))
    return server.unfail


# -- topics


def _broker(world: World) -> dict[str, Any]:
    assert world.kafka is not None
    return {"bootstrap.servers": world.kafka.bootstrap_servers}


def topic_delete(world: World) -> None:
    servers = AdminClient(_broker(world))  # What it was asked for ends with it.
    (done,) = servers.delete_topics([world.topic(items_of(world))]).values()
    done.result(120)


def topic_made_again(world: World) -> None:
    """As somebody does who wants to be rid of old messages."""
    topic_delete(world)
    assert world.kafka is not None
    world.kafka.create_topic(world.topic(items_of(world)), partitions=3 if world.kind == "kafka-parts" else 1)


def topic_forget(world: World) -> None:
    """The records of commits go, as by ``kafka-consumer-groups --delete``."""
    servers = AdminClient(_broker(world))
    identity = identity_of(world.store.app_id, items_of(world).id)
    found = servers.list_consumer_groups().result(120).valid
    groups = [group.group_id for group in found if group.group_id.startswith(identity)]
    assert groups
    for done in servers.delete_consumer_groups(groups).values():
        done.result(120)


def topic_message(world: World) -> None:
    producer = Producer(_broker(world))
    producer.produce(world.topic(items_of(world)), b"")
    assert producer.flush(20) == 0
