"""``raycdc verify`` on real servers: what others did to a target is found, and what a run has still to write is not."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bson import Decimal128, Int64
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from raycdc.cli import main
from raycdc.cli.inspect.inspect_checkpoint import state_location_of
from raycdc.cli.verify import lacking_targets
from raycdc.config import load_config
from raycdc.driver.command_queue import CommandQueue, CommandState
from raycdc.errors import ExitCode
from raycdc.model import TableId
from raycdc.sandbox.servers import MariaDbServer, MongoDb, PostgresServer
from raycdc.state.store import CheckpointStore
from raycdc.verify.source_rows import SourceTableRows
from raycdc.verify.targets.api import RowFilter
from raycdc.verify.targets.delta import DeltaRows
from tests.e2e.test_jdbc import sink_keys
from tests.e2e.verified import counts, require_verified, verified, written_to
from tests.support.jobs import CollectionJob, Job, catch_up

pytestmark = pytest.mark.server

#: Rounds of a table that is written to all the time.
LIVE_ROUNDS = 3


@pytest.fixture
def job(mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path) -> Job:
    """A caught-up pipeline of 3,000 rows in chunks of 500."""
    mariadb.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(50))",
        "INSERT INTO t SELECT seq, seq % 7, CONCAT('row ', seq) FROM seq_1_to_3000",
        database=mariadb_database,
    )
    made = Job(tmp_path, mariadb, mariadb_database, ("t",), local=True, epoch_interval="200ms")
    catch_up(made)
    return made


def append(job: Job, *rows: tuple[int, int | None, str | None]) -> None:
    """Rows that somebody else adds to the target, again where the run committed at the same moment."""
    schema = pa.schema([("id", pa.int32()), ("a", pa.int32()), ("b", pa.string())])
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    for tries_left in reversed(range(20)):
        try:
            write_deltalake(str(job.lake / job.database / "t"), pa.table(columns, schema=schema), mode="append")
        except CommitFailedError:
            if not tries_left:
                raise
        else:
            return


def delta(job: Job) -> DeltaTable:
    return DeltaTable(str(job.lake / job.database / "t"))


def test_what_others_did_to_a_target_is_found(job: Job) -> None:
    code, lines = verified(job)
    assert (code, counts(lines["t"])) == (ExitCode.DONE, {})
    assert lines["t"]["source_rows"] == lines["t"]["target_rows"] == 3000
    assert lines["t"]["source_checksum"] == lines["t"]["target_checksum"]
    assert lines["t"]["ranges"] > 3

    delta(job).delete("id IN (7, 8)")
    append(job, (5000, 1, "nobody's"))
    delta(job).update(updates={"b": "''"}, predicate="id = 9")
    code, lines = verified(job, "--show-keys")
    assert (code, counts(lines["t"])) == (ExitCode.DIFFERENT, {"missing": 2, "extra": 1, "changed": 1})
    assert lines["t"]["keys"] == {"missing": ["7", "8"], "extra": ["5000"], "changed": ["9"]}
    assert lines["t"]["columns"] == ["b"]


def test_a_target_that_was_brought_back_is_read_anew_because_a_start_would_park_it(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYCDC_TEST_PASSWORD", job.server.cdc_user)
    older = shutil.copytree(job.lake, job.lake.with_name("older"))
    job.server.execute("UPDATE t SET b = 'later' WHERE id < 20", database=job.database)
    catch_up(job)
    shutil.rmtree(job.lake)
    shutil.copytree(older, job.lake)
    assert lacking_targets(load_config(job.configuration()), [TableId(job.database, "t")])
    code, _ = verified(job, "--repair")
    assert code == ExitCode.DIFFERENT
    (asked,) = CommandQueue(CheckpointStore(state_location_of(job.configuration()), create=False)).all()
    assert (asked.action, asked.state) == ("resnapshot", CommandState.ACCEPTED)
    catch_up(job)
    require_verified(job, rows=3000)


def test_a_renamed_column_has_its_values_and_one_that_lost_them_is_named(job: Job) -> None:
    job.server.execute(
        "ALTER TABLE t CHANGE b c VARCHAR(60)", "UPDATE t SET c = 'x' WHERE id <= 10", database=job.database
    )
    catch_up(job)
    require_verified(job, rows=3000)
    # As a raycdc left it that gave a renamed column no values.
    delta(job).update(updates={"c": "NULL", "a": "a + 1"}, predicate="b IS NOT NULL AND id < 500")
    code, lines = verified(job)
    assert (code, counts(lines["t"])) == (ExitCode.DIFFERENT, {"changed": 489})
    assert lines["t"]["columns"] == ["a", "c"]
    (note,) = lines["t"]["notes"]
    assert note.startswith("the values of c are in the target's column b, which the source has not")


def test_differences_that_cancel_out_are_found(job: Job) -> None:
    # The values of two rows change hands: each column has the values that it had.
    delta(job).update(updates={"a": "CASE WHEN id = 1 THEN 2 ELSE 1 END"}, predicate="id IN (1, 2)")
    assert counts(verified(job)[1]["t"]) == {"changed": 2}
    # One row twice and another not at all: as many rows as there were.
    delta(job).update(updates={"a": "id % 7"}, predicate="id IN (1, 2)")
    append(job, (3, 3, "row 3"))
    delta(job).delete("id = 4")
    assert counts(verified(job)[1]["t"]) == {"missing": 1, "extra": 1}


@pytest.mark.long(suite="verify")
def test_a_sample_finds_what_its_ranges_lack(job: Job) -> None:
    code, lines = verified(job, "--sample", "40%")
    assert (code, counts(lines["t"])) == (ExitCode.DONE, {})
    assert lines["t"]["notes"][0].startswith("only a sample of its ranges was read")
    delta(job).delete()
    code, lines = verified(job, "--sample", "40%")
    assert counts(lines["t"]) == {"missing": lines["t"]["source_rows"]}
    assert 0 < lines["t"]["source_rows"] < 3000
    assert code == ExitCode.DIFFERENT


def test_null_and_nothing_are_two_values(job: Job) -> None:
    job.server.execute(
        "UPDATE t SET b = '' WHERE id = 1", "UPDATE t SET b = NULL, a = NULL WHERE id = 2", database=job.database
    )
    catch_up(job)
    assert verified(job)[0] == ExitCode.DONE
    delta(job).update(updates={"b": "NULL"}, predicate="id = 1")
    delta(job).update(updates={"b": "''", "a": "0"}, predicate="id = 2")
    assert counts(verified(job)[1]["t"]) == {"changed": 2}
    # Neither side is read to its end where the other cannot be read.
    for file in (job.lake / job.database / "t").glob("*.parquet"):
        file.unlink()
    code, lines = verified(job)
    assert (code, lines["t"]["verdict"]) == (ExitCode.UNVERIFIED, "not compared")
    assert lines["t"]["reason"].startswith("its rows cannot be read from the target (FileNotFoundError")


def test_a_stopped_pipeline_is_behind_and_not_different(job: Job) -> None:
    job.server.execute(
        "UPDATE t SET a = a + 1 WHERE id <= 10",
        "DELETE FROM t WHERE id = 20",
        "INSERT INTO t VALUES (4000, 1, 'new')",
        database=job.database,
    )
    code, lines = verified(job)
    assert (code, counts(lines["t"])) == (ExitCode.DONE, {"behind": 12})
    assert lines["t"]["verdict"] == "unsettled"
    # Beside them, a row that nobody changed at the source is known to differ.
    delta(job).delete("id = 30")
    code, lines = verified(job)
    assert (code, counts(lines["t"])) == (ExitCode.DIFFERENT, {"missing": 1, "behind": 12})


def test_no_alarm_while_rows_go_back_and_forth(job: Job) -> None:
    run = job.start()
    run.wait_for_start()
    back_and_forth = (
        "UPDATE t SET a = -a WHERE id BETWEEN 100 AND 140",
        "DELETE FROM t WHERE id = 500",
        "UPDATE t SET id = id + 10000 WHERE id = 600",
        "UPDATE t SET a = -a WHERE id BETWEEN 100 AND 140",
        "INSERT INTO t VALUES (500, 3, 'row 500')",
        "UPDATE t SET id = id - 10000 WHERE id = 10600",
    )
    with written_to(job, lambda: back_and_forth):
        for _ in range(LIVE_ROUNDS):
            code, lines = verified(job)
            found = counts(lines["t"])
            assert (code, lines["t"]["reason"]) == (ExitCode.DONE, "")
            assert found.keys() <= {"kept_changing"}, lines
        # A row too many is found beside them. The run itself would park the table for one that was taken away.
        append(job, (9000, 1, "nobody's"))
        assert counts(verified(job)[1]["t"])["extra"] == 1
    assert run.interrupt() == ExitCode.INTERRUPTED


def test_a_database_is_compared_by_text_keys_of_its_source_and_repaired(
    mariadb: MariaDbServer, mariadb_database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    # Keys of several columns, one of which the server orders by its own rules.
    mariadb.execute(
        "CREATE TABLE p (name VARCHAR(20), n BIGINT UNSIGNED, price DECIMAL(10, 3), at DATETIME(3), "
        "PRIMARY KEY (name, n))",
        "INSERT INTO p SELECT CONCAT(CHAR(97 + seq % 5), IF(seq % 2, 'É', 'e')), seq, seq / 8, "
        "'2024-02-29 00:00:00.125' + INTERVAL seq SECOND FROM seq_1_to_2000",
        database=mariadb_database,
    )
    with postgres.fresh_database() as home, postgres.connect(home) as connection:
        keys = sink_keys(postgres, home)
        made = Job(tmp_path, mariadb, mariadb_database, ("p",), sink="jdbc", sink_keys=keys, local=True)
        catch_up(made)
        require_verified(made, rows=2000)
        target = f'"{mariadb_database}".p'
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {target} SET name = upper(name) WHERE n = 4")
            cursor.execute(f"UPDATE {target} SET price = price + 0.001 WHERE n IN (10, 11)")
            cursor.execute(f"DELETE FROM {target} WHERE n BETWEEN 20 AND 24")
        connection.commit()
        code, lines = verified(made, "--repair")
        assert (code, counts(lines["p"])) == (ExitCode.DIFFERENT, {"missing": 6, "extra": 1, "changed": 2})
        catch_up(made)
        require_verified(made, rows=2000)


def test_a_collection_is_compared_with_a_lake(mongodb: MongoDb, mongodb_database: str, tmp_path: Path) -> None:
    def document(number: int) -> dict[str, Any]:
        kinds = [number / 8, None, "", {"in": [number]}, Int64(number), Decimal128(f"{number}.50")]
        return {"_id": number, "name": f"n{number}", "n": number, "rest": kinds[number % len(kinds)]}

    nobody: Any = None
    job = CollectionJob(tmp_path, nobody, mongodb_database, ("orders",), local=True, uri=mongodb.uri, startup="initial")
    with mongodb.client() as client:
        orders = client[mongodb_database].orders
        orders.insert_many([document(number) for number in range(300)])
        catch_up(job)
        orders.update_many({"_id": {"$lt": 40}}, {"$set": {"name": "changed"}, "$unset": {"rest": ""}})
        orders.delete_one({"_id": 50})
        catch_up(job)
        require_verified(job, rows=299)
        DeltaTable(str(job.lake / mongodb_database / "orders")).delete("_id = 60")
        orders.update_one({"_id": 70}, {"$set": {"n": -1}})
        code, lines = verified(job)
    assert (code, counts(lines["orders"])) == (ExitCode.DIFFERENT, {"missing": 1, "behind": 1})


#: Each table in another form than the source has it.
CHANGED_FORMS = """
[[mask]]
columns = '.*\\.people\\.email'
method = "hash"
key = "a key of masks"

[[mask]]
columns = '.*\\.people\\.phone'
method = "truncate"
length = 3

[[mask]]
columns = '.*\\.people\\.secret'
method = "drop"

[[transform]]
table = '.*\\.orders'
projection = "id, total AS amount, 'shop' AS origin, 7 AS seven, true AS yes, _db AS of_db, _table AS of, _ts_ms AS at"
on_delete = "soft"
deleted_column = "gone"

[[transform]]
table = '.*\\.keyed'
projection = "* EXCEPT (note), code AS label"
primary_keys = ["code"]

[[route]]
table = '(.*)\\.people'
to = "$1.customers"
"""


def test_masks_transforms_soft_deletions_and_renamed_tables_are_compared_as_the_target_has_them(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    mariadb.execute(
        "CREATE TABLE people (id INT PRIMARY KEY, email VARCHAR(40), phone VARCHAR(20), secret TEXT, city VARCHAR(20))",
        "INSERT INTO people SELECT seq, CONCAT('p', seq, '@x'), IF(seq % 5, CONCAT('0555', seq), NULL), 'hidden', "
        "CONCAT('c', seq % 3) FROM seq_1_to_600",
        "CREATE TABLE orders (id INT PRIMARY KEY, total DECIMAL(10, 2), note TEXT)",
        "INSERT INTO orders SELECT seq, seq / 4, 'note' FROM seq_1_to_600",
        "CREATE TABLE keyed (id INT PRIMARY KEY, code VARCHAR(10) NOT NULL, note TEXT)",
        "INSERT INTO keyed SELECT seq, CONCAT('k', seq), 'note' FROM seq_1_to_600",
        database=mariadb_database,
    )
    job = Job(tmp_path, mariadb, mariadb_database, ("people", "orders", "keyed"), local=True, sections=CHANGED_FORMS)
    catch_up(job)
    mariadb.execute(
        "UPDATE people SET email = 'new', phone = '99' WHERE id < 10",
        "UPDATE orders SET total = -1 WHERE id < 10",
        "DELETE FROM orders WHERE id BETWEEN 20 AND 29",
        "INSERT INTO orders VALUES (20, 5, 'again')",
        "UPDATE keyed SET code = CONCAT('new', id) WHERE id < 10",
        "DELETE FROM keyed WHERE id = 20",
        database=mariadb_database,
    )
    catch_up(job)
    code, lines = verified(job)
    assert code == ExitCode.DONE, lines
    assert {name: (line["verdict"], line["notes"], line["target_rows"]) for name, line in lines.items()} == {
        "people": ("equal", [], 600),
        "orders": ("equal", [], 591),
        "keyed": ("equal", [], 599),
    }
    assert lines["people"]["target"] == f"{mariadb_database}.customers"

    lake = job.lake / mariadb_database
    # The clear text in place of its hash; nobody's number; a row that is not deleted; one that is marked as deleted.
    DeltaTable(str(lake / "customers")).update(updates={"email": "'p50@x'"}, predicate="id = 50")
    DeltaTable(str(lake / "customers")).update(updates={"phone": "'123'"}, predicate="id = 51")
    DeltaTable(str(lake / "orders")).update(updates={"gone": "false"}, predicate="id = 21")
    DeltaTable(str(lake / "orders")).update(updates={"gone": "true"}, predicate="id = 31")
    DeltaTable(str(lake / "keyed")).delete("code = 'k40'")
    mariadb.execute(
        "UPDATE keyed SET code = 'moved' WHERE id = 60",
        "DELETE FROM orders WHERE id = 61",
        "UPDATE people SET email = 'later' WHERE id = 62",
        database=mariadb_database,
    )
    code, lines = verified(job)
    assert {name: counts(line) for name, line in lines.items()} == {
        "people": {"changed": 2, "behind": 1},
        "orders": {"missing": 1, "extra": 1, "behind": 1},
        "keyed": {"missing": 1, "behind": 2},
    }


def test_a_changelog_is_compared_by_what_it_adds_up_to(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    mariadb.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(50))",
        "INSERT INTO t SELECT seq, seq % 7, CONCAT('row ', seq) FROM seq_1_to_1000",
        database=mariadb_database,
    )
    job = Job(tmp_path, mariadb, mariadb_database, ("t",), write="changelog", local=True)
    catch_up(job)
    mariadb.execute("UPDATE t SET a = 9 WHERE id < 9", "DELETE FROM t WHERE id = 9", database=mariadb_database)
    catch_up(job)
    require_verified(job, rows=999)
    delta(job).delete("id = 7 AND \"_op\" = '+U'")
    delta(job).update(updates={"a": "8"}, predicate="id = 8 AND \"_op\" = '+U'")
    code, lines = verified(job)
    assert (code, counts(lines["t"])) == (ExitCode.DIFFERENT, {"missing": 1, "changed": 1})
    assert lines["t"]["columns"] == ["a"]


def test_a_table_that_cannot_be_compared_says_why(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    mariadb.execute("CREATE TABLE keyless (a INT)", "INSERT INTO keyless VALUES (1)", database=mariadb_database)
    job = Job(tmp_path, mariadb, mariadb_database, ("keyless",), write="changelog", local=True)
    assert refused(job) == (ExitCode.STATE, "There is no state in")
    assert refused(job, "--sample", "0%")[0] == ExitCode.CONFIG
    catch_up(job)
    code, lines = verified(job)
    assert code == ExitCode.UNVERIFIED
    assert lines["keyless"]["reason"] == "it has no primary key, by which rows of both sides could be matched."
    job.sink, job.sink_keys = "jsonl", f'path = "{job.folder}/lines"'
    assert refused(job)[0] == ExitCode.CONFIG  # As a run would.


def refused(job: Job, *words: str) -> tuple[int, str]:
    """The exit code, and the beginning of what is said."""
    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(errors):
        patch.setenv("RAYCDC_TEST_PASSWORD", "cdc")
        code = main(["verify", str(job.configuration()), *words])
    return code, errors.getvalue()[: len("There is no state in")]


def test_later_rounds_read_what_still_differs_alone(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.server.execute(
        "UPDATE t SET a = a + 1 WHERE id IN (10, 2500)",
        "UPDATE t SET id = id + 10000 WHERE id = 600",
        "DELETE FROM t WHERE id = 20",
        "INSERT INTO t VALUES (4000, 1, 'new')",
        database=job.database,
    )
    append(job, (9000, 1, "nobody's"))
    of_target, of_source = DeltaRows.batches, SourceTableRows.batches
    rows: list[tuple[str, int]] = []

    def target(self: DeltaRows, columns: Sequence[str], wanted: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
        batches = list(of_target(self, columns, wanted))
        rows.append(("target", sum(batch.num_rows for batch in batches)))
        if wanted is None:
            # What was read differs; now a run commits all that the source has.
            catch_up(job)
        yield from batches

    def source(self: SourceTableRows, *given: Any) -> Iterator[pa.RecordBatch]:
        batches = list(of_source(self, *given))
        rows.append(("source", sum(batch.num_rows for batch in batches)))
        yield from batches

    monkeypatch.setattr(DeltaRows, "batches", target)
    monkeypatch.setattr(SourceTableRows, "batches", source)
    code, lines = verified(job)
    assert (code, counts(lines["t"]), lines["t"]["rounds"]) == (ExitCode.DIFFERENT, {"extra": 1}, 2), lines
    assert sorted(rows[:2]) == [("source", 3000), ("target", 3001)]
    later = dict(rows[2:])
    # 10, 2500, 10600 and 4000; a file of the lake is read where it has one of the keys.
    assert later["source"] == 4
    assert 4 <= later["target"] < 3000


def test_a_target_that_is_read_anew_meanwhile_is_no_alarm(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    read = DeltaRows.batches

    def batches(rows: DeltaRows, columns: Sequence[str], wanted: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
        # The state was looked at; now a run empties the target, and dies before it says so.
        monkeypatch.setattr(DeltaRows, "batches", read)
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["tables", "resnapshot", str(job.configuration()), f"{job.database}.t"]) == ExitCode.DONE
        assert job.start("--until", "caught-up", failpoints="after_commit=kill@1").wait() == -9
        assert delta(job).to_pyarrow_table().num_rows == 0
        yield from read(rows, columns, wanted)

    monkeypatch.setattr(DeltaRows, "batches", batches)
    code, lines = verified(job)
    assert (code, counts(lines["t"])) == (ExitCode.UNVERIFIED, {})
    monkeypatch.undo()
    catch_up(job)
    require_verified(job, rows=3000)


@pytest.mark.long(suite="verify")
def test_a_target_without_older_rows_says_so(mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path) -> None:
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", database=mariadb_database)
    source = 'startup = { mode = "latest" }'
    job = Job(tmp_path, mariadb, mariadb_database, ("t",), local=True, source=source)
    catch_up(job)
    mariadb.execute("INSERT INTO t VALUES (3)", database=mariadb_database)
    catch_up(job)
    code, lines = verified(job)
    assert code == ExitCode.UNVERIFIED
    assert lines["t"]["reason"].startswith("the pipeline began without a snapshot")
