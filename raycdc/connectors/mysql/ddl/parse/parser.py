"""Parses DDL statements into `statements` values: a recursive-descent parser for clauses about tables and columns.

Clauses that cannot change a table's rows or columns (indexes, constraints, engine, partition layout) are skipped by
their form. A clause that could change them, but is not understood, raises `Unparsable`; nothing is guessed. Grammar:
MySQL manual, "CREATE TABLE Statement" and "ALTER TABLE Statement", with MariaDB's IF [NOT] EXISTS, OR REPLACE, WAIT and
ONLINE. Called by `parse_ddl` only.
"""

from __future__ import annotations

from dataclasses import replace

from raycdc.connectors.mysql.ddl.parse.alter_parser import AlterParser
from raycdc.connectors.mysql.ddl.parse.statements import (
    AlterAction,
    AlterTable,
    ColumnDefinition,
    CreateOrAlterDatabase,
    CreateTable,
    DropDatabase,
    DropTable,
    RenameTable,
    RowsUnlogged,
    SetPrimaryKey,
    TableDdl,
    TemporaryTable,
    TruncateTable,
    UniqueKey,
)
from raycdc.connectors.mysql.ddl.parse.token_cursor import FilledByQuery, Unparsable
from raycdc.model.column_names import mysql_fold

#: The first words of a query, from which CREATE TABLE may take columns.
_QUERY_WORDS = frozenset({"SELECT", "AS", "IGNORE", "REPLACE", "TABLE", "VALUES"})


class StatementParser(AlterParser):
    """The parser of one statement; `parse` is called once."""

    def parse(self) -> list[TableDdl]:
        """Return the effects of the statement on tables, in order; empty if it has none."""
        if self.accept("SET", "STATEMENT"):
            self._skip_set_statement()
        statement = self._by_first_word()
        self.accept_symbol(";")
        if statement and not self.at_end():
            raise Unparsable(f"{self.here()} after the statement is not understood")
        return statement

    def _by_first_word(self) -> list[TableDdl]:
        match self.word():
            case "CREATE":
                return self._create()
            case "ALTER":
                return self._alter()
            case "DROP":
                return self._drop()
            case "RENAME":
                return self._rename()
            case "TRUNCATE":
                self.accept("TRUNCATE")
                self.accept("TABLE")
                table = self.table()
                self.wait_clause()
                return [TruncateTable(table)]
            case _:
                return []

    def _skip_set_statement(self) -> None:
        """Skip MariaDB's ``SET STATEMENT variable = value, … FOR``."""
        while not self.at_end() and not self.accept("FOR"):
            self.skip()

    # CREATE, DROP, RENAME ---------------------------------------------------------------------------------------------

    def _create(self) -> list[TableDdl]:
        self.accept("CREATE")
        or_replace = self.accept("OR", "REPLACE")
        if self.accept("DATABASE") or self.accept("SCHEMA"):
            if_not_exists = self.accept("IF", "NOT", "EXISTS")
            return [self._database(created=True, if_not_exists=if_not_exists, or_replace=or_replace)]
        if self.accept("UNIQUE"):
            table = self.indexed_table()
            self.skip_rest()
            return [AlterTable(table, (UniqueKey(),))]
        temporary = self.accept("TEMPORARY")
        if not self.accept("TABLE"):
            return []
        if_not_exists = self.accept("IF", "NOT", "EXISTS")
        table = self.table()
        if temporary:
            self.skip_rest()
            return [TemporaryTable(table, created=True)]
        like = self.accept("LIKE") or self.accept_symbols("(", "LIKE")
        if like:
            other = self.table()
            self.accept_symbol(")")
            return [CreateTable(table, like=other, if_not_exists=if_not_exists, or_replace=or_replace)]
        if not self.accept_symbol("("):
            raise FilledByQuery("CREATE TABLE without a list of columns (… SELECT) does not say its columns")
        columns, primary_key = self._create_elements()
        charset, collation, comment, versioned = self._table_options()
        return [
            CreateTable(
                table,
                columns,
                primary_key or tuple(column.name for column in columns if column.primary_key),
                charset,
                collation,
                comment,
                if_not_exists=if_not_exists,
                or_replace=or_replace,
                versioned=versioned or self.versioned_columns,
                unique_keys=self.unique_keys + sum(column.unique for column in columns),
            )
        ]

    def _database(
        self, *, created: bool, if_not_exists: bool = False, or_replace: bool = False
    ) -> CreateOrAlterDatabase:
        """Parse a database's name (default: the session's database) and options."""
        named = self.word() not in ("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "ENCRYPTION", "COMMENT", "READ")
        db = self.database() if named and not self.at_end() else self._default_db
        charset = collation = ""
        of_session = created
        while not self.at_end() and not self.at_symbol(";"):
            self.accept("DEFAULT")
            found = self.charset_option()
            if found is None:
                self.skip()
            elif not any(found):
                charset, collation, of_session = "", "", True
            else:
                charset, collation, of_session = found[0] or charset, found[1] or collation, False
        return CreateOrAlterDatabase(db, charset, collation, created, if_not_exists, or_replace, of_session)

    def _create_elements(self) -> tuple[tuple[ColumnDefinition, ...], tuple[str, ...]]:
        columns: list[ColumnDefinition] = []
        primary_key: tuple[str, ...] = ()
        while True:
            key = self.key_or_constraint()
            if key is None:
                columns.append(self.column_definition())
            else:
                primary_key = key or primary_key
            if self.accept_symbol(")"):
                period = {mysql_fold(name) for name in self.period_columns}
                defined = (replace(c, nullable=c.nullable and mysql_fold(c.name) not in period) for c in columns)
                return tuple(defined), primary_key
            self.expect_symbol(",")

    def _table_options(self) -> tuple[str, str, str, bool]:
        """Parse character set, collation, comment and system versioning after the columns of CREATE TABLE."""
        charset = collation = comment = ""
        versioned = False
        while not self.at_end() and not self.at_symbol(";"):
            if self.accept("PARTITION", "BY"):
                self._skip_partitions()
                continue
            if self.word() in _QUERY_WORDS or self.at_symbol("("):
                raise FilledByQuery("CREATE TABLE … SELECT does not say all its columns")
            if self.accept("WITH", "SYSTEM", "VERSIONING"):
                versioned = True
                continue
            if self.accept("UNION"):
                self.accept_symbol("=")
                self.skip()
                continue
            self.accept("DEFAULT")
            found = self.charset_option()
            if found is not None:
                # On some servers, a set that follows a collation also sets its default collation.
                charset, collation = found[0] or charset, found[1]
            elif self.accept("COMMENT"):
                self.accept_symbol("=")
                comment = self.string()
            else:
                self._skip_option()
        return charset, collation, comment, versioned

    def _skip_option(self) -> None:
        """Skip ``name [=] value``. The value may be any word, even DEFAULT or the name of an option."""
        self.skip()
        if self.accept_symbol("="):
            self.skip()

    def _skip_partitions(self) -> None:
        """Skip the words after PARTITION BY, up to a query or the end."""
        while not self.at_end() and not self.at_symbol(";"):
            if self.word() in ("SELECT", "AS", "IGNORE", "REPLACE") or self.peek_words("TABLE"):
                return
            self.skip()

    def _drop(self) -> list[TableDdl]:
        self.accept("DROP")
        if self.accept("DATABASE") or self.accept("SCHEMA"):
            self.accept("IF", "EXISTS")
            return [DropDatabase(self.database())]
        if self.accept("INDEX"):
            return self._drop_index()
        temporary = self.accept("TEMPORARY")
        if not (self.accept("TABLE") or self.accept("TABLES")):
            return []
        if_exists = self.accept("IF", "EXISTS")
        self.wait_clause()
        tables = [self.table()]
        while self.accept_symbol(","):
            tables.append(self.table())
        self.wait_clause()
        if not self.accept("RESTRICT"):
            self.accept("CASCADE")
        if temporary:
            return [TemporaryTable(table, created=False) for table in tables]
        return [DropTable(table, if_exists) for table in tables]

    def _drop_index(self) -> list[TableDdl]:
        """Parse DROP INDEX: `PRIMARY` drops the primary key, and other indexes have no effect here."""
        self.accept("IF", "EXISTS")
        if self.identifier().upper() != "PRIMARY":
            self.skip_rest()
            return []
        self.expect("ON")
        table = self.table()
        self.skip_rest()
        return [AlterTable(table, (SetPrimaryKey(()),))]

    def _rename(self) -> list[TableDdl]:
        self.accept("RENAME")
        if not (self.accept("TABLE") or self.accept("TABLES")):
            return []
        if_exists = self.accept("IF", "EXISTS")
        renames: list[TableDdl] = []
        while True:
            old = self.table()
            self.wait_clause()
            self.expect("TO")
            renames.append(RenameTable(old, self.table(), if_exists))
            if not self.accept_symbol(","):
                return renames

    def _alter(self) -> list[TableDdl]:
        self.accept("ALTER")
        if self.accept("DATABASE") or self.accept("SCHEMA"):
            return [self._database(created=False)]
        self.accept("ONLINE")
        ignore = self.accept("IGNORE")
        if not self.accept("TABLE"):
            return []
        if_exists = self.accept("IF", "EXISTS")
        table = self.table()
        self.wait_clause()
        actions: list[AlterAction] = []
        while not self.at_end() and not self.at_symbol(";"):
            if self.accept_symbol(","):
                continue
            actions.extend(self.alter_action())
        alter = AlterTable(table, tuple(actions), if_exists, ignore)
        unlogged = [action for action in actions if isinstance(action, RowsUnlogged)]
        others = [(other, RowsUnlogged(action.why)) for action in unlogged for other in action.others]
        return [alter, *(AlterTable(other, (action,)) for other, action in others)]
