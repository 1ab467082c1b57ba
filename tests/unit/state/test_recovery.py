"""Recovery: every line of the decision table, and that contradictions come before everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from raycdc.model import TableId
from raycdc.state.manifests.manifest import Manifest, TableEpoch, target_digest
from raycdc.state.opaque import EnumeratorState
from raycdc.state.recovery import (
    STEP_APPEND,
    STEP_LAST,
    STEP_SCHEMA,
    STEP_TOMBSTONE,
    CommitVector,
    Decision,
    Frozen,
    Refuse,
    Replay,
    Sealed,
    Tombstone,
    WriteRecord,
    ahead,
    decide,
    strangers,
)

A = TableId("shop", "a")
B = TableId("shop", "b")
EPOCH = 7
DONE = CommitVector(EPOCH, STEP_LAST)
BEFORE = CommitVector(EPOCH - 1, STEP_LAST)
LATER = CommitVector(EPOCH + 1, STEP_APPEND)
HALF = CommitVector(EPOCH, STEP_APPEND)
SHAPED = CommitVector(EPOCH, STEP_SCHEMA)
BARRED = CommitVector(EPOCH, STEP_TOMBSTONE)

MANIFEST = Manifest(
    epoch=EPOCH,
    generation=1,
    created_ms=0,
    from_splits={},
    to_splits={},
    enumerator=EnumeratorState.from_json({}),
    tables={A: TableEpoch("f", snapshot=False), B: TableEpoch("f", snapshot=False)},
)


def decision(
    a: CommitVector | None,
    b: CommitVector | None,
    *,
    intact: bool,
    lost: tuple[TableId, ...] = (A, B),
    recorded: dict[str, tuple[int, int]] | None = None,
    renamed: tuple[TableId, ...] = (),
) -> Decision:
    gone = () if intact else lost
    newest = EPOCH + 2
    return decide(MANIFEST, {A: a, B: b}, lost=gone, recorded=recorded or {}, newest_epoch=newest, renamed=renamed)


@pytest.mark.parametrize("intact", [True, False])
@pytest.mark.parametrize(("a", "b"), [(DONE, DONE), (DONE, LATER)])
def test_all_tables_hold_it_so_only_the_record_is_missing(a: CommitVector, b: CommitVector, intact: bool) -> None:
    assert decision(a, b, intact=intact) == WriteRecord()


@pytest.mark.parametrize(
    ("a", "b", "lacking"),
    [
        (None, None, (A, B)),
        (BEFORE, None, (A, B)),
        (DONE, BEFORE, (B,)),
        (HALF, DONE, (A,)),
        (SHAPED, DONE, (A,)),
    ],
)
def test_intact_segments_are_replayed_for_the_tables_that_lack_them(
    a: CommitVector | None, b: CommitVector | None, lacking: tuple[TableId, ...]
) -> None:
    assert decision(a, b, intact=True) == Replay(lacking)


@pytest.mark.parametrize(
    ("a", "b", "lost", "again", "replay"),
    [
        (DONE, BEFORE, (A, B), (B,), ()),
        (DONE, None, (B,), (B,), ()),
        (HALF, BEFORE, (A, B), (A, B), ()),
        (HALF, BEFORE, (B,), (B,), (A,)),
        (HALF, None, (A,), (A,), (B,)),
    ],
)
def test_an_epoch_that_some_tables_hold_is_completed_by_those_whose_rows_are_gone_beginning_again(
    a: CommitVector,
    b: CommitVector | None,
    lost: tuple[TableId, ...],
    again: tuple[TableId, ...],
    replay: tuple[TableId, ...],
) -> None:
    match decision(a, b, intact=False, lost=lost):
        case Frozen(begin_again, written, text, barred):
            assert (begin_again, written, barred) == (again, replay, ())
            assert "Epoch 7 is in shop.a but not, or not wholly, in" in text
            assert str(again[-1]) in text
        case other:
            pytest.fail(f"{other}")


def test_a_target_of_the_recorded_epoch_is_told_from_another_table_and_from_another_copy_of_the_state() -> None:
    def of(digest: int) -> CommitVector:
        return CommitVector(EPOCH, STEP_LAST, 1, digest)

    ours = {str(table): target_digest(MANIFEST.digest, table) for table in (A, B)}
    recorded = dict.fromkeys(ours, (EPOCH, STEP_LAST))
    right = {A: of(ours[str(A)]), B: of(ours[str(B)])}
    swapped = {A: right[B], B: right[A]}
    copied = {A: right[A], B: of(target_digest(replace(MANIFEST, created_ms=1).digest, B))}
    unknown = {A: of(0), B: None}
    before = {A: BEFORE, B: of(ours[str(B)])}
    beyond = {A: CommitVector(EPOCH + 1, STEP_LAST), B: right[B]}

    def found(holds: Mapping[TableId, CommitVector | None], committed: int = EPOCH) -> set[TableId]:
        return set(strangers(holds, recorded=recorded, digests=ours, committed=committed))

    assert [found(holds) for holds in (right, unknown, before)] == [set()] * 3
    assert [found(holds) for holds in (swapped, copied)] == [{A, B}, {B}]
    assert (found(beyond), found(beyond, EPOCH + 1)) == (set(), {A}), "an epoch after the record is one to be judged"
    none = strangers(swapped, recorded=recorded, digests={}, committed=EPOCH)
    assert none == {}, "a record of an older version has no digests"
    text = strangers(copied, recorded=recorded, digests=ours, committed=EPOCH)[B]
    assert "shop.b holds an epoch 7 that was not written to it with this state" in text


def test_segments_of_tables_that_hold_the_epoch_are_not_needed() -> None:
    assert decision(DONE, BEFORE, intact=False, lost=(A,)) == Replay((B,))


@pytest.mark.parametrize(("a", "b"), [(None, None), (BEFORE, None), (SHAPED, BEFORE)])
def test_lost_segments_that_nobody_holds_are_read_again(a: CommitVector | None, b: CommitVector | None) -> None:
    assert decision(a, b, intact=False) == Tombstone((A, B))


def test_columns_that_were_renamed_keep_the_epoch_from_being_dropped() -> None:
    """It would come again under another number, and names that were exchanged be exchanged again."""
    found = decision(SHAPED, BEFORE, intact=False, renamed=(A,))
    assert isinstance(found, Frozen)
    assert (found.again, found.replay) == ((A, B), ())
    found = decision(SHAPED, BEFORE, intact=False, lost=(B,), renamed=(A,))
    assert isinstance(found, Frozen)
    assert (found.again, found.replay) == ((B,), (A,))
    assert decision(SHAPED, BEFORE, intact=False, renamed=(B,)) == Tombstone((A, B))


@pytest.mark.parametrize("intact", [True, False])
def test_an_interrupted_dropping_is_carried_on_whatever_else_is_true(intact: bool) -> None:
    assert decision(BARRED, BEFORE, intact=intact) == Tombstone((A, B))
    assert decision(BARRED, SHAPED, intact=intact) == Tombstone((A, B))
    assert decision(CommitVector(EPOCH + 1, STEP_TOMBSTONE), None, intact=intact) == Tombstone((A, B))


@pytest.mark.parametrize(
    ("held", "intact", "again", "replay"),
    [(DONE, True, (), ()), (DONE, False, (), ()), (HALF, True, (), (B,)), (HALF, False, (B,), ())],
)
def test_an_epoch_that_was_barred_from_one_table_and_written_to_another_is_kept_for_that_one(
    held: CommitVector, intact: bool, again: tuple[TableId, ...], replay: tuple[TableId, ...]
) -> None:
    match decision(BARRED, held, intact=intact):
        case Frozen(begin_again, written, text, barred):
            assert (begin_again, written, barred) == (again, replay, (A,))
            assert "Epoch 7 is in shop.b" in text
        case other:
            pytest.fail(f"{other}")


def test_a_tombstone_of_an_earlier_epoch_says_nothing_about_this_one() -> None:
    assert decision(CommitVector(EPOCH - 1, STEP_TOMBSTONE), None, intact=True) == Replay((A, B))


@pytest.mark.parametrize("holds", [None, CommitVector(2, STEP_LAST), CommitVector(5, STEP_APPEND)])
def test_a_table_behind_its_record_is_refused(holds: CommitVector | None) -> None:
    match decision(holds, None, intact=True, recorded={"shop.a": (5, STEP_LAST)}):
        case Refuse(text):
            assert "shop.a holds" in text
            assert "epoch 5 was committed to it" in text
        case other:
            pytest.fail(f"{other}")


def test_a_table_ahead_of_the_state_is_refused() -> None:
    match decision(CommitVector(EPOCH + 3, STEP_LAST), None, intact=True):
        case Refuse(text):
            assert "shop.a holds epoch 10, but this state knows epochs up to 9" in text
        case other:
            pytest.fail(f"{other}")


@pytest.mark.parametrize(
    ("generation", "targets", "refused"),
    [(3, (A,), False), (4, (A,), True), (3, (), True), (2, (A,), False)],
)
def test_what_a_table_holds_beyond_the_record_must_be_an_epoch_of_ours_that_has_something_for_it(
    generation: int, targets: tuple[TableId, ...], refused: bool
) -> None:
    """`generation` is of the epoch that is sealed here; the table was written in generation 3."""
    holds = {A: CommitVector(EPOCH, STEP_LAST, 3)}
    found = ahead(holds, recorded={}, sealed={EPOCH: Sealed(generation, targets)})
    assert isinstance(found, Refuse) == refused
