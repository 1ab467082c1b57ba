"""``raycdc state``: examines, copies and moves the state of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from raycdc.cli.inspect.inspect_checkpoint import state_location_of
from raycdc.cli.screens.formatting import counted, size_text
from raycdc.config.fields import section_of
from raycdc.config.load import read_toml, state_sections
from raycdc.core.startup_tuning import without_pandas
from raycdc.core.terminal_text import printable_json, printable_text
from raycdc.driver.state_admin.copying import Copied, back_up, move
from raycdc.driver.state_admin.examination import Examination, Finding, StartEffect, examine
from raycdc.errors import ConfigError, ExitCode
from raycdc.state.location import StateLocation, state_location
from raycdc.storage.url import FolderLocation, parse_location


def check_state(config: Path, *, as_json: bool) -> int:
    """Print the content of the state, any damage, and remedies. Returns exit code 6 if the damage matters."""
    without_pandas()
    state = examine(state_location_of(config))
    if as_json:
        print(printable_json(_document(state)))
    else:
        for line in _lines(state):
            print(printable_text(line, indent="  "))
    return int(ExitCode.DONE if state.is_whole else ExitCode.STATE)


def back_up_state(config: Path, to: str) -> int:
    """Copy the state to an empty location, and print the possible uses of the copy."""
    without_pandas()
    target = _target(config, to)
    made = back_up(state_location_of(config), target)
    if made.epoch is None or made.committed_ms is None:
        since = "before its first commit"
    else:
        when = datetime.fromtimestamp(made.committed_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
        since = f"as of epoch {made.epoch}, committed at {when}"
    print(printable_text(f"Copied the state of pipeline {made.pipeline} to {made.location}, {since}."))
    print(f"  {_size(made.copied)}")
    if made.copied.missing:
        missing = counted(len(made.copied.missing), "segment")
        print(f"  {missing} of uncommitted epochs could not be copied: a start reads their rows again.")
    if target.on_store:
        print("  Segments of uncommitted epochs stay on this machine: a start reads their rows again.")
    print(_USE_OF_A_COPY)
    return int(ExitCode.DONE)


_USE_OF_A_COPY = """\
It is a copy of the state, not of the targets. A start from it goes on exactly
where the targets are as they were then. Where they went on since, it is
refused (exit code 5) and changes nothing: both come back together, or neither.
To use it, stop the pipeline, and put the copy at the location of the state or
name it as pipeline.state."""


def move_state(config: Path, to: str) -> int:
    """Move the state to an empty location, bar the old one from further use, and print what to configure."""
    without_pandas()
    source, target = state_location_of(config), _target(config, to)
    moved = move(source, target)
    print(printable_text(f"Moved the state of pipeline {moved.pipeline} from {moved.before} to {moved.location}."))
    print(
        f"  {_size(moved.copied)}"
        if moved.copied is not None
        else "  It had been copied before; the move is complete now."
    )
    print(printable_text(f'Set pipeline.state = "{moved.location}" in {config}.'))
    if target.on_store:
        print(
            printable_text(f'Work files stay on this machine in {target.work} (pipeline.work_dir = "{target.work}").')
        )
    elif source.on_store:
        print("Remove pipeline.work_dir: a state in a folder has its work files inside.")
    left = f"No run can use {moved.before} any more; after a successful run it can be removed"
    # An older version had its work folder inside the state's folder.
    kept = f", but for {target.work}" if target.work.is_relative_to(moved.before) else ""
    print(printable_text(f"{left}{kept}."))
    return int(ExitCode.DONE)


def _target(config: Path, to: str) -> StateLocation:
    """Return the state location that a command names, with the configured access.

    Raises `ConfigError` if it is invalid.
    """
    try:
        location = parse_location(to)
    except ValueError as cause:
        raise ConfigError(f"The state cannot be there: {cause}.") from cause
    if isinstance(location, FolderLocation):
        return StateLocation.of(location.path)
    if not config.is_file():
        raise ConfigError(f"{to} is on an object store: name the configuration file, which has its access settings.")
    document = read_toml(config)
    # The configuration as it will be after the move: pipeline.work_dir may be set already, and only a state on an
    # object store may have it.
    pipeline = {**section_of(document, "pipeline"), "state": str(location)}
    return state_location(*state_sections({**document, "pipeline": pipeline}))


def _size(copied: Copied) -> str:
    documents = f"{counted(copied.documents, 'document')} ({size_text(copied.document_bytes)})"
    return f"{documents}, {counted(copied.files, 'file')} of rows ({size_text(copied.file_bytes)})"


def _document(state: Examination) -> str:
    identity = state.identity
    document = {
        "state": state.location,
        "whole": state.is_whole,
        "pipeline": None if identity is None else identity.pipeline,
        "checkpoint": None if identity is None else identity.checkpoint,
        "generation": state.generation,
        "driver": state.driver or None,
        "documents": state.documents,
        "document_bytes": state.document_bytes,
        "older_documents": state.older,
        "sealed_epochs": state.epochs.sealed,
        "committed_epoch": state.epochs.committed,
        "waiting_epochs": state.epochs.waiting,
        "waiting_segments": state.epochs.segments,
        "waiting_bytes": state.epochs.segment_bytes,
        "findings": [{**asdict(finding), "effect": finding.effect.name.lower()} for finding in state.findings],
    }
    return json.dumps(document, ensure_ascii=False)


def _lines(state: Examination) -> Iterator[str]:
    identity = state.identity
    name = f"pipeline {identity.pipeline}" if identity is not None else "a pipeline"
    verdict = "whole" if state.is_whole else "NOT WHOLE"
    yield f"The state of {name} is {verdict}: {state.location}"
    if identity is not None and not identity.barred:
        yield f"  checkpoint  {identity.checkpoint}, generation {state.generation}"
        yield f"  in use      {f'by {state.driver}' if state.driver else 'by nobody'}"
        yield f"  epochs      {_epochs(state)}"
    older = f", {state.older} of them written by an older version" if state.older else ""
    yield f"  documents   {state.documents:,} ({size_text(state.document_bytes)}){older}"
    for finding in state.findings:
        yield from _finding(finding)


def _epochs(state: Examination) -> str:
    epochs = state.epochs
    if not epochs.sealed:
        return "none sealed yet"
    committed = "none" if epochs.committed is None else f"{epochs.committed}"
    if not epochs.waiting:
        return f"{committed} committed, none waiting"
    waiting = (
        f"{len(epochs.waiting)} waiting ({counted(epochs.segments, 'segment')}, {size_text(epochs.segment_bytes)})"
    )
    return f"{committed} committed, {waiting}"


def _finding(finding: Finding) -> Iterator[str]:
    word = {StartEffect.STOPS: "DAMAGED", StartEffect.COSTS: "LOST", StartEffect.UNUSED: "damaged"}[finding.effect]
    yield f"  {word}  {finding.name}: {finding.what}; {finding.effect}."
    if finding.fix:
        yield f"    {finding.fix}"
