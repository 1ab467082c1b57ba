"""The operations of a `raycdc.sinks.steps.Target` on a folder of files. One hard link makes a file visible and thereby
commits its epoch.

`raycdc.sinks.files.sink` describes the folder. A link fails if the name exists, so a second commit changes nothing.

`FileNotes` has notes about the files of one pipeline in a folder. They are written before and after a file becomes
visible. The visible files show which epochs the folder holds, unless a loader removes files after it has loaded them.
The newest file that was ever visible therefore has a note of its own, which stays.

`Writers` has the notes about the pipelines that write to the folder. Each pipeline writes a note about itself. A
pipeline that replaces the files of the others *bars* them: it writes a note for each of them, and they must make no
more files visible.

```
_raycdc/writer-1a2b3c4d.json    a pipeline writes here; the name has a hash of its identity, as its files do
_raycdc/barred-1a2b3c4d.json    another pipeline replaced its files, and it must make no more files visible
```

A pipeline may be barred while it makes a file visible. It reads the notes right afterwards, finds that it is barred,
and removes the file. If it dies before that, the next commit of the other pipeline removes the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from raycdc.core.failpoints import reach
from raycdc.core.typed_codec import LEFT_OUT, Json, JsonObject
from raycdc.errors import FencedError, SinkError, StateError, TargetDroppedError, TargetExistsError
from raycdc.model import TableId
from raycdc.sinks.api import STEP_LAST, STEP_TOMBSTONE, CommitVector, SinkContext, TableCommit
from raycdc.sinks.steps import CommitMetadata, ForeignTarget, MissingTarget, OwnTarget, Target, TargetState
from raycdc.sinks.targets import absent
from raycdc.sinks.tasks import DataFile, LinesFile
from raycdc.state.files.folder import LocalFolder, sync_folder
from raycdc.storage.files import FileName


@dataclass(frozen=True, slots=True)
class FileNote(JsonObject):
    """A note about a file that is about to become visible: its pipeline, epoch, generation and number of rows. A
    `tombstone` has no rows; it prevents that its epoch is committed later. `inode` identifies the file. `positions` are
    the source's positions, for people to see.
    """

    pipeline: str
    epoch: int
    generation: int
    rows: int
    tombstone: bool
    inode: int
    positions: Mapping[str, Json]
    digest: int = field(default=0, metadata=LEFT_OUT)


def _encoded(note: FileNote) -> bytes:
    return json.dumps(note.to_json()).encode()


def _write_note(folder: Path, name: str, data: bytes) -> None:
    """Write a note durably. Raises `SinkError` if that fails: the note is on the target's disk, not on the state's, so
    a full disk is waited for like one that takes no more rows.
    """
    try:
        LocalFolder(folder).write(name, data)
    except StateError as error:
        raise SinkError(str(error)) from error.__cause__


class FileNotes:
    """The notes about files of one pipeline in `folder`. `identity` is the part of file names that identifies the
    pipeline.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder = folder
        self._newest = f"newest-{identity}.json"

    def write(self, stem: str, note: FileNote) -> None:
        """Write the note about the file named `stem`, before the file becomes visible. The note is complete or does not
        exist. If this process dies right afterwards, recovery reads the note.
        """
        _write_note(self._folder, f"{stem}-g{note.generation}.json", _encoded(note))

    def write_newest(self, note: FileNote) -> None:
        """Record that the file is visible. From then on, a program that loads the files may remove it."""
        _write_note(self._folder, self._newest, _encoded(note))

    def newest(self) -> FileNote | None:
        """Return the note about the newest file that was ever visible; None if there is none, because an older version
        wrote the files.
        """
        try:
            return FileNote.from_json(json.loads((self._folder / self._newest).read_bytes()))
        except FileNotFoundError:
            return None

    def of(self, stem: str, file: Path) -> FileNote | None:
        """Return the note about the visible `file` named `stem`. If several generations wrote notes, the note with the
        file's inode counts; a link does not change the inode. If no note has the inode, because the folder was copied
        or the file is just being removed, the newest note is used.
        """
        inode = 0
        with suppress(FileNotFoundError):
            inode = file.stat().st_ino
        notes = [FileNote.from_json(json.loads(path.read_bytes())) for path in self._folder.glob(f"{stem}-g*.json")]
        return max(notes, key=lambda note: (note.inode == inode, note.generation), default=None)


_VERSION = 1
_FILE = re.compile(r"epoch-\d{10}\.\d-([0-9a-f]{8})[.-]")
_WRITER = re.compile(r"writer-([0-9a-f]{8})\.json")
_BARRED = re.compile(r"barred-([0-9a-f]{8})\.json")


class Writers:
    """The notes about the pipelines that write to `folder`. The pipeline `app_id` reads and writes them."""

    def __init__(self, folder: Path, app_id: str) -> None:
        self._folder = folder
        self._app_id = app_id
        #: The hash that stands for the pipeline in names of files.
        self.identity = hashlib.sha256(app_id.encode()).hexdigest()[:8]

    def enter(self) -> None:
        """Note that this pipeline writes here."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write(f"writer-{self.identity}.json")

    def has_entered(self) -> bool:
        """Return True if this pipeline has written here before."""
        return (self._folder / f"writer-{self.identity}.json").exists()

    def require_not_barred(self) -> None:
        """Raise `SinkError` if another pipeline replaced this one's files."""
        if (self._folder / f"barred-{self.identity}.json").exists():
            raise TargetDroppedError(
                f"{self._folder.parent} was taken over by another pipeline, which replaced the files of this one "
                '(pipeline.on_existing = "replace"). Nothing more was written. Let only one of the two write there: '
                "choose another sink.path, or delete the folder, and read the source table anew."
            )

    def bar_other_writers(self, visible: Iterable[str]) -> None:
        """Bar every other pipeline that ever wrote here from making files visible. `visible` are all visible files."""
        names = [*visible, *self._names()]
        found = (_FILE.match(name) or _WRITER.fullmatch(name) for name in names)
        for identity in {match[1] for match in found if match} - {self.identity}:
            self._write(f"barred-{identity}.json")

    def of_barred(self, visible: Iterable[str]) -> list[str]:
        """Return those of the `visible` files that barred pipelines wrote. Such a file remains if its pipeline made it
        visible and died before it could remove it.
        """
        barred = {match[1] for name in self._names() if (match := _BARRED.fullmatch(name))}
        return [name for name in visible if (match := _FILE.match(name)) and match[1] in barred]

    def _names(self) -> list[str]:
        return [path.name for path in self._folder.glob("*.json")]

    def _write(self, name: str) -> None:
        note = {"version": _VERSION, "pipeline": self._app_id}
        _write_note(self._folder, name, json.dumps(note).encode())


#: A staged part of a file.
Part = DataFile | LinesFile

_NAME = re.compile(r"epoch-(\d{10})\.(\d)-([0-9a-f]{8})\.")

#: A function that joins parts to one durable file. If there are no parts, it makes an empty file with the schema of the
#: epoch. It may delete the parts.
Join = Callable[[Sequence[Path], Path, TableCommit], None]


class FilesTarget(Target):
    """A target that consists of files, in a folder or an object store. The rows of an epoch are staged in one or more
    parts; each part is a file.
    """

    #: Users may remove files that they have read.
    remembers: ClassVar[bool] = False

    def taken(self) -> TargetExistsError:
        return TargetExistsError(
            f"{self.location} has files that this pipeline did not write. Set pipeline.on_existing to "
            f'"merge" to write beside them or "replace" to delete them, or choose another sink.path.'
        )

    def disappeared(self) -> TargetDroppedError:
        return TargetDroppedError(
            f"{self.location} lost what this run had noted there: somebody deleted it, or made it anew. Nothing more "
            "was written. Delete what is there, and read the source table anew."
        )

    @abstractmethod
    def part(self, work: TableCommit, index: int) -> FileName:
        """Return the file of the `index`-th staged part of `work`."""

    @abstractmethod
    def unstage(self, epoch: int) -> None:
        """Delete the files staged for `epoch`."""


class FileSteps(FilesTarget):
    """The operations on the folder of one target. `join` makes the file of an epoch from its parts. `accepted` are the
    targets whose folders were already checked, so that this run may write to them; the sink keeps this set.
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
        self._notes = FileNotes(folder / "_raycdc", self._writers.identity)

    def read_state(self, epoch: int | None = None) -> TargetState:
        self._writers.require_not_barred()
        if self.name in self._accepted and not self._writers.has_entered():
            if self._visible():
                raise self.disappeared()
            return MissingTarget()
        vector = self._vector()
        if vector is None and self.name not in self._accepted and self._foreign():
            return ForeignTarget()
        return OwnTarget(vector)

    def create(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self.evolve(work, commit_metadata)

    def replace(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        # The other pipelines are barred before their files are removed. A pipeline that makes a file visible meanwhile
        # finds that it is barred, and removes the file itself.
        self._writers.bar_other_writers(self._visible())
        for name in self._foreign():
            (self.folder / name).unlink()
        self.evolve(work, commit_metadata)

    def adopt(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self.evolve(work, commit_metadata)

    def evolve(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        """Create the folder. Nothing else is needed, because each file has its own schema."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._accept()

    def write(self, work: TableCommit, staged: Sequence[Part], step: int, commit_metadata: CommitMetadata) -> None:
        parts = [Path(str(part.path)) for part in staged]
        for name in self._writers.of_barred(self._visible()):
            (self.folder / name).unlink(missing_ok=True)
        self._accept()
        self._publish(parts, work, commit_metadata, rows=sum(part.rows for part in staged))

    def vanished(self, staged: Sequence[Part], step: int) -> Sequence[str]:
        return absent(part.path for part in staged)

    def bar(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self._publish([], work, commit_metadata, rows=0)
        self.unstage(work.epoch)

    def part(self, work: TableCommit, index: int) -> str:
        """Return the path of the `index`-th staged part of `work`. The path includes the generation, so that two
        drivers never use the same file. Its suffix differs from that of visible files, because readers such as DuckDB
        and polars read all of ``**/*.parquet``.
        """
        return str(self._stage(work.epoch) / f"part-{work.generation}-{index}.staged")

    def unstage(self, epoch: int) -> None:
        """Delete the files staged for `epoch`."""
        shutil.rmtree(self._stage(epoch), ignore_errors=True)

    def _publish(self, parts: Sequence[Path], work: TableCommit, commit_metadata: CommitMetadata, *, rows: int) -> None:
        stage = self._stage(work.epoch)
        stage.mkdir(parents=True, exist_ok=True)
        file = stage / f"whole.{uuid.uuid4().hex}"
        self._join(parts, file, work)
        barred = commit_metadata.vector.step == STEP_TOMBSTONE
        note = FileNote(
            self._context.app_id,
            work.epoch,
            work.generation,
            rows,
            barred,
            file.stat().st_ino,
            dict(commit_metadata.positions),
            work.digest,
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
        except TargetDroppedError:
            visible.unlink(missing_ok=True)
            raise
        sync_folder(self.folder)
        file.unlink()
        # From here on, a loader may remove the file.
        self._notes.write_newest(note)

    def _accept(self) -> None:
        """Record that this run may write to the folder, so that its content is not checked again."""
        if self.name not in self._accepted:
            self._writers.enter()
            self._accepted.add(self.name)

    def _vector(self) -> CommitVector | None:
        """Return the commit vector, from the names of visible files and the notes."""
        vectors = [vector for vector in map(self._vector_of, self._visible()) if vector is not None]
        newest, last = max(vectors, default=None), self._notes.newest()
        if last is not None and (newest is None or last.epoch >= newest.epoch):
            step = STEP_TOMBSTONE if last.tombstone else STEP_LAST
            return CommitVector(last.epoch, step, last.generation, last.digest)
        if newest is None:
            return None
        stem = self._stem(newest.epoch)
        note = self._notes.of(stem, self.folder / f"{stem}.{self._kind}")
        if note is None:
            return newest
        step = STEP_TOMBSTONE if note.tombstone else newest.step
        return CommitVector(newest.epoch, step, note.generation, note.digest)

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


def committed_by_another(work: TableCommit) -> FencedError:
    """Return the error for an epoch for which another driver's record or file exists."""
    return FencedError(f"Epoch {work.epoch} of {work.target} was committed by another driver meanwhile.")
