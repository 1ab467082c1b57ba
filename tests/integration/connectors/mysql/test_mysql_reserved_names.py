"""Tables with columns called as ours, which `check` and the start refuse before anything is read; and tables whose
names are one to the catalog's collation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raycdc.config import config_from_dict
from raycdc.connectors.mysql.server.catalog import load_tables, table_sizes
from raycdc.connectors.mysql.server.checks import check_source
from raycdc.connectors.mysql.server.client import probe
from raycdc.connectors.mysql.server.unlogged import engines_of
from raycdc.errors import RaycdcError
from raycdc.model import TableId
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import DatabaseServer
from tests.support.sessions import session

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


def test_tables_whose_names_differ_in_case_alone_are_two(server: DatabaseServer, database: str) -> None:
    """Of two such names in one question MariaDB's catalog finds only one."""
    tables = {
        "t": ("a INT PRIMARY KEY, k INT UNIQUE, v INT AS (a + 1)", ["a", "k", "v"]),
        "T": ("b INT PRIMARY KEY", ["b"]),
        "ä": ("c INT PRIMARY KEY", ["c"]),
        "Ä": ("d INT PRIMARY KEY", ["d"]),
        "A": ("e INT PRIMARY KEY", ["e"]),
    }
    for name, (columns, _) in tables.items():
        server.execute(f"CREATE TABLE `{name}` ({columns})", database=database)
    wanted = [TableId(database, name) for name in tables]
    with session(server) as connection:
        loaded = load_tables(connection, wanted)
        assert loaded == {**load_tables(connection, wanted[:2]), **load_tables(connection, wanted[2:])}
        assert set(table_sizes(connection, wanted)) == set(engines_of(connection, wanted)) == set(wanted)
    assert {name.table: [c.name for c in table.columns] for name, table in loaded.items()} == {
        name: columns for name, (_, columns) in tables.items()
    }
    assert {name.table: table.primary_key for name, table in loaded.items()} == {
        name: (columns[0],) for name, (_, columns) in tables.items()
    }
