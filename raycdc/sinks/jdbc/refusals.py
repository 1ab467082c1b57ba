"""Which of a database's errors concern the one table that a statement was about, and not the server: by their codes.

Everything that is not listed ends the run: a server that goes down, a full disk, a deadlock that was not solved.
"""

from __future__ import annotations

import re

from raycdc.errors import (
    ColumnsRefusedError,
    KeyRefusedError,
    NameRefusedError,
    SinkError,
    TargetGoneError,
    TargetTouchedError,
    ValueRefusedError,
)

#: SQLSTATEs of PostgreSQL (its manual's appendix A): whole ones first, then classes.
_POSTGRES: dict[str, type[SinkError]] = {
    # Statements that are none are ours, and a bug.
    "42601": SinkError,
    "42P02": SinkError,
    "23505": KeyRefusedError,
    "42P01": TargetGoneError,
    "3F000": TargetGoneError,
    "42622": NameRefusedError,
    "54011": ColumnsRefusedError,
    "22": ValueRefusedError,  # data exceptions
    "23": ValueRefusedError,  # constraints of the target
    "54": ColumnsRefusedError,  # rows or indexes that are too wide
    "0A": TargetTouchedError,  # a view depends on the column
    "2B": TargetTouchedError,
    "42": TargetTouchedError,  # other columns or types than its record says, a missing privilege
    "44": TargetTouchedError,
    "P0": TargetTouchedError,  # a trigger of the target
}

#: Errors of MySQL and MariaDB by their numbers.
_MYSQL: dict[type[SinkError], tuple[int, ...]] = {
    KeyRefusedError: (1062, 1586),
    ValueRefusedError: (1048, 1264, 1265, 1292, 1364, 1366, 1406, 1411, 1451, 1452, 1690, 3819, 4025),
    TargetGoneError: (1049, 1051, 1146),
    NameRefusedError: (1059, 1102, 1103),
    ColumnsRefusedError: (1060, 1071, 1074, 1117, 1118, 1166),
    TargetTouchedError: (1044, 1050, 1054, 1061, 1067, 1072, 1091, 1142, 1143, 1227, 1347, 1356, 1644),
}


def postgres_refusal(sqlstate: str) -> type[SinkError]:
    """The error that PostgreSQL's `sqlstate` is."""
    return _POSTGRES.get(sqlstate) or _POSTGRES.get(sqlstate[:2]) or SinkError


def mysql_refusal(code: int) -> type[SinkError]:
    """The error that the number `code` of MySQL or MariaDB is."""
    return next((error for error, codes in _MYSQL.items() if code in codes), SinkError)


def without_value(text: str) -> str:
    """A message of MySQL or MariaDB without the value of a row, which it quotes before it names key or column."""
    return re.sub(r"'.*' (?=for (?:key|column) )", "'…' ", text, flags=re.DOTALL)
