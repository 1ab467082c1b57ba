"""The section ``[pipeline]``: a pipeline's name, the location of its state, and its behaviour."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, Self, get_args

from pydantic import field_validator, model_validator

from raycdc.config.fields import Duration, Folder, FolderOrUrl, Options, Secret, Size, option
from raycdc.model.evolution.effects import SchemaChangeBehavior
from raycdc.model.state_key import LENGTH_MIN as STATE_KEY_LENGTH_MIN
from raycdc.storage.url import is_url

_NAME_CHARACTERS = "letters, digits, '-', '_' and '.'"
#: The number of early epochs per hour if the configuration sets neither `epochs_per_hour` nor `epoch_interval`: twice
#: as many as the default interval gives.
EPOCHS_PER_HOUR = 3600


#: When Ray reads and Spark writes (``pipeline.engines``).
Engines = Literal["auto", "always", "never"]


class Mode(StrEnum):
    """The condition for the end of a run: none, having caught up with the log's end at its start, or the end of the
    snapshot.
    """

    CONTINUOUS = "continuous"
    UNTIL_CAUGHT_UP = "until-caught-up"
    SNAPSHOT = "snapshot"


#: The schema changes that can be kept from a target.
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
#: All schema changes that can be left out. A table is always created, and a changed key or name of a table is never
#: ignored silently.
SchemaChange = Literal["create_table", "alter_primary_key", "rename_table", LeftOutChange]


class PipelineOptions(Options):
    """The name of the pipeline, the location of its state, and its behaviour."""

    name: str = option(
        help=f"Identity of the state and of the sink's commits: {_NAME_CHARACTERS}. Never change it for existing data.",
        example="shop",
        max_length=100,
    )
    state: FolderOrUrl = option(
        "",
        help="Folder of the checkpoints, on a local disk, or a URL on an object store (see [storage]). Default: "
        "./state/NAME.",
        example="./state/shop",
    )
    spool: FolderOrUrl = option(
        "",
        help="URL on an object store (see [storage]) for a copy of each segment, so that rows that were read and "
        "not committed survive the loss of their machine. Without it, they are read again from the source.",
        example="s3://lake/spool",
    )
    work_dir: Folder = option(
        "",
        help="For a state on an object store: the local folder for segments that are not committed yet and for "
        "files of processes. If it is lost, its content is read again. Default: ./state/NAME.work. A state in "
        "a folder has these files inside.",
        example="/var/lib/raycdc/shop",
    )
    state_key: Secret = option(
        Secret(""),
        help="Encrypts values of masked columns that the state must store. Needed if a table is cut into chunks by "
        f"a masked column (source.snapshot.key). At least {STATE_KEY_LENGTH_MIN} characters, the same for the "
        "life of the state.",
        example="${env:STATE_KEY}",
    )
    mode: Mode = option(
        Mode.CONTINUOUS,
        help="When the run ends. continuous: never. until-caught-up: at the log position of its start. snapshot: "
        "after the snapshot.",
    )
    epoch_interval: Duration = option(
        timedelta(seconds=2),
        help="How often rows that were read are sealed and committed to the sink. If it is not set, "
        "epochs_per_hour allows earlier commits while the sink is idle.",
        unit="duration",
    )
    epochs_per_hour: int | None = option(
        None,
        help="Changes are committed immediately while the sink is idle, instead of after epoch_interval, as long "
        "as epochs stay below this number per hour on a ten-minute average. Under load, above that number, or "
        f"during a snapshot, epoch_interval groups changes. 0: never early. Default: {EPOCHS_PER_HOUR}, or 0 "
        "if epoch_interval is set, and for an iceberg sink whose tables keep thousands of snapshots: "
        "changelogs and tables that raycdc did not create, without keep_snapshots or expire_snapshots; "
        "keep_snapshots = 0 or more than 2000; expire_snapshots longer than 33 minutes, without "
        "keep_snapshots.",
        example=EPOCHS_PER_HOUR,
        ge=0,
    )
    epoch_bytes_max: Size = option(
        256 << 20,
        help="An epoch ends early when it holds this much; one transaction is never split. Rows of the log that "
        "wait for chunks being read stay in memory up to this size, and go to the spool beyond it.",
        unit="size",
    )
    reader_timeout: Duration = option(
        timedelta(seconds=10), help="A reader is replaced if its process is silent for this long.", unit="duration"
    )
    progress_timeout: Duration = option(
        timedelta(seconds=60),
        help="A reader hangs, and is replaced, if its process answers but its work makes no progress for this "
        "long. Each synced file counts as progress. A file has slightly more than 64 MiB, so on a slow disk "
        "set this option above the time that one file takes.",
        unit="duration",
    )
    watchdog: Duration = option(
        timedelta(seconds=60),
        help="Work on a table or chunk without progress for this long is reported, with what it waits for; again "
        "after twice this time, and once more when it resumes. The run does not end because of it.",
        example="30s",
        unit="duration",
    )
    engines: Engines = option(
        "auto",
        help="When Ray reads and Spark writes. auto: a run with its own Ray and Spark begins in its own process "
        "and starts both after five seconds, so that short runs need neither; Spark writes epochs of at least "
        "spark.from_bytes. A run that joins a cluster, or whose rows need Spark from the beginning, waits for "
        "both. always: every run waits for both, and every epoch is a Spark job. never: without Ray and "
        "Spark, as with --local.",
    )
    schema_change: SchemaChangeBehavior = option(
        SchemaChangeBehavior.LENIENT,
        help="How the target follows changes of the source tables' schemas (`raycdc docs configuration`).",
    )
    include_schema_changes: tuple[SchemaChange, ...] = option(
        (),
        help="Only these schema changes reach the target; empty: all. A table is always created.",
        example=["add_column", "truncate_table"],
    )
    exclude_schema_changes: tuple[LeftOutChange, ...] = option(
        (),
        help="These schema changes do not reach the target: it keeps its columns, or the rows of a truncated table.",
        example=["truncate_table"],
    )
    route_mode: Literal["all_match", "first_match"] = option(
        "all_match", help="Whether every matching route applies, or only the first."
    )
    on_bad_record: Literal["park", "skip", "dead-letter", "fail"] = option(
        "park",
        help="How a bad row is treated: an expression of a transform fails on it, the target cannot hold one of "
        "its values, or MongoDB reports its change but does not find its document. park: its table is parked. "
        "skip: the row is left out of the target. dead-letter: like skip, and the row is kept in "
        "STATE/dead_letters. fail: the run ends. A value that only the target itself refuses parks the table "
        "also with skip and dead-letter. For messages that cannot be decoded see source.format.on_error.",
    )
    on_table_error: Literal["park", "fail"] = option(
        "park",
        help="How a table that cannot be followed or written is treated. park: it is parked, and the other tables "
        'go on (a run until caught up then ends with exit code 4, see "raycdc tables list"). fail: the run '
        "ends.",
    )
    on_log_lost: Literal["fail", "resnapshot"] = option(
        "fail",
        help="The reaction if the source no longer has the log that is needed. fail: the run ends. resnapshot: all "
        "tables are read again. If only a paused table needs that log (raycdc tables resume), fail parks the "
        "table, and resnapshot reads it again.",
    )
    on_existing: Literal["fail", "merge", "replace"] = option(
        "fail",
        help="The reaction to a target table that this pipeline did not create. fail: it is refused. merge: it is "
        "kept and merged into. replace: it is replaced.",
    )

    @property
    def schema_changes_left_out(self) -> frozenset[str]:
        """Return the changes that ``include_schema_changes`` and ``exclude_schema_changes`` leave out together."""
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
    def _work_dir_of_a_store(self) -> Self:
        if self.work_dir and not is_url(self.state):
            raise ValueError("work_dir is for a state on an object store; a state in a folder has its files inside")
        if self.spool and not is_url(self.spool):
            raise ValueError(
                "spool is a location on an object store, for copies; where segments are written say work_dir and "
                "ray.spool"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _default_state(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("name"), str) and not data.get("state"):
            return {**data, "state": f"./state/{data['name']}"}
        return data
