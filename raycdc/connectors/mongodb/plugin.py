"""The MongoDB source as a plug-in: its section of the configuration, and the factory of the source."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from raycdc.config import Options, Secret, Size, TablePattern, option
from raycdc.config.mongodb import parse_mongodb_uri
from raycdc.connectors.mongodb.layout import (
    COLLECTION,
    ID,
    METADATA_FIELDS,
    REST,
    UNFIT_NAME,
    WHOLE,
    OnConflict,
    OnTypeMismatch,
    Spelling,
    parse_type,
)
from raycdc.connectors.mongodb.snapshot.selection import (
    CollectionSelection,
    require_fields,
    require_filter,
    require_limit,
)
from raycdc.model import LogicalType, TableId
from raycdc.model.batch import reserved_column
from raycdc.model.column_names import spark_fold
from raycdc.model.rules.selector import TableSelector
from raycdc.plugins import Plugin
from raycdc.source.startup import SelectedTablesConfig, StartupOptions, checked, require_selected


class MongoDbChunkStrategy(StrEnum):
    """The strategies to cut a collection into key ranges. Each falls back to the next one, and reports why."""

    AUTO = "auto"
    SHARDED = "sharded"
    SPLIT_VECTOR = "splitVector"
    SAMPLE = "sample"
    SINGLE = "single"


class SchemaMode(StrEnum):
    """The way in which fields of documents become columns."""

    INFERRED = "inferred"
    DECLARED = "declared"
    DOCUMENT = "document"


class Changelog(StrEnum):
    """The rows of an update: only the new row, or the previous row and the new row."""

    UPSERT = "upsert"
    FULL = "full"


class MongoDbStartupOptions(StartupOptions):
    """The start position. It is used only while the pipeline has no state."""

    mode: Literal["initial", "snapshot", "latest", "timestamp"] = option(
        "initial",
        help="initial: the collections as they are, then their changes. snapshot: the collections as they are read, "
        "then the run ends. latest: changes from now on. timestamp: changes from timestamp_ms on.",
    )
    timestamp_ms: int | None = option(
        None, help="Time to start at, with mode = timestamp; the whole second it is in counts.", unit="ms", ge=0
    )


class SchemaOptions(Options):
    """The options for turning documents into rows. A collection keeps the options with which it was first read."""

    mode: SchemaMode = option(
        SchemaMode.INFERRED,
        help="inferred: a column for each field that a sample has, of the type it has there. declared: the fields of "
        "source.columns. document: _id and the whole document as Extended JSON.",
    )
    json_: Spelling | None = option(
        None,
        alias="json",
        help="How columns of JSON, _rest and document are spelled: relaxed or canonical Extended JSON v2, or bson: the "
        "bytes as they are, of which a MongoDB sink makes the same documents again. Default: bson for a MongoDB sink, "
        "relaxed for others.",
    )
    sample: int = option(
        1000, help="How many documents are read to infer a collection's columns.", unit="documents", ge=1, le=100_000
    )
    fields_max: int = option(500, help="At most so many inferred columns; rarer fields go to _rest.", ge=1, le=2000)
    on_conflict: OnConflict = option(
        OnConflict.UNION,
        help="The treatment of a value in a change that its field's inferred column cannot hold. union: it goes to a "
        "column of JSON beside it, NAME__other. text: the column becomes JSON and the collection is read again (upsert "
        "targets only). rest: it stays in _rest.",
    )


class MongoDbSnapshotOptions(Options):
    """The options to cut collections into chunks."""

    strategy: MongoDbChunkStrategy = option(
        MongoDbChunkStrategy.AUTO,
        help="sharded: the cluster's own chunks; if the shard key may change, its chunks are read as of one time, "
        "while changes wait. splitVector: the server's cuts, which need a privilege. sample: quantiles of sampled "
        "keys. single: one chunk. auto: the first of these strategies that works without such a wait.",
    )
    per_collection: dict[str, MongoDbChunkStrategy] = option(
        {}, help="Another strategy per collection.", example={"shop.orders": "single"}
    )
    chunk_size: Size = option(
        64 << 20, help="About this much of documents per chunk, from 1KiB to 4GiB.", ge=1 << 10, le=4 << 30, unit="size"
    )
    samples_per_chunk: int = option(20, help="With sample: keys sampled for each chunk.", ge=1, le=1000)

    filter: dict[str, str] = option(
        {},
        help='With startup = "snapshot": the documents to read per collection, as a query in Extended JSON, which '
        "the server applies.",
        example={"shop.orders": '{"status": {"$ne": "draft"}, "at": {"$gte": {"$date": "2024-01-01T00:00:00Z"}}}'},
    )
    fields: dict[str, tuple[str, ...]] = option(
        {},
        help='With startup = "snapshot": fields of documents to read per collection, dotted for nested ones, and _id; '
        "the server sends no others. Declared columns need no such list.",
        example={"shop.orders": ["status", "address.city"]},
    )
    limit: dict[str, int] = option(
        {},
        help='With startup = "snapshot": how many documents to read per collection at most. Such a collection is one '
        "chunk.",
        example={"shop.orders": 1000},
        unit="documents",
    )

    @field_validator("filter")
    @classmethod
    def _filters(cls, value: dict[str, str]) -> dict[str, str]:
        checked(value, require_filter)
        return value

    @field_validator("fields")
    @classmethod
    def _fields(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        checked(value, require_fields)
        return value

    @field_validator("limit")
    @classmethod
    def _limits(cls, value: dict[str, int]) -> dict[str, int]:
        checked(value, require_limit)
        return value

    def collections_by_key(self) -> dict[str, list[str]]:
        """Return the collections that have a separate option, by the option's key in the source's section."""
        return {
            "snapshot.per_collection": list(self.per_collection),
            "snapshot.filter": list(self.filter),
            "snapshot.fields": list(self.fields),
            "snapshot.limit": list(self.limit),
        }

    def selection_of(self, table: TableId) -> CollectionSelection:
        """Return the selected part of one collection."""
        name = str(table)
        return CollectionSelection(self.filter.get(name, ""), self.fields.get(name, ()), self.limit.get(name, 0))

    def strategy_of(self, table: TableId) -> MongoDbChunkStrategy:
        """Return the strategy of one collection."""
        return self.per_collection.get(str(table), self.strategy)


class MongoDbSourceConfig(SelectedTablesConfig):
    """``[source] type = "mongodb"``: collections of a MongoDB replica set or cluster."""

    tables_key: ClassVar[str] = "collections"

    type: Literal["mongodb"] = option("mongodb", help="MongoDB.")
    uri: Secret = option(help="Connection string, by reference if it has a password.", example="${env:MONGODB_URI}")
    collections: tuple[TablePattern, ...] = option(
        help="Collections to read: names or regular expressions that match DATABASE.COLLECTION as a whole.",
        example=["shop.orders"],
        min_length=1,
    )
    exclude: tuple[TablePattern, ...] = option((), help="Collections to leave out, written as in `collections`.")
    schema_: SchemaOptions = option(
        SchemaOptions(), alias="schema", help="How documents become rows.", example={"mode": "document"}
    )
    columns: dict[str, dict[str, str]] = option(
        {},
        help="Columns per collection, its key _id among them: bool, int, long, float, double, decimal(p,s), "
        "decimal128, date, day, string, objectId, uuid, binData(subtype), json.",
        example={"shop.orders": {"_id": "objectId", "total": "decimal(12,2)"}},
    )
    on_type_mismatch: OnTypeMismatch = option(
        OnTypeMismatch.FAIL,
        help="The treatment of a value that its declared column cannot hold exactly. fail: the run ends, and the error "
        "names the document. null: the column is NULL, and a figure counts such values. rest: the column is NULL, and "
        "the value is in the column _rest, together with all fields that have no column. Collections with inferred "
        "columns always have _rest.",
    )
    changelog: Changelog = option(
        Changelog.UPSERT,
        help="upsert: changes as the server reports them, by which rows are updated. full: each change has the "
        "document before it, from the images if all captured collections keep them, or else from the last row of "
        "each "
        "document, which is kept under pipeline.state.",
    )
    metadata: dict[str, str] = option(
        {},
        help="Facts about a change that become columns: name of the field, name of the column. The fields are "
        "database, collection, op_time, cluster_time, wall_time and txn_number.",
        example={"txn_number": "_txn"},
    )
    startup: MongoDbStartupOptions = option(
        MongoDbStartupOptions(), help="Where to begin.", example={"mode": "snapshot"}
    )
    snapshot: MongoDbSnapshotOptions = option(MongoDbSnapshotOptions(), help="Chunks.")

    @field_validator("uri")
    @classmethod
    def _understood(cls, value: Secret) -> Secret:
        parse_mongodb_uri(value.reveal())
        return value

    @field_validator("schema_", "startup", "snapshot", mode="before")
    @classmethod
    def _short(cls, value: Any, info: Any) -> Any:
        """Expand short forms: ``schema = "document"`` means ``schema = { mode = "document" }``."""
        key = "strategy" if info.field_name == "snapshot" else "mode"
        return {key: value} if isinstance(value, str) else value

    @field_validator("columns")
    @classmethod
    def _types(cls, value: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        checked(value, _require_columns)
        return value

    @field_validator("metadata")
    @classmethod
    def _metadata_names(cls, value: dict[str, str]) -> dict[str, str]:
        if unknown := [field for field in value if field not in METADATA_FIELDS]:
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(METADATA_FIELDS)}")
        names = [ID, REST, WHOLE, *value.values()]
        if len({spark_fold(name) for name in names}) < len(names):
            raise ValueError(f"each column needs a name of its own, other than {ID}, {REST} and {WHOLE}")
        if unfit := [name for name in value.values() if UNFIT_NAME.search(name) or not name]:
            raise ValueError(f"targets cannot have a column {unfit[0]!r}")
        if problem := reserved_column(value.values()):
            raise ValueError(problem)
        return value

    @model_validator(mode="after")
    def _metadata_is_apart(self) -> Self:
        taken = {spark_fold(name) for name in self.metadata.values()}
        for collection, fields in self.columns.items():
            if both := [name for name in fields if spark_fold(name) in taken]:
                raise ValueError(f"metadata: {collection} has the column {both[0]} in columns")
        return self

    @model_validator(mode="after")
    def _columns_are_used(self) -> Self:
        if self.schema_.mode is SchemaMode.DECLARED and not self.columns:
            raise ValueError('schema = "declared" needs columns')
        more = [
            name
            for name, fields in self.columns.items()
            if self.schema_.mode is SchemaMode.DOCUMENT and fields.keys() - {ID}
        ]
        if more:
            raise ValueError(f'schema = "document" has {ID} and the document; columns of {more[0]} names other fields')
        options = {"columns": list(self.columns), **self.snapshot.collections_by_key()}
        require_selected(self, options, noun=COLLECTION)
        for name, fields in self.snapshot.fields.items():
            heads = {ID, *(field.split(".")[0] for field in fields)}
            if lost := [column for column in self.columns.get(name, {}) if column not in heads]:
                raise ValueError(f"snapshot.fields: {name} has the column {lost[0]}, which is not read then")
        return self

    @model_validator(mode="after")
    def _selects_once(self) -> Self:
        used = [name for name in ("filter", "fields", "limit") if getattr(self.snapshot, name)]
        if used and not self.bounded:
            raise ValueError(
                f'snapshot.{used[0]} is for startup = "snapshot": a document that is followed may move into a filter '
                "and out of it, and a change may come without its document. Leave rows and columns out after the "
                "source, with filter and projection of [[transform]]"
            )
        return self

    def for_sink(self, sink: str) -> MongoDbSourceConfig:
        """Return a configuration whose values are BSON for a MongoDB sink, unless the user chose another form."""
        if self.schema_.json_ is not None:
            return self
        spelling = Spelling.BSON if sink == "mongodb" else Spelling.RELAXED
        return self.model_copy(update={"schema_": self.schema_.model_copy(update={"json_": spelling})})

    @property
    def spelling(self) -> Spelling:
        """Return the form of columns of JSON."""
        return self.schema_.json_ or Spelling.RELAXED

    @property
    def bounded(self) -> bool:
        return self.startup.bounded

    @property
    def repeats_inserts(self) -> bool:  # type: ignore[override]
        """Return True if updates may come as inserts, without the row before. A full changelog has that row."""
        return not (self.bounded or self.full_changelog)

    @property
    def full_changelog(self) -> bool:
        # A snapshot without a change stream has only inserts.
        return self.changelog is Changelog.FULL and not self.bounded

    def selector(self) -> TableSelector:
        """Return the selector of the configured collections."""
        return TableSelector(self.collections, self.exclude)

    def asked_of(self, table: TableId) -> str:
        """Return the configuration of a collection's documents and their rows, as text."""
        selection = str(self.snapshot.selection_of(table))
        metadata = ", ".join(f"{name} {field}" for field, name in self.metadata.items())
        return (
            self._rows_of(table)
            + (f"; {selection}" if selection else "")
            + (f"; metadata ({metadata})" if metadata else "")
        )

    def _rows_of(self, table: TableId) -> str:
        listed = self.columns.get(str(table))
        if self.schema_.mode is SchemaMode.DOCUMENT or listed is None:
            listed = listed and {ID: listed[ID]}
            fields = f", {ID} {listed[ID]}" if listed else ""
            return f"mode {self.schema_.mode}{fields}, {self._spelled}"
        fields = ", ".join(f"{name} {text}" for name, text in listed.items())
        return f"declared columns ({fields}), on_type_mismatch {self.on_type_mismatch}, {self._spelled}"

    @property
    def _spelled(self) -> str:
        return "BSON" if self.spelling is Spelling.BSON else f"{self.spelling} JSON"

    def infers(self, table: TableId) -> bool:
        """Return True if the columns of a collection are inferred from its documents."""
        return self.schema_.mode is SchemaMode.INFERRED and str(table) not in self.columns

    def declared_types(self, table: TableId) -> dict[str, LogicalType] | None:
        """Return the declared columns of a collection, if it has any."""
        listed = self.columns.get(str(table))
        return None if listed is None else {name: parse_type(text) for name, text in listed.items()}


def _require_columns(fields: Mapping[str, str]) -> None:
    """Raise ValueError unless these are columns of a collection with their types, and have its key."""
    if ID not in fields:
        raise ValueError(f"name the type of {ID}, too; documents are told apart by it")
    seen: dict[str, str] = {}
    for name, text in fields.items():
        parse_type(text)
        if not name or "." in name or name.startswith("$") or "\0" in name:
            raise ValueError(f"{name!r} is no field of a document itself; nested ones are json")
        other = seen.setdefault(spark_fold(name), name)
        if other != name:
            raise ValueError(f"{other!r} and {name!r} differ in case only, which targets cannot")
    if problem := reserved_column(fields):
        raise ValueError(problem)
    if REST in fields:
        raise ValueError(f'{REST} is what on_type_mismatch = "rest" fills')


PLUGIN = Plugin(
    name="mongodb",
    summary="MongoDB 4.0+: collections, read in parallel by ranges of their keys, and their change streams",
    config=MongoDbSourceConfig,
    factory="raycdc.connectors.mongodb.source:MongoDbSource",
    init="raycdc.connectors.mongodb.init:MongoDbInitQuestions",
    positions="raycdc.connectors.mongodb.stream.token:position_text",
)
