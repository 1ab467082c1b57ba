"""``source.snapshot.filter`` selects the captured rows of a table, identically in the snapshot and in the log.

A condition is a small part of SQL: comparisons of one column with one literal (``= <> != < <= > >=``, ``IN``,
``BETWEEN``, ``LIKE`` for text, ``IS [NOT] NULL``), joined by ``AND``, ``OR``, ``NOT`` and parentheses. This module
parses the condition. Its SQL and its evaluation for rows of the log come from the same parsed form, with the same
literals, compared by the column's own type. Text is compared by the server (by its collation), once for each text and
condition; other columns are compared in Arrow.

A condition that is NULL excludes the row, as in SQL. Invalid dates count as NULL in both phases. Any other syntax is a
`ConfigError`, because a filter that is only nearly the same in both phases would lose rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from raycdc.clients.mysql import query, query_one, quote_name
from raycdc.connectors.mysql.snapshot import keys, sort_keys
from raycdc.connectors.mysql.snapshot import keys as key_space
from raycdc.connectors.mysql.snapshot.keys import KeyKind, KeyValue, key_kind
from raycdc.connectors.mysql.values.charsets import first_unheld
from raycdc.connectors.mysql.values.documents import Capture
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import ConfigError, DataError
from raycdc.model.column_names import mysql_fold

#: The number of texts compared in one statement (a select list may have 4096 items).
_TEXTS_PER_STATEMENT = 500
#: The greatest length in characters of the texts of one statement, and of a piece of a longer text. A character has up
#: to four bytes, which are eight hexadecimal digits: 2 MiB, half of the smallest common ``max_allowed_packet``.
_TEXT_LENGTH_MAX = 256 << 10
#: The variable of the session in which a longer text is put together.
_LONG_TEXT = "@raycdc_text"
#: The number of remembered answers per comparison. A filter on a column with more values queries again.
_TEXTS_REMEMBERED = 100_000

_TOKEN = re.compile(
    r"\s*(?:(?P<hex>[xX]'[0-9a-fA-F]*')|(?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<name>`(?:[^`]|``)+`|\w+)"
    r"|(?P<text>'(?:[^'\\]|''|\\.)*')|(?P<sign><=|>=|<>|!=|=|<|>|\(|\)|,))",
    re.DOTALL,
)
#: A text that the server may take for the number of an ENUM's label when it searches an index (seen with MySQL 8.0).
_LABEL_NUMBER = re.compile(r"\s*[+-]?\d+\s*")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}

#: A function that evaluates SQL conditions after some statements: one truth value for each (None for NULL).
AskServer = Callable[[list[str], Sequence[str]], list[bool | None]]


class UncomparableTextError(DataError):
    """The server cannot compare a value of a filter's column, because it is larger than a packet."""

    cure = "Raise the server's `max_allowed_packet`, or choose another `source.snapshot.filter` for the table."


class ColumnComparison:
    """A condition ``column OP literal``; `sign` is one of `_COMPARE` or ``LIKE``."""

    def __init__(self, column: MySqlColumn, sign: str, value: KeyValue) -> None:
        self.column = column
        self._sign = sign
        self._value = value
        self._known: dict[str, bool | None] = {}

    def sql(self) -> str:
        compared = f"{quote_name(self.column.name)} {self._sign} {self._literal(self._value)}"
        if key_kind(self.column) is KeyKind.DATE:
            return f"(CASE WHEN {keys.null_condition(self.column)} THEN NULL ELSE {compared} END)"
        return f"({compared})"

    def mask(self, batch: pa.RecordBatch, ask: AskServer) -> pa.Array:
        array = batch.column(self.column.name)
        match key_kind(self.column):
            case KeyKind.TEXT:
                return self._asked(array, ask)
            case KeyKind.TIME:
                numbers = sort_keys.sort_keys(None, self.column, array).numbers
                bound = sort_keys.bound_keys(None, self.column, [self._value]).numbers
                assert numbers is not None
                assert bound is not None
                compared = _COMPARE[self._sign](pa.array(numbers), int(bound[0]))
                return pc.if_else(array.is_valid(), compared, pa.scalar(None, pa.bool_()))
            case KeyKind.FLOAT:
                # The server also compares a FLOAT as a double.
                return _COMPARE[self._sign](array.cast(pa.float64()), pa.scalar(self._value, pa.float64()))
            case _:
                return _COMPARE[self._sign](array, keys.to_arrow(self.column, [self._value])[0])

    def _literal(self, value: KeyValue) -> str:
        return keys.literal(self.column, value)

    def _asked(self, array: pa.Array, ask: AskServer) -> pa.Array:
        """Return one result per distinct text, compared by the server with its collation."""
        encoded = array.dictionary_encode()
        texts: list[str] = encoded.dictionary.to_pylist()
        if len(self._known) > _TEXTS_REMEMBERED:
            self._known.clear()
        found = {text: self._known[text] for text in texts if text in self._known}
        bound = self._literal(self._value)
        for part in _parts([text for text in texts if text not in found]):
            if len(part) == 1 and len(part[0]) > _TEXT_LENGTH_MAX:
                found[part[0]] = self._answer_for_long(part[0], bound, ask)
                continue
            answers = ask([f"{self._literal(text)} {self._sign} {bound}" for text in part], ())
            found.update(zip(part, answers, strict=True))
        self._known.update((text, answer) for text, answer in found.items() if len(text) <= _TEXT_LENGTH_MAX)
        answers_of = pa.array([found[text] for text in texts], pa.bool_())
        return answers_of.take(encoded.indices)

    def _answer_for_long(self, text: str, bound: str, ask: AskServer) -> bool | None:
        """Send a text in pieces, because as one literal it may be larger than a packet that the server accepts."""
        pieces = [text[first : first + _TEXT_LENGTH_MAX] for first in range(0, len(text), _TEXT_LENGTH_MAX)]
        prepared = [
            f"SET {_LONG_TEXT} = _utf8mb4 ''",
            *(f"SET {_LONG_TEXT} = CONCAT({_LONG_TEXT}, {keys.text_literal(piece)})" for piece in pieces),
        ]
        whole = f"LENGTH({_LONG_TEXT}) = {len(text.encode())}"
        value = keys.text_value(self.column, f"CONVERT({_LONG_TEXT} USING utf8mb4)")
        is_whole, answer = ask([whole, f"{value} {self._sign} {bound}"], prepared)
        if not is_whole:
            raise UncomparableTextError(
                f"source.snapshot.filter compares {self.column.name}, and the server cannot compare a text of "
                f"{len(text.encode())} bytes there. Raise max_allowed_packet on the server"
            )
        return answer


def _parts(texts: list[str]) -> Iterator[list[str]]:
    """Yield `texts` in parts for one statement each; a long text has a part of its own."""
    part: list[str] = []
    length = 0
    for text in texts:
        if part and (len(part) == _TEXTS_PER_STATEMENT or length + len(text) > _TEXT_LENGTH_MAX):
            yield part
            part, length = [], 0
        part.append(text)
        length += len(text)
    if part:
        yield part


@dataclass(frozen=True, slots=True)
class IsNull:
    """A condition ``column IS NULL``."""

    column: MySqlColumn

    def sql(self) -> str:
        return f"({keys.null_condition(self.column)})"

    def mask(self, batch: pa.RecordBatch, ask: AskServer) -> pa.Array:
        return batch.column(self.column.name).is_null()


@dataclass(frozen=True, slots=True)
class Both:
    """Two conditions with ``AND`` or ``OR`` (`either`), in SQL's three-valued logic."""

    left: Condition
    right: Condition
    either: bool

    def sql(self) -> str:
        return f"({self.left.sql()} {'OR' if self.either else 'AND'} {self.right.sql()})"

    def mask(self, batch: pa.RecordBatch, ask: AskServer) -> pa.Array:
        join = pc.or_kleene if self.either else pc.and_kleene
        return join(self.left.mask(batch, ask), self.right.mask(batch, ask))


@dataclass(frozen=True, slots=True)
class Not:
    """A condition ``NOT condition``."""

    inner: Condition

    def sql(self) -> str:
        return f"(NOT {self.inner.sql()})"

    def mask(self, batch: pa.RecordBatch, ask: AskServer) -> pa.Array:
        return pc.invert(self.inner.mask(batch, ask))


Condition = ColumnComparison | IsNull | Both | Not


def parse_filter(table: MySqlTable, text: str) -> Condition:
    """Parse the condition `text` for rows of `table`. Raises `ConfigError` naming the part that is not understood."""
    return _Parser(table, text).parse()


#: The advice if a statement made a configured filter or list of columns of a table impossible.
ANOTHER_CAPTURE = "Change it, then read the table anew with: raycdc tables resnapshot CONFIG {table}"


def uncapturable(table: MySqlTable, capture: Capture) -> str:
    """Return why rows of `table` cannot be captured as `capture` says; empty if they can."""
    there = {column.name for column in table.columns}
    if missing := next((name for name in capture.columns or () if name not in there), None):
        return f"source.columns: {table.id} has no column {missing!r}."
    try:
        if capture.filter is not None:
            parse_filter(table, capture.filter)
    except ConfigError as cause:
        return str(cause)
    return ""


def changed_meaning(
    before: MySqlTable, after: MySqlTable, capture: Capture, reassigned: Collection[str] = ()
) -> str | None:
    """Return a column of the filter that compares in another way in `after`; None if all compare as in `before`.

    The filter must fit both tables. A name in `reassigned` (as `mysql_fold` returns it) is another column in `after`,
    whose values are not those of `before`. If a column compares in a new way, the filter would judge the row before an
    update, and rows that were left out before, by the new comparison. Values compare alike if they keep their kind of
    comparison, character set and collation. Floats of a different type do not, because the same literal is then a
    different number.
    """
    if capture.filter is None:
        return None
    named = zip(
        columns_of(parse_filter(before, capture.filter)), columns_of(parse_filter(after, capture.filter)), strict=True
    )
    return next(
        (new.name for old, new in named if mysql_fold(new.name) in reassigned or not _compares_as_before(old, new)),
        None,
    )


def columns_of(condition: Condition) -> list[MySqlColumn]:
    """Return the compared columns of a condition, in the order of its text."""
    match condition:
        case ColumnComparison():
            return [condition.column]
        case IsNull(column):
            return [column]
        case Both(left, right, _):
            return [*columns_of(left), *columns_of(right)]
        case Not(inner):
            return columns_of(inner)


def _compares_as_before(before: MySqlColumn, after: MySqlColumn) -> bool:
    kind = key_kind(before)
    if kind is not key_kind(after) or (before.charset, before.collation) != (after.charset, after.collation):
        return False
    return kind is not KeyKind.FLOAT or before.column_type == after.column_type


def server_answers(connection: Connection[Any]) -> AskServer:
    """Return a function that evaluates conditions over `connection`."""

    def ask(conditions: list[str], prepared: Sequence[str]) -> list[bool | None]:
        for statement in prepared:
            query(connection, statement)
        answers = query_one(connection, "SELECT " + ", ".join(conditions)) or ()
        return [None if answer is None else bool(answer) for answer in answers]

    return ask


class _Parser:
    """A recursive-descent parser over the tokens of one condition."""

    def __init__(self, table: MySqlTable, text: str) -> None:
        self._table = table
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(text.rstrip()):
            token = _TOKEN.match(text, position)
            if token is None or token.lastgroup is None:
                self._refuse(f"{text[position : position + 20].strip()!r} is not understood")
            self._tokens.append((token.lastgroup, token.group(token.lastgroup)))
            position = token.end()
        self._next = 0

    def parse(self) -> Condition:
        condition = self._either()
        if self._next < len(self._tokens):
            self._refuse(f"{self._tokens[self._next][1]!r} is not expected there")
        return condition

    def _either(self) -> Condition:
        left = self._both()
        while self._take("OR"):
            left = Both(left, self._both(), either=True)
        return left

    def _both(self) -> Condition:
        left = self._not()
        while self._take("AND"):
            left = Both(left, self._not(), either=False)
        return left

    def _not(self) -> Condition:
        if self._take("NOT"):
            return Not(self._not())
        if self._take("("):
            inner = self._either()
            self._expect(")")
            return inner
        return self._predicate()

    def _predicate(self) -> Condition:
        kind, word = self._pop("a column")
        if kind != "name":
            self._refuse(f"{word!r} is where a column must be: write COLUMN OPERATOR VALUE")
        name = word[1:-1].replace("``", "`") if word.startswith("`") else word
        column = next((c for c in self._table.columns if mysql_fold(c.name) == mysql_fold(name)), None)
        if column is None:
            self._refuse(f"there is no column {name!r}")
        column = self._comparable(column)
        if self._take("IS"):
            negated = self._take("NOT")
            self._expect("NULL")
            return Not(IsNull(column)) if negated else IsNull(column)
        negated = self._take("NOT")
        if self._take("IN"):
            condition = self._in(column)
        elif self._take("BETWEEN"):
            low = ColumnComparison(column, ">=", self._value(column))
            self._expect("AND")
            condition = Both(low, ColumnComparison(column, "<=", self._value(column)), either=False)
        elif self._take("LIKE"):
            if key_kind(column) is not KeyKind.TEXT:
                self._refuse(f"LIKE is for text, and {column.name} is {column.column_type}")
            condition = ColumnComparison(column, "LIKE", self._value(column))
        elif negated:
            self._refuse("NOT must be before IN, BETWEEN, LIKE, NULL or a condition")
        else:
            _, sign = self._pop("an operator")
            sign = "<>" if sign == "!=" else sign
            if sign not in _COMPARE:
                self._refuse(f"{sign!r} is no operator")
            return ColumnComparison(column, sign, self._value(column))
        return Not(condition) if negated else condition

    def _in(self, column: MySqlColumn) -> Condition:
        self._expect("(")
        condition: Condition = ColumnComparison(column, "=", self._value(column))
        while self._take(","):
            condition = Both(condition, ColumnComparison(column, "=", self._value(column)), either=True)
        self._expect(")")
        return condition

    def _comparable(self, column: MySqlColumn) -> MySqlColumn:
        if column.shape.base == "enum":
            # An ENUM that is compared with a text counts as its label.
            column = replace(column, column_type="varchar(255)")
        if key_kind(column) is None:
            self._refuse(f"{column.name} is {column.column_type}, which cannot be compared")
        return column

    def _value(self, column: MySqlColumn) -> KeyValue:
        """Parse the next literal as a value of the column with the same meaning in SQL and Arrow."""
        kind, word = self._pop("a value")
        labels = next(one.labels for one in self._table.columns if one.name == column.name)
        try:
            value = _literal_value(column, kind, word)
            if labels and _LABEL_NUMBER.fullmatch(str(value)) and value not in labels:
                raise ValueError("no label is written so, and a server may take it for the number of a label")
            keys.to_arrow(column, [value])
        except (ValueError, InvalidOperation, OverflowError, pa.ArrowException) as cause:
            raise ConfigError(
                f"source.snapshot.filter: {self._table.id}: {word} is no exact value of {column.name} "
                f"({column.column_type}): {cause}. The filter is {self._text!r}."
            ) from cause
        return value

    def _pop(self, wanted: str) -> tuple[str, str]:
        if self._next >= len(self._tokens):
            self._refuse(f"it ends where {wanted} is expected")
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _take(self, word: str) -> bool:
        if self._next < len(self._tokens):
            kind, text = self._tokens[self._next]
            if kind in ("name", "sign") and text.upper() == word:
                self._next += 1
                return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._refuse(f"{word} is missing")

    def _refuse(self, reason: str) -> NoReturn:
        raise ConfigError(
            f"source.snapshot.filter: {self._table.id}: {reason}. The filter is {self._text!r}; it may compare columns "
            f"with literals (= <> < <= > >= IN BETWEEN LIKE IS NULL) and join that with AND, OR, NOT."
        )


def _literal_value(column: MySqlColumn, kind: str, word: str) -> KeyValue:
    """Return the literal as a key value. Raises ValueError if it is not of the column's type."""
    wanted = key_kind(column)
    if wanted is KeyKind.TEXT and kind == "text":
        text = _unquoted(word)
        if unheld := first_unheld(column.charset, text):
            raise ValueError(f"the column's character set {column.charset} has no {unheld!r}, and would compare '?'")
        return text
    if wanted is KeyKind.BYTES and kind == "hex":
        return bytes.fromhex(word[2:-1])
    if wanted is KeyKind.INTEGER and kind == "number":
        number = int(word)
        if column.shape.base == "year" and number and number < 1901:
            raise ValueError("years have four digits")
        return number
    if wanted is KeyKind.FLOAT and column.shape.digits is not None:
        raise ValueError("the server compares such a column by rounded values, with rules of its own")
    if wanted is KeyKind.FLOAT and kind == "number":
        return float(word)
    if wanted is KeyKind.EXACT and kind == "number":
        return format(Decimal(word), "f")
    if wanted in (KeyKind.DATE, KeyKind.TIME) and kind == "text":
        text = _unquoted(word)
        number_of = key_space.to_number(column, text)
        exact = None if number_of is None else key_space.from_number(column, number_of)
        if exact is None or key_space.to_number(column, exact) != number_of:
            raise ValueError("write it as 'YYYY-MM-DD HH:MM:SS', with no more fraction digits than the column has")
        return exact
    raise ValueError("it is of another kind")


def _unquoted(word: str) -> str:
    if "\\" in word:
        raise ValueError("a backslash means different things to different servers; leave it out")
    return word[1:-1].replace("''", "'")
