"""All documents of a state by their names, as they are at one moment, whether it is in a folder or on a store.

Names are those of a state in a folder; on an object store two kinds have other ones (`on_store`). Signs of life are
left out, because they say nothing but that somebody is there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from raycdc.checkpoint.identity import NAME, no_state
from raycdc.checkpoint.kinds import DOCUMENTS
from raycdc.checkpoint.place import StatePlace
from raycdc.checkpoint.state_folder import StateFolder

#: Folders of documents; all else below a state is of rows, or of processes.
COMMANDS = "commands"
_FOLDERS = ("generations", "epochs", "bases", "commits", "schemas", "documents", COMMANDS)
_ROOTS = (NAME, "gen", *sorted(DOCUMENTS))

#: In a folder, rows that are left out wait hidden among those that people find; in a store they are documents.
LETTERS = "dead_letters"
LOOKED_UP = "looked_up"
#: What these are called on a store, where they have no file beside a document.
_STORED = {LETTERS: "letters", LOOKED_UP: "joined"}


def document_names(place: StatePlace, folder: StateFolder) -> list[str]:
    """The names of all documents; in a folder, files may come and go meanwhile."""
    names = [name for name in _ROOTS if folder.read(name) is not None]
    names += [f"{name}/{file}" for name in _FOLDERS for file in folder.list(name) if not _is_pulse(file)]
    names += [f"{LOOKED_UP}/{file}" for file in folder.list(LOOKED_UP) if file.endswith(".json")]
    if place.on_store:
        return names + [f"{LETTERS}/{file}" for file in folder.list(_STORED[LETTERS])]
    letters = Path(place.work) / LETTERS
    waiting = [entry.name for entry in os.scandir(letters)] if letters.is_dir() else []
    return names + [f"{LETTERS}/{file}" for file in sorted(waiting) if file.startswith(".") and _is_whole(file)]


def documents_of(place: StatePlace, folder: StateFolder) -> dict[str, bytes]:
    """Every document with its content: on a store as of one moment, in a folder one after the other."""

    def act() -> dict[str, bytes]:
        documents = {name: folder.read(stored_name(place, name)) for name in document_names(place, folder)}
        return {name: data for name, data in documents.items() if data is not None}

    return folder.atomically(act)


def put_documents(
    place: StatePlace, folder: StateFolder, documents: Mapping[str, bytes], *, keeps: frozenset[str] = frozenset()
) -> None:
    """Make `documents` all that there are, but for those of the names that it `keeps`."""
    folders = {name.partition("/")[0] for name in documents if "/" in name}
    folder.create(*sorted({"epochs", "commits", "schemas", "spool"} | folders))

    def act() -> None:
        for name in document_names(place, folder):
            if name not in documents and name not in keeps:
                folder.delete(stored_name(place, name))
        for name, data in documents.items():
            if name not in keeps:
                folder.write(stored_name(place, name), data)

    folder.atomically(act)


def stored_name(place: StatePlace, name: str) -> str:
    """The name by which the storage of `place` knows a document."""
    folder, _, file = name.partition("/")
    if place.on_store and folder == LETTERS:
        return f"{_STORED[LETTERS]}/{file}"
    return name


def require_readable(place: StatePlace) -> StateFolder:
    """The documents of a state that is there. `StateError` where there is none, whatever bars it."""
    folder = place.open()
    if folder.read(NAME) is None and not folder.has_remains():
        raise no_state(folder)
    return folder


def _is_pulse(file: str) -> bool:
    return file.endswith(".pulse.json")


def _is_whole(file: str) -> bool:
    return not file.endswith((".tmp", ".part"))
