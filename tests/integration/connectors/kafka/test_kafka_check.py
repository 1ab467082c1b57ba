"""``raycdc check`` on topics, as a user meets it: what is missing, and the command that permits it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.reading.messages import Fetched, FetchFailure, PartitionStart
from raycdc.connectors.kafka.reading.partition_reader import KafkaPartitionReader
from raycdc.sandbox.servers import KafkaServer, MariaDbServer
from raycdc.sandbox.servers.private import wait_until
from raycdc.source.reader.split_reader import SplitsAddition
from tests.e2e.test_parked_targets import make
from tests.e2e.test_refusing_targets import parked_run
from tests.e2e.topic_changes import changes
from tests.support.forked_commands import completed
from tests.support.jobs import Job, catch_up
from tests.support.table_commands import tables_command

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaServer]:
    """A broker where the user of the secure listener may do only what was permitted."""
    options = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaServer(options) as server:
        yield server


def produce(kafka: KafkaServer, topic: str, *messages: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in messages:
        producer.produce(topic, value, b"1")
    assert producer.flush(20) == 0


def insert(number: int, **fields: Any) -> bytes:
    row = {"id": number, "name": "a", **fields}
    return json.dumps({"database": "shop", "table": "p", "type": "insert", "ts": 1, "data": row}).encode()


def permit(kafka: KafkaServer, *wanted: tuple[ResourceType, str, AclOperation]) -> None:
    for kind, name, operation in wanted:
        pattern = ResourcePatternType.PREFIXED if name.endswith(":") else ResourcePatternType.LITERAL
        binding = AclBinding(kind, name, pattern, "User:cdc", "*", operation, AclPermissionType.ALLOW)
        admin = kafka.admin()
        admin.create_acls([binding])[binding].result(120)
        mine = AclBindingFilter(kind, name, pattern, "User:cdc", "*", operation, AclPermissionType.ALLOW)
        # The controller has it; the broker that is asked learns of it a moment later.
        wait_until(partial(has, admin, mine), timeout_s=120, what=f"{operation} on {name}")


def has(admin: Any, wanted: AclBindingFilter) -> bool:
    return bool(admin.describe_acls(wanted).result(120))


def check(
    kafka: KafkaServer, folder: Path, source: str, *, sink: str = 'type = "console"', secure: bool = False
) -> tuple[int, list[dict[str, str]]]:
    """Exit code and findings."""
    properties = dict(kafka.secure_properties) if secure else {"bootstrap.servers": kafka.bootstrap_servers}
    servers = properties.pop("bootstrap.servers")
    cluster = f"bootstrap_servers = {json.dumps(servers)}\nproperties = {{ " + (
        ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in properties.items()) + " }"
    )
    text = f'[pipeline]\nname = "p"\n[source]\ntype = "kafka"\n{cluster}\n{source}\n[sink]\n{sink}\n'
    (folder / "p.toml").write_text(text + (cluster if "kafka" in sink else ""))
    done = completed(["check", "p.toml", "--json"], environment=os.environ, folder=folder)
    assert done.stdout, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def of(findings: list[dict[str, str]], name: str) -> list[tuple[str, str]]:
    return [(found["status"], found["text"]) for found in findings if found["check"] == name]


def test_check_says_what_topics_and_messages_are_and_what_is_wrong_with_them(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    with kafka.fresh_topic(partitions=2) as good, kafka.fresh_topic() as bad, kafka.fresh_topic() as empty:
        produce(kafka, good, insert(1), None, insert(2, weight=1.5))
        produce(kafka, bad, insert(1), b'{"type": "insert", "data": ')
        listed = f'format = "maxwell-json"\ntopics = ["{good}", "{bad}", "{empty}", "nowhere"]'
        code, findings = check(kafka, tmp_path, listed)
        assert (code, of(findings, "connection")[0][0]) == (3, "ok")
        (counted, missing) = of(findings, "topics")
        assert counted[1].startswith("3 topics with 4 partitions: ")
        assert missing[1] == f"Topic nowhere of source.topics does not exist at {kafka.bootstrap_servers}."
        assert of(findings, "permission") == [("ok", "The user may describe and read them.")]
        (of_good, of_bad, of_empty) = (
            next(f for f in of(findings, "format") if topic in f[1]) for topic in (good, bad, empty)
        )
        text = "shop.p (id bigint, name string, weight double, no key), 1 tombstone."
        assert of_good == ("ok", f"The last messages of {good} are maxwell-json: {text}")
        assert of_bad[0] == "failed"
        assert f"{bad}/0@1" in of_bad[1]
        assert of_empty == ("ok", f"{empty} has no messages to check yet.")

        beyond = f'startup = {{ mode = "offsets", offsets = {{ "{good}:0" = 99 }} }}'
        code, findings = check(kafka, tmp_path, f'format = "maxwell-json"\ntopics = ["{good}"]\n{beyond}')
        ((status, text),) = of(findings, "start")
        assert (code, status) == (3, "failed")
        assert f"{good}:0@99 is not in the topic: it holds" in text
        code, findings = check(kafka, tmp_path, f'format = "canal-json"\ntopic_pattern = "{good}.*|none"')
        assert (code, of(findings, "format")[0][0]) == (3, "failed")
        code, findings = check(kafka, tmp_path, 'format = "maxwell-json"\ntopic_pattern = "none.*"')
        assert (code, of(findings, "topics")[0][0]) == (0, "warning")


def test_check_names_the_permissions_that_are_missing_with_their_command(guarded: KafkaServer, tmp_path: Path) -> None:
    source = 'format = "maxwell-json"\ntopics = ["in"]\ngroup_id = "watchers"'
    sink = 'type = "kafka"\nformat = "maxwell-json"\ntopic = "out.{db}.{table}"\n'
    produce(guarded, guarded.create_topic("in"), insert(1))

    code, findings = check(guarded, tmp_path, source, sink=sink, secure=True)
    assert (code, of(findings, "topics")) == (
        3,
        [("failed", "Topic in of source.topics is missing, or the user may not describe it.")],
    )
    permit(guarded, (ResourceType.TOPIC, "in", AclOperation.DESCRIBE))
    code, findings = check(guarded, tmp_path, source, sink=sink, secure=True)
    assert (code, of(findings, "permission")) == (3, [("failed", "The user may not read topic in.")])
    (fix,) = (found["fix"] for found in findings if found["check"] == "permission")
    assert fix.endswith("--add --allow-principal User:cdc --operation Read --topic in")

    permit(guarded, (ResourceType.TOPIC, "in", AclOperation.READ))
    code, findings = check(guarded, tmp_path, source, sink=sink, secure=True)
    failed = {found["check"]: found["fix"] for found in findings if found["status"] == "failed"}
    assert code == 5
    assert set(failed) == {"transactions", "commit record", "sink topic"}
    assert failed["transactions"].endswith(
        "--operation Write --operation Describe --resource-pattern-type prefixed --transactional-id raycdc:"
    )
    assert failed["sink topic"].endswith("--operation Create --operation Write --operation Read --topic out.shop.p")
    assert of(findings, "group") == [
        ("warning", "The user may not use consumer group watchers, so that the progress is not shown there.")
    ]

    permit(
        guarded,
        (ResourceType.GROUP, "watchers", AclOperation.READ),
        (ResourceType.GROUP, "raycdc:", AclOperation.READ),
        (ResourceType.TRANSACTIONAL_ID, "raycdc:", AclOperation.WRITE),
        (ResourceType.TRANSACTIONAL_ID, "raycdc:", AclOperation.DESCRIBE),
        (ResourceType.TOPIC, "out.shop.p", AclOperation.CREATE),
        (ResourceType.TOPIC, "out.shop.p", AclOperation.WRITE),
        (ResourceType.TOPIC, "out.shop.p", AclOperation.READ),
    )
    code, findings = check(guarded, tmp_path, source, sink=sink, secure=True)
    assert [found for found in findings if found["status"] != "ok"] == []
    assert of(findings, "sink topic") == [("ok", "Topic out.shop.p will be created.")]
    # Nothing was: a look changes nothing.
    assert "out.shop.p" not in guarded.admin().list_topics(timeout=120).topics
    assert code == 0


def test_reading_needs_no_permission_for_a_group(guarded: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = guarded.create_topic("alone")
    produce(guarded, topic, insert(1))
    permit(guarded, (ResourceType.TOPIC, topic, AclOperation.READ))
    properties = dict(guarded.secure_properties)
    config = KafkaSourceConfig(
        bootstrap_servers=properties.pop("bootstrap.servers"),
        topics=(topic,),
        format={"type": "maxwell-json"},
        properties=properties,
    )
    refused: list[int] = []
    with closing(KafkaPartitionReader(config)) as reader:
        handle = reader._handle

        def noted(trouble: FetchFailure) -> str | None:
            refused.append(trouble.error.code())
            return handle(trouble)

        monkeypatch.setattr(reader, "_handle", noted)
        reader.handle_splits_changes(SplitsAddition((PartitionStart(topic, 0, 0),)))
        rows = 0
        while not (rows and refused):
            fetch = reader.fetch()
            parts = [part.batch for part in (fetch.records if fetch else ()) if isinstance(part.batch, Fetched)]
            rows += sum(len(part.batch) for part in parts if part.batch is not None)
    assert (rows, set(refused)) == (1, {KafkaError.GROUP_AUTHORIZATION_FAILED})


def test_check_of_a_database_into_topics_over_tls_as_a_user_and_the_run_behind_it(
    guarded: KafkaServer, mariadb: MariaDbServer, tmp_path: Path
) -> None:
    with mariadb.fresh_database() as database:
        mariadb.execute(
            "CREATE TABLE p (id INT PRIMARY KEY, name VARCHAR(9))", "INSERT INTO p VALUES (1, 'a')", database=database
        )
        properties = dict(guarded.secure_properties)
        servers = properties.pop("bootstrap.servers")
        topic = f"out.{database}.p"

        def configure(**changed: str) -> None:
            section = {**properties, **changed}
            told = ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in section.items())
            (tmp_path / "p.toml").write_text(
                f'[pipeline]\nname = "p"\nstate = "{tmp_path}/state"\n'
                f'[source]\ntype = "mysql"\nhost = "{mariadb.host}"\nport = {mariadb.port}\nuser = "cdc"\n'
                f'password = "${{env:PASSWORD}}"\ntables = ["{database}.p"]\n'
                f'[sink]\ntype = "kafka"\nformat = "maxwell-json"\ntopic = "out.{{db}}.{{table}}"\n'
                f"bootstrap_servers = {json.dumps(servers)}\nproperties = {{ {told} }}\n"
            )

        configure()
        code, findings = raycdc(tmp_path, "check", "p.toml", "--json")
        failed = {found["check"]: found["fix"] for found in findings if found["status"] == "failed"}
        assert code == 5
        assert of(findings, "connection")[0][0] == "ok"
        assert set(failed) <= {"transactions", "commit record", "sink topic"}
        assert failed["sink topic"].endswith(f"--operation Create --operation Write --operation Read --topic {topic}")
        configure(**{"sasl.password": "wrong"})
        code, findings = raycdc(tmp_path, "check", "p.toml", "--json")
        (refused,) = [text for status, text in of(findings, "sink") if status == "failed"]
        assert (code, servers in refused) == (5, True)

        configure()
        permit(
            guarded,
            (ResourceType.GROUP, "raycdc:", AclOperation.READ),
            (ResourceType.TRANSACTIONAL_ID, "raycdc:", AclOperation.WRITE),
            (ResourceType.TRANSACTIONAL_ID, "raycdc:", AclOperation.DESCRIBE),
            (ResourceType.TOPIC, topic, AclOperation.CREATE),
            (ResourceType.TOPIC, topic, AclOperation.WRITE),
        )
        code, findings = raycdc(tmp_path, "check", "p.toml", "--json")
        assert of(findings, "sink topic") == [
            ("failed", f"The user may not read topic {topic}, which its commit record needs.")
        ]
        permit(guarded, (ResourceType.TOPIC, topic, AclOperation.READ))
        code, findings = raycdc(tmp_path, "check", "p.toml", "--json")
        assert [found for found in findings if found["status"] == "failed"] == []
        assert (code, of(findings, "sink topic")) == (0, [("ok", f"Topic {topic} will be created.")])
        code, events = raycdc(tmp_path, "run", "p.toml", "--local", "--until", "caught-up", "--json")
        assert code == 0, events[-1]
        (message,) = values_of(guarded, topic)
        assert (message["type"], message["table"], message["data"]) == ("insert", "p", {"id": 1, "name": "a"})
        code, findings = raycdc(tmp_path, "check", "p.toml", "--json")
        assert (code, of(findings, "sink topic")) == (0, [("ok", f"Topic {topic} is there and may be written.")])


def raycdc(folder: Path, *words: str) -> tuple[int, list[dict[str, str]]]:
    """Exit code and lines of a command."""
    done = completed(words, environment={**os.environ, "PASSWORD": "cdc"}, folder=folder)
    assert done.stdout, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def values_of(kafka: KafkaServer, topic: str) -> list[dict[str, Any]]:
    """The committed messages of a topic with one partition."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "test", "enable.partition.eof": True}
    )
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages: list[Any] = []
        while not messages or messages[-1].error() is None:
            messages += consumer.consume(100, timeout=5)
    return [json.loads(message.value()) for message in messages[:-1]]


def test_check_warns_of_brokers_that_are_read_in_the_open(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        source = f'format = "maxwell-json"\ntopics = ["{topic}"]'
        assert [status for status, _ in of(check(kafka, tmp_path, source)[1], "connection")] == ["ok"]
        # The kernel takes this address for the machine's own; raycdc does not.
        text = (tmp_path / "p.toml").read_text().replace("127.0.0.1", "0.0.0.0")
        (tmp_path / "p.toml").write_text(text)
        done = completed(["check", "p.toml", "--json"], environment=os.environ, folder=tmp_path)
        findings = [json.loads(line) for line in done.stdout.splitlines()]
        assert [status for status, _ in of(findings, "connection")] == ["ok", "warning"]
        assert "is not encrypted" in of(findings, "connection")[1][1]


def test_a_topic_that_may_not_be_written_any_more_parks_its_table_until_it_may(
    guarded: KafkaServer, mariadb: MariaDbServer, tmp_path: Path
) -> None:
    names = ("healthy", "revoked")
    make(
        mariadb,
        "rights",
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY)" for name in names),
        *(f"INSERT INTO {name} VALUES (1)" for name in names),
    )
    operations = (AclOperation.CREATE, AclOperation.READ, AclOperation.WRITE)
    permit(
        guarded,
        (ResourceType.GROUP, "raycdc:", AclOperation.READ),
        *((ResourceType.TRANSACTIONAL_ID, "raycdc:", one) for one in (AclOperation.WRITE, AclOperation.DESCRIBE)),
        *((ResourceType.TOPIC, f"rights.{name}", operation) for name in names for operation in operations),
    )
    properties = dict(guarded.secure_properties)
    servers = properties.pop("bootstrap.servers")
    texts = ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in properties.items())
    keys = f'bootstrap_servers = "{servers}"\nproperties = {{ {texts} }}\nformat = "canal-json"\n'
    job = Job(tmp_path, mariadb, "rights", names, sink="kafka", sink_keys=keys, write="changelog", local=True)
    catch_up(job)
    kind, topic = ResourceType.TOPIC, "rights.revoked"
    pattern, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    written = AclBindingFilter(kind, topic, pattern, "User:cdc", "*", AclOperation.WRITE, allow)
    admin = guarded.admin()
    admin.delete_acls([written])[written].result(120)
    wait_until(lambda: not has(admin, written), timeout_s=120, what="the end of a permission")
    mariadb.execute(*(f"INSERT INTO {name} VALUES (2)" for name in names), database="rights")
    said = parked_run(job, "revoked")
    assert "TOPIC_AUTHORIZATION_FAILED" in said
    assert sorted(key for _, ids in changes(guarded, "rights.healthy") for key in ids) == [1, 2]
    permit(guarded, (ResourceType.TOPIC, topic, AclOperation.WRITE))
    tables_command(job, "resnapshot", topic)
    catch_up(job)
    inserted = [key for kind, ids in changes(guarded, topic) if kind == "INSERT" for key in ids]
    assert sorted(inserted) == [1, 1, 2], "those of the first snapshot, and of the second one"


def test_a_compacted_topic_whose_tombstones_cannot_be_read_is_refused_by_name(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    with kafka.fresh_topic(config={"cleanup.policy": "compact"}) as topic:
        produce(kafka, topic, b'{"id": 1, "v": "a"}')
        code, findings = check(kafka, tmp_path, f'format = "json"\ntopics = ["{topic}"]')
        ((status, text),) = of(findings, "compaction")
        assert (code, status) == (3, "failed")
        assert text.startswith(f"Topic {topic} is compacted (cleanup.policy), so that a row is deleted by a tombstone")
        # Its keys are missing, and with them the rows that tombstones delete.
        declared = '{ type = "json", columns = "id BIGINT, v STRING, PRIMARY KEY (id)" }'
        code, findings = check(kafka, tmp_path, f'format = {declared}\ntopics = ["{topic}"]')
        ((status, text),) = of(findings, "compaction")
        assert "the keys of its messages are no JSON objects with the key columns (id)" in text
    with kafka.fresh_topic() as topic:
        produce(kafka, topic, b'{"id": 1, "v": "a"}')
        code, findings = check(kafka, tmp_path, f'format = "json"\ntopics = ["{topic}"]')
        assert (code, of(findings, "compaction")) == (0, [])
