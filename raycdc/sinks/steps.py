"""The exactly-once protocol between the epoch loop and a target, for every sink that can read its own record.

A sink implements operations on one target, the *verbs* of `Target`, and `ExactlyOnceSink` decides which verb is called.
Before each decision, `ExactlyOnceSink` opens the target (under a lock or in a transaction, if the store supports that)
and reads the target's state:

| state | meaning | `apply_schema` | `commit` | `tombstone` |
|---|---|---|---|---|
| `MissingTarget` | nothing exists there | `create` if the epoch creates the table, else refused | refused | `bar` |
| `UnfinishedTarget` | an earlier start created it and wrote no row | `begin` | refused | `bar` |
| `ForeignTarget` | others created it | refused, `adopt` or `replace`, as ``pipeline.on_existing`` says | refused |
`bar` |
| `OwnTarget` | it holds epochs of this pipeline | `evolve` | `write`, for each step of the epoch | `bar` |

A step that a target already holds is never repeated. Every verb gets a `CommitMetadata`, and must write the vector in
it in the same transaction as its changes. Three checks come first:

* *fencing*: this driver ends (`FencedError`) if the record is of a newer generation. It also ends if a driver with
  another copy of the state wrote the record; such a record has the same epoch numbers and different digests;
* *restored targets*: if a target holds less than this driver wrote or read there before, it was restored from an older
  copy, and rows would silently be missing (`TargetDroppedError`). The same holds if it has the same epoch with another
  digest, because it was exchanged with another target. This driver forgets what the target held
  (`ExactlyOnceSink.forget`) if the target does not exist any more or was refused for this reason, and a resnapshot
  replaces all rows (`raycdc.sinks.changes.replaces_all_rows`); * *tombstones*: if a part of an epoch's rows was already
  written, the epoch cannot get a tombstone (`SinkError`).

A verb that is about to remove all rows calls `Target.require_own` first, so that rows of other writers are never
removed because of a change at the source.

*Crashes*: until a verb's transaction ends, the target is unchanged; after it, the target holds the step. A verb that
needs several transactions records its unfinished work, and the next start calls `recover` to finish this work before
any other verb is called.

The Kafka sink follows the same rules inside its tasks (`raycdc.sinks.kafka.tasks`), because a transaction of Kafka
cannot be passed from a task to the driver. It uses `holds` to decide if a step must be written.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, assert_never

from raycdc.core.failpoints import reach
from raycdc.errors import FencedError, SinkError, TargetDroppedError, TargetExistsError
from raycdc.model import TableId
from raycdc.segments.tasks import ResultT, StageTask, TaskRunner
from raycdc.sinks.api import (
    STEP_LAST,
    STEP_SCHEMA,
    STEP_TOMBSTONE,
    UPSERT,
    CommitVector,
    Sink,
    SinkContext,
    TableCommit,
)
from raycdc.sinks.changes import check_changes, creates, replaces_all_rows
from raycdc.sinks.targets import check_write, occupied_error
from raycdc.state.opaque import Positions
from raycdc.state.recovery import differs


@dataclass(frozen=True, slots=True)
class MissingTarget:
    """Nothing exists at the target.

    If the target existed earlier, `lost` is the vector of its record. If a tombstone was written for a target that
    never existed, `vector` is the vector of the tombstone.
    """

    lost: CommitVector | None = None
    vector: CommitVector | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedTarget:
    """An earlier start of this pipeline created the target and wrote no row, because its driver died or its state was
    replaced.
    """

    vector: CommitVector | None = None


@dataclass(frozen=True, slots=True)
class ForeignTarget:
    """The target was neither created nor adopted by this pipeline.

    `unusable` is the error to raise if the target can be neither adopted nor replaced.
    """

    vector: CommitVector | None = None
    unusable: SinkError | None = None


@dataclass(frozen=True, slots=True)
class OwnTarget:
    """The target belongs to this pipeline. `vector` is None only if the pipeline created the target and has committed
    nothing yet.
    """

    vector: CommitVector | None = None


TargetState = MissingTarget | UnfinishedTarget | ForeignTarget | OwnTarget


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """The metadata that a commit writes with its rows: the vector, and the source positions for people to see."""

    vector: CommitVector
    positions: Positions

    @classmethod
    def of(cls, work: TableCommit, step: int) -> CommitMetadata:
        return cls(CommitVector(work.epoch, step, work.generation, work.digest), work.positions)

    def text(self, app_id: str, **more: Any) -> str:
        """Return the metadata as a JSON document with the additional keys `more`, for a place where people read it."""
        vector = self.vector
        named = {"pipeline": app_id, "epoch": vector.epoch, "step": vector.step, "generation": vector.generation}
        named |= {"digest": vector.digest} if vector.digest else {}
        return json.dumps({**named, **more, "positions": dict(self.positions)})


def holds(held: CommitVector | None, goal: CommitVector, target: TableId | str) -> bool:
    """Return True if a target with the record `held` already has the step `goal`. Raises `FencedError` if a newer
    driver wrote the record, or a driver with another copy of the state.
    """
    if held is not None and held.generation > goal.generation:
        raise fenced(target, held.generation)
    if held is not None and held.epoch == goal.epoch and differs(held.digest, goal.digest):
        raise written_by_copy(target, held)
    return held is not None and held.progress >= goal.progress


def require_not_barred(held: CommitVector | None, goal: CommitVector, target: TableId | str) -> None:
    """Raise `SinkError` if a tombstone bars the epoch of `goal`, because its rows would otherwise be skipped."""
    if held is not None and held.step == STEP_TOMBSTONE and held.progress >= goal.progress:
        raise SinkError(
            f"Epoch {goal.epoch} of {target} was barred while it was being committed: a driver that was replaced had "
            "not ended. Start again; the epoch will be dropped, and its rows read again."
        )


def half_written(held: CommitVector | None, goal: CommitVector) -> bool:
    """Return True if a target with the record `held` has some rows of the epoch of `goal`, so that it cannot be
    dropped.
    """
    return held is not None and held.epoch == goal.epoch and STEP_SCHEMA < held.step < STEP_TOMBSTONE


def fenced(target: TableId | str, generation: int) -> FencedError:
    """Return the error for a driver that was replaced by a newer one with this `generation`."""
    return FencedError(f"{target} was written by a newer driver (generation {generation}).")


def written_by_copy(target: TableId | str, held: CommitVector) -> FencedError:
    """Return the error for a target with an epoch that another copy of this state wrote."""
    return FencedError(
        f"{target} holds an epoch {held.epoch} that was written with another copy of this state, which uses the same "
        "numbers. Nothing more was written. Let only one of them run: end this one, or give it a state, a pipeline "
        "name and targets of its own."
    )


def is_of_copy(record: CommitVector, reached: CommitVector | None, tried: Collection[int]) -> bool:
    """Return True if `record` is newer than what this process knows of the target, and a driver with another copy of
    the state wrote it. `reached` is the vector that this process last read or wrote there. `tried` are the digests of
    epochs that this process may have written since, although it got no answer.
    """
    on = reached is not None and record.epoch > reached.epoch and differs(record.digest, reached.digest)
    return on and record.digest not in tried


def is_exchanged(record: CommitVector, reached: CommitVector | None) -> bool:
    """Return True if `record` has the numbers of the vector `reached`, but belongs to another target, or to the same
    one as a copy of the state wrote it.
    """
    return reached is not None and record.progress == reached.progress and differs(record.digest, reached.digest)


class Target(ABC):
    """The operations on one target, the *verbs*, which a sink implements. Used by one thread, from reading the target's
    record until the target is closed.

    A verb makes its changes and writes the vector of its `CommitMetadata` in one transaction, or leaves a record from
    which `recover` completes it. A verb may raise any `SinkError`. A `TableRefusedError` concerns this target only.
    After a `SinkUnavailableError`, the call is retried for minutes, each time in a new transaction. The sink must turn
    an `OSError` of the store, or an error of its client library, into a `SinkError`; one ``except`` in the sink's
    `opened` can do this for all verbs. Any other error ends the run as a bug.
    """

    #: True if a target that holds less than before must have been restored; False if users may remove rows.
    remembers: ClassVar[bool] = True

    def __init__(self, name: TableId, progress: str) -> None:
        """Create the handle. `progress` names the target for people, as the subject of a sentence: ``The Delta table
        /lake/shop/orders``.
        """
        self.name = name
        self.location = progress

    @abstractmethod
    def read_state(self, epoch: int | None = None) -> TargetState:
        """Return the target's state, read from the store itself. `epoch` is the number of the epoch that is about to be
        applied; None if there is none.
        """

    def is_alone(self) -> bool:
        """Return True if this pipeline created or emptied the target, so that the target contains no rows of other
        writers. Called after `read_state`. Always False for an adopted target.
        """
        return True

    def recover(self, commit_metadata: CommitMetadata) -> bool:
        """Finish the incomplete work of a dead driver, under the generation of `commit_metadata`.

        Return True if there was any.
        """
        return False

    @abstractmethod
    def create(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        """Create the target, empty, with the columns of `work`."""

    def begin(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        """Prepare an unfinished target for `work`."""
        self.replace(work, commit_metadata)

    @abstractmethod
    def replace(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        """Replace the existing target with an empty one for `work`."""

    def require_adoptable(self) -> None:  # noqa: B027
        """Raise `TargetExistsError` for a target that `adopt` would refuse, as far as that is known without the new
        columns.
        """

    @abstractmethod
    def adopt(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        """Take over another writer's target with its rows.

        Raises `SinkError` if its columns or rows do not allow that.
        """

    @abstractmethod
    def evolve(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        """Apply the changes of `work` to the target, which does not hold this step yet."""

    def steps(self, work: TableCommit, staged: Any) -> Sequence[int]:
        """Return the steps in which `staged` is written, in order; empty if one step is enough.

        Raises `SinkError` if the target no longer fits the rows.
        """
        return ()

    @abstractmethod
    def write(self, work: TableCommit, staged: Any, step: int, commit_metadata: CommitMetadata) -> None:
        """Make the rows of `step` visible. If there are no rows, or only one step, `step` is `STEP_LAST`.

        Calls ``raycdc.core.failpoints.reach("in_commit")`` before the rows become visible.
        """

    def vanished(self, staged: Any, step: int) -> Sequence[str]:
        """Return the names of staged files of `step` that have been deleted by someone. If there are any, the epoch is
        staged again.

        Called before `write`. If `write` only adds the files' names to a commit, it must check the files again after
        the commit, and raise an error if one is missing.
        """
        return ()

    def skip(self, staged: Any, step: int) -> None:  # noqa: B027
        """Delete the files staged for `step`, which the target already holds."""

    def abandon(self, staged: Any) -> None:  # noqa: B027
        """Delete the `staged` files of a target that does not exist any more."""

    @abstractmethod
    def bar(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        """Write an empty commit with `commit_metadata`, whatever the target's state, so that its epoch can never be
        written later.
        """

    def disappeared(self) -> SinkError:
        """Return the error for a target that should exist and does not."""
        return TargetDroppedError(f"{self.location} disappeared. Read its source table anew.")

    def taken(self) -> SinkError:
        """Return the error for another writer's target, if the configuration does not allow its use."""
        return occupied_error(self.location, "route the table to another name")

    def require_own(self, *, alone: bool, on_existing: str) -> None:
        """Raise `TargetExistsError` if some rows of the target may belong to other writers. Called before all rows are
        removed.

        Called if the source table was truncated or is resnapshotted. `alone` is True if all rows are of this pipeline,
        and False if the target was adopted or another pipeline writes to it. If `on_existing` is ``replace``, no error
        is raised.
        """
        if not alone and on_existing != "replace":
            raise TargetExistsError(
                f"{self.location} may have rows of others, and its source table was emptied or begins again: they "
                "would go with the pipeline's own. Nothing was written. Set pipeline.on_existing to "
                '"replace" to have all rows removed, or move the target away.'
            )

    def went_back(self, reached: int, record: CommitVector | None) -> SinkError:
        """Return the error for a target that held epoch `reached` and now holds `record`."""
        return TargetDroppedError(
            f"{self.location} held epoch {reached} and now holds {has_only(record)}: it was restored from an older "
            "copy. Nothing more was written. Bring back a copy that has the epoch and start again, or read its source "
            "table anew."
        )


def exchanged(location: str, record: CommitVector) -> SinkError:
    """Return the error for a target that holds the expected epoch of another target, in `record`."""
    return TargetDroppedError(
        f"{location} holds an epoch {record.epoch} that was not written to it with this state: it was exchanged with "
        "another target, or restored and then written with a copy of this state. Nothing more was written. Bring its "
        "own version back and start again, or read its source table anew."
    )


def has_only(record: CommitVector | None) -> str:
    """Return a text about what a target holds that lost epochs."""
    return "nothing of this pipeline" if record is None else f"only epoch {record.epoch}"


TargetT = TypeVar("TargetT", bound=Target)


class StageBatch:
    """The stage tasks of several targets, which run together.

    `run` passes each result to the caller that added its task.
    """

    def __init__(self) -> None:
        self._tasks: list[StageTask[Any]] = []
        self._takers: list[Callable[[Any], None]] = []

    def add(self, task: StageTask[ResultT], take: Callable[[ResultT], None]) -> None:
        self._tasks.append(task)
        self._takers.append(take)

    def run(self, run_tasks: TaskRunner) -> None:
        results = run_tasks(self._tasks) if self._tasks else []
        for take, result in zip(self._takers, results, strict=True):
            take(result)


class TargetVectors:
    """The newest vector of each target that this process has seen, and the targets that later held an older vector."""

    def __init__(self) -> None:
        self._vectors: dict[TableId, CommitVector] = {}
        #: For each target the digest of the epoch that this process last tried to write. The epoch may have been
        #: written although the answer was lost.
        self._tried: dict[TableId, int] = {}
        #: For each target that held less than before, the epoch in which this was found.
        self._went_back: dict[TableId, int] = {}

    def of(self, target: TableId) -> CommitVector | None:
        """Return the newest vector with which the target was read or written; None if there is none."""
        return self._vectors.get(target)

    def note(self, target: TableId, record: CommitVector) -> None:
        """Note that the target holds this vector."""
        self._vectors[target] = max(record, self._vectors.get(target, record), key=lambda one: one.progress)

    def tries(self, target: TableId, record: CommitVector | None, goal: CommitVector) -> None:
        """Note that this process is about to write `goal` to a target with `record`.

        Raises `FencedError` if a driver with another copy of this state has written later epochs to the target.
        """
        # `holds` judges an epoch of the same number.
        if record is not None and record.epoch != goal.epoch and self.is_of_copy(target, record):
            raise written_by_copy(target, record)
        self._tried[target] = goal.digest

    def digests(self, target: TableId, goal: CommitVector) -> tuple[int, ...]:
        """Return the digests that the target's record may have now, beside that of the vector which was seen last."""
        return goal.digest, self._tried.get(target, 0)

    def is_of_copy(self, target: TableId, record: CommitVector) -> bool:
        """Return True if the target has a later epoch that this process did not try to write."""
        return is_of_copy(record, self.of(target), (self._tried.get(target, 0),))

    def went_back(self, target: TableId, epoch: int) -> None:
        """Note that the target, which was to get `epoch`, holds less than before and is refused."""
        self._went_back[target] = epoch

    def is_refused(self, target: TableId) -> bool:
        """Return True if `went_back` was called for the target, and no resnapshot began since."""
        return target in self._went_back

    def is_over(self, state: TargetState, work: TableCommit) -> bool:
        """Return True if the known vector of a target no longer matters, because its source table is resnapshotted with
        `work`. That holds only if the target does not exist any more, or was refused in an earlier epoch. If a merged
        target gets an additional source table, its vector still matters, because the rows of the other source tables
        stay.
        """
        reached = self.of(work.target)
        if reached is None or reached.epoch >= work.epoch:
            return False
        return not isinstance(state, OwnTarget) or self._went_back.get(work.target, work.epoch) < work.epoch

    def forget(self, target: TableId) -> None:
        """Forget the target's history."""
        self._vectors.pop(target, None)
        self._went_back.pop(target, None)


class ExactlyOnceSink(Sink, Generic[TargetT]):
    """An implementation of `raycdc.sinks.api.Sink` that calls the verbs of a `Target`; see the module's docstring. A
    sink derives from it and implements `opened`, `prepare` and, if needed, `check_work` and `after_commit`. Several
    threads may work on different targets, but only one thread on a target at a time.
    """

    can_replace = True
    #: The name of the sink in the configuration.
    kind: ClassVar[str]

    _context: SinkContext

    def __init__(self) -> None:
        self._reached = TargetVectors()

    @abstractmethod
    def opened(self, target: TableId, *, writes: bool) -> AbstractContextManager[TargetT]:
        """Open the target until the block ends.

        If `writes` is True, other writers are locked out during the block, or their commits make the verbs fail. If
        there is a transaction, it is committed when the block ends without an error.
        """

    def check_work(self, work: TableCommit) -> None:
        """Raise `SinkError` if this kind of target cannot have the columns, the key or the names of `work`. Changes
        nothing.
        """

    @abstractmethod
    def prepare(self, work: TableCommit, batch: StageBatch) -> Any:
        """Add tasks to `batch` that write the rows of `work` to places that readers of the target do not see.

        Return the value `staged` that the verbs get. The results of the tasks complete this value before any verb is
        called. A driver that dies leaves its staged files behind; `after_commit` should remove older ones.
        """

    def after_commit(self, work: TableCommit, staged: Any) -> None:
        """Delete staged files and do maintenance. Called when the target holds the epoch."""

    def forget(self, target: TableId) -> None:
        """Forget the vector of a target that is created again. A sink that keeps more state about each target overrides
        this method.
        """
        self._reached.forget(target)

    def open(self, context: SinkContext) -> None:
        self.inspect(context)

    def inspect(self, context: SinkContext) -> None:
        check_write(self.kind, self.writes, context.write)
        self._context = context

    def committed(self, target: TableId) -> CommitVector | None:
        with self.opened(target, writes=False) as handle:
            state = handle.read_state()
        # An epoch of another copy of the state stays unknown, so that the next commit is refused.
        if state.vector is not None and not self._reached.is_of_copy(target, state.vector):
            self._reached.note(target, state.vector)
        return state.vector

    def require_free(self, target: TableId) -> None:
        with self.opened(target, writes=False) as handle:
            state = handle.read_state()
            if isinstance(state, ForeignTarget) and self._on_existing(handle, state) == "merge":
                handle.require_adoptable()

    def apply_schema(self, work: TableCommit) -> None:
        check_changes(work, self._context.rules)
        self.check_work(work)
        commit_metadata = CommitMetadata.of(work, STEP_SCHEMA)
        with self.opened(work.target, writes=True) as target:
            state = self._state_of(target, work, commit_metadata)
            match state:
                case OwnTarget() | ForeignTarget(unusable=None) if work.replaces and not holds(
                    state.vector, commit_metadata.vector, work.target
                ):
                    # The user requested that any target is replaced, so its writer does not matter.
                    target.replace(work, commit_metadata)
                case MissingTarget(lost=None) if self._is_made_by_commit(work):
                    return
                case OwnTarget(vector):
                    if not holds(vector, commit_metadata.vector, work.target):
                        self._evolve(target, work, commit_metadata)
                case _:
                    self._begin(target, state, work, commit_metadata)
        self._reached.note(work.target, commit_metadata.vector)

    def stage(self, commits: Sequence[TableCommit]) -> Mapping[TableId, Any]:
        batch = StageBatch()
        staged = {work.target: self.prepare(work, batch) for work in commits}
        batch.run(self._context.run_tasks)
        return staged

    def commit(self, work: TableCommit, staged: Any) -> None:
        commit_metadata = CommitMetadata.of(work, STEP_LAST)
        with self.opened(work.target, writes=True) as target:
            try:
                state = self._state_of(target, work, commit_metadata)
            except TargetDroppedError:
                target.abandon(staged)
                raise
            if self._is_made_by_commit(work) and not isinstance(state, OwnTarget):
                reach("in_commit")
                # Another writer may have created the target since the schema was applied.
                self._begin(target, state, work, commit_metadata)
                state = OwnTarget(commit_metadata.vector)
            if not isinstance(state, OwnTarget):
                target.abandon(staged)
                raise target.disappeared()
            require_not_barred(state.vector, commit_metadata.vector, work.target)
            steps = target.steps(work, staged) or (STEP_LAST,)
            for number, step in enumerate(steps, 1):
                # The last step of the epoch is recorded as `STEP_LAST`, which shows that the target holds the epoch.
                commit_metadata = CommitMetadata.of(work, STEP_LAST if number == len(steps) else step)
                if holds(state.vector, commit_metadata.vector, work.target):
                    target.skip(staged, step)
                    continue
                if target.vanished(staged, step):
                    staged = self.stage([work])[work.target]
                target.write(work, staged, step, commit_metadata)
        self._reached.note(work.target, commit_metadata.vector)
        self.after_commit(work, staged)

    def tombstone(self, work: TableCommit) -> None:
        commit_metadata = CommitMetadata.of(work, STEP_TOMBSTONE)
        with self.opened(work.target, writes=True) as target:
            record = _record(self._state_of(target, work, commit_metadata))
            if half_written(record, commit_metadata.vector):
                raise SinkError(
                    f"Epoch {work.epoch} reached {work.target} while it was being dropped: a driver that was replaced "
                    "had not ended. Start again; the epoch will be kept."
                )
            if not holds(record, commit_metadata.vector, work.target):
                target.bar(work, commit_metadata)
        self._reached.note(work.target, commit_metadata.vector)

    def _begin(
        self,
        target: TargetT,
        state: MissingTarget | UnfinishedTarget | ForeignTarget,
        work: TableCommit,
        commit_metadata: CommitMetadata,
    ) -> None:
        """Create the target of `work`, or treat an existing one according to ``pipeline.on_existing``."""
        match state:
            case MissingTarget(lost):
                # A tombstone may concern another writer's earlier target.
                anew = lost is None or lost.step == STEP_TOMBSTONE or replaces_all_rows(work, self._context.rules)
                if not creates(work) or not anew or (lost is not None and lost.epoch >= work.epoch):
                    raise target.disappeared()
                target.create(work, commit_metadata)
            case UnfinishedTarget():
                target.begin(work, commit_metadata)
            case ForeignTarget():
                on_existing = self._on_existing(target, state)
                (target.replace if on_existing == "replace" else target.adopt)(work, commit_metadata)
            case _:
                assert_never(state)

    def _is_made_by_commit(self, work: TableCommit) -> bool:
        """Return True if the target is missing and gets no rows, so that the epoch's commit can create it; this saves
        one commit. A partitioned target is created before that. Its next rows may be staged before this commit, in
        folders named by partition values, and these folders would look like another writer's files.
        """
        return self.makes_at_once and creates(work) and not work.segments and not work.layout.partitions

    @property
    def _upsert(self) -> bool:
        return self._context.write == UPSERT

    def _state_of(self, target: TargetT, work: TableCommit, commit_metadata: CommitMetadata) -> TargetState:
        """Call `recover` and return the state of `target`. Raises an error if a newer driver wrote the target, or if it
        holds less than before.
        """
        state = target.read_state(work.epoch)
        holds(_record(state), commit_metadata.vector, target.name)
        if replaces_all_rows(work, self._context.rules) and self._reached.is_over(state, work):
            if not self._upsert and not self._reached.is_refused(work.target):
                # A table may be resnapshotted automatically, so the loss of the earlier rows is reported.
                self._context.warn(
                    f"{target.location} was gone, and is made anew as its source table begins again: what it had of "
                    f"epochs before {work.epoch} is not there."
                )
            self.forget(work.target)
            # A handle may still have the old table.
            state = target.read_state(work.epoch)
        record = _record(state)
        reached = self._reached.of(target.name)
        self._reached.tries(target.name, record, commit_metadata.vector)
        if target.remembers and reached is not None and (record is None or record.progress < reached.progress):
            self._reached.went_back(target.name, work.epoch)
            raise target.went_back(reached.epoch, record)
        if record is not None and is_exchanged(record, reached):
            self._reached.went_back(target.name, work.epoch)
            raise exchanged(target.location, record)
        if reached is not None and not target.remembers and isinstance(state, MissingTarget):
            raise target.disappeared()
        if target.recover(commit_metadata):
            state = target.read_state(commit_metadata.vector.epoch)
            record = _record(state)
        if record is not None:
            self._reached.note(target.name, record)
        return state

    def _evolve(self, target: TargetT, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        rules = self._context.rules
        if rules.empties(rules.followed(work.changes)):
            target.require_own(alone=target.is_alone(), on_existing=self._context.on_existing)
        target.evolve(work, commit_metadata)

    def _on_existing(self, target: TargetT, state: ForeignTarget) -> str:
        """Return ``merge`` or ``replace`` for another writer's target. Raises an error if it must not be used."""
        if state.unusable is not None:
            raise state.unusable
        if self._context.on_existing == "fail":
            raise target.taken()
        return self._context.on_existing


def _record(state: TargetState) -> CommitVector | None:
    """Return the vector in the record, even if the target does not exist any more."""
    return state.vector or (state.lost if isinstance(state, MissingTarget) else None)
