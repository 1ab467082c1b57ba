"""The verbs of `raycdc.sinks.steps` for a folder of files: a file becomes visible, and its epoch held, by one ``link``.

`raycdc.sinks.files.sink` shows the folder. A link fails where the name exists: whoever comes second changes nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from raycdc.checkpoint.disk import sync_folder
from raycdc.errors import FencedError, TargetGoneError, TargetTakenError
from raycdc.failpoints import reach
from raycdc.model import TableId
from raycdc.sinks.api import STEP_LAST, STEP_TOMBSTONE, CommitVector, SinkContext, TableWork
from raycdc.sinks.files.notes import Note, Notes
from raycdc.sinks.files.writers import Writers
from raycdc.sinks.steps import Missing, Ours, Stamp, Standing, Taken, Target
from raycdc.sinks.targets import absent
from raycdc.sinks.tasks import DataFile, LinesFile
from raycdc.stores.files import FileName

#: A staged part of a file.
Part = DataFile | LinesFile

_NAME = re.compile(r"epoch-(\d{10})\.(\d)-([0-9a-f]{8})\.")

#: Makes one durable file of parts (none: an empty one of the work's schema); they may be consumed.
Join = Callable[[Sequence[Path], Path, TableWork], None]


class FilesTarget(Target):
    """A target of files, wherever they are: a part of an epoch is staged as one file."""

    #: People may take files away once they have read them.
    remembers: ClassVar[bool] = False

    def taken(self) -> TargetTakenError:
        return TargetTakenError(
            f"{self.place} has files that this pipeline did not write. Set pipeline.on_existing to "
            f'"merge" to write beside them or "replace" to delete them, or choose another sink.path.'
        )

    def disappeared(self) -> TargetGoneError:
        return TargetGoneError(
            f"{self.place} lost what this run had noted there: somebody deleted it, or made it anew. Nothing more was "
            "written. Delete what is there, and read the source table anew."
        )

    @abstractmethod
    def part(self, work: TableWork, index: int) -> FileName:
        """The file of the `index`-th staged part of `work`."""

    @abstractmethod
    def unstage(self, epoch: int) -> None:
        """Remove what was staged for `epoch`."""


class FileSteps(FilesTarget):
    """The folder of one target. `join` makes a file of an epoch; `accepted` are the targets whose folders this run was
    allowed to write to, whatever lies in them; the sink keeps it.
    """

    def __init__(
        self, name: TableId, folder: Path, context: SinkContext, *, kind: str, join: Join, accepted: set[TableId]
    ) -> None:
        super().__init__(name, str(folder))
        self.folder = folder
        self._context = context
        self._kind = kind
        self._join = join
        self._accepted = accepted
        self._writers = Writers(folder / "_raycdc", context.app_id)
        self._notes = Notes(folder / "_raycdc", self._writers.identity)

    def standing(self, epoch: int | None = None) -> Standing:
        self._writers.require_not_barred()
        if self.name in self._accepted and not self._writers.has_entered():
            if self._visible():
                raise self.disappeared()
            return Missing()
        vector = self._vector()
        if vector is None and self.name not in self._accepted and self._foreign():
            return Taken()
        return Ours(vector)

    def create(self, work: TableWork, stamp: Stamp) -> None:
        self.evolve(work, stamp)

    def replace(self, work: TableWork, stamp: Stamp) -> None:
        # First, so that no file of theirs comes after those that are deleted; who makes one visible looks once more.
        self._writers.bar_others(self._visible())
        for name in self._foreign():
            (self.folder / name).unlink()
        self.evolve(work, stamp)

    def adopt(self, work: TableWork, stamp: Stamp) -> None:
        self.evolve(work, stamp)

    def evolve(self, work: TableWork, stamp: Stamp) -> None:
        """Files carry their own schema: all they need is a folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._accept()

    def write(self, work: TableWork, staged: Sequence[Part], step: int, stamp: Stamp) -> None:
        parts = [Path(str(part.path)) for part in staged]
        for name in self._writers.of_barred(self._visible()):
            (self.folder / name).unlink(missing_ok=True)
        self._accept()
        self._publish(parts, work, stamp, rows=sum(part.rows for part in staged))

    def vanished(self, staged: Sequence[Part], step: int) -> Sequence[str]:
        return absent(part.path for part in staged)

    def bar(self, work: TableWork, stamp: Stamp) -> None:
        self._publish([], work, stamp, rows=0)
        self.unstage(work.epoch)

    def part(self, work: TableWork, index: int) -> str:
        """Path of the `index`-th staged part of `work`; names of generations differ, so that two never mix. It ends as
        no file of rows does: readers such as DuckDB and polars take ``**/*.parquet`` by its word.
        """
        return str(self._stage(work.epoch) / f"part-{work.generation}-{index}.staged")

    def unstage(self, epoch: int) -> None:
        """Remove what was staged for `epoch`."""
        shutil.rmtree(self._stage(epoch), ignore_errors=True)

    def _publish(self, parts: Sequence[Path], work: TableWork, stamp: Stamp, *, rows: int) -> None:
        stage = self._stage(work.epoch)
        stage.mkdir(parents=True, exist_ok=True)
        file = stage / f"whole.{uuid.uuid4().hex}"
        self._join(parts, file, work)
        barred = stamp.vector.step == STEP_TOMBSTONE
        note = Note(
            self._context.app_id, work.epoch, work.generation, rows, barred, file.stat().st_ino, dict(stamp.positions)
        )
        self._notes.write(self._stem(work.epoch), note)
        reach("in_commit")
        visible = self.folder / f"{self._stem(work.epoch)}.{self._kind}"
        try:
            os.link(file, visible)
        except FileExistsError as cause:
            raise committed_by_another(work) from cause
        try:
            self._writers.require_not_barred()
        except TargetGoneError:
            visible.unlink(missing_ok=True)
            raise
        sync_folder(self.folder)
        file.unlink()
        # Whoever loads the file may take it away from here on.
        self._notes.write_newest(note)

    def _accept(self) -> None:
        """Note that this run writes here from now on, whatever lies in the folder."""
        if self.name not in self._accepted:
            self._writers.enter()
            self._accepted.add(self.name)

    def _vector(self) -> CommitVector | None:
        """The vector that the names of visible files and the notes give."""
        vectors = [vector for vector in map(self._vector_of, self._visible()) if vector is not None]
        newest, last = max(vectors, default=None), self._notes.newest()
        if last is not None and (newest is None or last.epoch >= newest.epoch):
            step = STEP_TOMBSTONE if last.tombstone else STEP_LAST
            return CommitVector(last.epoch, step, last.generation)
        if newest is None:
            return None
        stem = self._stem(newest.epoch)
        note = self._notes.of(stem, self.folder / f"{stem}.{self._kind}")
        if note is None:
            return newest
        return CommitVector(newest.epoch, STEP_TOMBSTONE if note.tombstone else newest.step, note.generation)

    def _stem(self, epoch: int) -> str:
        return f"epoch-{epoch:010d}.{STEP_LAST}-{self._writers.identity}"

    def _stage(self, epoch: int) -> Path:
        return self.folder / "_raycdc" / "stage" / f"{epoch:010d}-{self._writers.identity}"

    def _visible(self) -> list[str]:
        try:
            return [path.name for path in self.folder.iterdir() if not path.name.startswith(("_", "."))]
        except FileNotFoundError:
            return []

    def _vector_of(self, name: str) -> CommitVector | None:
        match = _NAME.match(name)
        return CommitVector(int(match[1]), int(match[2])) if match and match[3] == self._writers.identity else None

    def _foreign(self) -> list[str]:
        return [name for name in self._visible() if self._vector_of(name) is None]


def committed_by_another(work: TableWork) -> FencedError:
    """Somebody else's record, or file, of the epoch was there first."""
    return FencedError(f"Epoch {work.epoch} of {work.target} was committed by another driver meanwhile.")
