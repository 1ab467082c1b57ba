"""The folder of segments that were made of others, by expressions or without bad rows. On this machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from raycdc.checkpoint.manifest import Segment


class MadeSegments:
    """Who makes segments in `folder` forgets them there, too. Callable from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def forget(self, segments: Iterable[Segment]) -> None:
        """Delete those of the folder, which nobody needs any more."""
        for segment in segments:
            if Path(segment.path).parent == self._folder:
                Path(segment.path).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete what earlier runs left. Only while nothing is staged."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)
