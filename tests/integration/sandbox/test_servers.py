"""The private servers: they keep their data over a crash, and are gone with whoever started them."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

import pymysql
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pymongo.errors import DuplicateKeyError, OperationFailure

from raycdc.sandbox.servers import DatabaseServer, KafkaServer, MariaDbServer, MongoDb, MongoDbServer, ServerError
from raycdc.sandbox.servers.private import wait_until

pytestmark = pytest.mark.server

ORPHAN = """
import os, signal
from raycdc.sandbox.servers import MariaDbServer
server = MariaDbServer().start()
print(server.pid, server.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_committed_rows_survive_kill_9_and_the_port_stays() -> None:
    with MariaDbServer() as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1), (2)")
        port = server.port
        server.kill()
        assert not server.running
        server.start()
        assert (server.port, server.execute("SELECT id FROM d.t ORDER BY id")) == (port, [(1,), (2,)])


def test_a_folder_for_temporary_files_with_a_long_path_keeps_no_server_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with MariaDbServer() as server:
        assert server.execute("SELECT 1") == [(1,)]
    assert list(deep.iterdir()) == []


def test_a_server_ends_with_a_parent_that_was_killed_and_leaves_no_files() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, folder = done.stdout.split()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=120, what="the end of the server")
    wait_until(lambda: not Path(folder).exists(), timeout_s=120, what="the removal of its files")


def test_a_server_that_cannot_start_shows_its_own_words() -> None:
    with pytest.raises(ServerError, match="no_such_setting"), MariaDbServer({"no_such_setting": "1"}):
        pytest.fail("it started")


def test_the_capture_user_may_read_and_replicate_and_nothing_more(any_server: DatabaseServer) -> None:
    with any_server.fresh_database() as name, any_server.connect("cdc") as connection:
        connection.query("SELECT 1")
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            connection.query(f"CREATE TABLE {name}.t (id INT)")


def test_a_database_goes_also_if_a_test_forgot_a_prepared_transaction(any_server: DatabaseServer) -> None:
    """It locks its table for ever."""
    with any_server.fresh_database() as name:
        any_server.execute(
            f"CREATE TABLE {name}.t (id INT PRIMARY KEY)", "XA START 'forgotten', 'here', 7",
            f"INSERT INTO {name}.t VALUES (1)", "XA END 'forgotten', 'here', 7", "XA PREPARE 'forgotten', 'here', 7",
        )  # fmt: skip

    assert any_server.execute("XA RECOVER") == []
    assert any_server.execute(f"SHOW DATABASES LIKE '{name}'") == []


def test_kafka_keeps_its_messages_over_a_crash_on_the_same_port(kafka: KafkaServer) -> None:
    with kafka.fresh_topic(partitions=2) as topic:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce(topic, b"one", partition=1)
        assert producer.flush(20) == 0
        address = kafka.bootstrap_servers
        kafka.kill()
        kafka.start()
        assert kafka.bootstrap_servers == address
        consumer = Consumer({**kafka.secure_properties, "group.id": "t", "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(topic, 1, 0)])
        (message,) = consumer.consume(1, timeout=120)
        consumer.close()
        assert (message.error(), message.value()) == (None, b"one")


def test_mongodb_runs_transactions_and_tells_changes_by_resumable_streams(mongodb: MongoDb) -> None:
    with mongodb.fresh_database() as name, mongodb.client() as client:
        items = client[name].create_collection("items")
        with items.watch() as stream:
            with client.start_session() as session:
                with session.start_transaction():
                    items.insert_many([{"_id": 1}, {"_id": 2}], session=session)
                session.start_transaction()
                items.delete_one({"_id": 1}, session=session)
                session.abort_transaction()
            first = stream.next()
        with items.watch(resume_after=first["_id"]) as stream:
            second = stream.next()
        assert [(change["operationType"], change["fullDocument"]) for change in (first, second)] == [
            ("insert", {"_id": 1}),
            ("insert", {"_id": 2}),
        ]
        assert first["txnNumber"] == second["txnNumber"]
        assert mongodb.find(name, "items") == [{"_id": 1}, {"_id": 2}]


@pytest.mark.parametrize("version", ["4.4", "8.0"])
def test_an_emulated_mongodb_is_of_the_version_asked_for_and_loses_history_on_demand(version: str) -> None:
    with MongoDbServer(version=version) as server, server.client() as client:
        assert client.server_info()["version"].startswith(version)
        items = client["d"]["items"]
        items.insert_one({"_id": 1})
        with items.watch() as stream:
            items.insert_one({"_id": 2})
            token = stream.next()["_id"]
        items.insert_one({"_id": 3})
        server.truncate_log()
        with pytest.raises(OperationFailure) as lost, items.watch(resume_after=token) as stream:
            stream.next()
        assert lost.value.code == 286
        address = server.uri
        server.kill()
        server.start()
        assert server.uri == address
        assert client["d"]["items"].count_documents({}) == 0


def test_a_client_that_goes_leaves_nothing_of_its_transaction(mongodb: MongoDb) -> None:
    with mongodb.fresh_database() as name, mongodb.client() as other:
        other[name]["items"].insert_many([{"_id": 2, "n": 0}, {"_id": 3, "n": 0}])
        gone = mongodb.client()
        session = gone.start_session()
        session.start_transaction()
        its = gone[name]["items"]
        its.insert_one({"_id": 1, "n": 1}, session=session)
        its.update_one({"_id": 2}, {"$set": {"n": 1}}, session=session)
        its.delete_one({"_id": 3}, session=session)
        # What is not committed is there for the transaction alone.
        before = [{"_id": 2, "n": 0}, {"_id": 3, "n": 0}]
        assert sorted(other[name]["items"].find(), key=itemgetter("_id")) == before
        within = its.find(session=session)
        assert sorted(within, key=itemgetter("_id")) == [{"_id": 1, "n": 1}, {"_id": 2, "n": 1}]
        gone.close()

        def is_free() -> bool:
            with suppress(DuplicateKeyError):
                other[name]["items"].insert_one({"_id": 1, "n": 2})
                return True
            return False

        wait_until(is_free, timeout_s=120, what="the end of the transaction")
        after = [{"_id": 1, "n": 2}, *before]
        assert sorted(other[name]["items"].find(), key=itemgetter("_id")) == after
