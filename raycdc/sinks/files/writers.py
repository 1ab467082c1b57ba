"""The pipelines that write to a folder of files: each leaves a note of itself, and one that replaces others bars them.

```
_raycdc/writer-1a2b3c4d.json    a pipeline began here; the name has a hash of its identity, as those of its files
_raycdc/barred-1a2b3c4d.json    another one replaced its files, and nothing of it is to be visible any more
```

Whoever is barred while it makes a file visible finds the note right after that, and takes the file back. Should it die
in between, the next commit of the pipeline that replaced it does so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from raycdc.checkpoint.folder import LocalFolder
from raycdc.errors import TargetGoneError

_VERSION = 1
_FILE = re.compile(r"epoch-\d{10}\.\d-([0-9a-f]{8})[.-]")
_WRITER = re.compile(r"writer-([0-9a-f]{8})\.json")
_BARRED = re.compile(r"barred-([0-9a-f]{8})\.json")


class Writers:
    """The notes in the folder of records `folder`, as the pipeline `app_id` reads and writes them."""

    def __init__(self, folder: Path, app_id: str) -> None:
        self._folder = folder
        self._app_id = app_id
        #: The pipeline in names of files.
        self.identity = hashlib.sha256(app_id.encode()).hexdigest()[:8]

    def enter(self) -> None:
        """Note that this pipeline begins here."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write(f"writer-{self.identity}.json")

    def has_entered(self) -> bool:
        """Whether the folder is one where this pipeline began."""
        return (self._folder / f"writer-{self.identity}.json").exists()

    def require_not_barred(self) -> None:
        """`SinkError` when another pipeline replaced what this one had written."""
        if (self._folder / f"barred-{self.identity}.json").exists():
            raise TargetGoneError(
                f"{self._folder.parent} was taken over by another pipeline, which replaced the files of this one "
                '(pipeline.on_existing = "replace"). Nothing more was written. Let only one of the two write there: '
                "choose another sink.path, or delete the folder, and read the source table anew."
            )

    def bar_others(self, visible: Iterable[str]) -> None:
        """Nothing of another pipeline that ever began here is to be visible from now on. `visible` are all files."""
        names = [*visible, *self._names()]
        found = (_FILE.match(name) or _WRITER.fullmatch(name) for name in names)
        for identity in {match[1] for match in found if match} - {self.identity}:
            self._write(f"barred-{identity}.json")

    def of_barred(self, visible: Iterable[str]) -> list[str]:
        """The files, of those `visible`, that a pipeline which is barred did not live to take back."""
        barred = {match[1] for name in self._names() if (match := _BARRED.fullmatch(name))}
        return [name for name in visible if (match := _FILE.match(name)) and match[1] in barred]

    def _names(self) -> list[str]:
        return [path.name for path in self._folder.glob("*.json")]

    def _write(self, name: str) -> None:
        note = {"version": _VERSION, "pipeline": self._app_id}
        LocalFolder(self._folder).write(name, json.dumps(note).encode())
