"""Decides what to do with a sealed epoch that has no commit record, before anything is written.

Called by the epoch loop at its start, for each such epoch in order, with the commit vectors of the epoch's target
tables.

The table below uses these terms. A target table holds an epoch *in part* from its first row on. A table has a
*tombstone* of an epoch if an earlier recovery dropped the epoch and forbade the table to take it.

| target tables | segments that the lacking tables need | decision |
|---|---|---|
| one holds less than its commit record says, or an epoch later than the newest of this state | – | `Refuse` |
| one holds an epoch up to the last recorded one that its commit record does not name, or the epoch that its record \
names with another digest | – | as if it held less |
| one holds an unrecorded epoch that this state did not seal, that has nothing for the table, or that was sealed \
after the table was written | – | `Refuse` |
| some have a tombstone of the epoch, none has rows of it | – | `Tombstone`: an earlier recovery dropped the epoch \
and was interrupted |
| some have a tombstone of the epoch, some have rows of it | – | `Frozen`: a replaced driver wrote the epoch while it \
was being dropped; the tables with a tombstone are resnapshotted |
| all hold the whole epoch | – | `WriteRecord` |
| at least one lacks the epoch or a part of it | intact | `Replay` for the tables that lack something |
| at least one holds the epoch or a part of it, at least one lacks something | missing | `Frozen`: the tables whose \
segments are missing are resnapshotted, the others go on |
| none holds any of the epoch | missing | `Tombstone`: the epoch and all later ones are dropped, and their log range \
is read again under new numbers |

The sink is read first, because a decision by the segments alone would drop epochs whose rows are already in the sink.

If an epoch renames columns, a table holds it in part as soon as the columns are renamed, even without a row. Such an
epoch must not be dropped: its renames would be carried out again under a new number, and if two columns exchanged their
names, the table does not show that they already did. All other schema changes may be carried out twice.

A frozen epoch keeps its number and its range of the log, because some tables have its rows. The same rows cannot be
made again for the other tables, because chunks that are read again have newer rows. Therefore these tables are
resnapshotted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from raycdc.model import TableId
from raycdc.state.codec import NEW_STATE
from raycdc.state.manifests.manifest import STATE_NODE, Manifest, target_digest

#: Steps of one table's epoch, in order. A table holds an epoch once its vector is at `STEP_LAST` of the epoch or later.
STEP_SCHEMA = 0
STEP_APPEND = 1
STEP_MERGE = 2
STEP_LAST = 3
#: The step of a tombstone. A table whose vector has this step refuses the epoch forever. The epoch's number is not used
#: again.
STEP_TOMBSTONE = 7


@dataclass(frozen=True, slots=True, order=True)
class CommitVector:
    """The progress of a target table: it holds everything up to and including (`epoch`, `step`), which `generation`
    wrote.

    `digest` identifies the epoch's manifest and the target (`target_digest`); 0 if the target does not store digests.
    Two copies of one state use the same numbers and generations, but never the same digest.
    """

    epoch: int
    step: int
    generation: int = 0
    digest: int = field(default=0, compare=False)

    @property
    def progress(self) -> tuple[int, int]:
        """Return (epoch, step), without the writer's generation."""
        return self.epoch, self.step


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Every table holds the epoch. Only its commit record is missing."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Write the epoch again for `tables`. Their sinks skip the parts that they already hold."""

    tables: tuple[TableId, ...]


@dataclass(frozen=True, slots=True)
class Frozen:
    """Some tables hold the epoch, and others can never get it.

    The tables `again` must be resnapshotted because their segments are missing, the tables `barred` because they have a
    tombstone of the epoch. The tables `replay` can still be written. `text` explains the decision, and names the
    alternative to a resnapshot.
    """

    again: tuple[TableId, ...]
    replay: tuple[TableId, ...]
    text: str
    barred: tuple[TableId, ...] = ()


@dataclass(frozen=True, slots=True)
class Tombstone:
    """No table holds the epoch, and it cannot be replayed.

    Its tombstone is written to `tables`; the epoch and all later ones are dropped.
    """

    tables: tuple[TableId, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The sink contradicts the state. `text` names the table and the possible remedies."""

    text: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed epoch without a commit record.

    It has the generation that sealed the epoch, the targets for which the epoch has rows or changes, and the digest of
    its manifest.
    """

    generation: int
    targets: Collection[TableId]
    digest: int = 0


#: The alternative that keeps the target's content until the new snapshot is complete.
Decision = WriteRecord | Replay | Frozen | Tombstone | Refuse


class _TargetProgress(Enum):
    ALL = "all"
    PART = "part"
    NONE = "none"
    BARRED = "barred"


def decide(
    manifest: Manifest,
    holds: Mapping[TableId, CommitVector | None],
    *,
    lost: Collection[TableId],
    recorded: Mapping[str, tuple[int, int]],
    newest_epoch: int,
    renamed: Collection[TableId] = (),
) -> Decision:
    """Return the decision about `manifest` according to the module's table.

    `holds` are the vectors that the epoch's target tables report, `recorded` are the vectors of the last commit record
    by table name, and `newest_epoch` is the greatest epoch number that this state ever used. `lost` are targets that
    need segments which are missing or damaged; `renamed` are targets of which the epoch renames columns.
    """
    if contradiction := contradictions(holds, recorded=recorded, newest_epoch=newest_epoch):
        return contradiction
    tables = tuple(holds)
    states = {table: _holding(manifest.epoch, holds[table], renamed=table in renamed) for table in tables}
    barred = tuple(table for table in tables if states[table] is _TargetProgress.BARRED)
    lacking = tuple(table for table in tables if states[table] in (_TargetProgress.NONE, _TargetProgress.PART))
    if not lacking and not barred:
        return WriteRecord()
    again = tuple(table for table in lacking if table in lost)
    if not again and not barred:
        return Replay(lacking)
    affected = [table for table in tables if states[table] in (_TargetProgress.ALL, _TargetProgress.PART)]
    if affected:
        replay = tuple(table for table in lacking if table not in again)
        text = _frozen_text(manifest, affected, again) if again else _barred_text(manifest, affected, barred)
        return Frozen(again, replay, text, barred)
    return Tombstone(tables)


def lacks(epoch: int, vector: CommitVector | None) -> bool:
    """Return True if a table that reports `vector` may need the epoch's segments."""
    return _holding(epoch, vector) in (_TargetProgress.NONE, _TargetProgress.PART)


def contradictions(
    holds: Mapping[TableId, CommitVector | None], *, recorded: Mapping[str, tuple[int, int]], newest_epoch: int
) -> Refuse | None:
    """Return a refusal for the first table that holds less than recorded or more than was ever sealed; None if there is
    none.
    """
    for text in shortfalls(holds, recorded=recorded).values():
        return Refuse(text)
    return beyond(holds, newest_epoch=newest_epoch)


def shortfalls(
    holds: Mapping[TableId, CommitVector | None], *, recorded: Mapping[str, tuple[int, int]]
) -> dict[TableId, str]:
    """Return the tables that hold less than recorded, because they were deleted, restored or swapped; each with a
    message.
    """
    found = {}
    for table, vector in holds.items():
        record = recorded.get(str(table))
        have = None if vector is None else (vector.epoch, vector.step)
        if record is not None and (have is None or have < record):
            held = "nothing of this pipeline" if have is None else f"only epoch {have[0]}"
            found[table] = (
                f"The sink's table {table} holds {held}, but epoch {record[0]} was committed to it: it was deleted, "
                f"restored from an older copy or swapped. Bring that version back, or have it made anew by a new "
                f"snapshot of its source table: raycdc tables resnapshot CONFIG TABLE."
            )
    return found


def strangers(
    holds: Mapping[TableId, CommitVector | None],
    *,
    recorded: Mapping[str, tuple[int, int]],
    digests: Mapping[str, int],
    committed: int,
) -> dict[TableId, str]:
    """Return the tables that hold an epoch up to `committed` that is not the one in their record; each with a message.

    Its number is greater than that in the record, or its digest is another one. Another table of the same pipeline has
    taken the table's place, or another copy of the state wrote the epoch. `digests` are those of the record. A record
    of an older version has none.
    """

    def is_other(table: str, vector: CommitVector) -> bool:
        # A target that was barred from the recorded epoch is read anew, and keeps its tombstone until then.
        barred = vector.step == STEP_TOMBSTONE and vector.epoch == recorded[table][0]
        if barred or vector.progress == recorded[table]:
            return differs(vector.digest, digests.get(table, 0))
        return vector.progress > recorded[table] and vector.epoch <= committed

    return {
        table: (
            f"The sink's table {table} holds an epoch {vector.epoch} that was not written to it with this state: it "
            f"was exchanged with another table, or restored and then written with a copy of this state. Bring its own "
            f"version back, or have it made anew by a new snapshot of its source table: raycdc tables resnapshot "
            f"CONFIG TABLE."
        )
        for table, vector in holds.items()
        if vector is not None and str(table) in recorded and is_other(str(table), vector)
    }


def beyond(holds: Mapping[TableId, CommitVector | None], *, newest_epoch: int) -> Refuse | None:
    """Return a refusal for the first table that holds more than was ever sealed, because the state is older than the
    sink.
    """
    for table, vector in holds.items():
        if vector is not None and vector.epoch > newest_epoch:
            return Refuse(
                f"The sink's table {table} holds epoch {vector.epoch}, but this state knows epochs up to "
                f"{newest_epoch}: the state was restored from an older copy. Bring the newer state back, or "
                f"{NEW_STATE}."
            )
    return None


def ahead(
    holds: Mapping[TableId, CommitVector | None],
    *,
    recorded: Mapping[str, tuple[int, int]],
    sealed: Mapping[int, Sealed],
) -> Refuse | None:
    """Return a refusal for the first table with an epoch that has one of our numbers, but was written by another copy
    of this state.

    `sealed` are all unrecorded epochs. An epoch that a table holds beyond its commit record must be in `sealed`, have
    rows or changes for the table, be sealed before the table was written, and have the same digest. Otherwise another
    copy of this state, which uses the same numbers, wrote the epoch.
    """
    for table, vector in holds.items():
        if vector is None or vector.step == STEP_TOMBSTONE:
            continue
        if (vector.epoch, vector.step) <= recorded.get(str(table), (0, 0)):
            continue
        ours = sealed.get(vector.epoch)
        # The generation is 0 if a sink does not store generations.
        older = ours is not None and 0 < vector.generation < ours.generation
        other = ours is not None and differs(vector.digest, target_digest(ours.digest, table))
        if ours is None or table not in ours.targets or older or other:
            return Refuse(another_copy(table, vector.epoch))
    return None


def differs(digest: int, other: int) -> bool:
    """Return True if two digests are known and are those of different manifests."""
    return digest != 0 and other not in (0, digest)


def another_copy(table: TableId, epoch: int) -> str:
    """Return the message that a target went on without this state, with the remedies."""
    return (
        f"The sink's table {table} holds an epoch {epoch} that this state did not write: the state was restored from "
        f"an older copy, or a copy of it is in use, and the target went on since. Bring the newer state back, or "
        f"{NEW_STATE}."
    )


def _holding(epoch: int, vector: CommitVector | None, *, renamed: bool = False) -> _TargetProgress:
    if vector is None or vector.epoch < epoch:
        return _TargetProgress.NONE
    if vector.step == STEP_TOMBSTONE:
        return _TargetProgress.BARRED
    if vector.epoch > epoch or vector.step >= STEP_LAST:
        return _TargetProgress.ALL
    return _TargetProgress.PART if renamed or vector.step > STEP_SCHEMA else _TargetProgress.NONE


def _frozen_text(manifest: Manifest, affected: list[TableId], again: tuple[TableId, ...]) -> str:
    others = sorted({segment.node for segment in manifest.segments} - {STATE_NODE})
    nodes = f" or of node {', '.join(others)}" if others else ""
    back = "Restore the spool folder of the state" + (", bring that Ray node back" if others else "")
    return (
        f"Epoch {manifest.epoch} is in {_names(affected)} but not, or not wholly, in {_names(again)}, and segments of "
        f"it are gone from the spool of the state{nodes}, so the rest cannot be written exactly. {back}, or "
        f"{NEW_STATE}."
    )


def _barred_text(manifest: Manifest, affected: list[TableId], barred: tuple[TableId, ...]) -> str:
    return (
        f"Epoch {manifest.epoch} is in {_names(affected)}, and {_names(barred)} can never have it: a driver that was "
        f"replaced wrote it while it was being dropped. If {_names(barred)} cannot be read anew, {NEW_STATE}."
    )


def _names(tables: list[TableId] | tuple[TableId, ...]) -> str:
    shown = ", ".join(str(table) for table in tables[:5])
    return shown if len(tables) <= 5 else f"{shown} and {len(tables) - 5} more"
