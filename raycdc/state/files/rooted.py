"""The documents of a state on an object store: one root object lists them all.

Each change of the state replaces the root, on the condition that no other process has replaced it meanwhile.

```
state.json           the root: every document by name, with its text or the name of its object; a nonce
objects/G-NONCE      content of a document too large for the root, written once, by a driver of generation G
schemas/FP.json      schemas, by fingerprint: every writer writes the same, so they need no root
dead_letters/NAME    dead letters, for people: every writer writes the same
joined/NAME          segments with looked-up columns; a document says which of them are valid
generations/G.pulse.json   heartbeat of the driver of generation G, its only writer
```

A store has no rename, no lock, and no change of several objects in one step, so a driver that was suspended between
checking its generation and writing would write all the same. With a root, the check and the write are one step: the
generations are in the root, everything that a step reads comes from one root (`atomically`), and the root is replaced
only if it is still the same. A write of a stale driver is therefore an object that no root refers to; it is never read,
and the next driver deletes it (`sweep`). A reader always sees the root that was the newest one when it was read.

| step | requests |
|---|---|
| read a document | GET root; GET object if the content is not in the root |
| change documents | GET root; PUT object for each that is not in the root; PUT root |
| delete documents | the same, then DELETE of each object |

A `RootUpdate` is the root as it was read, with the changes to be made.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from raycdc.core.failpoints import reach
from raycdc.core.typed_codec import JsonObject, stored
from raycdc.errors import StateError
from raycdc.state import codec
from raycdc.storage.api import ObjectWritten, PreconditionFailed, Store, StoreError, Version

ROOT = "state.json"
ROOT_VERSION = 1
OBJECTS = "objects"
#: Documents up to this size are in the root, which then has some dozens of kilobytes.
INLINE_BYTES_MAX = 4096

_GENERATIONS = "generations/"


class ObjectMissingError(Exception):
    """An object to which this step's root refers was deleted, because another process has replaced the root."""


@dataclass(frozen=True, slots=True)
class InlineDocument(JsonObject):
    """A document whose text is in the root."""

    text: str


@dataclass(frozen=True, slots=True)
class ObjectDocument(JsonObject):
    """A document whose content is the object `name`."""

    name: str = field(metadata=stored("object"))


@dataclass(slots=True)
class RootUpdate:
    """One step of a thread: the root as it was read, and the changes for the next root.

    `pending` are documents that the step writes, and `left` are objects that the new root does not refer to.

    `before` is None if there is no root yet.
    """

    before: Version | None
    documents: dict[str, InlineDocument | ObjectDocument]
    pending: dict[str, bytes] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    changed: bool = False

    @property
    def names(self) -> set[str]:
        return {*self.documents, *self.pending}

    @property
    def generation(self) -> int:
        """Return the newest claimed generation.

        It is the writer's own, or that of the driver for which the writer works.
        """
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
        """Rename a document. Raises `KeyError` if there is no document `name`."""
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
        if isinstance(entry, ObjectDocument):
            self.left.append(entry.name)


class Roots:
    """Reads and replaces the root. Errors of the store are raised as `StateError`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def begun(self) -> RootUpdate:
        """Read the present root, and return a step that begins with it."""
        with as_state_errors():
            stored = self._store.read(ROOT)
        if stored is None:
            return RootUpdate(None, {})
        origin = f"{self._store.location}/{ROOT}"
        document = codec.upgrade(
            codec.decode(stored.data, origin=origin), origin=origin, current=ROOT_VERSION, upgrades={}
        )
        return RootUpdate(stored.version, {name: _entry(entry) for name, entry in document["documents"].items()})

    def content(self, step: RootUpdate, name: str) -> bytes | None:
        """Return the content of the document `name`; None if there is none. Raises `ObjectMissingError`."""
        if name in step.pending:
            return step.pending[name]
        match step.documents.get(name):
            case None:
                return None
            case InlineDocument(text):
                return text.encode()
            case ObjectDocument(key):
                with as_state_errors():
                    stored = self._store.read(key)
                if stored is None:
                    raise ObjectMissingError(key)
                return stored.data

    def swapped(self, step: RootUpdate) -> bool:
        """Replace the root by the result of the step. Returns False if another process has replaced it meanwhile."""
        with as_state_errors():
            for name, data in step.pending.items():
                step.leave(name)
                step.documents[name] = self._entry_of(data, step.generation)
            data = codec.encode(
                {
                    "version": ROOT_VERSION,
                    "nonce": uuid.uuid4().hex,
                    "documents": {name: entry.to_json() for name, entry in sorted(step.documents.items())},
                }
            )
            reach("before_root")
            if step.before is None:
                outcome = self._store.put_if_absent(ROOT, data)
            else:
                outcome = self._store.replace_if_match(ROOT, data, step.before)
        if isinstance(outcome, PreconditionFailed):
            # Our root may have been written, and replaced by another process since. Its objects may therefore be in
            # use; only the sweep of the next driver can tell.
            return False
        reach("after_root")
        # These objects are not used any more; the next sweep deletes any that remain.
        with suppress(StoreError):
            for name in step.left:
                self._store.delete(name)
        return True

    def sweep(self, generation: int) -> None:
        """Delete objects of drivers older than `generation` that the root does not refer to.

        Makes one LIST request. `generation` is the caller's own, which must be the newest. Older drivers can no longer
        add their objects to a root.
        """
        with as_state_errors():
            names = self._store.list(OBJECTS)
            named = {entry.name for entry in self.begun().documents.values() if isinstance(entry, ObjectDocument)}
            for name in names:
                if int(name[:10]) < generation and f"{OBJECTS}/{name}" not in named:
                    self._store.delete(f"{OBJECTS}/{name}")

    def _entry_of(self, data: bytes, generation: int) -> InlineDocument | ObjectDocument:
        if len(data) <= INLINE_BYTES_MAX:
            return InlineDocument(data.decode())
        name = f"{OBJECTS}/{generation:010d}-{uuid.uuid4().hex}"
        self._store.put(name, data)
        return ObjectDocument(name)


@contextmanager
def as_state_errors() -> Iterator[None]:
    """Raise errors of the store within the block as `StateError`."""
    try:
        yield
    except StoreError as error:
        raise StateError(str(error)) from error


def _entry(data: Any) -> InlineDocument | ObjectDocument:
    return InlineDocument.from_json(data) if "text" in data else ObjectDocument.from_json(data)


_Result = TypeVar("_Result")

#: The number of attempts to replace the root. Other processes (a coordinator, a driver, or a driver that takes over)
#: replace it at most a few times a second.
TRIES = 20

_SCHEMAS = "schemas"
#: Folders whose documents are separate objects, which the root does not list.
_PLAIN = (_SCHEMAS, "dead_letters", "joined")


class _Steps(threading.local):
    """The present step of each thread."""

    own: RootUpdate | None = None


class RootedFolder:
    """An object store as a `StateFolder`; see the module's docstring.

    Any thread may call it; each thread has its own steps.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._roots = Roots(store)
        self._steps = _Steps()

    def __repr__(self) -> str:
        return f"RootedFolder({self._store!r})"

    @property
    def where(self) -> str:
        return str(self._store.location)

    def origin(self, name: str) -> str:
        return f"{self.where}/{name}"

    def create(self, *folders: str) -> None:
        """Do nothing, because a store has no folders."""

    def require_usable(self) -> None:
        """Raise `StateError` if the store refuses a request, or accepts a write whose condition does not hold.

        Some servers and proxies ignore conditions, and then a stale driver could write the state.
        """
        name = f"probe-{uuid.uuid4().hex}"
        with as_state_errors():
            held = _keeps_conditions(self._store, name)
            self._store.delete(name)
        if not held:
            raise StateError(
                f"{self.where} does not honour conditional writes (If-None-Match, If-Match), so two drivers could both "
                "write the state there. Update that server, or choose another pipeline.state."
            )

    def has_remains(self) -> bool:
        with as_state_errors():
            return any(self._store.list(folder) for folder in (OBJECTS, _SCHEMAS))

    def read(self, name: str) -> bytes | None:
        if _is_plain(name):
            with as_state_errors():
                stored = self._store.read(name)
            return None if stored is None else stored.data
        return self.atomically(lambda: self._roots.content(self._step, name))

    def write(self, name: str, data: bytes) -> None:
        if _is_plain(name):
            with as_state_errors():
                self._store.put(name, data)
            return
        self.atomically(lambda: self._step.write(name, data))

    def write_all(self, documents: Mapping[str, bytes]) -> None:
        for name, data in documents.items():
            self.write(name, data)

    def create_once(self, name: str, data: bytes) -> None:
        if _is_plain(name):
            with as_state_errors():
                self._store.put_if_absent(name, data)
            return
        self.atomically(lambda: None if name in self._step.names else self._step.write(name, data))

    def list(self, folder: str) -> list[str]:
        if folder in _PLAIN:
            with as_state_errors():
                return self._store.list(folder)
        prefix = f"{folder}/"
        return self.atomically(
            lambda: sorted(name.removeprefix(prefix) for name in self._step.names if name.startswith(prefix))
        )

    def rename(self, name: str, to: str) -> None:
        def act() -> None:
            if name not in self._step.names:
                raise StateError(f"{self.origin(name)} cannot be renamed to {to}: it is not there.")
            self._step.rename(name, to)

        self.atomically(act)

    def sync(self, folder: str) -> None:
        """Do nothing, because a write is durable when the store has answered."""

    def delete(self, name: str) -> None:
        if _is_plain(name):
            with as_state_errors():
                self._store.delete(name)
            return
        self.atomically(lambda: self._step.delete(name))

    def atomically(self, act: Callable[[], _Result]) -> _Result:
        """See `StateFolder.atomically`. A call inside a step of this thread becomes a part of that step."""
        if self._steps.own is not None:
            return act()
        for _ in range(TRIES):
            self._steps.own = step = self._roots.begun()
            try:
                result = act()
            except ObjectMissingError as gone:
                if self._roots.begun().before == step.before:
                    raise StateError(
                        f"{self.origin(str(gone))} is missing although {ROOT} names it: the state is incomplete. "
                        f"Bring that object back (a bucket with versions has it), or {codec.NEW_STATE}."
                    ) from gone
                continue
            finally:
                self._steps.own = None
            if not step.changed or self._roots.swapped(step):
                return result
        raise StateError(
            f"{self.origin(ROOT)} was changed by others at each of {TRIES} tries. Is this pipeline.state used twice?"
        )

    def sweep(self, generation: int) -> None:
        """See `StateFolder.sweep`."""
        self._roots.sweep(generation)

    @property
    def _step(self) -> RootUpdate:
        assert self._steps.own is not None, "only inside atomically"
        return self._steps.own


def _keeps_conditions(store: Store, name: str) -> bool:
    """Return True if the store writes the new object `name` only if the condition holds."""
    first = store.put_if_absent(name, b"1")
    if not isinstance(first, ObjectWritten) or isinstance(store.put_if_absent(name, b"2"), ObjectWritten):
        return False
    second = store.replace_if_match(name, b"3", first.version)
    if not isinstance(second, ObjectWritten) or isinstance(
        store.replace_if_match(name, b"4", first.version), ObjectWritten
    ):
        return False
    kept = store.read(name)
    return kept is not None and kept.data == b"3"


def _is_plain(name: str) -> bool:
    """Return True if the object has the document's own name.

    A document has its own object name if its name determines its content, or if it has only one writer.
    """
    return name.partition("/")[0] in _PLAIN or name.endswith(".pulse.json")
