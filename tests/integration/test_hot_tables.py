"""A table without a key whose rows change whenever they are read: it parks, and begins again when it is quiet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raycdc.cli.entry import main
from raycdc.connectors.mysql.snapshot import chunk_reader as visibility
from raycdc.sandbox.servers import DatabaseServer
from raycdc.source.snapshot.handoff import open_chunk
from tests.support.jobs import Job

pytestmark = pytest.mark.server


def rows_of(job: Job, table: str) -> list[int]:
    """Ids that the changelog of a table leaves."""
    files = (job.lake / job.database / table).rglob("*.jsonl")
    lines = [line for file in files for line in file.read_text().splitlines()]
    alive: list[int] = []
    for row in sorted(map(json.loads, lines), key=lambda each: int(each["_seq"])):
        if row["_op"] == "T":
            alive.clear()
        else:
            alive.append(row["id"])
    return sorted(alive)


def test_a_hot_table_without_a_key_parks_and_the_others_go_on(
    mysql80: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with mysql80.fresh_database() as database:
        mysql80.execute(
            "CREATE TABLE hot (id INT)",
            "CREATE TABLE quiet (id INT PRIMARY KEY)",
            "INSERT INTO hot VALUES (0)",
            "INSERT INTO quiet VALUES (1), (2)",
            database=database,
        )
        reads = 0

        def reach(step: str) -> None:
            nonlocal reads
            if step == "after_select":
                reads += 1
                mysql80.execute(f"INSERT INTO hot VALUES ({reads})", database=database)

        monkeypatch.setattr(visibility, "reach", reach)
        monkeypatch.setattr(open_chunk, "RETRIES_MAX", 3)
        job = Job(tmp_path, mysql80, database, ("hot", "quiet"), sink="jsonl", write="changelog", local=True)
        configuration = str(job.configuration())
        monkeypatch.setenv("RAYCDC_TEST_PASSWORD", "cdc")
        run = ["run", configuration, "--local", "--until", "caught-up"]
        assert main(run) == 4
        said = capsys.readouterr()
        assert "were read 3 times and not once usable" in said.out + said.err
        assert (rows_of(job, "hot"), rows_of(job, "quiet")) == ([], [1, 2])
        # While it is hot, nothing of it comes in the next run either, and the others go on.
        mysql80.execute("INSERT INTO quiet VALUES (3)", database=database)
        assert main(run) == 4
        assert rows_of(job, "quiet") == [1, 2, 3]
        monkeypatch.setattr(visibility, "reach", lambda _: None)
        assert main(["tables", "resnapshot", configuration, f"{database}.hot"]) == 0
        assert main(run) == 0
        mysql80.execute("INSERT INTO hot VALUES (100)", database=database)
        assert main(run) == 0
        expected = [number for (number,) in mysql80.execute("SELECT id FROM hot ORDER BY id", database=database)]
        assert rows_of(job, "hot") == expected
