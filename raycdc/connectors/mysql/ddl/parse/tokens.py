"""Splits a MySQL statement into words, names, literals and symbols: the lexer of the DDL parser.

It is written by hand because general lexers get three things wrong. Version comments (``/*!50100 … */`` and MariaDB's
``/*M! … */``) are part of the statement; the server blanks those that it did not execute before it logs the statement.
``"…"`` is a name under ANSI_QUOTES and a string otherwise. Names may have any characters between backticks. Reference:
MySQL manual, chapter "Language Structure".

`shown` and the functions after it handle statements as text: they print them for users, and search them for names if
they cannot be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from raycdc.model import TableId
from raycdc.model.column_names import mysql_fold
from raycdc.model.redaction import without_literals


class TokenKind(Enum):
    """The kind of a token; keywords are WORDs, because almost any word may also be a name."""

    WORD = auto()
    NAME = auto()
    STRING = auto()
    NUMBER = auto()
    SYMBOL = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """A token.

    `text` is the value: a name without its quotes, a string with its escapes resolved. `at` is its start.
    """

    kind: TokenKind
    text: str
    at: int


class LexError(ValueError):
    """A string, a name or a comment has no end."""


# Unquoted names may have any character above ASCII, even Unicode spaces (manual, "Schema Object Names").
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n\f\v]+|\*/|--(?=[\s\x00-\x1f]|$)[^\n]*|\#[^\n]*)
    | (?P<executed>/\*(?P<kind>M?!)(?P<version>[0-9]{5,6})?)
    | (?P<comment>/\*)
    | (?P<hex>0x[0-9a-fA-F]+(?![\w$\x80-\U0010ffff])|[xX]'[0-9a-fA-F]*'|0b[01]+(?![\w$\x80-\U0010ffff])|[bB]'[01]*')
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w$\x80-\U0010ffff]))
    | (?P<open>[nN]?'|["`])
    | (?P<word>[@]{0,2}[A-Za-z0-9_$\x80-\U0010ffff]+)
    | (?P<symbol>[^\s])
    """,
    re.VERBOSE | re.ASCII,
)

_BLANKED = re.compile(r"/\*M? [0-9]{5,6}")
_COMMENT_MARK = re.compile(r"/\*|\*/")

# Escapes of the MySQL manual, "String Literals"; a backslash before any other character stands for that character.
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


#: The versions of MySQL's version comments that MariaDB never executes (its manual, "Comment Syntax").
_MYSQL_ONLY = range(50700, 100000)


@dataclass(frozen=True, slots=True)
class LexRules:
    """The rules by which a session and its server read a statement; see `DdlDialect`."""

    ansi_quotes: bool = False
    backslash_escapes: bool = True
    version: int | None = None
    mariadb: bool = False
    mariadb_comments: bool = True

    def executes(self, kind: str, number: str | None) -> bool:
        """Return True if the content of ``/*!number`` or ``/*M!number`` is executed."""
        if kind == "M!" and not self.mariadb_comments:
            return False
        if self.version is None or number is None:
            return True
        return int(number) <= self.version and not (self.mariadb and kind == "!" and int(number) in _MYSQL_ONLY)


#: The rules by which each version comment counts as part of the statement.
_ALL_EXECUTED = LexRules()


def tokenize(statement: str, rules: LexRules) -> Iterator[Token]:
    """Yield the statement's tokens without comments, followed by one END. Raises `LexError`."""
    at = 0
    while at < len(statement):
        matched = _TOKEN.match(statement, at)
        assert matched is not None, "the last alternative matches any character"
        match matched.lastgroup:
            case "comment":
                # A comment that a server did not execute is logged with a space in place of the exclamation mark.
                blanked = rules.version is None and _BLANKED.match(statement, at) is not None
                at = _comment_end(statement, at, nested=blanked)
                continue
            case "executed":
                if not rules.executes(matched["kind"], matched["version"]):
                    at = _comment_end(statement, at, nested=True)
                    continue
            case "open":
                quote = matched[0][-1]
                name = quote == "`" or (quote == '"' and rules.ansi_quotes)
                escapes = rules.backslash_escapes and not name
                text, end = _quoted(statement, matched.end() - 1, quote, backslash_escapes=escapes)
                yield Token(TokenKind.NAME if name else TokenKind.STRING, text, at)
                at = end
                continue
            case "word":
                yield Token(TokenKind.WORD, matched[0], at)
            case "number" | "hex":
                yield Token(TokenKind.NUMBER, matched[0], at)
            case "symbol":
                yield Token(TokenKind.SYMBOL, matched[0], at)
        at = matched.end()
    yield Token(TokenKind.END, "", len(statement))


def _comment_end(statement: str, at: int, *, nested: bool) -> int:
    """Return the index after the comment that begins at `at`. A comment that is not executed may contain other
    comments.
    """
    depth = 1
    for mark in _COMMENT_MARK.finditer(statement, at + 2):
        if mark[0] == "*/":
            depth -= 1
            if depth == 0:
                return mark.end()
        elif nested and depth == 1:
            depth = 2
    raise LexError("a comment does not end")


def _quoted(statement: str, at: int, quote: str, *, backslash_escapes: bool) -> tuple[str, int]:
    """Return the text between quotes that begin at `at`, and the index after them.

    A doubled quote stands for itself.
    """
    parts: list[str] = []
    stops = re.compile(r"[\\" + quote + "]") if backslash_escapes else re.compile(quote)
    start = at + 1
    while True:
        found = stops.search(statement, start)
        if found is None or (found[0] == "\\" and found.end() == len(statement)):
            raise LexError(f"a {'name' if quote == '`' else 'string'} that begins at character {at + 1} does not end")
        parts.append(statement[start : found.start()])
        following = statement[found.end() : found.end() + 1]
        if found[0] == "\\":
            parts.append(_ESCAPES.get(following, following))
        elif following == quote:
            parts.append(quote)
        else:
            return "".join(parts), found.end()
        start = found.end() + 1


def split_statements(script: str) -> Iterator[tuple[str, int]]:
    """Yield the statements of a script, each with its first line.

    A ``;`` at the end of a line, outside quotes, ends a statement. A comment may follow the ``;`` on that line. A ``;``
    within a line does not end a statement (bodies of triggers have them). Text in quotes or comments that does not end
    belongs to the last statement.
    """
    start, line = 0, 1
    for end, following in (*_statement_ends(script), (len(script), len(script))):
        statement = script[start:end]
        stripped = statement.strip()
        if stripped:
            leading = len(statement) - len(statement.lstrip())
            yield stripped, line + statement.count("\n", 0, leading)
        line += script.count("\n", start, following)
        start = following


_PIECE = re.compile(
    r"""'(?:[^'\\]|\\.|'')*+(?:'|\\?\Z)|"(?:[^"\\]|\\.|"")*+(?:"|\\?\Z)|`(?:[^`]|``)*+(?:`|\Z)"""
    r"""|(?P<end>;)(?>[ \t\r]*+(?:(?:--[ \t]|\#)[^\n]*+|/\*[^\n]*?\*/[ \t\r]*+)?)(?=\n|\Z)"""
    r"""|/\*.*?(?:\*/|\Z)|(?:--(?=\s)|\#)[^\n]*|.""",
    re.DOTALL,
)


def _statement_ends(script: str) -> Iterator[tuple[int, int]]:
    """Yield the end of each statement, and the beginning of the next one."""
    for matched in _PIECE.finditer(script):
        if matched["end"]:
            yield matched.start(), matched.end()


_SHOWN_MAX = 500
#: The longest database name, with quotes and spaces.
_QUALIFIER_MAX = 200
#: Words in statements that may add or remove rows. If such a statement is not understood, the table's schema does not
#: show its effect.
_MOVES_ROWS = re.compile(r"\b(PARTITION|TABLESPACE|VERSIONING|PERIOD|IGNORE|TRUNCATE|REPLACE)\b", re.IGNORECASE)
_ENGINE = re.compile(r"\bENGINE\b", re.IGNORECASE)
_REFERENCES = re.compile(r"\bREFERENCES\b", re.IGNORECASE)
#: The reason why a table with such a key is not followed if the server does not log cascades.
CASCADES = (
    "a foreign key changes rows of this table by cascade, which the server does not write to the log: the target would "
    "keep rows that are gone. Drop the key (let the application or a trigger change these rows) and take a new "
    'snapshot of the table, or accept it with source.on_cascade = "accept"'
)


def shown(statement: str) -> str:
    """Return the statement without its values, on one line, shortened if it is long."""
    text = " ".join(without_literals(statement).split())
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


#: A qualifier before a name, which names the database.
_QUALIFIER = re.compile(r"(?:`([^`]+)`|\"([^\"]+)\"|([\w$]+))(\s*)\.\s*[`\"]?\Z", re.DOTALL)


def mentions(text: str, table: TableId, *, db: str) -> bool:
    """Return True if the text, whose unqualified names are of `db`, names the table.

    A word in a literal or comment counts as well, and so does an ambiguous one.
    """
    for found in re.finditer(rf"(?<![\w$]){re.escape(table.table)}(?![\w$])", text, re.IGNORECASE):
        before = text[max(0, found.start() - _QUALIFIER_MAX) : found.start()]
        qualifier = _QUALIFIER.search(before)
        if qualifier is not None:
            quoted, also_quoted, bare, space = qualifier.groups()
            # A table of the session's database may be written with only a dot in front of it.
            if mysql_fold(quoted or also_quoted or bare) == mysql_fold(table.db) or (bare and space):
                return True
        elif before.rstrip('`" \t\r\n').endswith((".", "*/")) or not db or mysql_fold(db) == mysql_fold(table.db):
            return True
    return False


def first_word(statement: str, rules: LexRules = _ALL_EXECUTED) -> str:
    """Return the first word of a statement after its comments, in capitals.

    The result is empty if something else comes first, or if a comment does not end.
    """
    try:
        first = next(tokenize(statement, rules))
    except LexError:
        return ""
    return first.text.upper() if first.kind is TokenKind.WORD else ""


def begins_with(word: str, statement: str) -> bool:
    """Return True if `word`, in capitals, is the first word of the statement."""
    return first_word(statement) == word


def may_move_rows(statement: str) -> bool:
    """Return True if an ALTER that is not understood may do more than change columns."""
    return _MOVES_ROWS.search(statement) is not None


def adds_cascade(statement: str, rules: LexRules = _ALL_EXECUTED) -> bool:
    """Return True if the statement's table gets, or may get, a foreign key that changes its rows when others change."""
    refers = False
    words: list[str] = []
    try:
        for token in tokenize(statement, rules):
            words = [*words[-3:], token.text.upper() if token.kind is TokenKind.WORD else ""]
            refers = refers or words[-1] == "REFERENCES"
            if refers and (_is_cascade(words[-3:]) or _is_cascade(words)):
                return True
    except LexError:
        return _REFERENCES.search(statement) is not None
    return False


def _is_cascade(words: Sequence[str]) -> bool:
    """Return True for the words ``ON DELETE CASCADE``, ``ON UPDATE SET NULL`` and the like."""
    match words:
        case ["ON", "DELETE" | "UPDATE", "CASCADE"] | ["ON", "DELETE" | "UPDATE", "SET", "NULL" | "DEFAULT"]:
            return True
        case _:
            return False


def may_end_logging(statement: str) -> bool:
    """Return True if the statement may create a table or change its engine: some engines' rows are not logged."""
    return begins_with("CREATE", statement) or _ENGINE.search(statement) is not None
