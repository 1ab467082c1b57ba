"""The sweep: planted secrets and values of rows are looked for wherever somebody else, or a log, could have them.

| planted | may be in |
|---|---|
| a secret by reference to the environment | that variable of the run's processes, which their own user alone can read |
| a secret by reference to a file, or of ``spark.conf`` | nowhere |
| a value that a mask hides | nowhere |
| values of a refused row and its key, or of a statement | the rows' own files: segments, known rows, dead letters |

Looked through are the command lines and environments of all processes, Ray's and Spark's logs, Spark's own view of its
settings, all files of the pipeline, whatever the commands print with ``--verbose``, and tracebacks.
"""

from __future__ import annotations

import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from cryptography.hazmat.primitives import serialization

from raycdc.sandbox.servers import DatabaseServer, KafkaServer, MariaDbServer, MongoDb, PostgresServer
from raycdc.sandbox.servers.kafka import SWEEPER_PASSWORD
from raycdc.sandbox.servers.private import held_port
from tests.support.forked_commands import completed
from tests.support.jobs import Job, JobRun, require_engines

pytestmark = pytest.mark.server

DATABASE = "sweep"
BY_ENVIRONMENT = "S3cret-by-environment-7f1"
BY_FILE = {
    name: f"S3cret-of-{name}-7f1"
    for name in ("sink", "mask", "state", "spark", "key", "uri", "hook", "control", "metrics", "traces")
}
BY_FILE["sweeper"] = SWEEPER_PASSWORD
#: A key of notifications is base64.
BY_FILE["notify"] = "S3cretOfNotify7f1S3cretOfNotify7"
MASKED = "planted-masked-7f1"
#: Of refused rows and their keys, and of statements.
VALUES = ("planted-value-7f1", "planted-key-7f1", "planted-statement-7f1", "planted-default-7f1")
VALUE, KEY, STATEMENT, DEFAULT = VALUES
#: Folders of the pipeline that hold rows.
ROWS = ("spool", "known", "dead_letters", "lake")

TABLES = (
    "CREATE TABLE people (id INT PRIMARY KEY, mail VARCHAR(80), note VARCHAR(80))",
    f"INSERT INTO people SELECT seq, CONCAT(seq, '-{MASKED}'), 'n' FROM seq_1_to_30",
    "CREATE TABLE odd (code VARCHAR(40) PRIMARY KEY, note VARCHAR(80))",
    "INSERT INTO odd VALUES ('1', '1')",
    "CREATE TABLE stated (id INT PRIMARY KEY, note VARCHAR(80))",
    "INSERT INTO stated VALUES (1, '1')",
)
SECTIONS = """
[[mask]]
columns = "sweep.people.mail"
method = "hash"
key = "${file:%(folder)s/mask}"

[[notify]]
type = "webhook"
url = "http://127.0.0.1:1/${file:%(folder)s/hook}"
secret = "whsec_${file:%(folder)s/notify}"
end_wait = "1ms"

[traces]
endpoint = "http://127.0.0.1:1"
headers = { authorization = "Bearer ${file:%(folder)s/traces}" }
end_wait = "1ms"

[logging]
file = "run.log"
level = "debug"
"""
DOORS = """
[control]
port = %(control)s
token = "${file:%(folder)s/control}"
[metrics]
address = "127.0.0.1:%(metrics)s"
token = "${file:%(folder)s/metrics}"
"""
SPARK = """
[[transform]]
table = "sweep.odd"
projection = "*, CAST(note AS INT) AS number"

[spark.conf]
"spark.hadoop.fs.s3a.secret.key" = "${file:%(folder)s/spark}"
"spark.ui.enabled" = "true"
"spark.ui.port" = "%(port)s"
"""


@dataclass(slots=True)
class Swept(Job):
    """A pipeline that logs in as `sweeper`."""

    def source_section(self) -> str:
        section = Job.source_section(self).replace("${env:RAYCDC_TEST_PASSWORD}", "${env:SWEEP_SOURCE}")
        return section.replace(f'user = "{self.server.cdc_user}"', 'user = "sweeper"')


TOPIC = """
type = "kafka"
bootstrap_servers = "%(brokers)s"
%(kind)s
properties = { "security.protocol" = "SASL_SSL", "sasl.mechanism" = "PLAIN", "sasl.username" = "sweeper", \
"sasl.password" = "${file:%(folder)s/sweeper}", "ssl.key.password" = "${file:%(folder)s/key}", \
"ssl.key.location" = "%(tls)s/client.key", "ssl.certificate.location" = "%(tls)s/server.pem", \
"ssl.ca.location" = "%(tls)s/ca.pem" }
"""
FROM_TOPIC = """topics = ["%(topic)s"]
format = { type = "maxwell-json", columns = "id BIGINT, mail STRING, note STRING" }
"""
COLLECTION = """
type = "mongodb"
uri = "mongodb://sweeper:${%(secret)s}@%(host)s&authMechanism=PLAIN&authSource=$external"
"""
COLUMNS = """collections = ["%(name)s"]
schema = "declared"
columns = { "%(name)s" = { _id = "long", mail = "string", note = "string" } }
"""


@dataclass(slots=True)
class SweptClients(Job):
    """A pipeline whose ``[source]`` is `source_keys`."""

    source_keys: str = ""

    def source_section(self) -> str:
        return self.source_keys


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files of secrets; Ray's folder is beside it, with a short name."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    for name, secret in BY_FILE.items():
        (folder / name).write_text(secret)
    monkeypatch.setenv("SWEEP_SOURCE", BY_ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="sw") as short:
        monkeypatch.setenv("RAY_TMPDIR", short)
        yield folder


def in_processes() -> None:
    """No command line of this machine has anything that was planted, and no environment but the user's own variable."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words, variables = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # ended, or another user's
            continue
        for planted in (BY_ENVIRONMENT, *BY_FILE.values(), MASKED, *VALUES):
            assert planted.encode() not in words, (entry, words)
            having = {variable.partition(b"=")[0] for variable in variables if planted.encode() in variable}
            assert having <= ({b"SWEEP_SOURCE"} if planted == BY_ENVIRONMENT else set()), (entry, having)


def in_files(job: Job) -> None:
    """The files of the pipeline, of Ray and of Spark; rows may be where rows are."""
    for root in (job.folder, Path(os.environ["RAY_TMPDIR"])):
        for path in root.rglob("*"):
            if not path.is_file() or path.parent.name == "secrets":
                continue
            content = path.read_bytes()
            for planted in (BY_ENVIRONMENT, *BY_FILE.values(), MASKED):
                assert planted.encode() not in content, (path, planted)
            if not set(ROWS) & set(path.relative_to(root).parts):
                for planted in VALUES:
                    assert planted.encode() not in content, (path, planted, near(content, planted))


def in_words(*texts: str) -> None:
    """What commands printed."""
    for text in texts:
        for planted in (BY_ENVIRONMENT, *BY_FILE.values(), MASKED, *VALUES):
            assert planted not in text, near(text.encode(), planted)


def near(content: bytes, planted: str) -> bytes:
    at = content.find(planted.encode())
    return content[max(0, at - 600) : at + 200]


def said(run: JobRun) -> str:
    return json.dumps(run.events) + run.log.read_text(errors="replace")


def asked(job: Job, *commands: Sequence[str]) -> str:
    config, environment = str(job.configuration()), dict(os.environ)
    each = [completed([*words, config], environment=environment, folder=job.folder) for words in commands]
    return "".join(one.stdout + one.stderr for one in each)


def spark_tells(port: int) -> str:
    """Spark's settings and statements, as its web pages show them."""
    base = f"http://127.0.0.1:{port}/api/v1/applications"

    def page(path: str) -> str:
        with urllib.request.urlopen(base + path, timeout=20) as answer:
            return str(answer.read().decode())

    (application,) = json.loads(page(""))
    return "".join(page(f"/{application['id']}/{name}") for name in ("environment", "sql?details=true&length=1000"))


@pytest.fixture
def ports() -> Iterator[Mapping[str, int]]:
    """Those of both doors and of Spark's pages, which nobody else gets while one run after another listens there."""
    with held_port() as control, held_port() as metrics, held_port() as spark:
        yield {"control": control, "metrics": metrics, "spark": spark}


def with_doors(folder: Path, ports: Mapping[str, int]) -> str:
    """The sections of both doors."""
    return DOORS % {"folder": folder, **ports}


def doors_tell(run: JobRun, ports: Mapping[str, int]) -> str:
    """All that the doors answer, to whoever has their tokens, to others, and to a browser that was let in."""

    def answer(door: str, path: str, body: str | None = None, **headers: str) -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{ports[door]}{path}", None if body is None else body.encode()
        )
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(request, timeout=60) as found:
                stream = "event-stream" in found.headers.get("Content-Type", "")
                text = found.readline() if stream else found.read()
                return f"{found.headers}{text.decode()}"
        except urllib.error.HTTPError as refused:
            return f"{refused.code}{refused.headers}{refused.read().decode()}"

    def is_open() -> bool:
        try:
            return bool(answer("control", "/") and answer("metrics", "/healthz"))
        except OSError:
            return False

    assert run.wait_for(is_open), run.story()
    bearer = {door: f"Bearer {BY_FILE[door]}" for door in ("control", "metrics")}
    asked = [answer("metrics", path, Authorization=bearer["metrics"]) for path in ("/metrics", "/healthz", "/readyz")]
    paths = ("/v1/status", "/v1/tables", "/v1/commands", "/v1/openapi.json", "/v1/updates?limit=10")
    asked += [answer("control", path, Authorization=bearer["control"]) for path in paths]
    assert all('"people"' in text or "people" in text for text in (asked[0], asked[3])), asked
    wrong = {"code": "nobody", "action": "pause", "table": "no.such", "id": "x"}
    asked += [answer("control", path, Authorization="Bearer wrong") for path in paths] + [answer("metrics", "/metrics")]
    assert "401" in asked[-1]
    for path in ("/page/login", "/v1/commands", "/v1/links"):
        asked.append(
            answer("control", path, json.dumps(wrong), Authorization=bearer["control"], Content_Type="application/json")
        )
    return "".join(asked)


def caught_up(job: Job) -> None:
    """Events and files after a run that may have parked tables."""
    ended = job.start("--until", "caught-up", "--verbose")
    assert ended.wait() in (0, 4, 5), ended.story()
    in_words(said(ended))


def story(job: Job, server: MariaDbServer, bad: str, *, ports: Mapping[str, int]) -> None:
    if job.local:
        killed = job.start("--until", "caught-up", "--verbose", failpoints="before_commit=kill@1")
        assert killed.wait() == -9, killed.story()
        in_words(said(killed))
    live = job.start("--verbose")
    live.wait_for(lambda: len(list((job.state / "commits").glob("*.json"))) > 0)
    in_processes()
    shown = ("" if job.local else spark_tells(ports["spark"])) + doors_tell(live, ports)
    live.interrupt()
    in_words(said(live), shown)
    in_files(job)
    server.execute(bad, database=DATABASE)
    job.pipeline = job.pipeline.replace('"park"', '"fail"')
    failed = job.start("--until", "caught-up", "--verbose")
    assert failed.wait() in (4, 5), failed.story()
    assert "Traceback (most recent call last)" in said(failed)
    assert "with its key in (code)" in said(failed)
    in_words(said(failed))
    job.pipeline = job.pipeline.replace('"fail"', '"park"')
    if job.local:
        caught_up(job)
    server.execute(
        "SET SESSION binlog_format = 'STATEMENT'",
        f"UPDATE stated SET note = '{STATEMENT}' WHERE id = 1",
        "SET SESSION binlog_format = 'ROW'",
        f"ALTER TABLE stated ADD COLUMN more VARCHAR(80) DEFAULT (CONCAT('{DEFAULT}', id))",
        database=DATABASE,
    )
    caught_up(job)
    listed = asked(job, ("tables", "list"), *([("check",), ("plan",)] if job.local else []))
    assert "logged as a statement" in listed
    in_words(listed)
    in_files(job)
    in_processes()


def make(server: MariaDbServer) -> None:
    server.execute(f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    server.execute(*TABLES, database=DATABASE)
    server.execute(
        f"CREATE OR REPLACE USER sweeper@'%' IDENTIFIED BY '{BY_ENVIRONMENT}'",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO sweeper@'%'",
    )


def test_a_run_without_ray_into_postgresql(
    mariadb: MariaDbServer, postgres: PostgresServer, secrets: Path, ports: Mapping[str, int], tmp_path: Path
) -> None:
    make(mariadb)
    with postgres.fresh_database() as home:
        postgres.execute("DROP ROLE IF EXISTS sweeper", f"CREATE ROLE sweeper LOGIN PASSWORD '{BY_FILE['sink']}'")
        postgres.execute(f'GRANT ALL ON DATABASE "{home}" TO sweeper')
        postgres.execute("GRANT ALL ON SCHEMA public TO sweeper", database=home)
        keys = f'url = "{postgres.url(home)}"\nuser = "sweeper"\npassword = "${{file:{secrets}/sink}}"\n'
        job = Swept(tmp_path, mariadb, DATABASE, ("people", "odd", "stated"), sink="jdbc", sink_keys=keys, local=True)
        job.sections = SECTIONS % {"folder": secrets} + with_doors(secrets, ports)
        job.pipeline = f'on_bad_record = "park"\nstate_key = "${{file:{secrets}/state}}"'
        story(job, mariadb, f"INSERT INTO odd VALUES ('{KEY}', '{VALUE}\\0')", ports=ports)


@pytest.mark.spark
@pytest.mark.long(suite="leaks")
@pytest.mark.timeout(1800)
def test_a_run_on_ray_and_spark_into_delta(
    mariadb: MariaDbServer, secrets: Path, ports: Mapping[str, int], tmp_path: Path
) -> None:
    make(mariadb)
    job = Swept(tmp_path, mariadb, DATABASE, ("people", "odd", "stated"), readers=2)
    job.sections = (SECTIONS + SPARK) % {"folder": secrets, "port": ports["spark"]} + with_doors(secrets, ports)
    job.pipeline = f'on_bad_record = "park"\nstate_key = "${{file:{secrets}/state}}"'
    story(job, mariadb, f"INSERT INTO odd VALUES ('{KEY}', '{VALUE}')", ports=ports)
    require_engines(*job.runs)


def encrypted_key(kafka: KafkaServer, secrets: Path) -> Path:
    """The folder of the broker's certificates, with a client's key that needs its password."""
    folder = Path(kafka.secure_properties["ssl.ca.location"]).parent
    key = serialization.load_pem_private_key((folder / "server.key").read_bytes(), password=None)
    locked = serialization.BestAvailableEncryption((secrets / "key").read_bytes())
    form = serialization.PrivateFormat.PKCS8
    (folder / "client.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
    return folder


def send(kafka: KafkaServer, topic: str, database: str, rows: Sequence[dict[str, object]]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    about = {"database": database, "table": "people", "type": "insert", "ts": 1700000000}
    for row in rows:
        producer.produce(topic, json.dumps({**about, "data": row}), str(row["id"]))
    assert producer.flush(20) == 0


def sent(kafka: KafkaServer, database: str) -> list[bytes | None]:
    """The messages of a topic that may not be there yet."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "sweep", "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(f"{database}.people", 0, 0)])
    found = consumer.consume(1000, timeout=2)
    consumer.close()
    return [message.value() for message in found if message.error() is None]


@pytest.mark.parametrize(
    "local", [True, pytest.param(False, marks=[pytest.mark.spark, pytest.mark.long(suite="leaks")])]
)
@pytest.mark.parametrize("source", ["kafka", "mongodb"])
def test_a_run_between_a_topic_and_a_collection(
    source: str,
    *,
    local: bool,
    kafka: KafkaServer,
    mongodb: MongoDb,
    secrets: Path,
    ports: Mapping[str, int],
    tmp_path: Path,
) -> None:
    words = {
        "folder": secrets,
        "tls": encrypted_key(kafka, secrets),
        "brokers": kafka.secure_properties["bootstrap.servers"],
    }
    rows = [{"id": number, "mail": f"{number}-{MASKED}", "note": VALUE} for number in range(1, 31)]
    with mongodb.fresh_database("sweep") as database, kafka.fresh_topic() as topic:
        host = mongodb.uri.removeprefix("mongodb://")
        if source == "kafka":
            send(kafka, topic, database, rows)
            read = TOPIC % {**words, "kind": FROM_TOPIC % {"topic": topic}}
            written = COLLECTION % {"host": host, "secret": f"file:{secrets}/uri"}
        else:
            with mongodb.client() as client:
                client[database]["people"].insert_many([{**row, "_id": row["id"]} for row in rows])
            read = COLLECTION % {"host": host, "secret": "env:SWEEP_SOURCE"} + COLUMNS % {"name": f"{database}.people"}
            written = TOPIC % {**words, "kind": 'format = { type = "canal-json" }'}
        job = SweptClients(tmp_path, cast("DatabaseServer", kafka), database, (), local=local, source_keys=read)
        job.sink, job.sink_keys = ("mongodb", "kafka")[source == "mongodb"], written.split("\n", 2)[2]
        job.write = "changelog"
        job.sections = (SECTIONS % {"folder": secrets} + with_doors(secrets, ports)).replace("sweep.", f"{database}.")
        job.pipeline = f'state_key = "${{file:{secrets}/state}}"'
        killed = job.start("--until", "caught-up", "--verbose", failpoints="before_commit=kill@1")
        assert killed.wait() == -9, killed.story()
        live = job.start("--verbose")
        target = partial(mongodb.find, database, "people") if source == "kafka" else partial(sent, kafka, database)
        assert live.wait_for(lambda: len(target()) == len(rows)), live.story()
        in_processes()
        told = doors_tell(live, ports)
        live.interrupt()
        in_words(said(killed), said(live), told, asked(job, ("tables", "list"), ("check",), ("plan",)))
        in_files(job)
