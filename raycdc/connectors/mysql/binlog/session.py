"""The session's settings that a QUERY event of the log carries: how its statement is to be read.

Reference: MySQL source, ``Query_event`` in libs/mysql/binlog/event/statement_events.h; MariaDB's own codes begin at
128.
"""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.connectors.mysql.values.charsets import charset_of_collation

_SQL_MODE, _CHARSET, _TIME_ZONE, _TIMESTAMPS = 1, 4, 5, 16
#: Sizes of the variables that have a fixed one.
_SIZES = {0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8, 18: 2, 19: 1, 20: 1, 128: 3, 129: 8}
#: Written instead of a count where a statement names too many databases; no names follow.
_TOO_MANY_DATABASES = 254

_REAL_AS_FLOAT, _ANSI_QUOTES, _ORACLE, _NO_BACKSLASH_ESCAPES = 1, 4, 512, 1 << 20
#: STRICT_TRANS_TABLES and STRICT_ALL_TABLES.
_STRICT = 1 << 21 | 1 << 22
_NO_AUTO_VALUE_ON_ZERO, _PAD_CHAR_TO_FULL_LENGTH = 1 << 19, 1 << 31
#: MariaDB's; in MySQL the bit is another mode.
_EMPTY_STRING_IS_NULL = 1 << 32


@dataclass(frozen=True, slots=True)
class SessionState:
    """`charset` is the statement's; `server_collation` what a database created by it inherits, 0 where not logged.

    `explicit_timestamps` is None on servers that do not log it; `time_zone` is empty where the statement used none.
    """

    charset: str = ""
    server_collation: int = 0
    sql_mode: int = 0
    explicit_timestamps: bool | None = None
    time_zone: str = ""

    @property
    def ansi_quotes(self) -> bool:
        return bool(self.sql_mode & _ANSI_QUOTES)

    @property
    def backslash_escapes(self) -> bool:
        return not self.sql_mode & _NO_BACKSLASH_ESCAPES

    @property
    def empty_is_null(self) -> bool:
        """MariaDB takes an empty string for NULL; the bit means something else in MySQL."""
        return bool(self.sql_mode & _EMPTY_STRING_IS_NULL)

    @property
    def real_as_float(self) -> bool:
        return bool(self.sql_mode & _REAL_AS_FLOAT)

    @property
    def strict(self) -> bool:
        """A value that does not fit is an error; of a session nothing is known of, too, as it is by default."""
        return bool(self.sql_mode & _STRICT) or self == NO_SESSION

    @property
    def zero_is_value(self) -> bool:
        """A zero in a counter's column stays (``NO_AUTO_VALUE_ON_ZERO``)."""
        return bool(self.sql_mode & _NO_AUTO_VALUE_ON_ZERO)

    @property
    def pads_char(self) -> bool:
        """A CHAR is read with spaces at its end (``PAD_CHAR_TO_FULL_LENGTH``)."""
        return bool(self.sql_mode & _PAD_CHAR_TO_FULL_LENGTH)

    @property
    def oracle(self) -> bool:
        """MariaDB's Oracle mode; the bit means nothing in MySQL 8 and later."""
        return bool(self.sql_mode & _ORACLE)


#: Of a statement whose event says nothing.
NO_SESSION = SessionState()


def parse_session(status: bytes) -> SessionState:
    """The status variables of a QUERY event. Reading ends at a code this version does not know."""
    charset, collation, sql_mode, time_zone = "", 0, 0, ""
    explicit: bool | None = None
    at = 0
    while at < len(status):
        code, at = status[at], at + 1
        size = _size(status, code, at)
        if size is None or at + size > len(status):
            break
        value = status[at : at + size]
        if code == _SQL_MODE:
            sql_mode = int.from_bytes(value, "little")
        elif code == _CHARSET:
            charset = charset_of_collation(int.from_bytes(value[0:2], "little"))
            collation = int.from_bytes(value[4:6], "little")
        elif code == _TIME_ZONE:
            time_zone = value[1:].decode("utf-8", "replace")
        elif code == _TIMESTAMPS:
            explicit = bool(value[0])
        at += size
    return SessionState(charset, collation, sql_mode, explicit, time_zone)


def _size(status: bytes, code: int, at: int) -> int | None:
    """Bytes of the value of `code` that begins at `at`; None for one that is not known."""
    if code in _SIZES:
        return _SIZES[code]
    if at >= len(status):
        return None
    first = status[at]
    match code:
        case 5 | 6:  # time zone, catalog: length and text
            return 1 + first
        case 2:  # catalog as very old servers wrote it: a NUL behind it
            return 2 + first
        case 11:  # invoker: user and host, each with its length
            host_at = at + 1 + first
            return None if host_at >= len(status) else 2 + first + status[host_at]
        case 12:  # databases the statement writes to
            if first == _TOO_MANY_DATABASES:
                return 1
            end = at + 1
            for _ in range(first):
                end = status.find(b"\0", end) + 1
                if end == 0:
                    return None
            return end - at
        case _:
            return None
