"""Measures a run of limited length from its own events.

The configuration of a measured run is the user's own, with a temporary state and target.
"""

from __future__ import annotations

import os
import resource
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from raycdc.config import PipelineConfig, config_from_dict
from raycdc.config.fields import TomlTable, TomlValue
from raycdc.core.typed_codec import Json
from raycdc.errors import ConfigError, RaycdcError
from raycdc.model.engines import FROM_BYTES
from raycdc.observe.events import CaughtUp, Committed, RunEvent, RunProgress, Started, TableParked, Warned
from raycdc.observe.status.stages import WHY, stage_seconds
from raycdc.pipeline import Pipeline

_KIB = 1024
#: The stages that events report. The hand-off, in which chunks wait for the log's reader, is reported only in a status.
_STAGES = tuple(stage for stage in WHY if stage != "hand_off")
#: The sinks whose rows are visible only in files. An epoch of such a sink counts only when it is in a file.
_NO_ROWS = "no row was committed in that time: give it more with --seconds"


@dataclass(frozen=True, slots=True)
class BenchLimits:
    """The limits of a run: seconds of running, and committed rows; 0 means no limit."""

    seconds: float = 30.0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run.

    `start_s` is the duration of the start, and `seconds` the time from the end of the start until the last commit.
    `shares` has, for each stage of `raycdc.observe.status.stages` except the hand-off, the fraction of this time in
    which the stage was busy, out of the time of all readers or of the driver. `readers_cpu_s` is the CPU time of all
    readers' processes together. `target_bytes` is the size of the target's files. `whole` is True if everything was
    read.
    """

    settings: str
    rows: int
    seconds: float
    start_s: float
    epochs: int
    readers: int
    shares: Mapping[str, float]
    readers_cpu_s: float
    driver_peak_bytes: int
    target_bytes: int
    whole: bool
    notes: Sequence[str] = ()

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def bottleneck(self) -> str:
        """Return the busiest stage; empty if nothing is known."""
        return max(self.shares, key=lambda stage: self.shares[stage]) if any(self.shares.values()) else ""

    @property
    def why(self) -> str:
        """Return the explanation of the busiest stage, with a remedy."""
        return WHY.get(self.bottleneck, "")

    def to_json(self) -> dict[str, Json]:
        return {
            **{name: value for name, value in asdict(self).items() if name not in ("shares", "notes")},
            "rows_per_s": round(self.rows_per_s),
            "bottleneck": self.bottleneck,
            "shares": dict(self.shares),
            "notes": list(self.notes),
        }


def measured(config: PipelineConfig, limits: BenchLimits, *, settings: str, target: Path, local: bool) -> Figures:
    """Run the pipeline until it has caught up or a limit is reached, and return the figures.

    If the run fails before a row is committed, its error is raised. If it fails later, the error becomes a note in the
    figures, as a parked table does. A `KeyboardInterrupt` is raised again.
    """
    pipeline = Pipeline.from_config(config)
    watched = _Watched(limits, pipeline)
    try:
        pipeline.run(until="caught-up", local=local, listener=watched.listen)
    except RaycdcError as error:
        if not watched.has_rows:
            raise
        watched.note(f"it ended with an error: {error}")
    finally:
        watched.close()
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return watched.figures(settings, size)


@dataclass(slots=True)
class _Seen:
    began_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None
    committed_s: float | None = None
    rows: int = 0
    epochs: int = 0
    staging_s: float = 0.0
    commit_s: float = 0.0
    whole: bool = False
    #: The seconds of each activity, for each reader by its number and process.
    readers: dict[tuple[int, int], Mapping[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class _Watched:
    """Listens to a run, and stops it at its limits. Events come from threads of the run, one at a time."""

    def __init__(self, limits: BenchLimits, pipeline: Pipeline) -> None:
        self._limits = limits
        self._pipeline = pipeline
        self._seen = _Seen()
        self._timer: threading.Timer | None = None
        self._own_cpu_s = time.process_time()

    def listen(self, event: RunEvent) -> None:
        seen = self._seen
        match event:
            case Started():
                if seen.started_s is None:
                    seen.started_s = time.monotonic()
                    if self._limits.seconds:
                        self._timer = threading.Timer(self._limits.seconds, self._pipeline.stop)
                        self._timer.daemon = True
                        self._timer.start()
            case RunProgress(readers=readers):
                seen.readers |= {(reader.subtask, reader.pid): reader.seconds for reader in readers}
            case Committed():
                seen.committed_s = time.monotonic()
                seen.rows += event.rows
                seen.epochs += 1
                seen.staging_s += event.staging_s
                seen.commit_s += event.commit_s
                if self._limits.rows and seen.rows >= self._limits.rows:
                    self._pipeline.stop()
            case CaughtUp():
                seen.whole = True
            case Warned(text=text):
                self.note(text)
            case TableParked(table=table, parked=parked):
                self.note(f"{table} is parked: {parked.reason}")
            case _:
                pass

    @property
    def has_rows(self) -> bool:
        return bool(self._seen.rows)

    def note(self, text: str) -> None:
        """Add a note for people to the figures."""
        self._seen.notes.append(text)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def figures(self, settings: str, target_bytes: int) -> Figures:
        seen = self._seen
        started_s = seen.started_s or seen.began_s
        seconds = max(0.0, (seen.committed_s or started_s) - started_s)
        notes = seen.notes if seen.rows else [*seen.notes, _NO_ROWS]
        count = max(1, len({subtask for subtask, _ in seen.readers}))
        return Figures(
            settings,
            seen.rows,
            round(seconds, 3),
            round(started_s - seen.began_s, 3),
            seen.epochs,
            count,
            self._fractions(seconds, count),
            self._readers_cpu_s(),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
            target_bytes,
            seen.whole,
            notes,
        )

    def _readers_cpu_s(self) -> float:
        """Return the CPU seconds of the readers' processes.

        Without Ray that is one process, which also did other work.
        """
        of_process: dict[int, float] = {}
        for (_, pid), seconds in self._seen.readers.items():
            of_process[pid] = max(of_process.get(pid, 0.0), seconds.get("process_cpu", 0.0))
        before_s = self._own_cpu_s if os.getpid() in of_process else 0.0
        return round(max(0.0, sum(of_process.values()) - before_s), 2)

    def _fractions(self, seconds: float, readers: int) -> dict[str, float]:
        spent = dict.fromkeys(_STAGES, 0.0)
        for reader in self._seen.readers.values():
            for stage, more in stage_seconds({}, reader).items():
                spent[stage] += more / readers
        spent["spark"], spent["commit"] = self._seen.staging_s, self._seen.commit_s
        return {stage: round(min(1.0, each / seconds), 3) if seconds else 0.0 for stage, each in spent.items()}


#: A type of sink that `--into` may use instead. It writes files, which costs little compared to the other stages.
PLAIN = "parquet"
#: Sections that publish the pipeline. They are left out, because a measured run could be mistaken for the real one.
REPORTING_SECTIONS = ("traces", "notify", "metrics", "logging")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting to try: a key with a new value, such as ``readers.max=4``."""

    key: str
    value: TomlValue

    @classmethod
    def parse(cls, text: str) -> Setting:
        """Parse the text of a setting. Raises `ConfigError` for an invalid one."""
        key, equals, value = text.partition("=")
        if not equals or "." not in key.strip(". "):
            raise ConfigError(f'--try "{text}" is no KEY=VALUE with a section in the key, such as readers.max=4.')
        try:
            return cls(key.strip(), tomllib.loads(f"value = {value}")["value"])
        except ValueError:
            return cls(key.strip(), value.strip())

    def put_into(self, data: TomlTable) -> TomlTable:
        """Return the parsed TOML `data` with this setting."""
        return _with(data, self.key.split("."), self.value)


def trial_config(data: TomlTable, settings: Sequence[Setting], folder: Path, *, into: str = "") -> PipelineConfig:
    """Return the configuration `data` with the changed `settings`, and with state and target in `folder`.

    If `into` is given, a sink of this type, which writes files, replaces the configured one. Raises `ConfigError` if
    the configuration is invalid, or if its sink cannot write to a different folder.
    """
    # With "auto", most of a short run would be in this process, while a pipeline mostly runs on Ray and Spark.
    changed = _with(data, ["pipeline", "engines"], "always")
    changed = _with(changed, ["spark", "from_bytes"], _section(changed, "spark").get("from_bytes", FROM_BYTES))
    for setting in settings:
        changed = setting.put_into(changed)
    changed = _with(changed, ["pipeline", "state"], str(folder / "state"))
    # A measured run must not affect the real pipeline: the copies of its segments, the offsets of its consumer group,
    # or the port of its control API.
    changed = _with(changed, ["pipeline", "spool"], None)
    # pipeline.work_dir is for a state on an object store; this state is a folder.
    changed = _with(changed, ["pipeline", "work_dir"], None)
    changed = _with(changed, ["source", "group_id"], None)
    changed = _with(changed, ["control"], {"enabled": False})
    for section in REPORTING_SECTIONS:
        changed = _with(changed, [section], None)
    index = str(folder / "target")
    if into:
        write: TomlTable = {} if into == "delta" else {"write": "changelog"}
        return config_from_dict({**changed, "sink": {"type": into, "path": index, **write}})
    sink = config_from_dict(changed).sink
    if not sink.folder or "path" not in _section(changed, "sink"):
        raise ConfigError(
            f'raycdc bench run: a target of sink.type = "{sink.type}" that is no folder of this machine is not thrown '
            f"away so easily. Measure all but the sink with --into {PLAIN}, or with --into delta."
        )
    return config_from_dict(_with(changed, ["sink", "path"], index))


def _section(data: TomlTable, name: str) -> TomlTable:
    section = data.get(name, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name} is no section.")
    return section


def _with(data: TomlTable, path: Sequence[str], value: TomlValue | None) -> TomlTable:
    """Return `data` with the value at this path; None removes the key."""
    name, *rest = path
    if rest:
        value = _with(_section(data, name), rest, value)
    return {key: each for key, each in {**data, name: value}.items() if each is not None}
