"""``[[lookup]]``: its keys. So far only documents of a MongoDB collection can be looked up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from raycdc.config.fields import Duration, Options, Secret, TablePattern, option
from raycdc.config.mongodb_types import parse_type
from raycdc.config.mongodb_uri import parse_mongodb_uri
from raycdc.model.batch import reserved_column
from raycdc.model.lookup import LookedUpColumn, Lookup
from raycdc.model.selector import plain_table
from raycdc.model.table import TableId

#: The field by which documents are looked up, where no other one is named.
ID = "_id"


class LookupOptions(Options):
    """Columns that a document of a collection adds to a table's rows. Every lookup that matches a table is applied."""

    type: Literal["mongodb"] = option("mongodb", help="The kind of dimension: documents of a MongoDB collection.")
    table: TablePattern = option(
        help="Source tables: a name, or a regular expression in full.", example="shop.pageviews"
    )
    uri: Secret = option(help="Connection string, by reference if it has a password.", example="${env:MONGODB_URI}")
    collection: str = option(help="The collection, as DATABASE.COLLECTION.", example="crm.users")
    on: dict[str, str] = option(
        help="The row's column, and the field that equals it; a column alone is compared with _id.",
        example={"user_id": "_id"},
    )
    key_type: Literal["", "long", "string", "objectId", "uuid"] = option(
        "", help="Type of that field, if the column's type does not say it: a text may be an objectId or a uuid."
    )
    columns: dict[str, str] = option(
        help="Fields to add, with types as in source.columns of type = mongodb. NULL where the document lacks one.",
        example={"name": "string", "address": "json"},
    )
    prefix: str = option("", help="Begins the names of the columns that are added.", example="user_")
    missing: Literal["null", "drop"] = option(
        "null",
        help="How a row without a document is treated. null: the columns are NULL. drop: the row is left out, and is "
        "deleted from the target if an update made it so.",
    )
    many: Literal["fail", "first"] = option(
        "fail",
        help="How several documents with one value of the field are treated. fail: the run ends, and the error names "
        "the value. first: the first one by _id counts.",
    )
    on_misfit: Literal["fail", "null"] = option(
        "fail",
        help="How a value is treated that its column cannot hold exactly. fail: the run ends, and the error names the "
        "document. null: the column is NULL.",
    )
    json_: Literal["relaxed", "canonical"] = option(
        "relaxed", alias="json", help="How columns of type json spell BSON (Extended JSON v2)."
    )
    batch: int = option(1000, help="Keys asked for at once.", ge=1, le=100_000)
    requests: int = option(4, help="Requests that are under way at once.", ge=1, le=64)
    cache_ttl: Duration | None = option(
        None,
        help="How long an answer may be used again, also the answer that there is no document. Without it every key is "
        "asked for each time.",
        example="1m",
    )
    cache_rows: int = option(100_000, help="At most so many keys are remembered; the oldest go first.", ge=1)
    retries: int = option(5, help="Attempts after a first one that failed for a passing reason.", ge=0, le=1000)
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
        if len({name.casefold() for name in names}) < len(names):
            raise ValueError("columns: two names differ in case only, and targets cannot tell such names apart")
        if problem := reserved_column(names):
            raise ValueError(f"columns: {problem}")
        field = next(iter(self.on.values()))
        if field in self.columns:
            raise ValueError(f"columns: {field} equals the row's own column {next(iter(self.on))}; leave it out")
        return self

    def lookup(self, number: int) -> Lookup:
        """The lookup as `raycdc.model.lookup` has it."""
        key, field = next(iter(self.on.items()))
        columns = (LookedUpColumn(name, self.prefix + name, parse_type(text)) for name, text in self.columns.items())
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
        """The one table it names; None for a regular expression."""
        return plain_table(self.table)


def _check_field(name: str) -> None:
    if not name or "." in name or name.startswith("$") or "\0" in name:
        raise ValueError(f"{name!r} is no field of a document itself; nested ones are within a column of type json")
