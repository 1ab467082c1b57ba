"""Tokens, secrets, passwords and keys of Iceberg's catalogs change under a run of the command, and it goes on.

The catalog is told first, and refuses what the run has; only when it has done so, the file says the new secret. None of
this waits for a time. `tests/e2e/test_rotation.py` has the databases, `tests/integration/storage` the object stores.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import boto3
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from raycdc.sandbox.servers import MariaDbServer, MotoServer, PostgresServer
from raycdc.sandbox.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY
from raycdc.sinks.iceberg.catalog import open_catalog
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from tests.e2e.test_rotation import NEW, OLD, at_mariadb, at_postgres
from tests.integration.sinks.iceberg_server import Server
from tests.support.jobs import Job, JobRun
from tests.support.table_commands import listed, tables_command

pytestmark = pytest.mark.server


@dataclass(frozen=True, slots=True)
class RotatedCatalog:
    """A catalog as its owner has it: `change` lets in the new secret alone, `refused` counts whom it did not let in."""

    options: Mapping[str, Any]
    change: Callable[[str], None]
    refused: Callable[[], int]
    catalog: Callable[[], Catalog]

    def keys(self, database: str, table: str = "t") -> list[int]:
        with closing(self.catalog()) as catalog:
            try:
                rows = catalog.load_table((database, table)).scan().to_arrow()
            except NoSuchTableError:
                return []
        return sorted(rows.column("id").to_pylist())

    def wait_for_keys(self, live: JobRun, database: str, expected: list[int]) -> None:
        """A table that is parked will never have them."""

        def all_there() -> bool:
            assert not [event for event in live.events if event["event"] == "parked"], live.story()
            return self.keys(database) == expected

        live.wait_for_rows(all_there)


def give(file: Path, secret: str) -> str:
    """What the reference says from now on; the reference."""
    file.with_suffix(".new").write_text(secret)
    file.with_suffix(".new").replace(file)
    return f"${{file:{file}}}"


def job_into(options: Mapping[str, Any], mariadb: MariaDbServer, database: str, folder: Path, *tables: str) -> Job:
    properties = ", ".join(f"{json.dumps(key)} = {json.dumps(text)}" for key, text in options["properties"].items())
    texts = [f"{key} = {json.dumps(options[key])}" for key in ("type", "uri", "warehouse") if key in options]
    keys = f"catalog = {{ {', '.join([*texts, f'properties = {{ {properties} }}'])} }}\n"
    return Job(folder, mariadb, database, tables, sink="iceberg", sink_keys=keys, local=True)


def story(
    world: RotatedCatalog, tell: Callable[[str], object], mariadb: MariaDbServer, database: str, folder: Path
) -> JobRun:
    """Two changes: who goes on after the first has to go on after the second. `tell` writes the reference's text."""
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", database=database)
    live = job_into(world.options, mariadb, database, folder, "t").start()
    world.wait_for_keys(live, database, [1])
    for number, secret in enumerate((NEW, OLD), 2):
        before = world.refused()
        world.change(secret)
        mariadb.execute(f"INSERT INTO t VALUES ({number})", database=database)
        assert live.wait_for(lambda before=before: world.refused() > before), live.story()  # type: ignore[misc]
        tell(secret)
        world.wait_for_keys(live, database, list(range(1, number + 1)))
    ended_well(live)
    return live


def forbidden_story(
    world: RotatedCatalog, forbidden: set[str], closed: str, mariadb: MariaDbServer, database: str, folder: Path
) -> str:
    """Nobody may do anything with the table `closed` for a while, which is in no way waited for; returns the error's
    name as it is told. The other table goes on, and `closed` comes back by the way out that is told.
    """
    for table in ("closed", "open"):
        statements = (f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
        mariadb.execute(*statements, database=database)
    job = job_into(world.options, mariadb, database, folder, "closed", "open")
    live = job.start()
    live.wait_for_rows(lambda: world.keys(database, "closed") == world.keys(database, "open") == [1])
    forbidden.add(closed)
    mariadb.execute("INSERT INTO closed VALUES (2)", "INSERT INTO open VALUES (2)", database=database)
    live.wait_for_rows(lambda: listed(job)[f"{database}.closed"]["phase"] == "parked")
    reason: str = listed(job)[f"{database}.closed"]["reason"]
    beginning = f"The Iceberg table {database}.closed cannot be read: "
    assert reason.startswith(beginning)
    assert "lets us in, but not to this table: let our account read and change it there." in reason
    assert f"; then: raycdc tables resnapshot CONFIG {database}.closed" in reason
    mariadb.execute("INSERT INTO open VALUES (3)", database=database)
    live.wait_for_rows(lambda: world.keys(database, "open") == [1, 2, 3])
    assert world.refused() == 0
    assert not [event for event in live.events if "waited for" in str(event)], live.story()
    forbidden.clear()
    tables_command(job, "resnapshot", f"{database}.closed")
    live.wait_for_rows(lambda: world.keys(database, "closed") == [1, 2])
    mariadb.execute("INSERT INTO closed VALUES (3)", database=database)
    live.wait_for_rows(lambda: world.keys(database, "closed") == [1, 2, 3])
    assert live.interrupt() in (0, 130), live.story()
    return reason.removeprefix(beginning)


def ended_well(live: JobRun) -> None:
    assert live.interrupt() in (0, 130), live.story()
    said = live.story()
    assert not [text for text in (NEW, OLD, "parked") if text in said], said


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "lake")
    yield started
    started.close()


def of_client(server: Server, secret: str) -> dict[str, str]:
    """The properties of a client that gets tokens of the OAuth server for `secret`."""
    return {"credential": f"raycdc:{secret}", "oauth2-server-uri": f"{server.uri}/v1/oauth/tokens"}


@pytest.mark.long_variants("token-403", "secret-401", suite="certificates")
@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("login", ["token", "secret"])
def test_a_token_of_a_rest_catalog_or_the_secret_of_its_client_changes(
    login: str, status: int, server: Server, mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    file, guard = tmp_path / login, server.guard

    def change(secret: str) -> None:
        if login == "token":
            guard.token = secret
        else:
            guard.secret = secret
            guard.end_tokens()

    change(OLD)
    guard.status = status
    reference = give(file, OLD)
    properties = {"token": reference} if login == "token" else of_client(server, reference)
    options = {"type": "rest", "uri": server.uri, "properties": properties}
    world = RotatedCatalog(options, change, lambda: guard.refused, lambda: server.catalog)
    story(world, lambda secret: give(file, secret), mariadb, mariadb_database, tmp_path)


def test_a_clients_token_that_comes_to_its_end_is_got_anew_whatever_the_server_calls_that(
    server: Server, mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody changes anything: the secret is in a variable, and still good."""
    guard = server.guard
    guard.secret = OLD
    monkeypatch.setenv("RAYCDC_TEST_SECRET", OLD)
    properties = of_client(server, "${env:RAYCDC_TEST_SECRET}")
    options = {"type": "rest", "uri": server.uri, "properties": properties}
    world = RotatedCatalog(options, lambda _: None, lambda: guard.refused, lambda: server.catalog)
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", database=mariadb_database)
    live = job_into(options, mariadb, mariadb_database, tmp_path, "t").start()
    world.wait_for_keys(live, mariadb_database, [1])
    for number, status in enumerate((403, 401), 2):
        guard.status = status
        guard.end_tokens()
        mariadb.execute(f"INSERT INTO t VALUES ({number})", database=mariadb_database)
        world.wait_for_keys(live, mariadb_database, list(range(1, number + 1)))
    assert guard.refused >= 2
    assert not [event for event in live.events if "waited for" in str(event)], live.story()
    ended_well(live)


def test_a_table_that_a_rest_catalog_forbids_is_parked_alone_and_comes_back_by_its_way_out(
    server: Server, mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    """With a token that may change, too: who is let in, and still not to a table, is not waited for."""
    guard = server.guard
    guard.token = OLD
    options = {"type": "rest", "uri": server.uri, "properties": {"token": give(tmp_path / "token", OLD)}}
    world = RotatedCatalog(options, lambda _: None, lambda: guard.refused, lambda: server.catalog)
    closed = f"{mariadb_database}.closed"
    reason = forbidden_story(world, guard.forbidden, closed, mariadb, mariadb_database, tmp_path)
    assert reason.startswith("ForbiddenError")


def test_the_password_of_a_catalog_in_mariadb_changes(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    file, account = tmp_path / "password", f"c_{mariadb_database}"
    with mariadb.fresh_database() as home:
        mariadb.execute(f"CREATE USER {account}@'%' IDENTIFIED BY '{OLD}'", f"GRANT ALL ON {home}.* TO {account}@'%'")

        def uri(user: str, password: str) -> str:
            return f"mysql+pymysql://{user}:{password}@{mariadb.host}:{mariadb.port}/{home}"

        def refused() -> int:
            return int(mariadb.execute("SHOW GLOBAL STATUS LIKE 'Access_denied_errors'")[0][1])

        options: dict[str, Any] = {
            "type": "sql",
            "uri": uri(account, give(file, OLD)),
            "warehouse": str(tmp_path / "lake"),
            "properties": {},
        }
        owned = IcebergCatalogOptions(**{**options, "uri": uri("root", "root")})
        world = RotatedCatalog(
            options, lambda new: at_mariadb(mariadb, account, new), refused, lambda: open_catalog(owned)
        )
        try:
            story(world, lambda secret: give(file, secret), mariadb, mariadb_database, tmp_path)
        finally:
            mariadb.execute(f"DROP USER IF EXISTS {account}@'%'")


def test_the_password_of_a_catalog_in_postgresql_changes(
    mariadb: MariaDbServer, mariadb_database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    pytest.importorskip("psycopg", reason="SQLAlchemy's driver for PostgreSQL is not here: pip install psycopg[binary]")
    file, account = tmp_path / "password", f"c_{mariadb_database}"
    with postgres.fresh_database() as home:
        postgres.execute(
            f"CREATE ROLE {account} LOGIN PASSWORD '{OLD}'", f'GRANT ALL ON DATABASE "{home}" TO {account}'
        )
        rights = (
            f"GRANT ALL ON SCHEMA public TO {account}",
            f"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {account}",
        )
        postgres.execute(*rights, database=home)

        def uri(login: str) -> str:
            return f"postgresql+psycopg://{login}@{postgres.host}:{postgres.port}/{home}"

        options: dict[str, Any] = {
            "type": "sql",
            "uri": uri(f"{account}:{give(file, OLD)}"),
            "warehouse": str(tmp_path / "lake"),
            "properties": {},
        }
        log = postgres.error_log

        def refused() -> int:
            return log.read_text(errors="replace").count(f'password authentication failed for user "{account}"')

        owned = IcebergCatalogOptions(**{**options, "uri": uri(f"{postgres.user}:{postgres.password}")})
        world = RotatedCatalog(
            options, lambda new: at_postgres(postgres, account, new), refused, lambda: open_catalog(owned)
        )
        story(world, lambda secret: give(file, secret), mariadb, mariadb_database, tmp_path)


@dataclass(frozen=True, slots=True)
class Keys:
    """Of a user of Amazon's."""

    id: str
    secret: str


class GuardedGlue:
    """A moto that looks at keys and signatures, with the users ``owner`` and ``writer``, behind a door of ours that
    says its refusals as Glue does ("Common Errors" of its API Reference): moto says them in XML, which clients of Glue
    do not read. A table in `forbidden` is nobody's; moto has no rights on single ones.
    """

    #: Of moto, and of Glue.
    words: ClassVar[Mapping[bytes, str]] = {
        b"InvalidClientTokenId": "UnrecognizedClientException",
        b"SignatureDoesNotMatch": "InvalidSignatureException",
        b"AccessDenied": "AccessDeniedException",
    }

    def __init__(self, server: MotoServer) -> None:
        self._server = server
        self.refused: list[str] = []
        self.forbidden: set[str] = set()
        users = self._iam(Keys(ACCESS_KEY, SECRET_KEY))
        rights = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
        for name in ("owner", "writer"):
            users.create_user(UserName=name)
            users.put_user_policy(UserName=name, PolicyName="all", PolicyDocument=json.dumps(rights))
        self.owner = self._keys(users, "owner")
        self.writer = self._keys(users, "writer")
        self._users = self._iam(self.owner)
        # From now on moto believes nobody.
        status, said = self._asked("POST", "/moto-api/reset-auth", b"0", {})
        assert status == 200, said
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, said = own.answer(self.path, body, dict(self.headers.items()))
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        asked = json.loads(body)
        name = asked.get("Name") or asked.get("TableInput", {}).get("Name")
        if "DatabaseName" in asked and name in self.forbidden:
            return 400, b'{"__type": "AccessDeniedException", "message": "not authorized to perform this on the table"}'
        status, said = self._asked("POST", path, body, headers)
        word = next((word for of_moto, word in self.words.items() if status == 403 and of_moto in said), "")
        if not word:
            return status, said
        self.refused.append(word)
        return 400, json.dumps({"__type": word, "message": "as moto says"}).encode()

    def change(self) -> None:
        """New keys of the writer, and the end of those before."""
        before, self.writer = self.writer, self._keys(self._users, "writer")
        self._users.delete_access_key(UserName="writer", AccessKeyId=before.id)

    def options(self, key_id: str, secret: str, warehouse: str) -> dict[str, Any]:
        own = {"endpoint": f"http://127.0.0.1:{self._http.server_port}", "region": REGION, "access-key-id": key_id}
        properties = {f"glue.{name}": value for name, value in {**own, "secret-access-key": secret}.items()}
        return {"type": "glue", "warehouse": warehouse, "properties": properties}

    def _iam(self, keys: Keys) -> Any:
        return boto3.client(
            "iam",
            endpoint_url=self._server.endpoint,
            region_name=REGION,
            aws_access_key_id=keys.id,
            aws_secret_access_key=keys.secret,
        )

    @staticmethod
    def _keys(users: Any, name: str) -> Keys:
        made = users.create_access_key(UserName=name)["AccessKey"]
        return Keys(made["AccessKeyId"], made["SecretAccessKey"])

    def _asked(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection(self._server.host, self._server.port, timeout=20)) as connection:
            connection.request(method, path, body=body, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read()


@pytest.fixture
def glue() -> Iterator[GuardedGlue]:
    with MotoServer() as server:
        guarded = GuardedGlue(server)
        yield guarded
        guarded.close()


def test_the_keys_of_glue_change(
    glue: GuardedGlue, mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    warehouse, files = str(tmp_path / "lake"), (tmp_path / "key_id", tmp_path / "secret_key")
    given: list[Keys] = []

    def tell(_: str = "") -> tuple[str, str]:
        given.append(glue.writer)
        # One after the other, as it happens: for a moment the one is new and the other old.
        return give(files[0], glue.writer.id), give(files[1], glue.writer.secret)

    owned = IcebergCatalogOptions(**glue.options(glue.owner.id, glue.owner.secret, warehouse))
    options = glue.options(*tell(), warehouse)
    world = RotatedCatalog(options, lambda _: glue.change(), lambda: len(glue.refused), lambda: open_catalog(owned))
    live = story(world, tell, mariadb, mariadb_database, tmp_path)
    assert "UnrecognizedClientException" in glue.refused
    assert not [keys for keys in given if keys.id in live.story() or keys.secret in live.story()]


def test_a_table_that_glue_forbids_is_parked_alone_and_comes_back_by_its_way_out(
    glue: GuardedGlue, mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    warehouse = str(tmp_path / "lake")
    owned = IcebergCatalogOptions(**glue.options(glue.owner.id, glue.owner.secret, warehouse))
    key_id, secret = give(tmp_path / "key_id", glue.writer.id), give(tmp_path / "secret_key", glue.writer.secret)
    options = glue.options(key_id, secret, warehouse)

    world = RotatedCatalog(options, lambda _: None, lambda: len(glue.refused), lambda: open_catalog(owned))
    reason = forbidden_story(world, glue.forbidden, "closed", mariadb, mariadb_database, tmp_path)
    assert "AccessDenied" in reason
