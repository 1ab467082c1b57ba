"""Commands about tables: accepted once, judged by name, carried out once, whoever dies in between."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raycdc.config import config_from_dict
from raycdc.driver.command_queue import CommandQueue, CommandState
from raycdc.driver.consumer import Ledger
from raycdc.driver.live_commands import LiveCommands, command_rules
from raycdc.errors import ConfigError, ParkReason
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.segments.access import HERE
from raycdc.segments.bad_rows import BadRecords
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.enumerator_state import SealedEnumerator
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.snapshot.rereading.backfill import Backfill
from raycdc.source.split import STREAM_SPLIT_ID
from raycdc.source.tables.parking import CommandDecision, RowsRequest, TableRequest, with_requests
from raycdc.source.tables.table_commands import CommandRules, TableAction, TableCommand
from raycdc.source.tables.table_life import InSnapshot, LeftAt, Live, Parked, ParkedPhase, ParkingCause, SnapshotState
from raycdc.source.tables.table_requests import (
    COMMANDS_KEPT,
    ask_all,
    complete_requests,
    replaced,
    requests_of,
    stream_state,
)
from raycdc.state.configured import write_configured
from raycdc.state.documents import REQUESTS
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import EnumeratorState, Position
from raycdc.state.parked import ParkedTarget
from raycdc.state.store import CheckpointStore, CommitRecord, RoutedTarget

NO_STATE = EnumeratorState.from_json({})
A, B = "shop.a", "shop.b"


def is_selected(table: TableId) -> None:
    if table.table == "other":
        raise ConfigError(f"{table} is not selected")


RULES = CommandRules(updates_rows=True, is_selected=is_selected)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """A pipeline that follows two tables."""
    store = CheckpointStore(tmp_path, pipeline="shop")
    followed = {TableId.parse(name): Live("x", announced=True, incarnation=0) for name in (A, B)}
    store.generations.next()
    seal(store, StreamState(Position.unknown(), 9, followed, changes=4))
    return store


def seal(store: CheckpointStore, stream: StreamState | None, enumerator: EnumeratorState = NO_STATE) -> None:
    splits = {} if stream is None else {STREAM_SPLIT_ID: stream.sealed()}
    store.write_manifest(
        Manifest(
            store.next_epoch(),
            store.generations.newest(),
            0,
            from_splits={},
            to_splits=splits,
            enumerator=enumerator,
        )
    )


def newest(store: CheckpointStore) -> StreamState:
    return stream_state(store.last_manifest())


def test_a_raycdc_that_knows_no_backfills_refuses_them_by_the_version(store: CheckpointStore) -> None:
    """It would pass over the request in silence, and take a command about some rows for one about all of them."""
    desk = CommandQueue(store)

    def versions(folder: str) -> list[int]:
        return [json.loads(path.read_bytes())["version"] for path in sorted((store.path / folder).glob("*.json*"))]

    whole = desk.submit(TableCommand.new(TableAction.RESNAPSHOT, A))
    assert versions("commands") == [1]
    desk.take([one for one in desk.waiting() if one.id == whole], RULES)
    assert (versions("documents"), versions("commands")) == ([1], [])
    rows = RowsRequest("c1", TableId.parse(B), where="v > 3")
    ask_all(store, {}, rows=rows)
    desk.submit(TableCommand.new(TableAction.RESNAPSHOT, B, where="v > 3"))
    assert (versions("documents"), versions("commands")) == ([2], [2])
    assert (requests_of(store).rows, [one.where for one in desk.waiting()]) == ({"c1": rows}, ["v > 3"])
    # A driver takes the document over in one of its own, with the version that it has.
    DriverGeneration(store)
    assert requests_of(store).rows == {"c1": rows}
    (taken,) = (store.path / "generations").glob("*.documents.json")
    assert json.loads(taken.read_bytes())["documents"][REQUESTS]["version"] == 2
    # Version 1 had requests for rows, too, for a while.
    store.documents.write(REQUESTS, {**requests_of(store).to_json(), "version": 1})
    assert requests_of(store).rows == {"c1": rows}


def commit(store: CheckpointStore) -> None:
    epoch = store.next_epoch() - 1
    store.write_commit(CommitRecord(epoch, store.generations.newest(), 0, {}))
    complete_requests(store, epoch)


def command(number: int, action: TableAction, table: str) -> TableCommand:
    return TableCommand(f"{number:08d}", action, table)


PAUSE_A = command(1, TableAction.PAUSE, A)


def state_of(desk: CommandQueue, one: TableCommand) -> CommandState:
    found = desk.state(one.id)
    assert found is not None
    return found.state


def test_a_command_is_accepted_then_acting_and_done_once_the_sink_has_it(store: CheckpointStore) -> None:
    desk = CommandQueue(store)
    assert desk.submit(PAUSE_A) == PAUSE_A.id
    assert state_of(desk, PAUSE_A) is CommandState.ACCEPTED
    desk.take(desk.waiting(), RULES)
    assert state_of(desk, PAUSE_A) is CommandState.ACCEPTED
    assert desk.waiting() == []
    seal(store, with_requests(newest(store), requests_of(store)))
    assert state_of(desk, PAUSE_A) is CommandState.ACTING
    commit(store)
    assert state_of(desk, PAUSE_A) is CommandState.DONE


def begun(store: CheckpointStore, *, closed: bool) -> None:
    """A sealed epoch in which the new beginning of a table is under way, with rows of it or without."""
    stream, name = newest(store), TableId.parse(A)
    ranges = (("1", "9"),) if closed else ()
    table = InSnapshot("x", True, 6, SnapshotState("id", foldable=True, needs_null=False, closed=ranges))
    parked = {other: state for other, state in stream.parked.items() if other != name}
    seal(store, replace(stream, followed={**stream.followed, name: table}, parked=parked, changes=6))


def parked_in(store: CheckpointStore, incarnation: int) -> None:
    """Commit the newest epoch, in which the target of the table in its beginning `incarnation` is parked."""
    epoch = store.next_epoch() - 1
    entry = ParkedTarget(epoch, None, ParkReason.MODIFIED, "It has a trigger.", 0, {A: incarnation})
    store.write_commit(CommitRecord(epoch, store.generations.newest(), 0, {}, parked={A: entry}))
    complete_requests(store, epoch)


def test_a_table_that_is_read_anew_is_done_once_the_sink_has_rows_of_it(store: CheckpointStore) -> None:
    desk, one = CommandQueue(store), command(1, TableAction.RESNAPSHOT, A)
    desk.take([one], RULES)
    seal(store, with_requests(newest(store), requests_of(store)))
    parked_in(store, 0)  # As it was before the command.
    assert state_of(desk, one) is CommandState.ACTING
    begun(store, closed=False)
    commit(store)
    assert state_of(desk, one) is CommandState.ACTING
    begun(store, closed=True)
    commit(store)
    assert state_of(desk, one) is CommandState.DONE


def test_a_table_that_is_read_anew_and_parked_again_is_told_with_the_reason(store: CheckpointStore) -> None:
    desk, one = CommandQueue(store), command(1, TableAction.RESNAPSHOT, A)
    desk.take([one], RULES)
    seal(store, with_requests(newest(store), requests_of(store)))
    commit(store)
    begun(store, closed=True)
    parked_in(store, 6)
    found = desk.state(one.id)
    assert found is not None
    assert (found.state, found.text) == (CommandState.PARKED, f"{A} was read again, and is parked: It has a trigger.")


def test_a_table_that_the_source_does_not_have_is_not_called_added(store: CheckpointStore) -> None:
    desk, one = CommandQueue(store), command(1, TableAction.RESNAPSHOT, A)
    desk.take([one], RULES)
    seal(store, with_requests(newest(store), requests_of(store)))
    commit(store)
    cause = ParkingCause(f"there is no table {A}", newest(store).position, 0, phase=ParkedPhase.ENDED)
    seal(store, newest(store).park(TableId.parse(A), cause, number=7))
    commit(store)
    found = desk.state(one.id)
    assert found is not None
    assert (found.state, found.text) == (CommandState.PARKED, f"{A} was not read: there is no table {A}")


def test_only_a_parked_target_of_one_table_is_replaced_and_only_by_its_first_epoch(store: CheckpointStore) -> None:
    desk, one = CommandQueue(store), replace(command(1, TableAction.RESNAPSHOT, A), replaces=True)
    assert TableCommand.from_json(one.to_json()) == one
    assert "is not parked" in desk.preview(one, RULES).text
    parked_in(store, 0)
    (answer,) = desk.take([one], RULES)
    assert answer.text == f"{A} is read again, and its target is replaced, with all that is in it"
    asked_for = replaced(store)
    assert (asked_for([TableId.parse(A)]), asked_for([TableId.parse(B)])) == (True, False)
    seal(store, with_requests(newest(store), requests_of(store)))
    begun(store, closed=True)
    commit(store)
    assert not asked_for([TableId.parse(A)])


def test_a_command_that_comes_twice_or_whose_file_was_left_behind_acts_once(store: CheckpointStore) -> None:
    desk, again = CommandQueue(store), command(2, TableAction.RESNAPSHOT, A)
    desk.submit(again)
    desk.take([again], RULES)
    seal(store, with_requests(newest(store), requests_of(store)))
    begun = newest(store)
    desk.submit(again)
    assert desk.waiting() == []
    assert desk.take([again], RULES) == []
    assert with_requests(begun, requests_of(store)) == begun


def test_a_request_that_is_carried_out_and_not_committed_yet_does_not_act_again_with_the_next_one(
    store: CheckpointStore,
) -> None:
    desk = CommandQueue(store)
    desk.take([command(1, TableAction.RESNAPSHOT, A)], RULES)
    seal(store, with_requests(newest(store), requests_of(store)))
    desk.take([command(2, TableAction.PAUSE, B)], RULES)
    after = with_requests(newest(store), requests_of(store))
    assert after.parked[TableId.parse(A)] == newest(store).parked[TableId.parse(A)]
    assert str(after.parked[TableId.parse(B)].phase) == "paused"
    # Where its epoch is dropped, it is still to do.
    store.drop_after(1)
    assert requests_of(store).acts_on(A, newest(store))
    assert requests_of(store).tables == {A: TableRequest.RESNAPSHOT, B: TableRequest.PAUSE}


def test_what_makes_no_sense_is_refused_by_name_and_stops_nothing(store: CheckpointStore) -> None:
    desk = CommandQueue(store)
    given = [
        command(1, TableAction.PAUSE, "shop.nowhere"),
        command(2, TableAction.RESUME, A),
        command(3, TableAction.ADD, B),
        command(4, TableAction.ADD, "shop.other"),
        command(5, TableAction.PAUSE, A),
        command(6, TableAction.PAUSE, A),
        command(7, TableAction.PAUSE, "shop.other"),
    ]
    answers = desk.take(given, RULES)
    assert [answer.text for answer in answers] == [
        "shop.nowhere is not one of the pipeline's tables (shop.a, shop.b). Add it with: raycdc tables add.",
        "shop.a is not paused. For a new snapshot of it: raycdc tables resnapshot.",
        "shop.b is one of the pipeline's tables. To read it again: raycdc tables resnapshot.",
        "shop.other is not selected",
        "shop.a is paused (its target keeps what it has)",
        "shop.a is paused already: paused by the user",
        (
            'shop.other is not one of the pipeline\'s tables (shop.a, shop.b); did you mean "shop.b"? shop.other is '
            "not selected"
        ),
    ]
    assert [answer.refused for answer in answers] == [True, True, True, True, False, True, True]
    assert requests_of(store).tables == {A: TableRequest.PAUSE}


def test_a_table_does_not_go_on_where_its_log_cannot_be_read_twice_at_a_time(store: CheckpointStore) -> None:
    desk = CommandQueue(store)
    desk.take([command(1, TableAction.PAUSE, A)], RULES)
    seal(store, with_requests(newest(store), requests_of(store)))
    once = replace(RULES, why_read_once=lambda: "it is read once.")
    (answer,) = desk.take([command(2, TableAction.RESUME, A)], once)
    assert answer.refused
    assert answer.text == (
        "shop.a cannot go on from where it was left, because it is read once. Or read it anew with: raycdc tables "
        "resnapshot CONFIG shop.a"
    )
    (answer,) = desk.take([command(3, TableAction.RESUME, A)], RULES)
    assert (answer.refused, answer.text) == (False, "shop.a goes on from where it was left")


def test_a_pause_that_has_not_begun_is_taken_back_and_the_answer_says_so(store: CheckpointStore) -> None:
    """Given at rest: nothing was left anywhere that the table could go on from."""
    desk = CommandQueue(store)
    paused, resumed = TableCommand.new(TableAction.PAUSE, A), TableCommand.new(TableAction.RESUME, A)
    answers = desk.take([paused, resumed], RULES)
    assert [answer.text for answer in answers] == [
        f"{A} is paused (its target keeps what it has)",
        f"{A} is not paused: that was asked for and had not begun, and is taken back",
    ]
    assert not answers[1].refused
    assert with_requests(newest(store), requests_of(store))[TableId.parse(A)] == newest(store)[TableId.parse(A)]
    # Once it has begun, the table goes on.
    desk.take([TableCommand.new(TableAction.PAUSE, A)], RULES)
    seal(store, with_requests(newest(store), requests_of(store)))
    commit(store)
    [answer] = desk.take([TableCommand.new(TableAction.RESUME, A)], RULES)
    assert answer.text.startswith(f"{A} goes on")


def test_of_many_tables_some_are_named_and_the_one_that_was_probably_meant(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, pipeline="shop")
    store.generations.next()
    followed = {TableId("shop", f"t{n:03d}x"): Live("x", announced=True, incarnation=0) for n in range(30)}
    seal(store, StreamState(Position.unknown(), 9, followed))
    (answer,) = CommandQueue(store).take([command(1, TableAction.PAUSE, "shop.t029")], RULES)
    assert "shop.t019x and 10 more)" in answer.text
    assert 'did you mean "shop.t029x"?' in answer.text


def test_a_source_without_a_log_of_tables_refuses_them_all(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, pipeline="topics")
    store.generations.next()
    desk = CommandQueue(store)
    desk.submit(PAUSE_A)
    assert desk.take(desk.waiting(), RULES) == []  # Nothing was read yet: a later driver knows.
    seal(store, None)
    assert [answer.refused for answer in desk.take(desk.waiting(), RULES)] == [True]


def test_files_that_are_no_commands_are_left_alone(store: CheckpointStore) -> None:
    desk, folder = CommandQueue(store), store.path / "commands"
    desk.submit(PAUSE_A)
    (folder / "notes.txt").write_text("mine")
    assert desk.waiting() == [PAUSE_A]
    with pytest.raises(ConfigError, match="8 to 64 digits"):
        desk.submit(TableCommand("../../etc", TableAction.PAUSE, A))


def test_only_the_newest_commands_that_are_over_are_remembered(store: CheckpointStore) -> None:
    desk = CommandQueue(store)
    desk.take([PAUSE_A], RULES)
    desk.take([command(10 + n, TableAction.RESUME, B) for n in range(COMMANDS_KEPT + 5)], RULES)
    ids = [status.id for status in desk.all()]
    assert len(ids) == COMMANDS_KEPT + 1
    assert PAUSE_A.id in ids


class Side:
    """A supervisor that counts."""

    def __init__(self) -> None:
        self.generations = 0
        self.ending = True
        self.failed: list[BaseException] = []

    def start_over(self, recover: Callable[[], list[CommandDecision]]) -> list[CommandDecision]:
        self.generations += 1
        return recover()

    def fail(self, error: BaseException) -> None:
        self.failed.append(error)


def test_commands_that_come_together_cost_one_generation_and_refused_ones_none(store: CheckpointStore) -> None:
    desk, side, told = CommandQueue(store), Side(), list[CommandDecision]()
    live = LiveCommands(desk, RULES, side, notify=told.append, every_s=3600)
    desk.submit(PAUSE_A)
    desk.submit(command(2, TableAction.RESNAPSHOT, B))
    assert not live.step()
    assert side.generations == 0  # The run is about to end: they are for the next start.
    side.ending = False
    assert live.step()
    assert (side.generations, len(told)) == (1, 2)
    desk.submit(command(3, TableAction.PAUSE, "shop.nowhere"))
    assert live.step()
    assert not live.step()
    assert (side.generations, len(told)) == (1, 3)
    live.close()


KEYED = TableSchema((Column("id", LogicalType(TypeKind.INT64)),), ("id",))
KEYLESS = TableSchema((Column("n", LogicalType(TypeKind.INT64)),), ())


def of_rows(store: CheckpointStore, *, schema: TableSchema = KEYED, table: str = A) -> TableCommand:
    """A backfill of a table that is described so."""
    document = SchemaDocument.of(schema)
    store.put_documents({document.fingerprint: document.to_json()})
    followed = {TableId.parse(name): Live(document.fingerprint, announced=True, incarnation=0) for name in (A, B)}
    seal(store, StreamState(Position.unknown(), 10, followed, changes=4))
    return TableCommand.new(TableAction.BACKFILL, table, where="id > 3")


def ended(store: CheckpointStore, one: TableCommand, why: str = "") -> None:
    """An epoch says that the backfill is over, and the sink holds it."""
    over = Backfill(one.rows_request(TableId.parse(A)), rows=7, over=why)
    seal(store, newest(store), SealedEnumerator(True, backfills=(over,)).sealed())


def test_a_backfill_acts_until_the_sink_holds_an_epoch_that_says_it_is_over(store: CheckpointStore) -> None:
    desk, one = CommandQueue(store), of_rows(store)
    rules = replace(RULES, require_rows=lambda *_: None)
    desk.submit(one)
    assert desk.waiting() == [one]
    (answer,) = desk.take([one], rules)
    assert (answer.tables, answer.refused) == ((), False)
    assert "the rows that meet id > 3" in answer.text
    assert requests_of(store).rows == {one.id: RowsRequest(one.id, TableId.parse(A), where="id > 3")}
    commit(store)
    assert state_of(desk, one) is CommandState.ACCEPTED
    ended(store, one)
    assert state_of(desk, one) is CommandState.ACTING
    commit(store)
    found = desk.state(one.id)
    assert found is not None
    assert (found.state, found.text) == (CommandState.DONE, f"{A} has 7 rows that were read again")
    assert requests_of(store).rows == {}


def test_a_backfill_that_is_over_early_is_refused_with_its_reason(store: CheckpointStore) -> None:
    desk, one = CommandQueue(store), of_rows(store)
    desk.take([one], replace(RULES, require_rows=lambda *_: None))
    ended(store, one, "the table is paused: paused by the user")
    commit(store)
    found = desk.state(one.id)
    assert found is not None
    assert found.state is CommandState.REFUSED
    assert found.text.endswith("and then not any more: the table is paused: paused by the user")


def by_key(**sections: list[dict[str, object]]) -> CommandRules:
    """The rules of a configuration with these sections."""
    config = config_from_dict(
        {
            "pipeline": {"name": "shop"},
            "source": {"type": "mysql", "user": "cdc", "password": "geheim", "tables": ["shop.a", "shop.b"]},
            "sink": {"type": "delta", "path": "./lake", "write": "upsert"},
            **sections,
        }
    )
    return command_rules(config, lambda *_: None)


MERGED = by_key(route=[{"table": "shop.*", "to": "lake.all"}])
REKEYED = by_key(transform=[{"table": "shop.a", "primary_keys": ["name"]}])
FILTERED = by_key(transform=[{"table": "shop.a", "filter": "id > 1"}])


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (MERGED, r"cannot be told from those of shop\.b.*raycdc tables resnapshot CONFIG shop\.a"),
        (
            REKEYED,
            r"transform\[0\]\.primary_keys gives the rows of shop\.a a key of its own.*resnapshot",
        ),
        (FILTERED, r"transform\[0\] leaves rows.*resnapshot CONFIG shop\.a"),
    ],
)
def test_rows_whose_target_cannot_tell_them_by_key_are_not_read_again(
    store: CheckpointStore, rules: CommandRules, said: str
) -> None:
    one = of_rows(store)
    (answer,) = CommandQueue(store).take([one], rules)
    assert answer.refused
    assert re.search(said, answer.text)
    # One that was asked for while the configuration was another one ends with the reason.
    two = of_rows(store)
    CommandQueue(store).take([two], by_key())
    CommandQueue(store).judge_rows(by_key())
    assert requests_of(store).rows[two.id].refused == ""
    CommandQueue(store).judge_rows(rules)
    assert re.search(said, requests_of(store).rows[two.id].refused)


def test_a_target_that_had_rows_of_several_tables_takes_none_again(store: CheckpointStore) -> None:
    one = of_rows(store)
    routes = {"lake.all": RoutedTarget((A, B), "")}
    store.write_commit(CommitRecord(store.next_epoch() - 1, store.generations.newest(), 0, {}, routes))
    (answer,) = CommandQueue(store).take([one], by_key())
    assert answer.refused
    assert "in lake.all cannot be told from those of shop.b" in answer.text


@pytest.mark.parametrize(
    ("routes", "why"),
    [
        ({"lake.all": (A, B)}, "other tables share its target"),
        ({"lake.all": (B,)}, "lake.all was emptied for another table meanwhile"),
        ({"lake.all": (B,), "lake.a": (A,)}, "lake.all was emptied for another table meanwhile"),
        ({"lake.other": (B,)}, "its target was emptied for another table meanwhile"),
        ({"lake.all": (A,)}, ""),
        ({}, ""),
    ],
)
def test_a_paused_table_whose_target_was_emptied_for_another_one_is_read_anew(
    store: CheckpointStore, routes: dict[str, tuple[str, ...]], why: str
) -> None:
    """A shared target is emptied as a whole, and the record then names it without the paused table."""
    cause = ParkingCause("paused by the user", Position.unknown(), 0, phase=ParkedPhase.PAUSED)
    seal(store, newest(store).pause(TableId.parse(A), cause, number=5))
    described = {name: RoutedTarget(sources, "") for name, sources in routes.items()}
    store.write_commit(CommitRecord(store.next_epoch() - 1, store.generations.newest(), 0, {}, described))
    rules = replace(RULES, targets=lambda _: (TableId.parse("lake.all"), TableId.parse("lake.a")))
    (answer,) = CommandQueue(store).take([TableCommand.new(TableAction.RESUME, A)], rules)
    assert (answer.refused, answer.resnapshots) == (False, bool(why))
    assert why in answer.text


def test_epochs_that_are_taken_by_hand_get_no_rows_again(store: CheckpointStore) -> None:
    desk, before, after = CommandQueue(store), of_rows(store), of_rows(store)
    desk.take([before], by_key())
    write_configured(store, {"source.type": "mysql"})
    (answer,) = desk.take([after], by_key())
    assert answer.refused
    assert "a program of your own" in answer.text
    assert "a program of your own" in requests_of(store).rows[before.id].refused
    # Acknowledging is what settles it there.
    supervisor: Any = SimpleNamespace(epoch_committed=lambda _: None)
    ledger = Ledger(store, supervisor, BadRecords(), access=lambda: HERE, generation=store.generations.next)
    ended(store, before, "a program of your own")
    ledger.acknowledge(store.next_epoch() - 1)
    assert state_of(desk, before) is CommandState.REFUSED
    assert requests_of(store).rows == {}


def test_backfills_that_make_no_sense_are_refused_by_name(store: CheckpointStore) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("the server refuses it")

    rules = replace(RULES, require_rows=lambda *_: None)
    asked = [
        (of_rows(store), RULES, "Name the pipeline's TOML file"),
        (of_rows(store), replace(RULES, require_rows=refuse), "the server refuses it"),
        (of_rows(store), replace(rules, updates_rows=False), "keeps every change of a row"),
        (of_rows(store, table="shop.nobody"), rules, "shop.nobody is not one of the pipeline's tables"),
        (replace(of_rows(store), where=""), rules, "A backfill needs --where"),
        (replace(of_rows(store), action=TableAction.PAUSE), rules, "pause is about a whole table"),
    ]
    for one, judges, text in asked:
        (answer,) = CommandQueue(store).take([one], judges)
        assert answer.refused
        assert text in answer.text
    (answer,) = CommandQueue(store).take([of_rows(store, schema=KEYLESS)], rules)
    assert "has no primary key" in answer.text
    assert requests_of(store).rows == {}


@pytest.mark.parametrize(
    ("phase", "again", "left", "way"),
    [
        (ParkedPhase.REMOVED, False, False, "raycdc tables add"),
        (ParkedPhase.PAUSED, False, True, "raycdc tables resume"),
        (ParkedPhase.PARKED, False, True, "raycdc tables resume"),
        (ParkedPhase.PARKED, False, False, "raycdc tables resnapshot"),
        (ParkedPhase.PARKED, True, False, "Nothing more is needed"),
    ],
)
def test_the_advice_about_a_table_that_is_not_followed_is_a_command_that_is_accepted(
    store: CheckpointStore, phase: ParkedPhase, again: bool, left: bool, way: str
) -> None:
    desk, one = CommandQueue(store), of_rows(store)
    stream, name = newest(store), TableId.parse(A)
    at = LeftAt(3, 9) if left else None
    parked = Parked("x", True, 3, phase, "Because.", Position.unknown(), 0, again=again, left=at)
    followed = {table: state for table, state in stream.followed.items() if table != name}
    seal(store, replace(stream, followed=followed, parked={name: parked}))
    answer = desk.preview(one, RULES)
    assert answer.refused
    assert way in answer.text
    for action in (TableAction.ADD, TableAction.RESUME, TableAction.RESNAPSHOT):
        if f"raycdc tables {action}" in answer.text:
            assert not desk.preview(command(2, action, A), RULES).refused
