"""``meta.json``: the identity of a state, and the mark that bars a location from use.

The document is written once, and replaced only when the state is moved or copied. A location is *barred* if its state
was moved away, or if a copy into it is not complete.

| version | content | a process that tries to use the state |
|---|---|---|
| 1 | the pipeline's name and the identity of its commits | may |
| 2, with `moved_to` | the state is at another location now | is refused; the error names that location |
| 2, with `copied_from` | a copy of a state is being written | is refused; the error says that the copy is incomplete |

A raycdc that knows only version 1 refuses version 2 by its number. A standby may have read the document before the
location was barred. Therefore a claim of a generation reads it again, before and after the claim (`require_usable`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from raycdc.core.typed_codec import LEFT_OUT, JsonObject, stored
from raycdc.errors import StateError
from raycdc.state import codec
from raycdc.state.files.state_folder import StateFolder

NAME = "meta.json"
BARRED_VERSION = 2


@dataclass(frozen=True, slots=True)
class StateIdentity(JsonObject):
    """The identity of a state: the name of its pipeline, and `checkpoint`, which every commit to a sink contains.

    If `moved_to` is set, the location is barred because the state was moved there. If `copied_from` is set, the
    location is barred because the copy from there is not complete. Both are folders or URLs. `at_ms` is the time at
    which the location was barred. `copy` identifies the copying process.
    """

    checkpoint: str
    pipeline: str
    moved_to: str = field(default="", metadata=LEFT_OUT)
    copied_from: str = field(default="", metadata=LEFT_OUT)
    at_ms: int = field(default=0, metadata=LEFT_OUT)
    copy: str = field(default="", metadata=stored(left_out=True, before="at_ms"))

    written_first = ("version",)

    @property
    def barred(self) -> bool:
        return bool(self.moved_to or self.copied_from)

    @property
    def version(self) -> int:
        return BARRED_VERSION if self.barred else codec.DOCUMENT_VERSION

    def encoded(self) -> bytes:
        return codec.encode(self.to_json())

    def bar(self, where: str) -> str:
        """Return why the location `where` must not be used, and what to do."""
        since = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
        if self.moved_to:
            return (
                f"The state of pipeline {self.pipeline!r} was moved from {where} to {self.moved_to} at {since}. Set "
                f'pipeline.state = "{self.moved_to}"; from {where} nobody may go on, because it would write everything '
                f"again that the pipeline has written since."
            )
        return (
            f"{where} has only a part of the state in {self.copied_from}, because a copy that was begun at {since} did "
            f'not end. With pipeline.state = "{self.copied_from}", repeat the command that began it (raycdc state move '
            f"or backup), or go on there."
        )


def read_identity(folder: StateFolder) -> StateIdentity | None:
    """Return the content of ``meta.json``, even if it bars the location; None if there is no such document."""
    document = codec.read(folder, NAME)
    if document is None:
        return None
    origin = folder.origin(NAME)
    written: Any = document
    if document.get("version") != BARRED_VERSION:
        written = codec.upgrade(
            document, origin=origin, current=codec.DOCUMENT_VERSION, upgrades=codec.DOCUMENT_UPGRADES
        )
    with codec.malformed_as_damage(origin):
        return StateIdentity.from_json(written)


def require_usable(folder: StateFolder) -> StateIdentity | None:
    """Return the identity, or None, like `read_identity`. Raises `StateError` if the state is barred."""
    identity = read_identity(folder)
    if identity is not None and identity.barred:
        raise StateError(identity.bar(folder.where))
    return identity


def identity_of(folder: StateFolder, pipeline: str, *, create: bool) -> StateIdentity:
    """Return the identity of the state in a folder. With `create`, it is made if there is no state yet.

    Raises `StateError` if the state is barred.
    """
    return require_usable(folder) or _created(folder, pipeline, create=create)


def require_identity(folder: StateFolder) -> None:
    """Raise `StateError` if the folder lacks ``meta.json`` but had a state.

    Another process's first start may create it meanwhile.
    """
    if folder.has_remains() and folder.read(NAME) is None:
        raise StateError(
            f"{folder.where} has epochs but no meta.json, so its identity is lost. Restore meta.json, or "
            f"{codec.NEW_STATE}."
        )


def no_state(folder: StateFolder) -> StateError:
    """Return the error for a folder without the expected state."""
    return StateError(
        f"There is no raycdc state in {folder.where}. Either the pipeline has not run yet (raycdc run), or "
        "pipeline.state names another location."
    )


def _created(folder: StateFolder, pipeline: str, *, create: bool) -> StateIdentity:
    if not create:
        raise no_state(folder)
    require_identity(folder)
    folder.require_usable()
    folder.create("epochs", "commits", "schemas", "spool")
    folder.create_once(NAME, StateIdentity(uuid.uuid4().hex, pipeline).encoded())
    # Two first starts may reach this line before the lease stops one of them. Both must use the same identity.
    created = read_identity(folder)
    assert created is not None
    return created
