"""Tables whose names mean something in a URL, in an object store: kept apart, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer, MotoServer
from raycdc.sinks.delta.reading import table_at
from raycdc.storage.files import Access, StorePath, any_path
from tests.support.jobs import Job
from tests.support.servers.store_proxy import StoreProxy
from tests.support.table_commands import listed

pytestmark = pytest.mark.server

HELD = ["a", "a b", "a%b", "a&b", "a+b", "..a", "ü"]
REFUSED = ["a#b", "a?b", "a%20b", "a\\b"]


def test_tables_in_a_bucket_are_told_apart_whatever_their_names_mean_in_a_url(
    mariadb: MariaDbServer, mariadb_database: str, moto: MotoServer, tmp_path: Path
) -> None:
    for at, name in enumerate([*HELD, *REFUSED]):
        table = f"`{name.replace('`', '``')}`"
        statements = f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES ({at})"
        mariadb.execute(*statements, database=mariadb_database)
    bucket = moto.create_bucket(mariadb_database.replace("_", "-"))
    with StoreProxy(moto) as store:
        keys = f'path = "s3://{bucket}/lake"\n'
        job = Job(tmp_path, mariadb, mariadb_database, (".*",), local=True, sink_keys=keys, sections=store.section)
        run = job.run()
        assert run.wait() == 4, run.story()
        phases = {name.partition(".")[2]: entry["phase"] for name, entry in listed(job).items()}
        assert phases == dict.fromkeys(HELD, "stream") | dict.fromkeys(REFUSED, "parked")
        root = any_path(f"s3://{bucket}/lake", Access(store.settings))
        assert isinstance(root, StorePath)
        held = [table_at(root / mariadb_database / name).to_pyarrow_table().to_pylist() for name in HELD]
    assert held == [[{"id": at}] for at in range(len(HELD))]
