"""A plan file: the actions of a run as they were reviewed, sealed with a checksum.

A run with it is refused if anything differs from the plan.

| compared by name | not compared |
|---|---|
| every key of the configuration, except keys that may hold a secret | numbers of rows, bytes and chunks |
| the tables, their columns and keys | positions and epochs, because a state goes on |
| the targets: their source tables, columns and statement | |
| existing objects at the locations of targets | |
| the state, and the effect of a changed configuration on it | |

The seal is a checksum over the content: it detects accidental changes, and is no signature.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from raycdc.errors import ConfigError, StateError
from raycdc.state import codec


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A source table of a target: its size, if known, and the transform of its rows."""

    table: str
    rows: int
    chunks: int
    transform: str
    how: str


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column of a target, with its type as Spark spells it."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class PlannedTarget:
    """A target as a run would create it. Its fields are the keys in JSON. `ddl` is empty if the sink has none."""

    target: str
    write: str
    sources: tuple[PlannedSource, ...]
    columns: tuple[PlannedColumn, ...]
    primary_key: tuple[str, ...]
    ddl: str


VERSION = 2


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table of the source as planned. `rows` and `bytes` are estimates, 0 if unknown."""

    table: str
    columns: tuple[PlannedColumn, ...]
    primary_key: tuple[str, ...]
    rows: int
    bytes: int
    chunks: int


@dataclass(frozen=True, slots=True)
class SealedPlan:
    """The content of a plan file.

    `configuration` has each key's value as JSON. `locations` has the kind of object at each target's location: none,
    one of this pipeline, or another. `state` is the identity of the existing state, and `effects` are those of a
    changed configuration on it.
    """

    version: int
    raycdc: str
    pipeline: str
    made_ms: int
    configuration: Mapping[str, str]
    tables: tuple[PlannedTable, ...]
    targets: tuple[PlannedTarget, ...]
    locations: Mapping[str, str]
    state: str
    effects: tuple[str, ...]


_ADAPTER = TypeAdapter(SealedPlan)


def write_plan(path: Path, plan: SealedPlan) -> None:
    """Write the sealed plan to the file, completely or not at all, readable for this user only.

    Raises `ConfigError` if that is not possible.
    """
    # The name is unpredictable, so that no file or link of another user can have it.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), 0o600)  # The umask may have removed more permissions.
                file.write(codec.encode(asdict(plan)))
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as cause:
        raise ConfigError(f"{path} cannot be written: {cause}.") from cause


def read_plan(path: Path) -> SealedPlan:
    """Read a plan from a file.

    Raises `ConfigError` if the file is no plan, was changed, or was written by a newer raycdc.
    """
    again = "Make a new one: raycdc plan CONFIG --out FILE."
    try:
        document = codec.decode(path.read_bytes(), origin=str(path))
    except OSError as cause:
        raise ConfigError(f"{path} cannot be read: {cause}.") from cause
    except StateError as damaged:
        _, why = codec.damage_of(damaged) or ("", str(damaged))
        raise ConfigError(f"{path} is no plan as it was sealed: {why}. {again}") from damaged
    if document.get("version") != VERSION:
        raise ConfigError(
            f"{path} is a plan of version {document.get('version')!r}; this raycdc reads {VERSION}. {again}"
        )
    try:
        return _ADAPTER.validate_python(document)
    except ValidationError as cause:
        raise ConfigError(f"{path} is no plan: {cause.error_count()} of its fields are malformed. {again}") from cause


def differences(planned: SealedPlan, now: SealedPlan) -> list[str]:
    """Return each difference from the plan as a sentence that names it."""
    if planned.pipeline != now.pipeline:
        return [f"The plan is of pipeline {planned.pipeline!r}, and this is {now.pipeline!r}."]
    return [
        *_of_configuration(planned.configuration, now.configuration),
        *_of_tables({one.table: one for one in planned.tables}, {one.table: one for one in now.tables}),
        *_of_targets({one.target: one for one in planned.targets}, {one.target: one for one in now.targets}),
        *_location_changes(planned.locations, now.locations),
        *_of_state(planned.state, now.state),
        *(f"Not planned was: {text}" for text in now.effects if text not in planned.effects),
    ]


def _of_configuration(planned: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for key in sorted({*planned, *now}):
        was, found = planned.get(key), now.get(key)
        if was == found:
            continue
        if was is None or found is None or "sha256:" in f"{was}{found}":
            yield f"{key} is another than was planned."
        else:
            yield f"{key} is {found}, and {was} was planned."


def _of_tables(planned: Mapping[str, PlannedTable], now: Mapping[str, PlannedTable]) -> Iterator[str]:
    yield from (f"Table {name} is captured, and was not planned." for name in sorted(now.keys() - planned.keys()))
    yield from (f"Table {name} was planned, and is not there." for name in sorted(planned.keys() - now.keys()))
    for name in sorted(planned.keys() & now.keys()):
        yield from _of_columns(f"Table {name}", planned[name].columns, now[name].columns)
        yield from _of_keys(f"Table {name}", planned[name].primary_key, now[name].primary_key)


def _of_targets(planned: Mapping[str, PlannedTarget], now: Mapping[str, PlannedTarget]) -> Iterator[str]:
    yield from (f"Target {name} would be made, and was not planned." for name in sorted(now.keys() - planned.keys()))
    yield from (f"Target {name} was planned, and nothing makes it." for name in sorted(planned.keys() - now.keys()))
    for name in sorted(planned.keys() & now.keys()):
        was, found = planned[name], now[name]
        reported = [
            *_of_columns(f"Target {name}", was.columns, found.columns),
            *_of_keys(f"Target {name}", was.primary_key, found.primary_key),
        ]
        sources = [tuple(source.table for source in one.sources) for one in (was, found)]
        if sources[0] != sources[1]:
            reported.append(f"Target {name} has rows of {_names(sources[1])}; planned were {_names(sources[0])}.")
        how = [tuple((source.transform, source.how) for source in one.sources) for one in (was, found)]
        if not reported and (was.write, was.ddl, how[0]) != (found.write, found.ddl, how[1]):
            reported.append(f"Target {name} would be made in another way than was planned.")
        yield from reported


def _of_columns(owner: str, planned: tuple[PlannedColumn, ...], now: tuple[PlannedColumn, ...]) -> Iterator[str]:
    before, after = ({column.name: column for column in columns} for columns in (planned, now))
    yield from (f"{owner} has a column {name} that was not planned." for name in after if name not in before)
    yield from (f"{owner} lacks the column {name} that was planned." for name in before if name not in after)
    for name in before:
        if name in after and before[name] != after[name]:
            yield f"{owner}: column {name} is {_column(after[name])}, and {_column(before[name])} was planned."
    same = before.keys() == after.keys()
    if same and list(before) != list(after):
        yield f"{owner} has its columns in another order than was planned."


def _of_keys(owner: str, planned: tuple[str, ...], now: tuple[str, ...]) -> Iterator[str]:
    if planned != now:
        yield f"{owner} has the key ({_names(now)}), and ({_names(planned)}) was planned."


def _location_changes(planned: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(planned.keys() & now.keys()):
        # Objects that the pipeline has written since the plan do not count as differences.
        if planned[name] != now[name] and not (planned[name] == NOTHING and now[name] == OWN):
            yield f"At the location of target {name} lies {now[name]}; planned was {planned[name]}."


def _of_state(planned: str, now: str) -> Iterator[str]:
    # A first run creates the state, which the plan did not have.
    if planned in (now, NO_STATE):
        return
    if now == NO_STATE:
        yield "There is no state, and the plan was made with one."
    else:
        yield "The state is another one than was planned with."


NO_STATE = "none"
NOTHING, OWN, OTHER = "nothing", "what this pipeline wrote", "something else"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _column(column: PlannedColumn) -> str:
    return f"{column.type}{'' if column.nullable else ' not null'}"
