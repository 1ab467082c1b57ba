"""Parses the actions of ALTER TABLE, and the keys and constraints that ALTER TABLE shares with CREATE TABLE.

The layer of the DDL parser between column definitions and whole statements.
"""

from __future__ import annotations

from raycdc.connectors.mysql.ddl.parse.column import ColumnParser
from raycdc.connectors.mysql.ddl.parse.statements import (
    AddColumn,
    AlterAction,
    ChangeColumn,
    ColumnDefinition,
    DropColumn,
    NotNull,
    RenameColumn,
    RenameTo,
    RowsUnlogged,
    SetCharset,
    SetComment,
    SetDefault,
    SetPrimaryKey,
    SetVersioning,
    Spelled,
    UniqueKey,
)
from raycdc.connectors.mysql.ddl.parse.token_cursor import Unparsable
from raycdc.model import TableId
from raycdc.model.evolution import After, First

_KEY_WORDS = frozenset({"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK", "CONSTRAINT"})

#: Actions on partitions that remove or exchange rows, which the log does not have.
_PARTITION_ROWS = frozenset({"DROP", "TRUNCATE", "EXCHANGE", "IMPORT", "DISCARD", "REPAIR"})

#: The first words of ALTER TABLE actions without effect on rows or columns.
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
        "CHECK",
        "UPGRADE",
        "VALIDATE",
        "INDEX",
        "SEQUENCE",
        "IETF_QUOTES",
        "NOWAIT",
        "WAIT",
    }
)


class AlterParser(ColumnParser):
    """The parser of `ColumnParser` with `alter_action` and `key_or_constraint`."""

    #: The columns of the application-time period that was read last.
    period_columns: tuple[str, ...] = ()
    #: The number of unique keys in the statement, without those in column definitions.
    unique_keys = 0

    def skip_rest(self) -> None:
        while not self.at_end() and not self.at_symbol(";"):
            self.skip()

    def key_or_constraint(self) -> tuple[str, ...] | None:
        """Read an index or constraint.

        Returns the columns of a primary key, empty for others; None if none of them comes next.
        """
        if self.peek_words("PERIOD", "FOR"):
            self._period()
            return ()
        word = self.word()
        if word == "UNIQUE":
            self.unique_keys += 1
        if word == "CONSTRAINT":
            self.skip()
            if not self.peek_words("PRIMARY") and self.word() not in _KEY_WORDS:
                self.identifier()
            if self.peek_words("PRIMARY"):
                return self._primary_key()
            self.unique_keys += int(self.word() == "UNIQUE")
            self.skip_item()
            return ()
        if self.peek_words("PRIMARY", "KEY"):
            return self._primary_key()
        if word == "VECTOR" and self.peek(1).text.upper() in ("INDEX", "KEY"):
            self.skip_item()
            return ()
        # A column name `key` must be quoted, so that the bare word always begins an index.
        if word in _KEY_WORDS:
            self.skip_item()
            return ()
        return None

    def _period(self) -> None:
        """Parse ``PERIOD FOR SYSTEM_TIME (s, e)``, or ``PERIOD FOR name (s, e)``.

        The columns of SYSTEM_TIME are defined elsewhere. The columns of an application-time period are NOT NULL. Rows
        of both kinds are logged as usual.
        """
        self.accept("PERIOD", "FOR")
        if self.accept("SYSTEM_TIME"):
            if self.at_symbol("("):
                self.skip()
            return
        self.identifier()
        if self.accept_symbol("("):
            start = self.identifier()
            self.expect_symbol(",")
            self.period_columns = (start, self.identifier())
            self.expect_symbol(")")

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

    def alter_action(self) -> list[AlterAction]:
        word = self.word()
        partition = word in _PARTITION_ROWS and self.peek_words(word, "PARTITION")
        if partition or word in ("IMPORT", "DISCARD"):
            others = self._tables_of_the_rest()
            what = f"{word} PARTITION" if partition else word
            return [RowsUnlogged(f"{what} brings or removes rows that the log does not show", others)]
        if self.peek_words("CONVERT", "PARTITION") or self.peek_words("CONVERT", "TABLE"):
            why = "CONVERT moves rows between a table and a partition, which the log does not show"
            return [RowsUnlogged(why, self._tables_of_the_rest())]
        match word:
            case "ADD":
                return self._add()
            case "DROP":
                return self._drop_action()
            case "MODIFY" | "CHANGE":
                return [self._change()]
            case "RENAME":
                return self._rename_action()
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
            case _ if word in _HARMLESS or self.peek(1).text == "=":
                self._skip_harmless(word)
                return []
            case _:
                raise Unparsable(f"ALTER TABLE … {self.here()} is not understood")

    def _tables_of_the_rest(self) -> tuple[TableId, ...]:
        """Return the tables from or to which rows move, as named in the rest of the statement."""
        others = []
        while not self.at_end() and not self.at_symbol(";"):
            if self.accept("WITH", "TABLE") or self.accept("TO", "TABLE") or self.accept("CONVERT", "TABLE"):
                others.append(self.table())
            else:
                self.skip()
        return tuple(others)

    def _skip_harmless(self, word: str) -> None:
        """Skip an option without effect.

        Options may follow one another without commas; ORDER BY and partitions extend to the statement's end.
        """
        if word in ("PARTITION", "ORDER") or self.peek(1).text.upper() == "PARTITION":
            self.skip_rest()
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
        if self.accept("SYSTEM", "VERSIONING"):
            return [SetVersioning(on=True)]
        if self.word() == "PARTITION":
            self.skip_item()
            return []
        explicit = self.accept("COLUMN")
        if not explicit:
            keys = self._added_key()
            if keys is not None:
                return keys
        if_not_exists = self.accept("IF", "NOT", "EXISTS")
        if not self.accept_symbol("("):
            definition = self.column_definition()
            return self._added(definition, self._position(), if_not_exists=if_not_exists)
        actions: list[AlterAction] = []
        while True:
            keys = self._added_key()
            actions += (
                self._added(self.column_definition(), None, if_not_exists=if_not_exists) if keys is None else keys
            )
            if self.accept_symbol(")"):
                return actions
            self.expect_symbol(",")

    def _added_key(self) -> list[AlterAction] | None:
        """Parse a key or constraint, if one comes next."""
        named = self.word() == "CONSTRAINT" and self.peek(1).text.upper() != "UNIQUE"
        unique = self.word() == "UNIQUE" or (
            self.word() == "CONSTRAINT" and self.peek(1 + named).text.upper() == "UNIQUE"
        )
        key = self.key_or_constraint()
        if key is None:
            return None
        if key:
            return [SetPrimaryKey(key)]
        if self.period_columns:
            columns, self.period_columns = self.period_columns, ()
            return [NotNull(columns)]
        return [UniqueKey()] if unique else []

    def _added(
        self, definition: ColumnDefinition, position: First | After | None, *, if_not_exists: bool
    ) -> list[AlterAction]:
        actions: list[AlterAction] = [AddColumn(definition, position, if_not_exists)]
        if definition.primary_key:
            actions.append(SetPrimaryKey((definition.name,)))
        return [*actions, UniqueKey()] if definition.unique else actions

    def _drop_action(self) -> list[AlterAction]:
        self.expect("DROP")
        if self.accept("PRIMARY", "KEY"):
            return [SetPrimaryKey(())]
        if self.accept("SYSTEM", "VERSIONING"):
            return [SetVersioning(on=False)]
        if self.peek_words("PERIOD", "FOR"):
            self._period()
            return []
        if self.word() in _KEY_WORDS:
            return self._drop_key()
        self.accept("COLUMN")
        if_exists = self.accept("IF", "EXISTS")
        name = self.column_name()
        self.accept("RESTRICT") or self.accept("CASCADE")
        return [DropColumn(name, if_exists)]

    def _drop_key(self) -> list[AlterAction]:
        """Parse DROP INDEX, KEY, CONSTRAINT, CHECK, FOREIGN KEY. One with the name PRIMARY is the primary key."""
        kind = self.skip().text.upper()
        self.accept("KEY")
        self.accept("IF", "EXISTS")
        primary = self.peek().text.upper() == "PRIMARY" and kind in ("INDEX", "KEY", "CONSTRAINT")
        self.skip_item()
        return [SetPrimaryKey(())] if primary else []

    def _change(self) -> ChangeColumn:
        modify = self.accept("MODIFY")
        if not modify:
            self.expect("CHANGE")
        self.accept("COLUMN")
        if_exists = self.accept("IF", "EXISTS")
        old = None if modify else self.column_name()
        definition = self.column_definition()
        return ChangeColumn(old or definition.name, definition, self._position(), if_exists)

    def _position(self) -> First | After | None:
        if self.accept("FIRST"):
            return First()
        return After(self.identifier()) if self.accept("AFTER") else None

    def _rename_action(self) -> list[AlterAction]:
        self.expect("RENAME")
        if self.accept("COLUMN"):
            if_exists = self.accept("IF", "EXISTS")
            old = self.column_name()
            self.expect("TO")
            return [RenameColumn(old, self.column_name(), if_exists)]
        if self.word() in ("INDEX", "KEY"):
            self.skip_item()
            return []
        self.accept("TO") or self.accept("AS") or self.accept_symbol("=")
        return [RenameTo(self.table())]

    def _alter_column(self) -> list[AlterAction]:
        self.expect("ALTER")
        if self.word() in ("INDEX", "KEY", "CHECK", "CONSTRAINT"):
            self.skip_item()
            return []
        self.accept("COLUMN")
        if_exists = self.accept("IF", "EXISTS")
        name = self.column_name()
        if self.accept("DROP", "DEFAULT"):
            return [SetDefault(name, None, if_exists)]
        if self.accept("SET", "DEFAULT"):
            default, computed = self.default_value()
            spelled = Spelled.TEXT if default is None else self._spelled
            return [SetDefault(name, default, if_exists, computed, spelled)]
        self.expect("SET")
        if not (self.accept("VISIBLE") or self.accept("INVISIBLE")):
            raise Unparsable(f"ALTER COLUMN … SET {self.here()} is not understood")
        return []

    def _charset(self, *, convert: bool) -> SetCharset:
        charset = collation = ""
        found = self.charset_option()
        if found is None:
            raise Unparsable(f"a character set is expected at {self.here()}")
        if convert and found == ("", ""):
            # Versions of MariaDB differ in which default is meant.
            if self.dialect.mariadb or not self._default_db:
                raise Unparsable("CONVERT TO CHARACTER SET DEFAULT does not say the set")
            return SetCharset("", "", convert, self._default_db)
        while found is not None:
            charset, collation = found[0] or charset, found[1] or collation
            self.accept("DEFAULT")
            found = self.charset_option()
        return SetCharset(charset, collation, convert)
