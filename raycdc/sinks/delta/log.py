"""Looking at a Delta table's log beside delta-rs: is what was committed on the disk, and did anybody take rows away?

Called by `DeltaTarget` whenever it has refreshed, on its thread; reads the commits that are new since the last time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable

from raycdc.checkpoint.disk import sync_folder

#: How many commits a new watch looks back for the pipeline's last one, one number after the other; None is all.
_LOOKS: tuple[int | None, ...] = (10, 1_000, None)


class LogWatch:
    """One per handle of a table. `app_id` is the pipeline's, as its commits carry it."""

    def __init__(self, path: Path, app_id: str) -> None:
        self._path = path
        self._app_id = app_id
        self._seen: int | None = None

    def look(self, table: DeltaTable) -> bool:
        """Sync the commits since the last look, or, at the first, those since the pipeline's last one.

        Returns whether a RESTORE is among them.
        """
        version = table.version()
        if version == self._seen:
            return False
        commits = self._since_ours(table) if self._seen is None else table.history(version - self._seen)
        for commit in commits:
            self._sync(commit["version"])
        self._seen = version
        return any(commit.get("operation") == "RESTORE" for commit in commits)

    def _since_ours(self, table: DeltaTable) -> Sequence[Mapping[str, Any]]:
        """The newest commits, back to the pipeline's last one."""
        commits: list[dict[str, Any]] = []
        for count in _LOOKS:
            commits = table.history(count)
            for number, commit in enumerate(commits):
                if self._is_ours(commit):
                    return commits[: number + 1]
            if count is None or len(commits) < count:
                break
        return commits

    def _is_ours(self, commit: Mapping[str, Any]) -> bool:
        try:
            note = json.loads(commit.get("userMetadata") or "null")
        except ValueError:
            return False
        return isinstance(note, dict) and note.get("pipeline") == self._app_id

    def _sync(self, version: int) -> None:
        """Have a commit and the files it added on the disk, whoever wrote them."""
        folder = self._path / "_delta_log"
        log = folder / f"{version:020d}.json"
        try:
            # Texts in it may have line separators of Unicode, at which `splitlines` would cut, too.
            lines = log.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return  # Cleaned up: it is part of a checkpoint.
        added = [json.loads(line)["add"]["path"] for line in lines if line.startswith('{"add"')]
        files = [self._path / unquote(name) for name in added]
        for path in [log, *files]:
            with suppress(FileNotFoundError), path.open("rb") as file:  # Vacuumed meanwhile.
                os.fsync(file.fileno())
        # Folders of partitions may be new, and so may the folders they are in.
        folders = {parent for path in files for parent in path.parents if parent.is_relative_to(self._path)}
        for parent in {folder, self._path, *folders}:
            with suppress(FileNotFoundError):
                sync_folder(parent)
