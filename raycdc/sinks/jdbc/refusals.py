"""Classifies a database's errors by their codes: an error concerns the table of the statement, or the whole server.

If a retry may succeed, for example after a deadlock or a restart of the server, the error becomes a
`SinkUnavailableError`. If another session holds a lock, it becomes a `SinkLockedError`. An error whose code is not
listed here parks the table if a statement on the table raised it (`of_table`), because others can make a server raise
any error: a trigger raises a code of its own, calls a function that fails, or has an owner who was dropped; partitions
have no place for a row; an index is damaged. Any other error with such a code ends the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable

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
from raycdc.model import TableId
from raycdc.sinks.jdbc.plugin import COMMIT_TABLE, STAGE_SCHEMA

#: SQLSTATEs of PostgreSQL (its manual's appendix A): complete codes first, then classes.
_POSTGRES: dict[str, type[SinkError]] = {
    # A syntax error is a bug of raycdc.
    "42601": SinkError,
    "42P02": SinkError,
    "23503": ReferenceRefusedError,
    "23505": KeyRefusedError,
    "42P01": TargetDroppedError,
    "3F000": TargetDroppedError,
    "42501": TargetForbiddenError,  # a missing privilege
    "42P07": TargetForbiddenError,  # the relation is not a table, but a view or similar
    "42622": NameRefusedError,
    "54011": ColumnsRefusedError,
    "22": ValueRefusedError,  # data exceptions
    "23": ValueRefusedError,  # constraints of the target
    "54": ColumnsRefusedError,  # rows or indexes that are too wide
    "0A": TargetModifiedError,  # a view depends on the column
    "2B": TargetModifiedError,
    "42": TargetModifiedError,  # columns or types that differ from the record
    "44": TargetModifiedError,
    "P0": TargetModifiedError,  # a trigger of the target
    "08": SinkUnavailableError,  # connections
    "25P04": SinkUnavailableError,  # the transaction lasted longer than the server permits
    "25006": SinkUnavailableError,  # a read-only server, for example one that was just replaced
    "25P03": SinkUnavailableError,  # the server ended the session, because it slept within a transaction
    "40": SinkUnavailableError,  # deadlocks
    "53": SinkUnavailableError,  # no memory, disk or connection left
    "55006": SinkUnavailableError,
    "55P03": SinkLockedError,  # a lock of another session
    "57": SinkUnavailableError,  # the statement, the session or the server was ended
    "58": SinkUnavailableError,  # errors of the operating system
}
#: Messages of libpq when the server stopped responding.
_LOST = re.compile(
    r"no connection to the server|closed the connection|terminating connection|could not (?:receive|send) data|"
    r"SSL (?:SYSCALL|connection)|Connection (?:reset|refused|timed out)|Broken pipe"
)
#: Messages of libpq about a server with a wrong certificate or without encryption. OpenSSL's message about a signature
#: by another key depends on the signature's bytes ("invalid padding", "data too large for modulus", …), so all its
#: errors count, except those of a broken connection.
_TLS_REFUSED = re.compile(
    r"certificate verify failed|does not match host name|does not support SSL|root certificate file|"
    r"SSL error: (?!unexpected eof|.*(?:bad record mac|internal error|internal_error))"
)
#: Messages of a server that cannot accept a connection at the moment.
_LATER = re.compile(r"the database system is|too many (?:clients|connections)|connection slots|terminating connection")

#: PostgreSQL's message about a missing privilege, and the privileges that a loader needs.
_DENIED = re.compile(r"permission denied for (?P<what>schema|database|table) (?P<name>[^\s:]+)")
_NEEDS = {
    "schema": "USAGE, CREATE ON SCHEMA",
    "database": "CREATE ON DATABASE",
    "table": "SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON",
}

#: Patterns of the values in messages of MySQL and MariaDB. Values stand before the name of a key or column, after
#: "value:", and in quoted parts of a statement.
_MYSQL_VALUES = re.compile(
    r"'.*'(?= for (?:key|column|function) )|(?<=value: )'.*'|(?<=out of range in )'.*'|(?<=near )'.*'(?= at line)"
    r"|(?<=value: )\".*\"|(?<=no partition for value )(?!from column_list).*",
    re.DOTALL,
)
#: The places of values in PostgreSQL's errors of class 22, which are about values.
_POSTGRES_VALUES = re.compile(r'(?<!encoding )(?<!type )(?<!column )"(?:[^"]|"")*"|\b0x[0-9a-f]+(?: 0x[0-9a-f]+)*')
_SIGNAL = 1644
#: The servers have no codes from here on; a trigger may raise any number.
_OWN_CODES = 14_000

#: The codes of syntax errors, which are bugs of raycdc.
_BUGS = ("42601", "42P02", 1064)

#: The classes of SQLSTATEs whose messages are those of triggers and functions, and may quote values.
_OF_FUNCTIONS = ("09", "2F", "38", "39")
#: The standard's and PostgreSQL's classes begin with these characters. A function may raise any other code.
_KNOWN_CLASS = re.compile(r"[0-4].|5[34578]|F0|HV|P0|XX|72")

#: The classes of errors of MySQL and MariaDB, by their numbers.
_MYSQL: dict[type[SinkError], tuple[int, ...]] = {
    KeyRefusedError: (1062, 1586),
    # 1153 and 1301: a row that is larger than max_allowed_packet; 1713: an old row that the undo log has no room for.
    ValueRefusedError: (1048, 1153, 1264, 1265, 1292, 1301, 1364, 1366, 1406, 1411, 1690, 1713, 3819, 4025),
    ReferenceRefusedError: (1216, 1217, 1451, 1452),
    TargetDroppedError: (1049, 1051, 1146),
    # Connections, deadlocks and locks, and servers that shut down, start or are read-only, or whose disk or memory is
    # full (InnoDB reports a full disk as a full table, 1114).
    SinkUnavailableError: (
        *(0, 1021, 1030, 1037, 1038, 1040, 1041, 1047, 1053, 1079, 1114, 1158, 1159, 1160, 1161, 1180, 1203, 1206),
        *(1213, 1290, 1317, 1412, 1615, 1792, 1836, 1927, 2002, 2003, 2006, 2013, 2055, 3169, 4031),
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
    """Return the error class for PostgreSQL's `sqlstate`. If the connection is lost and `sqlstate` is empty, `text`
    decides.
    """
    if not sqlstate and _LOST.search(text):
        return SinkUnavailableError
    return _POSTGRES.get(sqlstate) or _POSTGRES.get(sqlstate[:2]) or SinkError


def postgres_grant(sqlstate: str, text: str, user: str) -> str:
    """Return advice about the privilege that the `user` (quoted) lacks according to `text`; empty for any other
    error.
    """
    if sqlstate != "42501" or not (found := _DENIED.search(text)):
        return ""
    return f". Who owns it may permit that: GRANT {_NEEDS[found['what']]} {found['name']} TO {user};"


def postgres_unreached(text: str) -> type[SinkError]:
    """Return the error class for a failure to connect.

    If the server refuses the connection (FATAL), or if the certificate has a problem, a retry cannot succeed. The
    exception is a refusal whose text says that a later attempt may succeed.
    """
    if _TLS_REFUSED.search(text):
        return SinkError
    return SinkError if "FATAL:" in text and not _LATER.search(text) else SinkUnavailableError


def mysql_refusal(code: int) -> type[SinkError]:
    """Return the error class for the number `code` of MySQL or MariaDB."""
    return next((error for error, codes in _MYSQL.items() if code in codes), SinkError)


def of_table(error: SinkError, target: TableId, *, exists: Callable[[], bool]) -> TargetModifiedError | None:
    """Return the error that parks `target` if a statement on it raised `error` for a reason that is not listed here.

    Returns None for any other error, and for an error of the table of commit records, which concerns all targets.
    `exists` returns True if the target exists, after a rollback. If it does, and no staging table is missing, a trigger
    uses the table that is missing.
    """
    if not error.refused_statement or COMMIT_TABLE in error.refused_statement:
        return None
    if type(error) is TargetDroppedError and STAGE_SCHEMA not in str(error) and exists():
        return TargetModifiedError(
            f"{target}: {error}. The target exists, so a trigger or function of it uses a table that is missing. "
            "Nothing was written."
        )
    if type(error) is not SinkError:
        return None
    return TargetModifiedError(
        f"The server refuses a statement on {target}: {error}. Other writers gave the table something that fails (a "
        "trigger, partitions, an index), or the server does not permit the statement."
    )


def advised(refusal: type[SinkError], text: str, *, code: str | int, statement: str = "") -> SinkError:
    """Return the `refusal` of `statement` with the server's `code` and `text`, and with advice if the text contains
    none.
    """
    if refusal is ReferenceRefusedError:
        text += (
            ". Drop the foreign keys of and to this table there: the source has them, and tables are written one after "
        )
        text += "another"
    error = refusal(text)
    error.refused_statement = "" if code in _BUGS else statement
    return error


def without_value(text: str, code: int = 0) -> str:
    """Return a message of MySQL or MariaDB without quoted values of rows or statements.

    A text that a trigger raised may contain any value, so it is replaced as a whole.
    """
    if code == _SIGNAL or code >= _OWN_CODES:
        return "a trigger or routine there refuses the row"
    # Servers send at most 512 bytes.
    return _MYSQL_VALUES.sub("'…'", text[:1024])


def without_quoted(sqlstate: str, text: str) -> str:
    """Return a message of PostgreSQL without quoted texts and bytes, except for the names of types and encodings."""
    if sqlstate.startswith("P0"):
        return "a trigger or function there refuses the row"
    if sqlstate.startswith(_OF_FUNCTIONS) or (sqlstate and not _KNOWN_CLASS.match(sqlstate)):
        return f"a trigger or function there refuses the row (SQLSTATE {sqlstate})"
    return _POSTGRES_VALUES.sub("…", text) if sqlstate.startswith("22") else text
