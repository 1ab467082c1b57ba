"""The epoch loop over one target that takes nothing while others do: it is parked, they go on, and it comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import adbc_driver_manager
import pymysql
import pytest

from raycdc.core.retry import RetryPolicy
from raycdc.delivery.targets.parked_targets import ParkingPolicy, SinkOutagePolicy
from raycdc.errors import ParkReason, SinkError, SinkUnavailableError
from raycdc.model import TableId
from raycdc.model.evolution import CreateTableEvent, TruncateTableEvent
from raycdc.sandbox.servers import DatabaseServer, PostgresServer
from raycdc.sinks.api import Sink, TableCommit
from raycdc.state.parked import ParkedTarget
from raycdc.state.recovery import CommitVector
from tests.epochs.sink_world import World, new_world, world_of

NAMES = ("shop.orders", "shop.items")
ITEMS = TableId("shop", "items")
PATIENCE = RetryPolicy(retry_s=2.0)


class BlockedTarget:
    """Two tables, of which shop.items is blocked from epoch 2 on, and begins again in epoch 3."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.told: list[str] = []
        self.parked: dict[str, ParkedTarget] = {}
        self.incarnation = 0
        for name in NAMES:
            world.script.table(name).read([{"id": i, "name": "snapshot", "qty": i} for i in range(3)])
        self.seal()

    def seal(self, *, final: bool = False) -> None:
        incarnations = {"shop.orders": 0, "shop.items": self.incarnation}
        self.world.script.seal(final=final, incarnations=incarnations)

    def change(self, number: int) -> None:
        for name in NAMES:
            self.world.script.table(name).insert({"id": 10 + number, "name": "log", "qty": number})
        self.seal(final=True)

    def begin_again(self) -> None:
        """As the source does when a new snapshot is asked for."""
        self.incarnation += 3
        items = self.world.script.table("shop.items")
        items.truncate()
        items.changes.extend((TruncateTableEvent(items.id), CreateTableEvent(items.id, items.schema)))
        self.seal()
        items.read([{"id": i, "name": "anew", "qty": i} for i in range(2)])
        self.seal(final=True)

    @property
    def parking(self) -> ParkingPolicy:
        def on_parked(new: Mapping[str, ParkedTarget]) -> None:
            self.parked |= new

        return ParkingPolicy(on_parked=on_parked, waiting=SinkOutagePolicy("", self.told.append, PATIENCE))

    def run(self, sink: Any = None) -> None:
        loop = self.world.loop(sink or self.world.sink(), parking=self.parking)
        loop.recover()
        if self.world.store.sealed_epochs(loop.committed):
            loop.run()

    def rows(self, name: str) -> list[int]:
        rows = self.world.rows(self.world.script.table(name))
        if self.world.write == "upsert":
            return sorted(row["id"] for row in rows)
        there: set[int] = set()
        for row in sorted(rows, key=lambda row: row["_seq"]):
            if row["_op"] == "T":
                there.clear()
            elif row["_op"] in ("+I", "+U"):
                there.add(row["id"])
            else:
                there.discard(row["id"])
        return sorted(there)

    def require_parked(self) -> str:
        """The reason that people are told."""
        assert list(self.parked) == ["shop.items"]
        entry = self.parked["shop.items"]
        assert (entry.reason, entry.epoch) == (ParkReason.BLOCKED, 2)
        assert "raycdc tables resnapshot CONFIG shop.items" in entry.text
        assert len(self.rows("shop.orders")) == 4
        return entry.text

    def require_back(self) -> None:
        self.begin_again()
        self.run()
        assert self.rows("shop.items") == [0, 1]
        self.change(2)
        self.run()
        for name in NAMES:
            assert self.rows(name) == [row["id"] for row in self.world.script.table(name).contents()]


@contextmanager
def somebody(server: PostgresServer | DatabaseServer, *statements: str) -> Iterator[Callable[[], object]]:
    """Another session with a lock; the function ends it."""
    connection = server.connect()
    cursor = connection.cursor()
    try:
        is_postgres = isinstance(server, PostgresServer)
        cursor.execute(f"SELECT {'pg_backend_pid' if is_postgres else 'CONNECTION_ID'}()")
        number = cursor.fetchall()[0][0]
        for statement in statements:
            cursor.execute(statement)
        yield lambda: server.execute(f"SELECT pg_terminate_backend({number})" if is_postgres else f"KILL {number}")
    finally:
        with suppress(pymysql.Error, adbc_driver_manager.Error):
            cursor.close()
        with suppress(pymysql.Error, adbc_driver_manager.Error):
            connection.close()


POSTGRES_TABLE = ("BEGIN", "LOCK TABLE shop.items IN ACCESS EXCLUSIVE MODE")
POSTGRES_ROWS = ("BEGIN", "INSERT INTO shop.items VALUES (11, 'theirs', 1)")
ITS_RECORD = "SELECT 1 FROM raycdc_commit WHERE target = 'shop.items' FOR UPDATE"


@pytest.mark.server
@pytest.mark.parametrize(
    ("kind", "statements"),
    [
        ("postgres-upsert", ("BEGIN", "LOCK TABLE shop.items, shop.orders IN ACCESS EXCLUSIVE MODE")),
        ("postgres-upsert", ("BEGIN", "LOCK TABLE raycdc_commit IN ACCESS EXCLUSIVE MODE")),
        ("postgres-upsert", ("BEGIN", "SELECT 1 FROM raycdc_commit FOR UPDATE", "SELECT 1 FROM shop.items")),
        ("mysql-upsert", ("LOCK TABLES shop.items WRITE, shop.orders WRITE",)),
    ],
)
def test_where_all_targets_are_locked_the_run_ends_and_a_new_one_goes_on_without_a_snapshot(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    brief_waits: None,
    kind: str,
    statements: tuple[str, ...],
) -> None:
    story = BlockedTarget(world_of(request, kind, tmp_path))
    story.run()
    story.change(1)
    assert story.world.server is not None
    with somebody(story.world.server, *statements) as end:
        with pytest.raises(SinkError, match="is waited for"):
            story.run()
        end()
    story.run()
    assert story.parked == {}
    story.world.check()


class Failing:
    """A sink whose catalog answers 500 to whatever is asked of one target, from where on `fails` says so."""

    def __init__(self, sink: Sink, *, where: tuple[str, ...], lands: bool = False, every: bool = False) -> None:
        self._sink, self._where, self._lands, self._every = sink, where, lands, every
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def _answer(self, where: str, target: TableId) -> None:
        if (target == ITEMS or self._every) and where in self._where:
            self.asked += 1
            raise SinkUnavailableError(f"The Iceberg table {target}: the catalog answers 500.")

    def committed(self, target: TableId) -> CommitVector | None:
        self._answer("committed", target)
        return self._sink.committed(target)

    def stage(self, works: list[TableCommit]) -> Mapping[TableId, Any]:
        for work in works:
            self._answer("stage", work.target)
        return self._sink.stage(works)

    def commit(self, work: TableCommit, staged: Any) -> None:
        if self._lands and work.target == ITEMS:
            self._sink.commit(work, staged)
        self._answer("commit", work.target)
        self._sink.commit(work, staged)


@pytest.mark.parametrize("kind", ["iceberg-upsert", "iceberg-changelog", "delta-upsert"])
@pytest.mark.parametrize(("where", "lands"), [("stage", False), ("commit", False), ("commit", True)])
def test_a_target_for_which_alone_the_catalog_fails_is_parked(
    kind: str, where: str, tmp_path: Path, *, lands: bool
) -> None:
    """A commit that `lands` had no answer: the target holds an epoch in which it is parked."""
    story = BlockedTarget(new_world(kind, tmp_path))
    story.run()
    story.change(1)
    sink: Any = Failing(story.world.sink(), where=(where, "committed"), lands=lands)
    loop = story.world.loop(sink, parking=story.parking)
    loop.run()
    assert "other targets answer: The Iceberg table shop.items: the catalog answers 500." in story.require_parked()
    assert len(story.told) == 1
    story.require_back()


@pytest.mark.parametrize("kind", ["iceberg-upsert", "delta-changelog"])
def test_a_target_that_alone_cannot_say_at_a_start_what_it_holds_is_parked(kind: str, tmp_path: Path) -> None:
    story = BlockedTarget(new_world(kind, tmp_path))
    story.run()
    story.change(1)
    story.run(Failing(story.world.sink(), where=("committed",)))
    assert "other targets answer: The Iceberg table shop.items: the catalog answers 500." in story.require_parked()
    story.require_back()


def test_a_table_that_is_added_whose_target_alone_cannot_say_what_it_holds_is_parked(tmp_path: Path) -> None:
    """Nothing was ever written, so the other new target alone can say that the sink answers."""
    story = BlockedTarget(new_world("delta-upsert", tmp_path))
    story.run(Failing(story.world.sink(), where=("committed",)))
    entry = story.parked["shop.items"]
    assert (entry.reason, entry.epoch) == (ParkReason.BLOCKED, 1)
    assert story.rows("shop.orders") == [0, 1, 2]
    story.change(1)
    story.run()
    assert len(story.rows("shop.orders")) == 4
    story.require_back()


def test_a_start_where_nobody_says_what_they_hold_ends_the_run_and_parks_nobody(tmp_path: Path) -> None:
    story = BlockedTarget(new_world("delta-upsert", tmp_path))
    story.run()
    story.change(1)
    sink = Failing(story.world.sink(), where=("committed",), every=True)
    with pytest.raises(SinkError, match=r"waited for: .* answers 500\."):
        story.run(sink)
    assert story.parked == {}


def test_a_catalog_that_refuses_commits_and_tells_of_the_table_ends_the_run_and_loses_nothing(tmp_path: Path) -> None:
    story = BlockedTarget(new_world("delta-upsert", tmp_path))
    story.run()
    story.change(1)
    sink: Any = Failing(story.world.sink(), where=("commit",))
    with pytest.raises(SinkError, match=r"waited for: .* answers 500\."):
        story.world.loop(sink, parking=story.parking).run()
    assert story.parked == {}
    story.run()
    story.world.check()
