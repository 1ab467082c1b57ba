"""The epoch loop over targets that refuse their share of an epoch, wherever on its way, and whatever dies then."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest

from raycdc.core.failpoints import FailpointError
from raycdc.core.retry import RetryPolicy
from raycdc.delivery.ports import Routing
from raycdc.delivery.targets.parked_targets import ParkingPolicy, Parks
from raycdc.errors import ParkReason, SinkError, TableRefusedError, TargetModifiedError, ValueRefusedError
from raycdc.model import TableId
from raycdc.model.evolution import CreateTableEvent, TruncateTableEvent
from raycdc.model.rules.routes import Route, Router
from raycdc.sinks.lakes.unreachable import is_absent
from raycdc.source.tables.table_requests import complain_of_parked, parked_at_sink
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.parked import WAYS_OUT, ParkedTarget
from raycdc.state.store import CommitRecord
from tests.epochs.refusing import ITEMS, Refusing
from tests.epochs.sink_world import new_world

ORDERS = TableId("shop", "orders")


class RefusedTarget:
    """Two tables; one of them is refused in its second epoch, and begins again in the fourth."""

    def __init__(self, kind: str, root: Path, where: str, error: type[TableRefusedError] = TargetModifiedError) -> None:
        self.world = new_world(kind, root)
        self.where, self.error = where, error
        self.told: list[str] = []
        self.incarnation = 0
        for name in ("shop.orders", "shop.items"):
            self.world.script.table(name).read([{"id": i, "name": "snapshot", "qty": i} for i in range(5)])
        self.seal()

    def seal(self, *, final: bool = False) -> Manifest:
        """As a source with a log seals: its state says which beginning each table has."""
        incarnations = {"shop.orders": 0, "shop.items": self.incarnation}
        return self.world.script.seal(final=final, incarnations=incarnations)

    def play(self) -> None:
        """Epochs 2 to 5."""
        orders, items = (self.world.script.table(name) for name in ("shop.orders", "shop.items"))
        for number in (2, 3):
            orders.update((number,), qty=10 * number)
            items.update((number,), qty=10 * number)
            items.insert({"id": 10 + number, "name": "log", "qty": 0})
            if number == 2 and self.where == "apply":
                items.changes.append(CreateTableEvent(items.id, items.schema))
            self.seal()
        self.incarnation = 3
        items.truncate()
        first = (TruncateTableEvent(items.id), CreateTableEvent(items.id, items.schema))
        items.changes.extend(first)
        orders.delete((0,))
        self.seal()
        items.read([{"id": i, "name": "anew", "qty": i} for i in range(3)])
        self.seal(final=True)

    def parking(self, parks: Parks | None = None) -> ParkingPolicy:
        return ParkingPolicy(parks or Parks(), on_parked=lambda new: self.told.extend(sorted(new)))

    def run(self, parks: Parks | None = None, *, recover: bool = True) -> None:
        sink = Refusing(self.world.sink(), self.where, epoch=2, error=self.error)
        loop = self.world.loop(sink=sink, parking=self.parking(parks))  # type: ignore[arg-type]
        if recover:
            loop.recover()
        if self.world.store.sealed_epochs(loop.committed):
            loop.run()

    @property
    def record(self) -> CommitRecord:
        record = self.world.store.last_commit()
        assert record is not None
        return record

    def parked(self) -> ParkedTarget:
        return self.record.parked["shop.items"]

    def check_end(self) -> None:
        """Both targets are whole: of the one that was parked nothing is there from before its new beginning."""
        assert (self.record.epoch, self.record.parked) == (5, {})
        items, orders = (self.world.script.table(name) for name in ("shop.items", "shop.orders"))
        held = self.world.rows(items)
        if self.world.write == "upsert":
            assert sorted(held, key=lambda row: row["id"]) == items.contents()
            assert sorted(self.world.rows(orders), key=lambda row: row["id"]) == orders.contents()
            return
        epochs = {int(row["_seq"]) >> 33 for row in held}
        # Whoever refused what it holds, and was not heard, has not refused.
        heard = {1, 4, 5} | ({2} if self.where == "committed" else set())
        assert epochs == heard or (self.where == "committed" and epochs == {1, 2, 3, 4, 5})
        assert {int(row["_seq"]) >> 33 for row in self.world.rows(orders)} == {1, 2, 3, 4}


@pytest.fixture(params=["delta-upsert", "delta-changelog", "jsonl"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("where", ["apply", "stage", "commit", "committed"])
def test_a_refused_epoch_parks_its_table_until_that_begins_again(kind: str, tmp_path: Path, where: str) -> None:
    story = RefusedTarget(kind, tmp_path, where)
    story.play()
    loop_epochs = story.world.store.sealed_epochs()
    for epoch in loop_epochs[3:]:
        (tmp_path / "state" / "epochs" / f"{epoch:010d}.json").rename(tmp_path / str(epoch))
    story_end(story)
    entry = story.parked()
    assert (entry.epoch, entry.reason, entry.sources) == (2, ParkReason.MODIFIED, {"shop.items": 0})
    assert entry.held == ((2, 3) if where == "committed" else (1, 3))
    assert "raycdc tables resnapshot CONFIG shop.items" in entry.text
    assert story.told == ["shop.items"]
    assert list(parked_at_sink(story.world.store.last_manifest(), story.record)) == ["shop.items"]
    with pytest.raises(Exception, match="refuses epoch 2"):
        complain_of_parked(story.world.store.last_manifest(), story.record)
    orders = story.world.script.table("shop.orders")
    assert {int(row.get("_seq", 0)) >> 33 for row in story.world.rows(orders)} <= {0, 1, 2, 3}
    for epoch in loop_epochs[3:]:
        (tmp_path / str(epoch)).rename(tmp_path / "state" / "epochs" / f"{epoch:010d}.json")
    story_end(story)
    story.check_end()


def story_end(story: RefusedTarget) -> None:
    """Commit what is sealed; without a last epoch the loop would wait for one."""
    sink = Refusing(story.world.sink(), story.where, epoch=2, error=story.error)
    loop = story.world.loop(sink=sink, parking=story.parking())  # type: ignore[arg-type]
    loop.recover()


def in_starts(story: RefusedTarget, root: Path, *ends: int, routing: Routing | None = None) -> Iterator[int]:
    """A start finds what is sealed up to each of `ends`."""
    epochs = root / "state" / "epochs"
    names = [f"{epoch:010d}.json" for epoch in story.world.store.sealed_epochs()]
    for name in names:
        (epochs / name).rename(root / name)
    begin = 0
    for end in ends:
        for name in names[begin:end]:
            (root / name).rename(epochs / name)
        begin = end
        sink = Refusing(story.world.sink(), story.where, epoch=2, error=story.error)
        options = {} if routing is None else {"routing": routing}
        story.world.loop(sink=sink, parking=story.parking(), **options).recover()  # type: ignore[arg-type]
        yield end


@pytest.mark.parametrize("where", ["stage", "committed"])
def test_a_parked_target_may_be_deleted_whenever_its_new_beginning_is_sealed(tmp_path: Path, where: str) -> None:
    story = RefusedTarget("delta-upsert", tmp_path, where)
    story.play()
    for end in in_starts(story, tmp_path, 3, 5):
        if end == 3:
            assert story.parked().epoch == 2
            shutil.rmtree(tmp_path / "lake" / "shop" / "items")
    story.check_end()


@pytest.mark.parametrize("where", ["apply", "stage", "commit", "committed"])
def test_another_target_of_a_parked_ones_table_may_have_the_epoch_that_parked_it(tmp_path: Path, where: str) -> None:
    story = RefusedTarget("delta-upsert", tmp_path, where)
    story.play()
    routes = [Route("shop.items", "shop.items"), Route("shop.items", "shop.copy")]
    for end in in_starts(story, tmp_path, 2, 3, 4, 5, routing=Routing(Router(routes), upsert=True)):
        assert (story.record.epoch, bool(story.record.parked)) == (end, end < 4)
    story.check_end()
    copy = replace(story.world.script.table("shop.items"), id=TableId("shop", "copy"))
    assert sorted(story.world.rows(copy), key=lambda row: row["id"]) == copy.contents()


def test_a_merged_target_that_has_some_of_its_tables_again_is_asked_what_it_holds(tmp_path: Path) -> None:
    story = RefusedTarget("jsonl", tmp_path, "commit")
    story.play()
    routing = Routing(Router([Route("shop.orders", "shop.items")]))
    starts = in_starts(story, tmp_path, 3, 4, 4, 5, 5, routing=routing)
    for end in islice(starts, 4):
        assert story.record.epoch == end
        assert story.parked().begun == (end > 3)
    shutil.rmtree(tmp_path / "lake" / "shop" / "items")
    with pytest.raises(SinkError, match="nothing of this pipeline"):
        next(starts)


def test_a_target_parked_while_an_epoch_is_committed_may_have_that(tmp_path: Path) -> None:
    story = RefusedTarget("jsonl", tmp_path, "stage")
    story.play()
    for _ in in_starts(story, tmp_path, 3):
        pass
    # Its sink was asked before the commit under way was done.
    record, entry = story.record, story.parked()
    (tmp_path / "state" / "commits" / "0000000003.json").unlink()
    story.world.store.write_commit(replace(record, parked={"shop.items": replace(entry, held=(0, 3))}))
    for end in (4, 5):
        name = f"{end:010d}.json"
        (tmp_path / name).rename(tmp_path / "state" / "epochs" / name)
    story_end(story)
    story.check_end()


def test_a_part_of_a_beginning_that_was_dropped_is_over_with_the_next_one(tmp_path: Path) -> None:
    story = RefusedTarget("delta-upsert", tmp_path, "stage")
    items = story.world.script.table("shop.items")
    items.update((1,), qty=10)
    story.seal()
    story_end(story)
    assert story.parked().epoch == 2

    def resnapshot() -> Manifest:
        story.incarnation += 1
        items.truncate()
        items.changes.extend((TruncateTableEvent(items.id), CreateTableEvent(items.id, items.schema)))
        items.insert({"id": story.incarnation, "name": "anew", "qty": 0})
        return story.seal()

    # A driver dies behind the table's first verb, rows are lost, and the table cannot be barred from the epoch.
    beginning = resnapshot()
    dying = Refusing(story.world.sink(), "stage", epoch=3, error=TargetModifiedError)
    with pytest.raises(TargetModifiedError, match="epoch 3"):
        story.world.loop(sink=dying).recover()  # type: ignore[arg-type]
    held = story.world.sink().committed(ITEMS)
    assert held is not None
    assert held.progress == (3, 0)
    for segment in beginning.segments:
        Path(segment.path).unlink()
    untouchable = Refusing(story.world.sink(), "tombstone", epoch=3, error=TargetModifiedError)
    loop = story.world.loop(sink=untouchable, parking=story.parking())  # type: ignore[arg-type]
    assert loop.recover().dropped == (3,)
    assert story.world.sink().committed(ITEMS) == held

    resnapshot()
    story_end(story)
    assert (story.record.epoch, story.record.parked) == (4, {})
    assert sorted(story.world.rows(items), key=lambda row: row["id"]) == items.contents()


POINTS = ("before_stage", "after_stage", "before_park", "before_commit", "in_commit", "after_commit",
          "between_tables", "after_last_commit", "before_park_reported", "after_record")  # fmt: skip


def crashes() -> Iterator[Any]:
    """Each place, in both epochs that matter; half of the times by a driver that finds all of it sealed."""
    for where, point, count in product(("stage", "commit", "committed"), POINTS, (1, 2)):
        if count == 1 or point not in ("before_park", "before_park_reported"):
            yield pytest.param("jsonl", where, point, count, id=f"jsonl-{where}-{point}-{count}")
    for point in POINTS:
        yield pytest.param("delta-upsert", "commit", point, 1, id=f"delta-{point}")


@pytest.mark.long_variants("*-2-*", suite="sinks")
@pytest.mark.parametrize("recovers", [False, True], ids=["runs", "recovers"])
@pytest.mark.parametrize(("kind", "where", "point", "count"), list(crashes()))
def test_a_crash_at_any_point_around_it_loses_and_doubles_nothing(
    tmp_path: Path, kind: str, where: str, point: str, count: int, recovers: bool, fail_at: Callable[[str, int], None]
) -> None:
    story = RefusedTarget(kind, tmp_path, where)
    story.play()
    fail_at(point, count)
    # Not every way comes by each point as often as that.
    with suppress(FailpointError):
        story.run(recover=recovers)
    story.world.script.generation = story.world.store.generations.next()
    story.run()
    story.check_end()


@pytest.mark.parametrize(
    ("parks", "error"),
    [(Parks(tables=False), TargetModifiedError), (Parks(values=False), ValueRefusedError)],
)
def test_a_run_ends_where_the_user_asked_for_that(tmp_path: Path, parks: Parks, error: type[TableRefusedError]) -> None:
    story = RefusedTarget("jsonl", tmp_path, "commit", error)
    story.play()
    with pytest.raises(SinkError, match="refuses epoch 2"):
        story.run(parks)
    assert story.record.epoch == 1


def test_each_reason_has_a_way_out_and_an_error() -> None:
    raised = {error.reason for error in subclasses(TableRefusedError)}
    assert raised == set(ParkReason) == set(WAYS_OUT)


def subclasses(of: type[TableRefusedError]) -> Iterator[type[TableRefusedError]]:
    for error in of.__subclasses__():
        yield error
        yield from subclasses(error)


@pytest.mark.parametrize("kind", ["jsonl", "delta-upsert"])
def test_a_full_disk_is_the_sinks_and_parks_nothing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = RefusedTarget(kind, tmp_path, "never")
    story.play()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "lake"))
    with monkeypatch.context() as patched:
        patched.setattr("raycdc.delivery.targets.target_retry.POLICY", RetryPolicy(retry_s=0.0))

        def refuse(*_: Any, **__: Any) -> Any:
            raise full

        patched.setattr(Refusing, "commit", refuse)
        with pytest.raises(SinkError, match=r"disk takes no more: .*No space left on device.*lake"):
            story.run()
    story.run()
    assert (story.record.epoch, story.record.parked, story.told) == (5, {}, [])


@pytest.mark.parametrize(
    ("cause", "absent"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (OSError(errno.ENOENT, "gone"), False),
        (Exception("Generic LocalFileSystem error: … No space left on device (os error 28)"), True),
        (Exception("Invalid data (os error 22)"), False),
        (Exception("java.io.IOException: No space left on device"), True),
        (ValueRefusedError("The value 'os error 28, No space left on device' is no date"), False),
    ],
)
def test_which_errors_of_a_folder_are_the_whole_sinks(cause: Exception, absent: bool) -> None:
    assert is_absent(cause) is absent
