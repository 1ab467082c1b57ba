"""DDL statements → `ddl_statements` values: a recursive-descent parser for what concerns tables and columns.

Everything that cannot change a table's rows or columns (indexes, constraints, engine, partition layout) is read over
by its shape; everything that could and is not understood ends in `Unparsable`, never in a guess. Grammar: MySQL manual,
"CREATE TABLE Statement" and "ALTER TABLE Statement", with MariaDB's IF [NOT] EXISTS, OR REPLACE, WAIT and ONLINE.
Called by `ddl.parse_ddl` only.
"""

from __future__ import annotations

from raycdc.connectors.mysql.ddl_column import ColumnParser
from raycdc.connectors.mysql.ddl_cursor import Unparsable
from raycdc.connectors.mysql.ddl_statements import (
    AddColumn,
    AlterAction,
    AlterTable,
    ChangeColumn,
    ColumnDefinition,
    CreateTable,
    DropColumn,
    DropDatabase,
    DropTable,
    RenameColumn,
    RenameTable,
    RenameTo,
    SetCharset,
    SetComment,
    SetDefault,
    SetPrimaryKey,
    TableDdl,
    TruncateTable,
)
from raycdc.model import TableId
from raycdc.schema import After, First

_KEY_WORDS = frozenset({"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK", "CONSTRAINT", "VECTOR"})

#: Actions on partitions that remove or exchange rows; the log does not show these rows.
_PARTITION_ROWS = frozenset({"DROP", "TRUNCATE", "EXCHANGE", "IMPORT", "DISCARD", "CONVERT"})

#: First words of ALTER TABLE actions that leave rows and columns alone.
_HARMLESS = frozenset(
    {
        "ALGORITHM",
        "LOCK",
        "ENABLE",
        "DISABLE",
        "FORCE",
        "ORDER",
        "ENGINE",
        "AUTO_INCREMENT",
        "ROW_FORMAT",
        "KEY_BLOCK_SIZE",
        "MAX_ROWS",
        "MIN_ROWS",
        "AVG_ROW_LENGTH",
        "CHECKSUM",
        "TABLE_CHECKSUM",
        "PAGE_CHECKSUM",
        "TRANSACTIONAL",
        "DELAY_KEY_WRITE",
        "INSERT_METHOD",
        "PACK_KEYS",
        "STATS_AUTO_RECALC",
        "STATS_PERSISTENT",
        "STATS_SAMPLE_PAGES",
        "TABLESPACE",
        "COMPRESSION",
        "ENCRYPTION",
        "ENCRYPTED",
        "ENCRYPTION_KEY_ID",
        "PAGE_COMPRESSED",
        "PAGE_COMPRESSION_LEVEL",
        "CONNECTION",
        "DATA",
        "AUTOEXTEND_SIZE",
        "ENGINE_ATTRIBUTE",
        "SECONDARY_ENGINE",
        "SECONDARY_ENGINE_ATTRIBUTE",
        "SECONDARY_LOAD",
        "SECONDARY_UNLOAD",
        "WITH",
        "WITHOUT",
        "PARTITION",
        "REMOVE",
        "REORGANIZE",
        "COALESCE",
        "REBUILD",
        "OPTIMIZE",
        "ANALYZE",
        "REPAIR",
        "UNION",
    }
)


class StatementParser(ColumnParser):
    """Parses one statement; `parse` is called once."""

    def parse(self) -> list[TableDdl]:
        """What the statement does to tables, in order; empty when it does nothing to any."""
        if self.accept("SET", "STATEMENT"):
            self._skip_set_statement()
        found = self._by_first_word()
        self.accept_symbol(";")
        if found and not self.at_end():
            raise Unparsable(f"{self.here()} after the statement is not understood")
        return found

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

    def _skip_rest(self) -> None:
        while not self.at_end() and not self.at_symbol(";"):
            self.skip()

    def _skip_set_statement(self) -> None:
        """MariaDB's ``SET STATEMENT variable = value, … FOR statement``."""
        while not self.at_end() and not self.accept("FOR"):
            self.skip()

    # CREATE, DROP, RENAME ---------------------------------------------------------------------------------------------

    def _create(self) -> list[TableDdl]:
        self.accept("CREATE")
        or_replace = self.accept("OR", "REPLACE")
        if self.accept("TEMPORARY") or not self.accept("TABLE"):
            return []
        if_not_exists = self.accept("IF", "NOT", "EXISTS")
        table = self.table()
        like = self.accept("LIKE") or self.accept_symbols("(", "LIKE")
        if like:
            other = self.table()
            self.accept_symbol(")")
            return [CreateTable(table, like=other, if_not_exists=if_not_exists, or_replace=or_replace)]
        if not self.accept_symbol("("):
            raise Unparsable("CREATE TABLE without a list of columns (… SELECT) does not say its columns")
        columns, primary_key = self._create_elements()
        charset, collation, comment = self._table_options()
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
            )
        ]

    def _create_elements(self) -> tuple[tuple[ColumnDefinition, ...], tuple[str, ...]]:
        columns: list[ColumnDefinition] = []
        primary_key: tuple[str, ...] = ()
        while True:
            key = self._key_or_constraint()
            if key is None:
                columns.append(self.column_definition())
            else:
                primary_key = key or primary_key
            if self.accept_symbol(")"):
                return tuple(columns), primary_key
            self.expect_symbol(",")

    def _key_or_constraint(self) -> tuple[str, ...] | None:
        """Read an index or constraint and return the primary key's columns (others: none); None when it is neither."""
        if self.peek_words("PERIOD", "FOR"):
            raise Unparsable("system-versioned and application-time tables are not supported")
        word = self.word()
        if word == "CONSTRAINT":
            self.skip()
            if not self.peek_words("PRIMARY") and self.word() not in _KEY_WORDS:
                self.identifier()
            if self.peek_words("PRIMARY"):
                return self._primary_key()
            self.skip_item()
            return ()
        if self.peek_words("PRIMARY", "KEY"):
            return self._primary_key()
        # A column may be called `key` only in quotes, so that the bare word always begins an index.
        if word in _KEY_WORDS:
            self.skip_item()
            return ()
        return None

    def _primary_key(self) -> tuple[str, ...]:
        self.accept("PRIMARY", "KEY")
        while not self.at_symbol("("):
            if self.at_end() or self.at_symbol(","):
                raise Unparsable("PRIMARY KEY without columns")
            self.skip()
        self.expect_symbol("(")
        columns: list[str] = []
        while True:
            columns.append(self.identifier())
            if self.accept_symbol("("):
                self.skip_to_close()
            self.accept("ASC") or self.accept("DESC")
            if self.accept_symbol(")"):
                break
            self.expect_symbol(",")
        self.skip_item()
        return tuple(columns)

    def _table_options(self) -> tuple[str, str, str]:
        """Character set, collation and comment after the columns of CREATE TABLE."""
        charset = collation = comment = ""
        while not self.at_end() and not self.at_symbol(";"):
            if self.peek_words("PARTITION"):
                self._skip_rest()
                break
            if self.word() in ("SELECT", "AS", "IGNORE", "REPLACE"):
                raise Unparsable("CREATE TABLE … SELECT does not say all its columns")
            if self.peek_words("WITH", "SYSTEM", "VERSIONING"):
                raise Unparsable("system-versioned and application-time tables are not supported")
            self.accept("DEFAULT")
            found = self.charset_option()
            if found is not None:
                charset, collation = found[0] or charset, found[1] or collation
            elif self.accept("COMMENT"):
                self.accept_symbol("=")
                comment = self.string()
            else:
                self.skip()
        return charset, collation, comment

    def _drop(self) -> list[TableDdl]:
        self.accept("DROP")
        if self.accept("DATABASE") or self.accept("SCHEMA"):
            self.accept("IF", "EXISTS")
            return [DropDatabase(self.database())]
        if self.accept("TEMPORARY") or not (self.accept("TABLE") or self.accept("TABLES")):
            return []
        if_exists = self.accept("IF", "EXISTS")
        self.wait_clause()
        tables = [self.table()]
        while self.accept_symbol(","):
            tables.append(self.table())
        if not self.accept("RESTRICT"):
            self.accept("CASCADE")
        return [DropTable(table, if_exists) for table in tables]

    def _rename(self) -> list[TableDdl]:
        self.accept("RENAME")
        if not (self.accept("TABLE") or self.accept("TABLES")):
            return []
        self.accept("IF", "EXISTS")
        renames: list[TableDdl] = []
        while True:
            old = self.table()
            self.wait_clause()
            self.expect("TO")
            renames.append(RenameTable(old, self.table()))
            if not self.accept_symbol(","):
                return renames

    # ALTER TABLE ------------------------------------------------------------------------------------------------------

    def _alter(self) -> list[TableDdl]:
        self.accept("ALTER")
        self.accept("ONLINE")
        self.accept("IGNORE")
        if not self.accept("TABLE"):
            return []
        if_exists = self.accept("IF", "EXISTS")
        table = self.table()
        self.wait_clause()
        actions: list[AlterAction] = []
        while not self.at_end() and not self.at_symbol(";"):
            if self.accept_symbol(","):
                continue
            actions.extend(self._action(table))
        return [AlterTable(table, tuple(actions), if_exists)]

    def _action(self, table: TableId) -> list[AlterAction]:
        word = self.word()
        if word in _PARTITION_ROWS and self.peek_words(word, "PARTITION"):
            raise Unparsable(f"{word} PARTITION removes or brings rows that the log does not show")
        if word in ("IMPORT", "DISCARD") or self.peek_words("CONVERT", "TABLE"):
            raise Unparsable(f"{word} brings or removes rows that the log does not show")
        match word:
            case "ADD":
                return self._add()
            case "DROP":
                return self._drop_action()
            case "MODIFY" | "CHANGE":
                return [self._change()]
            case "RENAME":
                return self._rename_action(table)
            case "ALTER":
                return self._alter_column()
            case "CONVERT":
                self.expect("CONVERT")
                self.expect("TO")
                return [self._charset(convert=True)]
            case "DEFAULT" | "CHARACTER" | "CHARSET" | "COLLATE":
                self.accept("DEFAULT")
                return [self._charset(convert=False)]
            case "COMMENT":
                self.accept("COMMENT")
                self.accept_symbol("=")
                return [SetComment(self.string())]
            case _ if word in _HARMLESS:
                self._skip_harmless(word)
                return []
            case _:
                raise Unparsable(f"ALTER TABLE … {self.here()} is not understood")

    def _skip_harmless(self, word: str) -> None:
        """Options may follow one another without commas; ORDER BY and partitions run to the statement's end."""
        if word in ("PARTITION", "ORDER"):
            self._skip_rest()
            return
        self.skip()
        self.accept_symbol("=")
        self.accept("DEFAULT")
        while not self.at_end() and not self.at_symbol(",") and not self.at_symbol(";"):
            if self.peek_words("PARTITION", "BY") or self.option_begins():
                return
            self.skip()

    def _add(self) -> list[AlterAction]:
        self.expect("ADD")
        if self.peek_words("SYSTEM") or self.peek_words("PERIOD", "FOR"):
            raise Unparsable("system-versioned and application-time tables are not supported")
        if self.word() == "PARTITION":
            self.skip_item()
            return []
        explicit = self.accept("COLUMN")
        if not explicit:
            key = self._key_or_constraint()
            if key is not None:
                return [SetPrimaryKey(key)] if key else []
        if_not_exists = self.accept("IF", "NOT", "EXISTS")
        if not self.accept_symbol("("):
            definition = self.column_definition()
            return self._added(definition, self._position(), if_not_exists=if_not_exists)
        actions: list[AlterAction] = []
        while True:
            key = self._key_or_constraint()
            if key is None:
                actions += self._added(self.column_definition(), None, if_not_exists=if_not_exists)
            elif key:
                actions.append(SetPrimaryKey(key))
            if self.accept_symbol(")"):
                return actions
            self.expect_symbol(",")

    def _added(
        self, definition: ColumnDefinition, position: First | After | None, *, if_not_exists: bool
    ) -> list[AlterAction]:
        actions: list[AlterAction] = [AddColumn(definition, position, if_not_exists)]
        return [*actions, SetPrimaryKey((definition.name,))] if definition.primary_key else actions

    def _drop_action(self) -> list[AlterAction]:
        self.expect("DROP")
        if self.accept("PRIMARY", "KEY"):
            return [SetPrimaryKey(())]
        if self.peek_words("SYSTEM") or self.peek_words("PERIOD", "FOR"):
            raise Unparsable("system-versioned and application-time tables are not supported")
        if self.word() in _KEY_WORDS:
            self.skip_item()
            return []
        self.accept("COLUMN")
        if_exists = self.accept("IF", "EXISTS")
        name = self.identifier()
        self.accept("RESTRICT") or self.accept("CASCADE")
        return [DropColumn(name, if_exists)]

    def _change(self) -> ChangeColumn:
        modify = self.accept("MODIFY")
        if not modify:
            self.expect("CHANGE")
        self.accept("COLUMN")
        if_exists = self.accept("IF", "EXISTS")
        old = None if modify else self.identifier()
        definition = self.column_definition()
        return ChangeColumn(old or definition.name, definition, self._position(), if_exists)

    def _position(self) -> First | After | None:
        if self.accept("FIRST"):
            return First()
        return After(self.identifier()) if self.accept("AFTER") else None

    def _rename_action(self, table: TableId) -> list[AlterAction]:
        self.expect("RENAME")
        if self.accept("COLUMN"):
            if_exists = self.accept("IF", "EXISTS")
            old = self.identifier()
            self.expect("TO")
            return [RenameColumn(old, self.identifier(), if_exists)]
        if self.word() in ("INDEX", "KEY"):
            self.skip_item()
            return []
        self.accept("TO") or self.accept("AS") or self.accept_symbol("=")
        return [RenameTo(self.table(default_db=table.db))]

    def _alter_column(self) -> list[AlterAction]:
        self.expect("ALTER")
        if self.word() in ("INDEX", "KEY", "CHECK", "CONSTRAINT"):
            self.skip_item()
            return []
        self.accept("COLUMN")
        self.accept("IF", "EXISTS")
        name = self.identifier()
        if self.accept("DROP", "DEFAULT"):
            return [SetDefault(name, None)]
        if self.accept("SET", "DEFAULT"):
            default, _ = self.default_value()
            return [SetDefault(name, default)]
        self.expect("SET")
        if not (self.accept("VISIBLE") or self.accept("INVISIBLE")):
            raise Unparsable(f"ALTER COLUMN … SET {self.here()} is not understood")
        return []

    def _charset(self, *, convert: bool) -> SetCharset:
        charset = collation = ""
        found = self.charset_option()
        if found is None:
            raise Unparsable(f"a character set is expected at {self.here()}")
        while found is not None:
            charset, collation = found[0] or charset, found[1] or collation
            self.accept("DEFAULT")
            found = self.charset_option()
        return SetCharset(charset, collation, convert)
