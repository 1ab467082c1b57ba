"""Random statements of several sessions at a MySQL or MariaDB server, the same for the same seed.

The sessions take turns in one thread, so that the statements of a seed come in one order. They are written without
much thought of whether the server takes them: one that is refused is noted with its error, and the next one follows.
What a statement means is the server's part alone; `Workload` knows only which tables may be parked because of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pymysql

from raycdc.sandbox.servers import DatabaseServer
from tests.fuzz.servers.values import Column, literal

#: Sessions that are open at a time.
SESSIONS = 4
#: Keys of rows, which sessions share out by the remainder: they seldom wait for each other's locks.
KEYS = 240
ROWS_AT_FIRST = 160
#: An answer of the server that takes longer does not come.
ANSWER_S = 30
#: XA transactions that wait for somebody to end them; they hold locks.
PREPARED_MAX = 2
TABLES_MAX = 14

_COMMENTS = (
    "#nightly job\n",
    "# a;b 'c\n#and more\n",
    "-- over\n--\n",
    "/* app:web */ ",
    "/*** ***/ /**/ ",
    "/* it's ; */\n#x\n",
)

_SETUP = (
    (
        "CREATE TABLE t_int (id INT AUTO_INCREMENT PRIMARY KEY, a INT, b VARCHAR(40), c DECIMAL(10,3), d DATETIME(3), "
        "e ENUM('none', 'low', 'high'), f FLOAT, g INT AS (a * 2) STORED)"
    ),
    (
        "CREATE TABLE t_str (k VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, id INT, "
        "v BIGINT UNSIGNED, s SET('x', 'y', 'z'), y YEAR)"
    ),
    "CREATE TABLE t_two (id INT, q CHAR(8) NOT NULL, v TEXT, m TIMESTAMP NULL, w DOUBLE, PRIMARY KEY (id, q))",
    (
        "CREATE TABLE t_part (id INT PRIMARY KEY, a INT, b VARCHAR(20) CHARACTER SET latin1) PARTITION BY RANGE (id) "
        "(PARTITION p0 VALUES LESS THAN (60), PARTITION p1 VALUES LESS THAN (120), "
        "PARTITION p2 VALUES LESS THAN MAXVALUE)"
    ),
    (
        "CREATE TABLE t_wide (id BIGINT PRIMARY KEY, bl BLOB, bi BIT(9), da DATE, ti TIME(2), bo BOOLEAN, j JSON, "
        "nn INT NOT NULL DEFAULT 7)"
    ),
    "CREATE TABLE t_parent (id INT PRIMARY KEY, v VARCHAR(10))",
    "CREATE TABLE t_child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES t_parent (id))",
    "CREATE TABLE t_plain (id INT PRIMARY KEY, a INT, b VARCHAR(40)) ENGINE = MyISAM",
    "CREATE TABLE t_audit (id INT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(60)) ENGINE = MyISAM",
    "CREATE TABLE {other}.u (id INT PRIMARY KEY, a INT, b VARCHAR(40))",
    "CREATE TABLE {other}.w (id INT PRIMARY KEY, a INT) ENGINE = MyISAM",
    "CREATE VIEW v_int AS SELECT id, a, b FROM t_int",
    "CREATE TRIGGER t_int_audit AFTER INSERT ON t_int FOR EACH ROW INSERT INTO t_audit (what) VALUES (NEW.b)",
    (
        "CREATE TRIGGER t_two_audit AFTER UPDATE ON t_two FOR EACH ROW "
        "INSERT INTO t_audit (what) VALUES (CONCAT(OLD.id, ' to ', NEW.id))"
    ),
    (
        "CREATE PROCEDURE shift (IN n INT) BEGIN START TRANSACTION; UPDATE t_int SET a = a + n WHERE id < 20; "
        "SAVEPOINT s; DELETE FROM t_part WHERE id = n; ROLLBACK TO s; INSERT INTO t_audit (what) VALUES ('shift'); "
        "COMMIT; END"
    ),
)


@dataclass(slots=True)
class Session:
    """A connection and what it has open, as far as the statements to come depend on it."""

    number: int
    connection: Any
    row_format: str = "ROW"
    open: bool = False
    savepoints: list[str] = field(default_factory=list)
    #: Names that are temporary tables here.
    temporary: set[str] = field(default_factory=set)
    #: Those of them that were made before the job's first position: it cannot know them.
    unseen: set[str] = field(default_factory=set)
    xid: str = ""
    #: ACTIVE, IDLE or PREPARED while there is an `xid`.
    xa: str = ""


class Workload:
    """See the module's docstring. `step` gives one statement; used by one thread."""

    def __init__(self, server: DatabaseServer, database: str, seed: int, log: IO[str]) -> None:
        self._server = server
        self._database = database
        self._other = f"{database}_other"
        self._random = random.Random(seed)
        self._log = log
        self._sessions: list[Session] = []
        #: The connection that asks the catalog.
        self._admin: Any = None
        self._number = 0
        #: Key of the last row that `finish` wrote.
        self._last = 1_000_000
        self._prepared: list[str] = []
        #: MySQL 5.7 logs the rollback of an XA transaction whose session ended, and yet keeps its rows.
        self._detaches = getattr(server, "version", "") != "5.7"
        #: Tables that may be parked, each with the statements that may do it.
        self.foreseen: dict[str, list[str]] = {}
        #: Tables whose columns got other types: rows from before are printed otherwise than rows from behind it.
        self.retyped: set[str] = set()
        #: Whether the job has a state by now.
        self.job_began = False
        #: Tables to which the server did what it refused, so that the log does not have it.
        self.unlogged: set[str] = set()
        self._actions: list[tuple[int, Callable[[Session], None]]] = [
            (30, self._insert),
            (24, self._update),
            (12, self._delete),
            (3, self._update_key),
            (3, self._update_two),
            (14, self._begin),
            (12, self._commit),
            (9, self._roll_back),
            (10, self._savepoint),
            (8, self._roll_back_to),
            (2, self._release),
            (7, self._temporary),
            (5, self._xa),
            (3, self._load),
            (2, self._call),
            (3, self._through_view),
            (5, self._switch),
            (2, self._disconnect),
            (1, self._rotate),
            (6, self._alter),
            (2, self._partition),
            (2, self._create),
            (1, self._drop),
            (1, self._rename),
            (2, self._truncate),
            (2, self._nothing),
            (2, self._lock),
        ]

    # -- the life of a workload

    @property
    def other(self) -> str:
        """A database that is not captured."""
        return self._other

    def set_up(self) -> None:
        """Make the tables and their first rows."""
        self._server.execute(f"CREATE DATABASE `{self._other}` DEFAULT CHARACTER SET utf8mb4")
        session = self._session()
        for statement in _SETUP:
            self._give(session, statement.replace("{other}", f"`{self._other}`"))
        for table in ("t_int", "t_str", "t_two", "t_part", "t_wide", "t_parent", "t_plain"):
            for _ in range(ROWS_AT_FIRST // 8):
                self._give(session, self._insert_text(session, table, rows=8, verb="INSERT IGNORE"))

    def step(self) -> None:
        """Give one statement in a session by chance."""
        session = self._session()
        action = self._random.choices([each for _, each in self._actions], [weight for weight, _ in self._actions])[0]
        try:
            action(session)
        except pymysql.Error as error:
            # What is asked of the catalog meets the locks of the sessions, too.
            self._log.write(f"-- the catalog did not answer: {error}\n")
            self._close_admin()

    def finish(self) -> None:
        """End what is open, by chance: commit, roll back, or just disconnect."""
        for session in list(self._sessions):
            if session.xid:
                self._xa(session)
                if session in self._sessions:
                    self._xa(session)
            elif session.open:
                self._random.choice([self._commit, self._roll_back, self._disconnect])(session)
        for session in list(self._sessions):
            self._disconnect(session)
        admin = self._session()
        while self._prepared and self._random.random() < 0.8:
            verb = self._random.choice(["COMMIT", "ROLLBACK"])
            self._give(admin, f"XA {verb} '{self._prepared.pop()}'")
        # The newest line of a changelog has the columns that its table has now. A parent is not looked for.
        self._give(admin, "SET SESSION foreign_key_checks = 0")
        for table in self.tables():
            self._last += 1
            columns = [column for column in self._columns(table) if not column.generated]
            values = [self._new_value(each) for each in columns]
            names = ", ".join(f"`{column.name}`" for column in columns)
            self._give(admin, f"INSERT IGNORE INTO `{table}` ({names}) VALUES ({', '.join(values)})")
        self._disconnect(admin)

    def _new_value(self, column: Column) -> str:
        """A value of a row that is not there yet."""
        if column.name == "id":
            return str(self._last)
        return f"'{self._last}'" if column.key else literal(self._random, column)

    def give_up_prepared(self) -> None:
        """Roll back whatever XA transactions are left, so that nothing is locked."""
        for *_, data in self._server.execute("XA RECOVER"):
            name = data.decode() if isinstance(data, bytes) else str(data)
            if name.startswith(f"x{self._database}"):
                # The server may have rolled it back by itself (XA_RBROLLBACK).
                with suppress(pymysql.Error):
                    self._server.execute(f"XA ROLLBACK '{name}'")

    def prepared(self) -> set[str]:
        """The names of all XA transactions that are prepared."""
        names = (row[3] for row in self._server.execute("XA RECOVER"))
        return {name.decode() if isinstance(name, bytes) else str(name) for name in names}

    def lost_connections(self) -> None:
        """Forget all sessions: the server was started anew. Prepared XA transactions are still there."""
        for session in self._sessions:
            if session.xa == "PREPARED" and not self._detaches:
                self._xa(session)
            if session.xa == "PREPARED":
                self._prepared.append(session.xid)
            with suppress(pymysql.Error, OSError):
                session.connection.close()
        self._sessions.clear()
        self._close_admin()

    def tables(self) -> list[str]:
        """The captured tables that are there."""
        rows = self._ask(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = "
            f"'{self._database}' AND TABLE_NAME LIKE 't\\_%' AND TABLE_TYPE = 'BASE TABLE' ORDER BY TABLE_NAME"
        )
        return [str(name) for (name,) in rows]

    # -- rows

    def _insert(self, session: Session) -> None:
        table = self._target(session)
        verb = self._random.choice(["INSERT", "INSERT", "INSERT", "INSERT IGNORE", "REPLACE"])
        text = self._insert_text(session, table, rows=self._random.choice([1, 1, 1, 2, 5]), verb=verb)
        columns = [column for column in self._columns(table) if not column.generated and not column.key]
        if verb == "INSERT" and columns and self._random.random() < 0.3:
            column = self._random.choice(columns)
            text += f" ON DUPLICATE KEY UPDATE `{column.name}` = {literal(self._random, column)}"
        elif self._random.random() < 0.05:
            text = text.split(" VALUES ")[0] + f" SELECT * FROM {self._quoted(table)} LIMIT 3"
        self._give(session, text)

    def _insert_text(self, session: Session, table: str, *, rows: int, verb: str) -> str:
        columns = [column for column in self._columns(table) if not column.generated]
        names = ", ".join(f"`{column.name}`" for column in columns)
        values = ", ".join(
            "(" + ", ".join(self._value(session, column) for column in columns) + ")" for _ in range(rows)
        )
        return f"{verb} INTO {self._quoted(table)} ({names}) VALUES {values}"

    def _update(self, session: Session) -> None:
        table = self._target(session)
        columns = [column for column in self._columns(table) if not column.generated and not column.key]
        if not columns:
            return
        chosen = self._random.sample(columns, k=min(len(columns), self._random.choice([1, 1, 2])))
        assigned = ", ".join(f"`{column.name}` = {literal(self._random, column)}" for column in chosen)
        self._give(session, f"UPDATE {self._quoted(table)} SET {assigned} WHERE {self._where(session)}")

    def _delete(self, session: Session) -> None:
        self._give(session, f"DELETE FROM {self._quoted(self._target(session))} WHERE {self._where(session)}")

    def _update_key(self, session: Session) -> None:
        table = self._target(session)
        to = self._random.choice([f"id + {SESSIONS * self._random.randint(1, 9)}", str(self._key(session))])
        self._give(session, f"UPDATE {self._quoted(table)} SET id = {to} WHERE id = {self._key(session)}")

    def _update_two(self, session: Session) -> None:
        """Two tables in one statement, one of them without transactions."""
        if session.row_format != "ROW":
            return
        self._give(
            session,
            self._random.choice(
                [
                    (
                        f"UPDATE t_int i JOIN t_plain p ON i.id = p.id SET i.a = p.a + 1, p.b = 'two' WHERE "
                        f"p.id = {self._key(session)}"
                    ),
                    f"DELETE i, p FROM t_part i JOIN t_plain p ON i.id = p.id WHERE i.id = {self._key(session)}",
                    (
                        f"UPDATE t_part x JOIN t_int i ON i.id = x.id SET x.a = i.a, i.b = 'both' "
                        f"WHERE x.id = {self._key(session)}"
                    ),
                ]
            ),
        )

    def _through_view(self, session: Session) -> None:
        self._may_park(session, "t_int", "through a view")
        self._may_park(session, "t_audit", "by a trigger")
        if session.row_format == "ROW":
            self._give(session, f"INSERT INTO v_int (id, a, b) VALUES ({self._key(session)}, 1, 'view')")

    def _call(self, session: Session) -> None:
        if session.row_format == "ROW" and not session.xid:
            self._give(session, f"CALL shift({self._random.randint(1, 100)})")
            session.open = False
            session.savepoints.clear()

    def _load(self, session: Session) -> None:
        table = self._random.choice(["t_part", "t_plain", f"{self._other}.u"])
        if session.row_format != "ROW":
            if self._random.random() < 0.8:
                table = f"{self._other}.u"
            self._may_park(session, table, "LOAD DATA")
        self._number += 1
        file = Path(self._server.folder) / "tmp" / f"rows{self._number}.csv"
        lines = [f"{self._key(session)},{self._random.randint(-9, 9)},loaded" for _ in range(3)]
        file.write_text("\n".join(lines) + "\n")
        file.chmod(0o644)
        how = self._random.choice(["REPLACE", "IGNORE"])
        self._give(
            session,
            f"LOAD DATA INFILE '{file}' {how} INTO TABLE {self._quoted(table)} FIELDS TERMINATED BY ',' (id, a, b)",
        )

    def _nothing(self, session: Session) -> None:
        """Statements that reach the log, or might, and mean nothing to rows."""
        self._give(
            session,
            self._random.choice(
                [
                    f"ANALYZE TABLE {self._quoted(self._any())}",
                    f"CREATE OR REPLACE VIEW v_two AS SELECT * FROM {self._quoted(self._any())}",
                    "DROP TRIGGER IF EXISTS nowhere",
                    "CREATE DATABASE IF NOT EXISTS `" + self._other + "`",
                    "FLUSH STATUS",
                    f"DROP TABLE IF EXISTS `{self._other}`.nothing",
                    "DROP TEMPORARY TABLE IF EXISTS t_int_nowhere",
                    f"INSERT INTO `{self._other}`.w VALUES ({self._number + 1000}, 1)",
                ]
            ),
        )
        session.open = False if session.xid == "" else session.open

    # -- transactions

    def _begin(self, session: Session) -> None:
        if session.xid:
            return
        self._give(session, self._random.choice(["BEGIN", "START TRANSACTION", "SET autocommit = 0"]))
        session.open = True

    def _commit(self, session: Session) -> None:
        if not session.xid:
            self._give(session, "COMMIT")
            self._over(session)

    def _roll_back(self, session: Session) -> None:
        if not session.xid:
            self._give(session, "ROLLBACK")
            self._over(session)

    def _over(self, session: Session) -> None:
        session.open = False
        session.savepoints.clear()
        if self._random.random() < 0.5:
            self._give(session, "SET autocommit = 1")

    def _savepoint(self, session: Session) -> None:
        if not session.open:
            self._begin(session)
        name = self._random.choice(["a", "b", "`c d`", "sp_1"])
        if self._give(session, f"{self._comment()}SAVEPOINT {name}"):
            session.savepoints.append(name)

    def _roll_back_to(self, session: Session) -> None:
        if session.savepoints:
            name = self._random.choice(session.savepoints)
            self._give(session, f"ROLLBACK {self._random.choice(['TO', 'WORK TO SAVEPOINT', 'TO SAVEPOINT'])} {name}")

    def _release(self, session: Session) -> None:
        if session.savepoints:
            self._give(session, f"RELEASE SAVEPOINT {self._random.choice(session.savepoints)}")

    def _xa(self, session: Session) -> None:
        if not session.xid:
            if self._prepared and self._random.random() < 0.5:
                verb = self._random.choice(["COMMIT", "ROLLBACK"])
                if self._give(session, f"XA {verb} '{self._prepared[0]}'"):
                    self._prepared.pop(0)
                return
            if len(self._prepared) >= PREPARED_MAX:
                return
            self._give(session, "COMMIT")
            self._give(session, "SET autocommit = 1")
            self._number += 1
            session.savepoints.clear()
            session.open = False
            if self._give(session, f"XA START 'x{self._database}{self._number}'"):
                session.xid, session.xa = f"x{self._database}{self._number}", "ACTIVE"
            return
        match session.xa:
            case "ACTIVE":
                self._give(session, f"XA END '{session.xid}'")
                session.xa = "IDLE"
            case "IDLE":
                verb = self._random.choice(["PREPARE", "PREPARE", "COMMIT", "ROLLBACK"])
                end = " ONE PHASE" if verb == "COMMIT" else ""
                self._give(session, f"XA {verb} '{session.xid}'{end}")
                session.xid, session.xa = (session.xid, "PREPARED") if verb == "PREPARE" else ("", "")
            case _:
                if self._detaches and self._random.random() < 0.3:
                    self._disconnect(session)
                    return
                self._give(session, f"XA {self._random.choice(['COMMIT', 'ROLLBACK'])} '{session.xid}'")
                session.xid, session.xa = "", ""

    def _lock(self, session: Session) -> None:
        if not session.xid and not session.open:
            chosen = self._any()
            self._may_park(session, chosen, "rows logged as a statement")
            table = self._quoted(chosen)
            self._give(session, f"LOCK TABLES {table} WRITE")
            self._give(session, f"DELETE FROM {table} WHERE id = {self._key(session)}")
            self._give(session, "UNLOCK TABLES")

    # -- sessions

    def _switch(self, session: Session) -> None:
        """Change something of the session; how it logs rows only outside of transactions."""
        roll = self._random.random()
        if roll < 0.4:
            wanted = self._random.choice(["ROW", "ROW", "MIXED", "STATEMENT"])
            if self._give(session, f"SET SESSION binlog_format = '{wanted}'"):
                session.row_format = wanted
            # InnoDB takes no statements for the log otherwise.
            level = "READ COMMITTED" if session.row_format == "ROW" else "REPEATABLE READ"
            self._give(session, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            return
        self._give(
            session,
            self._random.choice(
                [
                    "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
                    "SET SESSION sql_mode = ''",
                    "SET SESSION sql_mode = DEFAULT",
                    "SET SESSION time_zone = '+05:30'",
                    "SET SESSION time_zone = 'SYSTEM'",
                    "SET NAMES latin1",
                    "SET NAMES utf8mb4",
                    "SET collation_server = latin2_general_ci",
                    "SET SESSION foreign_key_checks = 0",
                    "SET SESSION foreign_key_checks = 1",
                    "SET SESSION explicit_defaults_for_timestamp = 0",
                    "SET SESSION explicit_defaults_for_timestamp = 1",
                    "SET SESSION auto_increment_increment = 3",
                ]
            ),
        )

    def _disconnect(self, session: Session) -> None:
        """End the session; the server rolls back what is open, but for a prepared XA transaction."""
        if session.xa == "PREPARED" and not self._detaches:
            self._xa(session)
        if session.xa == "PREPARED":
            self._prepared.append(session.xid)
        self._note(session, "-- disconnects")
        thread = session.connection.thread_id()
        with suppress(pymysql.Error, OSError):
            session.connection.close()
        self._sessions.remove(session)
        self._await_end(thread)

    def _await_end(self, thread: int) -> None:
        """Wait until the server has ended a session, so that the next statement meets none of its locks."""
        for _ in range(2_000):
            if not self._ask(f"SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = {thread}"):
                return

    def _rotate(self, session: Session) -> None:
        self._give(session, "FLUSH BINARY LOGS")

    def _temporary(self, session: Session) -> None:
        """A temporary table, or something done with one; some have a captured table's name."""
        if session.temporary and self._random.random() < 0.7:
            name = self._random.choice(sorted(session.temporary))
            if name in session.unseen:
                self._may_park(session, name, "a temporary table from before the job")
            text = self._random.choice(
                [
                    f"INSERT INTO {name} VALUES ({self._key(session)})",
                    f"TRUNCATE TABLE {name}",
                    f"ALTER TABLE {name} ADD COLUMN n{self._number} INT",
                    f"DELETE FROM {name}",
                    f"DROP TEMPORARY TABLE {name}",
                    f"DROP TABLE {name}",
                ]
            )
            if self._give(session, text) and text.startswith("DROP"):
                session.temporary.discard(name)
                session.unseen.discard(name)
            return
        name = self._random.choice(["x", "y", "t_tmp", "t_int", "t_part", "t_str"])
        if self._give(session, f"CREATE TEMPORARY TABLE {name} (id INT)"):
            session.temporary.add(name)
            if not self.job_began:
                session.unseen.add(name)

    # -- statements about tables

    def _alter(self, session: Session) -> None:
        table = self._any()
        columns = self._columns(table)
        free = [column for column in columns if not column.key and not column.generated and column.name != "id"]
        self._number += 1
        new = f"n{self._number}"
        kind = self._random.choice(
            [
                "INT",
                "INT NOT NULL DEFAULT 5",
                "VARCHAR(20) DEFAULT 'dflt'",
                "VARCHAR(20) CHARACTER SET latin1",
                "TIMESTAMP NULL",
                "DATETIME DEFAULT '2020-02-02 02:02:02'",
                "DECIMAL(8,2) DEFAULT 1.25",
                "ENUM('p', 'q') DEFAULT 'q'",
                "BIGINT UNSIGNED",
                "DOUBLE",
            ]
        )
        position = self._random.choice(["", "", " FIRST", *[f" AFTER `{column.name}`" for column in columns[:2]]])
        choices = [f"ADD COLUMN {new} {kind}{position}", f"ADD COLUMN {new} {kind}, ADD COLUMN {new}b INT"]
        if free:
            column = self._random.choice(free)
            choices += [
                f"DROP COLUMN `{column.name}`",
                f"CHANGE `{column.name}` {new} {column.declared}",
                f"RENAME COLUMN `{column.name}` TO {new}",
                f"MODIFY `{column.name}` {column.declared}{position}",
                f"ADD INDEX i{self._number} (`{column.name}`)"
                if column.kind not in ("text", "blob", "json")
                else "FORCE",
                f"ALTER COLUMN `{column.name}` SET DEFAULT NULL",
            ]
            wider = {"int": "BIGINT", "varchar": "VARCHAR(90)", "float": "DOUBLE"}.get(column.kind)
            if wider and column.name != "b":
                choices.append(f"MODIFY `{column.name}` {wider}")
        chosen = self._random.choice([*choices, "ENGINE = InnoDB" if table != "t_plain" else "FORCE", "COMMENT = 'x'"])
        if chosen.startswith(("MODIFY", "CHANGE", "RENAME", "ENGINE")):
            self.retyped.add(table)
        self._alone(session)
        self._give(session, f"{self._comment()}ALTER TABLE {self._quoted(table)} {chosen}")
        self._ended_by_ddl(session)

    def _partition(self, session: Session) -> None:
        self._alone(session)
        partitions = self._partitions()
        done = self._give(
            session,
            self._random.choice(
                [
                    "ALTER TABLE t_part TRUNCATE PARTITION p0",
                    (
                        "ALTER TABLE t_part REORGANIZE PARTITION p0, p1 INTO (PARTITION p0 VALUES LESS THAN (50), "
                        "PARTITION p1 VALUES LESS THAN (120))"
                    ),
                    "ALTER TABLE t_part DROP PARTITION p1",
                    "ALTER TABLE t_part REBUILD PARTITION ALL",
                    (
                        "ALTER TABLE t_part REORGANIZE PARTITION p2 INTO (PARTITION p3 VALUES LESS THAN (180), "
                        "PARTITION p2 VALUES LESS THAN MAXVALUE)"
                    ),
                ]
            ),
        )
        # MariaDB drops a partition, waits for a lock in vain, says so, and logs nothing.
        if not done and self._partitions() != partitions:
            self.unlogged.add("t_part")
        self._ended_by_ddl(session)

    def _partitions(self) -> list[tuple[Any, ...]]:
        return self._ask(
            "SELECT PARTITION_NAME, PARTITION_DESCRIPTION FROM information_schema.PARTITIONS WHERE "
            f"TABLE_SCHEMA = '{self._database}' AND TABLE_NAME = 't_part' ORDER BY PARTITION_ORDINAL_POSITION"
        )

    def _create(self, session: Session) -> None:
        if len(self.tables()) >= TABLES_MAX:
            self._drop(session)
            return
        self._number += 1
        name = f"t_n{self._number}"
        if session.temporary and session.row_format != "ROW":
            return
        self._alone(session)
        statement = self._random.choice(
            [
                f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT, b VARCHAR(40))",
                f"CREATE TABLE IF NOT EXISTS {name} (id INT PRIMARY KEY, a TINYINT, b VARCHAR(40)) ENGINE = MyISAM",
                f"CREATE TABLE {name} LIKE t_part",
                f"CREATE TABLE {name} (PRIMARY KEY (id)) SELECT id, 1 AS a, 'made' AS b FROM t_parent",
            ]
        )
        if statement.endswith("LIKE t_part") and "t_part" in session.temporary:
            return  # A table like that has no key.
        if session.row_format != "ROW":
            self._may_park(session, name, "a statement that makes rows")
        if self._give(session, f"{self._comment()}{statement}") and session.row_format == "ROW":
            self._give(session, self._insert_text(session, name, rows=3, verb="INSERT IGNORE"))
        self._ended_by_ddl(session)

    def _made(self) -> list[str]:
        return [name for name in self.tables() if name.startswith("t_n")]

    def _drop(self, session: Session) -> None:
        made = self._made()
        if made and not session.temporary:
            self._alone(session)
            self._give(session, f"{self._comment()}DROP TABLE {self._random.choice(made)}")
            self._ended_by_ddl(session)

    def _rename(self, session: Session) -> None:
        made = self._made()
        if not made or session.temporary:
            return
        self._alone(session)
        self._number += 1
        first, new = self._random.choice(made), f"t_n{self._number}"
        second = self._random.choice(made)
        swap = f"RENAME TABLE {first} TO {self._other}.between, {second} TO {first}, {self._other}.between TO {second}"
        away = f"RENAME TABLE {first} TO {self._other}.gone{self._number}"
        chosen = self._random.choice(
            [f"RENAME TABLE {first} TO {new}", f"ALTER TABLE {first} RENAME {new}", away, swap]
        )
        self.retyped |= {first, second, new}
        self._give(session, chosen)
        self._ended_by_ddl(session)

    def _truncate(self, session: Session) -> None:
        table = self._random.choice([*self._made(), "t_plain", "t_part"])
        if table in session.temporary:
            return
        self._alone(session)
        self._give(session, f"{self._comment()}TRUNCATE {self._random.choice(['', 'TABLE '])}{self._quoted(table)}")
        self._ended_by_ddl(session)

    def _alone(self, session: Session) -> None:
        """End the transactions of the others, which would be waited for; now and then they stay."""
        if self._random.random() < 0.1:
            return
        for other in self._sessions:
            if other is not session and other.open and not other.xid:
                self._random.choice([self._commit, self._roll_back])(other)

    def _ended_by_ddl(self, session: Session) -> None:
        if not session.xid:
            session.open = False
            session.savepoints.clear()

    # -- parts

    def _session(self) -> Session:
        if len(self._sessions) < SESSIONS and (not self._sessions or self._random.random() < 0.3):
            connection = self._server.connect(database=self._database, read_timeout=ANSWER_S)
            self._number += 1
            session = Session(self._number, connection)
            self._sessions.append(session)
            for setting in self._patience():
                with connection.cursor() as cursor, suppress(pymysql.Error):
                    cursor.execute(setting)
            return session
        return self._random.choice(self._sessions)

    def _patience(self) -> Iterator[str]:
        """Nobody waits long for a lock: the sessions take turns."""
        least = 0 if self._server.flavor == "mariadb" else 1
        yield f"SET SESSION lock_wait_timeout = {least}"
        yield f"SET SESSION innodb_lock_wait_timeout = {least}"
        yield "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"

    def _target(self, session: Session) -> str:
        """A table to write to. Where the session does not log rows it is seldom a captured one."""
        table = self._any()
        if session.row_format == "ROW":
            return table
        if self._random.random() < 0.97:
            return f"{self._other}.u"
        for each in (table, "t_audit"):
            self._may_park(session, each, "rows logged as a statement")
        return table

    def _any(self) -> str:
        return self._random.choice([name for name in self.tables() if name != "t_audit"] or ["t_int"])

    def _may_park(self, session: Session, table: str, why: str) -> None:
        if session.row_format != "ROW":
            self.foreseen.setdefault(table, []).append(why)

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of a query of the catalog; `pymysql.Error` where that is locked for long."""
        if self._admin is None:
            self._admin = self._server.connect(read_timeout=ANSWER_S)
            with self._admin.cursor() as cursor:
                cursor.execute("SET SESSION lock_wait_timeout = 5")
        with self._admin.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def _close_admin(self) -> None:
        if self._admin is not None:
            with suppress(pymysql.Error, OSError):
                self._admin.close()
        self._admin = None

    def _columns(self, table: str) -> list[Column]:
        database, _, name = table.rpartition(".")
        rows = self._ask(
            "SELECT COLUMN_NAME, LOWER(DATA_TYPE), COLUMN_TYPE, IS_NULLABLE, COLUMN_KEY, EXTRA, CHARACTER_SET_NAME "
            f"FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = '{database or self._database}' "
            f"AND TABLE_NAME = '{name}' ORDER BY ORDINAL_POSITION"
        )
        return [Column.of(row) for row in rows]

    def _key(self, session: Session) -> int:
        return self._random.randrange(KEYS // SESSIONS) * SESSIONS + session.number % SESSIONS

    def _value(self, session: Session, column: Column) -> str:
        return str(self._key(session)) if column.name == "id" else literal(self._random, column)

    def _where(self, session: Session) -> str:
        key = self._key(session)
        if self._random.random() < 0.75:
            return f"id = {key}"
        return f"id BETWEEN {key} AND {key + 12} AND MOD(id, {SESSIONS}) = {session.number % SESSIONS}"

    def _comment(self) -> str:
        return self._random.choice(_COMMENTS) if self._random.random() < 0.25 else ""

    @staticmethod
    def _quoted(table: str) -> str:
        return ".".join(f"`{part}`" for part in table.split("."))

    def _give(self, session: Session, statement: str) -> bool:
        """Give a statement; whether the server took it."""
        try:
            with session.connection.cursor() as cursor:
                cursor.execute(statement)
                while cursor.nextset():
                    pass
        except pymysql.Error as error:
            self._note(session, f"{statement}\n--   {error}")
            if not session.connection.open and session in self._sessions:
                self._sessions.remove(session)
            return False
        self._note(session, statement)
        return True

    def _note(self, session: Session, text: str) -> None:
        self._log.write(f"{session.number}: {text}\n")
