"""``[[transform]]``, ``[[mask]]``, ``[[route]]`` and ``[[lookup]]``: their keys, and checks that need no table.

Masks hide columns' values before a reader passes them on; routes give the targets of tables. Lookups support only
documents of a MongoDB collection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, Self

from pydantic import ValidationInfo, field_validator, model_validator

from raycdc.config.fields import Duration, Options, Secret, TablePattern, flattened_texts, option
from raycdc.config.mongodb import parse_mongodb_uri, parse_type
from raycdc.model.batch import reserved_column
from raycdc.model.column_names import spark_fold
from raycdc.model.rules.layout import TableLayout, partition_fields
from raycdc.model.rules.mask import Mask, Masks
from raycdc.model.rules.routes import Route, check_target
from raycdc.model.rules.selector import plain_table
from raycdc.model.rules.transform import DELETED_COLUMN, Lookup, LookupColumn, Transform, check_balanced, items_of
from raycdc.model.table import TableId

_FUNCTION = re.compile(r"[\w.]+:\w+")
_NAME = re.compile(r"[^\W\d]\w*")


class TransformOptions(Options):
    """A transform of tables' rows. The first transform that matches a table is applied."""

    table: TablePattern = option(help="Source tables: a name, or a regular expression in full.", example="shop.orders")
    projection: str = option(
        "*",
        help="Columns of the result, as in SELECT of Spark SQL. * stands for all columns, including later ones; * "
        "EXCEPT (a) leaves out a. _db, _table, _op, _seq, _ts_ms and _pos describe the origin of a row.",
        example="*, price * qty AS amount",
    )
    filter: str = option(
        "",
        help="Rows to keep, as in WHERE. An update that makes a row match, or no longer match, becomes an insert "
        "or a delete.",
        example="status <> 'TEST'",
    )
    primary_keys: tuple[str, ...] = option(
        (), help="Columns of the result that are its key, instead of the table's.", example=["id"]
    )
    partition_by: tuple[str, ...] = option(
        (),
        help="Partitioning of the target: columns of the result, and in Iceberg also years, months, days or hours "
        "of one, bucket(16, column) and truncate(10, column).",
        example=["days(created_at)", "bucket(16, id)"],
    )
    table_options: dict[str, str] = option(
        {},
        help="Properties of the target table, by the names that its format gives them.",
        example={"delta.logRetentionDuration": "interval 7 days"},
    )
    on_delete: Literal["delete", "soft"] = option(
        "delete", help='The effect of a deletion in an upsert target: "soft" keeps the row and marks it.'
    )
    deleted_column: str = option(
        DELETED_COLUMN, help='The boolean column that marks deleted rows, with on_delete = "soft".', min_length=1
    )
    udf: dict[str, str] = option(
        {},
        help="Python functions for expressions: a name, and MODULE:NAME of a function made with Spark's udf.",
        example={"score": "shop_functions:score"},
    )

    @field_validator("projection")
    @classmethod
    def _check_projection(cls, projection: str) -> str:
        items_of(projection)
        return projection

    @field_validator("filter")
    @classmethod
    def _check_filter(cls, text: str) -> str:
        if text:
            check_balanced(text)
        return text

    @field_validator("primary_keys", mode="after")
    @classmethod
    def _check_keys(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len({spark_fold(name) for name in names}) < len(names):
            raise ValueError("names a column twice")
        return names

    @field_validator("partition_by", mode="after")
    @classmethod
    def _check_partitions(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        partition_fields(texts)
        return texts

    @field_validator("table_options", mode="before")
    @classmethod
    def _option_texts(cls, value: Any) -> Any:
        return flattened_texts(value) if isinstance(value, dict) else value

    @field_validator("udf")
    @classmethod
    def _check_functions(cls, functions: dict[str, str]) -> dict[str, str]:
        for name, path in functions.items():
            if not _NAME.fullmatch(name):
                raise ValueError(f'"{name}" cannot be the name of a function')
            if not _FUNCTION.fullmatch(path):
                raise ValueError(f'{name} = "{path}" is not MODULE:NAME')
        return functions

    @model_validator(mode="after")
    def _marker_is_used(self) -> Self:
        if self.deleted_column != DELETED_COLUMN and self.on_delete != "soft":
            raise ValueError('deleted_column is for on_delete = "soft" alone')
        return self

    def transform(self) -> Transform:
        """Return the transform as a rule of the pipeline."""
        return Transform(
            table=self.table,
            projection=self.projection,
            filter=self.filter,
            primary_keys=self.primary_keys,
            on_delete=self.on_delete,
            deleted_column=self.deleted_column,
            udfs=tuple(sorted(self.udf.items())),
            layout=TableLayout(partition_fields(self.partition_by), tuple(sorted(self.table_options.items()))),
        )


def masking_problems(masks: Masks, chunk_keys: Mapping[TableId, str]) -> list[str]:
    """Return a problem for each masked column by which a table is cut into chunks.

    Such a column needs a key that encrypts the bounds of chunks; call this only if the configuration has none.
    """
    return [
        f"source.snapshot.key: {table} is cut into chunks by {column}, which a mask hides, so that the state would "
        'have its values. Set pipeline.state_key, for instance to "${env:STATE_KEY}", or name another column.'
        for table, column in chunk_keys.items()
        if masks.of(table, column) is not None
    ]


class MaskOptions(Options):
    """Columns that the reader masks before a row is written anywhere.

    The first entry that matches a column is applied.
    """

    columns: str = option(
        help="DATABASE.TABLE.COLUMN (unusual names in backquotes), or a regular expression that matches it in full.",
        example=r"shop\.customers\.(email|phone)",
    )
    method: Literal["drop", "hash", "truncate", "mask"] = option(
        help="drop: the column is left out. hash: HMAC-SHA-256 of its text. truncate: its first `length` "
        "characters. mask: `length` asterisks."
    )
    key: Secret = option(
        Secret(""), help='The key for method = "hash", given by a reference.', example="${env:MASK_KEY}"
    )
    length: int = option(
        0, help="The number of characters that truncate keeps, or of asterisks that mask shows (8).", ge=0, le=1000
    )

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: str) -> str:
        if Mask(columns, "drop").plain is None:
            if "." not in columns:
                raise ValueError(f"'{columns}' can match no column: it needs DATABASE.TABLE.COLUMN")
            try:
                re.compile(columns)
            except re.error as error:
                raise ValueError(f"'{columns}' is not a regular expression: {error.msg}") from error
        return columns

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.method == "hash") != bool(self.key):
            raise ValueError('method = "hash" needs a key' if not self.key else 'key is for method = "hash" alone')
        if self.length and self.method not in ("truncate", "mask"):
            raise ValueError('length is for method = "truncate" and "mask" alone')
        if not self.length and self.method == "truncate":
            raise ValueError('method = "truncate" needs a length, of at least 1')
        return self

    def mask(self) -> Mask:
        """Return the mask in the form that readers use."""
        length = self.length or (8 if self.method == "mask" else 0)
        return Mask(self.columns, self.method, length, self.key.reveal().encode())


class RouteOptions(Options):
    """The targets of tables. A table without a route keeps its name; several routes to one target merge tables."""

    table: TablePattern = option(
        help="Source tables: a name (unusual names in backquotes), or a regular expression in full.",
        example=r"shop\.item_(\d+)",
    )
    replace_symbol: str = option("", help="A text in `to` that stands for the source table's name.", example="<>")
    to: str = option(
        help="The target. `$1` and `$<name>` stand for groups of `table`, `$$` for a dollar sign.", example="lake.item"
    )

    @field_validator("to")
    @classmethod
    def _check_to(cls, to: str, info: ValidationInfo) -> str:
        if "table" in info.data:
            check_target(info.data["table"], to, info.data.get("replace_symbol", ""))
        return to

    def route(self) -> Route:
        """Return the route in the form of `raycdc.model.rules.routes`."""
        return Route(self.table, self.to, self.replace_symbol)


#: The default field by which documents are looked up.
ID = "_id"


class LookupOptions(Options):
    """Columns that a document of a collection adds to a table's rows. Every lookup that matches a table is applied."""

    type: Literal["mongodb"] = option("mongodb", help="The kind of lookup: documents of a MongoDB collection.")
    table: TablePattern = option(
        help="Source tables: a name, or a regular expression in full.", example="shop.pageviews"
    )
    uri: Secret = option(help="Connection string; by a reference if it has a password.", example="${env:MONGODB_URI}")
    collection: str = option(help="The collection, as DATABASE.COLLECTION.", example="crm.users")
    on: dict[str, str] = option(
        help="The row's column, and the field that must equal it. A column alone is compared with _id.",
        example={"user_id": "_id"},
    )
    key_type: Literal["", "long", "string", "objectId", "uuid"] = option(
        "", help="Type of that field, if the column's type does not determine it: a text may be an objectId or a uuid."
    )
    columns: dict[str, str] = option(
        help="Fields to add, with types as in source.columns of type = mongodb. NULL if the document lacks a field.",
        example={"name": "string", "address": "json"},
    )
    prefix: str = option("", help="Prefix of the names of the added columns.", example="user_")
    missing: Literal["null", "drop"] = option(
        "null",
        help="How a row without a document is treated. null: the columns are NULL. drop: the row is left out, and "
        "deleted from the target if an update removed the match.",
    )
    many: Literal["fail", "first"] = option(
        "fail",
        help="How several documents with the same value of the field are treated. fail: the run ends, and the "
        "error names the value. first: the first one by _id is used.",
    )
    on_type_mismatch: Literal["fail", "null"] = option(
        "fail",
        help="How a value is treated that its column cannot hold exactly. fail: the run ends, and the error names the "
        "document. null: the column is NULL.",
    )
    json_: Literal["relaxed", "canonical"] = option(
        "relaxed", alias="json", help="How columns of type json spell BSON (Extended JSON v2)."
    )
    batch: int = option(1000, help="The number of keys per request.", ge=1, le=100_000)
    requests: int = option(4, help="The number of concurrent requests.", ge=1, le=64)
    cache_ttl: Duration | None = option(
        None,
        help="How long an answer may be reused, including the answer that there is no document. Without it, every "
        "key is requested each time.",
        example="1m",
    )
    cache_rows: int = option(
        100_000, help="The maximum number of remembered keys; the oldest are forgotten first.", ge=1
    )
    retries: int = option(5, help="The number of retries after a temporary failure.", ge=0, le=1000)
    retry_wait: Duration = option(
        timedelta(milliseconds=500),
        help="Pause before the second attempt, at least 500ms; each later one is twice as long, up to 30s.",
    )

    @field_validator("uri")
    @classmethod
    def _understood(cls, value: Secret) -> Secret:
        parse_mongodb_uri(value.reveal())
        return value

    @field_validator("collection")
    @classmethod
    def _one_collection(cls, value: str) -> str:
        database, _, name = value.partition(".")
        if not (database and name):
            raise ValueError(f'"{value}" is not DATABASE.COLLECTION')
        return value

    @field_validator("on", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {value: ID} if isinstance(value, str) else value

    @field_validator("on")
    @classmethod
    def _one_pair(cls, value: dict[str, str]) -> dict[str, str]:
        if len(value) != 1:
            raise ValueError("must name one column and one field; a lookup by several columns is not supported")
        _check_field(next(iter(value.values())))
        return value

    @field_validator("columns")
    @classmethod
    def _types(cls, value: dict[str, str]) -> dict[str, str]:
        if not value:
            raise ValueError("names no field to add")
        for name, text in value.items():
            _check_field(name)
            try:
                parse_type(text)
            except ValueError as cause:
                raise ValueError(f"{name}: {cause}") from None
        return value

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [self.prefix + name for name in self.columns]
        if len({spark_fold(name) for name in names}) < len(names):
            raise ValueError("columns: two names differ in case only, and targets cannot tell such names apart")
        if problem := reserved_column(names):
            raise ValueError(f"columns: {problem}")
        field = next(iter(self.on.values()))
        if field in self.columns:
            raise ValueError(f"columns: {field} equals the row's own column {next(iter(self.on))}; leave it out")
        return self

    def lookup(self, number: int) -> Lookup:
        """Return the lookup in the form of `raycdc.model.rules.transform`."""
        key, field = next(iter(self.on.items()))
        columns = (LookupColumn(name, self.prefix + name, parse_type(text)) for name, text in self.columns.items())
        return Lookup(
            number=number,
            table=self.table,
            dimension=f"{self.type} {self.collection}",
            key=key,
            field=field,
            key_type=self.key_type,
            columns=tuple(columns),
            drop=self.missing == "drop",
            rules=(self.json_,),
        )

    @property
    def plain_table(self) -> TableId | None:
        """Return the one table that the lookup names; None for a regular expression."""
        return plain_table(self.table)


def _check_field(name: str) -> None:
    if not name or "." in name or name.startswith("$") or "\0" in name:
        raise ValueError(f"{name!r} is no field of a document itself; nested ones are within a column of type json")
