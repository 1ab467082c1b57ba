"""Law: a filter lets the same rows through in the server's words, in our SQL, and for rows in Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raycdc.clients.mysql import connect, query
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem
from raycdc.connectors.mysql.log.log_filter import LogFilter
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.snapshot.chunk_reader import ChunkSelect
from raycdc.connectors.mysql.snapshot.planning.chunk_plan import ChunkRange
from raycdc.connectors.mysql.snapshot.resultset import stream_query
from raycdc.connectors.mysql.snapshot.row_filter import UncomparableTextError, parse_filter, server_answers
from raycdc.connectors.mysql.values.documents import Capture
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import ConfigError
from raycdc.model import RowKind, TableId
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from tests.support.sessions import session, settings_of

pytestmark = pytest.mark.server

COLUMNS = (
    "id INT PRIMARY KEY, n INT, u BIGINT UNSIGNED, d DECIMAL(10,2), x DOUBLE, f FLOAT, y YEAR, "
    "s VARCHAR(20) COLLATE utf8mb4_general_ci, b VARBINARY(8), m DATETIME(3), a DATE, t TIME(2), e ENUM('new','Old')"
)
ROWS = [
    (
        "(1, 5, 18446744073709551615, 1.50, 0.5, 0.1, 2024, 'Straße', X'00FF', '2024-01-02 03:04:05.678', "
        "'2024-01-02', '-01:00:00.50', 'new')"
    ),
    (
        "(2, -7, 0, -3.25, -1e300, 2.5, 1999, 'strasse ', X'01', '1999-12-31 23:59:59.999', '0000-00-00', '838:59:59', "
        "'Old')"
    ),
    "(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "(4, 0, 7, 0, 0, 0, 1901, '', '', '1000-01-01', '2023-12-31', '00:00:00', 'old')",
    (
        "(5, 100, 9223372036854775808, 12345678.90, 0.1, 0.5, 2155, 'It''s 50%', X'FF', '2024-01-02', '9999-12-31', "
        "'10:11:12.13', 'NEW')"
    ),
]
FILTERS = [
    "n > 0",
    "n <> 5",
    "NOT n = 5",
    "n IS NULL OR n < 0",
    "n NOT IN (5, -7)",
    "n BETWEEN -7 AND 5 AND NOT (id = 1)",
    "u >= 9223372036854775808",
    "u = 18446744073709551615 or u < 7",
    "d <= -3.25",
    "d != 1.5",
    "x < 0.5",
    "f = 0.1",
    "f = 0.5",
    "y >= 2024",
    "s = 'STRASSE'",
    "s <> 'strasse'",
    "s > 'a' AND s < 'z'",
    "s IN ('', 'it''s 50%')",
    "s LIKE 'str%'",
    "s NOT LIKE '%'",
    "b = X'01'",
    "b > X''",
    "m >= '2024-01-02'",
    "m = '2024-01-02 03:04:05.678'",
    "a < '2024-01-02'",
    "a <> '2024-01-02'",
    "t < '00:00:00'",
    "t >= '838:59:59'",
    "e = 'new'",
    "e IN ('old')",
    "`n` IS NOT NULL AND (s = 'x' OR d > 0)",
]
#: Where the server takes a date that no calendar has for a value, we take it for NULL, in both phases.
BEYOND_CALENDARS = {"a < '2024-01-02'", "a <> '2024-01-02'"}


def fill(connection: Any, database: str) -> MySqlTable:
    query(connection, f"CREATE TABLE `{database}`.t ({COLUMNS})")
    query(connection, f"INSERT INTO `{database}`.t VALUES {', '.join(ROWS)}")
    return load_table(connection, TableId(database, "t"))


def ids(connection: Any, database: str, condition: str) -> set[int]:
    return {row[0] for row in query(connection, f"SELECT id FROM `{database}`.t WHERE {condition}")}


def test_the_same_rows_pass_everywhere(any_server: DatabaseServer, any_database: str) -> None:
    with session(any_server, "root") as connection:
        table = fill(connection, any_database)
        (batch,) = stream_query(connection, ChunkSelect(table, ChunkRange(includes_null=True)).sql(), table)
        ask = server_answers(connection)
        for text in FILTERS:
            parsed = parse_filter(table, text)
            mask = parsed.mask(batch, ask)
            passed = set(batch.column("id").filter(mask).to_pylist())
            assert ids(connection, any_database, parsed.sql()) == passed, text
            if text in BEYOND_CALENDARS:
                assert ids(connection, any_database, text) == passed | {2}
            else:
                assert ids(connection, any_database, text) == passed, text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nope = 1", "there is no column 'nope'"),
        ("n = 1.5", "no exact value of n"),
        ("d = 1.234", "no exact value of d"),
        ("m = '2024-01-02 03:04:05.6789'", "no exact value of m"),
        ("a = '2024-01-02 10:00:00'", "no exact value of a"),
        ("y = 24", "years have four digits"),
        ("s = 5", "no exact value of s"),
        ("s = 'a\\\\b'", "backslash"),
        ("n LIKE '5'", "LIKE is for text"),
        ("n = 1 AND", "it ends where a column is expected"),
        ("n + 1 = 2", r"'\+ 1 = 2' is not understood|'\+' is no operator|is no operator"),
        ("UPPER(s) = 'A'", "there is no column 'UPPER'"),
        ("1 = 1; DROP TABLE t", "is not understood"),
        ("(n = 1", r"\) is missing"),
        ("n = id", "no exact value of n"),
    ],
)
def test_what_is_not_understood_is_refused(mariadb: MariaDbServer, text: str, reason: str) -> None:
    with mariadb.fresh_database() as database, session(mariadb, "root") as connection:
        table = fill(connection, database)
        with pytest.raises(ConfigError, match=reason):
            parse_filter(table, text)


def test_changes_that_cross_the_filter_become_inserts_and_deletes(mariadb: MariaDbServer) -> None:
    with mariadb.fresh_database() as database, session(mariadb, "root") as connection:
        table = fill(connection, database)
        kinds = [
            (RowKind.INSERT, "new"),
            (RowKind.INSERT, "Old"),
            (RowKind.UPDATE_BEFORE, "new"),
            (RowKind.UPDATE_AFTER, "Old"),
            (RowKind.UPDATE_BEFORE, "Old"),
            (RowKind.UPDATE_AFTER, "new"),
            (RowKind.UPDATE_BEFORE, "new"),
            (RowKind.UPDATE_AFTER, "new"),
            (RowKind.UPDATE_BEFORE, "Old"),
            (RowKind.UPDATE_AFTER, None),
            (RowKind.DELETE, "new"),
            (RowKind.DELETE, None),
        ]
        batch = pa.RecordBatch.from_pydict(
            {"e": [label for _, label in kinds], "_op": pa.array([int(kind) for kind, _ in kinds], pa.int8())}
        )
        row_filter = LogFilter(lambda: connect(settings_of(mariadb)), {table.id: Capture("e = 'new'")}, lambda _: table)
        item = BinlogRowsItem(table.id, batch, np.arange(len(kinds)), len(kinds), "binlog.000001", table)
        left = row_filter.captured(item)
        assert left is not None
        assert left.batch.column("_op").to_pylist() == [
            RowKind.INSERT,
            RowKind.DELETE,
            RowKind.INSERT,
            RowKind.UPDATE_BEFORE,
            RowKind.UPDATE_AFTER,
            RowKind.DELETE,
        ]
        assert left.row_pos.tolist() == [0, 2, 5, 6, 7, 10]
        one = BinlogRowsItem(table.id, batch.slice(1, 1), np.arange(1), 1, "binlog.000001", table)
        assert row_filter.captured(one) is None
        row_filter.close()


def test_a_text_that_is_larger_than_a_packet_as_a_literal_is_compared_in_pieces(mariadb: MariaDbServer) -> None:
    """As hexadecimal digits a text is twice as long; the server has it in a row, and is asked about it for the log."""
    with mariadb.fresh_database() as database, session(mariadb, "root") as connection:
        ((packet,),) = query(connection, "SELECT @@max_allowed_packet")
        query(connection, f"CREATE TABLE `{database}`.l (id INT PRIMARY KEY, s LONGTEXT)")
        table = load_table(connection, TableId(database, "l"))
        size = int(packet) * 9 // 16
        texts = ["b" * size, "B" * size + "c", "ä" * 150_000, "b", None, *map(str, range(1200))]
        batch = pa.RecordBatch.from_pydict({"id": list(range(len(texts))), "s": texts})
        ask = server_answers(connection)
        passed = batch.column("id").filter(parse_filter(table, "s > 'b'").mask(batch, ask))
        assert passed.to_pylist() == [0, 1]
        too_long = pa.RecordBatch.from_pydict({"s": ["b" * (int(packet) + 1)]})
        with pytest.raises(UncomparableTextError, match=r"cannot compare a text of \d+ bytes there\. Raise max_allow"):
            parse_filter(table, "s = 'b'").mask(too_long, ask)
