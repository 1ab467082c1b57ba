"""`raycdc run` into collections whose rules and rights others change: each is parked alone, its way out is tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer, MongoDb, MongoDbServer
from tests.e2e.test_mongodb_sink import sink_keys
from tests.e2e.test_parked_tables import tables_command
from tests.e2e.test_parked_targets import make
from tests.e2e.test_refusing_targets import parked_run
from tests.support.jobs import Job, catch_up

pytestmark = pytest.mark.server

NAMES = ("forbidden", "healthy", "strict")
#: A value that no other text has.
LARGE = 918273645


def test_a_validator_and_a_right_that_is_taken_away_park_their_collections(
    mariadb: MariaDbServer, mongodb: MongoDb, tmp_path: Path
) -> None:
    with mongodb.fresh_database() as database, mongodb.client() as client:
        home = f"{database}_home"
        make(
            mariadb,
            database,
            *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)" for name in NAMES),
            *(f"INSERT INTO {name} VALUES (1, 1), (2, 2)" for name in NAMES),
        )
        keys = sink_keys(mongodb, home)
        job = Job(tmp_path, mariadb, database, NAMES, sink="mongodb", sink_keys=keys, local=True)

        def values(name: str) -> dict[int, int]:
            return {document["id"]: document["v"] for document in mongodb.find(database, name)}

        catch_up(job)
        client[database].command({"collMod": "strict", "validator": {"v": {"$lt": 1000}}})
        parked = ["strict"]
        if isinstance(mongodb, MongoDbServer):
            mongodb.deny(f"{database}.forbidden", ("insert", "update", "delete"))
            parked.append("forbidden")
        mariadb.execute(*(f"INSERT INTO {name} VALUES (3, {LARGE})" for name in NAMES), database=database)
        said = parked_run(job, *parked)
        assert f"{database}.strict" in said
        assert "Document failed validation" in said
        assert str(LARGE) not in said
        assert f"{database}.strict: MongoDB at " in said
        assert f"{database}.strict: {database}.strict" not in said, "its name is said once"
        if "forbidden" in parked:
            assert re.search(rf"not authorized on {database} to execute command \w+\. Grant it", said)
        assert values("strict") == {1: 1, 2: 2}
        assert values("healthy") == {1: 1, 2: 2, 3: LARGE}

        # The ways out that people are told.
        client[database].command({"collMod": "strict", "validator": {}})
        if isinstance(mongodb, MongoDbServer):
            mongodb.unfail()
        for name in parked:
            tables_command(job, "resnapshot", f"{database}.{name}")
        mariadb.execute("UPDATE strict SET v = 5 WHERE id = 1", database=database)
        catch_up(job)
        assert values("strict") == {1: 5, 2: 2, 3: LARGE}
        assert values("forbidden") == values("healthy") == {1: 1, 2: 2, 3: LARGE}
