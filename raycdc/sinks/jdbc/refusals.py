"""Which of a database's errors concern the one table that a statement was about, and not the server: by their codes.

A server that goes down, a deadlock, a lock that somebody holds: the same may succeed later (`SinkUnavailableError`, and
`SinkLockedError` of the lock).
Everything that is not listed ends the run.
"""

from __future__ import annotations

import re

from raycdc.errors import (
    ColumnsRefusedError,
    KeyRefusedError,
    NameRefusedError,
    ReferenceRefusedError,
    SinkError,
    SinkLockedError,
    SinkUnavailableError,
    TargetDroppedError,
    TargetForbiddenError,
    TargetModifiedError,
    ValueRefusedError,
)

#: SQLSTATEs of PostgreSQL (its manual's appendix A): whole ones first, then classes.
_POSTGRES: dict[str, type[SinkError]] = {
    # Statements that are none are ours, and a bug.
    "42601": SinkError,
    "42P02": SinkError,
    "23503": ReferenceRefusedError,
    "23505": KeyRefusedError,
    "42P01": TargetDroppedError,
    "3F000": TargetDroppedError,
    "42501": TargetForbiddenError,  # a privilege lacks
    "42P07": TargetForbiddenError,  # no table, which would have been found: a view or the like has the name
    "42622": NameRefusedError,
    "54011": ColumnsRefusedError,
    "22": ValueRefusedError,  # data exceptions
    "23": ValueRefusedError,  # constraints of the target
    "54": ColumnsRefusedError,  # rows or indexes that are too wide
    "0A": TargetModifiedError,  # a view depends on the column
    "2B": TargetModifiedError,
    "42": TargetModifiedError,  # other columns or types than its record says
    "44": TargetModifiedError,
    "P0": TargetModifiedError,  # a trigger of the target
    "08": SinkUnavailableError,  # connections
    "25006": SinkUnavailableError,  # a server that only reads, as one that was just replaced
    "25P03": SinkUnavailableError,  # the server ended the session, because it slept within a transaction
    "40": SinkUnavailableError,  # deadlocks
    "53": SinkUnavailableError,  # no memory, disk or connection left
    "55006": SinkUnavailableError,
    "55P03": SinkLockedError,  # a lock that somebody holds
    "57": SinkUnavailableError,  # somebody ended the statement, the session or the server
    "58": SinkUnavailableError,  # the system's errors
}
#: The words of libpq where the server said nothing any more.
_LOST = re.compile(
    r"no connection to the server|closed the connection|terminating connection|could not (?:receive|send) data|"
    r"SSL (?:SYSCALL|connection)|Connection (?:reset|refused|timed out)|Broken pipe"
)
#: The words of libpq about a server that is not the one that it should be, or is not encrypted. What OpenSSL says of a
#: signature that another key made depends on its bytes ("invalid padding", "data too large for modulus", …): all its
#: errors are refusals but those of a connection that broke.
_TLS_REFUSED = re.compile(
    r"certificate verify failed|does not match host name|does not support SSL|root certificate file|"
    r"SSL error: (?!unexpected eof|.*(?:bad record mac|internal error|internal_error))"
)
#: The server's words to who connects while it cannot serve.
_LATER = re.compile(r"the database system is|too many (?:clients|connections)|connection slots|terminating connection")

#: Words of PostgreSQL about a privilege that lacks, and what a loader needs there.
_DENIED = re.compile(r"permission denied for (?P<what>schema|database|table) (?P<name>[^\s:]+)")
_NEEDS = {
    "schema": "USAGE, CREATE ON SCHEMA",
    "database": "CREATE ON DATABASE",
    "table": "SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON",
}

#: Values in texts of MySQL and MariaDB: before they name the key or column, behind "value:", and parts of a statement.
_MYSQL_VALUES = re.compile(
    r"'.*'(?= for (?:key|column|function) )|(?<=value: )'.*'|(?<=out of range in )'.*'|(?<=near )'.*'(?= at line)"
    r"|(?<=value: )\".*\"",
    re.DOTALL,
)
#: Of errors of class 22 of PostgreSQL, which are about values.
_POSTGRES_VALUES = re.compile(r'(?<!encoding )(?<!type )(?<!column )"(?:[^"]|"")*"|\b0x[0-9a-f]+(?: 0x[0-9a-f]+)*')
_SIGNAL = 1644

#: Errors of MySQL and MariaDB by their numbers.
_MYSQL: dict[type[SinkError], tuple[int, ...]] = {
    KeyRefusedError: (1062, 1586),
    # 1153 and 1301: a row that is larger than max_allowed_packet; 1713: an old row that the undo log has no room for.
    ValueRefusedError: (1048, 1153, 1264, 1265, 1292, 1301, 1364, 1366, 1406, 1411, 1690, 1713, 3819, 4025),
    ReferenceRefusedError: (1216, 1217, 1451, 1452),
    TargetDroppedError: (1049, 1051, 1146),
    # Connections, deadlocks and locks, servers that shut down, start, only read or have no disk left.
    SinkUnavailableError: (
        *(0, 1021, 1040, 1047, 1053, 1079, 1158, 1159, 1160, 1161, 1203, 1213, 1290, 1317, 1836, 1927),
        *(2002, 2003, 2006, 2013, 2055, 3169, 4031),
    ),
    SinkLockedError: (1205,),
    NameRefusedError: (1059, 1102, 1103),
    # 1070, 1073, 1170 and 1709: keys; 1425 to 1427: digits; 1439: a width.
    ColumnsRefusedError: (
        *(1060, 1063, 1069, 1070, 1071, 1073, 1074, 1113, 1117, 1118, 1163, 1166, 1167, 1170, 1171),
        *(1425, 1426, 1427, 1439, 1709),
    ),
    # Privileges; 1050 and 1347: a view has the name.
    TargetForbiddenError: (1044, 1050, 1142, 1143, 1227, 1347),
    # 1906 and 3105: a column that the server computes.
    TargetModifiedError: (1054, 1061, 1067, 1072, 1091, 1356, 1644, 1906, 3105),
}


def postgres_refusal(sqlstate: str, text: str = "") -> type[SinkError]:
    """The error that PostgreSQL's `sqlstate` is; without one, because the connection is lost, the one in the `text`."""
    if not sqlstate and _LOST.search(text):
        return SinkUnavailableError
    return _POSTGRES.get(sqlstate) or _POSTGRES.get(sqlstate[:2]) or SinkError


def postgres_grant(sqlstate: str, text: str, user: str) -> str:
    """The advice about what the `user` (quoted) lacks, which PostgreSQL says in `text`; empty for any other refusal."""
    if sqlstate != "42501" or not (found := _DENIED.search(text)):
        return ""
    return f". Who owns it may permit that: GRANT {_NEEDS[found['what']]} {found['name']} TO {user};"


def postgres_unreached(text: str) -> type[SinkError]:
    """The error that a failure to connect is: what the server refuses (FATAL) stays so, unless it says "later", and so
    does what a client thinks of its certificate.
    """
    if _TLS_REFUSED.search(text):
        return SinkError
    return SinkError if "FATAL:" in text and not _LATER.search(text) else SinkUnavailableError


def mysql_refusal(code: int) -> type[SinkError]:
    """The error that the number `code` of MySQL or MariaDB is."""
    return next((error for error, codes in _MYSQL.items() if code in codes), SinkError)


def advised(refusal: type[SinkError], text: str) -> SinkError:
    """The `refusal` with the server's `text`, and what to do where the server says nothing of that."""
    if refusal is ReferenceRefusedError:
        text += (
            ". Drop the foreign keys of and to this table there: the source has them, and tables are written one after "
        )
        text += "another"
    return refusal(text)


def without_value(text: str, code: int = 0) -> str:
    """A message of MySQL or MariaDB without what it quotes of a row or of a statement with rows; none of a trigger."""
    if code == _SIGNAL:
        return "a trigger or routine there refuses the row"
    return _MYSQL_VALUES.sub("'…'", text)


def without_quoted(sqlstate: str, text: str) -> str:
    """A message of PostgreSQL likewise: texts in quotes and bytes, but for the names of types and encodings."""
    if sqlstate.startswith("P0"):
        return "a trigger or function there refuses the row"
    return _POSTGRES_VALUES.sub("…", text) if sqlstate.startswith("22") else text
