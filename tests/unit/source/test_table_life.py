"""A table is in one state, and only what the table of transitions has leads from it to another."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raycdc
from raycdc.errors import ProtocolError
from raycdc.model import TableId
from raycdc.source.snapshot.handoff.open_chunk import CHUNK_TRANSITIONS
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.tables.table_life import (
    TRANSITIONS,
    AsOf,
    Behind,
    CatchingUp,
    Dropped,
    Followed,
    InSnapshot,
    LeftAt,
    Live,
    Parked,
    ParkedPhase,
    ParkingCause,
    SnapshotState,
    TableState,
    TableStates,
    TableTransition,
    Unknown,
)
from raycdc.state.opaque import NO_NOTES, LogNotes, Position

TABLE = TableId("shop", "orders")
SNAPSHOT = SnapshotState("id", foldable=True, needs_null=False)
HERE = Position.from_json({"at": 1})
WHY = ParkingCause("a test says so", Position.from_json({"at": 7}), 0)

STATES: dict[type[TableState], TableState] = {
    Unknown: Unknown(),
    InSnapshot: InSnapshot("f1", announced=True, incarnation=2, snapshot=SNAPSHOT),
    AsOf: AsOf("f1", announced=True, incarnation=2, snapshot=SNAPSHOT, at=5),
    Behind: Behind("f1", announced=True, incarnation=2, at=5),
    Live: Live("f1", announced=True, incarnation=2),
    Parked: Parked("f1", True, 2, ParkedPhase.PARKED, "a test says so", Position.from_json({"at": 7}), 0),
    CatchingUp: CatchingUp("f1", announced=True, position=HERE, left=LeftAt(2, 7)),
    Dropped: Dropped("f1", announced=True, incarnation=2),
}

STEPS: dict[TableTransition, Callable[[TableStates], None]] = {
    TableTransition.FOUND: lambda lives: lives.found(TABLE, "f2"),
    TableTransition.ALTERED: lambda lives: lives.altered(TABLE, "f2"),
    TableTransition.ANNOUNCED: lambda lives: lives.announced(TABLE),
    TableTransition.OPENED: lambda lives: lives.opened_as_of(TABLE, 5),
    TableTransition.LOST: lambda lives: lives.lost(TABLE, 9),
    TableTransition.PUBLISHED: lambda lives: lives.published(TABLE, ((None, 10),), null_closed=False),
    TableTransition.COMPLETED: lambda lives: lives.completed(TABLE),
    TableTransition.PASSED: lambda lives: lives.passed(TABLE),
    TableTransition.DROPPED: lambda lives: lives.dropped(TABLE),
    TableTransition.PARKED: lambda lives: lives.parked(TABLE, WHY, announced=False),
    TableTransition.BEGUN: lambda lives: lives.resnapshot(TABLE, "f2", SNAPSHOT),
    TableTransition.CUT: lambda lives: lives.cut(),
    TableTransition.MOVED: lambda lives: lives.caught_up_to(TABLE, HERE, 9, NO_NOTES),
    TableTransition.JOINED: lambda lives: lives.joined(TABLE),
}


@pytest.mark.parametrize("step", TableTransition)
@pytest.mark.parametrize("kind", STATES)
def test_every_step_leads_where_the_table_says_and_no_other_is_taken(
    kind: type[TableState], step: TableTransition
) -> None:
    lives = TableStates({} if kind is Unknown else {TABLE: STATES[kind]}, changes=2)
    wanted = TRANSITIONS[kind].get(step)
    if wanted is not None:
        STEPS[step](lives)
        assert type(lives[TABLE]) is wanted
    elif step is TableTransition.CUT:
        # It is about all tables, and concerns those that are gone.
        STEPS[step](lives)
        assert lives[TABLE] == STATES[kind]
    else:
        with pytest.raises(AssertionError, match=str(TABLE)):
            STEPS[step](lives)
        assert lives[TABLE] == STATES[kind]


def test_a_parking_and_a_new_beginning_have_the_next_number_and_keep_what_targets_were_told() -> None:
    lives = TableStates({TABLE: Live("f1", announced=False, incarnation=0)}, changes=4)
    lives.parked(TABLE, WHY, announced=True)
    lives.resnapshot(TABLE, "f2", SNAPSHOT)
    assert lives[TABLE] == InSnapshot("f2", announced=True, incarnation=6, snapshot=SNAPSHOT)
    assert lives.changes == 6


def test_a_table_that_is_complete_is_behind_the_place_it_was_read_as_of() -> None:
    lives = TableStates({TABLE: STATES[InSnapshot]})
    lives.opened_as_of(TABLE, 40)
    lives.published(TABLE, ((None, None),), null_closed=True)
    lives.completed(TABLE)
    assert lives[TABLE] == Behind("f1", announced=True, incarnation=2, at=40)


json_values = st.none() | st.integers(-9, 9) | st.text(max_size=3)
snapshots = st.builds(
    SnapshotState,
    st.none() | st.just("id") | st.just(("a", "b")),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(json_values, json_values), max_size=3).map(tuple),
)
followed: st.SearchStrategy[Followed] = st.one_of(
    st.builds(InSnapshot, st.just("f"), st.booleans(), st.integers(0, 9), snapshots),
    st.builds(AsOf, st.just("f"), st.booleans(), st.integers(0, 9), snapshots, st.integers(0), st.none() | st.just(7)),
    st.builds(Behind, st.just("f"), st.booleans(), st.integers(0, 9), st.integers(0)),
    st.builds(Live, st.just("f"), st.booleans(), st.integers(0, 9)),
)


@given(followed)
@settings(max_examples=200)
def test_a_followed_table_comes_back_from_a_manifest_as_it_was(state: Followed) -> None:
    stream = StreamState(HERE, 1, {TABLE: state}, changes=9)
    document = stream.to_json()
    assert StreamState.from_json(document) == stream
    assert document["version"] == (2 if isinstance(state, AsOf | Behind) else 1)


@given(st.booleans(), st.booleans(), st.dictionaries(st.text(max_size=3), json_values, max_size=2))
@settings(max_examples=50)
def test_a_table_that_was_left_comes_back_from_a_manifest_as_it_was(
    announced: bool, gone: bool, notes: dict[str, object]
) -> None:
    left = LeftAt(3, 17, LogNotes(notes))
    paused = Parked("f", announced, 5, ParkedPhase.PAUSED, "paused by the user", HERE, 0, left=left)
    stream = StreamState(HERE, 40, parked={TABLE: paused}, changes=9)
    assert StreamState.from_json(stream.to_json()) == stream
    going_on = StreamState(HERE, 40, changes=9, catching_up={TABLE: CatchingUp("f", announced, HERE, left, gone)})
    document = going_on.to_json()
    assert StreamState.from_json(document) == going_on
    # Whoever does not know it takes it for a paused table, which loses nothing.
    older = Parked("f", announced, 3, ParkedPhase.PAUSED, "it goes on from where it was left", HERE, 0, left=left)
    document["parked"][str(TABLE)].pop("catching_up")
    assert StreamState.from_json(document).parked == {TABLE: older}


def test_a_table_joins_the_log_as_the_beginning_that_it_was() -> None:
    lives = TableStates({TABLE: STATES[CatchingUp]}, changes=4)
    lives.altered(TABLE, "f2")
    lives.joined(TABLE)
    assert lives[TABLE] == Live("f2", announced=True, incarnation=2)
    assert lives.changes == 5


def test_a_state_of_a_newer_version_is_refused() -> None:
    with pytest.raises(ProtocolError, match="has version 3, this reader knows 1 and 2"):
        StreamState.from_json({**StreamState(Position.unknown(), 0).to_json(), "version": 3})


def test_a_state_of_before_tables_could_be_parked_is_read() -> None:
    table = {"schema": "f", "announced": True, "snapshot": None}
    old = {"version": 1, "position": {"at": 1}, "ordinal": 1, "tables": {str(TABLE): table}}
    assert StreamState.from_json(old) == StreamState(HERE, 1, {TABLE: Live("f", announced=True, incarnation=0)})


def test_nothing_but_table_life_makes_a_state() -> None:
    states = {kind.__name__ for kind in STATES} - {Unknown.__name__}
    package = Path(raycdc.__file__).parent
    makers = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in states:
                makers.add(path.relative_to(package).as_posix())
    # MongoDB's read concern and a library's screen have names of states, too; the test kit writes states of its own.
    others = {"connectors/mongodb/snapshot/chunk_reader.py", "cli/screens/progress.py", "testing/epochs.py"}
    others |= {"cli/status.py"}
    others |= {"testing/source_conformance.py", "tests/support/simulation/drivers/coordinator.py"}
    assert makers - others == {"source/tables/table_life.py"}


def test_nothing_but_table_life_changes_a_state() -> None:
    """`TableStates` alone puts one into its place: nobody writes its dictionary, and nobody copies a state
    otherwise.
    """
    package = Path(raycdc.__file__).parent
    writers = set()
    for path in (package / "source").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            touched = isinstance(node, ast.Attribute) and node.attr == "_states"
            if touched or (isinstance(node, ast.Call) and _copies_a_state(node)):
                writers.add(path.relative_to(package).as_posix())
    assert writers == {"source/tables/table_life.py"}


def _copies_a_state(node: ast.Call) -> bool:
    names = {"schema", "announced", "incarnation", "snapshot", "lost", "again"}
    called = isinstance(node.func, ast.Name) and node.func.id == "replace"
    # A split has an incarnation, too; it is a chunk's and no table's.
    return called and bool(names & {word.arg for word in node.keywords}) and ast.unparse(node.args[0]) != "split"


def drawn() -> str:
    """The lives of a table and of a chunk, as ARCHITECTURE.md shows them."""
    everywhere = {
        TableTransition.DROPPED,
        TableTransition.PARKED,
        TableTransition.BEGUN,
        TableTransition.ALTERED,
        TableTransition.ANNOUNCED,
    }
    lines = []
    for kind, steps in TRANSITIONS.items():
        led = [f"{step.name} → {after.__name__}" for step, after in steps.items() if step not in everywhere]
        lines.append(f"{kind.__name__:<11}{', '.join(led) or '–'}")
    for chunk, after_chunk in CHUNK_TRANSITIONS.items():
        names = sorted(f"→ {after.__name__}" for after in after_chunk)
        lines.append(f"chunk {chunk.__name__:<17}{', '.join(names) or '–'}")
    return "\n".join(line.rstrip() for line in lines)


def test_the_picture_of_both_lives_is_drawn_from_their_tables() -> None:
    architecture = Path(raycdc.__file__).parent.parent / "ARCHITECTURE.md"
    assert drawn() in architecture.read_text(encoding="utf-8")


def test_what_the_picture_leaves_out_is_the_same_for_every_table_that_is_there() -> None:
    for kind in (InSnapshot, AsOf, Behind, Live):
        steps = TRANSITIONS[kind]
        assert (steps[TableTransition.DROPPED], steps[TableTransition.PARKED], steps[TableTransition.BEGUN]) == (
            Dropped,
            Parked,
            InSnapshot,
        )
        assert (steps[TableTransition.ALTERED], steps[TableTransition.ANNOUNCED]) == (kind, kind)


def test_a_table_that_several_chunks_found_to_be_another_is_lost_up_to_the_last_place_that_says_why() -> None:
    """Whichever chunk said so last: the log may not go on before it has told all of them why."""
    lives = TableStates({TABLE: STATES[AsOf]}, changes=2)
    places = []
    for high in (9, 7, 11):
        lives.lost(TABLE, high)
        state = lives[TABLE]
        assert isinstance(state, AsOf)
        places.append(state.lost)
    assert places == [9, 9, 11]
