"""Random DDL that makes sense: CREATE, ALTER, RENAME, DROP, LIKE and TRUNCATE on a handful of tables. For tests.

The generator keeps a rough idea of its tables (names of columns), good enough that servers accept most statements; it
never says what a statement should do, that is the server's part.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

_CHARSETS = (
    "latin1",
    "utf8mb4",
    "utf8",
    "ascii",
    "koi8r",
    "cp1251",
    "gbk",
    "sjis",
    "ucs2",
    "latin2",
    "greek",
    "binary",
)
_NAMES = (
    "a",
    "b",
    "Key1",
    "`order`",
    "`two words`",
    "größe",
    "`q``q`",
    "x1",
    "`列`",
    "status",
    "`sel.ect`",
    "c_1",
    "D",
)
_TABLES_MAX = 5
_COLUMNS_MAX = 12


class DdlGenerator:
    """Generates statements without end, the same for the same seed; for the default sql_mode."""

    def __init__(self, seed: int, *, mariadb: bool) -> None:
        self._random = random.Random(seed)
        self._mariadb = mariadb
        self._tables: dict[str, list[str]] = {}
        self._number = 0

    def __iter__(self) -> Iterator[str]:
        while True:
            yield self.statement()

    def statement(self) -> str:
        """Return the next statement. The generator assumes that the server accepts it."""
        roll = self._random.random()
        if not self._tables or (roll < 0.15 and len(self._tables) < _TABLES_MAX):
            return self._create()
        table = self._pick(list(self._tables))
        if roll < 0.80:
            return self._alter(table)
        if roll < 0.88:
            return self._rename(table)
        if roll < 0.92:
            return self._random.choice([f"TRUNCATE TABLE {table}", f"TRUNCATE {table}"])
        if len(self._tables) > 2:
            del self._tables[table]
            return self._random.choice([f"DROP TABLE {table}", f"DROP TABLE IF EXISTS {table}, nowhere_at_all"])
        return self._alter(table)

    def _pick(self, values: list[str]) -> str:
        return self._random.choice(values)

    def _maybe(self, text: str, chance: float = 0.5) -> str:
        return text if self._random.random() < chance else ""

    def _new_table(self) -> str:
        self._number += 1
        return self._pick([f"t{self._number}", f"`t {self._number}`", f"T{self._number}", f"tabelle_ä{self._number}"])

    def _qualified(self, table: str, name: str) -> str:
        """Return a column's name, for MariaDB sometimes with its table's name."""
        return self._maybe(f"{table}.", 0.1 if self._mariadb else 0.0) + name

    def _new_name(self, taken: list[str]) -> str:
        free = [name for name in _NAMES if name.lower() not in {t.lower() for t in taken}]
        self._number += 1
        return self._pick([*free, f"n{self._number}"])

    def _create(self) -> str:
        table = self._new_table()
        if self._tables and self._random.random() < 0.15:
            other = self._pick(list(self._tables))
            self._tables[table] = list(self._tables[other])
            return self._pick([f"CREATE TABLE {table} LIKE {other}", f"CREATE TABLE {table} (LIKE {other})"])
        columns: list[str] = ["id"]
        parts = [f"id {self._pick(['INT', 'BIGINT UNSIGNED', 'SMALLINT'])}"]
        keyed = self._random.random()
        if keyed < 0.4:
            parts[0] += " PRIMARY KEY" + self._maybe(" AUTO_INCREMENT")
        for _ in range(self._random.randrange(1, 6)):
            name = self._new_name(columns)
            columns.append(name)
            parts.append(f"{self._qualified(table, name)} {self._definition()}")
        if 0.4 <= keyed < 0.8:
            key = self._pick(["id", "id DESC" if not self._mariadb else "id"])
            parts.append(self._maybe("CONSTRAINT `pk`") + f" PRIMARY KEY ({key})")
        if self._random.random() < 0.3:
            parts.append(self._pick(["KEY (id)", "UNIQUE INDEX ui (id)", "INDEX `i,i` (id) COMMENT 'a, b'"]))
        self._tables[table] = columns
        options = self._maybe(f" DEFAULT CHARSET={self._pick(list(_CHARSETS))}") + self._maybe(" COMMENT='it''s'", 0.2)
        options += self._maybe(" /*!50100 PARTITION BY HASH (id) PARTITIONS 2 */", 0.1)
        head = f"CREATE {self._maybe('/* why */', 0.1)} TABLE {self._maybe('IF NOT EXISTS', 0.2)} {table}"
        return f"{head} ({', '.join(parts)}){options}"

    def _definition(self) -> str:
        number = self._random.randrange
        text = self._pick([f"CHAR({number(1, 40)})", f"VARCHAR({number(1, 300)})", "TEXT", f"TEXT({number(1, 90000)})",
                           "TINYTEXT", "MEDIUMTEXT", "ENUM('a','b,c','it''s')", "SET('x','y ')", "TEXT(0)", "CHAR(0)",
                           "ENUM(0x61,x'62','c')", "SET(b'01100001',0x7A)"])  # fmt: skip
        if self._random.random() < 0.45:
            charset = self._maybe(f" CHARACTER SET {self._pick(list(_CHARSETS))}", 0.4)
            return text + charset + self._maybe(" BINARY", 0.1 * (charset == "")) + self._maybe(" NOT NULL", 0.3)
        plain = self._pick(
            ["TINYINT", "TINYINT(1)", "SMALLINT UNSIGNED", "MEDIUMINT", "INT", "INT(7) ZEROFILL", "BIGINT UNSIGNED",
             f"DECIMAL({number(5, 60)},{number(0, 5)})", "FLOAT", "DOUBLE", "FLOAT(30)", "BIT(9)", "BOOL", "DATE",
             f"TIME({number(0, 7)})", f"DATETIME({number(0, 7)})", f"TIMESTAMP({number(1, 7)}) NULL", "YEAR", "JSON",
             f"BINARY({number(1, 50)})", f"VARBINARY({number(1, 500)})", f"BLOB({number(1, 90000)})", "LONGBLOB",
             "NUMERIC(0)", "INT(0)", "BIT(0)", "BLOB(0)", "DOUBLE(0,0)", "FLOAT(0)",
             "POINT", "INT AS (1 + 2) VIRTUAL", "DATETIME DEFAULT NOW() ON UPDATE NOW()"]
        )  # fmt: skip
        simple = "AS (" not in plain and "NULL" not in plain and "DEFAULT" not in plain
        return plain + (self._maybe(" NOT NULL", 0.2) + self._maybe(" COMMENT 'x, y (z'", 0.2) if simple else "")

    def _alter(self, table: str) -> str:
        columns = self._tables[table]
        before = list(columns)
        actions = [self._action(table, columns, before) for _ in range(self._pick_count())]
        if any(action.startswith("CONVERT") for action in actions):
            # In combination with a column that is defined again, it makes MySQL 8.0.15 crash.
            columns[:] = before
            actions = [action for action in actions if action.startswith("CONVERT")][:1]
        ignorable = self._maybe(" ONLINE", 0.2) if self._mariadb else ""
        return f"ALTER{ignorable} TABLE {table} {', '.join(actions)}"

    def _pick_count(self) -> int:
        return self._random.choice([1, 1, 1, 2, 2, 3])

    def _position(self, columns: list[str]) -> str:
        return self._pick(["", "", " FIRST", f" AFTER {self._pick(columns)}"])

    def _action(self, table: str, columns: list[str], before: list[str]) -> str:
        roll = self._random.random()
        old = self._pick(columns)
        # In MySQL a statement can only change columns that existed before it.
        changeable = [c for c in columns if c in before and c != "id"]
        if roll < 0.35 and len(columns) < _COLUMNS_MAX:
            name, position = self._new_name(columns), self._position(columns)
            columns.append(name)
            return f"ADD {self._maybe('COLUMN ')}{name} {self._definition()}{position}"
        if roll < 0.45 and len(changeable) > 1:
            dropped = self._pick(changeable)
            columns.remove(dropped)
            return f"DROP {self._maybe('COLUMN ')}{dropped}"
        if roll < 0.62 and changeable:
            name = self._pick(changeable)
            position = self._position([c for c in columns if c != name])
            return f"MODIFY {self._maybe('COLUMN ')}{self._qualified(table, name)} {self._definition()}{position}"
        if roll < 0.76 and changeable:
            name, new = self._pick(changeable), self._new_name(columns)
            columns[columns.index(name)] = new
            return f"CHANGE {name} {new} {self._definition()}{self._position([c for c in columns if c != new])}"
        if roll < 0.80 and changeable:
            name, new = self._pick(changeable), self._new_name(columns)
            columns[columns.index(name)] = new
            return f"RENAME COLUMN {name} TO {new}"
        if roll < 0.88:
            return self._pick([f"CONVERT TO CHARACTER SET {self._pick(['latin1', 'utf8', 'utf8mb4', 'gbk'])}",
                               f"DEFAULT CHARACTER SET {self._pick(list(_CHARSETS))}",
                               f"COLLATE {self._pick(['latin1_bin', 'utf8mb4_bin', 'koi8r_general_ci'])}"])  # fmt: skip
        return self._pick([f"ADD INDEX ({old})", "COMMENT = 'new'", "ENGINE=InnoDB", "DROP PRIMARY KEY",
                           "ADD PRIMARY KEY (id)", "DROP PRIMARY KEY, ADD PRIMARY KEY (id)", "AUTO_INCREMENT=50",
                           "FORCE", "ROW_FORMAT=DYNAMIC", "ALTER id SET DEFAULT 3", "MODIFY id BIGINT FIRST",
                           "ALGORITHM=COPY", "LOCK=DEFAULT", "ADD CONSTRAINT ck CHECK (id > 0)"])  # fmt: skip

    def _rename(self, table: str) -> str:
        new = self._new_table()
        if len(self._tables) > 1 and self._random.random() < 0.4:
            other = self._pick([t for t in self._tables if t != table])
            self._tables[table], self._tables[other] = self._tables[other], self._tables[table]
            return f"RENAME TABLE {table} TO {new}, {other} TO {table}, {new} TO {other}"
        self._tables[new] = self._tables.pop(table)
        return self._pick([f"RENAME TABLE {table} TO {new}", f"ALTER TABLE {table} RENAME TO {new}",
                           f"ALTER TABLE {table} RENAME {new}"])  # fmt: skip
