"""The driver's documents other than epochs: requests, column names, counts of bad rows, and others.

Each has a module that knows its content; `KINDS` below lists all kinds of files. A folder cannot check the newest
generation and write a document in one step, so a driver that was suspended between the two may write after its
successor has written. Therefore each driver writes files of its own generation only. At its start it takes over the
existing documents: it records them with their content in one file. Documents that a stale driver writes later are not
read.

| files of a document | the valid one |
|---|---|
| a file of a generation that is not older than the last take-over | the file of the newest generation |
| only older files | the document in the last take-over, or none |
| no take-over, in a state of an older version | the file without a generation |

```
documents/NAME.GENERATION            written by the driver of that generation alone
generations/GENERATION.documents.json   its take-over: every document that existed, by name
```

`KINDS` has every kind of file that a state's folder may have. `CheckpointStore` refuses to write a document of another
name. The search for masked values (``tests/leaks.py``) fails for any other file, and for a kind that no test has
examined.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from raycdc.state import codec
from raycdc.state.drivers.generations import Generations, OwnGeneration
from raycdc.state.files.state_folder import StateFolder


class StateFileKind(NamedTuple):
    """Files whose name below the state's folder fully matches `pattern`.

    `rows`: the file may have values of rows, or quote them; otherwise it has only names, numbers and configuration.
    """

    pattern: str
    rows: bool = True


#: The driver's documents (`raycdc.state.documents`), as they are named in a state of any version.
DOCUMENTS = frozenset(
    {"requests.json", "configured.json", "names.json", "changelog.json", "bad_rows.json", "retyped.json"}
    | {"datasource.json"}
)


def _document(name: str, *, rows: bool = True) -> StateFileKind:
    """Return the kind of a driver's document, as named by an older version and by this one."""
    assert name in DOCUMENTS
    return StateFileKind(rf"({re.escape(name)}|documents/{re.escape(name)}\.\d{{10}})", rows)


#: All kinds of files, by a name for people.
KINDS: Mapping[str, StateFileKind] = MappingProxyType(
    {
        "meta": StateFileKind(r"meta\.json", rows=False),
        "lease": StateFileKind(r"lease", rows=False),
        "generation": StateFileKind(r"gen|generations/\d{10}(\.pulse|\.epochs)?\.json"),
        "documents taken over": StateFileKind(r"generations/\d{10}\.documents\.json"),
        "manifests": StateFileKind(r"epochs/\d{10}\.json(\.dropped)?|bases/\d{10}\.jsonl"),
        "commits": StateFileKind(r"commits/\d{10}\.json(\.\d{10})?|bases/record-\d{10}-\d{10}-[0-9a-f]{64}\.json"),
        "schemas": StateFileKind(r"schemas/[0-9a-f]+\.json"),
        "requests": _document("requests.json"),
        "configured": _document("configured.json"),
        "column names": _document("names.json"),
        "changelog": _document("changelog.json", rows=False),
        "bad rows": _document("bad_rows.json"),
        "retyped targets": _document("retyped.json", rows=False),
        "commands": StateFileKind(r"commands/[0-9a-z]{8,64}\.json", rows=False),
        "dead letters": StateFileKind(r"dead_letters/.+\.jsonl(\..+)?"),
        "segments": StateFileKind(r"spool/.+"),
        "derived segments": StateFileKind(r"derived/.+"),
        "looked up": StateFileKind(r"looked_up/.+"),
        "known rows": StateFileKind(r"known/.+"),
        "exact changes": StateFileKind(r"exact/.+"),
        "spark": StateFileKind(r"spark/.+"),
        "notifications sent": StateFileKind(r"notified\.json", rows=False),
        "private": StateFileKind(r"private/.+", rows=False),
        "data source": _document("datasource.json"),
    }
)
#: The file of an interrupted write. Its name contains the final name of the document.
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp")


def kind_of(name: str) -> str:
    """Return the kind of a file by its name below the state's folder; empty if there is none."""
    folder, _, last = name.rpartition("/")
    unfinished = _UNFINISHED.fullmatch(last)
    if unfinished is not None:
        name = f"{folder}/{unfinished[1]}" if folder else unfinished[1]
    return next((kind for kind, one in KINDS.items() if re.fullmatch(one.pattern, name)), "")


T = TypeVar("T")

#: Requests about tables (`raycdc.source.tables.parking.Requests`), which the next coordinator carries out.
REQUESTS = "requests.json"

_FOLDER = "documents"
_OF_GENERATION = re.compile(r"(.+)\.(\d{10})$")
_TAKEN_OVER = re.compile(r"(\d{10})\.documents\.json$")

#: A generation, with the documents that its driver took over.
_TakenOver = tuple[int, Mapping[str, codec.Document]]


class DriverDocuments:
    """The driver's documents; see the module's docstring. Written under the lease only.

    Every read goes to storage, except for a generation's take-over, which never changes.
    """

    def __init__(self, folder: StateFolder, generations: Generations) -> None:
        #: The folder with all documents of the state, for modules that have their own documents.
        self.folder = folder
        self._generations = generations
        self._taken_over: _TakenOver | None = None
        #: A thread of the driver holds this lock from reading a document until the changed document is written.
        self.changing = threading.RLock()

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the document `name` as last written; None if it was never written."""
        return self.folder.atomically(lambda: self._read(name))

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Replace the document `name` durably. Raises `FencedError` if another driver took over.

        A document with parts that older versions of raycdc must not ignore has its own ``version``
        (`codec.EXTENDED_VERSION`).
        """
        assert name in DOCUMENTS, f"{name} is none of the documents in raycdc.state.documents"
        data = codec.encode({"version": codec.DOCUMENT_VERSION, **document})
        while True:
            generation = self.as_driver(name, lambda: self._write(name, data))
            # If the driver raised its own generation during the write, the new take-over lacks the document, so the
            # write is repeated.
            if self._generations.own() in (generation, None):
                return

    def take_over(self, own: OwnGeneration) -> None:
        """Take over the present documents for the new driver of generation `own`.

        Documents that older drivers write later are not valid.
        """
        self.folder.atomically(lambda: self._take_over(own))

    def as_driver(self, what: str, act: Callable[[], T]) -> T:
        """Return the result of `act`. The check of the generation and `act` are one step if the storage supports that.

        Raises `FencedError` if another driver took over; its message says that `what` was not done.
        """

        def own() -> T:
            self._generations.require_own(what)
            return act()

        return self.folder.atomically(own)

    def _write(self, name: str, data: bytes) -> int:
        """Write the document, and return the generation for which it was written.

        A process without a generation, such as a command, is the only user of the state.
        """
        own = self._generations.own()
        generation = self._generations.newest() if own is None else own
        self.folder.create(_FOLDER)
        self.folder.write(_own_name(name, generation), data)
        return generation

    def _read(self, name: str) -> codec.Document | None:
        """Return the valid document in the current version. Errors name its file."""
        while True:
            taken_over = self._newest_taken_over()
            first = -1 if taken_over is None else taken_over[0]
            newer = [generation for there, generation in self._files() if there == name and generation >= first]
            if not newer:
                return codec.read_current(self.folder, name) if taken_over is None else taken_over[1].get(name)
            document = codec.read_current(self.folder, _own_name(name, max(newer)))
            if document is not None:
                return document
            # Another driver has just taken the document over.

    def _take_over(self, own: OwnGeneration) -> None:
        first = self._newest_taken_over() is None
        documents = {name: document for name in sorted(DOCUMENTS) if (document := self._read(name)) is not None}
        data = codec.encode({"version": codec.DOCUMENT_VERSION, "documents": documents})
        self.folder.write(_taken_over_name(own), data)
        for name, generation in self._files():
            if generation < own:
                self.folder.delete(_own_name(name, generation))
        for generation in self._takers():
            if generation < own:
                self.folder.delete(_taken_over_name(generation))
        for name in documents if first else ():
            self.folder.delete(name)

    def _newest_taken_over(self) -> _TakenOver | None:
        while generations := self._takers():
            newest = max(generations)
            if self._taken_over is not None and self._taken_over[0] == newest:
                return self._taken_over
            name = _taken_over_name(newest)
            document = codec.read_current(self.folder, name)
            if document is not None:
                current = {inner: self._current(name, one) for inner, one in document["documents"].items()}
                self._taken_over = newest, current
                return self._taken_over
            # A newer document has just replaced it.
        return None

    def _current(self, file: str, document: codec.Document) -> codec.Document:
        origin, version = self.folder.origin(file), codec.EXTENDED_VERSION
        return codec.upgrade(document, origin=origin, current=version, upgrades=codec.EXTENDED_UPGRADES)

    def _files(self) -> list[tuple[str, int]]:
        matches = (_OF_GENERATION.match(name) for name in self.folder.list(_FOLDER))
        return [(found[1], int(found[2])) for found in matches if found]

    def _takers(self) -> list[int]:
        return [int(found[1]) for name in self.folder.list("generations") if (found := _TAKEN_OVER.match(name))]


def _own_name(name: str, generation: int) -> str:
    return f"{_FOLDER}/{name}.{generation:010d}"


def _taken_over_name(generation: int) -> str:
    return f"generations/{generation:010d}.documents.json"
