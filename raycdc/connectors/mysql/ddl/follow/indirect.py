"""Finds tables that a statement may change without naming them, by triggers, views and stored functions.

Used by `history` for a statement that is in the log instead of the rows it changed. A name in a text counts wherever it
occurs, with every possible meaning. An unnecessary match only causes a resnapshot, but a missed match would lose rows
silently. LOAD names one table; only that table's triggers, and the functions it calls, can change other rows
(`loaded`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection

from raycdc.clients.mysql import query, quote_name
from raycdc.connectors.mysql.ddl.parse.tokens import (
    LexError,
    LexRules,
    Token,
    TokenKind,
    begins_with,
    first_word,
    mentions,
    tokenize,
)
from raycdc.model import TableId
from raycdc.model.column_names import mysql_fold

#: The query for objects through which a statement can change tables: database, name, text that runs, and the database
#: of its unqualified names. An account sees only objects on which it has a privilege.
_OBJECTS = (
    (
        "trigger",
        "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE, ACTION_STATEMENT FROM information_schema.TRIGGERS",
    ),
    (
        "view",
        "SELECT TABLE_SCHEMA, TABLE_NAME, VIEW_DEFINITION FROM information_schema.VIEWS",
    ),
    (
        "routine",
        "SELECT ROUTINE_SCHEMA, ROUTINE_NAME, ROUTINE_DEFINITION FROM information_schema.ROUTINES",
    ),
)
#: The grants that show the texts of objects to an account that sees their names.
_GRANTS = {
    "view": "GRANT SHOW VIEW ON {name}",
    "routine": "GRANT SHOW_ROUTINE ON *.* (MySQL 8.0.20 and newer), or GRANT SELECT ON mysql.proc",
    "trigger": "GRANT TRIGGER ON {name}",
}
#: The grants that show the existence of such objects.
_GRANTS_FOR_NAMES = "GRANT TRIGGER, SHOW VIEW, EXECUTE ON *.*"
#: The first words of statements that change rows, or may change them by a function that they call.
_CHANGES_ROWS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "WITH", "SELECT", "DO"})


@dataclass(frozen=True, slots=True)
class SqlText:
    """The text of a statement or of a stored object, and the database of its unqualified names."""

    db: str
    text: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A trigger (under its table's name), view or routine. `text` is empty if the account may not see it."""

    kind: str
    db: str
    name: str
    text: str

    @property
    def unseen(self) -> str:
        """Return why the object's effect is unknown, and the grant that would show it."""
        grant = _GRANTS[self.kind].format(name=quote_name(self.db, self.name))
        name = f"{self.kind} {self.db}.{self.name}"
        return f"{name} may change any table, because this account may not see its text: {grant}"


@dataclass(frozen=True, slots=True)
class Ways:
    """The effect of a statement: the texts that run, and the objects whose text is not visible.

    Each object has the databases whose tables it may change; None: any database.
    """

    texts: tuple[SqlText, ...] = ()
    unseen: tuple[tuple[StoredObject, frozenset[str] | None], ...] = ()


def loaded(statement: SqlText, rules: LexRules) -> SqlText | None:
    """Return the table and the functions that a LOAD names, as a text; None for any other statement."""
    if not begins_with("LOAD", statement.text):
        return None
    try:
        tokens = list(tokenize(statement.text, rules))
    except LexError:
        return None
    words = [token.text.upper() if token.kind is TokenKind.WORD else "" for token in tokens]
    into = next((at for at in range(len(words)) if words[at : at + 2] == ["INTO", "TABLE"]), len(words))
    names, end = _qualified(tokens, into + 2)
    if not names:
        return None
    calls = []
    while end < len(tokens):
        called, behind = _qualified(tokens, end)
        if called and tokens[behind].text == "(":
            calls.append(called)
        end = max(behind, end + 1)
    return SqlText(statement.db, " ".join(["LOAD INTO", names, *calls]))


def _qualified(tokens: Sequence[Token], at: int) -> tuple[str, int]:
    """Return the name that begins at `at`, with its database if stated, and the index after it.

    The name may be empty.
    """
    parts: list[str] = []
    while at < len(tokens) and tokens[at].kind in (TokenKind.WORD, TokenKind.NAME):
        parts.append(tokens[at].text)
        if (tokens[at + 1].kind, tokens[at + 1].text) != (TokenKind.SYMBOL, "."):
            return quote_name(*parts), at + 1
        at += 2
    return "", at


def is_change_of_rows(statement: str) -> bool:
    """Return True if a statement of the log changes rows, which should have been logged as rows."""
    return first_word(statement) in _CHANGES_ROWS


def tables_reached(
    statement: SqlText,
    ways_of: Callable[[SqlText], Ways] | None,
    tables: Iterable[TableId],
    *,
    databases: Sequence[str] | None = None,
    shadowed: Callable[[TableId], bool] = lambda _: False,
    rules: LexRules = LexRules(),  # noqa: B008  frozen
) -> dict[TableId, str]:
    """Return the `tables` that a change of rows may concern, each with the reason if it is not named.

    `databases` are the databases in which the statement changes tables, if the server reported them. `shadowed` returns
    True if the statement means a temporary table of that name. `rules` are the session's rules for reading it.
    """
    statement = loaded(statement, rules) or statement
    if databases is not None:
        changed = {mysql_fold(db) for db in databases}
        tables = [table for table in tables if mysql_fold(table.db) in changed]
    tables = list(tables)
    reached = {t: "" for t in tables if mentions(statement.text, t, db=statement.db) and not shadowed(t)}
    if ways_of is None or not (rest := [table for table in tables if table not in reached]):
        return reached
    ways = ways_of(statement)
    texts = [statement, *ways.texts]
    for table in rest:
        seen = next((text for text in ways.texts if mentions(text.text, table, db=text.db)), None)
        unseen = next((o for o, of in ways.unseen if of is None or mysql_fold(table.db) in of), None)
        if seen is not None:
            reached[table] = ""
        elif unseen is not None:
            reached[table] = unseen.unseen
        elif databases is not None and not any(_is_of(text, table.db) for text in texts):
            reached[table] = (
                f"the server says that it changes tables of {table.db}, by objects that this account does not see: "
                f"{_GRANTS_FOR_NAMES}"
            )
    return reached


class IndirectChanges:
    """The search for a statement's indirect effects. `connect` opens a connection to the server of the log."""

    def __init__(self, connect: Callable[[], Connection[Any]]) -> None:
        self._connect = connect

    def __call__(self, statement: SqlText) -> Ways:
        """Return the effect of the statement, according to the server's present objects."""
        with closing(self._connect()) as connection:
            objects = [
                StoredObject(kind, _text(db), _text(name), _text(body))
                for kind, sql in _OBJECTS
                for db, name, body in query(connection, sql)
                if db != "sys"
            ]
            texts, unseen = reached(statement, objects)
            return Ways(texts, tuple((each, _databases_of(connection, each)) for each in unseen))


def reached(
    statement: SqlText, objects: Sequence[StoredObject]
) -> tuple[tuple[SqlText, ...], tuple[StoredObject, ...]]:
    """Return the texts of `objects` that a statement reaches directly or indirectly, and the objects without a text."""
    left, texts, unseen = list(objects), [statement], list[StoredObject]()
    for text in texts:  # The loop itself appends to this list.
        met = [each for each in left if mentions(text.text, TableId(each.db, each.name), db=text.db)]
        left = [each for each in left if each not in met]
        texts += [SqlText(each.db, each.text) for each in met if each.text]
        unseen += [each for each in met if not each.text]
    return tuple(texts[1:]), tuple(unseen)


def _databases_of(connection: Connection[Any], unseen: StoredObject) -> frozenset[str] | None:
    """Return the databases of the tables of a view's columns, which MariaDB reports.

    Columns without a database cannot be changed.
    """
    if unseen.kind != "view" or "mariadb" not in connection.get_server_info().lower():
        return None
    try:
        connection.query(f"SELECT * FROM {quote_name(unseen.db, unseen.name)} LIMIT 0")
        answer: Any = connection._result
    except pymysql.Error:
        return None
    databases = frozenset(mysql_fold(_text(field.db)) for field in answer.fields if field.db)
    # Some versions report the view's own database, which proves nothing.
    return None if mysql_fold(unseen.db) in databases else databases or None


def _is_of(text: SqlText, db: str) -> bool:
    """Return True if the text has names of the database, or may have some."""
    named = re.search(rf"(?<!\w){re.escape(db)}(?!\w)", text.text, re.IGNORECASE)
    return mysql_fold(text.db) == mysql_fold(db) or named is not None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
