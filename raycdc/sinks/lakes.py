"""The place of a lake, as a sink of files holds it: a folder of this machine or a URL, and how tasks may reach that."""

from __future__ import annotations

import tempfile
from pathlib import Path

from raycdc.checkpoint.folder import private_file
from raycdc.stores.files import Access, StorePath, any_path, as_text, has_secrets
from raycdc.stores.settings import LIKE_ANYBODY, StorageSettings


class Lake:
    """See the module's docstring. `root` may be joined to names; in tasks' arguments it says no secrets once they are
    kept.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._settings = LIKE_ANYBODY
        self._secrets: Path | None = None
        self.root = any_path(path, Access(LIKE_ANYBODY))

    def reach(self, settings: StorageSettings) -> None:
        """From here on a store is reached so."""
        self._settings = settings
        self.root = any_path(self._path, Access(settings))

    def keep_secrets(self, folder: str) -> None:
        """Write keys of a store into a file of this user's in `folder` (empty: the system's), for tasks to read."""
        if isinstance(self.root, StorePath) and has_secrets(self._settings):
            told = as_text(self._settings)
            self._secrets = private_file(Path(folder or tempfile.gettempdir()), told)
            self.root = any_path(self._path, Access(self._settings, str(self._secrets), written=told))

    def close(self) -> None:
        """Delete that file."""
        if self._secrets is not None:
            self._secrets.unlink(missing_ok=True)
            self._secrets = None
