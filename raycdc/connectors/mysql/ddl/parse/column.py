"""Parses column definitions: name, type, attributes, default. The middle layer of the DDL parser."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from raycdc.connectors.mysql.ddl.parse.statements import ColumnDefinition, DdlDialect, Spelled
from raycdc.connectors.mysql.ddl.parse.token_cursor import DdlCursor, Unparsable
from raycdc.connectors.mysql.ddl.parse.tokens import TokenKind
from raycdc.connectors.mysql.ddl.parse.types import ALIASES, TYPE_WORDS, WrittenType, number_text
from raycdc.connectors.mysql.values.charsets import codec_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model.column_names import mysql_fold

_NUMERIC = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "serial"})

#: Words for the current time that may be a default without being a constant.
_NOW = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "CURDATE"})

#: Functions that MariaDB allows as a default without parentheses.
_SESSION_VALUES = frozenset(
    {"CURRENT_USER", "CURRENT_ROLE", "SESSION_USER", "SYSTEM_USER", "UTC_DATE", "UTC_TIMESTAMP"}
)

#: Attributes without effect on rows: attributes of one word, and attributes of a word and a value.
_SINGLE = frozenset({"VISIBLE", "INVISIBLE"})
_WITH_VALUE = frozenset(
    {"COMMENT", "COLUMN_FORMAT", "STORAGE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "SRID", "REF_SYSTEM_ID"}
)
#: The reason why MariaDB's BIGINT UNSIGNED … AS ROW START cannot be followed.
TRANSACTION_PRECISE = (
    "the server logs changes of tables with transaction-precise history (ROW START and ROW END of type BIGINT "
    "UNSIGNED) as statements, whatever binlog_format is"
)
_TYPE_SCHEMAS = frozenset({"mariadb_schema", "oracle_schema", "maxdb_schema"})
_BEYOND_BMP = re.compile("[\U00010000-\U0010ffff]")
_OPTION_WORDS = frozenset({"COMMENT", "COLLATE", "CHARSET", "CONVERT", "DEFAULT"})


def never_logged(table: MySqlTable) -> str | None:
    """Return why changes of `table` cannot be read from the log, with the solution; None if they can."""
    stored = next((column for column in table.columns if " COMPRESSED" in column.column_type), None)
    if stored is not None:
        return (
            f"Table {table.id}: column {stored.name!r} is stored COMPRESSED, and so it is in the log. ALTER it without "
            "COMPRESSED, or leave the table out with source.exclude."
        )
    if not any(column.name == table.row_end and column.shape.base == "bigint" for column in table.columns):
        return None
    return (
        f"Table {table.id}: {TRANSACTION_PRECISE}. Give it columns of type TIMESTAMP(6) for that, or leave it out "
        "with source.exclude."
    )


@dataclass(slots=True)
class _Attributes:
    charset: str = ""
    collation: str = ""
    binary_collation: bool = False
    #: None if the definition does not say it.
    nullable: bool | None = None
    default: str | None = None
    computed: str = ""
    extra: str = ""
    primary_key: bool = False
    compressed: bool = False
    unique: bool = False
    period: str = ""
    spelled: Spelled = Spelled.TEXT


class ColumnParser(DdlCursor):
    """The parser of `DdlCursor` with column definitions."""

    #: True if a column has WITH SYSTEM VERSIONING, which makes a new table system-versioned.
    versioned_columns = False
    #: The notation of the last constant.
    _spelled = Spelled.TEXT
    #: The names in the expression of the last column, if it is generated.
    _reads: frozenset[str] = frozenset()

    def column_definition(self) -> ColumnDefinition:
        """Parse ``name type attributes…`` up to the comma, parenthesis, FIRST or AFTER that follows."""
        name = self.column_name()
        attributes, self._reads = _Attributes(), frozenset()
        written = self._type(attributes)
        while not self._definition_ends():
            self._attribute(attributes)
        if attributes.period and written.base == "bigint":
            raise Unparsable(TRANSACTION_PRECISE)
        if written.base == "serial":
            attributes.nullable, attributes.extra, attributes.computed = False, "auto_increment", "a counter"
        if written.base == "json" and self.dialect.mariadb:
            written, attributes.charset, attributes.collation = WrittenType("longtext"), "utf8mb4", "utf8mb4_bin"
        if attributes.spelled is not Spelled.HEXADECIMAL:
            pass
        elif written.base in ("bit", "year") or written.base in _NUMERIC:
            attributes.default, attributes.spelled = number_text(attributes.default), Spelled.NUMBER
        else:
            attributes.default, attributes.computed = None, attributes.computed or "a constant written in hexadecimal"
        if written.base == "timestamp" and attributes.nullable is None and not self.dialect.explicit_timestamps:
            attributes.nullable = False
            if attributes.default is None and not attributes.computed:
                attributes.computed = "a time that the server chose"
        if attributes.binary_collation and not attributes.collation and attributes.charset:
            attributes.collation = f"{attributes.charset}_bin"
        return ColumnDefinition(
            name,
            replace(written, compressed=attributes.compressed),
            attributes.charset,
            attributes.collation,
            attributes.nullable is not False and not attributes.primary_key,
            attributes.default,
            attributes.computed,
            attributes.extra,
            attributes.primary_key,
            attributes.binary_collation,
            attributes.unique,
            attributes.period,
            attributes.spelled,
            self._reads,
        )

    def charset_option(self) -> tuple[str, str] | None:
        """Parse ``CHARACTER SET x`` or ``COLLATE y`` as (set, collation); None if neither comes next."""
        if self.accept("CHARACTER", "SET") or self.accept("CHARSET") or self.accept("CHAR", "SET"):
            self.accept_symbol("=")
            charset = self._charset_name()
            return ("" if charset == "default" else charset), ""
        if self.accept("COLLATE"):
            self.accept_symbol("=")
            collation = self._charset_name()
            return ("", "") if collation == "default" else (charset_of_collation(collation), collation)
        return None

    def option_begins(self) -> bool:
        """Return True if a relevant table option comes next (options may follow one another without commas)."""
        return self.word() in _OPTION_WORDS or self.peek_words("CHARACTER", "SET")

    def default_value(self) -> tuple[str | None, str]:
        """Parse the words after DEFAULT: (constant as text or None, description of an expression or empty)."""
        if self.at_symbol("("):
            start = self.peek(1)
            inner_constant = start.kind is TokenKind.STRING or start.kind is TokenKind.NUMBER
            after = self.peek(2)
            if inner_constant and after.kind is TokenKind.SYMBOL and after.text == ")":
                self.accept_symbol("(")
                value = self.default_value()
                self.expect_symbol(")")
                return value
            self.skip()
            return None, "an expression"
        if self.accept("NULL"):
            return None, ""
        if self.word() in _NOW:
            self.skip()
            if self.at_symbol("("):
                self.skip()
            return None, "the time of the statement"
        if self.word() in _SESSION_VALUES and self.peek(1).text != "(":
            self.skip()
            return None, "an expression"
        if self.accept("NEXT", "VALUE", "FOR"):
            self.table()
            return None, "a sequence"
        constant = self._literal()
        if constant is not None:
            return constant, ""
        if self._expression():
            return None, "an expression"
        raise Unparsable(f"DEFAULT {self.here()} is not understood")

    def _expression(self) -> bool:
        """Skip an expression that MariaDB accepts without parentheses. Returns False if none comes next.

        It is a name, a variable, a call, a CASE, or an ODBC escape (sql_yacc.yy:
        ``column_default_non_parenthesized_expr``).
        """
        if self.accept("PREVIOUS", "VALUE", "FOR"):
            self.table()
            return True
        if self.accept("CASE"):
            depth = 1
            while depth and not self.at_end():
                depth += self.peek_words("CASE") - self.peek_words("END")
                self.skip()
            return depth == 0
        if self.accept_symbol("{"):
            while not self.at_end() and not self.accept_symbol("}"):
                self.skip()
            return True
        if self.peek().kind not in (TokenKind.WORD, TokenKind.NAME):
            return False
        if not self.dialect.mariadb and self.peek(1).text != "(":
            return False
        self.column_name()
        if self.at_symbol("("):
            self.skip()
        return True

    # Types ------------------------------------------------------------------------------------------------------------

    def _type(self, attributes: _Attributes) -> WrittenType:
        schema = self._type_schema()
        is_number = self.peek_words("NUMBER")
        base = _of_mode(self._type_word(), schema, self.dialect)
        numbers: list[int] = []
        labels: list[str | bytes] = []
        if self.accept_symbol("("):
            while not self.accept_symbol(")"):
                token = self.peek()
                if token.kind is TokenKind.STRING or (token.kind is TokenKind.WORD and token.text.startswith("_")):
                    labels.append(self._label())
                elif base in ("enum", "set") and token.kind is TokenKind.NUMBER and not token.text.isdecimal():
                    labels.append(_hex_bytes(self.skip().text))
                elif token.kind is TokenKind.NUMBER and token.text.isdecimal():
                    numbers.append(int(self.skip().text))
                elif not self.accept_symbol(","):
                    raise Unparsable(f"the type {base} has {self.here()} in its parentheses")
        if self.dialect.oracle and not numbers:
            # This does not depend on a schema in front of the name.
            base = "double" if is_number else "longblob" if base == "blob" else base
        unsigned = zerofill = False
        while base in _NUMERIC:
            if self.accept("UNSIGNED"):
                unsigned = True
            elif self.accept("ZEROFILL"):
                zerofill = True
            elif not self.accept("SIGNED"):
                break
        if base in ("nchar", "nvarchar"):
            attributes.charset = "utf8mb3"
        if base in ("enum", "set") and not labels:
            raise Unparsable(f"the type {base} has no labels")
        return WrittenType(base, tuple(numbers), tuple(labels), unsigned, zerofill)

    def _type_word(self) -> str:
        for words, base in ALIASES.items():
            if self.accept(*words):
                return "float" if words == ("REAL",) and self.dialect.real_as_float else base
        token = self.peek()
        if token.kind is not TokenKind.WORD:
            raise Unparsable(f"a type is expected at {self.here()}")
        if token.text.lower() not in TYPE_WORDS:
            raise Unparsable(f"the type {self.here()} is not known")
        self.skip()
        return token.text.lower()

    def _type_schema(self) -> str:
        """Parse ``mariadb_schema.``, ``oracle_schema.`` or ``maxdb_schema.`` in front of a type (MariaDB).

        It may be missing.
        """
        schema, dot = self.peek().text.lower(), self.peek(1)
        if not self.dialect.mariadb or schema not in _TYPE_SCHEMAS or dot.text != ".":
            return ""
        self.skip()
        self.skip()
        return schema

    def _label(self) -> str | bytes:
        """Parse a label: bytes if the session's literals are bytes, in the column's character set."""
        text = self._literal() or ""
        if text.isascii() or self.dialect.connection != "binary":
            return text
        return text.encode(codec_of(self.dialect.client) if self.dialect.client != "binary" else "utf-8")

    def _converted(self, text: str) -> str:
        """Return a literal in the session's connection character set, in which some characters may be lost."""
        connection = self.dialect.connection
        if text.isascii() or not connection:
            return text
        if connection == "binary":
            self._spelled = Spelled.OTHERWISE
            return text
        if connection in ("utf8", "utf8mb3"):
            return _BEYOND_BMP.sub("?", text)
        return text.encode(codec_of(connection), "replace").decode(codec_of(connection))

    # Attributes -------------------------------------------------------------------------------------------------------

    def _definition_ends(self) -> bool:
        return (
            self.at_end()
            or self.at_symbol(",")
            or self.at_symbol(")")
            or self.at_symbol(";")
            or self.word() in ("FIRST", "AFTER", "PARTITION")
            or self.peek_words("REMOVE", "PARTITIONING")
        )

    def _attribute(self, attributes: _Attributes) -> None:
        if self._nullability(attributes) or self._text_attribute(attributes) or self._value_attribute(attributes):
            return
        word = self.word()
        if word in _WITH_VALUE:
            self.skip()
            self.accept_symbol("=")
            self.skip()
        elif word == "REFERENCES":
            self._references()
        elif word in ("CHECK", "CONSTRAINT"):
            if self.accept("CONSTRAINT") and self.word() != "CHECK":
                self.identifier()
            self.expect("CHECK")
            self.skip()
            self.accept("NOT")
            self.accept("ENFORCED")
        elif self.accept("ON", "UPDATE"):
            self.skip()
            if self.at_symbol("("):
                self.skip()
            attributes.extra = f"{attributes.extra} on update current_timestamp".strip()
        elif self.accept("WITH", "SYSTEM", "VERSIONING"):
            self.versioned_columns = True
        elif self.accept("WITHOUT", "SYSTEM", "VERSIONING") or self.accept("NOT", "SECONDARY"):
            pass
        elif word in _SINGLE:
            self.skip()
        elif word == "COMPRESSED":
            self.skip()
            attributes.compressed = True
            if self.accept_symbol("="):
                self.skip()
        elif self.peek().kind in (TokenKind.WORD, TokenKind.NAME) and self.peek(1).text == "=":
            # Options that a storage engine of MariaDB defines.
            for _ in range(3):
                self.skip()
        else:
            raise Unparsable(f"the column attribute {self.here()} is not understood")

    def _nullability(self, attributes: _Attributes) -> bool:
        if self.accept("NOT", "NULL"):
            attributes.nullable = False
        elif self.accept("NULL"):
            attributes.nullable = True
        elif self.accept("PRIMARY", "KEY") or self.accept("PRIMARY") or self.accept("KEY"):
            attributes.primary_key = True
        elif self.accept("UNIQUE", "KEY") or self.accept("UNIQUE"):
            attributes.unique = True
        else:
            return False
        return True

    def _text_attribute(self, attributes: _Attributes) -> bool:
        found = self.charset_option()
        if found is not None:
            attributes.charset, attributes.collation = found[0] or attributes.charset, found[1] or attributes.collation
        elif self.accept("ASCII"):
            attributes.charset = "latin1"
        elif self.accept("UNICODE"):
            attributes.charset = "ucs2"
        elif self.accept("BYTE"):
            attributes.charset = "binary"
        elif self.accept("BINARY"):
            attributes.binary_collation = True
        else:
            return False
        return True

    def _value_attribute(self, attributes: _Attributes) -> bool:
        if self.accept("SERIAL", "DEFAULT", "VALUE"):
            attributes.nullable, attributes.extra, attributes.computed = False, "auto_increment", "a counter"
        elif self.accept("DEFAULT"):
            attributes.default, computed = self.default_value()
            attributes.spelled = self._spelled
            attributes.computed = attributes.computed or computed
        elif self.accept("AUTO_INCREMENT"):
            # The column is NOT NULL, unless NULL follows (sql_yacc.yy: AUTO_INC sets both flags).
            attributes.nullable, attributes.extra, attributes.computed = False, "auto_increment", "a counter"
        elif self.accept("GENERATED", "ALWAYS", "AS") or self.accept("AS"):
            if self.accept("ROW"):
                self._period_column(attributes)
                return True
            self._reads = self._names_in_group()
            self.skip()
            self.accept("VIRTUAL")
            stored = self.accept("STORED") or self.accept("PERSISTENT")
            attributes.extra = "STORED GENERATED" if stored else "VIRTUAL GENERATED"
            attributes.computed = "a generated value"
        else:
            return False
        return True

    def _names_in_group(self) -> frozenset[str]:
        """Return the case-folded names in the parentheses that come next; ``default()`` if a default is read."""
        names, ahead, depth = set(), 0, 0
        while self.peek(ahead).kind is not TokenKind.END:
            token, following = self.peek(ahead), self.peek(ahead + 1)
            ahead += 1
            is_call = following.kind is TokenKind.SYMBOL and following.text == "("
            if token.kind is TokenKind.SYMBOL:
                depth += (token.text == "(") - (token.text == ")")
            elif token.kind is TokenKind.WORD and token.text.upper() == "DEFAULT" and is_call:
                names.add("default()")
            elif token.kind in (TokenKind.WORD, TokenKind.NAME):
                names.add(mysql_fold(token.text))
            if depth == 0:
                break
        return frozenset(names)

    def _period_column(self, attributes: _Attributes) -> None:
        """Parse ``ROW START`` or ``ROW END``: the times between which a row is current."""
        attributes.period = "START" if self.accept("START") else "END"
        if attributes.period == "END":
            self.expect("END")
        attributes.nullable, attributes.extra, attributes.computed = False, "STORED GENERATED", "a generated value"

    def _references(self) -> None:
        self.expect("REFERENCES")
        self.table()
        if self.at_symbol("("):
            self.skip()
        while self.word() in ("ON", "MATCH"):
            if self.accept("MATCH"):
                self.skip()
                continue
            self.expect("ON")
            self.skip()
            if not (self.accept("SET", "NULL") or self.accept("SET", "DEFAULT") or self.accept("NO", "ACTION")):
                self.skip()

    def _literal(self) -> str | None:
        """Parse a constant, and return it as MySQL prints it; None if no constant comes next."""
        self._spelled = Spelled.TEXT
        token = self.peek()
        introducer = ""
        following = self.peek(1)
        named = following.kind is TokenKind.STRING or _HEX.match(following.text) is not None
        if token.kind is TokenKind.WORD and token.text.startswith("_") and named:
            introducer = self.skip().text[1:].lower()
            token = self.peek()
        if (
            token.kind is TokenKind.WORD
            and token.text.upper() in ("DATE", "TIME", "TIMESTAMP")
            and (self.peek(1).kind is TokenKind.STRING)
        ):
            self._spelled = Spelled.TEMPORAL
            self.skip()
            token = self.peek()
        if token.kind is TokenKind.STRING:
            texts = [self.skip().text]
            while self.peek().kind is TokenKind.STRING:
                texts.append(self.skip().text)
            text = "".join(texts) if introducer else self._converted("".join(texts))
            # The bytes were read in the statement's character set, and have another meaning in the named one.
            if introducer and (introducer in _WIDE or not text.isascii()):
                self._spelled = Spelled.OTHERWISE
            return text
        self._spelled = Spelled.NUMBER
        if token.kind is TokenKind.NUMBER:
            if _HEX.match(token.text):
                self._spelled = Spelled.HEXADECIMAL
            self.skip()
            return token.text
        if token.kind is TokenKind.SYMBOL and token.text in "+-" and self.peek(1).kind is TokenKind.NUMBER:
            self.skip()
            number = self.skip().text
            return f"-{number}" if token.text == "-" else number
        if self.accept("TRUE"):
            return "1"
        return "0" if self.accept("FALSE") else None

    def _charset_name(self) -> str:
        token = self.peek()
        if token.kind not in (TokenKind.WORD, TokenKind.STRING, TokenKind.NAME):
            raise Unparsable(f"a character set is expected at {self.here()}")
        self.skip()
        name = token.text.lower()
        return "utf8mb3" + name.removeprefix("utf8") if name == "utf8" or name.startswith("utf8_") else name


def charset_of_collation(collation: str) -> str:
    """Return the set of a collation; empty for MariaDB's collations that fit several (``uca1400_ai_ci``)."""
    charset = collation.partition("_")[0]
    return "" if charset.startswith("uca") else charset


#: Character sets in which even ASCII characters take several bytes.
_WIDE = frozenset({"ucs2", "utf16", "utf16le", "utf32"})
_HEX = re.compile(r"0[xXbB]|[xXbB]'")


def _hex_bytes(text: str) -> bytes:
    """Return the bytes of a label written as ``0x61``, ``x'61'`` or ``b'01100001'``, in its column's character set."""
    binary = text[:2].lower() in ("b'", "0b")
    digits = text[2:].rstrip("'")
    length = -(-len(digits) // (8 if binary else 2))
    return int(digits or "0", 2 if binary else 16).to_bytes(length, "big")


def _of_mode(base: str, schema: str, dialect: DdlDialect) -> str:
    """Return the type of the word `base` in a schema; without a schema, in the session's mode."""
    oracle = schema == "oracle_schema" or (dialect.oracle and not schema)
    maxdb = schema == "maxdb_schema" or (dialect.maxdb and not schema)
    return "datetime" if (base == "date" and oracle) or (base == "timestamp" and maxdb) else base
