"""The pipelines that write files to an object store, as `raycdc.sinks.files.writers` has them in a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable

from raycdc.errors import TargetGoneError
from raycdc.sinks.files.store_notes import StoreNotes
from raycdc.stores.files import StorePath, names_in

_FILE = re.compile(r"epoch-\d{10}\.\d-([0-9a-f]{8})\.")
_WRITER = re.compile(r"writer-([0-9a-f]{8})\.json")
_BARRED = re.compile(r"barred-([0-9a-f]{8})\.json")


class StoreWriters:
    """Those of the target `folder`, as the pipeline `app_id` reads and writes their `notes`."""

    def __init__(self, folder: StorePath, notes: StoreNotes, app_id: str) -> None:
        self._folder = folder
        self._notes = notes
        self._app_id = app_id

    def enter(self) -> None:
        """Note that this pipeline begins here."""
        self._notes.mark(f"writer-{self._notes.identity}.json", self._app_id)

    def has_entered(self) -> bool:
        """Whether this pipeline began here."""
        return self._notes.has(f"writer-{self._notes.identity}.json")

    def require_not_barred(self) -> None:
        """`SinkError` when another pipeline replaced what this one had written."""
        if self._notes.has(f"barred-{self._notes.identity}.json"):
            raise TargetGoneError(
                f"{self._folder} was taken over by another pipeline, which replaced the files of this one "
                '(pipeline.on_existing = "replace"). Nothing more was written. Let only one of the two write there: '
                "choose another sink.path, or delete what is there, and read the source table anew."
            )

    def bar_others(self) -> None:
        """Nothing of another pipeline that ever began here is to be visible from now on."""
        ever = _identity_of(_FILE, self.visible()) | _identity_of(_WRITER, self._notes.names("writer-"))
        for identity in ever - {self._notes.identity}:
            self._notes.mark(f"barred-{identity}.json", self._app_id)

    def foreign(self) -> list[str]:
        """The visible files that this pipeline did not write."""
        return [name for name in self.visible() if _identity_of(_FILE, [name]) != {self._notes.identity}]

    def of_barred(self) -> list[str]:
        """The visible files that a pipeline which is barred did not live to take back."""
        barred = _identity_of(_BARRED, self._notes.names("barred-"))
        return [name for name in self.visible() if _identity_of(_FILE, [name]) & barred] if barred else []

    def visible(self) -> list[str]:
        """The files that readers see."""
        return [name for name in names_in(self._folder) if not name.startswith(("_", "."))]


def _identity_of(pattern: re.Pattern[str], names: Iterable[str]) -> set[str]:
    return {match[1] for match in map(pattern.match, names) if match}
