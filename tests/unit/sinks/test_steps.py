"""The exactly-once protocol of sinks, verb by verb: which one is called where a target stands, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from raycdc.errors import (
    ChangeRefusedError,
    ColumnsRefusedError,
    FencedError,
    SinkError,
    TargetDroppedError,
    TargetExistsError,
)
from raycdc.model import TableId
from raycdc.model.evolution.events import (
    AlterPrimaryKeyEvent,
    CreateTableEvent,
    DropTableEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
)
from raycdc.segments import run_in_process
from raycdc.sinks.api import (
    CHANGELOG,
    STEP_APPEND,
    STEP_LAST,
    STEP_MERGE,
    STEP_SCHEMA,
    STEP_TOMBSTONE,
    UPSERT,
    CommitVector,
    SinkContext,
    TableCommit,
)
from raycdc.sinks.steps import (
    CommitMetadata,
    ExactlyOnceSink,
    ForeignTarget,
    MissingTarget,
    OwnTarget,
    StageBatch,
    Target,
    TargetState,
    UnfinishedTarget,
)
from raycdc.testing.epochs import simple_schema

ORDERS = TableId("shop", "orders")
CREATED = CreateTableEvent(ORDERS, simple_schema())


class Noted(Target):
    """Stands where it is told to, and notes each verb with the step and the generation of its stamp."""

    #: Whether it was made by the pipeline, and what somebody took of what was staged for it.
    alone = True
    taken_away: ClassVar[list[str]] = []

    def __init__(self, standing: TargetState, calls: list[Any], *, half_done: bool, steps: Sequence[int]) -> None:
        super().__init__(ORDERS, "The target shop.orders")
        self.now = standing
        self._calls = calls
        self._half_done = half_done
        self._steps = steps

    def read_state(self, epoch: int | None = None) -> TargetState:
        return self.now

    def recover(self, stamp: CommitMetadata) -> bool:
        if self._half_done:
            self._calls.append(("recover", stamp.vector.generation))
            self._half_done = False
            self.now = OwnTarget(CommitVector(5, STEP_SCHEMA, stamp.vector.generation))
            return True
        return False

    def create(self, work: TableCommit, stamp: CommitMetadata) -> None:
        self._calls.append(("create", stamp.vector.step))

    def begin(self, work: TableCommit, stamp: CommitMetadata) -> None:
        self._calls.append(("begin", stamp.vector.step))

    def replace(self, work: TableCommit, stamp: CommitMetadata) -> None:
        self._calls.append(("replace", stamp.vector.step))

    def adopt(self, work: TableCommit, stamp: CommitMetadata) -> None:
        self._calls.append(("adopt", stamp.vector.step))

    def evolve(self, work: TableCommit, stamp: CommitMetadata) -> None:
        self._calls.append(("evolve", stamp.vector.step))

    def steps(self, work: TableCommit, staged: Any) -> Sequence[int]:
        return self._steps

    def write(self, work: TableCommit, staged: Any, step: int, stamp: CommitMetadata) -> None:
        self._calls.append(("write", step, stamp.vector.step))

    def is_alone(self) -> bool:
        return self.alone

    def vanished(self, staged: Any, step: int) -> Sequence[str]:
        return [self.taken_away.pop()] if self.taken_away else []

    def skip(self, staged: Any, step: int) -> None:
        self._calls.append(("skip", step))

    def bar(self, work: TableCommit, stamp: CommitMetadata) -> None:
        self._calls.append(("bar", stamp.vector.step))


class NotedSink(ExactlyOnceSink[Noted]):
    """One target, which stands at `standing`."""

    kind: ClassVar[str] = "noted"
    writes: ClassVar[tuple[str, ...]] = (CHANGELOG, UPSERT)

    def __init__(
        self, standing: TargetState, *, on_existing: str = "fail", half_done: bool = False, steps: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.read_state = standing
        self.calls: list[Any] = []
        self._made: dict[str, Any] = {"half_done": half_done, "steps": steps}
        self.open(SinkContext("app", CHANGELOG, run_in_process, on_existing))

    @contextmanager
    def opened(self, target: TableId, *, writes: bool) -> Iterator[Noted]:
        yield Noted(self.read_state, self.calls, **self._made)

    def prepare(self, work: TableCommit, batch: StageBatch) -> None:
        self.calls.append("prepare")

    def after_commit(self, work: TableCommit, staged: Any) -> None:
        self.calls.append("after_commit")


def work(epoch: int = 5, *, creates: bool = False, generation: int = 2) -> TableCommit:
    changes = (CREATED,) if creates else ()
    return TableCommit(epoch, generation, ORDERS, ORDERS, simple_schema(), changes, (), {})


def held(epoch: int, step: int, generation: int = 1) -> CommitVector:
    return CommitVector(epoch, step, generation)


@pytest.mark.parametrize(
    ("standing", "on_existing", "verb"),
    [
        (MissingTarget(), "fail", "create"),
        (MissingTarget(vector=held(5, STEP_SCHEMA)), "fail", "create"),
        (UnfinishedTarget(), "fail", "begin"),
        (ForeignTarget(), "merge", "adopt"),
        (ForeignTarget(), "replace", "replace"),
        (OwnTarget(held(4, STEP_LAST)), "fail", "evolve"),
        (OwnTarget(), "fail", "evolve"),
    ],
)
def test_a_schema_change_does_what_the_standing_says(standing: TargetState, on_existing: str, verb: str) -> None:
    sink = NotedSink(standing, on_existing=on_existing)
    sink.apply_schema(work(creates=True))
    assert sink.calls == [(verb, STEP_SCHEMA)]


@pytest.mark.parametrize("step", [STEP_SCHEMA, STEP_APPEND, STEP_LAST, STEP_TOMBSTONE])
def test_a_schema_change_that_is_held_is_not_made_again(step: int) -> None:
    sink = NotedSink(OwnTarget(held(5, step)))
    sink.apply_schema(work())
    assert sink.calls == []


def test_a_target_that_nobody_creates_disappeared() -> None:
    with pytest.raises(TargetDroppedError, match=r"The target shop\.orders disappeared"):
        NotedSink(MissingTarget()).apply_schema(work())


EMPTYING = frozenset({"drop_table", "truncate_table"})
DROPPED, EMPTIED = DropTableEvent(ORDERS), TruncateTableEvent(ORDERS)


@pytest.mark.parametrize(
    ("changes", "write", "left_out", "anew"),
    [
        ((EMPTIED, CREATED), UPSERT, frozenset(), True),
        ((EMPTIED, CREATED), UPSERT, EMPTYING, True),
        ((EMPTIED, CREATED), CHANGELOG, frozenset(), True),
        ((DROPPED, EMPTIED, CREATED), CHANGELOG, EMPTYING, True),
        ((DROPPED, CREATED), UPSERT, frozenset(), True),
        ((DROPPED, CREATED), UPSERT, {"truncate_table"}, True),
        ((DROPPED, CREATED), UPSERT, {"drop_table"}, False),
        ((EMPTIED, DROPPED, CREATED), UPSERT, {"drop_table"}, True),
        ((EMPTIED, DROPPED, CREATED), UPSERT, EMPTYING, False),
        ((DROPPED, CREATED), CHANGELOG, frozenset(), False),
        ((EMPTIED, DROPPED, CREATED), CHANGELOG, frozenset(), False),
        # Dropped in an earlier epoch.
        ((CREATED,), UPSERT, frozenset(), True),
        ((CREATED,), UPSERT, {"drop_table"}, False),
        ((CREATED,), CHANGELOG, frozenset(), False),
        ((EMPTIED,), UPSERT, frozenset(), False),
    ],
)
@pytest.mark.parametrize("noted", [True, False])
def test_a_target_that_is_gone_is_made_anew_where_no_row_was_to_stay(
    changes: tuple[SchemaChangeEvent, ...], write: str, left_out: frozenset[str], *, anew: bool, noted: bool
) -> None:
    """Whether the target's record says what it was, or this process only."""
    sink, told = (
        NotedSink(MissingTarget(lost=held(4, STEP_LAST)) if noted else OwnTarget(held(4, STEP_LAST))),
        list[str](),
    )
    sink.open(SinkContext("app", write, run_in_process, left_out=frozenset(left_out), warn=told.append))
    if not noted:
        sink.committed(ORDERS)
        sink.read_state = MissingTarget()
    begins = replace(work(), changes=changes)
    if anew:
        sink.apply_schema(begins)
        assert sink.calls == [("create", STEP_SCHEMA)]
        assert [text[:36] for text in told] == ["The target shop.orders was gone, and"] * (
            write == CHANGELOG and not noted
        )
    else:
        with pytest.raises(TargetDroppedError):
            sink.apply_schema(begins)
        assert sink.calls == []


def test_a_target_that_was_only_barred_is_made() -> None:
    sink = NotedSink(MissingTarget(lost=held(4, STEP_TOMBSTONE)))
    sink.apply_schema(work(creates=True))
    assert sink.calls == [("create", STEP_SCHEMA)]


def test_a_target_that_held_the_epoch_and_is_gone_is_not_made_again() -> None:
    anew = replace(work(), changes=(EMPTIED, CREATED))
    for begins in (work(creates=True), anew):
        with pytest.raises(TargetDroppedError, match="disappeared"):
            NotedSink(MissingTarget(lost=held(5, STEP_SCHEMA))).apply_schema(begins)


@pytest.mark.parametrize("on_existing", ["merge", "replace"])
def test_what_cannot_be_used_is_refused_whatever_is_allowed(on_existing: str) -> None:
    sink = NotedSink(ForeignTarget(unusable=TargetExistsError("a view")), on_existing=on_existing)
    with pytest.raises(TargetExistsError, match="a view"):
        sink.apply_schema(work(creates=True))
    with pytest.raises(TargetExistsError, match="a view"):
        sink.require_free(ORDERS)


@pytest.mark.parametrize(
    "standing", [MissingTarget(), UnfinishedTarget(), ForeignTarget(), MissingTarget(lost=held(4, STEP_LAST))]
)
def test_rows_are_committed_to_nothing_but_ones_own_target(standing: TargetState) -> None:
    with pytest.raises(TargetDroppedError, match="disappeared"):
        NotedSink(standing, on_existing="merge").commit(work(), None)


@pytest.mark.parametrize(
    ("step", "calls"),
    [
        (STEP_SCHEMA, [("write", STEP_APPEND, STEP_APPEND), ("write", STEP_MERGE, STEP_LAST)]),
        (STEP_APPEND, [("skip", STEP_APPEND), ("write", STEP_MERGE, STEP_LAST)]),
        (STEP_LAST, [("skip", STEP_APPEND), ("skip", STEP_MERGE)]),
    ],
)
def test_each_step_is_written_once_and_the_last_one_says_that_it_is(step: int, calls: list[Any]) -> None:
    sink = NotedSink(OwnTarget(held(5, step)), steps=(STEP_APPEND, STEP_MERGE))
    sink.commit(work(), None)
    assert sink.calls == [*calls, "after_commit"]


def test_an_epoch_without_steps_is_one() -> None:
    sink = NotedSink(OwnTarget(held(4, STEP_LAST)))
    sink.commit(work(), None)
    assert sink.calls == [("write", STEP_LAST, STEP_LAST), "after_commit"]


def test_a_newer_driver_fences_every_verb() -> None:
    for act in ("apply_schema", "commit", "tombstone"):
        sink = NotedSink(OwnTarget(held(3, STEP_LAST, generation=3)))
        with pytest.raises(FencedError, match=r"newer driver \(generation 3\)"):
            getattr(sink, act)(*((work(), None) if act == "commit" else (work(),)))
        assert sink.calls == []


def test_the_record_of_a_target_that_is_gone_fences_too() -> None:
    sink = NotedSink(MissingTarget(lost=held(3, STEP_LAST, generation=3)))
    with pytest.raises(FencedError, match=r"newer driver \(generation 3\)"):
        sink.apply_schema(work(creates=True))
    with pytest.raises(SinkError, match="while it was being dropped"):
        NotedSink(MissingTarget(lost=held(5, STEP_APPEND))).tombstone(work())


def test_a_target_that_went_back_is_refused() -> None:
    sink = NotedSink(OwnTarget(held(4, STEP_LAST)))
    sink.commit(work(), None)
    sink.read_state = OwnTarget(held(4, STEP_LAST))
    for act in (sink.apply_schema, sink.tombstone):
        with pytest.raises(TargetDroppedError, match="held epoch 5 and now holds only epoch 4"):
            act(work(6))
    sink.read_state = MissingTarget()
    with pytest.raises(TargetDroppedError, match="held epoch 5 and now holds nothing of this pipeline"):
        sink.commit(work(6), None)


def test_what_a_start_found_counts_when_a_target_goes_back() -> None:
    sink = NotedSink(OwnTarget(held(4, STEP_LAST)))
    assert sink.committed(ORDERS) == held(4, STEP_LAST)
    sink.read_state = OwnTarget(held(3, STEP_LAST))
    with pytest.raises(TargetDroppedError, match="held epoch 4"):
        sink.commit(work(), None)


def test_what_was_left_half_done_is_finished_first() -> None:
    sink = NotedSink(OwnTarget(held(5, STEP_SCHEMA)), half_done=True)
    sink.commit(work(), None)
    assert sink.calls == [("recover", 2), ("write", STEP_LAST, STEP_LAST), "after_commit"]


@pytest.mark.parametrize(
    "standing",
    [MissingTarget(), MissingTarget(lost=held(4, STEP_LAST)), UnfinishedTarget(), ForeignTarget(), OwnTarget()],
)
def test_a_tombstone_bars_whatever_lies_there(standing: TargetState) -> None:
    sink = NotedSink(standing)
    sink.tombstone(work())
    assert sink.calls == [("bar", STEP_TOMBSTONE)]


def test_a_tombstone_that_is_held_is_not_written_again() -> None:
    sink = NotedSink(OwnTarget(held(5, STEP_TOMBSTONE)))
    sink.tombstone(work())
    assert sink.calls == []


@pytest.mark.parametrize("step", [STEP_APPEND, STEP_MERGE, STEP_LAST])
def test_a_tombstone_over_rows_is_refused(step: int) -> None:
    sink = NotedSink(OwnTarget(held(5, step)))
    with pytest.raises(SinkError, match=r"Epoch 5 reached shop\.orders while it was being dropped"):
        sink.tombstone(work())
    assert sink.calls == []


@pytest.mark.parametrize("epoch", [5, 6])
def test_an_epoch_that_a_tombstone_bars_is_not_taken_for_one_that_is_held(epoch: int) -> None:
    sink = NotedSink(OwnTarget(held(epoch, STEP_TOMBSTONE)))
    with pytest.raises(SinkError, match=r"Epoch 5 of shop\.orders was barred while it was being committed"):
        sink.commit(work(), None)
    assert sink.calls == []


def test_a_tombstone_of_an_epoch_before_bars_nothing() -> None:
    sink = NotedSink(OwnTarget(held(4, STEP_TOMBSTONE)))
    sink.commit(work(), None)
    assert sink.calls == [("write", STEP_LAST, STEP_LAST), "after_commit"]


def test_what_is_gone_is_held_by_nobody() -> None:
    assert NotedSink(MissingTarget(lost=held(4, STEP_LAST))).committed(ORDERS) is None
    assert NotedSink(MissingTarget(vector=held(4, STEP_TOMBSTONE))).committed(ORDERS) == held(4, STEP_TOMBSTONE)


def test_a_change_that_no_target_follows_is_refused_before_anything_is_done() -> None:
    sink = NotedSink(OwnTarget(held(4, STEP_LAST)))
    with pytest.raises(ChangeRefusedError):
        sink.apply_schema(replace(work(), changes=(AlterPrimaryKeyEvent(ORDERS, ("name",)),)))
    assert sink.calls == []


def test_columns_that_a_kind_of_target_cannot_have_are_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: NotedSink, work: TableCommit) -> None:
        raise ColumnsRefusedError(f"{work.target}: no such columns here")

    sink = NotedSink(OwnTarget(held(4, STEP_LAST)))
    monkeypatch.setattr(NotedSink, "check_work", refuse)
    with pytest.raises(ColumnsRefusedError):
        sink.apply_schema(work())
    assert sink.calls == []


@pytest.mark.parametrize(("on_existing", "empties"), [("merge", False), ("fail", False), ("replace", True)])
def test_a_source_table_that_is_emptied_takes_no_rows_of_others_with_it(
    on_existing: str, empties: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Noted, "alone", False)
    sink = NotedSink(OwnTarget(held(4, STEP_LAST)))
    sink.open(SinkContext("app", UPSERT, run_in_process, on_existing))
    emptied = replace(work(), changes=(TruncateTableEvent(ORDERS),))
    if empties:
        sink.apply_schema(emptied)
    else:
        with pytest.raises(TargetExistsError, match="may have rows of others"):
            sink.apply_schema(emptied)
    assert sink.calls == ([("evolve", STEP_SCHEMA)] if empties else [])


def test_staged_files_that_somebody_took_are_staged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = NotedSink(OwnTarget(held(4, STEP_LAST)), steps=(STEP_APPEND, STEP_MERGE))
    monkeypatch.setattr(Noted, "taken_away", ["part-1.parquet"])
    sink.commit(work(), None)
    assert sink.calls == [
        "prepare",
        ("write", STEP_APPEND, STEP_APPEND),
        ("write", STEP_MERGE, STEP_LAST),
        "after_commit",
    ]
