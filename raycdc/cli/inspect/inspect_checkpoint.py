"""``raycdc inspect checkpoint``: prints a pipeline's state as JSON. It changes neither the state nor its pipeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from raycdc.cli.screens.formatting import PositionText, position_text_of
from raycdc.config.load import read_toml, state_sections
from raycdc.core.terminal_text import printable, printable_json
from raycdc.core.typed_codec import JsonObject
from raycdc.errors import ExitCode, StateError
from raycdc.state.commits.commit_record import CommitRecord
from raycdc.state.location import StateLocation, state_location
from raycdc.state.manifests.manifest import STREAM_SPLIT_ID, Manifest
from raycdc.state.store import CheckpointStore
from raycdc.storage.url import is_url


def print_checkpoint(path: Path, *, one_line: bool, summary: bool) -> int:
    """Print the state at `path`, a state folder or a configuration file.

    Raises `StateError` if there is no state to read.
    """
    store = CheckpointStore(state_location_of(path), create=False)
    document = checkpoint_document(store)
    if summary:
        print(_summary(document, position_text_of(store)))
    else:
        print(printable_json(json.dumps(document.to_json(), ensure_ascii=False, indent=None if one_line else 2)))
    return int(ExitCode.DONE)


def state_location_of(path: Path) -> StateLocation:
    """Return the location `path` itself, or the location of the state that a configuration file names.

    The rest of the file need not be valid, except ``[storage]`` if the state is on an object store.
    """
    if not path.is_file() and (path.suffix != ".toml" or path.exists()):
        return StateLocation.of(path)
    document = read_toml(path)
    pipeline = document.get("pipeline", {})
    if not isinstance(pipeline, dict) or not (pipeline.get("state") or pipeline.get("name")):
        raise StateError(f"{path} names no state: pipeline.state and pipeline.name are missing")
    state = str(pipeline.get("state") or f"./state/{pipeline['name']}")
    if "${" not in state and not is_url(state):
        return StateLocation.of(state)
    return state_location(*state_sections(document))


@dataclass(frozen=True, slots=True)
class CheckpointDocument(JsonObject):
    """The JSON document that the command prints. Its parts have the form of the state's documents."""

    state: str
    pipeline: str
    checkpoint: str
    generation: int
    sealed_epochs: Sequence[int]
    committed_epoch: int | None
    commit: CommitRecord | None
    manifest: Manifest | None


def checkpoint_document(store: CheckpointStore) -> CheckpointDocument:
    """Return the pipeline's identity, the newest sealed epoch in full, and the recorded content of the sink."""
    commit = store.last_commit()
    return CheckpointDocument(
        str(store.location),
        store.pipeline,
        store.checkpoint,
        store.generations.newest(),
        store.sealed_epochs(),
        None if commit is None else commit.epoch,
        commit,
        store.last_manifest(),
    )


def _summary(document: CheckpointDocument, position_text: PositionText) -> str:
    manifest = document.manifest
    lines = [
        f"pipeline    {document.pipeline}",
        f"checkpoint  {document.checkpoint}, generation {document.generation}",
        f"state       {document.state}",
    ]
    if manifest is None:
        return "\n".join(map(printable, [*lines, "epochs      none sealed yet"]))
    committed = document.committed_epoch
    sealed = datetime.fromtimestamp(manifest.created_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    lines.append(
        f"epochs      {manifest.epoch} sealed at {sealed}, {'none' if committed is None else committed} committed"
    )
    for split, state in manifest.to_splits.items():
        if state.position is not None:
            lines.append(f"{split:<11} {position_text(state.position)}")
    tables = manifest.enumerator.to_json().get("tables", {})
    for name, table in sorted(tables.items()):
        reading = table.get("planner") is not None or table.get("finished", 0) < table.get("planned", 0)
        phase = f"snapshot, {table.get('finished', 0)} of {table.get('planned', 0)} planned chunks"
        lines.append(f"table       {name}: {phase if reading else 'stream'}")
    stream = manifest.to_splits.get(STREAM_SPLIT_ID)
    parked = {} if stream is None else stream.to_json().get("parked", {})
    for name, entry in sorted(parked.items()):
        waits = ", begins again" if entry["again"] else ""
        lines.append(f"table       {name}: {entry['phase']}{waits}: {entry['reason']}")
    return "\n".join(map(printable, lines))
