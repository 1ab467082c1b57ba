"""Decides how a table map's rows are treated: decoded by a plan, skipped, or reported as a schema mismatch.

`MapPlans` is called for each new TABLE_MAP. It first checks if the table's rows are wanted. Of unwanted tables only the
name is read, so that their maps cannot end a run. `SchemaMismatchReports` reports tables whose rows are not in the log,
or do not match their schema.

`contradiction` compares a table map with the schema that we know, to detect a schema change that was misread or missed.
It is called once for each new map, after `plan` has found that the rows' bytes can be decoded. A decoded value may
still differ from the server's value in its text, its label or its role as a key. The content of a map depends on the
server: nullability is always present, signs and character sets with ``binlog_row_metadata = MINIMAL`` of MySQL and
MariaDB, names, labels and the primary key with ``FULL``.

| part of a map | compared |
|---|---|
| number of columns, types, lengths, digits, signs, names | by `plan.wire_plan` |
| NULL allowed in all columns | no: most servers write this if the statement had the table in an outer join |
| NULL allowed, character sets, labels, kinds of geometries, primary key | by `contradiction` |
| visibility of columns | no: rows and our SELECTs have invisible columns, too |
| default values, collations of one set | no: they are missing, or have no effect on values |

`MapSchemas` finds the schema of the rows after a TABLE_MAP: the schema of the followed table, a given schema, or a
schema inferred from the map. `TableMapRegistry` has the table maps seen so far in arrays that the compiled pass
searches, by table id and by content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog.event_loops import find_map, hash_bytes
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.index_loops import S_TABLE_IDS
from raycdc.connectors.mysql.binlog.positions.binlog_cursor import BinlogCursor
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.plan import WirePlan, mismatch, shown_part, wire_plan, with_logged_labels
from raycdc.connectors.mysql.binlog.tables.table_decoding import Decodings, ReadyMap
from raycdc.connectors.mysql.binlog.tables.table_map import (
    MapColumn,
    TableMap,
    infer_table,
    parse_table_map,
    require_possible,
    table_named,
)
from raycdc.connectors.mysql.values.charset_corrections import CORRECTIONS
from raycdc.connectors.mysql.values.charsets import same_charset
from raycdc.connectors.mysql.values.types import (
    ADDRESS_TYPES,
    CHARACTER_TYPES,
    GEOMETRIES,
    GEOMETRY_KINDS,
    MySqlColumn,
    MySqlTable,
)
from raycdc.errors import CorruptLogError, DataError, SchemaError, SchemaMismatchError
from raycdc.model import TableId
from raycdc.model.column_names import mysql_fold

#: A function that is called with a table, the reason why its rows cannot be decoded, and the end of the previous
#: transaction.
SchemaMismatchListener = Callable[[TableId, DataError, BinlogOffset], None]


class SchemaMismatchReports:
    """The reports of schema mismatches; see the module's docstring.

    Without a listener, a mismatch is an error that ends the run.
    """

    def __init__(self, cursor: BinlogCursor) -> None:
        self._cursor = cursor
        #: Called for each table with a mismatch; the table's later rows are skipped.
        self.listener: SchemaMismatchListener | None = None

    @property
    def heard(self) -> bool:
        """Return True if a mismatch is reported to a listener; otherwise it is an error."""
        return self.listener is not None

    def report(self, table: TableId, error: DataError, before: BinlogOffset | None = None) -> None:
        """Report that rows of the table cannot be delivered. Raises `error` if there is no listener.

        `before` is the end of the previous transaction: by default, the last end before the cursor.
        """
        if self.listener is None:
            raise error
        self.listener(table, error, before or self._cursor.position)


_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_LABELLED = frozenset({"enum", "set"})


def contradiction(table_map: TableMap, table: MySqlTable) -> str | None:
    """Return the first contradiction of the map, as the log describes it; None if map and table agree."""
    # MariaDB lists no character set for address types, which look like text in a map. If there are any, the sets cannot
    # be assigned to columns.
    sets_are_clear = not any(column.shape.base in ADDRESS_TYPES for column in table.columns)
    # The server reports NULL as allowed in each column of the inner table of an outer join (``Field::maybe_null``).
    nulls_are_clear = not all(column.nullable for column in table_map.columns)
    for seen, known in zip(table_map.columns, table.columns, strict=False):
        if seen.nullable and not (nulls_are_clear or known.nullable):
            seen = replace(seen, nullable=None)  # noqa: PLW2901
        if (other := _of_column(seen if sets_are_clear else replace(seen, charset=""), known)) is not None:
            return f"column {known.name!r} {other} there"
    named = any(column.name for column in table_map.columns)
    if named and table.primary_key:
        # Without a primary key, the server may log another unique key. The end column of a period is in every key.
        keys = [mysql_fold(table_map.columns[index].name) for index in table_map.primary_key]
        logged = [key for key in keys if key != mysql_fold(table.row_end)]
        if logged != [mysql_fold(key) for key in table.primary_key]:
            return f"the primary key is ({', '.join(logged)}) there"
    return None


def _of_column(seen: MapColumn, known: MySqlColumn) -> str | None:
    base = known.shape.base
    if seen.nullable is not None and seen.nullable != known.nullable:
        return "may be NULL" if seen.nullable else "is NOT NULL"
    if seen.charset and base in _BYTES and seen.charset != "binary":
        return f"has the character set {seen.charset}"
    text = base in CHARACTER_TYPES or base in _LABELLED
    if seen.charset and text and known.charset and not same_charset(seen.charset, known.charset):
        return f"has the character set {seen.charset}"
    if seen.labels and base in _LABELLED and _differ(seen.labels, known.shape.labels, seen.charset):
        return f"has the labels {', '.join(map(repr, seen.labels))}"
    if seen.geometry and base in GEOMETRIES and _geometry(base) != seen.geometry:
        return f"is a {seen.geometry}"
    return None


def _geometry(base: str) -> str:
    return GEOMETRY_KINDS[-1] if base == "geomcollection" else base


def _differ(logged: tuple[str, ...], known: tuple[str, ...], charset: str) -> bool:
    """Return True if labels differ.

    With a set that Python decodes differently than servers, only ASCII labels are compared.
    """
    if len(logged) != len(known):
        return True
    exact = charset != "binary" and charset not in CORRECTIONS
    pairs = zip(logged, known, strict=True)
    return any(one != other and (exact or (one.isascii() and other.isascii())) for one, other in pairs)


class MapSchemas:
    """The schemas for table maps.

    `tables` are the followed tables, each with the schema in force where reading of the log begins.
    """

    def __init__(self, tables: Mapping[TableId, MySqlTable]) -> None:
        self._tables = {name: table.as_logged() for name, table in tables.items()}
        self._given: Mapping[TableId, MySqlTable] = {}
        #: True if tables are inferred from their maps, so that no schema is certain.
        self.inferred = False
        #: The kind of log.
        self.log = LogKind()

    @classmethod
    def from_the_log(cls, given: Mapping[TableId, MySqlTable] | None = None) -> MapSchemas:
        """Return schemas for a log without followed tables.

        Each is inferred from the table's maps, unless one of `given` fits.
        """
        schemas = cls({})
        schemas._given = given or {}
        schemas.inferred = True
        return schemas

    def set(self, table: MySqlTable) -> None:
        self._tables[table.id] = table.as_logged()

    def remove(self, table: TableId) -> None:
        self._tables.pop(table, None)

    def known(self, table: TableId) -> MySqlTable | None:
        """Return the schema of a table if it is followed."""
        return self._tables.get(table)

    @property
    def followed(self) -> tuple[TableId, ...]:
        """Return the followed tables, which have a schema here."""
        return tuple(self._tables)

    def of(self, table_map: TableMap) -> tuple[MySqlTable, WirePlan]:
        """Return the table of a map, and the plan for its rows. Raises `SchemaError` if the two do not fit."""
        if self.inferred:
            return self._from_map(table_map)
        followed = self._tables.get(table_map.table)
        if followed is None:
            raise SchemaError(f"rows of table {table_map.table}, whose schema is not known here.")
        shown = shown_part(table_map, followed, self.log)
        table = with_logged_labels(shown, followed)
        plan = self._plan(table_map, table)
        if (other := contradiction(shown, table)) is not None:
            raise mismatch(table_map, table, other)
        return table, plan

    def _from_map(self, table_map: TableMap) -> tuple[MySqlTable, WirePlan]:
        given = self._given.get(table_map.table)
        if given is not None:
            with suppress(SchemaError):  # the map is of another version of the table
                return given, self._plan(table_map, given)
        table = infer_table(table_map)
        return table, self._plan(table_map, table)

    def _plan(self, table_map: TableMap, table: MySqlTable) -> WirePlan:
        return wire_plan(table_map, table, self.log)


#: The most table ids that are kept. A server gives a table a new id whenever it is reopened, so old ids are dropped
#: between feeds.
_TABLE_IDS_MAX = 1 << 16


class TableMapRegistry:
    """The table maps seen so far. `maps` holds (offset, length) of each map's bytes in `content`.

    A forgotten map has the length -1.
    """

    def __init__(self) -> None:
        self.count = 0
        self.maps = np.zeros((64, 2), np.int64)
        self.wanted = np.zeros(64, np.uint8)
        self.content = np.zeros(16_384, np.uint8)
        self._used = 0
        self.map_keys = np.full(256, -1, np.int64)
        self.map_values = np.zeros(256, np.int64)
        self.id_keys = np.full(1024, -1, np.int64)
        self.id_values = np.zeros(1024, np.int64)

    def add(self, content: npt.NDArray[np.uint8], *, wanted: bool) -> int:
        """Register a map's bytes, and return the map's number."""
        number = self.count
        size = len(content)
        if number == len(self.maps):
            self.maps = np.concatenate([self.maps, np.zeros_like(self.maps)])
            self.wanted = np.concatenate([self.wanted, np.zeros_like(self.wanted)])
        while self._used + size > len(self.content):
            self.content = np.concatenate([self.content, np.zeros_like(self.content)])
        self.content[self._used : self._used + size] = content
        self.maps[number] = (self._used, size)
        self.wanted[number] = wanted
        self._used += size
        self.count += 1
        if self.count * 2 >= len(self.map_keys):
            self._rehash_maps()
        else:
            self._insert_map(number)
        return number

    def number_of(self, content: npt.NDArray[np.uint8]) -> int:
        """Return the number of the map with exactly these bytes, -1 if there is none."""
        copied = np.ascontiguousarray(content)
        return int(find_map(copied, 0, len(copied), self.maps, self.content, self.map_keys, self.map_values))

    def number_of_id(self, table_id: int) -> int:
        """Return the number of the map that is valid for a table id now, -1 if the id was not announced."""
        mask = len(self.id_keys) - 1
        slot = (table_id * 0x9E3779B1) & mask
        while self.id_keys[slot] != -1:
            if self.id_keys[slot] == table_id:
                return int(self.id_values[slot])
            slot = (slot + 1) & mask
        return -1

    def forget(self, number: int) -> None:
        """Forget a map, so that the next TABLE_MAP with these bytes is treated as new."""
        self.maps[number, 1] = -1

    def grow_ids(self, state: npt.NDArray[np.int64]) -> None:
        """Double the table of ids."""
        self._reset_ids(len(self.id_keys) * 2, state)

    def trim_ids(self, state: npt.NDArray[np.int64]) -> None:
        """Drop all ids if there are too many.

        Call it between transactions only, because each announces its tables again.
        """
        if int(state[S_TABLE_IDS]) > _TABLE_IDS_MAX:
            self.id_keys[:] = -1
            state[S_TABLE_IDS] = 0

    def _reset_ids(self, size: int, state: npt.NDArray[np.int64]) -> None:
        old = [(int(k), int(v)) for k, v in zip(self.id_keys, self.id_values, strict=True) if k != -1]
        self.id_keys = np.full(size, -1, np.int64)
        self.id_values = np.zeros(size, np.int64)
        for key, value in old:
            slot = _free_slot(self.id_keys, key)
            self.id_keys[slot], self.id_values[slot] = key, value
        state[S_TABLE_IDS] = len(old)

    def _rehash_maps(self) -> None:
        self.map_keys = np.full(len(self.map_keys) * 2, -1, np.int64)
        self.map_values = np.zeros(len(self.map_keys), np.int64)
        for number in range(self.count):
            if self.maps[number, 1] >= 0:
                self._insert_map(number)

    def _insert_map(self, number: int) -> None:
        start, size = (int(n) for n in self.maps[number])
        key = int(hash_bytes(self.content, start, size))
        slot = _free_slot(self.map_keys, key)
        self.map_keys[slot], self.map_values[slot] = key, number


def _free_slot(keys: npt.NDArray[np.int64], key: int) -> int:
    """Return the first free slot for `key`, probing like `index_loops` (int64 product, wrapped)."""
    mask = len(keys) - 1
    slot = (key * 0x9E3779B1) & mask
    while keys[slot] != -1:
        slot = (slot + 1) & mask
    return slot


class MapPlans:
    """The table maps with their plans; see the module's docstring.

    `ready` holds the table maps of wanted tables by their registered number.
    """

    def __init__(
        self,
        schemas: MapSchemas,
        decodings: Decodings,
        mismatches: SchemaMismatchReports,
        *,
        wanted: Callable[[TableId], bool],
        log: LogKind,
    ) -> None:
        self.schemas = schemas
        self.registry = TableMapRegistry()
        self.ready: dict[int, ReadyMap] = {}
        self.wanted = wanted
        self._decodings = decodings
        self._mismatches = mismatches
        self._mariadb = log.mariadb
        schemas.log = log
        #: The numbers of skipped table maps by table, because the table may be wanted again.
        self._passed_over: dict[TableId, list[int]] = {}

    def add(self, content: npt.NDArray[np.uint8], *, index: str, proven: bool) -> None:
        """Add a new table map, at `index` in the log. A mismatch is reported, and the rows are skipped.

        Without a listener, a mismatch is an error. If `proven`, a checksum shows that the map is as the server wrote
        it, so that an unreadable map concerns only its table. Otherwise an unreadable map is damage.
        """
        body = content.tobytes()
        table, ready = table_named(body), None
        try:
            table_map = parse_table_map(body, mariadb=self._mariadb)
            if self.wanted(table):
                require_possible(table_map)
                ready = self._ready(table_map)
        except (SchemaError, CorruptLogError) as error:
            if not self._mismatches.heard or (isinstance(error, CorruptLogError) and not proven):
                raise
            if self.wanted(table):
                kind = SchemaMismatchError if isinstance(error, CorruptLogError) else type(error)
                self._mismatches.report(table, kind(f"{index}: {error}"))
        number = self.registry.add(content, wanted=ready is not None)
        if ready is not None:
            self.ready[number] = ready
        else:
            self._passed_over.setdefault(table, []).append(number)

    def plan_of(self, number: int) -> WirePlan | None:
        """Return the layout of a registered table map's rows; None if they are not wanted."""
        ready = self.ready.get(number)
        return None if ready is None else ready.plan

    def set(self, table: MySqlTable) -> None:
        """Decode rows after this point with the schema `table`. Table maps seen before are checked again."""
        self.schemas.set(table)
        self._forget(table.id)

    def remove(self, table: TableId) -> None:
        """Forget a dropped table. Later rows of it are refused as unknown."""
        self.schemas.remove(table)
        self._forget(table)

    def pass_over(self, table: TableId) -> None:
        """Skip the table's rows until it gets another schema."""
        numbers = self._take_ready(table)
        for number in numbers:
            self.registry.wanted[number] = False
        self._passed_over.setdefault(table, []).extend(numbers)

    def _ready(self, table_map: TableMap) -> ReadyMap:
        table, plan = self.schemas.of(table_map)
        return ReadyMap(table.id, self._decodings.of(table), plan, self._decodings.scratch(len(plan.steps)))

    def _forget(self, table: TableId) -> None:
        for number in (*self._take_ready(table), *self._passed_over.pop(table, ())):
            self.registry.forget(number)
        self._decodings.forget(table)

    def _take_ready(self, table: TableId) -> list[int]:
        numbers = [number for number, ready in self.ready.items() if ready.table == table]
        for number in numbers:
            del self.ready[number]
        return numbers
