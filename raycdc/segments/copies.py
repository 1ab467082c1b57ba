"""Copies of segments on an object store (``pipeline.spool``), which replace the spool of a node that is lost.

Segments are normally read on the node that wrote them. A reader stores the copy before it reports the segment. A driver
that recovers fetches the copies of segments that no node has any more. Each segment that a manifest names therefore
survives the loss of any node.

If a copy is missing or damaged, too, the segment is lost, and recovery reads its rows again. Copies only save time, so
a driver may delete them without a check that no newer driver has replaced it.
"""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from raycdc.errors import SpoolError
from raycdc.segments.access import SegmentAccess
from raycdc.state.files.folder import sync_folder
from raycdc.state.manifests.manifest import STATE_NODE, Manifest, Segment
from raycdc.storage.api import Stored, StoreError
from raycdc.storage.object_store import ObjectStore
from raycdc.storage.settings import StorageSettings
from raycdc.storage.url import ObjectLocation


@dataclass(frozen=True, slots=True)
class SegmentCopies:
    """The copies of one state's segments, below `location`. Picklable. Methods block on the network."""

    location: ObjectLocation
    settings: StorageSettings

    def put(self, path: Path) -> None:
        """Store a copy of a finished segment's file. Raises `SpoolError` if the store refuses it."""
        try:
            _store(self).put_file(path.name, path)
        except StoreError as cause:
            raise SpoolError(f"{cause} It is the copy of a segment (pipeline.spool).") from cause

    def restored(self, manifest: Manifest, spool: Path, access: SegmentAccess) -> Manifest:
        """Return `manifest` with lost segments restored from their copies.

        Segments that no node has any more are written to `spool`, the spool of the state's node. A segment without a
        usable copy stays as it is.
        """
        return replace(manifest, segments=tuple(self._restored(manifest.segments, spool, access)))

    def forget(self, segments: Iterable[Segment]) -> None:
        """Delete the copies of unused segments. A failure leaves them for `sweep`."""
        names = sorted({segment.name for segment in segments})
        if names:
            with suppress(StoreError):
                _store(self).delete_all(names)

    def sweep(self, needed: Collection[str]) -> None:
        """Delete all copies except those of the `needed` names.

        Called before any reader starts. A failure leaves them for the next start.
        """
        with suppress(StoreError):
            store = _store(self)
            store.delete_all([name for name in store.list("") if name not in needed])

    def _restored(self, segments: Iterable[Segment], spool: Path, access: SegmentAccess) -> Iterator[Segment]:
        flights = access.flights
        for segment in segments:
            here = replace(segment, node=STATE_NODE, flight="", path=str(spool / segment.name))
            if segment.node != STATE_NODE and segment.node in flights:
                yield segment
            elif _is_there(here) or self._fetched(here):
                yield here
            else:
                yield segment

    def _fetched(self, segment: Segment) -> bool:
        """Write the file of `segment` from its copy. Return False if there is no usable copy."""
        copy: Stored | None = None
        with suppress(StoreError):  # Without a copy the rows are read again.
            copy = _store(self).read(segment.name)
        if copy is None or len(copy.data) != segment.bytes or zlib.crc32(copy.data) != segment.crc32:
            return False
        path = Path(segment.path)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(copy.data)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
            sync_folder(path.parent)
        except OSError as cause:
            raise SpoolError(f"{path} cannot be written: {cause.strerror or cause}. Make room on that disk.") from cause
        return True


@cache
def _store(copies: SegmentCopies) -> ObjectStore:
    """Return one client for each process."""
    return ObjectStore(copies.location, copies.settings)


def _is_there(segment: Segment) -> bool:
    try:
        return Path(segment.path).stat().st_size == segment.bytes
    except OSError:
        return False
