"""`raycdc check` of a pipeline into Iceberg."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.servers import MariaDbServer
from raycdc.sinks.iceberg.catalog import HadoopCatalog
from raycdc.sinks.iceberg.files import IcebergColumn
from raycdc.sinks.iceberg.metadata import iceberg_schema
from tests.support.forked_commands import completed

pytestmark = pytest.mark.server


def check(server: MariaDbServer, database: str, folder: Path, sink: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what was found of the sink by name."""
    path = folder / "job.toml"
    path.write_text(
        f"""
[pipeline]
name = "checked"
state = "{folder}/state"
[source]
type = "mysql"
host = "{server.host}"
port = {server.port}
user = "{server.cdc_user}"
password = "${{env:SOURCE_PASSWORD}}"
tables = ["{database}.t"]
[sink]
type = "iceberg"
{sink}
"""
    )
    environment = {**os.environ, "SOURCE_PASSWORD": server.cdc_user}
    done = completed(["check", str(path), "--json"], environment=environment, folder=folder)
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {found["check"]: found for found in findings if found["check"].startswith("sink")}


def test_a_warehouse_is_looked_at_and_not_made(mariadb: MariaDbServer, tmp_path: Path) -> None:
    with mariadb.fresh_database() as database:
        mariadb.execute(f"CREATE TABLE {database}.t (id BIGINT PRIMARY KEY, a BLOB)")
        code, found = check(mariadb, database, tmp_path, 'path = "./lake"')
        assert (code, {name: one["status"] for name, one in found.items()}) == (0, {"sink folder": "ok", "sink": "ok"})
        assert not (tmp_path / "lake").exists()
        (tmp_path / "file").write_text("no folder")
        code, found = check(mariadb, database, tmp_path, f'path = "{tmp_path}/file/lake"')
        assert (code, found["sink folder"]["status"]) == (5, "failed")
        rest = 'catalog = { type = "rest", uri = "http://127.0.0.1:9" }'
        code, found = check(mariadb, database, tmp_path, rest)
        assert (code, found["sink"]["status"]) == (5, "failed")
        assert "rest catalog of the Iceberg sink at 127.0.0.1:9 cannot be opened" in found["sink"]["text"]


def test_a_table_that_cannot_be_a_target_is_found(mariadb: MariaDbServer, tmp_path: Path) -> None:
    with mariadb.fresh_database() as database:
        mariadb.execute(f"CREATE TABLE {database}.t (id BIGINT PRIMARY KEY)")
        catalog = HadoopCatalog("other", tmp_path / "lake")
        catalog.create_table((database, "t"), iceberg_schema([IcebergColumn(1, "id", "uuid")]))
        code, found = check(mariadb, database, tmp_path, f'path = "{tmp_path}/lake"')
    assert (code, found["sink"]["status"]) == (5, "failed")
    assert "column 'id' of type uuid, which raycdc does not write" in found["sink"]["text"]
