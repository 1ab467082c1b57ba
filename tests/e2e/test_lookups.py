"""Page views joined with users, and the users copied, with the commands that people type and the examples they read."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deltalake import DeltaTable

from raycdc.cli.planning.check import check_config
from raycdc.sandbox.servers import MariaDbServer, MongoDb
from tests.support.forked_commands import completed

pytestmark = pytest.mark.server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def crm(mongodb: MongoDb) -> Iterator[str]:
    with mongodb.fresh_database("crm") as name:
        yield name


class Example:
    """The two configurations with databases of the test's own, in a folder of their own."""

    def __init__(self, folder: Path, mariadb: MariaDbServer, shop: str, mongodb: MongoDb, crm: str) -> None:
        self.folder = folder
        self.environment = {
            "MYSQL_HOST": mariadb.host,
            "MYSQL_PORT": str(mariadb.port),
            "MYSQL_PASSWORD": mariadb.cdc_password,
            "MONGODB_URI": mongodb.uri,
        }
        for name in ("pageviews_users.toml", "users_copy.toml"):
            text = (EXAMPLES / name).read_text()
            text = text.replace('[sink]\ntype = "mongodb"', f'[sink]\ntype = "mongodb"\nrecord = "{crm}_record"')
            (folder / name).write_text(text.replace('"shop.', f'"{shop}.').replace('"crm.', f'"{crm}.'))
        self._lake = folder / "pageviews-lake" / shop / "pageviews"

    def raycdc(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return completed(words, environment={**os.environ, **self.environment, **environment}, folder=self.folder)

    def follow(self, name: str, **environment: str) -> int:
        done = self.raycdc("run", name, "--local", "--until", "caught-up", **environment)
        assert done.returncode <= 0, done.stderr
        return done.returncode

    def views(self) -> dict[int, dict[str, Any]]:
        return {row["id"]: row for row in DeltaTable(self._lake).to_pyarrow_table().to_pylist()}


@pytest.fixture
def example(mariadb: MariaDbServer, mariadb_database: str, mongodb: MongoDb, crm: str, tmp_path: Path) -> Example:
    return Example(tmp_path, mariadb, mariadb_database, mongodb, crm)


@pytest.fixture(scope="module")
def story() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pageviews", EXAMPLES / "pageviews.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def joined(number: int, view: tuple[int | None, str], users: dict[int, dict[str, Any]]) -> tuple[Any, ...]:
    """A row of the target."""
    user, page = view
    found = users.get(user, {}) if user is not None else {}
    address = json.dumps(found["address"], separators=(",", ":")) if "address" in found else None
    return (number, user, page, found.get("name"), found.get("region"), address)


def test_page_views_have_their_users_and_the_users_are_copied(
    example: Example, story: ModuleType, mariadb: MariaDbServer, mariadb_database: str, mongodb: MongoDb, crm: str
) -> None:
    with (
        mongodb.client() as client,
        mariadb.connect(database=mariadb_database) as connection,
        connection.cursor() as shop,
    ):
        users = client[crm].users
        story.begin(shop, users)

        checked = example.raycdc("check", "pageviews_users.toml", "--json")
        told = [json.loads(line) for line in checked.stdout.splitlines()]
        assert (checked.returncode, {line["status"] for line in told}) == (0, {"ok"})
        assert [line["text"].partition(" at ")[0] for line in told if line["check"] == "lookups"] == [
            f"lookup[0]: {crm}.users",
            f"lookup[0]: an index finds documents of {crm}.users by _id.",
        ]
        (planned,) = map(json.loads, example.raycdc("plan", "pageviews_users.toml", "--json").stdout.splitlines())
        assert [(c["name"], c["type"]) for c in planned["columns"][-3:]] == [
            ("user_name", "string"),
            ("user_region", "string"),
            ("user_address", "string"),
        ]
        source = planned["sources"][0]
        assert (source["transform"], source["how"]) == ("lookup[0]", f"joined with {crm}.users by user_id")

        # The users change after they were looked up, and the process that did so dies before anything is written.
        # The views are one chunk; an epoch before them, which a slow machine may seal without rows, asks nobody.
        died = example.follow(
            "pageviews_users.toml", RAYCDC_FAILPOINTS="after_lookup=kill", RAYCDC_FAILPOINT_DIR=str(example.folder)
        )
        assert died == -signal.SIGKILL
        example.follow("users_copy.toml")
        story.go_on(shop, users)
        example.follow("pageviews_users.toml")
        example.follow("users_copy.toml")

        first = {user["_id"]: user for user in story.users()}
        later = {user["_id"]: user for user in users.find()}
        rows = dict(enumerate(story.VIEWS, start=1))
        expected = {n: joined(n, row, first) for n, row in rows.items()}
        expected |= {n: joined(n, (rows[n][0], "/changed"), later) for n in (2, 3)}
        del expected[4]
        expected |= {n: joined(n, row, later) for n, row in enumerate(story.LATER, start=len(rows) + 1)}
        names = ("id", "user_id", "page", "user_name", "user_region", "user_address")
        assert {n: tuple(row[name] for name in names) for n, row in example.views().items()} == expected
        assert mongodb.find(crm, "users_copy") == mongodb.find(crm, "users")


def test_check_says_what_a_dimension_lacks(
    example: Example,
    story: ModuleType,
    mariadb: MariaDbServer,
    mariadb_database: str,
    mongodb: MongoDb,
    crm: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = example.folder / "pageviews_users.toml"
    text = config.read_text()

    for name, value in example.environment.items():
        monkeypatch.setenv(name, value)

    def told(changed: str) -> tuple[int, list[tuple[str, str]]]:
        config.write_text(changed)
        code = check_config(config, as_json=True)
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return code, [(line["status"], line["text"]) for line in lines if line["check"] == "lookups"]

    with mariadb.connect(database=mariadb_database) as connection, connection.cursor() as shop:
        shop.execute(story.CREATE)
    code, findings = told(text)
    missing = ("warning", f"lookup[0]: there is no collection {crm}.users yet, so nothing is found.")
    assert (code, findings[1:]) == (0, [missing])
    with mongodb.client() as client:
        client[crm].users.insert_many(story.users())
        by_number = text.replace('{ user_id = "_id" }', '{ user_id = "number" }')
        scan = f"lookup[0]: no index of {crm}.users begins with number, so each request reads the whole collection."
        assert told(by_number)[1][1:] == [("warning", scan)]
        client[crm].users.create_index("number")
        several = f"lookup[0]: several documents of {crm}.users may have one number, and a row gets one document."
        assert told(by_number)[1][1:] == [("warning", several)]
    nobody = "mongodb://me:s3cret@127.0.0.1:1/?serverSelectionTimeoutMS=100"
    away = text.replace("${env:MONGODB_URI:-mongodb://127.0.0.1:27017/?replicaSet=rs0}", nobody)
    code, findings = told(away)
    assert (code, findings[0][0]) == (3, "failed")
    assert "lookup[0]: the MongoDB of lookup[0].uri does not answer" in findings[0][1]
    refused = example.raycdc("run", config.name, "--local")
    assert refused.returncode == 3
    assert "s3cret" not in refused.stdout + refused.stderr + str(findings)
