"""The events that a run may tell: one frozen value each, whose text (``str``) is for people where it has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from raycdc.config.logs import LogLevel
from raycdc.run_events.figures import Progress

if TYPE_CHECKING:
    from raycdc.source.parking import Asked
    from raycdc.source.table_life import Parked

#: What a run recovers from.
After = Literal["killed", "error", "take_over", "cluster", "node"]


@dataclass(frozen=True, slots=True)
class Starting:
    """A step before anything is read."""

    step: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A standby waits, because `holder` has the `state`. Another start waits `at_most_s` to see whether it has."""

    holder: str
    state: str
    at_most_s: float | None = None

    def __str__(self) -> str:
        if self.at_most_s is not None:
            return (
                f"looking for up to {self.at_most_s:.0f} s whether {self.holder}, which had the state in {self.state} "
                "last and did not say that it ended, gives a sign of life"
            )
        return f"waiting for the state in {self.state}, which {self.holder} has"


@dataclass(frozen=True, slots=True)
class TookOver:
    """A standby that waited has the state now."""

    reason: str
    generation: int

    def __str__(self) -> str:
        return f"taking over: {self.reason}"


@dataclass(frozen=True, slots=True)
class Started:
    """The processes that run now, by their ids."""

    driver: int
    enumerator: int
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A run that began in the driver's process has handed its source side over to Ray, `after_s` seconds after it began
    to read; `Started` names the actors.
    """

    after_s: float

    def __str__(self) -> str:
        return f"Ray and Spark are up: what this process read is theirs from now on, after {self.after_s:.0f} s"


@dataclass(frozen=True, slots=True)
class Scaling:
    """There should be `readers`, and why; `waiting` of them have no place yet, `nodes` are those that others are on."""

    readers: int
    waiting: int
    nodes: Mapping[str, int]
    reason: str

    def __str__(self) -> str:
        where = ", ".join(f"{count} on {node}" for node, count in self.nodes.items() if node)
        text = f"{self.readers} {'reader' if self.readers == 1 else 'readers'}: {self.reason}"
        if self.waiting:
            text = f"{text}; {self.waiting} wait for a node that has room, and the run goes on without them"
        return f"{text} ({where})" if where else text


@dataclass(frozen=True, slots=True)
class Committed:
    """An epoch is in the sink; `tables` are its rows by table."""

    epoch: int
    tables: Mapping[str, int]
    rows: int
    staging_s: float
    commit_s: float

    @property
    def seconds(self) -> float:
        return self.staging_s + self.commit_s


@dataclass(frozen=True, slots=True)
class Warned:
    """Something that the user should know while the run goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class TableParked:
    """A table is not followed."""

    table: str
    parked: Parked


@dataclass(frozen=True, slots=True)
class Commanded:
    """A command about a table was taken, or refused."""

    asked: Asked

    def __str__(self) -> str:
        refused = f"tables {self.asked.action} {self.asked.table}: refused: " if self.asked.refused else ""
        return f"{refused}{self.asked.text}"


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table was made, or renamed so that the configuration selects it, and is followed."""

    table: str

    def __str__(self) -> str:
        return f"{self.table} is new and selected by the configuration, so it is followed"


@dataclass(frozen=True, slots=True)
class TableMoved:
    """A table is in another phase than before."""

    table: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.table}: {self.before} → {self.after}"


@dataclass(frozen=True, slots=True)
class SnapshotDone:
    """All rows of a table's snapshot are in the sink: `rows`, as its chunks had them in all runs."""

    table: str
    rows: int | None

    def __str__(self) -> str:
        rows = "" if self.rows is None else f" ({self.rows:,} rows)"
        return f"the snapshot of {self.table} is in the target{rows}"


@dataclass(frozen=True, slots=True)
class SnapshotsDone:
    """No table is in its snapshot any more; this run finished those of so many `tables`."""

    tables: int

    def __str__(self) -> str:
        return f"no table is in its snapshot any more; this run finished {self.tables}"


@dataclass(frozen=True, slots=True)
class SchemaChanged:
    """An epoch is in the sink that brought changes of a table's schema, which its target follows as
    ``pipeline.schema_change`` says. Names only.
    """

    table: str
    target: str
    epoch: int
    changes: tuple[str, ...]

    def __str__(self) -> str:
        target = "" if self.target == self.table else f" for {self.target}"
        return f"{self.table} changed its schema in epoch {self.epoch}{target}: {', '.join(self.changes)}"


@dataclass(frozen=True, slots=True)
class Recovered:
    """The sink and the record are equal again, and reading goes on behind `epoch`. `after` is what ended the run
    before, or this one's work; `why` has its words.
    """

    after: After
    epoch: int
    replayed: tuple[int, ...]
    dropped: tuple[int, ...]
    why: str

    def __str__(self) -> str:
        both = (("replayed", self.replayed), ("dropped", self.dropped))
        done = [f"{name} {_numbers(epochs)}" for name, epochs in both if epochs]
        return f"{self.why}; going on behind epoch {self.epoch}" + (f" ({', '.join(done)})" if done else "")


def _numbers(epochs: tuple[int, ...]) -> str:
    return "epoch " + ", ".join(map(str, epochs)) if len(epochs) == 1 else "epochs " + ", ".join(map(str, epochs))


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A bounded run reached its end."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A run that was to stop has ended: what it had read is committed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The run ends with an error of the class `error`."""

    error: str
    text: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        from raycdc.runtime.unexpected import told_text  # Only here, because it loads Arrow.

        return cls(type(error).__name__, told_text(error))


@dataclass(frozen=True, slots=True)
class StoodStill:
    """A stage of a table or split has not moved for `seconds`; names are empty, and `reader` None, where it has none.
    `doing` are its words, and `note` is the statement or trouble.
    """

    stage: str
    table: str
    split: str
    reader: int | None
    doing: str
    note: str
    seconds: float

    @property
    def where(self) -> str:
        """Its place, for people."""
        parts = [self.table, f"chunk {self.split}" if self.split else ""]
        named = ", ".join(part for part in parts if part) or ("" if self.stage == "seal" else f"the {self.stage}")
        return named if self.reader is None else f"{named} on reader {self.reader}"

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return f"{where}{self.doing} since {self.seconds:.0f} s{self.note and f' ({self.note})'}"


@dataclass(frozen=True, slots=True)
class WentOn:
    """What stood still goes on, or is over."""

    stood: StoodStill

    def __str__(self) -> str:
        where = f"{self.stood.where}: " if self.stood.where else ""
        return f"{where}goes on after {self.stood.seconds:.0f} s ({self.stood.doing})"


RunEvent = (
    Starting
    | Waiting
    | TookOver
    | Started
    | HandedOver
    | Scaling
    | Progress
    | Committed
    | Warned
    | StoodStill
    | WentOn
    | TableParked
    | Commanded
    | NewTable
    | TableMoved
    | SnapshotDone
    | SnapshotsDone
    | SchemaChanged
    | Recovered
    | CaughtUp
    | Stopped
    | Failed
)

Listener = Callable[[RunEvent], None]


def level_of(event: RunEvent) -> LogLevel:
    """How much an event matters to whoever reads a log."""
    match event:
        case Starting() | Progress():
            return LogLevel.DEBUG
        case Warned() | StoodStill():
            return LogLevel.WARNING
        case TableParked(parked=parked):
            return LogLevel.WARNING if str(parked.phase) == "parked" else LogLevel.INFO
        case Commanded(asked):
            return LogLevel.WARNING if asked.refused else LogLevel.INFO
        case Failed():
            return LogLevel.ERROR
        case _:
            return LogLevel.INFO
