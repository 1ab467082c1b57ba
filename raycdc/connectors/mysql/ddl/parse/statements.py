"""DDL statements as values, independent of any table: the parser makes these values, and `ddl` applies them.

Their parts are resolved: renames have the final names, and defaults have their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from raycdc.connectors.mysql.ddl.parse.types import WrittenType
from raycdc.connectors.mysql.values.types import DEFAULT_TYPES, MySqlTable, TypeOptions
from raycdc.model import TableId
from raycdc.model.column_names import mysql_fold
from raycdc.model.evolution import After, First


@dataclass(frozen=True, slots=True)
class DdlDialect:
    """The rules by which a server, and the session that ran the statement, reads DDL.

    `display_width`: types are printed with widths (MariaDB, and MySQL before 8.0.19). `ansi_quotes`,
    `backslash_escapes`, `real_as_float`, `oracle` (types of MariaDB's Oracle mode) and `maxdb` (a TIMESTAMP is a
    DATETIME) follow from the statement's ``sql_mode``. `connection` is the character set to which the session converted
    its literals from that of the `client`; both are empty if it did not. `lower_case_names` is
    ``lower_case_table_names = 1``. `explicit_timestamps`: a TIMESTAMP is nullable by default
    (``explicit_defaults_for_timestamp``). `geomcollection`: GEOMETRYCOLLECTION is printed under this name (MySQL 8, in
    which TEXT(0) is TINYTEXT, too). `version` (80015) decides which version comments are executed; None if all version
    comments in the statement were executed, as in a log, because the server removes all others. `strict`: a value that
    does not fit is an error (``sql_mode``). `mariadb_comments`: ``/*M! … */`` is executed. `time_zone` is the
    session's, empty if unknown. `empty_is_null`: ``''`` means NULL (MariaDB's ``EMPTY_STRING_IS_NULL``).
    `zero_is_value`: adding AUTO_INCREMENT leaves zeros unchanged. `pads_char`: a CHAR is read with trailing spaces.
    `types` are the user's settings, which apply to new columns.
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
    #: ``0x41`` or ``b'101'``, also if the column is not numeric.
    HEXADECIMAL = auto()
    #: A notation of uncertain meaning, such as bytes of another character set.
    OTHERWISE = auto()


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column as written in the statement.

    `charset` and `collation` are empty if the table's apply; `binary_collation` requests the set's binary collation.
    `default` is the constant default as text, and `spelled` its notation. `computed` describes the value of existing
    rows if it is no constant (an expression, a counter); otherwise it is empty. `period` is ``START`` or ``END`` for
    ROW START and ROW END of a system-versioned table.
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
    #: The names in the expression of a generated column (`logged_otherwise.names_read`).
    reads: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AddColumn:
    """An ADD COLUMN. If `position` is None, the column comes last."""

    definition: ColumnDefinition
    position: First | After | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    """A DROP COLUMN."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """A MODIFY (the definition has the old name) or CHANGE (it may have a new name).

    If `position` is None, the column stays.
    """

    name: str
    definition: ColumnDefinition
    position: First | After | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """A RENAME COLUMN."""

    name: str
    new_name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetDefault:
    """An ALTER COLUMN … SET DEFAULT or DROP DEFAULT (None). `computed` and `spelled` are as in `ColumnDefinition`.

    The default concerns existing rows only if the same statement adds the column.
    """

    name: str
    default: str | None
    if_exists: bool = False
    computed: str = ""
    spelled: Spelled = Spelled.TEXT


@dataclass(frozen=True, slots=True)
class NotNull:
    """An ADD PERIOD FOR a period of application time: its two columns are NOT NULL from then on."""

    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetPrimaryKey:
    """An ADD PRIMARY KEY; without columns, a DROP PRIMARY KEY."""

    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A new unique key. If the statement suppresses errors, it drops rows that violate the key."""


@dataclass(frozen=True, slots=True)
class SetCharset:
    """The default character set of a table, or with `convert` of all its columns.

    An empty collation is the set's default collation. `default_of` is the database whose default applies if the
    statement says DEFAULT, otherwise empty.
    """

    charset: str
    collation: str
    convert: bool
    default_of: str = ""


@dataclass(frozen=True, slots=True)
class SetVersioning:
    """An ADD SYSTEM VERSIONING (`on`) or DROP SYSTEM VERSIONING, which removes all rows that are not current."""

    on: bool


@dataclass(frozen=True, slots=True)
class SetComment:
    """A COMMENT = '…' of the table."""

    comment: str


@dataclass(frozen=True, slots=True)
class RenameTo:
    """A RENAME TO inside ALTER TABLE."""

    table: TableId


@dataclass(frozen=True, slots=True)
class RowsUnlogged:
    """A change of rows that the log does not have (partitions, tablespaces), without a change of columns.

    `why` names the action. Rows come from or go to the tables `others`.
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
    """A CREATE TABLE. With `like`, the columns of that table are copied."""

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
    """An ALTER TABLE. Without actions it changes no rows or columns (only indexes, partitions or the engine)."""

    table: TableId
    actions: tuple[AlterAction, ...] = ()
    if_exists: bool = False
    ignore: bool = False


@dataclass(frozen=True, slots=True)
class RenameTable:
    """One pair of a RENAME TABLE. Several pairs become several values, in order."""

    table: TableId
    new_table: TableId
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class TruncateTable:
    """A TRUNCATE TABLE."""

    table: TableId


@dataclass(frozen=True, slots=True)
class DropTable:
    """One table of a DROP TABLE."""

    table: TableId
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropDatabase:
    """A DROP DATABASE: every table in `db` is dropped. The log has no other statement about these tables."""

    db: str


@dataclass(frozen=True, slots=True)
class CreateOrAlterDatabase:
    """A CREATE (`created`) or ALTER DATABASE, with the character set that new tables inherit, if it names one.

    `of_session`: the set is that of the session's ``collation_server``, because the statement names none, or DEFAULT.
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
    """A CREATE or DROP TEMPORARY TABLE. Only its session sees the table, and the log has none of its rows."""

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
    """A statement that is not understood, or changes rows in a way that the log does not show.

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
    """Return `ddl` with the word DEFAULT replaced by the character set and collation of the database."""
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

    MariaDB's IF EXISTS skips a pair if its first table does not exist, which we may not know. If a `known` table has
    the second name and keeps it, the pair was skipped.
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
    """Return `table` with the collations that the statement left to the server, taken from `before`."""
    known = {(mysql_fold(c.name), c.charset): c.collation for c in before.columns}
    columns = (
        replace(c, collation=c.collation or known.get((mysql_fold(c.name), c.charset), "")) for c in table.columns
    )
    return replace(table, columns=tuple(columns))
