"""Manifests and commit records as bytes: versioned JSON with a checksum over its content.

Called by `raycdc.state` only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

from raycdc.core.typed_codec import CodecError
from raycdc.errors import StateError
from raycdc.state.files.state_folder import StateFolder
from raycdc.state.manifests.manifest import MANIFEST_VERSION, STATE_NODE, Manifest

Document = dict[str, Any]
#: A function that turns a document into one of the next version.
Upgrade = Callable[[Document], Document]


def _name_segments_by_node(document: Document) -> Document:
    """Replace the absolute paths of version 1, all of which are in the state's own spool."""
    segments = [
        {k: v for k, v in segment.items() if k != "flight"}
        | {"node": STATE_NODE, "path": PurePath(segment["path"]).name}
        for segment in document["segments"]
    ]
    return {**document, "version": 2, "segments": segments}


def _number_changes(document: Document) -> Document:
    """Add the fields for parked and resnapshotted tables, which version 2 did not have."""
    return {
        **document,
        "version": 3,
        "from_splits": _with_parked(document["from_splits"]),
        "to_splits": _with_parked(document["to_splits"]),
    }


def _with_parked(splits: Document) -> Document:
    stream = splits.get("stream")
    if stream is None:
        return splits
    tables = {name: {**table, "incarnation": 0} for name, table in stream["tables"].items()}
    return {**splits, "stream": {**stream, "changes": 0, "parked": {}, "tables": tables}}


#: Upgrades by the version from which they start. Each returns the document in the next version. Every increase of
#: `MANIFEST_VERSION` adds an upgrade here and a golden file to the tests.
UPGRADES: dict[int, Upgrade] = {1: _name_segments_by_node, 2: _number_changes}


#: The version of documents other than manifests and commit records, and their upgrades.
DOCUMENT_VERSION = 1
DOCUMENT_UPGRADES: dict[int, Upgrade] = {}
#: The version of documents with parts that older versions of raycdc would ignore, which makes older versions refuse the
#: document. A document without such parts keeps `DOCUMENT_VERSION`, which they can read.
EXTENDED_VERSION = 2
EXTENDED_UPGRADES: dict[int, Upgrade] = {**DOCUMENT_UPGRADES, DOCUMENT_VERSION: lambda plain: plain}

#: The number of an object's entries that one call converts to the canonical form. A call for each entry would take
#: several times as long.
_ENTRIES_AT_ONCE = 256

#: Parts of the message about a damaged document.
_DAMAGED = " cannot be used: "
#: The advice to begin without the state, as the end of a sentence. Targets that the lost state wrote to belong to
#: nobody for the new one, which refuses them unless ``pipeline.on_existing`` says what happens to them.
NEW_STATE = 'begin with another pipeline.state and pipeline.on_existing = "replace", which takes a new snapshot'
#: The advice about a state that is damaged or incomplete. Targets that are ahead of an older copy would be refused.
RESTORE = f"Restore the state from a copy that is as new as the targets, or {NEW_STATE}."

_encode_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def encode(document: Mapping[str, object]) -> bytes:
    """Return `document` as UTF-8 JSON with the key ``sha``, the SHA-256 of its canonical form without that key.

    Invariant: `decode` of this and every later version reads the result. A document that is damaged, or written by a
    newer raycdc, leads to a `StateError` that names its file. It is never taken for a missing document.
    """
    return encode_signed(document)[0]


def encode_signed(document: Mapping[str, object]) -> tuple[bytes, str]:
    """Return the result of `encode`, and the ``sha``."""
    sha = _digest(document)
    return (json.dumps({**document, "sha": sha}, ensure_ascii=False) + "\n").encode(), sha


def decode(data: bytes, *, origin: str) -> Document:
    """Return the inverse of `encode`, without ``sha``.

    Raises `StateError` naming `origin` when the content is damaged.
    """
    return decode_signed(data, origin=origin)[0]


def decode_signed(data: bytes, *, origin: str) -> tuple[Document, str]:
    """Return the result of `decode` and the document's ``sha``, by which other documents refer to it."""
    try:
        document = json.loads(data)
    except ValueError as cause:
        raise damaged(origin, f"it is not JSON ({cause})") from cause
    if not isinstance(document, dict):
        raise damaged(origin, "it is not a JSON object")
    digest = document.pop("sha", None)
    if digest != _digest(document):
        raise damaged(origin, "its checksum does not match its content")
    return document, str(digest)


def manifest_of(written: Any, *, origin: str) -> Manifest:
    """Return the manifest in the document `written`, which must be whole (no difference).

    Raises `StateError` that names `origin`.
    """
    document = whole_manifest(written, origin=origin)
    with malformed_as_damage(origin):
        return Manifest.from_json(document)


def whole_manifest(written: Any, *, origin: str) -> Any:
    """Return the document of a whole manifest, upgraded to the present version.

    Raises `StateError` that names `origin`.
    """
    return upgrade(written, origin=origin, current=MANIFEST_VERSION, upgrades=UPGRADES)


@contextmanager
def malformed_as_damage(origin: str) -> Iterator[None]:
    """Turn errors from reading a document's fields into a `StateError` that names `origin`."""
    try:
        yield
    except CodecError as cause:
        raise damaged(origin, f"a field is missing or malformed ({cause})") from cause
    except (KeyError, TypeError, ValueError) as cause:
        raise damaged(origin, f"a field is missing or malformed ({cause!r})") from cause


def read(folder: StateFolder, name: str) -> Document | None:
    """Return the document `name` of a state's folder, in its own version; None if there is none."""
    data = folder.read(name)
    return None if data is None else decode(data, origin=folder.origin(name))


def read_current(folder: StateFolder, name: str) -> Document | None:
    """Return the document `name`, upgraded to the current version. Not for manifests and commit records."""
    document = read(folder, name)
    if document is None:
        return None
    origin = folder.origin(name)
    return upgrade(document, origin=origin, current=EXTENDED_VERSION, upgrades=EXTENDED_UPGRADES)


def upgrade(document: Document, *, origin: str, current: int, upgrades: Mapping[int, Upgrade]) -> Document:
    """Return `document` in the version `current`. Raises `StateError` if it is newer or has no known version."""
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise damaged(origin, f"its version is {version!r}")
    if version > current:
        raise StateError(
            f"{origin} was written by a newer raycdc (format version {version}, this one reads up to {current}). "
            f"Upgrade raycdc, or {NEW_STATE}."
        )
    while version < current:
        document = upgrades[version](document)
        version += 1
    return document


def _digest(document: Mapping[str, object]) -> str:
    hashed = hashlib.sha256()
    for text in _canonical(document, levels=2):
        hashed.update(text.encode())
    return hashed.hexdigest()


def _canonical(value: object, *, levels: int) -> Iterator[str]:
    """Yield the canonical form in pieces, because an object with 100,000 tables would be a large text."""
    if not levels or not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        yield _encode_canonical(value)
        return
    keys = sorted(value)
    yield "{"
    if levels == 1:
        for first in range(0, len(keys), _ENTRIES_AT_ONCE):
            piece = _encode_canonical({key: value[key] for key in keys[first : first + _ENTRIES_AT_ONCE]})
            yield f"{',' if first else ''}{piece[1:-1]}"
    else:
        for number, key in enumerate(keys):
            yield f"{',' if number else ''}{_encode_canonical(key)}:"
            yield from _canonical(value[key], levels=levels - 1)
    yield "}"


def damaged(origin: str, why: str) -> StateError:
    """Return the error for an existing document that cannot be used."""
    return StateError(f"{origin}{_DAMAGED}{why}. {RESTORE}")


def damage_of(error: StateError) -> tuple[str, str] | None:
    """Return the origin and the reason of an error that `damaged` made; None for any other error."""
    origin, found, why = str(error).removesuffix(f". {RESTORE}").partition(_DAMAGED)
    return (origin, why) if found else None
