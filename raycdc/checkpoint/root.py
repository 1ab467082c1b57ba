"""The root of a state on an object store: which documents there are, and how one root follows another.

Called by `raycdc.checkpoint.rooted` alone. A `Step` is the root as it was read, and what is to become of it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from raycdc.checkpoint import codec
from raycdc.errors import StateError
from raycdc.failpoints import reach
from raycdc.stores.api import Store, StoreError, Taken, Version

ROOT = "state.json"
ROOT_VERSION = 1
OBJECTS = "objects"
#: Documents up to this size are in the root, which then has some dozens of kilobytes.
INLINE_BYTES_MAX = 4096

_GENERATIONS = "generations/"


class _EntryJson(TypedDict):
    """What a root says of a document: its text, or the name of the object that has it."""

    text: NotRequired[str]
    object: NotRequired[str]


class GoneError(Exception):
    """An object that the step's root names is gone: the root is not the newest any more."""


@dataclass(frozen=True, slots=True)
class Text:
    """A document that is in the root."""

    text: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A document that is the object `name`."""

    name: str


@dataclass(slots=True)
class Step:
    """What a thread does to the state between one root and the next: `pending` are documents that it has written, and
    `left` objects that the root names no more afterwards. `before` is None where there is no root yet.
    """

    before: Version | None
    documents: dict[str, Text | Elsewhere]
    pending: dict[str, bytes] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    changed: bool = False

    @property
    def names(self) -> set[str]:
        return {*self.documents, *self.pending}

    @property
    def generation(self) -> int:
        """The newest that was claimed: the writer's own, or somebody's under whose eyes it writes."""
        claims = [name.removeprefix(_GENERATIONS)[:10] for name in self.names if name.startswith(_GENERATIONS)]
        return max((int(number) for number in claims if number.isdigit()), default=0)

    def write(self, name: str, data: bytes) -> None:
        self.changed = True
        self.pending[name] = data

    def delete(self, name: str) -> None:
        if name in self.names:
            self.changed = True
            self.pending.pop(name, None)
            self.leave(name)

    def rename(self, name: str, to: str) -> None:
        """`KeyError` where there is no such document."""
        if name in self.pending:
            self.write(to, self.pending.pop(name))
            self.leave(name)
        else:
            entry = self.documents.pop(name)
            self.delete(to)
            self.documents[to] = entry
        self.changed = True

    def leave(self, name: str) -> None:
        entry = self.documents.pop(name, None)
        if isinstance(entry, Elsewhere):
            self.left.append(entry.name)


class Roots:
    """Reads roots, and puts one in the place of another. Errors of the store are `StateError`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def begun(self) -> Step:
        """A step on the root as it is now."""
        with as_state_errors():
            stored = self._store.read(ROOT)
        if stored is None:
            return Step(None, {})
        origin = f"{self._store.place}/{ROOT}"
        document = codec.upgrade(
            codec.decode(stored.data, origin=origin), origin=origin, current=ROOT_VERSION, upgrades={}
        )
        return Step(stored.version, {name: _entry(entry) for name, entry in document["documents"].items()})

    def content(self, step: Step, name: str) -> bytes | None:
        """What is in the document `name`; None where there is none. Raises `GoneError`."""
        if name in step.pending:
            return step.pending[name]
        match step.documents.get(name):
            case None:
                return None
            case Text(text):
                return text.encode()
            case Elsewhere(key):
                with as_state_errors():
                    stored = self._store.read(key)
                if stored is None:
                    raise GoneError(key)
                return stored.data

    def placed(self, step: Step) -> bool:
        """Replace the root by what the step made of it; False where another root is there."""
        with as_state_errors():
            for name, data in step.pending.items():
                step.leave(name)
                step.documents[name] = self._entry_of(data, step.generation)
            data = codec.encode(
                {
                    "version": ROOT_VERSION,
                    "nonce": uuid.uuid4().hex,
                    "documents": {name: _to_json(entry) for name, entry in sorted(step.documents.items())},
                }
            )
            reach("before_root")
            if step.before is None:
                outcome = self._store.put_if_absent(ROOT, data)
            else:
                outcome = self._store.replace_if_match(ROOT, data, step.before)
        if isinstance(outcome, Taken):
            # Ours may have been the root for a moment, so only the next driver's sweep knows what nobody names.
            return False
        reach("after_root")
        # They are nothing to anybody: the next sweep has what is left of them.
        with suppress(StoreError):
            for name in step.left:
                self._store.delete(name)
        return True

    def sweep(self, generation: int) -> None:
        """Delete objects that no root names and none ever will: what drivers older than `generation` (the newest one,
        which asks) wrote and could not put into the root. One LIST.
        """
        with as_state_errors():
            names = self._store.list(OBJECTS)
            named = {entry.name for entry in self.begun().documents.values() if isinstance(entry, Elsewhere)}
            for name in names:
                if int(name[:10]) < generation and f"{OBJECTS}/{name}" not in named:
                    self._store.delete(f"{OBJECTS}/{name}")

    def _entry_of(self, data: bytes, generation: int) -> Text | Elsewhere:
        if len(data) <= INLINE_BYTES_MAX:
            return Text(data.decode())
        name = f"{OBJECTS}/{generation:010d}-{uuid.uuid4().hex}"
        self._store.put(name, data)
        return Elsewhere(name)


@contextmanager
def as_state_errors() -> Iterator[None]:
    """Errors of the store are the state's."""
    try:
        yield
    except StoreError as error:
        raise StateError(str(error)) from error


def _entry(data: _EntryJson) -> Text | Elsewhere:
    return Text(data["text"]) if "text" in data else Elsewhere(data["object"])


def _to_json(entry: Text | Elsewhere) -> _EntryJson:
    match entry:
        case Text(text):
            return {"text": text}
        case Elsewhere(name):
            return {"object": name}
