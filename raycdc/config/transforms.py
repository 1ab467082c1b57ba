"""``[[transform]]``: its keys, and the checks of them that need no table."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from raycdc.config.fields import Options, TablePattern, flattened_texts, option
from raycdc.model.layout import TableLayout, partition_fields
from raycdc.model.transform import DELETED_COLUMN, Transform, check_balanced, items_of

_FUNCTION = re.compile(r"[\w.]+:\w+")
_NAME = re.compile(r"[^\W\d]\w*")


class TransformOptions(Options):
    """The transform of a table's rows on their way. The first one that matches a table is applied to it."""

    table: TablePattern = option(help="Source tables: a name, or a regular expression in full.", example="shop.orders")
    projection: str = option(
        "*",
        help="Columns of the result, as in SELECT of Spark SQL. * stands for all, also later ones; * EXCEPT (a) leaves "
        "out a. _db, _table, _op, _seq, _ts_ms and _pos say where a row comes from.",
        example="*, price * qty AS amount",
    )
    filter: str = option(
        "",
        help="Rows to keep, as in WHERE. An update that crosses it becomes an insert or a delete.",
        example="status <> 'TEST'",
    )
    primary_keys: tuple[str, ...] = option(
        (), help="Columns of the result that make its key, instead of the table's.", example=["id"]
    )
    partition_by: tuple[str, ...] = option(
        (),
        help="What the target is partitioned by: columns of the result, and in Iceberg also years, months, days or "
        "hours of one, bucket(16, column) and truncate(10, column).",
        example=["days(created_at)", "bucket(16, id)"],
    )
    table_options: dict[str, str] = option(
        {},
        help="Properties of the target table, by the names that its format gives them.",
        example={"delta.logRetentionDuration": "interval 7 days"},
    )
    on_delete: Literal["delete", "soft"] = option(
        "delete", help='What a deletion does in an upsert target: "soft" keeps the row and marks it.'
    )
    deleted_column: str = option(
        DELETED_COLUMN, help='The boolean column that marks deleted rows, with on_delete = "soft".', min_length=1
    )
    udf: dict[str, str] = option(
        {},
        help="Python functions for expressions: a name and where it is, as MODULE:NAME, made with Spark's udf.",
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
        if len({name.casefold() for name in names}) < len(names):
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
        """As the way of the data has it."""
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
