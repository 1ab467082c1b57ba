"""Passwords of Kafka's and MongoDB's accounts change at the server, connections end, and a run of the command goes on.

Their clients last, and keep what they were made with. The server is told first, and the secret when somebody was
refused and has asked for it again: none of this waits for a time. `tests/e2e/test_rotation.py` has the databases.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from raycdc.sandbox.servers import KafkaServer, MongoDb, MongoDbServer
from tests.support.jobs import CollectionJob, JobRun, TopicJob

pytestmark = pytest.mark.server
OLD, NEW = "S3cret-of-yesterday", "S3cret-of-today"


@dataclass(slots=True)
class Vault:
    """A secret by a command, which counts how often it was asked for."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        # Who asks is a process of the driver, of Ray or of Spark, by its words.
        self._script.write_text(
            f"tr '\\0\\n' '  ' < /proc/$PPID/cmdline >> {self._asked}\necho >> {self._asked}\ncat {self._secret}\n"
        )
        self._asked.write_text("")
        self.give(OLD)

    @property
    def reference(self) -> str:
        return f"${{command:sh {self._script}}}"

    def give(self, secret: str) -> None:
        """What it answers from now on."""
        self._secret.with_suffix(".new").write_text(secret)
        self._secret.with_suffix(".new").replace(self._secret)

    def askers(self) -> list[str]:
        """Who asked it, in order, by the words of their processes."""
        return self._asked.read_text().splitlines()

    @property
    def _script(self) -> Path:
        return self.folder / f"{self.name}.sh"

    @property
    def _secret(self) -> Path:
        return self.folder / f"{self.name}.secret"

    @property
    def _asked(self) -> Path:
        return self.folder / f"{self.name}.asked"


@dataclass(slots=True)
class RotatedServers:
    """Servers with the accounts ``reader`` and ``writer``. `change` sets the passwords of both, and ends their
    connections; `insert` writes rows with these keys to the source, all of which are `copied`.
    """

    change: Callable[[str], None]
    insert: Callable[[Sequence[int]], None]
    copied: Callable[[], list[int]]


def keys_of(batch: int, *, local: bool) -> list[int]:
    """Those of a batch of rows: what is small is written by the driver, and only more by Spark's executors."""
    return [batch] if local else list(range(10 * batch, 10 * batch + 9))


def note_of(key: int) -> str:
    """The other column: of rows that executors write it is long, and cannot be compressed."""
    return os.urandom(300_000).hex() if key >= 10 else "short"


def story(live: JobRun, world: RotatedServers, reader: Vault, writer: Vault, *, local: bool) -> None:
    """Two changes: who goes on after the first has to go on after the second."""
    expected = keys_of(1, local=local)

    def all_there() -> bool:
        return world.copied() == expected

    live.wait_for_rows(all_there)
    for batch, secret in enumerate((NEW, OLD), 2):
        world.change(secret)
        before = {vault.name: len(vault.askers()) for vault in (reader, writer)}
        world.insert(keys_of(batch, local=local))
        expected += keys_of(batch, local=local)
        # Each is asked for its secret because its server refuses the one before; only then it says another one.
        for vault in (reader, writer):
            known = before[vault.name]
            assert live.wait_for(lambda vault=vault, known=known: len(vault.askers()) > known), live.story()  # type: ignore[misc]
            vault.give(secret)
        live.wait_for_rows(all_there)
    if not local:
        assert any("ray::" in asker for asker in reader.askers()), reader.askers()
        batch = 4
        while not any("pyspark" in asker for asker in writer.askers()):  # on a busy machine epochs have less
            world.insert(keys_of(batch, local=local))
            expected += keys_of(batch, local=local)
            live.wait_for_rows(all_there)
            batch += 1
    assert live.interrupt() in (0, 130), live.story()
    assert NEW not in live.story()
    assert OLD not in live.story()


@pytest.mark.long(suite="certificates")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("local", [True, pytest.param(False, marks=pytest.mark.spark)])
def test_a_collection_is_copied_on_while_both_passwords_change(
    *, local: bool, mongodb: MongoDb, tmp_path: Path
) -> None:
    if not isinstance(mongodb, MongoDbServer):
        pytest.skip("accounts of a server that is not ours stay as they are")
    reader, writer = Vault(tmp_path, "reader"), Vault(tmp_path, "writer")
    with mongodb.fresh_database() as database, mongodb.fresh_database() as copy, mongodb.client() as client:

        def change(secret: str) -> None:
            mongodb.set_password(f"r_{database}", secret)
            mongodb.set_password(f"w_{database}", secret)

        def uri(user: str, vault: Vault) -> str:
            return mongodb.uri.replace("//", f"//{user}:{vault.reference}@") + "&authMechanism=PLAIN"

        def insert(keys: Sequence[int]) -> None:
            client[database].t.insert_many([{"_id": key, "note": note_of(key)} for key in keys])

        change(OLD)
        insert(keys_of(1, local=local))
        job = CollectionJob(
            tmp_path,
            None,  # type: ignore[arg-type]
            database,
            ("t",),
            sink="mongodb",
            sink_keys=f"uri = {json.dumps(uri(f'w_{database}', writer))}\nrecord = '{copy}_record'\n",
            local=local,
            readers=1,
            uri=uri(f"r_{database}", reader),
            startup="initial",
            sections=f'[[route]]\ntable = "{database}.t"\nto = "{copy}.t"\n',
        )
        world = RotatedServers(change, insert, lambda: [document["_id"] for document in mongodb.find(copy, "t")])
        story(job.start(), world, reader, writer, local=local)
        assert mongodb.find(copy, "t") == mongodb.find(database, "t")


@dataclass(slots=True)
class FromTopic(TopicJob):
    """Logs in to the brokers of its source with `account`, properties of librdkafka as TOML."""

    account: str = ""

    def source_section(self) -> str:
        section = TopicJob.source_section(self).replace(f":{self.server.port}", f":{self.server.secure_port}")  # type: ignore[attr-defined]
        return f"{section}properties = {self.account}\n"


@pytest.fixture
def broker() -> Iterator[KafkaServer]:
    """One that a test may kill."""
    with KafkaServer() as server:
        yield server


@pytest.mark.long(suite="certificates")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("local", [True, pytest.param(False, marks=pytest.mark.spark)])
def test_a_topic_is_copied_on_while_both_passwords_change(*, local: bool, broker: KafkaServer, tmp_path: Path) -> None:
    reader, writer = Vault(tmp_path, "reader"), Vault(tmp_path, "writer")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    def change(secret: str) -> None:
        broker.set_password("reader", secret)
        broker.set_password("writer", secret)
        # Brokers end no connection for a changed password.
        broker.kill()
        broker.start()

    def insert(keys: Sequence[int]) -> None:
        head = {"database": "shop", "table": "t", "type": "insert", "ts": 1_700_000_000}
        for key in keys:
            producer.produce("changes", json.dumps({**head, "data": {"id": key, "note": note_of(key)}}).encode())
        assert producer.flush(120) == 0

    def account(user: str, vault: Vault) -> str:
        properties = {
            **broker.secure_properties,
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": vault.reference,
        }
        del properties["bootstrap.servers"]
        return (
            "{ " + ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in properties.items()) + " }"
        )

    broker.create_topic("changes")
    broker.set_password("reader", OLD)
    broker.set_password("writer", OLD)
    insert(keys_of(1, local=local))
    server: Any = broker
    job = FromTopic(tmp_path, server, "shop", ("t",), sink="kafka", write="changelog", local=local, readers=1)
    job.topic, job.columns, job.account = "changes", "id BIGINT, note TEXT, PRIMARY KEY (id)", account("reader", reader)
    job.sink_keys = (
        f'bootstrap_servers = "{broker.host}:{broker.secure_port}"\ntopic = "copies"\n'
        f'format = {{ type = "canal-json" }}\nproperties = {account("writer", writer)}\n'
    )
    story(job.start(), RotatedServers(change, insert, lambda: copied(broker)), reader, writer, local=local)


def copied(broker: KafkaServer) -> list[int]:
    """The keys of the messages in the topic ``copies``, which may not be there yet."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "copies", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    try:
        if "copies" not in consumer.list_topics(timeout=120).topics:
            return []
        consumer.assign([TopicPartition("copies", 0, 0)])
        keys: list[int] = []
        while (message := consumer.poll(120)) is not None and message.error() is None:
            keys += [int(row["id"]) for row in json.loads(message.value() or b"{}")["data"]]
        return keys
    finally:
        consumer.close()
