"""A plan of tables of a server: sealed, and refused where somebody changed a table since."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from raycdc.errors import ExitCode
from raycdc.sandbox.servers import MariaDbServer
from tests.support.forked_commands import completed
from tests.support.jobs import Job

pytestmark = pytest.mark.server


def test_a_table_that_changed_since_the_plan_is_named(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    name = mariadb_database
    mariadb.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(20))",
        "INSERT INTO orders SELECT seq, 'new' FROM seq_1_to_1000",
        "ANALYZE TABLE orders",
        database=name,
    )
    job = Job(tmp_path, mariadb, name, ["orders"], sink="jsonl", write="changelog", local=True)
    config, plan = str(job.configuration()), str(tmp_path / "plan.json")
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": mariadb.cdc_user}
    sealed = completed(("plan", config, "--out", plan), environment=environment, folder=tmp_path)
    assert sealed.returncode == ExitCode.DONE, sealed
    assert re.search(r"A snapshot of 1 table reads about [\d,]+ rows \(.*\) in \d+ chunks?: ", sealed.stdout), sealed
    words = ("run", config, "--local", "--until", "caught-up", "--plan", plan)
    mariadb.execute("ALTER TABLE orders ADD COLUMN price INT, MODIFY note VARCHAR(30) NOT NULL", database=name)
    refused = completed(words, environment=environment, folder=tmp_path)
    assert refused.returncode == ExitCode.CONFIG, refused
    assert f"  Table {name}.orders has a column price that was not planned.\n" in refused.stderr
    assert f"  Table {name}.orders: column note is string not null, and string was planned.\n" in refused.stderr
    assert not (tmp_path / "lake").exists()
    mariadb.execute("ALTER TABLE orders DROP COLUMN price, MODIFY note VARCHAR(20)", database=name)
    done = completed(words, environment=environment, folder=tmp_path)
    assert done.returncode == ExitCode.DONE, done
