"""``raycdc state``: the state of a pipeline examined, copied, and moved to another place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from raycdc.cli.inspect_checkpoint import place_of_state
from raycdc.cli.words import counted, size_text
from raycdc.errors import ExitCode
from raycdc.lean import without_pandas
from raycdc.printable import printable_json, printable_text
from raycdc.upkeep.examination import Effect, Examination, Finding, examine


def check_state(config: Path, *, as_json: bool) -> int:
    """Print what the state has, what of it is not as it was written, and the way out. 6 where that matters."""
    without_pandas()
    found = examine(place_of_state(config))
    if as_json:
        print(printable_json(_document(found)))
    else:
        for line in _lines(found):
            print(printable_text(line, indent="  "))
    return int(ExitCode.DONE if found.is_whole else ExitCode.STATE)


def _document(found: Examination) -> str:
    identity = found.identity
    document = {
        "state": found.place,
        "whole": found.is_whole,
        "pipeline": None if identity is None else identity.pipeline,
        "checkpoint": None if identity is None else identity.checkpoint,
        "generation": found.generation,
        "driver": found.driver or None,
        "documents": found.documents,
        "document_bytes": found.document_bytes,
        "older_documents": found.older,
        "sealed_epochs": found.epochs.sealed,
        "committed_epoch": found.epochs.committed,
        "waiting_epochs": found.epochs.waiting,
        "waiting_segments": found.epochs.segments,
        "waiting_bytes": found.epochs.segment_bytes,
        "findings": [{**asdict(finding), "effect": finding.effect.name.lower()} for finding in found.findings],
    }
    return json.dumps(document, ensure_ascii=False)


def _lines(found: Examination) -> Iterator[str]:
    identity = found.identity
    name = f"pipeline {identity.pipeline}" if identity is not None else "a pipeline"
    verdict = "whole" if found.is_whole else "NOT WHOLE"
    yield f"The state of {name} is {verdict}: {found.place}"
    if identity is not None and not identity.barred:
        yield f"  checkpoint  {identity.checkpoint}, generation {found.generation}"
        yield f"  in use      {f'by {found.driver}' if found.driver else 'by nobody'}"
        yield f"  epochs      {_epochs(found)}"
    older = f", {found.older} of them written by an older version" if found.older else ""
    yield f"  documents   {found.documents:,} ({size_text(found.document_bytes)}){older}"
    for finding in found.findings:
        yield from _finding(finding)


def _epochs(found: Examination) -> str:
    epochs = found.epochs
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
    word = {Effect.STOPS: "DAMAGED", Effect.COSTS: "LOST", Effect.UNUSED: "damaged"}[finding.effect]
    yield f"  {word}  {finding.name}: {finding.what}; {finding.effect}."
    if finding.fix:
        yield f"    {finding.fix}"
