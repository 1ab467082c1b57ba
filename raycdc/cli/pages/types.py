"""The page ``types``: the type of a column in each target, generated from the code.

The page uses the code of a run, and repeats none of its rules: the source's mapping gives the types, each target's
function gives the columns, and an encoder gives the values in JSON.
"""

from __future__ import annotations

import datetime
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema as DeltaSchema

from raycdc.cli.pages.listings import code, is_written, table
from raycdc.config.mongodb import parse_type, type_names
from raycdc.connectors.mysql.values.types import MySqlColumn, TypeOptions, column_types
from raycdc.formats.decoding.sql_types import parse_type as declared
from raycdc.formats.decoding.sql_types import type_words
from raycdc.formats.plugins import load_format
from raycdc.model import META_FIELDS, Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.rules.names import LIMITS, NAMES, TargetLimits
from raycdc.model.types import wide_decimal
from raycdc.plugins import PluginGroup, PluginListing, list_plugins
from raycdc.sinks.iceberg.files import type_text
from raycdc.sinks.jdbc.types import mysql_type, postgres_type
from raycdc.sinks.mongodb.types import form_of
from raycdc.sinks.tasks import json_lines

_BEGIN = """# Types: from the source to each target

The tables below show the type of a column at the source, in Arrow (which Spark and Python see), and in each target. A
value arrives unchanged, or its table is parked with an error that names the column. Numbers in the name of a type are
examples. `raycdc docs mysql` and `raycdc docs mongodb` describe the options for types of a source, and `raycdc docs
targets` the values that each target refuses. `raycdc plan` prints the columns of your own tables."""

_JSON = """## As JSON

The table shows one value of each type in `jsonl`, and in the messages of the formats that can be written. NULL is
`null` everywhere. JSON has no numbers for NaN and infinities: `jsonl` has null, `maxwell-json` and `debezium-json` have
the names of these values as texts."""

_KAFKA = """## Topics with declared columns

If the format of a topic includes types, its columns have these types; otherwise they are whole numbers, doubles, texts,
booleans and JSON. With `columns = "…"` of a format (`raycdc docs formats`) you can declare columns. The types below may
be used, in the spellings of MySQL, Spark and Flink and with their parameters. In targets they become the same as the
types above."""

_NOTES = """If a decimal has more than 38 digits, lakes have a text, and databases have an exact number. A text in a
key of a MySQL target has the length of the source's column, up to 768 characters; if this length is not known, the
table is refused. A moment that does not come from a MySQL `timestamp` becomes a `datetime(6)` in UTC in a MySQL target,
because MySQL's `timestamp` only has the years 1970 to 2038."""

_LIMITS = """## How much a target holds

The table shows how many columns, and how large a key, a target can have. A table that exceeds the limits is parked
before its first row, or at the change of its schema by which it exceeds them. In a database, one column is needed by
raycdc (two if several tables share an upsert target), because changed rows are marked in an additional table. If the
server refuses to create or change a target, the table is parked, too. A single row that is too large is refused by the
server; `pipeline.on_bad_record` says what happens to it."""

#: The spellings of MySQL types whose parameters matter; any other type has one spelling.
_SPELLED: Mapping[str, tuple[str, ...]] = {
    "tinyint": ("tinyint", "tinyint unsigned"),
    "smallint": ("smallint", "smallint unsigned"),
    "mediumint": ("mediumint", "mediumint unsigned"),
    "int": ("int", "int unsigned"),
    "bigint": ("bigint", "bigint unsigned"),
    "decimal": ("decimal(12,2)", "decimal(65,4)"),
    "bit": ("bit(5)", "bit(64)"),
    "datetime": ("datetime", "datetime(6)"),
    "timestamp": ("timestamp", "timestamp(6)"),
    "time": ("time(3)",),
    "char": ("char(20)",),
    "varchar": ("varchar(20)",),
    "binary": ("binary(8)",),
    "varbinary": ("varbinary(8)",),
    "vector": ("vector(3)",),
    "enum": ("enum('a','b')",),
    "set": ("set('a','b')",),
}
_REFUSED = "refused"
#: The options of `[source.types]` that change a type: the option, the columns to which it applies, and the value that
#: is not the default.
_CHOSEN = (
    ('tinyint1 = "boolean"', "tinyint(1)", TypeOptions(tinyint1="boolean")),
    ('invalid_dates = "text"', "datetime", TypeOptions(invalid_dates="text")),
    ('geometry = "geojson"', "point", TypeOptions(geometry="geojson")),
)

#: Values of the metadata columns of a batch, by type.
_NOTHING: Mapping[pa.DataType, object] = {pa.int8(): 0, pa.int64(): 0, pa.string(): ""}
_AT = datetime.datetime(2024, 2, 29, 12, 30, 0, 250_000, datetime.UTC)
#: An example value of each kind; the default is 7.
_SAMPLES: Mapping[TypeKind, object] = {
    TypeKind.BOOLEAN: True,
    TypeKind.UINT64: Decimal(2**64 - 1),
    TypeKind.FLOAT32: 1.5,
    TypeKind.FLOAT64: 1.5,
    TypeKind.DECIMAL: Decimal("9.50"),
    TypeKind.STRING: "tea",
    TypeKind.BINARY: b"\x01\xfe",
    TypeKind.DATE: _AT.date(),
    TypeKind.TIME: "12:30:00.250",
    TypeKind.YEAR: 2024,
    TypeKind.ENUM: "a",
    TypeKind.SET: "a,b",
    TypeKind.JSON: '{"a": 1}',
}


#: Example values of the types that only MongoDB has.
_OWN_SAMPLES = {
    "objectId": "64f0c1d2e3a4b5c6d7e8f901",
    "binData(4)": "c0ffee00-0000-4000-8000-000000000001",
    "decimal128": "9.50",
}


@dataclass(frozen=True, slots=True)
class _Source:
    """A type as its source spells it, with its logical type."""

    name: str
    type: LogicalType


def types_page() -> str:
    """Return the text of the page."""
    mysql, mongodb = list(_mysql_types()), [_Source(name, parse_type(name)) for name in type_names()]
    topics = [_Source(word, declared(word)) for word in type_words()]
    parts = [
        _BEGIN,
        "## MySQL and MariaDB",
        _NOTES,
        "### Into lakes and files",
        _lakes("MySQL, MariaDB", mysql),
        "### Into databases",
        _databases("MySQL, MariaDB", mysql),
        "## MongoDB",
        "Types as `[source.columns]` names them; inferred columns have them, too.",
        "### MongoDB's into lakes and files",
        _lakes("MongoDB", mongodb),
        "### MongoDB's into databases",
        _databases("MongoDB", mongodb),
        _JSON,
        _texts("MySQL, MariaDB", mysql),
        _texts("MongoDB", mongodb),
        _KAFKA,
        _lakes("type in `columns`", topics),
        _LIMITS,
        _limits(),
    ]
    return "\n\n".join(parts) + "\n"


def _limits() -> str:
    head = (
        "a table in",
        "columns",
        "columns in its key",
        "bytes in its key",
        "name of a column",
        "other limits, checked by the server or for each row",
    )
    return table(head, [_limit_cells(kind, limits) for kind, limits in LIMITS.items()])


def _limit_cells(kind: str, limits: TargetLimits) -> tuple[str, ...]:
    numbers = (limits.columns_max, limits.key_columns_max, limits.key_bytes_max)
    rules = NAMES[kind]
    named = (
        f"{rules.bytes_max} bytes" if rules.bytes_max else f"{rules.length_max} characters" if rules.length_max else ""
    )
    return (code(kind), *(f"{number:,}" if number else "" for number in numbers), named, limits.description)


def _mysql_types() -> Iterator[_Source]:
    for base in column_types():
        for spelled in _SPELLED.get(base, (base,)):
            yield _Source(spelled, MySqlColumn("c", spelled, charset=_charset(base)).logical())
    for said, spelled, options in _CHOSEN:
        yield _Source(f"{spelled} with {said}", options.treat(MySqlColumn("c", spelled)).logical())


def _charset(base: str) -> str:
    return "utf8mb4" if "char" in base or "text" in base else ""


def _lakes(title: str, sources: Sequence[_Source]) -> str:
    head = (title, "Arrow", "Spark", "Delta", "Iceberg", "Parquet")
    return table(head, _merged((s.name, _lake_cells(s.type)) for s in sources))


def _lake_cells(logical: LogicalType) -> tuple[str, ...]:
    arrow = logical.arrow()
    return (str(arrow), logical.spark(), _delta(arrow), type_text(arrow), _parquet(arrow))


def _delta(arrow: pa.DataType) -> str:
    field = json.loads(DeltaSchema.from_arrow(pa.schema([pa.field("c", arrow)])).fields[0].to_json())
    return str(field["type"])


def _parquet(arrow: pa.DataType) -> str:
    """Return the physical type of a Parquet column, with the logical type if there is one."""
    file = io.BytesIO()
    pq.write_table(pa.schema([pa.field("c", arrow)]).empty_table(), file, store_schema=False)
    column = pq.ParquetFile(file).schema.column(0)
    logical = json.loads(column.logical_type.to_json())
    name = str(logical.pop("Type"))
    if name == "None":
        return str(column.physical_type)
    described = [str(logical[key]) for key in ("precision", "scale", "bitWidth", "timeUnit") if key in logical]
    utc = ["UTC" if logical["isAdjustedToUTC"] else "local"] if "isAdjustedToUTC" in logical else []
    inside = ", ".join([*described, *utc])
    return f"{column.physical_type}, {name}({inside})" if inside else f"{column.physical_type}, {name}"


def _databases(title: str, sources: Sequence[_Source]) -> str:
    head = (title, "PostgreSQL", "MySQL, MariaDB", "in their key", "MongoDB")
    return table(head, _merged((s.name, _database_cells(s.type)) for s in sources))


def _database_cells(logical: LogicalType) -> tuple[str, ...]:
    try:
        key = mysql_type(logical, key=True)
    except ValueError:
        key = _REFUSED
    return (postgres_type(logical), mysql_type(logical, key=False), key, form_of(logical).bson)


def _texts(title: str, sources: Sequence[_Source]) -> str:
    written = [plugin.type for plugin in list_plugins() if plugin.group is PluginGroup.FORMATS and _is_ours(plugin)]
    rows = ((s.name, (_in_lines(s.type), *(_in_message(s.type, name) for name in written))) for s in sources)
    return table((title, "jsonl", *written), _merged(rows))


def _is_ours(plugin: PluginListing) -> bool:
    return plugin.package == "raycdc" and is_written(plugin.type)


def _in_lines(logical: LogicalType) -> str:
    batch = pa.RecordBatch.from_arrays([_sample(logical)], names=["c"])
    return _value(json_lines(batch, TableSchema((Column("c", logical),), ())).to_pybytes())


def _in_message(logical: LogicalType, identifier: str) -> str:
    """Return the first value of the column in a message about an inserted row."""
    schema = TableSchema((Column("c", logical),), ())
    fields = [pa.field("c", logical.arrow()), *META_FIELDS]
    arrays = [_sample(logical), *(pa.array([_NOTHING[field.type]], field.type) for field in META_FIELDS)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    message = load_format(identifier).encoder(TableId("shop", "orders"), schema).encode(batch).values[0].as_py()
    image = re.search(rb'"(data|after)":\[?', message)
    assert image is not None
    return _value(message[image.end() :])


def _value(text: bytes) -> str:
    """Return the text of the value of ``c`` in a JSON object that has only this key.

    `text` may continue after the object.
    """
    whole = text.decode()
    _, end = json.JSONDecoder().raw_decode(whole)
    return whole[:end].removeprefix('{"c":').removesuffix("}")


def _sample(logical: LogicalType) -> pa.Array:
    """Return an array with one value of the type."""
    value = _OWN_SAMPLES.get(logical.native) or _SAMPLES.get(logical.kind, 7)
    if logical.kind in (TypeKind.DATETIME, TypeKind.TIMESTAMP):
        value = (_AT if logical.fsp else _AT.replace(microsecond=0)).replace(tzinfo=None)
    elif (wide := wide_decimal(logical)) is not None:
        value = f"9.{'5'.ljust(wide[1], '0')}"
    return pa.array([value], logical.arrow())


def _merged(rows: Iterable[tuple[str, tuple[str, ...]]]) -> list[list[str]]:
    """Merge rows of a table whose results are equal: their types share one row."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows:
        names.setdefault(cells, []).append(name)
    return [[", ".join(map(code, same)), *map(_cell, cells)] for cells, same in names.items()]


def _cell(text: str) -> str:
    return text if text == _REFUSED else " or ".join(map(code, text.split(" | ")))
