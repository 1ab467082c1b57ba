"""A table that masks cannot hide as they are asked to waits, also when it comes later: the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.sandbox.servers import DatabaseServer
from tests.integration.one_table_job import Job
from tests.leaks import leaks

pytestmark = pytest.mark.server


@pytest.mark.long_variants("mysql80", suite="servers")
def test_a_table_that_masks_cannot_hide_is_parked_beside_the_others(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    mask = [
        {"columns": rf"{database}\..*\.email", "method": "mask", "length": 3},
        {"columns": rf"{database}\..*\.short", "method": "truncate", "length": 2},
    ]
    job = Job(server, database, tmp_path, mask=mask)
    shape = "(id INT PRIMARY KEY, email VARCHAR(40), short VARCHAR(40))"
    job.execute("CREATE TABLE begun (id INT, email VARCHAR(40) PRIMARY KEY)", "INSERT INTO begun VALUES (1, 'secret')")
    for name in ("rekeyed", "retyped", "healthy"):
        job.execute(f"CREATE TABLE {name} {shape}", f"INSERT INTO {name} VALUES (1, 'secret', 'xysecret')")
    assert set(job.catch_up()) == {"begun"}
    job.execute(
        "CREATE TABLE keyed (id INT, email VARCHAR(40) PRIMARY KEY)",
        "INSERT INTO keyed VALUES (1, 'secret@keyed')",
        "CREATE TABLE untyped (id INT PRIMARY KEY, short INT)",
        "INSERT INTO untyped VALUES (1, 777777777)",
        # By such a key nothing is told apart or cut: read, and followed, as one without any.
        "CREATE TABLE indexed (id INT, email VARCHAR(40) NOT NULL, UNIQUE KEY (email))",
        "INSERT INTO indexed VALUES (1, 'secret@indexed')",
        "ALTER TABLE rekeyed DROP PRIMARY KEY, ADD PRIMARY KEY (email)",
        "INSERT INTO rekeyed VALUES (2, 'secret@rekeyed', 'xysecret')",
        "UPDATE retyped SET short = '777777777'",
        "ALTER TABLE retyped MODIFY COLUMN short INT",
        "INSERT INTO healthy VALUES (2, 'secret@healthy', 'xysecret')",
    )
    parked = job.catch_up()
    reasons = {name: entry["reason"] for name, entry in parked.items()}
    assert set(reasons) == {"begun", "keyed", "untyped", "rekeyed", "retyped"}
    assert all("email belongs to the key" in reasons[name] for name in ("begun", "keyed"))
    assert all('method = "truncate" is for texts' in reasons[name] for name in ("untyped", "retyped"))
    assert all(
        f"raycdc tables resnapshot CONFIG {database}.{name}" in why
        for name, why in reasons.items()
        if name != "rekeyed"
    )
    assert [row["email"] for row in job.rows("healthy")] == ["***", "***"]
    assert job.rows("indexed") == [{"id": 1, "email": "***"}]
    # A request alone shows nothing.
    for name in reasons:
        job.ask("resnapshot", name)
    assert set(job.catch_up()) == set(reasons)
    found = leaks([tmp_path], ["secret", 777_777_777])
    assert found == []
    job.execute(
        *(f"ALTER TABLE {name} DROP PRIMARY KEY, ADD PRIMARY KEY (id)" for name in ("begun", "keyed", "rekeyed")),
        *(f"ALTER TABLE {name} MODIFY COLUMN short VARCHAR(40)" for name in ("untyped", "retyped")),
    )
    for name in reasons:
        job.ask("resnapshot", name)
    assert job.catch_up() == {}
    assert job.rows("keyed") == job.rows("begun") == [{"id": 1, "email": "***"}]
    assert job.rows("untyped") == [{"id": 1, "short": "77"}]
    assert [row["email"] for row in job.rows("rekeyed")] == ["***", "***"]
    found = leaks([tmp_path], ["secret", 777_777_777])
    assert found == []
