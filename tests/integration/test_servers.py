"""The private servers: they keep their data over a crash, and are gone with whoever started them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pymysql
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from raycdc.testing.servers import DatabaseServer, KafkaServer, MariaDbServer, ServerError
from raycdc.testing.servers.process import wait_until

pytestmark = pytest.mark.server

ORPHAN = """
import os, signal
from raycdc.testing.servers import MariaDbServer
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


def test_a_server_ends_with_a_parent_that_was_killed_and_leaves_no_files() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, folder = done.stdout.split()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=10, what="the end of the server")
    wait_until(lambda: not Path(folder).exists(), timeout_s=10, what="the removal of its files")


def test_a_server_that_cannot_start_shows_its_own_words() -> None:
    with pytest.raises(ServerError, match="no_such_setting"), MariaDbServer({"no_such_setting": "1"}):
        pytest.fail("it started")


def test_the_capture_user_may_read_and_replicate_and_nothing_more(any_server: DatabaseServer) -> None:
    with any_server.fresh_database() as name, any_server.connect("cdc") as connection:
        connection.query("SELECT 1")
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            connection.query(f"CREATE TABLE {name}.t (id INT)")


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
        (message,) = consumer.consume(1, timeout=20)
        consumer.close()
        assert (message.error(), message.value()) == (None, b"one")
