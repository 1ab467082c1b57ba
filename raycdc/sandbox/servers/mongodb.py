"""A private MongoDB: an emulated replica set of one node (`MongoReplicaSet.java` over mongo-java-server); no root.

No package registry has MongoDB's own server. This emulation was written from MongoDB's documentation: commands,
sessions, transactions, change streams with resume tokens and images, `splitVector`, reads by index bounds and as of a
cluster time, validators, fail points. It keeps everything in memory, so a server that was stopped starts empty. It has
no TLS, elections or sharding. It has no users: any password is accepted by ``authMechanism=PLAIN``, except for a user
with a password of `set_password`. It has no isolation: writes of a transaction are visible immediately. Transactions
conflict, and end by their age, only after ``transactionLifetimeLimitSeconds`` was set. If ``RAYCDC_TEST_MONGODB_URI``
names a real replica set, `mongodb_choice.mongodb_for_tests` returns this one instead.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers.private import PrivateServer, ServerError, fresh_name
from raycdc.spark.artifacts import fetch, java_command

if TYPE_CHECKING:
    import pymongo

#: The versions that the emulation can report, with the `hello`, `buildInfo`, commands and options of each.
VERSIONS = ("4.4", "5.0", "6.0", "7.0", "8.0")
_SOURCE = Path(__file__).with_name("MongoReplicaSet.java")
_EMULATION = "de.bwaldvogel:mongo-java-server:1.47.0"
#: A Java compiler that needs no JDK, because Spark needs only a JRE.
_COMPILER = "org.eclipse.jdt:ecj:3.38.0"
_START_TIMEOUT_S = 300.0


class MongoDb:
    """A replica set for tests, private or not. `uri` contains no database."""

    uri: str
    #: True if tests may stop it, kill it and make it fail.
    private: ClassVar[bool] = False
    #: True if it can store moments before the year 1 and after 9999.
    far_dates: ClassVar[bool] = True
    #: The suffix of the names of databases.
    _mark = ""

    @property
    def running(self) -> bool:
        """Return True if the server can be queried."""
        return True

    def client(self, **options: Any) -> pymongo.MongoClient[dict[str, Any]]:
        """Return a new client, which the caller must close (``with server.client() as client:``)."""
        import pymongo

        return pymongo.MongoClient(self.uri, tz_aware=True, **options)

    def find(self, database: str, collection: str, query: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return all documents that match, in order of ``_id``."""
        with self.client() as client:
            return list(client[database][collection].find(dict(query or {})).sort("_id", 1))

    def answers(self) -> bool:
        """Return True if the server answers."""
        from pymongo.errors import PyMongoError

        try:
            with self.client(serverSelectionTimeoutMS=500) as client:
                client.admin.command("hello")
        except PyMongoError:
            return False
        return True

    def drop(self, *databases: str) -> None:
        """Drop those of these databases that exist."""
        with self.client(serverSelectionTimeoutMS=5000) as client:
            for name in databases:
                client.drop_database(name)

    @contextmanager
    def fresh_database(self, prefix: str = "t") -> Iterator[str]:
        """Yield the name of an unused database, which is dropped afterwards if the server still runs.

        All databases whose names begin with it and an underscore are dropped as well.
        """
        name = f"{fresh_name(prefix)}{self._mark}"
        try:
            yield name
        finally:
            if self.running:
                with self.client(serverSelectionTimeoutMS=5000) as client:
                    related = [other for other in client.list_database_names() if other.startswith(f"{name}_")]
                self.drop(name, *related)


class ExternalMongoDb(MongoDb):
    """The replica set that ``RAYCDC_TEST_MONGODB_URI`` names."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        # Other machines may run tests on the same server.
        self._mark = f"_{secrets.token_hex(3)}"


class MongoDbServer(PrivateServer, MongoDb):
    """The emulated replica set. ``with MongoDbServer(version="6.0") as mongodb:``"""

    flavor = "mongodb"
    private = True

    def __init__(self, *, version: str = "7.0", port: int | None = None) -> None:
        assert version in VERSIONS, version
        super().__init__(port=port)
        self.version = version

    @property
    def uri(self) -> str:  # type: ignore[override]
        """Return the URI for clients."""
        return f"mongodb://{self.host}:{self.port}/?replicaSet=rs0"

    @property
    def log(self) -> Path:
        """Return the server's output."""
        return self.folder / "out.log"

    def prepare(self) -> None:
        """Download the jars and compile the emulation, once per machine. May take a minute; later calls are free."""
        _home()

    def _launch(self) -> None:
        command = _java("MongoReplicaSet", str(self.port), self.host, options=[f"-Dmongo.version={self.version}"])
        self._run(command, self.answers, name="MongoDB", logs=[self.log], timeout_s=_START_TIMEOUT_S)

    def set_password(self, user: str, password: str) -> None:
        """Set the password that `user` needs by ``authMechanism=PLAIN``.

        Existing connections of the user are closed.
        """
        with self.client() as client:
            client.admin.command({"updateUser": user, "pwd": password})

    def fail(self, commands: Sequence[str], *, times: int = 1, **what: Any) -> None:
        """Let the next `times` calls of `commands` fail (-1: all, until `unfail`).

        `what` has options of MongoDB's fail point `failCommand`: ``errorCode=``, ``errorLabels=``,
        ``closeConnection=True``, ``blockTimeMS=``, ``namespace=``.
        """
        mode: Any = "alwaysOn" if times < 0 else {"times": times}
        with self.client() as client:
            client.admin.command(
                {"configureFailPoint": "failCommand", "mode": mode, "data": {"failCommands": list(commands), **what}}
            )

    def deny(self, namespace: str, commands: Sequence[str]) -> None:
        """Answer `commands` on a collection with an authorization error (code 13), until `unfail`."""
        with self.client() as client:
            data = {"namespace": namespace, "commands": list(commands)}
            client.admin.command({"configureFailPoint": "denyCommands", "mode": "alwaysOn", "data": data})

    def unfail(self) -> None:
        """End the effects of `fail`, `hide` and `deny`."""
        with self.client() as client:
            for name in ("failCommand", "hideDocuments", "denyCommands"):
                client.admin.command({"configureFailPoint": name, "mode": "off"})

    def hide(self, namespace: str, *, times: int) -> None:
        """Let the next `times` queries by `_id` find nothing in a collection (-1: all, until `unfail`).

        Until then, change streams return no documents of updates.
        """
        mode: Any = "alwaysOn" if times < 0 else {"times": times}
        with self.client() as client:
            client.admin.command(
                {"configureFailPoint": "hideDocuments", "mode": mode, "data": {"namespace": namespace}}
            )

    def keep_history(self, seconds: int) -> None:
        """Set for how many seconds reads as of a cluster time succeed (``minSnapshotHistoryWindowInSeconds``, initially
        300).
        """
        with self.client() as client:
            client.admin.command({"setParameter": 1, "minSnapshotHistoryWindowInSeconds": seconds})

    def truncate_log(self, keep: int = 0) -> None:
        """Drop all but the last `keep` entries of the log.

        Change streams from earlier entries fail with lost history.
        """
        with self.client() as client:
            client.admin.command({"truncateLog": keep})


def _java(*arguments: str, options: Sequence[str] = ()) -> list[str]:
    memory = ["-Xms32m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    home = _home()
    return [java_command(), *memory, *options, "-cp", f"{home}/*:{home}/classes", *arguments]


def _home() -> Path:
    """Return the folder with the jars and the compiled emulation.

    If the source changes, the folder is a different one.
    """
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    return build_once(f"mongodb-{_EMULATION.rsplit(':', 1)[1]}-{digest}", _build)


def _build(folder: Path) -> None:
    jars = fetch(folder, [_EMULATION, _COMPILER], complete=True)
    (compiler,) = [jar for jar in jars if "ecj-" in jar.name]
    class_path = os.pathsep.join(map(str, jars))
    options = ["-17", "-nowarn", "-proc:none", "-encoding", "UTF-8", "-cp", class_path, "-d", str(folder / "classes")]
    done = subprocess.run(
        [java_command(), "-jar", str(compiler), *options, str(_SOURCE)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise ServerError(f"{_SOURCE.name} could not be compiled:\n{(done.stdout + done.stderr)[-3000:]}")
    compiler.unlink()
