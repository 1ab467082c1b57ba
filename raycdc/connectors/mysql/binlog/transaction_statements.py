"""Determines the effect of a statement on its transaction, if it is not in the form that servers write themselves.

Called when `event_loops.query_kind` returns `Q_ASK`. Comments of any form may come before and after the statement's
words. The lexer reads the statement in linear time. A statement that begins like one about transactions, but is not in
`_FORMS`, is `Q_DOUBT` and never skipped, because it is unknown what it rolls back.

Reference: MySQL manual, "START TRANSACTION, COMMIT, and ROLLBACK Statements", "SAVEPOINT, ROLLBACK TO SAVEPOINT, and
RELEASE SAVEPOINT Statements", "XA Transaction SQL Statements"; MariaDB's are the same.

*Names of savepoints*: servers write them in UTF-8, whatever the character set of the session, and quoted by its
``sql_mode`` (``append_identifier``). Servers differ in the collation by which they compare names. ``find_savepoint``
uses utf8mb3_general_ci, in which é equals e and ß equals s. MariaDB since 11.5 uses utf8mb3_general1400_as_ci
(``Lex_ident_ci``), in which é differs from e, and ß from s. Both collations ignore the case of ASCII letters, and
compare character by character. `is_same_name` and `may_be_same_name` therefore hold for all servers.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import islice

from raycdc.connectors.mysql.binlog.event_loops import (
    Q_BEGIN,
    Q_COMMIT,
    Q_DOUBT,
    Q_NOTHING,
    Q_OTHER,
    Q_ROLLBACK,
    Q_ROLLBACK_TO,
    Q_SAVEPOINT,
    Q_XA_FINISH,
    Q_XA_START,
)
from raycdc.connectors.mysql.binlog.session import SessionState
from raycdc.connectors.mysql.ddl.parse.tokens import LexError, LexRules, Token, TokenKind, tokenize
from raycdc.errors import DataError

#: No statement about transactions has more tokens, except XA statements, whose names do not matter here.
_TOKENS_MAX = 16
_NAME = "name"
#: The complete statements, word by word; `_NAME` stands for a name.
_FORMS: dict[tuple[str, ...], int] = {
    ("BEGIN",): Q_BEGIN,
    ("BEGIN", "WORK"): Q_BEGIN,
    ("START", "TRANSACTION"): Q_BEGIN,
    ("COMMIT",): Q_COMMIT,
    ("COMMIT", "WORK"): Q_COMMIT,
    ("ROLLBACK",): Q_ROLLBACK,
    ("ROLLBACK", "WORK"): Q_ROLLBACK,
    ("SAVEPOINT", _NAME): Q_SAVEPOINT,
    ("ROLLBACK", "TO", _NAME): Q_ROLLBACK_TO,
    ("ROLLBACK", "TO", "SAVEPOINT", _NAME): Q_ROLLBACK_TO,
    ("ROLLBACK", "WORK", "TO", _NAME): Q_ROLLBACK_TO,
    ("ROLLBACK", "WORK", "TO", "SAVEPOINT", _NAME): Q_ROLLBACK_TO,
    ("RELEASE", "SAVEPOINT", _NAME): Q_NOTHING,
}
_XA_FORMS = {
    "START": Q_XA_START,
    "BEGIN": Q_XA_START,
    "END": Q_NOTHING,
    "COMMIT": Q_XA_FINISH,
    "ROLLBACK": Q_XA_FINISH,
}
#: MariaDB's replacement for an event that a reader does not know (sql/log_event_server.cc,
#: ``Query_log_event::dummy_event``): cut, or padded with spaces, to the length of the event.
_DUMMY = re.compile(r"# Dummy event replacing event type ([0-9]{1,3}) that slave cannot handle\. *\Z")
#: Replaced events without rows or positions: ANNOTATE_ROWS, BINLOG_CHECKPOINT, GTID_LIST.
_REPLACEABLE = frozenset({160, 161, 163})


#: The first words of statements about transactions.
_WORDS = frozenset({"XA", *(form[0] for form in _FORMS)})


@dataclass(frozen=True, slots=True)
class TransactionStatement:
    """The effect of a statement on its transaction: `meaning` is one of Q_…; `savepoint` is the name in SAVEPOINT and
    ROLLBACK TO.
    """

    meaning: int
    savepoint: str = ""


def rules_of(session: SessionState) -> LexRules:
    """Return the lexer's rules for a statement of this session."""
    return LexRules(ansi_quotes=session.ansi_quotes, backslash_escapes=session.backslash_escapes)


def transaction_statement(statement: str, rules: LexRules) -> TransactionStatement:
    """Return the effect of `statement` (`QueryEvent.text`) on its transaction; `Q_OTHER` if it has none.

    Raises `DataError` for a dummy event that replaces an important one.
    """
    if statement.startswith("# Dummy "):
        _require_replaceable(statement)
    tokens: list[Token] = []
    try:
        for token in islice(tokenize(statement, rules), _TOKENS_MAX):
            tokens.append(token)
            if _word(tokens[0]) not in _WORDS:
                return TransactionStatement(Q_NOTHING if token.kind is TokenKind.END else Q_OTHER)
            if len(tokens) == 2 and _word(tokens[0]) == "XA":
                return TransactionStatement(_XA_FORMS.get(_word(token), Q_DOUBT))
    except LexError:
        return TransactionStatement(Q_DOUBT if tokens else Q_OTHER)
    # The END token is missing if the statement is longer than `_TOKENS_MAX`.
    ended = [token for token in tokens if token.kind is not TokenKind.END]
    if len(ended) < len(tokens) and (ended[-1].kind, ended[-1].text) == (TokenKind.SYMBOL, ";"):
        ended.pop()
    words = tuple(map(_word, ended))
    if (meaning := _FORMS.get(words)) is not None:
        return TransactionStatement(meaning)
    form = (*words[:-1], _NAME)
    if ended[-1].kind is TokenKind.SYMBOL or form not in _FORMS:
        return TransactionStatement(Q_DOUBT)
    return TransactionStatement(_FORMS[form], ended[-1].text)


def is_same_name(one: str, other: str) -> bool:
    """Return True if every server treats the two names of savepoints as equal."""
    return len(one) == len(other) and all(a == b or _of_ascii(a, b) for a, b in zip(one, other, strict=True))


def may_be_same_name(one: str, other: str) -> bool:
    """Return True if some server may treat the two names of savepoints as equal: their letters are equal without
    accents.
    """
    return len(one) == len(other) and all(map(_may_be_same, one, other))


def _may_be_same(one: str, other: str) -> bool:
    return one == other or _letter(one) == _letter(other)


def _letter(character: str) -> str:
    """Return `character` in upper case and without accents.

    Servers may ignore case and accents, and no other difference.
    """
    return unicodedata.normalize("NFKD", character.upper())[0].upper()[0]


def _of_ascii(one: str, other: str) -> bool:
    return one.isascii() and other.isascii() and one.upper() == other.upper()


def _word(token: Token) -> str:
    return token.text.upper() if token.kind is TokenKind.WORD else ""


def _require_replaceable(statement: str) -> None:
    dummy = _DUMMY.match(statement)
    if dummy is not None and int(dummy[1]) not in _REPLACEABLE:
        raise DataError(
            f"the server has replaced an event of type {dummy[1]} by a dummy, as if it were read by an old replica. "
            "Read the log from the server that wrote it, at the version it has"
        )
