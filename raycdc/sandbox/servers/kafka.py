"""A private Apache Kafka: one KRaft node (broker and controller) from Maven's jars, no ZooKeeper, no root.

It has two listeners: plain text, and SASL_SSL with a certificate of the test authority. At the second, user ``cdc``
logs in with password ``cdc`` by PLAIN, and the accounts of `set_password` log in by SCRAM-SHA-256. To make later starts
fast, some files are prepared once per machine: the jars, a formatted log folder, and an archive of the classes the
broker loads, which halves its start.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers.certificates import write_certificates
from raycdc.sandbox.servers.private import (
    GuardedProcess,
    PrivateServer,
    ServerError,
    free_port,
    fresh_name,
    log_tail,
    wait_until,
)
from raycdc.spark.artifacts import fetch, java_command

KAFKA_VERSION = "4.4.0"
#: A part of the template's name: increase it when the settings in the template change.
TEMPLATE_VERSION = 2
_COORDINATES = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.5")
#: Artifacts that Kafka's own pom names although they are not published.
_EXCLUDED = ("org.apache.kafka:kafka-tools-api",)
#: The cluster id: any 16 bytes in base64. Copies of a formatted folder have the same id, which does no harm on
#: loopback.
_CLUSTER_ID = "AAAAAAAAQACAAAAAAAAAAQ"
_START_TIMEOUT_S = 300.0
_ADMIN_TIMEOUT_S = 120.0
#: The password of the user ``sweeper``, which tests search for in outputs.
SWEEPER_PASSWORD = "S3cret-of-sweeper-7f1"

_LOGGING = """<Configuration status="WARN"><Appenders>
<Console name="c" target="SYSTEM_ERR"><PatternLayout pattern="%d %p %m (%c)%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="c"/></Root></Loggers></Configuration>
"""

#: One node that has all data, answers immediately, and never waits for a second replica.
_SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "listener.name.sasl_ssl.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_cdc="cdc" user_sweeper="{SWEEPER_PASSWORD}";'
    ),
    "ssl.keystore.type": "PEM",
    "num.partitions": "1",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "8388608",
    # A killed broker can register again only after its old session has ended.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # A single node needs no periodic metadata record twice a second; these cause 40 % of its load when idle.
    "metadata.max.idle.interval.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "2",
}


class KafkaServer(PrivateServer):
    """The broker; see the module's docstring.

    ``with KafkaServer() as kafka:``; `options` are further broker settings.
    """

    flavor = "kafka"
    cdc_user = "cdc"

    def __init__(
        self, options: Mapping[str, str] | None = None, *, port: int | None = None, advertised_port: int = 0
    ) -> None:
        """Create the server.

        `advertised_port` is the port that the broker names to clients of the plain listener, for example that of a
        proxy (0: its own).
        """
        super().__init__(port=port)
        self._advertised_port = advertised_port
        self.secure_port = 0
        self._controller_port = 0
        self._options = dict(options or {})

    @property
    def bootstrap_servers(self) -> str:
        """Return the address of the plain listener."""
        return f"{self.host}:{self.port}"

    @property
    def secure_properties(self) -> dict[str, str]:
        """Return librdkafka's properties for the SASL_SSL listener, including ``bootstrap.servers``."""
        return {
            "bootstrap.servers": f"{self.host}:{self.secure_port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "cdc",
            "sasl.password": "cdc",
            "ssl.ca.location": str(self.folder / "tls" / "ca.pem"),
        }

    def set_password(self, user: str, password: str) -> None:
        """Create an account that logs in by SCRAM-SHA-256, or change its password.

        Existing connections stay, as with any broker.
        """
        from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

        kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        admin = self.admin()
        asked = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, kind, password.encode())])
        asked[user].result(_ADMIN_TIMEOUT_S)

    @property
    def log(self) -> Path:
        """Return the broker's output (warnings and errors)."""
        return self.folder / "out.log"

    def prepare(self) -> None:
        """Download the jars and make the template, once per machine. May take a minute; later calls are free."""
        _template()

    def start(self) -> Self:
        """See `PrivateServer.start`. The first start creates the data and certificates."""
        if not (self.folder / "data").exists():
            shutil.copytree(_template() / "data", self.folder / "data")
            write_certificates(self.folder / "tls")
        return super().start()

    def admin(self) -> Any:
        """Return a new ``AdminClient``."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic; returns when its partitions have leaders."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.cimpl import NewTopic

        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin = self.admin()  # The client needs a name: its futures are cancelled when it is deleted.

        def created() -> bool:
            try:
                admin.create_topics([topic])[name].result(_ADMIN_TIMEOUT_S)
            except KafkaException as error:
                # On a busy machine the broker's heartbeat may be late; then no broker is available for the topic for a
                # moment.
                if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                    raise
                return False
            return True

        wait_until(created, timeout_s=_ADMIN_TIMEOUT_S, what=f"the creation of the topic {name}")
        self._wait_for_partitions(name, partitions)
        return name

    def add_partitions(self, topic: str, total: int) -> None:
        """Increase the number of a topic's partitions to `total`."""
        from confluent_kafka.cimpl import NewPartitions

        admin = self.admin()
        admin.create_partitions([NewPartitions(topic, total)])[topic].result(_ADMIN_TIMEOUT_S)
        self._wait_for_partitions(topic, total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages."""
        admin = self.admin()
        admin.delete_topics([name])[name].result(_ADMIN_TIMEOUT_S)

    @contextmanager
    def fresh_topic(self, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> Iterator[str]:
        """Yield the name of a new topic. It is deleted with the server."""
        yield self.create_topic(fresh_name("t"), partitions=partitions, config=config)

    def _wait_for_partitions(self, topic: str, partitions: int) -> None:
        admin = self.admin()

        def led() -> bool:
            found = admin.list_topics(topic, timeout=_ADMIN_TIMEOUT_S).topics[topic]
            return len(found.partitions) == partitions and all(p.leader >= 0 for p in found.partitions.values())

        wait_until(led, timeout_s=_ADMIN_TIMEOUT_S, what=f"leaders of {partitions} partitions of {topic}")

    def _settings(self) -> dict[str, str]:
        tls = self.folder / "tls"
        plain, secure = f"PLAINTEXT://{self.host}:", f"SASL_SSL://{self.host}:{self.secure_port}"
        return {
            **_settings(self.folder / "data", self._controller_port),
            "listeners": f"{plain}{self.port},{secure},CONTROLLER://{self.host}:{self._controller_port}",
            "advertised.listeners": f"{plain}{self._advertised_port or self.port},{secure}",
            "ssl.keystore.certificate.chain": tls.joinpath("server.pem").read_text(),
            "ssl.keystore.key": _pkcs8(tls / "server.key"),
            **self._options,
        }

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.secure_port = self.secure_port or free_port()
        self._controller_port = self._controller_port or free_port()

    def _forget_ports(self) -> None:
        super()._forget_ports()
        self.secure_port = self._controller_port = 0

    def _launch(self) -> None:
        _write_settings(self.folder / "server.properties", self._settings())
        archive = _template() / "classes.jsa"
        options = [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto"] if archive.exists() else []
        command = _java(*options, "kafka.Kafka", str(self.folder / "server.properties"))
        self._run(command, self._is_ready, name="Kafka", logs=[self.log], timeout_s=_START_TIMEOUT_S)

    def _is_ready(self) -> bool:
        """Return True if the broker answers.

        Each call opens a new connection, because a client waits longer after each failure.
        """
        from confluent_kafka import KafkaException

        if not self._listens():
            return False
        try:
            return bool(self.admin().list_topics(timeout=2).brokers)
        except KafkaException:
            return False


def _pkcs8(path: Path) -> str:
    """Return the private key in the only format that Java reads."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _settings(data: Path, controller_port: int) -> dict[str, str]:
    # With static voters the port is in this file only, and a formatted folder fits any port.
    return {
        **_SETTINGS,
        "controller.quorum.voters": f"1@{KafkaServer.host}:{controller_port}",
        "log.dirs": str(data),
    }


def _write_settings(path: Path, settings: Mapping[str, str]) -> None:
    """Write Java properties, in which a line break inside a value is escaped."""
    lines = [f"{key}={value}".replace("\n", "\\n") for key, value in settings.items()]
    path.write_text("\n".join(lines) + "\n")
    path.with_name("log4j2.xml").write_text(_LOGGING)


def _home() -> Path:
    def unpack(folder: Path) -> None:
        import pyspark

        fetch(folder, _COORDINATES, exclude=_EXCLUDED, complete=True)
        # Spark's resolver never fetches Scala, because Spark contains it.
        (scala,) = Path(pyspark.__file__).with_name("jars").glob("scala-library-2.13*.jar")
        shutil.copy(scala, folder)

    return build_once(f"kafka-{KAFKA_VERSION}", unpack)


def _java(*arguments: str) -> list[str]:
    *options, main, settings = arguments
    memory = ["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    logging = f"-Dlog4j2.configurationFile={Path(settings).with_name('log4j2.xml')}"
    return [java_command(), *memory, *options, logging, "-cp", f"{_home()}/*", main, settings]


def _template() -> Path:
    return build_once(f"templates/kafka-{KAFKA_VERSION}-v{TEMPLATE_VERSION}", _build_template)


def _build_template(folder: Path) -> None:
    """Create a formatted log folder, and the class archive of a broker that was started and stopped once."""
    with tempfile.TemporaryDirectory(prefix="raycdc-init-") as scratch:
        settings = Path(scratch, "server.properties")
        _write_settings(
            settings, {**_settings(folder / "data", 1), "listeners": "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1"}
        )
        tool = _java("kafka.tools.StorageTool", str(settings))
        _check_run([*tool[:-1], "format", "-t", _CLUSTER_ID, "-c", str(settings)])
    server = KafkaServer()
    try:
        shutil.copytree(folder / "data", server.folder / "data")
        _dump_classes(server, folder / "classes.jsa")
    finally:
        server.close()


def _dump_classes(server: KafkaServer, archive: Path) -> None:
    server._choose_ports()
    write_certificates(server.folder / "tls")
    _write_settings(server.folder / "server.properties", server._settings())
    command = _java(f"-XX:ArchiveClassesAtExit={archive}", "kafka.Kafka", str(server.folder / "server.properties"))
    process = GuardedProcess(command, log=server.log, folder=None)
    try:
        wait_until(
            lambda: not process.running or server._is_ready(), timeout_s=_START_TIMEOUT_S, what="the first start"
        )
        started = process.running
    finally:
        process.end(signal.SIGTERM, timeout_s=120)
    if not started or not archive.exists():
        raise ServerError(f"Kafka ended without its class archive:\n{log_tail(server.log)}")


def _check_run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ServerError(f"Kafka's log folder could not be formatted:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
