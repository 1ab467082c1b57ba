"""Sinks of plain files, one per (table, epoch): what `parquet` and `jsonl` have in common.

```
PATH/DB/TABLE/epoch-0000000012.3-1a2b3c4d.jsonl        visible rows; its name *is* the commit record
PATH/DB/TABLE/_raycdc/epoch-0000000012.3-1a2b3c4d-g1.json  what generation 1 wanted to make visible under that name:
                                                       positions, generation, inode; written just before
PATH/DB/TABLE/_raycdc/stage/…                          staged files, removed when they became visible
```

The name holds the epoch, the step and a hash of the pipeline's identity. Making it visible is one ``link``, which
fails when the name exists: whoever comes second, be it a retry or a driver that woke from a pause, changes nothing.
A tombstone is an empty file that takes the name first. Readers skip names that begin with ``_`` or ``.``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from raycdc.bridge.tasks import StageTask
from raycdc.checkpoint.folder import LocalFolder, sync_folder
from raycdc.errors import FencedError, TargetTakenError
from raycdc.failpoints import reach
from raycdc.model import TableId
from raycdc.sinks.api import CHANGELOG, STEP_LAST, STEP_TOMBSTONE, CommitVector, SinkContext, TableWork
from raycdc.sinks.changes import check_changes
from raycdc.sinks.files.plugin import JsonlSinkConfig, ParquetSinkConfig
from raycdc.sinks.targets import check_write, table_folder

_NAME = re.compile(r"epoch-(\d{10})\.(\d)-([0-9a-f]{8})\.")


class FileSink(ABC):
    """Subclasses say how a file is written, joined from parts, and how an empty one looks."""

    writes: ClassVar[tuple[str, ...]] = (CHANGELOG,)
    durable: ClassVar[bool] = True
    #: Name of the sink in the configuration and extension of its files.
    kind: ClassVar[str]

    def __init__(self, config: ParquetSinkConfig | JsonlSinkConfig) -> None:
        self.root = Path(config.path).absolute()

    def open(self, context: SinkContext) -> None:
        check_write(self.kind, self.writes, context.write)
        self._context = context
        self._identity = hashlib.sha256(context.app_id.encode()).hexdigest()[:8]

    def look(self, context: SinkContext) -> None:
        """As `open`, which changes nothing."""
        self.open(context)

    def require_free(self, target: TableId) -> None:
        """See `raycdc.sinks.api.LooksFirst`."""
        if self._context.on_existing == "fail" and self.committed(target) is None and any(self._foreign(target)):
            raise TargetTakenError(
                f"{self.folder(target)} has files that this pipeline did not write. Set pipeline.on_existing to "
                f'"merge" to write beside them or "replace" to delete them, or choose another sink.path.'
            )

    def committed(self, target: TableId) -> CommitVector | None:
        vectors = [v for v in map(self._vector, self._visible(target)) if v is not None]
        if not vectors:
            return None
        newest = max(vectors)
        note = self._note(target, newest.epoch)
        return CommitVector(
            newest.epoch,
            STEP_TOMBSTONE if note.get("tombstone") else newest.step,
            note.get("generation", 0),
        )

    def apply_schema(self, work: TableWork) -> None:
        """Files carry their own schema: only `on_existing` of a new target is left to do, and what nobody wants."""
        check_changes(work, self._context.schema_change, self._context.left_out)
        self.require_free(work.target)
        folder = self.folder(work.target)
        if self._context.on_existing == "replace" and self.committed(work.target) is None:
            for name in self._foreign(work.target):
                (folder / name).unlink()
        folder.mkdir(parents=True, exist_ok=True)

    def stage(self, works: Sequence[TableWork]) -> Mapping[TableId, Any]:
        tasks: list[StageTask] = []
        owners: list[TableId] = []
        for work in works:
            for task in self.tasks(work):
                tasks.append(task)
                owners.append(work.target)
        staged: dict[TableId, list[dict[str, Any]]] = {work.target: [] for work in works}
        for owner, result in zip(owners, self._context.run_tasks(tasks) if tasks else [], strict=True):
            staged[owner].append(result)
        return staged

    def commit(self, work: TableWork, staged: Any) -> None:
        held = self.committed(work.target)
        if held is not None and held.generation > work.generation:
            raise FencedError(f"{work.target} was written by a newer driver (generation {held.generation}).")
        if held is not None and (held.epoch, held.step) >= (work.epoch, STEP_LAST):
            self._unstage(work.target, work.epoch)
            return
        stage = self._stage(work.target, work.epoch)
        stage.mkdir(parents=True, exist_ok=True)
        whole = stage / f"whole.{uuid.uuid4().hex}"
        self.join([Path(part["path"]) for part in staged], whole, work)
        self._publish(whole, work, rows=sum(part["rows"] for part in staged), tombstone=False)
        self._unstage(work.target, work.epoch)

    def tombstone(self, work: TableWork) -> None:
        held = self.committed(work.target)
        if held is not None and held.epoch >= work.epoch:
            return
        stage = self._stage(work.target, work.epoch)
        stage.mkdir(parents=True, exist_ok=True)
        empty = stage / f"tombstone.{uuid.uuid4().hex}"
        self.join([], empty, work)
        self._publish(empty, work, rows=0, tombstone=True)
        self._unstage(work.target, work.epoch)

    def close(self) -> None:  # noqa: B027
        """Nothing is held open."""

    @abstractmethod
    def tasks(self, work: TableWork) -> list[StageTask]:
        """The tasks that write the parts of `work` into its stage folder."""

    @abstractmethod
    def join(self, parts: Sequence[Path], whole: Path, work: TableWork) -> None:
        """Make one durable file of `parts` (none: an empty one of the work's schema); they may be consumed."""

    def folder(self, target: TableId) -> Path:
        return table_folder(self.root, target)

    def part(self, work: TableWork, index: int) -> str:
        """Path of the `index`-th staged part of `work`; names of generations differ, so that two never mix."""
        stage = self._stage(work.target, work.epoch)
        return str(stage / f"part-{work.generation}-{index}.{self.kind}")

    def task_args(self) -> dict[str, str]:
        """The arguments of every task that reads segments."""
        return {"node": self._context.node, "token": self._context.flight_token}

    @property
    def parallelism(self) -> int:
        return self._context.parallelism

    def _publish(self, file: Path, work: TableWork, *, rows: int, tombstone: bool) -> None:
        folder = self.folder(work.target)
        side = {
            "pipeline": self._context.app_id,
            "epoch": work.epoch,
            "generation": work.generation,
            "rows": rows,
            "tombstone": tombstone,
            "inode": file.stat().st_ino,
            "positions": dict(work.positions),
        }
        name = self._name(work.epoch).removesuffix(self.kind)
        # Whole or not at all: a recovery may read it when this process died right here.
        note = f"{name.removesuffix('.')}-g{work.generation}.json"
        LocalFolder(folder / "_raycdc").write(note, json.dumps(side).encode())
        reach("in_commit")
        try:
            os.link(file, folder / self._name(work.epoch))
        except FileExistsError as cause:
            raise FencedError(
                f"Epoch {work.epoch} of {work.target} was committed by another driver meanwhile."
            ) from cause
        sync_folder(folder)
        file.unlink()

    def _name(self, epoch: int) -> str:
        return f"epoch-{epoch:010d}.{STEP_LAST}-{self._identity}.{self.kind}"

    def _note(self, target: TableId, epoch: int) -> dict[str, Any]:
        """What was written about the visible file of `epoch`. Of several generations that tried, the one whose file it
        is: a link keeps the inode. (In a copied folder inodes say nothing; there the newest is as good as any.)
        """
        name = self._name(epoch)
        inode = (self.folder(target) / name).stat().st_ino
        pattern = f"{name.removesuffix(self.kind).removesuffix('.')}-g*.json"
        notes = [json.loads(path.read_text()) for path in (self.folder(target) / "_raycdc").glob(pattern)]
        return max(notes, key=lambda note: (note["inode"] == inode, note["generation"]), default={})

    def _stage(self, target: TableId, epoch: int) -> Path:
        return self.folder(target) / "_raycdc" / "stage" / f"{epoch:010d}-{self._identity}"

    def _unstage(self, target: TableId, epoch: int) -> None:
        shutil.rmtree(self._stage(target, epoch), ignore_errors=True)

    def _visible(self, target: TableId) -> list[str]:
        try:
            return [p.name for p in self.folder(target).iterdir() if not p.name.startswith(("_", "."))]
        except FileNotFoundError:
            return []

    def _vector(self, name: str) -> CommitVector | None:
        match = _NAME.match(name)
        return CommitVector(int(match[1]), int(match[2])) if match and match[3] == self._identity else None

    def _foreign(self, target: TableId) -> list[str]:
        return [name for name in self._visible(target) if self._vector(name) is None]
