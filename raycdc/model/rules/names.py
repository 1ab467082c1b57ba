"""Rules for the names of columns and tables that each kind of target can hold, and the replacement of names that it
cannot.

`NAMES` has the rules of all kinds of targets, and `SinkConfig.names` returns those of a sink. `NameRules.column`
replaces a column's name that the target cannot hold. The replacement depends only on the name, so it is the same at
every start and in every process. If two columns would get the same name, the target cannot hold the table
(`raycdc.transform.naming`). A table's name is never replaced, because users would not find the table under a different
name. The table is parked instead, until a ``[[route]]`` gives it a name that the target can hold. Pure.

The module also has the limits of the tables that each kind of target can hold, from the servers' manuals.

A sink asks `TargetLimits.exceeded` before a table's first row, and at each change of its columns. A table that exceeds
a limit is parked, and the others go on. Limits of single values (`description`) are checked by the server alone: it
refuses the row, which is handled according to ``pipeline.on_bad_record``.

``raycdc docs types`` prints the limits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote

from raycdc.model.table import TableId

#: The number of hash digits that replace the end of a name that is too long.
_DIGITS = 8
#: The prefix of the names that a state gives to the row stores of its tables (`raycdc.delivery.record_keeper`).
ROW_STORE_OF = "known rows of "
#: The advice about a table's name that a target cannot have.
ROUTE_IT = "Give the target another name by a [[route]]"
_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
_TOPIC_FIELD = re.compile(r"\{(db|table)\}")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ABOVE_BMP = re.compile("[\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class NameRules:
    """The names that a kind of target cannot hold.

    Messages call this kind `store`.

    For columns: `characters` that no name contains, `first` ones that no name begins with, `last` ones that no name
    ends with, names that are `taken` (in lower case), the name `own_key` of a row's own key, the maximum lengths
    `bytes_max` in UTF-8 and `length_max` in characters (0: no limit), `bmp`, which is True if characters beyond
    Unicode's first 65,536 are not allowed, and `named`, which is True if a name must not be empty.

    For tables, additionally: names that cannot be a `folder`, characters that no `database` or `table` contains,
    reserved `databases` (in lower case) and reserved beginnings of databases and tables, the maximum length
    `both_bytes_max` of database, dot and table together, the template of the `topic` that contains a table's name, and
    reserved `topics`. `ours` are the tables in which raycdc keeps its own records (``db.table``, or ``db.`` for a whole
    database, in lower case), and `ours_first` is the prefix of its staging tables in any database. `one_case` is True
    if names of databases must differ in more than case. `escapes` is True if ``%41`` in a folder's name is read as
    ``A``, so that the name would mean a different folder.
    """

    store: str
    characters: str = ""
    first: str = ""
    last: str = ""
    taken: frozenset[str] = frozenset()
    bytes_max: int = 0
    length_max: int = 0
    bmp: bool = False
    named: bool = True
    folder: bool = False
    own_key: str = ""
    database: str = ""
    databases: frozenset[str] = frozenset()
    database_bytes_max: int = 0
    table: str = ""
    database_first: str = ""
    table_first: str = ""
    both_bytes_max: int = 0
    ours: frozenset[str] = frozenset()
    ours_first: str = ""
    topic: str = ""
    topics: frozenset[str] = frozenset()
    one_case: bool = False
    escapes: bool = False
    #: A table's name consists of parts between dots, none of which may be empty.
    parts: bool = False

    def no_column(self, name: str, *, is_key: bool = False) -> str:
        """Return the reason why no column can have this name; empty if a column can.

        `is_key` is True if the column is the whole key.
        """
        if self.own_key and name == self.own_key and not is_key:
            return "is that of a row's own key, and the column is not the table's only key column"
        if bad := sorted(set(name) & set(self.characters)):
            return f"contains {bad[0]!r}"
        if self.first and name[:1] and name[0] in self.first:
            return f"begins with {name[0]!r}"
        if self.last and name[-1:] and name[-1] in self.last:
            return f"ends with {name[-1]!r}"
        if name.lower() in self.taken:
            return "is one that the server keeps for itself"
        if self.named and not name:
            return "is empty"
        return self._too_long(name)

    def column(self, name: str, *, is_key: bool = False) -> str:
        """Return the name that the column has in the target: `name`, if the target can hold it, or a replacement."""
        if not self.no_column(name, is_key=is_key):
            return name
        made = "".join("_" if one in self.characters else one for one in name) or "_"
        if self.bmp:
            made = _ABOVE_BMP.sub("_", made)
        if made[0] in self.first:
            made = f"_{made[1:]}"
        if made[-1] in self.last:
            made = f"{made[:-1]}_"
        if made.lower() in self.taken or made == self.own_key:
            made = f"{made}_"
        return self._cut(made, name)

    def no_table(self, target: TableId) -> str:
        """Return the reason why no target can have this name, with advice; empty if a target can."""
        parts = (
            ("database", target.db, self.database, self.database_bytes_max),
            ("table", target.table, self.table, 0),
        )
        for what, name, invalid, bytes_max in parts:
            why = self._no_folder(name) if self.folder else ""
            if not name:
                why = "is empty"
            elif bad := sorted(set(name) & set(invalid)):
                why = f"contains {bad[0]!r}"
            elif (what == "database" and self._is_servers(name)) or (
                what == "table" and self.table_first and name.startswith(self.table_first)
            ):
                why = "is one that the server keeps for itself"
            elif self.last and name[-1] in self.last:
                why = f"ends with {name[-1]!r}"
            elif bytes_max and len(name.encode()) > bytes_max:
                why = f"has more than {bytes_max} bytes"
            if what == "table" and self.parts and name and not all(name.split(".")):
                why = why or "has nothing before, behind or between its dots"
            if self.escapes and (escape := _ESCAPE.search(name)):
                why = f"contains {escape[0]!r}, which is read as {unquote(escape[0])!r}"
            if why := why or self._too_long(name):
                cannot = "be a folder" if self.folder else f"name a {what}"
                return f"{name!r} cannot {cannot} of {self.store}, because it {why}. {ROUTE_IT}"
        if target.db.startswith(ROW_STORE_OF):
            return f"{target.db!r} is what raycdc calls rows that it keeps, and no database of a target. {ROUTE_IT}"
        if self._is_ours(target):
            return f"{target} is the name of a table of {self.store} in which raycdc keeps its own records. {ROUTE_IT}"
        both = len(f"{target.db}.{target.table}".encode())
        if self.both_bytes_max and both > self.both_bytes_max:
            return f"{target} has more than the {self.both_bytes_max} bytes that {self.store} takes. {ROUTE_IT}"
        if self.topic:
            topic = topic_name(self.topic, target)
            if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
                return f'sink.topic makes "{topic}" of {target}, which cannot be a topic. {ROUTE_IT}'
            if topic in self.topics:
                return f'sink.topic makes "{topic}" of {target}, which is the topic of something else. {ROUTE_IT}'
        return ""

    def claim(self, target: TableId) -> tuple[str, str] | None:
        """Return the location that `target` would use alone, and the location's name for messages.

        Return None if different names of targets always have different locations.
        """
        if "{table}" in self.topic:
            return f"topic {topic_name(self.topic, target)}", str(target)
        return (f"database {target.db.lower()}", target.db) if self.one_case else None

    def _is_servers(self, database: str) -> bool:
        first = self.database_first
        return database.lower() in self.databases or bool(first and database.startswith(first))

    def _is_ours(self, target: TableId) -> bool:
        db, table = target.db.lower(), target.table.lower()
        return not self.ours.isdisjoint({f"{db}.{table}", f"{db}."}) or bool(
            self.ours_first and table.startswith(self.ours_first)
        )

    def _no_folder(self, name: str) -> str:
        if bad := sorted(set(name) & set("/\0")):
            return f"contains {bad[0]!r}"
        if name in (".", ".."):
            return "is another folder's name"
        if name.startswith("_"):
            return "begins with '_', by which readers of folders pass over it"
        if len(name.encode()) > _FILE_BYTES_MAX:
            return f"has more than {_FILE_BYTES_MAX} bytes"
        return ""

    def _too_long(self, name: str) -> str:
        if self.bmp and (invalid := _ABOVE_BMP.search(name)):
            return f"contains {invalid[0]!r}"
        if self.bytes_max and len(name.encode()) > self.bytes_max:
            return f"has more than {self.bytes_max} bytes"
        if self.length_max and len(name) > self.length_max:
            return f"has more than {self.length_max} characters"
        return ""

    def _cut(self, made: str, name: str) -> str:
        """Return `made` if it is short enough, else its beginning followed by digits of its hash."""
        if not self._too_long(made):
            return made
        digits = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
        room = (self.bytes_max or self.length_max) - _DIGITS - 1
        beginning = made.encode()[:room].decode(errors="ignore") if self.bytes_max else made[:room]
        return f"{beginning}_{digits}"


def misread(path: str) -> str:
    """Return the part of a folder's path that Delta's library misreads; empty if there is none."""
    rules = NAMES["delta"]
    escape = _ESCAPE.search(path)
    return escape[0] if escape else next((one for one in path if one in rules.database), "")


def topic_name(template: str, table: TableId) -> str:
    """Return ``sink.topic`` with a table's names inserted."""
    return _TOPIC_FIELD.sub(lambda found: table.db if found[1] == "db" else table.table, template)


def claimed(rules: NameRules, targets: Iterable[TableId], held: Iterable[TableId] = ()) -> dict[TableId, str]:
    """Return the `targets` whose location belongs to an earlier target or to one of `held`, each with the reason.

    If both used the location, their rows would be mixed, or the server would refuse the second target.
    """
    owners: dict[str, tuple[str, TableId]] = {}
    for target in held:
        if (claim := rules.claim(target)) is not None:
            owners.setdefault(claim[0], (claim[1], target))
    found: dict[TableId, str] = {}
    for target in targets:
        if (claim := rules.claim(target)) is None:
            continue
        owner, other = owners.setdefault(claim[0], (claim[1], target))
        if owner != claim[1]:
            found[target] = f"it cannot have the {claim[0]}, because that is {other}'s. {ROUTE_IT}"
    return found


#: Columns that every PostgreSQL table has (its manual, "System Columns").
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
#: The maximum length of a file name on Linux.
_FILE_BYTES_MAX = 255
#: Topics in which brokers keep their own records (Kafka's Topic.INTERNAL_TOPICS, and KRaft's log).
_BROKERS_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata", "@metadata"}
)
_CONTROLS = "".join(map(chr, (*range(1, 32), 127)))
_MYSQL_DATABASES = frozenset({"mysql", "information_schema", "performance_schema", "sys"})
# Manual: "Schema Object Names".
_MYSQL = NameRules(
    "MySQL",
    characters="\0",
    last=" ",
    length_max=64,
    bmp=True,
    database="\0",
    databases=_MYSQL_DATABASES,
    table="\0",
)

#: The rules of each kind of target. A sink of an installed plug-in may have its own rules; if it has none, every name
#: is allowed.
NAMES: Mapping[str, NameRules] = {
    # Columns: Delta's DELTA_INVALID_CHARACTERS_IN_COLUMN_NAMES, without column mapping. Folders: texts that delta-rs
    # misreads in a path.
    "delta": NameRules(
        "a Delta table",
        characters=" ,;{}()\n\t=",
        folder=True,
        database=f"\\{_CONTROLS}",
        table=f"\\{_CONTROLS}",
        escapes=True,
    ),
    # Some catalogs write a namespace as one text, in which a dot separates two levels. Python's urlsplit removes line
    # breaks, and ends the path at ? and #.
    "iceberg": NameRules("an Iceberg table", folder=True, database="?#.\t\n\r", table="?#\t\n\r"),
    "parquet": NameRules("a folder of Parquet files", folder=True, named=False),
    "jsonl": NameRules("a folder of JSON files", folder=True, named=False),
    "console": NameRules("the console", named=False),
    "kafka": NameRules("a topic", named=False, topics=_BROKERS_TOPICS),
    # Manual: "Identifiers and Key Words"; longer names are cut silently.
    "postgresql": NameRules(
        "PostgreSQL",
        characters="\0",
        taken=_SYSTEM_COLUMNS,
        bytes_max=63,
        database="\0",
        databases=frozenset({"information_schema"}),
        database_first="pg_",
        table="\0",
    ),
    "mysql": _MYSQL,
    "mariadb": replace(_MYSQL, store="MariaDB"),
    # Manual: "Naming Restrictions", "Field Names with Periods and Dollar Signs".
    "mongodb": NameRules(
        "MongoDB",
        characters=".\0",
        first="$",
        own_key="_id",
        database='/\\. "$*<>:|?\0',
        databases=frozenset({"admin", "config", "local"}),
        database_bytes_max=63,
        table="$\0",
        table_first="system.",
        both_bytes_max=255,
        # Every driver refuses such a collection (pymongo, `Collection`).
        parts=True,
        # The server's error 13297, DatabaseDifferCase.
        one_case=True,
    ),
}
#: Rules that allow every name.
ANY_NAMES = NameRules("the target", named=False)


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """The limits of one kind of target; 0 is no limit.

    `description` lists the limits of single values, for people.
    """

    store: str
    columns_max: int = 0
    key_columns_max: int = 0
    #: The limit of the declared columns of a key together, in bytes.
    key_bytes_max: int = 0
    description: str = ""

    def exceeded(self, columns: int, key_columns: int, key_bytes: int = 0) -> str:
        """Return the first exceeded limit, as the end of a sentence that begins with the table's name; empty if no
        limit is exceeded.
        """
        for what, count, most in (
            ("columns", columns, self.columns_max),
            ("columns in its key", key_columns, self.key_columns_max),
            ("bytes in its key", key_bytes, self.key_bytes_max),
        ):
            if most and count > most:
                return f"has {count:,} {what} there, and {self.store} holds at most {most:,}"
        return ""


#: InnoDB with pages of 16 KiB. Manual: "InnoDB Limits"; MariaDB's: "InnoDB Limitations". Limits that differ between
#: MySQL and MariaDB, or between servers, are not here. The server checks them when the target is created, before the
#: first row.
_INNODB = TargetLimits(
    "InnoDB",
    columns_max=1017,
    key_bytes_max=3072,
    description="16 columns in a key (MariaDB: 32); 30 digits behind the point (MariaDB: 38); a row of 65,535 bytes "
    "without texts and binaries, and of 8,126 bytes in its page (about 197 texts or binaries); a row as a statement by "
    "the server's max_allowed_packet",
)

#: The limits of each kind of target, under the names that `NAMES` uses.
LIMITS: Mapping[str, TargetLimits] = {
    # Manual: "PostgreSQL Limits"; an entry of a B-tree is at most a third of a page.
    "postgresql": TargetLimits(
        "PostgreSQL",
        columns_max=1600,
        key_columns_max=32,
        description="a row of 8,160 bytes in its page (long texts and binaries lie elsewhere, 18 bytes of each are "
        "left); a value of 1 GiB; values of a key of 2,704 bytes together",
    ),
    "mysql": _INNODB,
    "mariadb": _INNODB,
    # Manual: "MongoDB Limits and Thresholds".
    "mongodb": TargetLimits(
        "MongoDB", description="a document of 16 MiB, an index entry as large as the document allows"
    ),
    # The broker's message.max.bytes and the topic's max.message.bytes.
    "kafka": TargetLimits(
        "Kafka", description="a message by the topic's max.message.bytes (1,048,588 bytes unless it is set)"
    ),
    "delta": TargetLimits("a Delta table", description="a value of 2 GiB, as Arrow and Parquet count its bytes"),
    "iceberg": TargetLimits("an Iceberg table", description="a value of 2 GiB, as Arrow and Parquet count its bytes"),
    "parquet": TargetLimits(
        "a folder of Parquet files", description="a value of 2 GiB, as Arrow and Parquet count its bytes"
    ),
    "jsonl": TargetLimits("a folder of JSON files"),
    "console": TargetLimits("the console"),
}
