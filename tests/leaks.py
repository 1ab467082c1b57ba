"""Finds values that no file may show, however they are written: as text of any encoding, packed, or as numbers."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import re
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import msgpack

from raycdc.state.documents import kind_of
from tests.support.jobs import Job

_BASE64 = re.compile(rb"[A-Za-z0-9+/]{24,}={0,2}")
_TEXTS_IN_TEXTS = 4


def leaks(folders: Iterable[Path], values: Iterable[str | int]) -> list[str]:
    """``FILE: VALUE as ENCODING`` for each value that a file of the folders (or a file itself) shows."""
    forms = [(value, name, form) for value in values for name, form in _forms(value)]
    found = []
    for folder in folders:
        for path in _files(folder):
            try:
                contents = list(_readings(path.read_bytes()))
            except FileNotFoundError:
                continue
            found += [
                f"{path}: {value!r} as {name}"
                for value, name, form in forms
                if any(form in content for content in contents)
            ]
    return found


def _files(place: Path) -> list[Path]:
    """The files in a folder, or the one that it is. Processes that have been killed may still take theirs away."""

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    found = [Path(folder, name) for folder, _, names in os.walk(place, onerror=failed) for name in names]
    return sorted(path for path in [*found, place] if path.is_file())


def _readings(content: bytes, depth: int = 0) -> Iterator[bytes]:
    """The content, and what is packed in it."""
    yield content
    if depth == _TEXTS_IN_TEXTS:
        return
    if content[:1] == b"\x78":
        with contextlib.suppress(zlib.error):
            yield from _readings(zlib.decompress(content), depth + 1)
    for found in _BASE64.findall(content):
        try:
            yield from _readings(base64.b64decode(found[: len(found) // 4 * 4]), depth + 1)
        except binascii.Error:
            continue


def _forms(value: str | int) -> Iterator[tuple[str, bytes]]:
    text = str(value)
    plain = text.encode()
    for name in ("utf-8", "utf-16-le", "utf-16-be"):
        yield name, text.encode(name)
    for lower in (plain.hex(), plain.hex().upper()):
        yield "hex", lower.encode()
    for shift in range(3):
        # All but the first and last characters, which depend on what is beside the value.
        whole = base64.b64encode(b"\0" * shift + plain)
        yield "base64", whole[4 if shift else 0 : len(whole) // 4 * 4 - 4]
    if not text.isascii():
        yield "JSON", json.dumps(text)[1:-1].encode()
    if isinstance(value, int):
        yield "msgpack", msgpack.packb(value)
        for name, form in (("int32", "<i"), ("int64", "<q"), ("int32 BE", ">i"), ("double", "<d")):
            yield name, struct.pack(form, value)


def nothing_shows(
    job: Job, values: Sequence[str | int], *more: Path, said: Iterable[object] = (), kinds: Collection[str] = ()
) -> None:
    """No file of the job's state and target, nothing that its runs wrote to a terminal or into their logs, none of
    `more`, and nothing of `said` shows one of the values. Every file of the state is of a kind that is known, and there
    is one of each of `kinds` (`tests/unit/test_leaks.py` looks for all kinds in these).
    """
    told = job.folder / "said.jsonl"
    told.write_text("\n".join(json.dumps(event, ensure_ascii=False) for run in job.runs for event in run.events))
    (job.folder / "said.txt").write_text("\n".join(map(str, said)))
    everything = [job.state, job.lake, told, job.folder / "said.txt", *job.folder.glob("run-*.log"), *more]
    found = leaks(everything, values)
    assert found == [], "\n".join(found)
    names = [path.relative_to(job.state).as_posix() for path in job.state.rglob("*") if path.is_file()]
    there = {name: kind_of(name) for name in names}
    unknown = [name for name, kind in there.items() if not kind]
    assert unknown == [], f"of no kind in raycdc.state.documents: {unknown}"
    missing = set(kinds) - set(there.values())
    assert missing == set(), f"there is no file of these kinds: {missing}"
