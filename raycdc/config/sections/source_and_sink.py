"""The keys that every source and every sink has. Connectors and sinks add keys of their own (`Plugin.config`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from raycdc.config.fields import Options, Size, option
from raycdc.config.sections.pipeline import PipelineOptions
from raycdc.model import TableId, TableSchema
from raycdc.model.rules.layout import TableLayout
from raycdc.model.rules.names import ANY_NAMES, NAMES, NameRules
from raycdc.model.rules.rate_limit import RateLimit


class SourceConfig(Options):
    """Base of every source's section; a connector adds its own keys."""

    #: True if the source may insert a row that already exists, which a true changelog never does.
    repeats_inserts: ClassVar[bool] = False
    #: The key of the section that lists the captured tables, by names and regular expressions.
    tables_key: ClassVar[str] = "tables"

    type: str = option(help="The type of the source: a built-in one or an installed plug-in.", example="mysql")
    rows_per_second: int | None = option(
        None,
        help="The maximum number of rows per second that all readers together read from the source, chunks and "
        "changes. Default: no limit.",
        unit="rows",
        example=20_000,
        ge=1,
    )
    bytes_per_second: Size | None = option(
        None,
        help="The maximum number of bytes per second: of messages as received, of rows as held in memory. Default: "
        "no limit.",
        example="20MB",
    )

    @property
    def rate_limit(self) -> RateLimit:
        """Return the rate limit."""
        return RateLimit(self.rows_per_second, self.bytes_per_second)

    @property
    def bounded(self) -> bool:
        """Return True if the source ends by itself, without following its log."""
        return False

    @property
    def address(self) -> str:
        """Return the source's address for people, without secrets; empty if it has no single address."""
        return ""

    @property
    def readers_max(self) -> int:
        """Return how many readers can have work at the same time; 0: any number."""
        return 0

    @property
    def why_read_once(self) -> str:
        """Return the reason why a second stream cannot read the log, with the remedy; empty if it can.

        The text continues a sentence after "because". Raises `ValueError` if the section is not validated yet and the
        reason cannot be determined.
        """
        return ""

    def for_sink(self, sink: str) -> SourceConfig:
        """Return the section as needed for a sink of this type."""
        return self

    @property
    def why_key_only(self) -> str:
        """Return the reason why changes may lack columns of the row before the change; empty if they have all columns.

        Such changes have only the key of that row, or nothing of it. The text continues a sentence after "because".
        """
        return ""

    @property
    def full_changelog(self) -> bool:
        """Return True if each change must be completed with the previous row."""
        return False

    def captures(self, table: TableId) -> bool:
        """Return True if the section captures `table`, or if only reading can tell."""
        return True

    @property
    def order_column(self) -> str:
        """Return the column that orders the changes of a key; empty if changes come in order.

        Of the changes of a key, the one with the greatest value in this column is the last.
        """
        return ""

    @property
    def table_patterns(self) -> tuple[str, ...]:
        """Return names and regular expressions of tables, as they are configured."""
        return ()

    def chunk_keys(self) -> Mapping[TableId, str]:
        """Return the columns by which tables are cut into chunks, if the user chose them."""
        return {}


class SinkConfig(Options):
    """Base of every sink's section; a sink adds its own keys.

    A sink that cannot update rows restricts `write` with `appends_only`. A sink whose tables can be partitioned, or can
    have properties, overrides `no_layout`.
    """

    #: True if the sink writes rows to the standard output of the pipeline's process.
    prints_rows: ClassVar[bool] = False

    type: str = option(help="The type of the sink: a built-in one or an installed plug-in.", example="delta")
    write: Literal["upsert", "changelog"] = option(
        "upsert", help="upsert: the target equals the table. changelog: the target holds every change, in order."
    )
    parallelism: int = option(0, help="Tasks per epoch; 0 leaves it to Spark.", ge=0)
    invalid_names: Literal["replace", "park"] = option(
        "replace",
        help="How a column is treated if the target cannot hold its name. replace: it gets another name (unit (SI) "
        "becomes unit__SI_), which it keeps for the life of the state. park: its table is parked until you "
        "decide.",
    )

    @property
    def names(self) -> NameRules:
        """Return the rules for names that targets can hold.

        Every name is allowed unless `raycdc.model.rules.names` has rules for the sink, or the sink overrides this
        method. The result is picklable, and has no secrets.
        """
        return NAMES.get(self.type, ANY_NAMES)

    @property
    def folder(self) -> str:
        """Return the local folder that the sink writes files to; empty if none.

        ``raycdc check`` and ``raycdc run`` refuse a folder that cannot be written before anything is read.
        """
        return ""

    @property
    def store(self) -> str:
        """Return the URL of the object store that the sink writes files to; empty if none.

        ``raycdc check`` and ``raycdc run`` refuse a store that cannot be written, or that does not support conditional
        puts.
        """
        return ""

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the packages that the sink needs in addition to those that it imports."""
        return ()

    def commits_grow(self, pipeline: PipelineOptions) -> bool:
        """Return True if a commit becomes more expensive with the number of a target's earlier commits.

        Unnecessary commits are then avoided.
        """
        return False

    def problems(self, pipeline: PipelineOptions, *, local: bool) -> Iterator[str]:
        """Return the parts of the configuration that the sink cannot carry out.

        `local` is a run without Spark.

        Pure; called before anything starts.
        """
        yield from ()

    def no_layout(self, layout: TableLayout, schema: TableSchema) -> str:
        """Return the reason why a target with the columns of `schema` cannot have this layout; empty if it can.

        `layout` names columns like `schema`. Called for each table with a layout, before anything is read and after
        each change of its columns. Pure.
        """
        what = "partition_by" if layout.partitions else "table_options"
        return f'{what}: a target of sink.type = "{self.type}" has none. Leave it out, or use delta or iceberg.'


def appends_only(sink_type: str, write: Any) -> Any:
    """Raise ValueError for ``write = "upsert"``, with what to do, in a sink that can only append."""
    if write == "upsert":
        raise ValueError(f'{sink_type} can only append; use write = "changelog", or a sink that merges, such as delta')
    return write
