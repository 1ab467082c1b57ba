"""The sections of a configuration that every pipeline has; connectors and sinks bring their own (`Plugin.config`).

`PipelineConfig` is what the rest of raycdc receives: typed, complete, immutable. It is made by `raycdc.config.load`,
or in Python from the section models directly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import ValidationInfo, field_validator, model_validator

from raycdc.config.control import ControlOptions
from raycdc.config.fields import (
    Duration,
    Folder,
    FolderOrUrl,
    Options,
    Secret,
    Size,
    TablePattern,
    flattened_texts,
    option,
)
from raycdc.config.logs import LoggingOptions
from raycdc.config.lookups import LookupOptions
from raycdc.config.masks import MaskOptions, hiding_problems
from raycdc.config.metrics import MetricsOptions
from raycdc.config.notifications import NotifyOptions
from raycdc.config.problems import planned_problems
from raycdc.config.storage import StorageOptions
from raycdc.config.transforms import TransformOptions
from raycdc.errors import ConfigError
from raycdc.model import TableId, TableSchema
from raycdc.model.behavior import SchemaChangeBehavior
from raycdc.model.layout import TableLayout
from raycdc.model.mask import Masks
from raycdc.model.names import ANY_NAMES, NAMES, NameRules
from raycdc.model.pace import Pace
from raycdc.model.routes import Route, Router, check_target
from raycdc.model.state_key import LENGTH_MIN as STATE_KEY_LENGTH_MIN
from raycdc.model.state_key import StateKey
from raycdc.model.transform import Transforms
from raycdc.model.until import Until
from raycdc.stores.url import is_url

_NAME_CHARACTERS = "letters, digits, '-', '_' and '.'"


#: Early epochs an hour where the configuration says nothing of epochs: twice as many as `epoch_interval` alone gives.
EPOCHS_PER_HOUR = 3600

#: Spark's own forms of a master (org.apache.spark.SparkContext, `SparkMasterRegex`).
_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?|local-cluster\[.+\]|spark://\S+:\d+(,\S+:\d+)*|yarn|k8s://\S+"
)


class Mode(StrEnum):
    """When a run ends: never, when it has caught up with the log position at its start, or after the snapshot."""

    CONTINUOUS = "continuous"
    UNTIL_CAUGHT_UP = "until-caught-up"
    SNAPSHOT = "snapshot"


#: Schema changes that a target may be spared.
LeftOutChange = Literal[
    "add_column",
    "drop_column",
    "rename_column",
    "alter_column_type",
    "alter_column_position",
    "alter_table_comment",
    "truncate_table",
    "drop_table",
]
#: All that there are: a table is always created, and a new key or name of a table is never left out in silence.
SchemaChange = Literal["create_table", "alter_primary_key", "rename_table", LeftOutChange]


class PipelineOptions(Options):
    """The name of the pipeline, the place of its state, and its behaviour."""

    name: str = option(
        help=f"Identity of the state and of the sink's commits: {_NAME_CHARACTERS}. Never change it for existing data.",
        example="shop",
        max_length=100,
    )
    state: FolderOrUrl = option(
        "",
        help="Folder of the checkpoints, on a local disk, or the URL of a place on an object store (see [storage]). "
        "Default: ./state/NAME.",
        example="./state/shop",
    )
    spool: FolderOrUrl = option(
        "",
        help="URL of a place on an object store (see [storage]) for a copy of each segment, so that rows which were "
        "read and not committed survive the machine that has them. Without it they are read again from the source.",
        example="s3://lake/spool",
    )
    work: Folder = option(
        "",
        help="For a state on an object store: the folder of this machine for segments that are not committed yet and "
        "for files of processes. What is lost with it is read again. Default: ./state/NAME.work. A state in a folder "
        "has them inside.",
        example="/var/lib/raycdc/shop",
    )
    state_key: Secret = option(
        Secret(""),
        help="Encrypts the values of masked columns that the state must remember. It is needed if a table is cut into "
        f"chunks by a masked column (source.snapshot.key). At least {STATE_KEY_LENGTH_MIN} characters, the same for "
        "the life of the state.",
        example="${env:STATE_KEY}",
    )
    mode: Mode = option(
        Mode.CONTINUOUS,
        help="When the run ends: continuous (never), until-caught-up (at the log position of its start), snapshot.",
    )
    epoch_interval: Duration = option(
        timedelta(seconds=2),
        help="How often what was read is sealed and committed to the sink. Where it is not set, epochs_per_hour lets "
        "rows that wait for an idle sink be sooner.",
        unit="duration",
    )
    epochs_per_hour: int | None = option(
        None,
        help="Changes that wait while the sink is idle are committed at once, instead of after epoch_interval, as long "
        "as there are at most so many epochs an hour in the mean of ten minutes; under load, with none left, or while "
        "a snapshot is read, epoch_interval groups them. 0: never sooner. Default: "
        f"{EPOCHS_PER_HOUR}, or 0 where epoch_interval is set, and for an iceberg sink whose tables keep thousands of "
        "snapshots: changelogs and tables that others made, without keep_snapshots.",
        example=EPOCHS_PER_HOUR,
        ge=0,
    )
    epoch_bytes_max: Size = option(
        256 << 20,
        help="An epoch ends early when it holds this much; one transaction is never split. Rows of the log that wait "
        "for chunks being read stay in memory up to this size, and go to the spool beyond it.",
        unit="size",
    )
    reader_timeout: Duration = option(
        timedelta(seconds=10), help="A reader is replaced if its process says nothing for so long.", unit="duration"
    )
    progress_timeout: Duration = option(
        timedelta(seconds=60),
        help="A reader hangs, and is replaced, if its process answers while its work makes no progress for so long. "
        "Each file that is synced is progress. Such a file has little more than 64 MiB, so on a slow disk set this "
        "option above the time that one such file takes.",
        unit="duration",
    )
    watchdog: Duration = option(
        timedelta(seconds=60),
        help="A stage of a table or chunk that has not moved for so long is told, with what it waits for; again when "
        "it has stood twice as long, and once more when it goes on. The run does not end for it.",
        example="30s",
        unit="duration",
    )
    start_in_process: bool = option(
        default=True,
        help="Whether a run with a Ray and a Spark of its own begins to read and write in its own process, and hands "
        "over to Ray and Spark when they are up: they start after five seconds, which short runs do not last. false: "
        "the run waits for both first. A run whose rows need Spark from the first one on always does.",
    )
    schema_change: SchemaChangeBehavior = option(
        SchemaChangeBehavior.LENIENT,
        help="How the target follows when the source's tables change their shape (`raycdc explain configuration`).",
    )
    include_schema_changes: tuple[SchemaChange, ...] = option(
        (),
        help="Only these schema changes reach the target; empty: all. A table is always created.",
        example=["add_column", "truncate_table"],
    )
    exclude_schema_changes: tuple[LeftOutChange, ...] = option(
        (),
        help="These schema changes do not reach the target: it keeps its columns, or the rows of an emptied table.",
        example=["truncate_table"],
    )
    route_mode: Literal["all_match", "first_match"] = option(
        "all_match", help="Whether every matching route applies or the first."
    )
    time_zone: str = option("UTC", help="Time zone in which texts without one are read.", planned=True)
    on_bad_record: Literal["park", "skip", "dead-letter", "fail"] = option(
        "park",
        help="How a bad row is treated: an expression of a transform fails on it, the target cannot hold one of its "
        "values, or MongoDB reports its change but does not find it. park: its table is parked. skip: the target does "
        "without the row. dead-letter: the same, and the row is kept in STATE/dead_letters. fail: the run ends. A "
        "value that only the target itself refuses parks the table also under skip and dead-letter. For messages that "
        "cannot be decoded see source.format.on_error.",
    )
    on_table_error: Literal["park", "fail"] = option(
        "park",
        help="How a table is treated that cannot be followed or written. park: it is parked, and the others go on (a "
        'run until caught up then ends with exit code 4, see "raycdc tables list"). fail: the run ends.',
    )
    on_log_lost: Literal["fail", "resnapshot"] = option(
        "fail",
        help="The reaction when the source no longer has the log that is needed. fail: the run ends. resnapshot: all "
        "tables are read again. Where it is needed for a table alone that was paused (raycdc tables resume), fail "
        "parks that table, and resnapshot reads it again.",
    )
    on_existing: Literal["fail", "merge", "replace"] = option(
        "fail",
        help="The reaction to a target table that this pipeline did not create. fail: it is refused. merge: it is "
        "taken over. replace: it is replaced.",
    )

    @property
    def schema_changes_left_out(self) -> frozenset[str]:
        """The changes that ``include_schema_changes`` and ``exclude_schema_changes`` leave out together."""
        included = self.include_schema_changes
        unnamed = {change for change in get_args(LeftOutChange) if included and change not in included}
        return frozenset({*unnamed, *self.exclude_schema_changes})

    @field_validator("state_key")
    @classmethod
    def _check_state_key(cls, key: Secret) -> Secret:
        if key and len(key.reveal()) < STATE_KEY_LENGTH_MIN:
            raise ValueError(f"needs at least {STATE_KEY_LENGTH_MIN} characters")
        return key

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name or name[0] == "." or not all(c.isascii() and (c.isalnum() or c in "-_.") for c in name):
            raise ValueError(f'may contain {_NAME_CHARACTERS} and not begin with a dot, got "{name}"')
        return name

    @model_validator(mode="after")
    def _work_beside_a_store(self) -> Self:
        if self.work and not is_url(self.state):
            raise ValueError("work is for a state on an object store; a state in a folder has its files inside")
        if self.spool and not is_url(self.spool):
            raise ValueError(
                "spool is a place on an object store, for copies; where segments are written say work and ray.spool"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _default_state(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("name"), str) and not data.get("state"):
            return {**data, "state": f"./state/{data['name']}"}
        return data


class SourceConfig(Options):
    """Base of every source's section; a connector adds its own keys."""

    #: Whether the source may insert a row that is there already, which a true changelog never does.
    repeats_inserts: ClassVar[bool] = False
    #: The key of the section that lists the captured tables, by names and regular expressions.
    tables_key: ClassVar[str] = "tables"

    type: str = option(help="Which source: a built-in or an installed plug-in.", example="mysql")
    rows_per_second: int | None = option(
        None,
        help="At most so many rows a second are read of the source in the whole job, chunks and changes together, "
        "whoever reads them. Default: as many as can be.",
        unit="rows",
        example=20_000,
        ge=1,
    )
    bytes_per_second: Size | None = option(
        None,
        help="At most so many bytes a second: of messages as they came, of rows as they are in memory. Default: as "
        "many as can be.",
        example="20MB",
    )

    @property
    def pace(self) -> Pace:
        """How fast it may be read."""
        return Pace(self.rows_per_second, self.bytes_per_second)

    @property
    def bounded(self) -> bool:
        """Whether the source ends by itself, without following its log."""
        return False

    @property
    def address(self) -> str:
        """Where the source is, for people, without secrets; empty where it is in no one place."""
        return ""

    @property
    def readers_max(self) -> int:
        """How many readers can have work at once; 0: any number."""
        return 0

    @property
    def why_read_once(self) -> str:
        """Why the log cannot be read a second time beside itself, with the way out, as one sentence that goes on behind
        "because"; empty where it can. `ValueError` for a section that was not validated, and says nothing.
        """
        return ""

    def for_sink(self, sink: str) -> SourceConfig:
        """The section as it is in front of a sink of this type."""
        return self

    @property
    def full_changelog(self) -> bool:
        """Whether each change is to be completed with the row that was there before it."""
        return False

    def captures(self, table: TableId) -> bool:
        """Whether `table` is one that it captures; True where only reading tells."""
        return True

    @property
    def order_column(self) -> str:
        """The column that orders the changes of a key, of which the greatest wins; empty where
        changes come in order.
        """
        return ""

    @property
    def table_patterns(self) -> tuple[str, ...]:
        """Names and regular expressions of tables, as they are written."""
        return ()

    def chunk_keys(self) -> Mapping[TableId, str]:
        """The columns that tables are cut into chunks by, where that is the user's choice."""
        return {}


class SinkConfig(Options):
    """Base of every sink's section; a sink adds its own keys.

    A sink that cannot update rows narrows `write` with `appends_only`; one whose tables can be partitioned, or have
    properties, says so in `no_layout`.
    """

    #: Whether the sink writes rows to the standard output of the process that runs the pipeline.
    prints_rows: ClassVar[bool] = False

    type: str = option(help="Which sink: a built-in or an installed plug-in.", example="delta")
    write: Literal["upsert", "changelog"] = option(
        "upsert", help="upsert: the target equals the table. changelog: the target holds every change, in order."
    )
    parallelism: int = option(0, help="Tasks per epoch; 0 leaves it to Spark.", ge=0)
    invalid_names: Literal["replace", "park"] = option(
        "replace",
        help="How a column is treated whose name the target cannot hold. replace: it gets another name (unit (SI) "
        "becomes unit__SI_), which it keeps as long as the state. park: its table is left out until you decide.",
    )

    @property
    def names(self) -> NameRules:
        """The names that targets can hold: any name, unless the sink is in the table of `raycdc.model.names` or says it
        here. Picklable, and without secrets.
        """
        return NAMES.get(self.type, ANY_NAMES)

    @property
    def folder(self) -> str:
        """The folder of this machine that its files are written to, if it writes any. ``raycdc check`` and ``raycdc
        run`` refuse one that cannot be written, before anything is read.
        """
        return ""

    @property
    def store(self) -> str:
        """In its place the URL of an object store, if its files go to one. ``raycdc check`` and ``raycdc run`` refuse
        one that cannot be written, or that does not decide conditional puts.
        """
        return ""

    @property
    def modules(self) -> tuple[str, ...]:
        """Packages that it needs beside those that its sink imports."""
        return ()

    def commits_grow(self, pipeline: PipelineOptions) -> bool:
        """Whether a commit costs more the more of them a target has had, so that none is made without need."""
        return False

    def problems(self, pipeline: PipelineOptions, *, local: bool) -> Iterator[str]:
        """The parts of the configuration that the sink cannot carry out. `local` is a run without Spark.

        Pure; asked before anything starts.
        """
        yield from ()

    def no_layout(self, layout: TableLayout, schema: TableSchema) -> str:
        """The reason why a target with the columns of `schema` cannot have this layout; empty where it can.

        `layout` names columns as `schema` does. The question is asked for each table with a layout, before anything is
        read and after each change of its columns. Pure.
        """
        what = "partition_by" if layout.partitions else "table_options"
        return f'{what}: a target of sink.type = "{self.type}" has none. Leave it out, or use delta or iceberg.'


class ReaderOptions(Options):
    """How many reader processes share the snapshot."""

    min: int = option(1, help="Readers that are always there.", ge=1, le=1024)
    max: int | None = option(
        None,
        help="Readers while there are chunks to read, and the most that a backlog asks for. Default: as many as there "
        "are cores, in a Ray cluster those of its nodes. More than the cluster has room for is what its autoscaler "
        "sees.",
        example=4,
        ge=1,
        le=1024,
    )
    cpus: float = option(
        1.0,
        help="CPUs of a node that Ray keeps for each reader, in a cluster that was joined; 0: none, so that Ray puts "
        "them anywhere and an autoscaler sees no demand.",
        ge=0,
    )
    resources: dict[str, float] = option(
        {}, help="Other resources of Ray that each reader takes from its node.", example={"reader": 1}
    )
    labels: dict[str, str] = option(
        {},
        help="Labels that a Ray node must have to get readers (`ray start --labels`).",
        example={"pool": "cdc"},
    )
    fetchers: int = option(
        1,
        help="Chunks that one reader reads at the same time, over a connection each. Where the source limits its own "
        "connections (snapshot.connections, snapshot.rows_per_second), a reader has one. Kafka's partitions share one "
        "consumer per reader, whatever this says. See raycdc explain snapshots.",
        example=2,
        ge=1,
        le=64,
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min = {self.min} is more than max = {self.max}")
        return self


class RouteOptions(Options):
    """The targets of tables. A table without a route keeps its name; several routes to one target merge tables."""

    table: TablePattern = option(
        help="Source tables: a name (odd parts between backquotes), or a regular expression in full.",
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
        """The route as `raycdc.model.routes` has it."""
        return Route(self.table, self.to, self.replace_symbol)


class RayOptions(Options):
    """The place where the source side runs."""

    address: str = option("local", help='"local" (a private Ray), "auto" (the one of this machine) or "HOST:PORT".')
    spool: Folder = option(
        "", help="Folder for segments on nodes other than this one; empty is a folder of the user's in /var/tmp."
    )
    flight: Literal["auto", "loopback", "network"] = option(
        "auto",
        help="Where nodes serve segments. loopback: to this machine only. network: on the node's address in the "
        "cluster, so that readers and Spark's executors can run on other machines; calls carry a token and are "
        "encrypted, with certificates made for the run. auto: network where a Ray cluster is joined or Spark runs "
        "elsewhere.",
    )

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        # A Ray Client server is refused where Ray is needed, with the reason (`raycdc.startup_checks`).
        if address not in ("local", "auto") and (":" not in address or address.startswith(("http://", "https://"))):
            raise ValueError(f'must be "local", "auto" or "HOST:PORT", got "{address}"')
        return address


class SparkOptions(Options):
    """The place where the data side runs. Values of `conf` are never shown, because they often hold credentials."""

    master: str = option("local[*]", help="Spark master URL.")
    conf: dict[str, str] = option({}, help="Further Spark settings.", example={"spark.driver.memory": "4g"}, repr=False)

    @property
    def is_here(self) -> bool:
        """Whether Spark's tasks run on the machine with the state, which is then the node they are on."""
        return self.master.startswith("local")

    @field_validator("master")
    @classmethod
    def _check_master(cls, master: str) -> str:
        if master.startswith("sc://"):
            raise ValueError(
                f'"{master}" is a Spark Connect server, which gives its clients no tasks to run and no JVM to commit '
                "with. Name the master itself, such as spark://HOST:7077, or local[*] for a Spark of this process"
            )
        if not _MASTER.fullmatch(master):
            raise ValueError(f'must be local[*], local[N], spark://HOST:PORT, yarn or k8s://…, got "{master}"')
        return master

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, conf: Any) -> Any:
        return flattened_texts(conf) if isinstance(conf, dict) else conf

    @field_validator("conf")
    @classmethod
    def _no_other_master(cls, conf: dict[str, str]) -> dict[str, str]:
        for key in ("spark.master", "spark.remote"):
            if key in conf:
                raise ValueError(f"{key} is not set here; write it as spark.master, beside conf")
        return conf


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """A whole configuration. `warnings` are for the user's eyes, once, at the start. ``repr`` shows no secret."""

    pipeline: PipelineOptions
    source: SourceConfig
    sink: SinkConfig
    readers: ReaderOptions = field(default_factory=ReaderOptions)
    ray: RayOptions = field(default_factory=RayOptions)
    spark: SparkOptions = field(default_factory=SparkOptions)
    storage: StorageOptions = field(default_factory=StorageOptions)
    control: ControlOptions = field(default_factory=ControlOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    logging: LoggingOptions = field(default_factory=LoggingOptions)
    masks: tuple[MaskOptions, ...] = ()
    transforms: tuple[TransformOptions, ...] = ()
    lookups: tuple[LookupOptions, ...] = ()
    routes: tuple[RouteOptions, ...] = ()
    notifications: tuple[NotifyOptions, ...] = ()

    @property
    def flies(self) -> bool:
        """Whether nodes serve segments beyond this machine."""
        if self.ray.flight == "auto":
            return self.ray.address != "local" or not self.spark.is_here
        return self.ray.flight == "network"

    warnings: tuple[str, ...] = ()
    #: The file that it was read from, if it was.
    file: Path | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raises `ConfigError` for what is not supported yet, however the configuration was made."""
        sections = {name: getattr(self, name) for name in (*COMMON_SECTIONS, "source", "sink")}
        problems = [text for name, options in sections.items() for text in planned_problems(options, name)]
        problems += [] if self.state_key else hiding_problems(self.masked(), self.source.chunk_keys())
        problems += repeated_problems(
            self.source, mask=self.masks, transform=self.transforms, lookup=self.lookups, route=self.routes
        )
        if problems:
            raise ConfigError(*problems)

    def router(self) -> Router:
        """The routes: the target of every table."""
        return Router([options.route() for options in self.routes], self.pipeline.route_mode)

    def masked(self) -> Masks:
        """The masks that readers apply."""
        return Masks([options.mask() for options in self.masks])

    @property
    def early_epochs_per_hour(self) -> int:
        """How many epochs an hour need not wait for ``epoch_interval``: who chose an interval gets that interval, and a
        target that minds each commit gets no more of them than were asked for.
        """
        pipeline = self.pipeline
        if pipeline.epochs_per_hour is not None:
            return pipeline.epochs_per_hour
        is_chosen = "epoch_interval" in pipeline.model_fields_set
        return 0 if is_chosen or self.sink.commits_grow(pipeline) else EPOCHS_PER_HOUR

    @property
    def state_key(self) -> StateKey | None:
        """The key that encrypts masked values which the state must remember; None where there is none."""
        key = self.pipeline.state_key
        return StateKey(key.reveal()) if key else None

    def transformed(self) -> Transforms:
        """The transforms of every table's rows, and the lookups that add columns to them."""
        lookups = [options.lookup(number) for number, options in enumerate(self.lookups)]
        return Transforms([options.transform() for options in self.transforms], lookups)

    @property
    def mode(self) -> Mode:
        """When a run ends: as ``pipeline.mode`` says, or after the snapshot of a source that has nothing else."""
        return Mode.SNAPSHOT if self.source.bounded else self.pipeline.mode

    @property
    def until(self) -> Until | None:
        """The end of a run; None: it goes on until it is stopped.

        Whoever asks for ``until-caught-up`` gets the log up to its present end, also behind a bounded snapshot.
        """
        match self.pipeline.mode if self.pipeline.mode is Mode.UNTIL_CAUGHT_UP else self.mode:
            case Mode.CONTINUOUS:
                return None
            case Mode.UNTIL_CAUGHT_UP:
                return Until.CAUGHT_UP
            case Mode.SNAPSHOT:
                return Until.SNAPSHOT


#: Sections of `PipelineConfig` whose model does not depend on a plug-in.
COMMON_SECTIONS: dict[str, type[Options]] = {
    "pipeline": PipelineOptions,
    "readers": ReaderOptions,
    "ray": RayOptions,
    "spark": SparkOptions,
    "storage": StorageOptions,
    "control": ControlOptions,
    "metrics": MetricsOptions,
    "logging": LoggingOptions,
}

#: Sections that may come several times, and the fields of `PipelineConfig` that hold them.
REPEATED_SECTIONS: dict[str, tuple[str, type[Options]]] = {
    "mask": ("masks", MaskOptions),
    "transform": ("transforms", TransformOptions),
    "lookup": ("lookups", LookupOptions),
    "route": ("routes", RouteOptions),
    "notify": ("notifications", NotifyOptions),
}


def repeated_problems(
    source: SourceConfig,
    *,
    mask: Sequence[MaskOptions | None] = (),
    transform: Sequence[TransformOptions | None] = (),
    lookup: Sequence[LookupOptions | None] = (),
    route: Sequence[RouteOptions | None] = (),
    notify: Sequence[NotifyOptions | None] = (),
) -> Iterator[str]:
    """Problems of the entries of repeated sections; None stands for an entry that is not valid.

    An entry that names a single table which is not captured is a mistake, because whoever wrote it meant a table. A
    receiver of notifications is about none.
    """
    del notify
    for index, hidden in enumerate(mask):
        plain = hidden.mask().plain if hidden is not None else None
        yield from _captured(source, plain[0] if plain else None, f"mask[{index}].columns")
    for index, change in enumerate(transform):
        if change is not None:
            yield from planned_problems(change, f"transform[{index}]")
            yield from _captured(source, change.transform().plain_table, f"transform[{index}].table")
    for index, joined in enumerate(lookup):
        if joined is not None:
            yield from _captured(source, joined.plain_table, f"lookup[{index}].table")
    for index, options in enumerate(route):
        if options is not None:
            yield from _captured(source, options.route().plain, f"route[{index}].table")


def _captured(source: SourceConfig, table: TableId | None, place: str) -> Iterator[str]:
    if table is not None and not source.captures(table):
        yield f"{place}: {table} is not captured; put it into source.tables, or correct the name"


def appends_only(sink_type: str, write: Any) -> Any:
    """Refuse ``write = "upsert"`` for a sink that can only append, with the way out."""
    if write == "upsert":
        raise ValueError(f'{sink_type} can only append; use write = "changelog", or a sink that merges, such as delta')
    return write
