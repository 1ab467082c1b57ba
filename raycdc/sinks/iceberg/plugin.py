"""The section ``[sink] type = "iceberg"`` of the configuration: the location of tables, and their catalog."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from raycdc.config import (
    Duration,
    FolderOrUrl,
    KeptText,
    Options,
    PipelineOptions,
    Secret,
    SinkConfig,
    flattened_texts,
    option,
)
from raycdc.config.sections.pipeline import EPOCHS_PER_HOUR
from raycdc.core.secrets import Renewed, newest
from raycdc.model import TableSchema
from raycdc.model.rules.layout import TableLayout
from raycdc.plugins import Plugin
from raycdc.sinks.lakes.lake_options import OptimizeOptions
from raycdc.storage.url import check_location, is_url

#: The most snapshots of a table with which commits are cheap enough.
CHEAP_SNAPSHOTS = 2_000


class IcebergCatalogOptions(Options):
    """``catalog = { … }``: the catalog that keeps the name and the newest metadata of each table."""

    type: Literal["hadoop", "sql", "rest", "glue"] = option(
        "hadoop",
        help="hadoop: the warehouse folder itself; sql: a database, through SQLAlchemy; rest: a REST catalog's server; "
        "glue: Amazon's Glue (needs boto3).",
    )
    name: str = option("raycdc", help="Name of the catalog: in a SQL catalog part of every table's key.", min_length=1)
    warehouse: str = option(
        "",
        help="Folder of the tables, or the URL of a location on an object store (rest: the server's name for it).",
        example="./lake",
    )
    uri: Secret = option(
        Secret(""), help="Address of the database or the server, by reference where it holds a password.",
        example="sqlite:////var/lib/lake/catalog.db",
    )  # fmt: skip
    properties: dict[str, KeptText] = option(
        {}, help="Further properties of the catalog as pyiceberg takes them: credentials, TLS, headers.", repr=False
    )

    @property
    def changes(self) -> bool:
        """Return True if the address or a property may change during the run, so that `now` reads it again."""
        return any(isinstance(text, Renewed) for text in (self.uri.reveal(), *self.properties.values()))

    def now(self) -> Self:
        """Return the options with the present values of the address and the properties."""
        properties = {name: newest(text) for name, text in self.properties.items()}
        return self.model_copy(update={"uri": Secret(newest(self.uri.reveal())), "properties": properties})

    @field_validator("properties", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        return flattened_texts(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.type == "hadoop" and (self.uri or self.properties):
            raise ValueError("a hadoop catalog is a folder: it takes a warehouse, and neither uri nor properties")
        if self.type in ("sql", "rest") and not self.uri:
            raise ValueError(f"a {self.type} catalog needs a uri")
        if self.type == "glue" and self.uri:
            raise ValueError("a glue catalog has no uri; properties may have a glue.endpoint")
        if self.type in ("hadoop", "sql") and not self.warehouse:
            raise ValueError(f"a {self.type} catalog needs a warehouse")
        if self.type != "rest":
            location = check_location(self.warehouse)
            if location != self.warehouse:
                kind = "URL" if is_url(location) else "path"
                raise ValueError(f'write the warehouse as a {kind}, "{location}"')
        return self


class IcebergSinkConfig(SinkConfig):
    """``[sink] type = "iceberg"``: Iceberg tables ``DB.TABLE`` of a catalog."""

    type: Literal["iceberg"] = option("iceberg", help="Iceberg tables.")
    path: FolderOrUrl = option(
        "", help="Warehouse of a hadoop catalog, a folder or a URL; short for `catalog`.", example="./lake", init=True
    )
    catalog: IcebergCatalogOptions | None = option(
        None, help="The catalog.", example={"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "./lake"}
    )
    expire_snapshots: Duration | None = option(
        None,
        help="Commits leave snapshots that are older out of a table's metadata, which every commit writes anew. Their "
        "files stay for remove_orphan_files.",
        unit="duration",
        example="1d",
    )
    keep_snapshots: int | None = option(
        None,
        help="Commits leave a snapshot out of a table's metadata, which every commit writes anew, when so many newer "
        "ones are there. Files stay for remove_orphan_files. 0: all snapshots stay. Default, without expire_snapshots: "
        "500 in upsert tables that raycdc makes (their property raycdc.keep-snapshots), and all in other tables.",
        example=2000,
        ge=0,
    )
    optimize: OptimizeOptions | None = option(
        None, help="Upkeep on a schedule. Without it there is none.", example={"every": "1h", "target_file": "128MiB"}
    )

    @model_validator(mode="after")
    def _one_catalog(self) -> Self:
        if bool(self.path) == (self.catalog is not None):
            raise ValueError("give either path or catalog")
        return self

    @property
    def folder(self) -> str:
        location = self.catalog_options()
        return "" if location.type == "rest" or is_url(location.warehouse) else location.warehouse

    @property
    def store(self) -> str:
        location = self.catalog_options()
        return location.warehouse if location.type != "rest" and is_url(location.warehouse) else ""

    @property
    def modules(self) -> tuple[str, ...]:
        return ("boto3",) if self.catalog_options().type == "glue" else ()

    def commits_grow(self, pipeline: PipelineOptions) -> bool:
        if self.keep_snapshots is not None:
            return not 0 < self.keep_snapshots <= CHEAP_SNAPSHOTS
        if self.expire_snapshots is not None:
            return self.expire_snapshots.total_seconds() * EPOCHS_PER_HOUR / 3600 > CHEAP_SNAPSHOTS
        # Changelogs keep all snapshots, because readers follow a changelog snapshot by snapshot. Tables of other
        # writers keep all snapshots, too.
        return self.write != "upsert" or pipeline.on_existing != "fail"

    def no_layout(self, layout: TableLayout, schema: TableSchema) -> str:
        from raycdc.sinks.iceberg.layout import no_layout

        return no_layout(layout, schema)

    def catalog_options(self) -> IcebergCatalogOptions:
        """Return the options of the catalog, in whichever form they were given."""
        return self.catalog or IcebergCatalogOptions(type="hadoop", warehouse=self.path)


ICEBERG = Plugin(
    "iceberg", "Apache Iceberg tables, upsert or changelog", IcebergSinkConfig, "raycdc.sinks.iceberg.sink:IcebergSink"
)
