"""DDL statements as values, independent of any table: the parser makes them and `ddl` applies them.

Their parts are resolved: renames have the final names, defaults their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from raycdc.connectors.mysql.ddl.parse.types import WrittenType
from raycdc.connectors.mysql.values.types import DEFAULT_TYPES, MySqlTable, TypeOptions
from raycdc.model import TableId
from raycdc.model.evolution import After, First


@dataclass(frozen=True, slots=True)
class DdlDialect:
    """How the server, and the session that ran the statement, reads DDL.

    `display_width`: types are printed with widths (MariaDB, and MySQL before 8.0.19). `ansi_quotes`,
    `backslash_escapes`, `real_as_float`, `oracle` (types of MariaDB's Oracle mode) and `maxdb` (a TIMESTAMP is a
    DATETIME) follow from the statement's ``sql_mode``. `connection` is the character set to which its literals were
    converted from that of the `client`, empty if they were not. `lower_case_names` is ``lower_case_table_names = 1``.
    `explicit_timestamps`: a TIMESTAMP is nullable by default (``explicit_defaults_for_timestamp``). `geomcollection`:
    GEOMETRYCOLLECTION is printed so (MySQL 8, in which TEXT(0) is TINYTEXT, too). `version` (80015) decides about
    version comments; None if all remaining ones were executed, as in a log, whose server blanks the others. `strict`: a
    value that does not fit is an error (``sql_mode``). `mariadb_comments`: ``/*M! … */`` is executed. `time_zone` is
    the session's, empty if unknown; `empty_is_null`: ``''`` means NULL (MariaDB's ``EMPTY_STRING_IS_NULL``).
    `zero_is_value`: a new counter leaves zeros unchanged; `pads_char`: a CHAR is read with trailing spaces. `types` are
    the user's settings, which apply to new columns.
    """

    mariadb: bool = False
    display_width: bool = False
    ansi_quotes: bool = False
    backslash_escapes: bool = True
    lower_case_names: bool = False
    explicit_timestamps: bool = True
    real_as_float: bool = False
    oracle: bool = False
    maxdb: bool = False
    client: str = ""
    connection: str = ""
    geomcollection: bool = True
    version: int | None = None
    mariadb_comments: bool = True
    strict: bool = True
    time_zone: str = ""
    empty_is_null: bool = False
    zero_is_value: bool = False
    pads_char: bool = False
    types: TypeOptions = DEFAULT_TYPES


class Spelled(Enum):
    """The notation of a constant in a statement, which decides how a server interprets it."""

    TEXT = auto()
    NUMBER = auto()
    #: ``DATE '…'``, ``TIME '…'`` or ``TIMESTAMP '…'``.
    TEMPORAL = auto()
    #: ``0x41`` or ``b'101'``, also where the column is none of numbers.
    HEXADECIMAL = auto()
    #: A notation of uncertain meaning, such as bytes of another character set.
    OTHERWISE = auto()


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column as written.

    `charset` and `collation` are empty if the table's apply; `binary_collation` asks for the set's binary one.
    `default` is the constant default as text, `spelled` how it is written; `computed` says what existing rows get where
    that is no constant (an expression, a counter), else empty. `period` is ``START`` or ``END`` of a system-versioned
    table's ROW START and ROW END.
    """

    name: str
    type: WrittenType
    charset: str = ""
    collation: str = ""
    nullable: bool = True
    default: str | None = None
    computed: str = ""
    extra: str = ""
    primary_key: bool = False
    binary_collation: bool = False
    unique: bool = False
    period: str = ""
    spelled: Spelled = Spelled.TEXT
    #: Names that the expression of a generated column reads (`logged_otherwise.names_read`).
    reads: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AddColumn:
    """ADD COLUMN; `position` None means at the end."""

    definition: ColumnDefinition
    position: First | After | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    """DROP COLUMN."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """MODIFY (the definition keeps the name) or CHANGE (it may have a new one); `position` None: where it is."""

    name: str
    definition: ColumnDefinition
    position: First | After | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """RENAME COLUMN."""

    name: str
    new_name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetDefault:
    """ALTER COLUMN … SET DEFAULT or DROP DEFAULT (None), with `computed` and `spelled` as a column's definition has
    them. Rows that exist are concerned where the statement adds the column.
    """

    name: str
    default: str | None
    if_exists: bool = False
    computed: str = ""
    spelled: Spelled = Spelled.TEXT


@dataclass(frozen=True, slots=True)
class NotNull:
    """ADD PERIOD FOR a period of application time: its two columns take no NULL from here on."""

    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetPrimaryKey:
    """ADD PRIMARY KEY, or DROP PRIMARY KEY with no columns."""

    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique key is added; a copy without error messages drops rows that violate it."""


@dataclass(frozen=True, slots=True)
class SetCharset:
    """Default character set of the table, or with `convert` of all its columns; an empty collation is the set's own.

    `default_of` is the database whose default it is where the statement says DEFAULT, else empty.
    """

    charset: str
    collation: str
    convert: bool
    default_of: str = ""


@dataclass(frozen=True, slots=True)
class SetVersioning:
    """ADD SYSTEM VERSIONING (`on`), or DROP: rows that are not current are removed, the others stay."""

    on: bool


@dataclass(frozen=True, slots=True)
class SetComment:
    """COMMENT = '…' of the table."""

    comment: str


@dataclass(frozen=True, slots=True)
class RenameTo:
    """RENAME TO inside ALTER TABLE."""

    table: TableId


@dataclass(frozen=True, slots=True)
class RowsUnlogged:
    """Rows come or go in a way the log does not show (partitions, tablespaces); columns stay. `why` names it.

    They come from or go to the `others`.
    """

    why: str
    others: tuple[TableId, ...] = ()


AlterAction = (
    AddColumn
    | DropColumn
    | ChangeColumn
    | RenameColumn
    | SetDefault
    | NotNull
    | SetPrimaryKey
    | UniqueKey
    | SetCharset
    | SetVersioning
    | SetComment
    | RenameTo
    | RowsUnlogged
)


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE; with `like` the other table's columns are taken."""

    table: TableId
    columns: tuple[ColumnDefinition, ...] = ()
    primary_key: tuple[str, ...] = ()
    charset: str = ""
    collation: str = ""
    comment: str = ""
    like: TableId | None = None
    if_not_exists: bool = False
    or_replace: bool = False
    versioned: bool = False
    unique_keys: int = 0


@dataclass(frozen=True, slots=True)
class AlterTable:
    """ALTER TABLE; without actions it changes no rows or columns (only indexes, partitions or the engine)."""

    table: TableId
    actions: tuple[AlterAction, ...] = ()
    if_exists: bool = False
    ignore: bool = False


@dataclass(frozen=True, slots=True)
class RenameTable:
    """One pair of RENAME TABLE; several pairs become several values, in order."""

    table: TableId
    new_table: TableId
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class TruncateTable:
    """TRUNCATE TABLE."""

    table: TableId


@dataclass(frozen=True, slots=True)
class DropTable:
    """One table of DROP TABLE."""

    table: TableId
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropDatabase:
    """DROP DATABASE: every table in `db` is dropped, and the log says nothing else about them."""

    db: str


@dataclass(frozen=True, slots=True)
class CreateOrAlterDatabase:
    """CREATE (`created`) or ALTER DATABASE, with the character set that tables created from here on inherit, if any.

    `of_session`: it is that of the session's ``collation_server``, as the statement says none, or DEFAULT.
    """

    db: str
    charset: str = ""
    collation: str = ""
    created: bool = False
    if_not_exists: bool = False
    or_replace: bool = False
    of_session: bool = False


@dataclass(frozen=True, slots=True)
class TemporaryTable:
    """CREATE or DROP TEMPORARY TABLE; it is seen by its session alone and none of its rows is in the log."""

    table: TableId
    created: bool


TableDdl = (
    CreateTable
    | AlterTable
    | RenameTable
    | TruncateTable
    | DropTable
    | DropDatabase
    | CreateOrAlterDatabase
    | TemporaryTable
)


@dataclass(frozen=True, slots=True)
class RefusedStatement:
    """A statement that is not understood, or changes rows in a way the log does not show.

    If it is `filled`, it creates a table with rows that the log does not have.
    """

    statement: str
    reason: str
    filled: bool = False


def separated(statement: Iterable[TableDdl]) -> Iterator[TableDdl]:
    """Yield the parts of a statement; a RENAME TO inside an ALTER TABLE becomes a separate rename after it."""
    for ddl in statement:
        actions = ddl.actions if isinstance(ddl, AlterTable) else ()
        names = [action.table for action in actions if isinstance(action, RenameTo)]
        if isinstance(ddl, AlterTable) and names:
            yield replace(ddl, actions=tuple(a for a in actions if not isinstance(a, RenameTo)))
            yield RenameTable(ddl.table, names[-1], ddl.if_exists)
        else:
            yield ddl


def with_defaults(ddl: TableDdl, charset_of: Callable[[str], tuple[str, str]]) -> TableDdl:
    """`ddl` with the character set and collation of the database where it says DEFAULT."""
    if not isinstance(ddl, AlterTable):
        return ddl
    actions = [
        SetCharset(*charset_of(action.default_of), action.convert)
        if isinstance(action, SetCharset) and action.default_of
        else action
        for action in ddl.actions
    ]
    return replace(ddl, actions=tuple(actions))


def happened(pairs: Iterable[RenameTable], known: Callable[[TableId], bool]) -> list[RenameTable]:
    """Return the `pairs` that renamed a table.

    MariaDB's IF EXISTS skips a pair whose first name is unused; that may also be invisible to us. If a `known` table
    has the second name and keeps it, the pair was skipped.
    """
    moved: dict[TableId, bool] = {}
    done: list[RenameTable] = []
    for pair in pairs:
        has_old = moved.get(pair.table, known(pair.table))
        if pair.if_exists and not has_old and moved.get(pair.new_table, known(pair.new_table)):
            continue
        moved[pair.table], moved[pair.new_table] = False, has_old
        done.append(pair)
    return done


def previous_names_of(pairs: Sequence[RenameTable]) -> dict[TableId, TableId | None]:
    """Return for each name in `pairs` its table's earlier name; None if no table has the name any more."""
    previous_names: dict[TableId, TableId | None] = {}
    for pair in pairs:
        before = previous_names.get(pair.table, pair.table)
        previous_names[pair.table] = None
        previous_names[pair.new_table] = before
    return previous_names


def with_collations(table: MySqlTable, before: MySqlTable) -> MySqlTable:
    """`table` with the collations that its statement left to the server, where `before` shows which these are."""
    known = {(c.name.casefold(), c.charset): c.collation for c in before.columns}
    columns = (
        replace(c, collation=c.collation or known.get((c.name.casefold(), c.charset), "")) for c in table.columns
    )
    return replace(table, columns=tuple(columns))
