"""Reads a statement in small steps, token by token.

`DdlCursor` adds the parts that many statements share: names of columns, tables and databases, and MariaDB's wait
clause.
"""

from __future__ import annotations

from raycdc.connectors.mysql.ddl.parse.statements import DdlDialect
from raycdc.connectors.mysql.ddl.parse.tokens import LexRules, Token, TokenKind, tokenize
from raycdc.model import TableId
from raycdc.model.redaction import without_literals


class Unparsable(Exception):  # noqa: N818 - not an error of the program: `parse_ddl` turns it into a `Refused`
    """The statement cannot be parsed from a token on. The message has the reason."""


class FilledByQuery(Unparsable):
    """The statement creates a table from a query, and was logged as a statement, so that the log lacks the rows."""


class TokenCursor:
    """A position in the tokens of a statement. A step that does not find an expected token raises `Unparsable`."""

    def __init__(self, statement: str, dialect: DdlDialect) -> None:
        rules = LexRules(
            dialect.ansi_quotes,
            dialect.backslash_escapes,
            dialect.version,
            mariadb=dialect.mariadb,
            mariadb_comments=dialect.mariadb_comments,
        )
        self._tokens = list(tokenize(statement, rules))
        self._statement = statement
        self._next = 0

    def peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def skip(self) -> Token:
        """Skip the next token and return it. A group in parentheses is skipped as a whole."""
        token = self.peek()
        self._next += 1
        if token.kind is TokenKind.SYMBOL and token.text == "(":
            self.skip_to_close()
        return token

    def skip_to_close(self) -> None:
        """Skip everything up to and including the parenthesis that closes the one already read."""
        while not self.accept_symbol(")"):
            if self.at_end():
                raise Unparsable("a parenthesis does not close")
            self.skip()

    def skip_item(self) -> None:
        """Skip everything up to the next comma or closing parenthesis of this level."""
        while not (self.at_end() or self.at_symbol(",") or self.at_symbol(")") or self.at_symbol(";")):
            self.skip()

    def at_end(self) -> bool:
        return self.peek().kind is TokenKind.END

    def word(self) -> str:
        """Return the next token in upper case if it is a bare word, otherwise an empty text."""
        token = self.peek()
        return token.text.upper() if token.kind is TokenKind.WORD else ""

    def peek_words(self, *words: str) -> bool:
        tokens = (self.peek(i) for i in range(len(words)))
        return all(t.kind is TokenKind.WORD and t.text.upper() == w for t, w in zip(tokens, words, strict=True))

    def accept(self, *words: str) -> bool:
        """Read `words` if all of them come next."""
        if not self.peek_words(*words):
            return False
        self._next += len(words)
        return True

    def expect(self, word: str) -> None:
        if not self.accept(word):
            raise Unparsable(f"{word} is expected at {self.here()}")

    def at_symbol(self, symbol: str) -> bool:
        token = self.peek()
        return token.kind is TokenKind.SYMBOL and token.text == symbol

    def accept_symbol(self, symbol: str) -> bool:
        if not self.at_symbol(symbol):
            return False
        self._next += 1
        return True

    def accept_symbols(self, symbol: str, word: str) -> bool:
        """Read ``symbol word`` if both come next."""
        following = self.peek(1)
        if self.at_symbol(symbol) and following.kind is TokenKind.WORD and following.text.upper() == word:
            self._next += 2
            return True
        return False

    def expect_symbol(self, symbol: str) -> None:
        if not self.accept_symbol(symbol):
            raise Unparsable(f"{symbol!r} is expected at {self.here()}")

    def identifier(self) -> str:
        """Read a name, quoted or not. After a dot, a number may be a name."""
        token = self.peek()
        if token.kind in (TokenKind.WORD, TokenKind.NAME) and token.text:
            self._next += 1
            return token.text
        raise Unparsable(f"a name is expected at {self.here()}")

    def string(self) -> str:
        token = self.peek()
        if token.kind is not TokenKind.STRING:
            raise Unparsable(f"a string is expected at {self.here()}")
        self._next += 1
        return token.text

    def here(self) -> str:
        """Return the next few characters, for a message."""
        if self.at_end():
            return "the end of the statement"
        text = " ".join(without_literals(self._statement[self.peek().at :]).split())
        return f"'{text if len(text) <= 30 else text[:30] + '...'}'"


class DdlCursor(TokenCursor):
    """A cursor that also reads names. `default_db` is the database of the session."""

    def __init__(self, statement: str, default_db: str, dialect: DdlDialect) -> None:
        super().__init__(statement, dialect)
        self.dialect = dialect
        self._default_db = default_db

    def column_name(self) -> str:
        """Read ``name``. MariaDB and MySQL 5.7 also accept ``table.name`` and ``db.table.name``."""
        name = self.identifier()
        while self.accept_symbol("."):
            name = self.identifier()
        return name

    def table(self, *, default_db: str | None = None) -> TableId:
        """Read ``name`` or ``db.name``, or ``.name``, which MySQL accepts for the current database."""
        db = self._default_db if default_db is None else default_db
        if self.accept_symbol("."):
            return self._table_id(db, self._part())
        name = self.identifier()
        if self.accept_symbol("."):
            return self._table_id(name, self._part())
        token = self.peek()
        # For `db.2024_items` without quotes, the lexer sees a number that begins with the dot.
        if token.kind is TokenKind.NUMBER and token.text.startswith("."):
            self.skip()
            return self._table_id(name, token.text[1:])
        return self._table_id(db, name)

    def indexed_table(self) -> TableId:
        """Read the table of ``INDEX name … ON table``."""
        while not self.at_end() and not self.accept("ON"):
            self.skip()
        return self.table()

    def database(self) -> str:
        name = self.identifier()
        return name.lower() if self.dialect.lower_case_names else name

    def wait_clause(self) -> None:
        """Read MariaDB's WAIT n and NOWAIT."""
        if self.accept("WAIT"):
            self.skip()
        else:
            self.accept("NOWAIT")

    def _part(self) -> str:
        token = self.peek()
        if token.kind is TokenKind.NUMBER:
            return self.skip().text
        return self.identifier()

    def _table_id(self, db: str, table: str) -> TableId:
        return TableId(db.lower(), table.lower()) if self.dialect.lower_case_names else TableId(db, table)
