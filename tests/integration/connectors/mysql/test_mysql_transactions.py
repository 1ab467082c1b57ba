"""Transactions that take rows back, on real servers: what the log's reader gives is what was committed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from raycdc.clients.mysql import connect, query
from raycdc.connectors.mysql.binlog import whole_transactions as whole_log
from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.session import dialect_of
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.tables.table_decoding import BatchForm
from raycdc.connectors.mysql.binlog.transaction_statements import may_be_same_name
from raycdc.connectors.mysql.binlog.whole_transactions import BinlogTransactionAssembler, WholeLog
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.ddl.follow.history import DdlHistory
from raycdc.connectors.mysql.ddl.follow.log_server import LogServer
from raycdc.connectors.mysql.log import log_reader
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.server.client import current_position, probe
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import LogLostError, PartialRowsError
from raycdc.model import RowKind, TableId
from raycdc.model.rules.selector import TableSelector
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from raycdc.source.snapshot.log.log_unit import in_transaction, rows_of
from tests.integration.connectors.mysql.random_transactions import TABLES, Transactions, set_up
from tests.support.sessions import session, settings_of

pytestmark = pytest.mark.server

#: Seeds of `make test`; more of them with RAYCDC_TRANSACTION_SEEDS, a number or ``first-last``.
_SEEDS = (1, 2)


def seeds() -> tuple[int, ...]:
    first, _, last = os.environ.get("RAYCDC_TRANSACTION_SEEDS", "").partition("-")
    if not first:
        return _SEEDS
    return tuple(range(int(first), int(last) + 1)) if last else tuple(range(1, int(first) + 1))


def changes(server: DatabaseServer, tables: list[MySqlTable], start: BinlogOffset, end: BinlogOffset) -> list[Any]:
    """All rows of `tables` between the positions, in the log's order."""
    with session(server, "root") as connection:
        info = probe(connection)
    known = {table.id: table for table in tables}
    selector = TableSelector(tuple(str(table.id) for table in tables))
    history = DdlHistory(known, selector=selector, server=LogServer(dialect_of(info), ("utf8mb4", "")))
    decoder = BinlogDecoder(
        MapSchemas(known), wanted=history.captures, start=start, log=LogKind(mariadb=isinstance(server, MariaDbServer)),
        on_ddl=history.on_ddl, form=BatchForm(with_pos=True),
    )  # fmt: skip
    history.attach(decoder)
    reader = log_reader.MySqlLogReader(
        log=WholeLog(
            lambda at: BinlogStream(
                connect(settings_of(server)),
                server_id=8077,
                offset=at,
                heartbeat_s=1,
                connect_again=lambda: connect(settings_of(server)),
            ),
            start,
            decoder.cursor,
            bytes_max=log_reader.READ_BYTES_MAX,
        ),
        history=history,
        decoder=decoder,
        start=start,
    )
    rows: list[Any] = []
    try:
        place = start
        while place < end:
            unit = reader.fetch()
            if unit is None:
                continue
            for part in rows_of(unit):
                rows += [(row["_seq"], part.table, row) for row in part.batch.to_pylist()]
            if not in_transaction(unit):
                place = BinlogOffset.of(unit.log_position.position)
    finally:
        reader.close()
    return [(table, row) for _, table, row in sorted(rows, key=lambda one: one[0])]


def replayed(rows: list[tuple[TableId, Any]], before: dict[str, dict[int, str]]) -> dict[str, dict[int, str]]:
    """The tables behind the changes; each image before a change must be the row as it was."""
    now = {name: dict(content) for name, content in before.items()}
    for table, row in rows:
        content = now[table.table]
        match RowKind(row["_op"]):
            case RowKind.INSERT | RowKind.UPDATE_AFTER:
                assert row["id"] not in content, row
                content[row["id"]] = row["mark"]
            case _:
                assert content.pop(row["id"]) == row["mark"], row
    return now


def content_of(server: DatabaseServer, database: str) -> dict[str, dict[int, str]]:
    return {name: dict(server.execute(f"SELECT id, mark FROM {database}.{name}")) for name in TABLES}


def check_transactions(server: DatabaseServer, seed: int, *, count: int = 60, xa: bool = True) -> None:
    with server.fresh_database() as database, session(server, "root") as connection:
        set_up(connection, database)
        tables = [load_table(connection, TableId(database, name)) for name in TABLES]
        start, before = current_position(connection, probe(connection)), content_of(server, database)
        played = Transactions(connection, database, seed, xa=xa)
        played.play(count)
        rows = changes(server, tables, start, current_position(connection, probe(connection)))
        marks = {
            name: Counter(
                row["mark"]
                for table, row in rows
                if table.table == name and row["_op"] in (RowKind.INSERT, RowKind.UPDATE_AFTER)
            )
            for name in TABLES
        }
        story = "\n".join(played.story)
        assert marks == {name: Counter(played.marks[name]) for name in TABLES}, story
        assert replayed(rows, before) == content_of(server, database), story


@pytest.mark.parametrize("seed", seeds())
def test_random_transactions_leave_what_was_committed(
    any_server: DatabaseServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every second seed also where transactions are too large to be held, and their events come in small parts."""
    if seed % 2 == 0:
        monkeypatch.setattr(
            whole_log, "BinlogTransactionAssembler", partial(BinlogTransactionAssembler, held_bytes_max=500)
        )
        monkeypatch.setattr(log_reader, "READ_BYTES_MAX", 300)
    check_transactions(any_server, seed)


#: A savepoint, what it is rolled back by, and the session: names that the server takes for one, and writes in UTF-8 and
#: in the quotes of the session.
SAVEPOINTS = (
    (b"`a b`", b"`A B`", ""),
    ("é".encode(), b"e", "SET NAMES utf8mb4"),
    ("ß".encode(), b"S", "SET NAMES utf8mb4"),
    (b"\xe9", b"\xe9", "SET NAMES latin1"),
    (b"`\x82\xa0`", b"`\x82\xa0`", "SET NAMES cp932"),
    (b'"a\\"', b'"a\\"', "SET SESSION sql_mode = 'ANSI_QUOTES'"),
    (b'"a\\""b"', b'"a\\""b"', "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"),
    (b"e1", b"e1", "SET SESSION sql_quote_show_create = 0"),
)


def test_savepoints_are_known_by_the_names_that_the_server_gives_them(mariadb: MariaDbServer) -> None:
    """Beside a table that is not transactional, so that the server writes what it rolls back."""
    server = mariadb
    for savepoint, back, session_is in SAVEPOINTS:
        with (
            server.fresh_database() as database,
            session(server, "root") as connection,
            closing(server.connect(database=database)) as other,
        ):
            set_up(connection, database)
            tables = [load_table(connection, TableId(database, name)) for name in TABLES]
            start, before = current_position(connection, probe(connection)), content_of(server, database)
            with other.cursor() as cursor:
                for statement in (
                    *([session_is] if session_is else []),
                    "BEGIN",
                    "INSERT INTO t (id, mark) VALUES (11, 'stays')",
                    b"SAVEPOINT " + savepoint,
                    "UPDATE t SET mark = 'never was' WHERE id IN (1, 11)",
                    b"ROLLBACK TO " + back,
                    "INSERT INTO t (id, mark) VALUES (12, 'stays')",
                    "COMMIT",
                ):
                    cursor.execute(statement)
            rows = changes(server, tables, start, current_position(connection, probe(connection)))
            assert replayed(rows, before) == content_of(server, database), savepoint
            assert sum(table.table == "t" for table, _ in rows) == 2, savepoint


def test_a_savepoint_of_a_trigger_is_not_taken_for_that_of_the_transaction(mariadb: MariaDbServer) -> None:
    """It has a level of its own, of which the log says nothing for sure: the tables are told, and no row is wrong."""
    with mariadb.fresh_database() as database, session(mariadb, "root") as connection:
        set_up(connection, database)
        mariadb.execute(
            "CREATE TABLE x (id INT PRIMARY KEY)",
            "CREATE TRIGGER sets_one AFTER INSERT ON m FOR EACH ROW "
            "BEGIN SAVEPOINT a; INSERT INTO x VALUES (NEW.id); END",
            database=database,
        )
        tables = [load_table(connection, TableId(database, name)) for name in TABLES]
        start = current_position(connection, probe(connection))
        mariadb.execute(
            "BEGIN",
            "INSERT INTO t (id, mark) VALUES (10, 'stays')",
            "SAVEPOINT a",
            "INSERT INTO t (id, mark) VALUES (11, 'never was')",
            "INSERT INTO m (id, mark) VALUES (11, 'stays')",
            "ROLLBACK TO a",
            "COMMIT",
            database=database,
        )
        with pytest.raises(PartialRowsError, match=r"\.t it has in the end.* 2 savepoints that this may mean"):
            changes(mariadb, tables, start, current_position(connection, probe(connection)))


def test_a_server_takes_no_names_of_savepoints_for_one_that_cannot_be(any_server: DatabaseServer) -> None:
    """By the collation of its identifiers (``find_savepoint``), for each character that a name may have."""
    characters = [chr(code) for code in range(0x20, 0x10000) if not 0xD800 <= code < 0xE000]
    letters: dict[bytes, str] = {}
    with session(any_server, "root") as connection:
        for at in range(0, len(characters), 2000):
            part = characters[at : at + 2000]
            asked = (
                f"WEIGHT_STRING(CONVERT(_utf16 X'{ord(each):04x}' USING utf8mb3) COLLATE utf8mb3_general_ci)"
                for each in part
            )
            for each, weight in zip(part, query(connection, f"SELECT {', '.join(asked)}")[0], strict=True):
                assert may_be_same_name(letters.setdefault(weight, each), each)


@contextmanager
def compressing(server: DatabaseServer) -> Iterator[None]:
    """MariaDB compresses statements and row events from 10 bytes on, MySQL whole transactions."""
    if isinstance(server, MariaDbServer):
        on = {"log_bin_compress": "ON", "log_bin_compress_min_len": "10"}
        off = {"log_bin_compress": "OFF", "log_bin_compress_min_len": "256"}
    else:
        on, off = {"binlog_transaction_compression": "ON"}, {"binlog_transaction_compression": "OFF"}
    server.execute(*(f"SET GLOBAL {name} = {value}" for name, value in on.items()))
    try:
        yield
    finally:
        server.execute(*(f"SET GLOBAL {name} = {value}" for name, value in off.items()))


@pytest.mark.parametrize("kind", ["mariadb", "mysql_newest"])
def test_compressed_transactions_leave_what_was_committed(request: pytest.FixtureRequest, kind: str) -> None:
    """MySQL compresses no transaction with a savepoint: it counts as logged by statements."""
    server = request.getfixturevalue(kind)
    for seed in seeds():
        with compressing(server):
            check_transactions(server, seed)


@pytest.mark.parametrize("seed", seeds())
def test_random_transactions_of_mysql57_leave_what_was_committed(mysql57: MySqlServer, seed: int) -> None:
    check_transactions(mysql57, seed)


def event_starts(log: bytes) -> list[int]:
    """Where the events of a file begin."""
    starts, at = [], 4
    while at + 19 <= len(log):
        starts.append(at)
        at += int.from_bytes(log[at + 9 : at + 13], "little")
    return starts


def crash(server: MariaDbServer, database: str, *, row: int, cut: int) -> BinlogOffset:
    """The server dies while it writes the transaction of a row, of which only the beginning is in the log.

    `cut`: so many bytes of the row event are. Returns the place before the transaction.
    """
    with session(server, "root") as connection:
        place = current_position(connection, probe(connection))
    server.execute(f"INSERT INTO {database}.t (id, mark) VALUES ({row}, 'never was')")
    path = server.binlog_paths()[-1]
    server.kill()
    log = path.read_bytes()
    [row_event] = [at for at in event_starts(log) if at > place.pos and log[at + 4] in (23, 30)]
    path.write_bytes(log[: row_event + cut])
    server.start()
    # With sync_binlog = 0 a server keeps what it had committed; here it is as if it had not.
    server.execute(f"SET SESSION sql_log_bin = 0; DELETE FROM {database}.t WHERE id = {row}")
    return place


def test_a_log_goes_on_behind_a_transaction_and_an_event_that_the_server_died_in() -> None:
    with MariaDbServer() as server, server.fresh_database() as database:
        with session(server, "root") as connection:
            set_up(connection, database)
            tables = [load_table(connection, TableId(database, name)) for name in TABLES]
            begin = current_position(connection, probe(connection))
        before = content_of(server, database)
        places = []
        for number, cut in enumerate((0, 10)):
            server.execute(f"INSERT INTO {database}.t (id, mark) VALUES ({100 + number}, 'is')")
            places.append(crash(server, database, row=200 + number, cut=cut))
        server.execute(f"INSERT INTO {database}.t (id, mark) VALUES (300, 'is')")
        with session(server, "root") as connection:
            end = current_position(connection, probe(connection))

        found = [[row["id"] for _, row in changes(server, tables, start, end)] for start in (begin, *places)]

        assert found == [[100, 101, 300], [101, 300], [300]]
        assert replayed(changes(server, tables, begin, end), before) == content_of(server, database)


def seemingly_torn(log: bytes) -> int:
    """A place inside an event where an event seems to begin that ends behind the file."""
    starts = set(event_starts(log))
    lengths = {at: int.from_bytes(log[at + 9 : at + 13], "little") for at in range(300, len(log) - 19)}
    return next(at for at, length in lengths.items() if at not in starts and len(log) - at < length < 1 << 20)


def test_a_place_inside_an_event_is_not_taken_for_one_that_the_server_died_in() -> None:
    with MariaDbServer() as server, server.fresh_database() as database:
        with session(server, "root") as connection:
            set_up(connection, database)
            tables = [load_table(connection, TableId(database, name)) for name in TABLES]
            place = current_position(connection, probe(connection))
        server.execute(f"INSERT INTO {database}.t (id, mark) VALUES (100, 'is')")
        path = server.binlog_paths()[-1]
        server.kill()
        server.start()
        with session(server, "root") as connection:
            end = current_position(connection, probe(connection))
        inside = replace(place, pos=seemingly_torn(path.read_bytes()))

        with pytest.raises(LogLostError, match="is not the end of an event"):
            changes(server, tables, inside, end)
