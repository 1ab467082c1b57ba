"""No file of a state, of its spool or of what a run says shows a masked value, whatever it is in the middle of."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pymysql
import pytest

from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MongoDb
from tests.leaks import nothing_shows
from tests.support.forked_commands import completed
from tests.support.jobs import Job, catch_up, require_engines
from tests.support.table_commands import tables_command

pytestmark = pytest.mark.server

METHODS = ("hash", "mask", "truncate", "drop")
NUMBERS = {"hash": 1_938_475_000, "mask": 1_838_475_000, "drop": 1_738_475_000}
NAMES = ("id", *(f"{method}_text" for method in METHODS), *(f"{method}_number" for method in NUMBERS))
MASKS = "".join(
    f"""
[[mask]]
columns = 'hidden\\..*\\.{method.upper()}[_ ].*'
method = "{method}"
{'key = "${env:RAYCDC_TEST_PASSWORD}"' if method == "hash" else "length = 2" if method == "truncate" else ""}
"""
    for method in METHODS
)


def word(method: str, phase: str) -> str:
    """What is planted in a text; all but the first two characters must not be seen."""
    return f"{method[:2]}-planted-{phase}-{method}"


#: Three seconds for its 60 rows, so that it is under way when the process is killed, however busy the machine.
SNAPSHOT = 'key = { "hidden.people" = "hash_text" }, rows_per_second = 20'
PHASES = ("snapshot", "stream", "prepared", "rolled", "default")


def planted() -> list[str | int]:
    """The texts as they may not be seen, without what `truncate` leaves of them; and numbers."""
    return [word(m, p)[2:] for m in METHODS for p in PHASES] + [n + i for n in NUMBERS.values() for i in range(3)]


def fill(server: DatabaseServer, database: str) -> None:
    columns = ", ".join(f"{method}_text VARCHAR(60)" for method in METHODS)
    columns += ", " + ", ".join(f"{method}_number INT" for method in NUMBERS)
    server.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    server.execute(
        f"CREATE TABLE people (id INT PRIMARY KEY, {columns}, KEY (hash_text))",
        *(insert(10 * n, "snapshot", n) for n in range(60)),
        database=database,
    )


def insert(id_: int, phase: str, suffix: int = 0) -> str:
    texts = ", ".join(f"'{word(method, phase)}{suffix:03}'" for method in METHODS)
    return f"INSERT INTO people VALUES ({id_}, {texts}, {', '.join(str(n + suffix % 3) for n in NUMBERS.values())})"


def prepare(server: DatabaseServer, name: str, *statements: str) -> None:
    """In a session of its own, which leaves the transaction prepared."""
    server.execute(f"XA START '{name}'", *statements, f"XA END '{name}'", f"XA PREPARE '{name}'", database="hidden")


def roll_back(server: DatabaseServer) -> None:
    """What a failed test has left prepared locks its table."""
    for name in ("early", "late", "never"):
        with contextlib.suppress(pymysql.Error):
            server.execute(f"XA ROLLBACK '{name}'")


def rows(job: Job) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in read_delta(job.lake / job.database / "people").to_pylist()}


def job_of(tmp_path: Path, server: DatabaseServer, **more: Any) -> Job:
    (tmp_path / "key").write_text("a key of the state, long enough")
    options = {
        "chunk_rows": 10,
        "readers": 1,
        "epoch_interval": "50ms",
        "local": True,
        "sections": MASKS,
        "pipeline": f'state_key = "${{file:{tmp_path}/key}}"',
        "snapshot": SNAPSHOT,
    }
    return Job(tmp_path, server, "hidden", ("people",), **{**options, **more})


@pytest.mark.long_variants("mysql80", suite="servers")
@pytest.mark.parametrize("kind", ["mariadb", "mysql80"])
def test_no_file_shows_what_masks_hide(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> None:
    server = request.getfixturevalue(kind)
    request.addfinalizer(lambda: roll_back(server))
    fill(server, "hidden")
    job = job_of(tmp_path, server)
    # Some chunks are closed, some open, and some planned.
    run = job.start("--until", "caught-up", failpoints="after_manifest=kill@3")
    assert run.wait() == -9, run.story()
    manifest = json.loads(sorted((job.state / "epochs").iterdir())[-1].read_text())
    assert manifest["to_splits"]["stream"]["tables"]["hidden.people"]["snapshot"]["closed"]
    nothing_shows(job, planted())
    # A transaction is prepared while its table's snapshot is under way, and its rows belong into chunks.
    moved = "UPDATE people SET hash_text = 'ha-planted-prepared-hash' WHERE id = 20"
    prepare(server, "early", insert(1, "prepared", 1), moved, "DELETE FROM people WHERE id = 30")
    run = job.start("--until", "caught-up", failpoints="before_commit=kill@2")
    assert run.wait() == -9, run.story()
    nothing_shows(job, planted())
    server.execute("XA COMMIT 'early'")
    run = job.start("--until", "caught-up", "--verbose")
    assert run.wait() == 0, run.story()
    nothing_shows(job, planted())
    # And while it is followed.
    server.execute(insert(2, "stream", 2), database="hidden")
    prepare(server, "never", insert(3, "rolled", 1))
    changed = "UPDATE people SET mask_text = 'ma-planted-prepared-mask' WHERE id = 40"
    prepare(server, "late", insert(4, "prepared", 2), changed)
    catch_up(job)
    with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
        # So the schema at XA COMMIT is the one at XA PREPARE.
        server.execute("SET lock_wait_timeout = 1", "ALTER TABLE people ADD COLUMN x INT", database="hidden")
    stream = json.loads(sorted((job.state / "epochs").iterdir())[-1].read_text())["to_splits"]["stream"]
    assert stream["position"]["prepared"]
    nothing_shows(job, planted())
    server.execute("XA COMMIT 'late'")
    server.execute("XA ROLLBACK 'never'")
    catch_up(job)
    nothing_shows(job, planted())
    found = rows(job)
    assert set(found) == {1, 2, 4, *range(0, 600, 10)} - {30}
    assert {row["truncate_text"] for row in found.values()} == {"tr"}
    assert {row["mask_text"] for row in found.values()} == {"*" * 8}
    assert len({row["hash_text"] for row in found.values()}) == len(found)
    assert all(len(row["hash_number"]) == 64 for row in found.values())
    assert not any(name.startswith("drop") for row in found.values() for name in row)


@pytest.mark.parametrize("method", ["mask", "drop"])
def test_a_masked_column_with_a_new_name_parks_its_table_before_any_row(
    mariadb: MariaDbServer, tmp_path: Path, method: str
) -> None:
    fill(mariadb, "hidden")
    mariadb.execute("CREATE TABLE others (id INT PRIMARY KEY)", database="hidden")
    job = job_of(tmp_path, mariadb, snapshot="", pipeline="")
    job.tables = ("people", "others")
    catch_up(job)
    mariadb.execute(
        f"ALTER TABLE people CHANGE {method}_text note VARCHAR(60)",
        f"INSERT INTO people (id, note) VALUES (1, '{word(method, 'stream')}')",
        "INSERT INTO others VALUES (1)",
        database="hidden",
    )
    run = job.start("--until", "caught-up", failpoints="before_commit=kill@1")
    assert run.wait() == -9, run.story()
    nothing_shows(job, planted())
    run = job.start("--until", "caught-up")
    assert run.wait() == 4, run.story()
    assert f"Column 'note' of hidden.people was '{method}_text', which [[mask]] hides" in run.story()
    nothing_shows(job, planted())
    assert read_delta(job.lake / job.database / "others").num_rows == 1
    mariadb.execute(f"ALTER TABLE people CHANGE note {method}_text VARCHAR(60)", database="hidden")
    tables_command(job, "resnapshot", "hidden.people", "--wait", "0")
    catch_up(job)
    nothing_shows(job, planted())
    assert set(rows(job)) == {1, *range(0, 600, 10)}


@pytest.mark.long_variants("mysql80", suite="servers")
@pytest.mark.parametrize("kind", ["mariadb", "mysql80"])
def test_defaults_of_masked_columns_are_masked_in_the_state_and_in_rows_that_exist(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    server = request.getfixturevalue(kind)
    fill(server, "hidden")
    more = ", ".join(f"ADD COLUMN {m}_more VARCHAR(60) DEFAULT '{word(m, 'default')}'" for m in METHODS)
    more += ", " + ", ".join(f"ADD COLUMN {m}_count INT NOT NULL DEFAULT {n + 2}" for m, n in NUMBERS.items())
    before = more.replace("_more", "_first").replace("_count", "_begun")
    server.execute(f"ALTER TABLE people {before}", database="hidden")
    job = job_of(tmp_path, server, snapshot="", pipeline="")
    catch_up(job)
    nothing_shows(job, planted())
    server.execute(
        f"ALTER TABLE people {more}",
        "INSERT INTO people (id, hash_begun, mask_begun, drop_begun) VALUES (7, 1, 1, 1)",
        "ALTER TABLE people ALTER COLUMN mask_text SET DEFAULT 'ma-planted-default-mask'",
        database="hidden",
    )
    run = job.start("--until", "caught-up", failpoints="after_manifest=kill@2")
    assert run.wait() == -9, run.story()
    nothing_shows(job, planted())
    catch_up(job)
    nothing_shows(job, planted())
    found = rows(job).values()
    assert len(found) == 61
    key = server.cdc_user.encode()
    for name, default in (("hash_more", word("hash", "default")), ("hash_count", str(NUMBERS["hash"] + 2))):
        digest = hmac.new(key, default.encode(), hashlib.sha256).hexdigest()
        assert {row[name] for row in found} == {digest}
    assert {(row["mask_more"], row["mask_count"], row["truncate_more"]) for row in found} == {("*" * 8, "*" * 8, "tr")}
    if kind == "mysql80":
        return  # With GTIDs it refuses the statement.
    # Whatever is not followed is told without the statement's values.
    computed = "VARCHAR(90) DEFAULT (CONCAT('ma-planted-default-mask', id))"
    server.execute(f"ALTER TABLE people ADD COLUMN mask_note {computed}", database="hidden")
    run = job.start("--until", "caught-up")
    assert run.wait() == 0, run.story()
    nothing_shows(job, planted())
    assert {row["mask_note"] for row in rows(job).values()} == {"*" * 8}


def test_a_key_that_is_not_the_states_is_refused_by_name(mariadb: MariaDbServer, tmp_path: Path) -> None:
    fill(mariadb, "hidden")
    job = job_of(tmp_path, mariadb)
    run = job.start("--until", "caught-up", failpoints="after_manifest=kill@3")
    assert run.wait() == -9, run.story()
    (tmp_path / "key").write_text("another key of the state, as long")
    run = job.start("--until", "caught-up")
    assert run.wait() == 6, run.story()
    another = "The state was encrypted with another pipeline.state_key (its fingerprint is"
    assert another in run.story()
    assert another in say(job, "check", str(job.configuration()), code=6)
    job.pipeline = ""
    run = job.start("--until", "caught-up")
    assert run.wait() == 2, run.story()
    missing = "source.snapshot.key: hidden.people is cut into chunks by hash_text, which a mask hides"
    assert missing in run.story()
    assert missing in say(job, "check", str(job.configuration()), code=2)
    # The state alone tells it, too.
    job.snapshot = ""
    run = job.start("--until", "caught-up")
    assert run.wait() == 6, run.story()
    missing = "The state has values that are encrypted, and pipeline.state_key is not set."
    assert missing in run.story()
    assert missing in say(job, "check", str(job.configuration()), code=6)
    job.snapshot = SNAPSHOT
    (tmp_path / "key").write_text("a key of the state, long enough")
    job.pipeline = f'state_key = "${{file:{tmp_path}/key}}"'
    catch_up(job)
    assert len(rows(job)) == 60


# With Ray and Spark ---------------------------------------------------------------------------------------------------

WORLD = rf"""
{MASKS}
[[transform]]
table = "hidden.people"
projection = "*, CAST(shown AS INT) AS number, CONCAT(mask_text, hash_text) AS both"

[[lookup]]
table = "hidden.people"
uri = "${{env:RAYCDC_TEST_URI}}"
collection = "CRM.users"
on = {{ id = "_id" }}
columns = {{ name = "string" }}
missing = "null"

[[route]]
table = 'hidden\.(texts|raws)'
to = "hidden.notes"
"""


def say(job: Job, *words: str, code: int | None = None) -> str:
    """What a command says; it ends with `code`, where one is given."""
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": job.server.cdc_user}
    done = completed(words, environment=environment, folder=job.folder)
    assert "Traceback" not in done.stderr
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long(suite="leaks")
def test_no_file_of_a_run_on_ray_and_spark_shows_what_masks_hide(
    mariadb: MariaDbServer, mongodb: MongoDb, mongodb_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(mariadb, "hidden")
    mariadb.execute(
        "ALTER TABLE people ADD COLUMN `mask a note` VARCHAR(60) DEFAULT 'ma-planted-default-mask', "
        "ADD COLUMN shown VARCHAR(9) DEFAULT '5'",
        "UPDATE people SET shown = 'no number' WHERE id IN (20, 30)",
        "CREATE TABLE texts (id INT PRIMARY KEY, note TEXT, mask_text VARCHAR(60))",
        "CREATE TABLE raws (id INT PRIMARY KEY, note BLOB, mask_text VARCHAR(60))",
        "INSERT INTO texts VALUES (1, 'a', 'ma-planted-snapshot-mask')",
        "INSERT INTO raws VALUES (2, x'FF00', 'ma-planted-snapshot-mask'), (3, 'b', 'ma-planted-snapshot-mask')",
        database="hidden",
    )
    with mongodb.client() as client:
        client[mongodb_database].users.insert_many({"_id": number, "name": f"user {number}"} for number in range(30))
    monkeypatch.setenv("RAYCDC_TEST_URI", mongodb.uri)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as short:
        # The names of Ray's sockets are in it, and must not be long; processes of a killed run may still write there.
        monkeypatch.setenv("RAY_TMPDIR", short)
        job = job_of(tmp_path, mariadb, local=False, sections=WORLD.replace("CRM", mongodb_database))
        job.tables = ("people", "texts", "raws")
        job.pipeline += '\non_bad_record = "dead-letter"'
        config = str(job.configuration())
        said = [say(job, "check", config), say(job, "plan", config)]
        run = job.start("--until", "caught-up", failpoints="after_lookup=kill@2")
        assert run.wait() == -9, run.story()
        run.kill()
        nothing_shows(
            job, planted(), Path(short), said=said, kinds=("looked up", "derived segments", "spark", "column names")
        )
        mariadb.execute(insert_named(2, "stream"), "UPDATE people SET shown = 'none' WHERE id = 40", database="hidden")
        catch_up(job)
        require_engines(*job.runs)
        nothing_shows(job, planted(), said=said, kinds=("bad rows", "dead letters"))
        # Whoever asks takes over what the driver has written.
        said += [say(job, "tables", "resnapshot", config, "hidden.people"), say(job, "tables", "list", config)]
        said.append(say(job, "inspect", "checkpoint", str(job.state)))
        nothing_shows(job, planted(), Path(short), said=said, kinds=("requests", "documents taken over"))
        assert list(Path(short).rglob("*.log"))
    found = rows(job)
    assert set(found) == {2, *range(0, 600, 10)} - {20, 30, 40}
    assert {row["both"][:8] for row in found.values()} == {"*" * 8}
    files = (job.state / "dead_letters").glob("*.jsonl")
    letters = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {letter["row"]["id"] for letter in letters} == {2, 20, 30, 40}


def insert_named(id_: int, phase: str) -> str:
    return insert(id_, phase).replace("INSERT INTO people VALUES", f"INSERT INTO people ({', '.join(NAMES)}) VALUES")
