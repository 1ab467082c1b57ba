"""Cases in which the log differs from the table's content, so that a target that follows the log would differ, too.

| case | content of the log |
|---|---|
| a VIRTUAL column that reads an AUTO_INCREMENT column (MariaDB) | in an INSERT, a value from before the numbering |
| a VIRTUAL column that reads DEFAULT(x) | MariaDB's value without the default; and no server logs that a new default \
changed it in all rows |
| a MERGE table | rows of the tables below it as its own, but not the rows that were written to these tables directly |
| a table below a MERGE table | no rows written through the MERGE table |
| YEAR(2) in a key | two digits, which several years have |

Such tables are parked: before their first row (`raycdc.connectors.mysql.server.checks.unfit`), and at the statement
that makes them so. Other differences between log and SELECT are resolved by decoding;
tests/integration/connectors/mysql/test_logged_otherwise.py lists the cases tested.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from raycdc.connectors.mysql.ddl.parse.statements import ColumnDefinition, DdlDialect
from raycdc.connectors.mysql.ddl.parse.token_cursor import DdlCursor, Unparsable
from raycdc.connectors.mysql.ddl.parse.tokens import TokenKind
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable, is_short_year
from raycdc.model import TableId
from raycdc.model.column_names import mysql_fold

#: The servers' names of the MERGE engine.
MERGE_ENGINES = frozenset({"mrg_myisam", "merge"})
#: The name that stands for the function DEFAULT() among the names that an expression reads.
DEFAULT_FUNCTION = "default()"
#: The reason why a MERGE table, and the tables that it consists of, cannot be followed.
MERGED = (
    "the server logs rows that are written through a MERGE table under that table's name, so that neither it nor the "
    "tables below it can be followed"
)

_PUTS_BELOW = re.compile(r"(?=.*\b(CREATE|ALTER)\b).*\bUNION\b", re.IGNORECASE | re.DOTALL)
_QUOTED_OR_WORD = re.compile(r"`((?:[^`]|``)+)`|'(?:[^'\\]|''|\\.)*'|([^\W\d][\w$]*)(\s*\()?", re.DOTALL)


def names_read(expression: str) -> frozenset[str]:
    """Return the case-folded names in an expression as the server prints it; `DEFAULT_FUNCTION` if it reads a
    default.
    """
    expression = expression.replace("\\'", "'")  # MySQL prints quotes in this form.
    found = set()
    for match in _QUOTED_OR_WORD.finditer(expression):
        name, word, call = match.groups()
        if word and word.upper() == "DEFAULT" and call:
            found.add(DEFAULT_FUNCTION)
        elif name or (word and not call):
            found.add(mysql_fold(name.replace("``", "`") if name else word))
    return frozenset(found)


def misleading(columns: Iterable[MySqlColumn], reads: Mapping[str, frozenset[str]]) -> str:
    """Return the first VIRTUAL column whose logged values differ from its own; empty if there is none.

    `reads` has the names that the expression of each generated column reads.
    """
    described = {mysql_fold(column.name): column for column in columns}
    wrong = {name for name, column in described.items() if column.is_counter} | {DEFAULT_FUNCTION}
    count = -1
    while count != len(wrong):
        count = len(wrong)
        wrong |= {
            name
            for name, column in described.items()
            if column.is_virtual and not wrong.isdisjoint(reads.get(column.name, frozenset()))
        }
    return next((column.name for name, column in described.items() if column.is_virtual and name in wrong), "")


def definitions_mislead(definitions: Iterable[ColumnDefinition], columns: Iterable[MySqlColumn]) -> str:
    """Return `misleading` for the columns of a new table, as a statement defines them."""
    return misleading(columns, {definition.name: definition.reads for definition in definitions})


def unlogged_reason(table: MySqlTable) -> str:
    """Return why the log lacks the table's rows, with advice; empty if it has them."""
    leave = "or leave the table out with source.exclude."
    if table.engine.lower() in MERGE_ENGINES:
        return f"Table {table.id}: {MERGED}. Capture the tables below it after it was dropped, {leave}"
    if table.misleading:
        return (
            f"Table {table.id}: the log has other values of the VIRTUAL column {table.misleading!r} than the table, "
            "because it reads an AUTO_INCREMENT column or a default, itself or by another such column. Drop it, let it "
            f"read neither, make it STORED where the server allows that, {leave}"
        )
    short = next((c.name for c in table.columns if c.name in table.primary_key and is_short_year(c.shape)), "")
    if short:
        return (
            f"Table {table.id}: the key column {short!r} is a YEAR(2), which prints the same two digits for several "
            f"years, so that its rows cannot be distinguished. Make it a YEAR, {leave}"
        )
    return ""


def tables_below(statement: str, default_db: str, dialect: DdlDialect) -> tuple[TableId, ...]:
    """Return the tables that a CREATE TABLE or ALTER TABLE puts below a MERGE table (``UNION = (a, b)``)."""
    if _PUTS_BELOW.match(statement) is None:
        return ()
    found: list[TableId] = []
    try:
        cursor = DdlCursor(statement, default_db, dialect)
        while not cursor.at_end():
            if not cursor.accept("UNION"):
                cursor.skip()
                continue
            cursor.accept_symbol("=")
            if not cursor.at_symbol("(") or cursor.peek(1).kind not in (TokenKind.WORD, TokenKind.NAME):
                continue
            if cursor.peek(1).kind is TokenKind.WORD and cursor.peek(1).text.upper() in ("SELECT", "WITH", "VALUES"):
                continue
            cursor.accept_symbol("(")
            found.append(cursor.table())
            while cursor.accept_symbol(","):
                found.append(cursor.table())
    except Unparsable:
        return tuple(found)
    return tuple(found)
