"""The promises: what must hold whenever a file of the state or a row of the sink appears, and at the end."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from raycdc.model import TableId
from raycdc.state import codec
from raycdc.state.store import CommitRecord
from tests.support.simulation.drivers.life import SimEnvironment
from tests.support.simulation.drivers.log import Row, SourceLog


class DriverOracle:
    """Checks the promises; see the module's docstring.

    Disk and server call it, and it adds to `SimEnvironment.problems`.
    """

    def __init__(self, around: SimEnvironment) -> None:
        self.recorded = 0
        self._around = around
        self._epochs: dict[int, codec.Document] = {}
        self._newest = 0
        self._parked: set[str] = set()
        around.disk.on_file = self._file
        if around.objects is not None:
            around.objects.on_document = self._file
        around.server.on_write = self._written

    def power_fails(self, chance: random.Random) -> None:
        """Check that nothing of what the power cut loses had been relied on."""
        around = self._around
        if around.objects is not None:
            return  # An answer of a store means that the write is durable.
        around.disk.fail(chance)
        folders = around.disk.folders
        there, recorded = (
            {int(file[:10]) for file in folders[around.state / name].names if not file.startswith(".")}
            if around.state / name in folders
            else set()
            for name in ("epochs", "commits")
        )
        self.recorded = max(recorded, default=0)
        oldest = min(there, default=0)
        for epoch in [epoch for epoch in self._epochs if epoch not in there]:
            held = [str(t) for t, table in around.server.tables.items() if any(e == epoch for e, *_ in table.log)]
            if held and epoch >= oldest:
                self._say(f"the state forgot epoch {epoch}, which {held} hold")
            if epoch >= oldest and epoch > self.recorded:
                del self._epochs[epoch]

    def _file(self, path: Path, content: bytes) -> None:
        if path.is_absolute() and not path.is_relative_to(self._around.state):
            return  # It is of a copy of the state.
        if path.parent.name == "epochs" and path.suffix == ".json":
            self._sealed(codec.decode(content, origin=path.name))
        elif path.parent.name == "commits" and ".json" in path.suffixes and path.name[0] != ".":
            document: Any = codec.decode(content, origin=path.name)
            self._recorded(CommitRecord.from_json(document))
        elif path.parent.name == "generations" and path.suffix == ".json" and path.stem.isdigit():
            self._newest = max(self._newest, int(path.stem))

    def _sealed(self, manifest: codec.Document) -> None:
        epoch = int(manifest["epoch"])
        if self._epochs.setdefault(epoch, manifest) != manifest:
            self._say(f"the number {epoch} is given to two epochs")

    def _recorded(self, record: CommitRecord) -> None:
        epoch = record.epoch
        # A driver that is replaced at this very moment may write its last record, which nobody reads.
        if epoch < self.recorded and record.generation == self._newest:
            self._say(f"epoch {epoch} is recorded behind epoch {self.recorded}")
        self.recorded = max(epoch, self.recorded)
        if record.generation == self._newest:
            self._parked = set(record.parked)
        for name, place in record.tables.items():
            held = self._around.server.tables.get(TableId.parse(name))
            if held is None or held.vector is None or held.vector.progress < place:
                self._say(f"{name} holds {held and held.vector}, and the record of epoch {epoch} says {place}")

    def _written(self, target: TableId, epoch: int) -> None:
        # A driver that was replaced may still reach a target that refused its successor: whatever it holds is over.
        if epoch <= self.recorded and str(target) not in self._parked:
            self._say(f"rows of epoch {epoch} come to {target}, and epoch {self.recorded} is recorded")

    def final(self, log: SourceLog) -> None:
        """Check that the targets equal the source, and that each change came once, in order."""
        for table in log.tables:
            target = self._around.server.tables.get(table)
            if target is None:
                self._say(f"{table} never arrived")
                continue
            rows = log.rows(table, log.end)
            if target.rows != rows:
                self._say(f"{table} has {target.rows} instead of {rows}")
            self._changelog(table, [(op, row) for _, op, row in target.log])

    def prefixes(self, log: SourceLog) -> None:
        """Check that each target has every change of its table once, in order, up to the last one that it has."""
        for table in log.tables:
            target = self._around.server.tables.get(table)
            if target is None:
                continue
            changes = [(op, row) for _, op, row in target.log]
            self._changelog(table, changes)
            if target.rows not in (log.rows(table, ordinal) for ordinal in range(log.end + 1)):
                self._say(f"{table} has {target.rows}, which it never had at the source")

    def _changelog(self, table: TableId, changes: list[tuple[str, Row]]) -> None:
        """Check that each change follows the previous one of its key."""
        rows: dict[int, int | None] = {}
        for op, row in changes:
            key = int(row["id"] or 0)
            if op == "T":
                rows.clear()
            elif op == "+I":
                if key in rows:
                    self._say(f"{table}: {row} is inserted twice")
                rows[key] = row["val"]
            elif op == "+U":
                rows[key] = row["val"]
            elif rows.pop(key, None) != row["val"]:
                self._say(f"{table}: {op} of {row} does not follow the change before it")

    def _say(self, problem: str) -> None:
        self._around.problems.append(problem)
