"""The generated source as a plug-in: its section of the configuration, and the factory of the source."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import field_validator, model_validator

from raycdc.config import FilePath, Options, SourceConfig, option
from raycdc.model import TableId
from raycdc.plugins import Plugin


class FaultOptions(Options):
    """Deliberate faults, to test a pipeline."""

    disconnects: float = option(0.0, help="How likely each read of the log or of a chunk fails.", ge=0, lt=1)
    chunk_rows_per_second: float = option(
        0,
        help="The limit of chunk rows per second over each connection, to simulate a slow server; 0: no limit.",
        unit="rows",
        ge=0,
    )
    acknowledged: FilePath | None = option(
        None,
        help="A file with the acknowledged position. The log before that position is dropped, as with a replication "
        "slot.",
        example="acknowledged.json",
    )


class DatagenSourceConfig(SourceConfig):
    """``[source] type = "datagen"``: generated tables, and changes of them. Equal seeds give equal data."""

    type: Literal["datagen"] = option("datagen", help="Generated rows and changes; needs no server.")
    tables: tuple[str, ...] = option(help="Names of tables, DATABASE.TABLE.", example=["shop.orders"], min_length=1)
    rows: int = option(1_000, help="Rows that each table begins with.", unit="rows", ge=0)
    new_rows: int = option(250, help="Other keys of each table, which changes may insert.", unit="rows", ge=1)
    seed: int = option(1, help="Another seed gives other rows and changes.", ge=0)
    events: int | None = option(
        None, help="How many transactions follow the snapshot; 0: the snapshot alone. Default: without end.", ge=0
    )
    per_second: float = option(
        10.0,
        help="Transactions per second, each with one change in every table; 0: as fast as they can be read, which "
        "needs events. Compare two runs by their final tables, or by log rows in the order of _pos, because they begin "
        "their snapshots at different places.",
        ge=0,
    )
    deletes: float = option(0.1, help="The share of changes that delete.", ge=0, le=1)
    alter_every: int = option(
        0,
        help="The number of transactions after which a column is added to every table, or dropped again; 0: never.",
        ge=0,
    )
    chunk_rows: int = option(10_000, help="About this many rows per chunk of the snapshot.", unit="rows", ge=1)
    faults: FaultOptions = option(FaultOptions(), help="Faults on purpose.", example={"disconnects": 0.001})

    @field_validator("tables")
    @classmethod
    def _names(cls, tables: tuple[str, ...]) -> tuple[str, ...]:
        for name in tables:
            if not all(name.partition(".")[::2]):
                raise ValueError(f'"{name}" is not DATABASE.TABLE')
        return tables

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if not self.per_second and self.events is None:
            raise ValueError("per_second = 0 needs events, the number of transactions after which the source is quiet")
        return self

    @property
    def bounded(self) -> bool:
        return self.events == 0

    @property
    def table_patterns(self) -> tuple[str, ...]:
        return self.tables

    def captures(self, table: TableId) -> bool:
        return str(table) in self.tables


PLUGIN = Plugin(
    name="datagen",
    summary="Generated rows and changes, for trials and tests: needs no server",
    config=DatagenSourceConfig,
    factory="raycdc.connectors.datagen.source:DatagenSource",
)
