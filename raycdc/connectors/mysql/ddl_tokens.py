"""Words, names, literals and symbols of a MySQL statement: the lexer below the DDL parser.

Written by hand because three things decide whether a table is understood: version comments (``/*!50100 … */`` and
MariaDB's ``/*M! … */``) are part of the statement (the server blanks those it did not execute before it logs one),
``"…"`` is a name under ANSI_QUOTES and a string otherwise, and names may hold anything between backticks.
Reference: MySQL manual, chapter "Language Structure".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto


class TokenKind(Enum):
    """What a token is; keywords are WORDs, because almost any word may also be a name."""

    WORD = auto()
    NAME = auto()
    STRING = auto()
    NUMBER = auto()
    SYMBOL = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """`text` is the value: a name without its quotes, a string with its escapes resolved. `at` is where it begins."""

    kind: TokenKind
    text: str
    at: int


class LexError(ValueError):
    """A string, name or comment does not end."""


_TOKEN = re.compile(
    r"""
      (?P<space>\s+|\*/|/\*M?!\d{0,6}|--(?=[\s]|$)[^\n]*|\#[^\n]*)
    | (?P<comment>/\*)
    | (?P<hex>0[xX][0-9a-fA-F]+(?![\w$])|[xX]'[0-9a-fA-F]*'|0b[01]+(?![\w$])|[bB]'[01]*')
    | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w$]))
    | (?P<word>[@]{0,2}[\w$]+)
    | (?P<open>['"`])
    | (?P<symbol>[^\s])
    """,
    re.VERBOSE,
)

# Escapes of the MySQL manual, "String Literals"; a backslash before anything else stands for that character.
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def tokenize(statement: str, *, ansi_quotes: bool = False, backslash_escapes: bool = True) -> Iterator[Token]:
    """The statement's tokens, comments left out, ended by one END. Raises `LexError`."""
    at = 0
    while at < len(statement):
        matched = _TOKEN.match(statement, at)
        assert matched is not None, "the last alternative matches any character"
        match matched.lastgroup:
            case "comment":
                end = statement.find("*/", at + 2)
                if end < 0:
                    raise LexError("a comment does not end")
                at = end + 2
                continue
            case "open":
                quote = matched[0]
                text, end = _quoted(statement, at, quote, backslash_escapes=backslash_escapes and quote != "`")
                name = quote == "`" or (quote == '"' and ansi_quotes)
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


def _quoted(statement: str, at: int, quote: str, *, backslash_escapes: bool) -> tuple[str, int]:
    """The text between quotes that begin at `at`, and the index after them. A doubled quote stands for itself."""
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
    """Statements of a script and the line each begins at; one ends with ``;`` at the end of a line, outside quotes.

    A comment may follow on that line. A ``;`` within a line does not end a statement (bodies of triggers have them).
    Text in quotes or comments that does not end belongs to the last statement.
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
    r"""'(?:[^'\\]|\\.|'')*(?:'|\Z)|"(?:[^"\\]|\\.|"")*(?:"|\Z)|`(?:[^`]|``)*(?:`|\Z)"""
    r"""|(?P<end>;)[ \t\r]*(?:(?:--[ \t]|\#)[^\n]*|/\*[^\n]*?\*/[ \t\r]*)?(?=\n|\Z)"""
    r"""|/\*.*?(?:\*/|\Z)|(?:--(?=\s)|\#)[^\n]*|.""",
    re.DOTALL,
)


def _statement_ends(script: str) -> Iterator[tuple[int, int]]:
    """Where each statement ends, and where the next one begins."""
    for matched in _PIECE.finditer(script):
        if matched["end"]:
            yield matched.start(), matched.end()
