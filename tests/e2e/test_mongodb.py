"""A MongoDB into a Delta lake with the commands that people type: check, plan, run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import bson
import pytest
from deltalake import DeltaTable

from raycdc.sandbox.servers import MongoDb
from tests.support.forked_commands import completed

pytestmark = pytest.mark.server

CONFIG = """
[pipeline]
name = "shop"
[source]
type = "mongodb"
uri = "${{env:RAYCDC_TEST_URI}}"
collections = ['{db}\\.(users|orders)']
startup = "snapshot"
[source.columns."{db}.orders"]
_id = "objectId"
total = "decimal(12,2)"
[sink]
type = "delta"
path = "lake"
"""


@pytest.fixture
def database(mongodb: MongoDb) -> Iterator[str]:
    with mongodb.fresh_database("e2e") as name, mongodb.client() as client:
        client[name].users.insert_many({"_id": n, "name": f"user {n}", "tags": ["a", {"n": n}]} for n in range(500))
        client[name].orders.insert_many({"total": bson.Decimal128(f"{n}.5"), "more": n} for n in range(300))
        yield name


def raycdc(*words: str, cwd: Path, uri: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RAYCDC_TEST_URI": uri}
    return completed(words, environment=environment, folder=cwd)


def test_check_plan_and_run(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text(CONFIG.format(db=database))
    checked = raycdc("check", "shop.toml", "--json", cwd=tmp_path, uri=mongodb.uri)
    told = [json.loads(line) for line in checked.stdout.splitlines()]
    assert (checked.returncode, checked.stderr) == (0, "")
    assert {line["status"] for line in told} == {"ok"}
    of_source = [line["check"] for line in told if line["check"] in ("connection", "privileges", "chunks")]
    assert of_source == ["connection", "privileges", "chunks", "privileges", "chunks"]

    planned = raycdc("plan", "shop.toml", "--json", cwd=tmp_path, uri=mongodb.uri)
    orders, users = (json.loads(line) for line in planned.stdout.splitlines())
    assert [(c["name"], c["type"]) for c in orders["columns"]] == [("_id", "string"), ("total", "decimal(12,2)")]
    assert [(c["name"], c["type"]) for c in users["columns"]] == [
        ("_id", "bigint"),
        ("name", "string"),
        ("tags", "string"),
        ("_rest", "string"),
    ]
    assert (users["primary_key"], users["sources"][0]["rows"]) == (["_id"], 500)

    done = raycdc("run", "shop.toml", "--local", cwd=tmp_path, uri=mongodb.uri)
    assert done.returncode == 0, done.stderr
    found = DeltaTable(tmp_path / "lake" / database / "users").to_pyarrow_table().sort_by("_id").to_pylist()
    assert found == [{"_id": n, "name": f"user {n}", "tags": f'["a",{{"n":{n}}}]', "_rest": None} for n in range(500)]
    rows = DeltaTable(tmp_path / "lake" / database / "orders").to_pyarrow_table().to_pylist()
    assert sorted(row["total"] for row in rows) == [Decimal(f"{n}.50") for n in range(300)]
    ids = {str(document["_id"]) for document in mongodb.find(database, "orders")}
    assert {row["_id"] for row in rows} == ids

    again = raycdc("run", "shop.toml", "--local", cwd=tmp_path, uri=mongodb.uri)
    assert again.returncode == 0, again.stderr
    assert DeltaTable(tmp_path / "lake" / database / "users").to_pyarrow_table().num_rows == 500


def test_a_collection_is_read_anew_on_request_and_one_that_is_gone_ends(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.toml").write_text(CONFIG.format(db=database))
    assert raycdc("run", "shop.toml", "--local", cwd=tmp_path, uri=mongodb.uri).returncode == 0
    with mongodb.client() as client:
        client[database].users.drop()
        client[database].users.insert_many({"_id": f"new {n}", "points": n} for n in range(40))
        client[database].orders.drop()
    for table in ("users", "orders"):
        asked = raycdc("tables", "resnapshot", "shop.toml", f"{database}.{table}", cwd=tmp_path, uri=mongodb.uri)
        assert asked.returncode == 0, asked.stderr
    done = raycdc("run", "shop.toml", "--local", cwd=tmp_path, uri=mongodb.uri)
    assert done.returncode == 0, done.stderr
    rows = DeltaTable(tmp_path / "lake" / database / "users").to_pyarrow_table().to_pylist()
    assert sorted((row["_id"], row["points"]) for row in rows) == sorted((f"new {n}", n) for n in range(40))
    # Nothing says what became of its documents: the target keeps them.
    assert DeltaTable(tmp_path / "lake" / database / "orders").to_pyarrow_table().num_rows == 300
    listed = raycdc("tables", "list", "shop.toml", "--json", cwd=tmp_path, uri=mongodb.uri)
    phases = {line["table"]: line["phase"] for line in map(json.loads, listed.stdout.splitlines())}
    assert phases == {f"{database}.users": "stream", f"{database}.orders": "ended"}


def test_a_collection_is_added_to_a_copy_that_is_complete(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    config = tmp_path / "shop.toml"
    config.write_text(CONFIG.format(db=database))
    assert raycdc("run", "shop.toml", "--local", cwd=tmp_path, uri=mongodb.uri).returncode == 0
    with mongodb.client() as client:
        client[database].items.insert_many({"_id": n, "n": n} for n in range(70))
    name = f"{database}.items"
    refused = raycdc("tables", "add", "shop.toml", name, cwd=tmp_path, uri=mongodb.uri)
    assert (refused.returncode, "source.collections does not select" in refused.stderr) == (2, True)
    config.write_text(config.read_text().replace("(users|orders)", "(users|orders|items)"))
    asked = raycdc("tables", "add", "shop.toml", name, cwd=tmp_path, uri=mongodb.uri)
    assert asked.returncode == 0, asked.stderr
    done = raycdc("run", "shop.toml", "--local", cwd=tmp_path, uri=mongodb.uri)
    assert done.returncode == 0, done.stderr
    rows = DeltaTable(tmp_path / "lake" / database / "items").to_pyarrow_table().to_pylist()
    assert sorted(row["n"] for row in rows) == list(range(70))
    assert DeltaTable(tmp_path / "lake" / database / "users").to_pyarrow_table().num_rows == 500


def test_a_password_is_in_no_message(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text(CONFIG.format(db="shop"))
    for uri in (
        "mongodb://me:s3cret@127.0.0.1:1/?serverSelectionTimeoutMS=100",
        "mongodb://me:s3c@ret@127.0.0.1:1/",
        "mongodb://me:s3cret@127.0.0.1:1/?serverSelectionTimeoutMS=100&replicaSet=",
    ):
        done = raycdc("check", "shop.toml", cwd=tmp_path, uri=uri)
        assert done.returncode in (2, 3), done.stderr
        assert "Traceback" not in done.stderr
        assert "s3c" not in done.stdout + done.stderr


def test_what_is_wrong_in_the_configuration_is_told_at_once(tmp_path: Path) -> None:
    text = (
        CONFIG.format(db="shop")
        .replace('"snapshot"', '"earliest"')
        .replace('_id = "objectId"', "")
        .replace("12,2", "99,2")
    )
    (tmp_path / "shop.toml").write_text(text)
    done = raycdc("run", "shop.toml", cwd=tmp_path, uri="mongodb://127.0.0.1:1")
    assert done.returncode == 2
    assert "source.startup.mode" in done.stderr
    assert "shop.orders: name the type of _id" in done.stderr


def test_init_writes_what_runs(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    def tell(*words: str) -> tuple[int, str]:
        done = raycdc(*words, cwd=tmp_path, uri=mongodb.uri)
        return done.returncode, done.stdout + done.stderr

    uri = "${env:RAYCDC_TEST_URI}"
    code, told = tell("init", "--uri", "mongodb://me:s3cret@127.0.0.1:1/")
    assert code == 2
    assert told.startswith("--uri has a password, which others can see on the command line and in the file.")
    assert "s3cret" not in told
    code, told = tell("init", "--uri", uri, "--table", f"{database}.nothing")
    assert (code, f"does not see {database}.nothing at" in told) == (3, True)
    code, told = tell("init", "--uri", uri)
    assert (code, f"{database}.orders" in told) == (2, True)
    wanted = ["--table", f"{database}.users", "--table", f"{database}.orders"]
    code, told = tell("init", "shop.toml", "--uri", uri, *wanted, "--name", "shop", "--sink", "jsonl")
    assert (code, told.splitlines()[0]) == (0, "Wrote shop.toml.")
    assert tell("run", "shop.toml", "--local", "--until", "caught-up")[0] == 0
    files = (tmp_path / "changes").rglob("users/*.jsonl")
    assert sum(len(file.read_text().splitlines()) for file in files) == 500
    # The columns in the comments say what nested values hold. They are those that are inferred, and can be settled by
    # taking the marks away.
    text = (tmp_path / "shop.toml").read_text()
    for line in (
        f'[source.columns."{database}.users"]',
        '"tags" = "json"',
        '"total" = "decimal128"',
        '"more" = "long"',
    ):
        assert f"\n# {line}\n" in text
        text = text.replace(f"# {line}\n", f"{line}\n")
    assert '\n"tags" = "json"\n#   # [string or {n: long}]\n' in text
    text = text.replace('# "_id" = ', '"_id" = ').replace('# "name" = ', '"name" = ')
    text = text.replace(f'# [source.columns."{database}.orders"]', f'[source.columns."{database}.orders"]')
    (tmp_path / "settled.toml").write_text(text)
    settled = raycdc("plan", "settled.toml", "--json", cwd=tmp_path, uri=mongodb.uri)
    orders, users = (json.loads(line) for line in settled.stdout.splitlines())
    assert [column["name"] for column in users["columns"]] == ["_id", "name", "tags"]
    assert [column["name"] for column in orders["columns"]] == ["_id", "total", "more"]
