"""Statements that do not say what a table becomes: the server is asked, and believed where its log proves it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.session import dialect_of
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.ddl.follow.history import DdlHistory
from raycdc.connectors.mysql.ddl.follow.log_server import LogServer, ServerResolver
from raycdc.connectors.mysql.log.startup import statements_between
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.server.client import current_position, probe
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError
from raycdc.model import TableId
from raycdc.model.rules.selector import TableSelector
from raycdc.sandbox.servers import DatabaseServer
from raycdc.source.snapshot.log.log_unit import ParkTableUpdate

pytestmark = pytest.mark.server

CREATED = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT CHARACTER SET latin1) CHARACTER SET latin1"
#: Servers do not agree how large the text is afterwards.
ASKED = "ALTER TABLE t MODIFY b TEXT, CONVERT TO CHARACTER SET utf8mb4"


class Decoder:
    """As much of a decoder as a history needs: the tables it is told to check against the log from here on."""

    def __init__(self) -> None:
        self.checked: list[MySqlTable] = []

    def set_table(self, table: MySqlTable) -> None:
        self.checked.append(table)

    def remove_table(self, table: TableId) -> None: ...

    def take_seq(self) -> int:
        return 0


class Followed:
    """A table, and what is done to it from a place of the log on."""

    def __init__(self, server: DatabaseServer, database: str) -> None:
        self.server, self.database = server, database
        self.id = TableId(database, "t")
        server.execute(CREATED, database=database)
        with closing(self.connect()) as connection:
            self.info = probe(connection)
            self.start = current_position(connection, self.info)
            self.table = load_table(connection, self.id)

    def connect(self) -> Any:
        return self.server.connect()

    def open(self, place: BinlogOffset) -> BinlogStream:
        return BinlogStream(self.connect(), server_id=7301, offset=place, heartbeat_s=5.0)

    def begin_here(self) -> None:
        with closing(self.connect()) as connection:
            self.start = current_position(connection, self.info)

    def run(self, *statements: str) -> list[DdlItem]:
        """The statements of the log, after they were run."""
        self.server.execute(*statements, database=self.database)
        with closing(self.connect()) as connection:
            end = current_position(connection, self.info)
        return [i for i in statements_between(self.info, self.start, end, self.open) if i.db == self.database]

    def follow(self, items: list[DdlItem]) -> list[str]:
        """The changes that come of the statements; afterwards the table is what the server says it is."""
        history = DdlHistory(
            {self.id: self.table},
            selector=TableSelector((str(self.id),)),
            server=LogServer(
                dialect_of(self.info),
                ("utf8mb4", ""),
                resolve=ServerResolver(self.connect, self.info, self.open),
            ),
        )
        decoder = Decoder()
        history.attach(decoder)
        for item in items:
            history.on_ddl(item)
        with closing(self.connect()) as connection:
            assert decoder.checked[-1] == load_table(connection, self.id)
        return [
            change.type
            for update in history.take_updates()[0]
            if not isinstance(update, ParkTableUpdate)
            for change in update.changes
        ]


@pytest.fixture(params=["mariadb", "mysql80"])
def followed(request: pytest.FixtureRequest) -> Iterator[Followed]:
    server: DatabaseServer = request.getfixturevalue(request.param)
    with server.fresh_database("asked") as database:
        yield Followed(server, database)


def test_what_the_statement_leaves_to_the_server_is_asked_of_it(followed: Followed) -> None:
    larger = [] if followed.info.is_mariadb else ["alter_column_type"]
    assert followed.follow(followed.run(ASKED, "INSERT INTO t VALUES (1, 2, 'x')")) == larger


def test_a_later_change_of_the_table_makes_the_answer_worthless(followed: Followed) -> None:
    items = followed.run(ASKED, "ALTER TABLE t MODIFY a BIGINT")
    with pytest.raises(SchemaError, match=r"(?s)has changed again since .*MODIFY a BIGINT.*CONVERT TO"):
        followed.follow(items)


def test_a_table_that_is_gone_says_nothing(followed: Followed) -> None:
    items = followed.run(ASKED, "DROP TABLE t")
    with pytest.raises(SchemaError, match="the server cannot describe"):
        followed.follow(items)


def test_a_shadow_made_before_the_start_is_looked_up(followed: Followed) -> None:
    followed.run("CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho ADD COLUMN c INT NOT NULL DEFAULT 5")
    followed.begin_here()
    items = followed.run("RENAME TABLE t TO _t_del, _t_gho TO t", "DROP TABLE _t_del")
    assert followed.follow(items) == ["add_column"]


def test_a_column_that_may_have_been_renamed_is_not_guessed(followed: Followed) -> None:
    followed.run("CREATE TABLE _t_new LIKE t", "ALTER TABLE _t_new CHANGE a c INT")
    followed.begin_here()
    items = followed.run("RENAME TABLE t TO _t_old, _t_new TO t")
    with pytest.raises(SchemaError, match="whether a became c or was dropped is unknown"):
        followed.follow(items)
