"""Law: whatever the keys, the strategy and the interruptions, every row lies in exactly one chunk."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raycdc.clients.mysql import connect, query
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.snapshot.planning.chunk_keys import best_key
from raycdc.connectors.mysql.snapshot.planning.chunk_plan import ChunkPlan, ChunkRange
from raycdc.connectors.mysql.snapshot.planning.chunks import ChunkPlanner, ChunkSettings, MySqlChunkStrategy
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import ConfigError, SourceError
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from tests.support.sessions import session, settings_of

pytestmark = pytest.mark.server

law = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
TEXT = st.text(alphabet="aAbBäÄ \tzß0\\'😀", max_size=4)


def plan(server: DatabaseServer, table: MySqlTable, chosen: ChunkSettings, step: int = 3) -> list[ChunkRange]:
    """All chunks, `step` at a time, with the planner's state sent through JSON in between."""
    connector = partial(connect, settings_of(server, "root"))
    planner = ChunkPlanner(connector, table, chosen)
    chunks: list[ChunkRange] = []
    while not planner.plan.done:
        found = planner.next_chunks(step)
        assert len(found) == step or planner.plan.done
        chunks += [ChunkRange.from_json(json.loads(json.dumps(chunk.to_json()))) for chunk in found]
        state = json.loads(json.dumps(planner.plan.to_json()))
        planner = ChunkPlanner(connector, table, chosen, ChunkPlan.restored(state, table, rows=chosen.chunk_rows))
        assert planner.plan.estimated_total >= len(chunks)
    assert planner.plan.estimated_total == len(chunks)
    return chunks


def times_covered(connection: Any, table: MySqlTable, chunks: list[ChunkRange]) -> set[int]:
    """In how many chunks a row lies, over all rows."""
    conditions = " + ".join(f"(({chunk.condition(table)}) IS TRUE)" for chunk in chunks)
    rows = query(connection, f"SELECT DISTINCT {conditions} FROM `{table.id.db}`.`{table.id.table}`")
    return {int(row[0]) for row in rows}


def fill(connection: Any, database: str, column_type: str, values: list[Any], *, key: str = "KEY (k)") -> MySqlTable:
    name = f"`{database}`.t"
    query(connection, f"DROP TABLE IF EXISTS {name}")
    query(connection, f"CREATE TABLE {name} (k {column_type}, n INT, {key})")
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT IGNORE INTO {name} VALUES (%s, %s)", [(value, 1) for value in values])
    return load_table(connection, TableId(database, "t"))


def check_law(
    server: DatabaseServer, database: str, column_type: str, values: list[Any], later: list[Any], chosen: ChunkSettings
) -> list[ChunkRange]:
    with session(server, "root") as connection:
        table = fill(connection, database, column_type, values)
        chunks = plan(server, table, chosen)
        covered = times_covered(connection, table, chunks)
        assert covered <= {1}
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT IGNORE INTO `{database}`.t VALUES (%s, 2)", [(value,) for value in later])
        assert times_covered(connection, table, chunks) <= {1}
        return chunks


@law
@given(
    values=st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-20, 20), max_size=60),
    later=st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1), max_size=10),
    strategy=st.sampled_from(MySqlChunkStrategy),
    rows=st.integers(1, 7),
)
def test_integer_keys_are_covered_once(
    mariadb: MariaDbServer,
    mariadb_database: str,
    values: list[Any],
    later: list[Any],
    strategy: MySqlChunkStrategy,
    rows: int,
) -> None:
    chosen = ChunkSettings(strategy=strategy, chunk_rows=rows, key="k")
    check_law(mariadb, mariadb_database, "BIGINT NULL", values, later, chosen)


@law
@given(
    values=st.lists(st.none() | TEXT, max_size=60),
    later=st.lists(st.none() | TEXT, max_size=10),
    strategy=st.sampled_from([MySqlChunkStrategy.AUTO, MySqlChunkStrategy.UNEVEN, MySqlChunkStrategy.SAMPLED]),
    rows=st.integers(1, 7),
    collation=st.sampled_from(["utf8mb4_general_ci", "utf8mb4_bin", "latin1_swedish_ci", "utf8mb4_unicode_nopad_ci"]),
)
def test_text_keys_are_covered_once(
    mariadb: MariaDbServer,
    mariadb_database: str,
    values: list[Any],
    later: list[Any],
    strategy: MySqlChunkStrategy,
    rows: int,
    collation: str,
) -> None:
    charset = collation.partition("_")[0]
    column_type = f"VARCHAR(20) CHARACTER SET {charset} COLLATE {collation} NULL"
    chosen = ChunkSettings(strategy=strategy, chunk_rows=rows, key="k")
    check_law(mariadb, mariadb_database, column_type, values, later, chosen)


@pytest.mark.parametrize(
    ("column_type", "values"),
    [
        ("BIGINT UNSIGNED", [0, 5, 1 << 63, (1 << 64) - 1, 7, 8, 9, 10]),
        ("DECIMAL(30,3)", [f"{n}.{n:03}" for n in range(-20, 20)]),
        ("DOUBLE", [n / 7 for n in range(-20, 20)]),
        (
            "DATETIME(3) NULL",
            [f"2024-01-{n:02} 10:00:00.{n:03}" for n in range(1, 28)] + ["0000-00-00", "2024-00-10", None],
        ),
        ("DATE", [f"2024-02-{n:02}" for n in range(1, 29)] + ["2024-02-00", "0000-00-00"]),
        ("TIME(1)", [f"{n}:00:00.5" for n in range(-30, 30)]),
        ("VARBINARY(9)", [bytes([n, 0]) for n in range(200, 256)] + [b"", b"\0"]),
        ("YEAR", list(range(1990, 2030))),
        ("BIT(9)", list(range(300, 340))),
    ],
)
def test_keys_of_every_type_are_covered_once(
    server: DatabaseServer, database: str, column_type: str, values: list[Any]
) -> None:
    chosen = ChunkSettings(strategy=MySqlChunkStrategy.UNEVEN, chunk_rows=4, key="k")
    assert len(check_law(server, database, column_type, values, [], chosen)) > 2


def test_chunks_outside_come_first_and_the_rest_is_bounded(server: DatabaseServer, database: str) -> None:
    for strategy in MySqlChunkStrategy:
        chosen = ChunkSettings(strategy=strategy, chunk_rows=10, key="k")
        chunks = check_law(server, database, "INT NULL", [*range(100), None], [-5, 500], chosen)
        assert chunks[:3] == [
            ChunkRange(only_null=True, key="k"),
            ChunkRange(None, 0, key="k"),
            ChunkRange(99, None, key="k"),
        ]
        assert all(chunk.lower is not None and chunk.upper is not None for chunk in chunks[3:])
        assert chunks[3].lower == 0
        assert chunks[-1].upper == 99
        assert [chunk.upper for chunk in chunks[3:-1]] == [chunk.lower for chunk in chunks[4:]]


def test_uneven_chunks_have_the_rows_asked_for(server: DatabaseServer, database: str) -> None:
    chosen = ChunkSettings(strategy=MySqlChunkStrategy.UNEVEN, chunk_rows=10, key="k")
    keys = [n * n * n for n in range(101)]
    chunks = check_law(server, database, "INT NOT NULL", keys, [], chosen)
    assert [(c.lower, c.upper) for c in chunks[2:]] == [(n**3, (n + 10) ** 3) for n in range(0, 100, 10)]


def test_one_value_with_more_rows_than_a_chunk_makes_one_chunk(server: DatabaseServer, database: str) -> None:
    chosen = ChunkSettings(strategy=MySqlChunkStrategy.UNEVEN, chunk_rows=3, key="k")
    chunks = check_law(server, database, "INT NOT NULL", [1] * 10 + [2] * 10 + [3], [], chosen)
    assert [(c.lower, c.upper) for c in chunks] == [(None, 1), (3, None), (1, 2), (2, 3)]


def test_a_small_table_and_one_without_key_are_one_chunk(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        small = fill(connection, database, "INT NOT NULL", list(range(50)), key="PRIMARY KEY (k)")
        assert plan(server, small, ChunkSettings()) == [ChunkRange(includes_null=True, key="k")]
        without = fill(connection, database, "INT NOT NULL", list(range(50)))
        assert plan(server, without, ChunkSettings(chunk_rows=5)) == [ChunkRange(includes_null=True)]
        label = fill(connection, database, "ENUM('b','a')", ["a", "b"], key="PRIMARY KEY (k)")
        assert plan(server, label, ChunkSettings(chunk_rows=1)) == [ChunkRange(includes_null=True)]


def test_a_key_that_cannot_be_one_is_a_config_error(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        table = fill(connection, database, "ENUM('b','a')", ["a", "b"])
        text = fill(connection, database, "VARCHAR(9)", [str(n) for n in range(50)], key="PRIMARY KEY (k)")
    with pytest.raises(ConfigError, match="enum"):
        plan(server, table, ChunkSettings(key="k"))
    with pytest.raises(ConfigError, match="no column 'nope'"):
        plan(server, table, ChunkSettings(key="nope"))
    with pytest.raises(ConfigError, match="integer chunk key"):
        plan(server, text, ChunkSettings(strategy=MySqlChunkStrategy.EVEN, chunk_rows=2))


def test_state_stays_small_and_a_failed_query_consumes_nothing(mariadb: MariaDbServer, mariadb_database: str) -> None:
    with session(mariadb, "root") as connection:
        table = fill(connection, mariadb_database, "INT NOT NULL", list(range(0, 100_000, 7)), key="PRIMARY KEY (k)")
        planner = ChunkPlanner(partial(connect, settings_of(mariadb)), table, ChunkSettings(chunk_rows=10))
        chunks = planner.next_chunks(500)
        assert len(json.dumps(planner.plan.to_json())) < 1000
        before = planner.plan.to_json()
        query(connection, f"RENAME TABLE `{mariadb_database}`.t TO `{mariadb_database}`.gone")
        with pytest.raises(SourceError):
            planner.next_chunks(2)
        assert planner.plan.to_json() == before
        query(connection, f"RENAME TABLE `{mariadb_database}`.gone TO `{mariadb_database}`.t")
        assert planner.next_chunks(1)[0].lower == chunks[-1].upper


SPREAD: dict[str, list[Any]] = {
    "BIGINT UNSIGNED NOT NULL": [(1 << 64) - 1 - n * n * 5_000_011 for n in range(1500)] + list(range(500)),
    "BIGINT NOT NULL": [(n // 500) * (1 << 60) - (1 << 62) + n % 500 for n in range(2000)],
    "DECIMAL(38,4) NOT NULL": [f"{n - 1000}{n * 7919 % 1_000_000_007:025}.{n % 10_000:04}" for n in range(2000)],
    "DOUBLE NOT NULL": [(-1) ** n * 1.1 ** (n % 1500) for n in range(2000)],
    "DATETIME(3) NOT NULL": [f"{1000 + n}-02-0{1 + n % 9} 11:22:33.{n % 1000:03}" for n in range(2000)],
    "DATE NOT NULL": [f"{1000 + n}-02-0{1 + n % 9}" for n in range(2000)],
    "TIME(6) NOT NULL": [f"{n % 1600 - 800}:{n % 60:02}:{n % 59:02}.{n:06}" for n in range(2000)],
    "VARBINARY(40) NOT NULL": [b"common prefix" + (n * n).to_bytes(5) for n in range(2000)],
    "VARCHAR(40) COLLATE utf8mb4_general_ci NOT NULL": [
        f"{'aAbBzZéÄ日'[n % 9]}-{n * 7919 % 10_007}" for n in range(2000)
    ],
}


@pytest.mark.parametrize("column_type", SPREAD)
@pytest.mark.parametrize("flavor", ["mariadb", "mysql80"])
def test_estimates_cut_keys_of_every_type_into_chunks_of_about_the_size(
    request: pytest.FixtureRequest, flavor: str, column_type: str
) -> None:
    server: DatabaseServer = request.getfixturevalue(flavor)
    with server.fresh_database() as database, session(server, "root") as connection:
        table = fill(connection, database, column_type, SPREAD[column_type])
        query(connection, f"ANALYZE TABLE `{database}`.t")
        chunks = plan(server, table, ChunkSettings(MySqlChunkStrategy.SAMPLED, 100, key="k"), step=12)
        assert times_covered(connection, table, chunks) == {1}
        sizes = [
            query(connection, f"SELECT COUNT(*) FROM `{database}`.t WHERE {chunk.condition(table)}")[0][0]
            for chunk in chunks
        ]
        assert max(sizes) <= 300
        assert len(chunks) <= 60


def test_a_composite_key_is_cut_by_its_column_with_many_values(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        name = f"`{database}`.t"
        query(connection, f"CREATE TABLE {name} (a INT, b INT, c INT, PRIMARY KEY (a, b), KEY (b))")
        values = ", ".join(f"({n % 3}, {n}, 0)" for n in range(3000))
        query(connection, f"INSERT INTO {name} VALUES {values}")
        query(connection, f"ANALYZE TABLE {name}")
        table = load_table(connection, TableId(database, "t"))
        assert best_key(connection, table, None, chunk_rows=100) == "b"
        assert best_key(connection, table, None, chunk_rows=10_000) == "a"
        assert best_key(connection, table, "a", chunk_rows=100) == "a"


def test_a_key_without_an_index_is_refused_where_it_matters(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        table = fill(connection, database, "INT NOT NULL", list(range(50)), key="KEY (n)")
    assert len(plan(server, table, ChunkSettings(key="k"))) == 1
    with pytest.raises(ConfigError, match=r"no index of .* begins with k"):
        plan(server, table, ChunkSettings(key="k", chunk_rows=5))


def test_the_key_settled_at_the_start_counts_whatever_the_configuration_says_later(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    with session(mariadb, "root") as connection:
        table = fill(connection, mariadb_database, "INT NOT NULL", list(range(50)), key="PRIMARY KEY (k), KEY (n)")
    connector = partial(connect, settings_of(mariadb, "root"))
    begun = ChunkPlan.restored({"key": "k"}, table, rows=5)
    planner = ChunkPlanner(connector, table, ChunkSettings(chunk_rows=5, key="n"), begun)
    assert {chunk.key for chunk in planner.next_chunks(5)} == {"k"}
