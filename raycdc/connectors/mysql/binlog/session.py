"""The session that ran a logged statement, as described in the statement's QUERY event.

The event's settings take precedence over the server's global ones. `VARIABLES`, `OPTIONS` and `MODES` list everything
that servers write, with the use of each. Any other setting is in `SessionState.unknown`. The statement may then have a
different meaning, and the variables after the unknown one cannot be read, because its length is unknown.

Reference: MySQL source, ``Query_event`` in libs/mysql/binlog/event/statement_events.h; MariaDB's, ``Query_log_event``
in sql/log_event.cc. MySQL's codes grow from 0; MariaDB's own begin at 128.

`dialect_of` and `dialect_of_session` return how a server, and a session of it, reads DDL.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

from raycdc.connectors.mysql.ddl.parse.statements import DdlDialect
from raycdc.connectors.mysql.server.client import MySqlServerInfo
from raycdc.connectors.mysql.values.charsets import charset_of_collation
from raycdc.connectors.mysql.values.types import TypeOptions


class VariableLayout(Enum):
    """The layout of a variable without a fixed size, which determines its end."""

    #: A text after a byte with its length.
    TEXT = auto()
    #: A text after a byte with its length, followed by a NUL.
    TEXT_AND_NUL = auto()
    TWO_TEXTS = auto()
    #: Names that end in NUL, after a byte with their count. No names follow if the byte is `_TOO_MANY_DATABASES`.
    NAMES = auto()
    #: A byte of flags, followed by a GTID's number if one of `_GTID_OF_START_ALTER` is set.
    GTID_FLAGS = auto()
    #: Pairs of collation numbers, after a byte with their count.
    COLLATION_PAIRS = auto()


class Variable(NamedTuple):
    """A status variable: its name, its size or layout, and its use or the reason why it has none."""

    name: str
    layout: int | VariableLayout
    use: str


VARIABLES: dict[int, Variable] = {
    0: Variable("FLAGS2", 4, "`OPTIONS`"),
    1: Variable("SQL_MODE", 8, "`MODES`"),
    2: Variable("CATALOG", VariableLayout.TEXT_AND_NUL, "none: there is one catalog"),
    3: Variable("AUTO_INCREMENT", 4, "none: a new counter's values are read again, never computed"),
    4: Variable("CHARSET", 6, "how the text is read, its literals are converted, and a new database's default"),
    5: Variable("TIME_ZONE", VariableLayout.TEXT, "what a TIMESTAMP constant means"),
    6: Variable("CATALOG_NZ", VariableLayout.TEXT, "none: there is one catalog"),
    7: Variable("LC_TIME_NAMES", 2, "none: names of days come only of expressions, whose values are read again"),
    8: Variable("CHARSET_DATABASE", 2, "none: only LOAD DATA uses it; a new table has its database's default"),
    9: Variable("TABLE_MAP_FOR_UPDATE", 8, "none: a change of rows is never applied as a statement"),
    10: Variable("MASTER_DATA_WRITTEN", 4, "none: in relay logs of servers before 5.0"),
    11: Variable("INVOKER", VariableLayout.TWO_TEXTS, "none: who defines a view, trigger or routine"),
    12: Variable("UPDATED_DB_NAMES", VariableLayout.NAMES, "the databases that a change of rows can concern"),
    13: Variable("MICROSECONDS", 3, "none: the time of the statement comes only into values that are read again"),
    14: Variable("COMMIT_TS", 0, "none: was never released"),
    15: Variable("COMMIT_TS2", 0, "none: was never released"),
    16: Variable("EXPLICIT_DEFAULTS_FOR_TIMESTAMP", 1, "what a TIMESTAMP column without NULL or DEFAULT is"),
    17: Variable("DDL_LOGGED_WITH_XID", 8, "none: a number for the server's recovery"),
    18: Variable("DEFAULT_COLLATION_FOR_UTF8MB4", 2, "none: a collation, and no value depends on it"),
    19: Variable("SQL_REQUIRE_PRIMARY_KEY", 1, "none: it refuses statements, which are not logged then"),
    20: Variable("DEFAULT_TABLE_ENCRYPTION", 1, "none: how tables lie on the server's disk"),
    21: Variable("21", 1, "none: MySQL 9.7 writes it with changes of rows, which are never applied as statements"),
    128: Variable("HRNOW", 3, "none: as MICROSECONDS"),
    129: Variable("XID", 8, "none: a number for the server's recovery"),
    130: Variable("GTID_FLAGS3", VariableLayout.GTID_FLAGS, "none here: the GTID event has these flags, too"),
    131: Variable(
        "CHARACTER_SET_COLLATIONS", VariableLayout.COLLATION_PAIRS, "none: collations, and no value depends on them"
    ),
    255: Variable("DUMMY", 0, "none: fills an event that a server replaced"),
}
#: The value instead of a count if a statement names too many databases. No names follow.
_TOO_MANY_DATABASES = 254
#: The flags FL_COMMIT_ALTER_E1 and FL_ROLLBACK_ALTER_E1.
_GTID_OF_START_ALTER = 4 | 8

_EXPLICIT_TIMESTAMP = 1 << 24
#: The bits of FLAGS2: options of the session (``OPTIONS_WRITTEN_TO_BIN_LOG``).
OPTIONS: dict[int, str] = {
    1 << 14: "sql_auto_is_null. None: of SELECT",
    1 << 15: "check_constraint_checks = 0. None: rows are logged as they were written",
    1 << 19: "autocommit = 0. None: transactions are in the log",
    1 << 20: "autocommit = 1, as MariaDB writes it beside other options. None: as above",
    _EXPLICIT_TIMESTAMP: "explicit_defaults_for_timestamp of MariaDB: what a TIMESTAMP column is",
    1 << 26: "foreign_key_checks = 0. None: rows that a key changes are logged, or their table is parked for its key",
    1 << 27: "unique_checks = 0. None: rows are logged as they were written",
    1 << 28: "sql_if_exists of MariaDB. None: of RENAME alone, and what takes a captured name is read again anyhow",
    1 << 30: "system_versioning_insert_history of MariaDB. None: of INSERT, whose rows are logged",
}

_REAL_AS_FLOAT, _ANSI_QUOTES, _ORACLE, _MAXDB, _NO_BACKSLASH_ESCAPES = 1, 4, 512, 4096, 1 << 20
#: The bits of STRICT_TRANS_TABLES and STRICT_ALL_TABLES.
_STRICT = 1 << 21 | 1 << 22
_NO_AUTO_VALUE_ON_ZERO, _PAD_CHAR_TO_FULL_LENGTH = 1 << 19, 1 << 31
#: The bit of MariaDB's EMPTY_STRING_IS_NULL. In MySQL, the bit is another mode.
_EMPTY_STRING_IS_NULL = 1 << 32
#: The bits of ``sql_mode``.
MODES: dict[int, str] = {
    _REAL_AS_FLOAT: "REAL_AS_FLOAT: what REAL is",
    1 << 1: "PIPES_AS_CONCAT. None: of expressions, whose values are read again",
    _ANSI_QUOTES: "ANSI_QUOTES: what is a name",
    1 << 3: "IGNORE_SPACE. None: of calls of functions",
    1 << 4: "(MySQL: not used; MariaDB: IGNORE_BAD_TABLE_OPTIONS). None: options of engines",
    1 << 5: "ONLY_FULL_GROUP_BY. None: of SELECT",
    1 << 6: "NO_UNSIGNED_SUBTRACTION. None: of expressions",
    1 << 7: "NO_DIR_IN_CREATE. None: where files lie",
    1 << 8: "POSTGRESQL. None: it stands for other modes, which are set, too",
    _ORACLE: "ORACLE of MariaDB: types. In MySQL 5.7 it stands for other modes",
    1 << 10: "MSSQL. None: as POSTGRESQL",
    1 << 11: "DB2. None: as POSTGRESQL",
    _MAXDB: "MAXDB: a TIMESTAMP is a DATETIME",
    1 << 13: "NO_KEY_OPTIONS. None: of SHOW",
    1 << 14: "NO_TABLE_OPTIONS. None: of SHOW",
    1 << 15: "NO_FIELD_OPTIONS. None: of SHOW",
    1 << 16: "MYSQL323. None: of SHOW",
    1 << 17: "MYSQL40. None: of SHOW",
    1 << 18: "ANSI. None: as POSTGRESQL",
    _NO_AUTO_VALUE_ON_ZERO: "NO_AUTO_VALUE_ON_ZERO: a zero in a counter's column stays",
    _NO_BACKSLASH_ESCAPES: "NO_BACKSLASH_ESCAPES: what a literal says",
    1 << 21: "STRICT_TRANS_TABLES: a value that does not fit is an error",
    1 << 22: "STRICT_ALL_TABLES: the same",
    1 << 23: "NO_ZERO_IN_DATE. None: it refuses values, or changes those of expressions",
    1 << 24: "NO_ZERO_DATE. None: as above",
    1 << 25: "ALLOW_INVALID_DATES. None: as above",
    1 << 26: "ERROR_FOR_DIVISION_BY_ZERO. None: of expressions",
    1 << 27: "TRADITIONAL. None: it stands for other modes",
    1 << 28: "NO_AUTO_CREATE_USER. None: of GRANT",
    1 << 29: "HIGH_NOT_PRECEDENCE. None: of expressions",
    1 << 30: "NO_ENGINE_SUBSTITUTION. None: of engines",
    _PAD_CHAR_TO_FULL_LENGTH: "PAD_CHAR_TO_FULL_LENGTH: a CHAR is read with spaces at its end",
    1 << 32: "EMPTY_STRING_IS_NULL of MariaDB. MySQL, TIME_TRUNCATE_FRACTIONAL: such constants are never computed",
    1 << 33: "SIMULTANEOUS_ASSIGNMENT of MariaDB. None: of UPDATE",
    1 << 34: "TIME_ROUND_FRACTIONAL of MariaDB. None: such constants are never computed",
}
_KNOWN_OPTIONS, _KNOWN_MODES = sum(OPTIONS), sum(MODES)


@dataclass(frozen=True, slots=True)
class LogWriter:
    """The server that wrote a file of the log, according to the file's FORMAT_DESCRIPTION; empty if unknown."""

    version: tuple[int, ...] = ()
    mariadb: bool = False

    @classmethod
    def of(cls, server_version: str) -> LogWriter:
        """Parse a version like ``8.0.36``, ``10.11.19-MariaDB-log`` or ``5.5.5-10.4.1-MariaDB``."""
        numbers = server_version.removeprefix("5.5.5-").partition("-")[0].split(".")
        known = all(part.isdecimal() for part in numbers)
        return cls(tuple(map(int, numbers)) if known else (), "MariaDB" in server_version)

    @property
    def logs_timestamps(self) -> bool:
        """Return True if the writer logs `_EXPLICIT_TIMESTAMP`.

        MariaDB does since 10.5.17, 10.6.9, 10.7.5, 10.8.4 and 10.9.2; older servers have one setting for all sessions.
        """
        since = {5: 17, 6: 9, 7: 5, 8: 4, 9: 2}
        if not self.mariadb or self.version < (10, 5):
            return False
        major, minor, *rest = (*self.version, 0, 0)
        return major > 10 or minor > 9 or rest[0] >= since[minor]


#: The writer of a file that does not describe its server.
NO_WRITER = LogWriter()


@dataclass(frozen=True, slots=True)
class SessionState:
    """The settings of a session: `charset` of the statement, `connection` of its literals, both empty if not logged.

    `server_collation` is inherited by a database that it creates, 0 if not logged. `explicit_timestamps` is None on
    servers that do not log it; `time_zone` is empty if the statement used none. `databases` are the databases with
    tables that the statement changes; None if not logged. `unknown` names settings that this version does not know.
    """

    charset: str = ""
    server_collation: int = 0
    sql_mode: int = 0
    explicit_timestamps: bool | None = None
    time_zone: str = ""
    connection: str = ""
    databases: tuple[str, ...] | None = None
    unknown: str = ""

    @property
    def ansi_quotes(self) -> bool:
        return bool(self.sql_mode & _ANSI_QUOTES)

    @property
    def backslash_escapes(self) -> bool:
        return not self.sql_mode & _NO_BACKSLASH_ESCAPES

    @property
    def empty_is_null(self) -> bool:
        """Return True if an empty string is stored as NULL (MariaDB; the bit has another meaning in MySQL)."""
        return bool(self.sql_mode & _EMPTY_STRING_IS_NULL)

    @property
    def real_as_float(self) -> bool:
        return bool(self.sql_mode & _REAL_AS_FLOAT)

    @property
    def strict(self) -> bool:
        """Return True if a value that does not fit is an error. This is the default, also for an unknown session."""
        return bool(self.sql_mode & _STRICT) or self == NO_SESSION

    @property
    def zero_is_value(self) -> bool:
        """Return True if zero is stored as such in an AUTO_INCREMENT column (``NO_AUTO_VALUE_ON_ZERO``)."""
        return bool(self.sql_mode & _NO_AUTO_VALUE_ON_ZERO)

    @property
    def pads_char(self) -> bool:
        """Return True if CHAR values are read with their trailing spaces (``PAD_CHAR_TO_FULL_LENGTH``)."""
        return bool(self.sql_mode & _PAD_CHAR_TO_FULL_LENGTH)

    @property
    def oracle(self) -> bool:
        """Return True in MariaDB's Oracle mode; the bit has no meaning in MySQL 8 and later."""
        return bool(self.sql_mode & _ORACLE)

    @property
    def maxdb(self) -> bool:
        """Return True if the sql_mode MAXDB makes a TIMESTAMP a DATETIME (MariaDB, MySQL 5.7; no effect in MySQL 8)."""
        return bool(self.sql_mode & _MAXDB)


#: The state of a session whose event has no settings.
NO_SESSION = SessionState()


def parse_session(status: bytes, writer: LogWriter = NO_WRITER) -> SessionState:
    """Parse the status variables of a QUERY event that `writer` wrote."""
    values, unknown = _values(status)
    options = int.from_bytes(values.get(0, b""), "little")
    sql_mode = int.from_bytes(values.get(1, b""), "little")
    client, connection, server = (int.from_bytes(values.get(4, b"")[at : at + 2], "little") for at in (0, 2, 4))
    explicit = bool(values[16][0]) if 16 in values else None
    if writer.logs_timestamps and 0 in values:
        explicit = bool(options & _EXPLICIT_TIMESTAMP)
    if strange := options & ~_KNOWN_OPTIONS:
        unknown = unknown or f"the option {strange:#x} of FLAGS2"
    if strange := sql_mode & ~_KNOWN_MODES:
        unknown = unknown or f"the bit {strange:#x} of sql_mode"
    return SessionState(
        charset=charset_of_collation(client),
        server_collation=server,
        sql_mode=sql_mode,
        explicit_timestamps=explicit,
        time_zone=values.get(5, b"\0")[1:].decode("utf-8", "replace"),
        connection=charset_of_collation(connection),
        databases=_databases(values.get(12)),
        unknown=unknown,
    )


def _values(status: bytes) -> tuple[dict[int, bytes], str]:
    """Return the variables' values by code, up to the first unreadable one, and a description of that one."""
    values: dict[int, bytes] = {}
    at = 0
    while at < len(status):
        code, at = status[at], at + 1
        size = _size(status, code, at)
        if size is None or at + size > len(status):
            known = VARIABLES.get(code)
            return values, f"status variable {code}" if known is None else f"the end of {known.name}"
        values[code] = status[at : at + size]
        at += size
    return values, ""


def _size(status: bytes, code: int, at: int) -> int | None:
    """Return the size of the value of `code` at `at`; None for an unknown one."""
    variable = VARIABLES.get(code)
    if variable is None:
        return None
    if isinstance(variable.layout, int):
        return variable.layout
    if at >= len(status):
        return None
    first = status[at]
    match variable.layout:
        case VariableLayout.TEXT:
            return 1 + first
        case VariableLayout.TEXT_AND_NUL:
            return 2 + first
        case VariableLayout.TWO_TEXTS:
            second_at = at + 1 + first
            return None if second_at >= len(status) else 2 + first + status[second_at]
        case VariableLayout.GTID_FLAGS:
            return 9 if first & _GTID_OF_START_ALTER else 1
        case VariableLayout.COLLATION_PAIRS:
            return 1 + 4 * first
        case VariableLayout.NAMES:
            end = at + 1
            for _ in range(0 if first == _TOO_MANY_DATABASES else first):
                end = status.find(b"\0", end) + 1
                if end == 0:
                    return None
            return end - at


def _databases(value: bytes | None) -> tuple[str, ...] | None:
    if value is None or value[0] == _TOO_MANY_DATABASES:
        return None
    return tuple(name.decode("utf-8", "replace") for name in value[1:].split(b"\0")[:-1])


#: MySQL does not print widths of integers since 8.0.19 (release notes); MariaDB does.
_WITHOUT_WIDTHS = (8, 0, 19)


def dialect_of(info: MySqlServerInfo, types: TypeOptions | None = None) -> DdlDialect:
    """Return the dialect of a server's statements if the log has no session settings; `types` are the user's."""
    mariadb = info.is_mariadb
    implicit = info.variables.get("explicit_defaults_for_timestamp", "ON").upper() in ("OFF", "0")
    return DdlDialect(
        mariadb=mariadb,
        display_width=mariadb or info.version < _WITHOUT_WIDTHS,
        lower_case_names=info.variables.get("lower_case_table_names", "0") != "0",
        explicit_timestamps=not implicit,
        geomcollection=not mariadb and info.version >= (8, 0, 11),
        mariadb_comments=mariadb,
        types=types or TypeOptions(),
    )


def dialect_of_session(server: DdlDialect, session: SessionState) -> DdlDialect:
    """Return the dialect of a logged statement: that of `server` with the settings of the session."""
    explicit = session.explicit_timestamps
    return replace(
        server,
        ansi_quotes=session.ansi_quotes,
        backslash_escapes=session.backslash_escapes,
        real_as_float=session.real_as_float,
        oracle=server.mariadb and session.oracle,
        maxdb=session.maxdb,
        client=session.charset,
        connection="" if session.connection == session.charset else session.connection,
        explicit_timestamps=server.explicit_timestamps if explicit is None else explicit,
        strict=session.strict,
        zero_is_value=session.zero_is_value,
        pads_char=session.pads_char,
        time_zone=session.time_zone,
        empty_is_null=server.mariadb and session.empty_is_null,
    )
