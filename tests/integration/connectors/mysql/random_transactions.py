"""Random transactions, with a model of what they leave: the marks of rows that were written for good."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pymysql

from raycdc.clients.mysql import query

#: What a server refuses because of its GTIDs, and a format that is changed while temporary tables are open.
_REFUSED = frozenset({1559, 1785, 1787, 3745, 3748})

TABLES = ("t", "m", "audit")

#: `t` can be rolled back; `m` and `audit`, which a trigger of `t` writes to, cannot.
SETUP = """
CREATE TABLE {db}.t (id INT PRIMARY KEY AUTO_INCREMENT, mark VARCHAR(200), u VARCHAR(64)) ENGINE = InnoDB
CREATE TABLE {db}.m (id INT PRIMARY KEY AUTO_INCREMENT, mark VARCHAR(200), u VARCHAR(64)) ENGINE = MyISAM
CREATE TABLE {db}.audit (id INT PRIMARY KEY AUTO_INCREMENT, mark VARCHAR(200), u VARCHAR(64)) ENGINE = MyISAM
CREATE TRIGGER {db}.t_audit AFTER UPDATE ON {db}.t FOR EACH ROW \
    INSERT INTO {db}.audit (mark, u) VALUES (CONCAT('audit ', NEW.mark), UUID())
INSERT INTO {db}.t (id, mark) VALUES (1, 'first'), (2, 'first'), (3, 'first'), (4, 'first'), (5, 'first'), (6, 'first')
INSERT INTO {db}.m (id, mark) VALUES (1, 'first'), (2, 'first'), (3, 'first')
"""


@dataclass(slots=True)
class Transactions:
    """Plays transactions in one session of `database`; `marks` are those of rows that were written for good, by table.

    Each row that is written has a mark of its own, so that a change that was taken back is known in a changelog even
    where another one undoes it. `xa`: the server writes XA transactions to its log.
    """

    connection: Any
    database: str
    seed: int
    xa: bool = True
    marks: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in TABLES})
    #: What was done, for a test that fails.
    story: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _savepoints: list[tuple[str, int]] = field(default_factory=list)
    _temporary: list[str] = field(default_factory=list)
    _count: int = 0

    def play(self, count: int) -> None:
        """So many transactions."""
        source = random.Random(self.seed)
        for number in range(count):
            self._run(f"SET SESSION binlog_format = '{source.choice(('ROW', 'ROW', 'MIXED'))}'")
            self._transaction(source, number)
        for name in self._temporary:
            self._run(f"DROP TEMPORARY TABLE {name}")
        self._run("SET SESSION binlog_format = 'ROW'")

    def _transaction(self, source: random.Random, number: int) -> None:
        self._open, self._savepoints = [], []
        kind = source.choice(("plain", "plain", "plain", "xa", "autocommit"))
        if kind == "autocommit":
            self._change(source)
            self._commit()
            return
        xa = kind == "xa" and self.xa
        branch = f"'x{self.seed}', 'b', {number + 1}"
        self._run(f"XA START {branch}" if xa else source.choice(("BEGIN", "START TRANSACTION")))
        for _ in range(source.randrange(1, 9)):
            self._step(source, xa=xa)
        if not xa:
            commits = source.random() < 0.5
            self._run("COMMIT" if commits else "ROLLBACK")
        else:
            commits = source.random() < 0.6
            self._run(f"XA END {branch}")
            if source.random() < 0.6:
                self._run(f"XA PREPARE {branch}")
                self._run(f"XA {'COMMIT' if commits else 'ROLLBACK'} {branch}")
            else:
                self._run(f"XA COMMIT {branch} ONE PHASE" if commits else f"XA ROLLBACK {branch}")
        if commits:
            self._commit()

    def _commit(self) -> None:
        self.marks["t"] += self._open
        self._open = []

    def _step(self, source: random.Random, *, xa: bool) -> None:
        names = [name for name, _ in self._savepoints]
        match source.randrange(10):
            case 0 | 1:
                name = source.choice(("a", "B", "`c d`"))
                self._run(f"SAVEPOINT {name}")
                self._savepoints = [one for one in self._savepoints if one[0] != name]
                self._savepoints.append((name, len(self._open)))
            case 2 | 3 if names:
                name = source.choice(names)
                self._run(f"{source.choice(('ROLLBACK TO', 'ROLLBACK TO SAVEPOINT'))} {name}")
                place = names.index(name)
                del self._open[self._savepoints[place][1] :]
                del self._savepoints[place + 1 :]
            case 4 if names:
                name = source.choice(names)
                self._run(f"RELEASE SAVEPOINT {name}")
                del self._savepoints[names.index(name) :]
            case 5 if not xa:
                if self._temporary and source.random() < 0.6:
                    if self._run(f"DROP TEMPORARY TABLE {self._temporary[-1]}") is not None:
                        self._temporary.pop()
                else:
                    self._count += 1
                    name, engine = f"{self.database}.temporary_{self._count}", source.choice(("InnoDB", "MyISAM"))
                    if self._run(f"CREATE TEMPORARY TABLE {name} (i INT) ENGINE = {engine}") is not None:
                        self._temporary.append(name)
            case _:
                self._change(source)

    def _change(self, source: random.Random) -> None:
        """A change of rows. UUID() makes the server log rows in the format MIXED, too."""
        self._count += 1
        mark, db, key = f"{self.seed}-{self._count}", self.database, source.randrange(1, 12)
        match source.randrange(7):
            case 0 | 1:
                self._run(f"INSERT INTO {db}.t (mark, u) VALUES ('{mark}', UUID())")
                self._open.append(mark)
            case 2:
                # The second row is there already: the statement is taken back, and the transaction goes on.
                if self._run(f"INSERT INTO {db}.t (id, mark, u) VALUES (NULL, '{mark}', UUID()), (1, '{mark}', 'x')"):
                    self._open += [mark, mark]
            case 3 | 4:
                done = self._run(f"UPDATE {db}.t SET mark = '{mark}', u = UUID() WHERE id = {key}") or 0
                self._open += [mark] * done
                self.marks["audit"] += [f"audit {mark}"] * done
            case 5:
                self._run(f"DELETE FROM {db}.t WHERE id = {key} AND u <> UUID() AND id > 1")
            case _:
                if self._run(f"INSERT INTO {db}.m (mark, u) VALUES ('{mark}', UUID())"):
                    self.marks["m"].append(mark)

    def _run(self, statement: str) -> int | None:
        """The number of rows; None for a statement that fails because of its rows, or that the server refuses."""
        self.story.append(statement)
        try:
            with self.connection.cursor() as cursor:
                return int(cursor.execute(statement))
        except (pymysql.IntegrityError, pymysql.OperationalError) as error:
            if isinstance(error, pymysql.OperationalError) and error.args[0] not in _REFUSED:
                raise
            self.story.append(f"    -- {error}")
            return None


def set_up(connection: Any, database: str) -> None:
    for statement in SETUP.replace("\\\n", "").strip().splitlines():
        query(connection, statement.replace("{db}", database).strip())
