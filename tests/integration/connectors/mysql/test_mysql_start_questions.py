"""A start asks few questions per table, however many tables there are: each waits for the server's answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raycdc.config import Secret
from raycdc.connectors.mysql.enumerator_dialect import MySqlEnumeratorDialect
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.source import MeteredConnections, MySqlSource
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer
from raycdc.source.connector import SourceContext
from raycdc.source.snapshot.enumerator.snapshot_plan import uncut

pytestmark = pytest.mark.server

FEW, MANY = 2, 22
#: Whether it may be read, whether it can be, and whether a foreign key changes it; its size, and whether it is small.
PER_TABLE = 5
#: A busy server may make a start ask some questions once more.
ONCE_MORE = 5
#: The account, its grants, the log's end, what the log leaves out (two), and how long locks are waited for (two).
OF_THE_ACCOUNT = 7


def config_of(server: DatabaseServer, tables: Sequence[TableId]) -> MySqlSourceConfig:
    return MySqlSourceConfig(
        port=server.port,
        user="cdc",
        password=Secret("cdc"),
        tables=tuple(f"{table.db}.{table.table}" for table in tables),
    )


def questions_of_a_start(server: DatabaseServer, tables: Sequence[TableId]) -> int:
    """Statements until all chunks of the `tables` are planned."""
    config = config_of(server, tables)
    connections = MeteredConnections(config)
    MySqlSource(config, connections=connections).preflight(None)
    dialect = MySqlEnumeratorDialect(config, connections, SourceContext())
    start = dialect.start_point()
    assert [(plan.table, plan.refused) for plan in start.tables] == [(table, "") for table in tables]
    with dialect.planning() as plan:
        for one in start.tables:
            assert one.snapshot is not None
            chunks = plan(one.document, one.table, uncut(one.snapshot.key), 0)
            assert (len(chunks.splits), chunks.planner) == (1, None)
    return connections.costs().queries or 0


def test_a_start_asks_few_questions_per_table(any_server: DatabaseServer, any_database: str) -> None:
    tables = [TableId(any_database, f"t{number:02}") for number in range(MANY)]
    any_server.execute(
        *(f"CREATE TABLE {table.table} (id INT PRIMARY KEY, v INT)" for table in tables), database=any_database
    )
    few, many = (questions_of_a_start(any_server, tables[:count]) for count in (FEW, MANY))
    assert many - few <= (MANY - FEW) * PER_TABLE + ONCE_MORE


def questions_of_a_preflight(server: DatabaseServer, tables: Sequence[TableId], *, checked: bool) -> int:
    """Statements of the preflight, behind a `check` that found everything or without one."""
    config = config_of(server, tables)
    connections = MeteredConnections(config)
    source = MySqlSource(config, connections=connections)
    if checked:
        found = source.check(None, names_reported=False)
        assert [result for result in found.results if result.required and not result.ok] == []
    source.preflight(None)
    return connections.costs().queries or 0


def test_a_preflight_behind_a_check_asks_for_no_privilege_again(any_server: DatabaseServer, any_database: str) -> None:
    tables = [TableId(any_database, f"t{number:02}") for number in range(MANY)]
    any_server.execute(
        *(f"CREATE TABLE {table.table} (id INT PRIMARY KEY, v INT)" for table in tables), database=any_database
    )
    alone, behind = (questions_of_a_preflight(any_server, tables, checked=checked) for checked in (False, True))
    assert alone - behind >= MANY + OF_THE_ACCOUNT
    assert questions_of_a_preflight(any_server, tables[:FEW], checked=True) == behind
