"""Tables with columns called as ours: `check` and the start say so, before anything of them is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raycdc.config import config_from_dict
from raycdc.connectors.mysql.checks import check_source
from raycdc.connectors.mysql.client import probe
from raycdc.errors import RaycdcError
from raycdc.model import TableId
from raycdc.pipeline import Pipeline
from raycdc.testing.servers import DatabaseServer
from raycdc.testing.sessions import session

pytestmark = pytest.mark.server


def pipeline(server: DatabaseServer, database: str, folder: Path) -> Pipeline:
    source: dict[str, Any] = {"type": "mysql", "port": server.port, "user": "cdc"}
    return Pipeline.from_config(
        config_from_dict(
            {
                "pipeline": {"name": "names", "state": str(folder / "state"), "epoch_interval": "200ms"},
                "source": {**source, "password": "${env:RAYCDC_TEST_PASSWORD}", "tables": [rf"{database}\..*"]},
                "sink": {"type": "jsonl", "path": str(folder / "lake"), "write": "changelog"},
            }
        )
    )


def test_a_table_with_such_a_column_is_refused_before_anything_is_read(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    server.execute("CREATE TABLE t (id INT PRIMARY KEY, _table INT)", database=database)
    with session(server) as connection:
        results = check_source(connection, probe(connection), {TableId(database, "t")}, server_ids=range(7410, 7420))
    failed = [result for result in results if not result.ok and result.required]
    assert ["column '_table' has a name that raycdc uses" in result.text for result in failed] == [True]
    with pytest.raises(RaycdcError, match="column '_table' has a name that raycdc uses"):
        pipeline(server, database, tmp_path).run(until="caught-up", local=True)


def test_a_table_that_got_such_a_column_is_refused_and_none_of_its_rows_written(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    server.execute("CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    pipeline(server, database, tmp_path).run(until="caught-up", local=True)
    server.execute("ALTER TABLE t ADD COLUMN _Db INT", "INSERT INTO t VALUES (1, 7)", database=database)
    with pytest.raises(RaycdcError, match="column '_Db' has a name that raycdc uses"):
        pipeline(server, database, tmp_path).run(until="caught-up", local=True)
    assert not [path for path in (tmp_path / "lake").rglob("*.jsonl") if path.read_text()]
