"""The parts that many statements share: names of columns, tables and databases, and MariaDB's wait clause."""

from __future__ import annotations

from raycdc.connectors.mysql.ddl.statements import DdlDialect
from raycdc.connectors.mysql.ddl.token_cursor import TokenCursor
from raycdc.connectors.mysql.ddl.tokens import TokenKind
from raycdc.model import TableId


class Cursor(TokenCursor):
    """Reads a statement of a session whose database is `default_db`, token by token and name by name."""

    def __init__(self, statement: str, default_db: str, dialect: DdlDialect) -> None:
        super().__init__(statement, dialect)
        self.dialect = dialect
        self._default_db = default_db

    def column_name(self) -> str:
        """``name``, which MariaDB and MySQL 5.7 also take as ``table.name`` and ``db.table.name``."""
        name = self.identifier()
        while self.accept_symbol("."):
            name = self.identifier()
        return name

    def table(self, *, default_db: str | None = None) -> TableId:
        """``name`` or ``db.name``; also ``.name``, which MySQL accepts for the current database."""
        db = self._default_db if default_db is None else default_db
        if self.accept_symbol("."):
            return self._table_id(db, self._part())
        name = self.identifier()
        if self.accept_symbol("."):
            return self._table_id(name, self._part())
        token = self.peek()
        # `db.2024_items` without quotes: the lexer sees the number's dot.
        if token.kind is TokenKind.NUMBER and token.text.startswith("."):
            self.skip()
            return self._table_id(name, token.text[1:])
        return self._table_id(db, name)

    def database(self) -> str:
        name = self.identifier()
        return name.lower() if self.dialect.lower_case_names else name

    def wait_clause(self) -> None:
        """MariaDB's WAIT n and NOWAIT."""
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
