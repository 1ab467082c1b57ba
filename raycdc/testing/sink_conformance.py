"""The stories that every sink must pass: the same epochs, crashes and replaced drivers, with the real epoch loop.

A test module of a sink of your own has::

    class TestMySink(SinkConformance):
        def settings(self, folder): return {"type": "my-sink", "path": str(folder / "target")}
        def rows(self, folder, target): ...
        def lose(self, folder, target): ...
        def occupy(self, folder, target): ...

and pytest plays each ``test_…`` below in a folder of its own. A sink that fails none of them keeps an epoch exactly
once as far as a single process can tell; what its store does at a power cut is the store's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from raycdc import failpoints
from raycdc.bridge import run_in_process
from raycdc.bridge.tasks import ResultT, StageTask, TaskRunner
from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.store import CheckpointStore
from raycdc.epochs.epoch_loop import EpochLoop
from raycdc.epochs.ports import EpochPorts
from raycdc.errors import FencedError, SinkError, StateError, TargetTakenError
from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.schema.events import AddColumnEvent
from raycdc.sinks.api import STEP_LAST, STEP_TOMBSTONE, UPSERT, CommitVector, Sink, SinkContext, TableWork
from raycdc.stores.settings import LIKE_ANYBODY, StorageSettings
from raycdc.testing.epochs import EpochScript, Row, ScriptedTable

#: Where a run is stopped by an error: each is reached by the epoch loop, ``in_commit`` by the sink's own verb.
POINTS = (
    "before_stage",
    "after_stage",
    "before_commit",
    "in_commit",
    "after_commit",
    "between_tables",
    "after_last_commit",
    "after_record",
)


class Play:
    """A pipeline without a source: scripted epochs of two tables, and drivers that write them into the sink. Another
    `state` in the same folder is another pipeline over the same targets.
    """

    def __init__(self, folder: Path, new_sink: Callable[[Path], Sink], *, state: str = "state") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._new_sink = new_sink
        self.store = CheckpointStore(folder / state, pipeline="conformance")
        self.script = EpochScript(self.store)
        self.orders = self.script.table("shop.orders")
        self.items = self.script.table("shop.items")

    def sink(self, *, looks: bool = False, run_tasks: TaskRunner = run_in_process, on_existing: str = "fail") -> Sink:
        """A sink of a driver of its own, opened as a run opens it, or as ``raycdc check`` does."""
        sink = self._new_sink(self.folder)
        context = SinkContext(
            self.store.app_id, sink.writes[0], run_tasks, on_existing, parallelism=2, storage=sink.storage
        )
        (sink.look if looks else sink.open)(context)
        return sink

    def epochs(self, count: int = 3) -> None:
        """Seal epochs of inserts, updates and deletions of both tables, the first with snapshot rows."""
        for number in range(count):
            if not self.orders.announced:
                for table in (self.orders, self.items):
                    table.read([{"id": key, "name": f"{table.id.table}{key}", "qty": key} for key in range(100, 120)])
            self.script.random_epoch(operations=12)
            self.script.seal(final=number == count - 1)

    def run(self, sink: Sink | None = None) -> None:
        """Write everything that is sealed, and end."""
        self._loop(sink or self.sink()).run()

    def restart(self) -> None:
        """A new driver: the next generation, recovery, then everything that is sealed."""
        self.script.generation = self.store.generations.next()
        loop = self._loop(self.sink())
        loop.recover()
        if self.store.sealed_epochs(loop.committed):
            loop.run()

    def works(self, epoch: int, *, generation: int = 0) -> list[TableWork]:
        """The shares of a sealed epoch, of the script's generation or another one."""
        manifest = self.store.manifest(epoch)
        return [
            TableWork(
                epoch=epoch,
                generation=generation or self.script.generation,
                source=table,
                target=table,
                schema=self.script.tables[table].schema,
                changes=part.changes,
                segments=tuple(segment for segment in manifest.segments if segment.table == table),
                positions={split: state.to_json() for split, state in manifest.to_splits.items()},
            )
            for table, part in manifest.tables.items()
        ]

    def _loop(self, sink: Sink) -> EpochLoop:
        own = self.script.generation
        return EpochLoop(self.store, sink, EpochPorts(generation=lambda: own, next_sealed=self._next_sealed))

    def _next_sealed(self, after: int, _timeout_s: float) -> Manifest | None:
        return next(iter(self.store.manifests(after)), None)


class SinkConformance(ABC):
    """See the module's docstring. The methods to supply get the folder of the test, in which all targets lie."""

    def settings(self, folder: Path) -> dict[str, Any]:
        """The sink's section of a configuration, with its ``type``, for a sink that an entry point names."""
        raise NotImplementedError("supply settings, or new_sink")

    def new_sink(self, folder: Path) -> Sink:
        """A sink that was not opened."""
        settings = self.settings(folder)
        plugin = load_plugin(PluginGroup.SINKS, settings["type"])
        sink: Sink = plugin.create(plugin.config(**settings))
        sink.storage = self.storage(folder)
        return sink

    def storage(self, folder: Path) -> StorageSettings:
        """How object stores are reached, for a sink that takes their URLs."""
        return LIKE_ANYBODY

    @abstractmethod
    def rows(self, folder: Path, target: TableId) -> list[Row]:
        """The rows of `target` as its readers see them, as Python values by column; of a changelog with ``_op`` and
        ``_seq`` as the sink writes them. None yet: an empty list.
        """

    @abstractmethod
    def lose(self, folder: Path, target: TableId) -> None:
        """Remove `target`, as somebody else might."""

    @abstractmethod
    def occupy(self, folder: Path, target: TableId) -> None:
        """Put something of somebody else's at `target`, with at least one row."""

    def widen(self, folder: Path, target: TableId) -> bool:
        """Add a column ``note`` to `target`, as somebody else might, and give all its rows a value there. False where
        nobody can, or where rows are never updated.
        """
        return False

    # -- what must be true

    def test_every_change_is_there_once(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs()
        play.run()
        self._check(play)
        held = play.sink()
        for table in (play.orders, play.items):
            assert _place(held.committed(table.id)) == (3, STEP_LAST)

    def test_an_error_at_any_point_loses_and_doubles_nothing(self, tmp_path: Path) -> None:
        for point in POINTS:
            for count in (1, 2):
                play = self._play(tmp_path / f"{point}-{count}")
                play.epochs()
                try:
                    with failpoints.planned(point, count=count, folder=play.folder):
                        play.run()
                except failpoints.FailpointError:
                    play.restart()
                else:
                    raise AssertionError(f"the sink's run did not reach {point} {count} times")
                self._check(play)

    def test_an_epoch_that_comes_again_changes_nothing(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(2)
        play.run()
        for sink in (play.sink(), play.sink()):
            for epoch in (1, 2):
                for work in play.works(epoch):
                    sink.apply_schema(work)
                    sink.commit(work, sink.stage([work])[work.target])
        self._check(play)

    def test_a_task_that_runs_twice_is_harmless(self, tmp_path: Path) -> None:
        def twice(tasks: Sequence[StageTask[ResultT]]) -> list[ResultT]:
            run_in_process(tasks)
            return run_in_process(tasks)

        play = self._play(tmp_path)
        play.epochs()
        play.run(play.sink(run_tasks=twice))
        self._check(play)

    def test_staged_rows_are_not_seen(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        sink = play.sink()
        works = play.works(1)
        for work in works:
            sink.apply_schema(work)
        sink.stage(works)
        for table in (play.orders, play.items):
            assert self.rows(play.folder, table.id) == []

    def test_a_replaced_driver_writes_nothing(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.run(play.sink())
        play.epochs(1)
        asleep = play.sink()
        late = play.works(2)
        staged = asleep.stage(late)
        play.restart()
        before = {table.id: self.rows(play.folder, table.id) for table in (play.orders, play.items)}
        for work in late:
            self._is_refused(partial(asleep.commit, work, staged[work.target]))
        # An epoch that nobody has written yet is not the old driver's to write.
        play.epochs(1)
        for work in play.works(3, generation=play.script.generation - 1):
            self._is_refused(partial(_write, asleep, work), always=True)
        assert {table: self.rows(play.folder, table) for table in before} == before
        play.restart()
        self._check(play)

    def test_what_a_target_holds_is_read_from_the_target(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.run()
        first, other = play.sink(), play.sink()
        assert _place(first.committed(play.orders.id)) == (1, STEP_LAST)
        play.epochs(1)
        (work, *_) = [work for work in play.works(2) if work.target == play.orders.id]
        other.commit(work, other.stage([work])[work.target])
        assert _place(first.committed(play.orders.id)) == (2, STEP_LAST)
        assert _place(first.committed(play.items.id)) == (1, STEP_LAST), "one target says nothing of another one"
        assert first.committed(TableId("shop", "never_written")) is None

    def test_a_tombstone_bars_its_epoch(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.run()
        play.epochs(1)
        asleep = play.sink()
        late = play.works(2)
        staged = asleep.stage(late)
        before = {work.target: self.rows(play.folder, work.target) for work in late}
        driver = play.sink()
        for work in play.works(2, generation=play.store.generations.next()):
            driver.tombstone(replace(work, segments=()))
            assert _place(play.sink().committed(work.target)) == (2, STEP_TOMBSTONE)
        for work in late:
            self._is_refused(partial(asleep.commit, work, staged[work.target]))
        assert {target: self.rows(play.folder, target) for target in before} == before

    def test_a_tombstone_does_not_hide_rows(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.run()
        sink = play.sink()
        for work in play.works(1, generation=play.store.generations.next()):
            self._is_refused(partial(sink.tombstone, replace(work, segments=())))
            assert _place(play.sink().committed(work.target)) == (1, STEP_LAST)
        self._check(play)

    def test_epochs_whose_rows_are_lost_are_dropped_and_read_again(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(2)
        play.run()
        before = {table.id: (list(table.changelog), dict(table.rows)) for table in (play.orders, play.items)}
        play.epochs(1)
        for segment in play.store.manifest(3).segments:
            Path(segment.path).unlink()
        play.restart()
        for table in (play.orders, play.items):
            table.changelog, table.rows = before[table.id]
        self._check(play)
        play.epochs(1)
        play.restart()
        self._check(play)

    def test_a_target_that_was_lost_is_refused(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(2)
        play.run()
        self.lose(play.folder, play.orders.id)
        play.epochs(1)
        try:
            play.restart()
        except (StateError, SinkError) as error:
            assert "orders" in str(error), "the error names the table"  # noqa: PT017
        else:
            raise AssertionError("the sink lost a table, and the next start did not refuse to go on")

    def test_a_target_that_somebody_made_anew_is_refused(self, tmp_path: Path) -> None:
        for runs in (True, False):
            play = self._play(tmp_path / ("runs" if runs else "starts"))
            play.epochs(1)
            sink = play.sink()
            play.run(sink)
            self.lose(play.folder, play.orders.id)
            self.occupy(play.folder, play.orders.id)
            theirs = self.rows(play.folder, play.orders.id)
            play.epochs(1)
            try:
                if runs:
                    play.run(sink)
                else:
                    play.restart()
            except (StateError, SinkError) as error:
                assert "orders" in str(error), "the error names the table"  # noqa: PT017
            else:
                raise AssertionError("somebody made a table anew, and the sink went on with it")
            assert self.rows(play.folder, play.orders.id) == theirs

    def test_a_pipeline_whose_targets_another_one_replaced_writes_no_more(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        sink = play.sink()
        play.run(sink)
        other = Play(play.folder, self.new_sink, state="other-state")
        other.epochs(1)
        successor = other.sink(on_existing="replace")
        other.run(successor)
        play.epochs(1)
        for driver in (sink, play.sink()):
            for work in play.works(2):
                self._is_refused(partial(_write, driver, work), always=True)
        self._check(other)
        other.epochs(1)
        other.restart()
        self._check(other)

    def test_a_column_of_others_keeps_its_values(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.run()
        if not self.widen(play.folder, play.orders.id):
            return
        before = {row["id"]: row["note"] for row in self.rows(play.folder, play.orders.id)}
        play.epochs(2)
        play.restart()
        self._check(play)
        after = {row["id"]: row["note"] for row in self.rows(play.folder, play.orders.id)}
        # A row that was deleted and inserted again is another one.
        kept = {key: note for key, note in after.items() if note is not None}
        assert kept, "the values that somebody else gave a column of theirs are gone"
        assert kept.items() <= before.items()

    def test_an_added_column_comes_with_its_values(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.run()
        column = Column("city", LogicalType(TypeKind.STRING))
        table = play.orders
        table.schema = replace(table.schema, columns=(*table.schema.columns, column))
        table.changes.append(AddColumnEvent(table.id, column))
        table.rows = {key: {**row, "city": None} for key, row in table.rows.items()}
        table.changelog = [(op, {**row, "city": None}) for op, row in table.changelog]
        table.insert({"id": 900, "name": "new", "qty": 1, "city": "Oslo"})
        play.script.seal(final=True)
        play.restart()
        self._check(play)

    def test_an_epoch_without_rows_is_held(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.script.seal(final=True)
        play.run()
        for table in (play.orders, play.items):
            assert _place(play.sink().committed(table.id)) == (1, STEP_LAST)
            assert self.rows(play.folder, table.id) == []

    def test_somebody_elses_target_is_refused(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.sink()
        self.occupy(play.folder, play.orders.id)
        theirs = self.rows(play.folder, play.orders.id)
        assert theirs, "occupy left no row"
        looks = partial(play.sink(looks=True).require_free, play.orders.id)
        begins = partial(play.sink().apply_schema, play.works(1)[0])
        for refused in (looks, begins):
            taken = True
            try:
                refused()
            except TargetTakenError:
                taken = False
            assert not taken, "a target that somebody else made was taken without being asked for"
        assert self.rows(play.folder, play.orders.id) == theirs

    def test_looking_changes_nothing(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs()
        play.run()
        looker = play.sink(looks=True)
        fresh = TableId("shop", "fresh")
        assert looker.committed(fresh) is None
        looker.require_free(fresh)
        assert _place(looker.committed(play.orders.id)) == (3, STEP_LAST)
        assert looker.committed(fresh) is None, "looking at a target made it"
        self._check(play)

    def test_looking_before_anything_was_written_makes_nothing(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        before = sorted(play.folder.rglob("*"))
        looker = play.sink(looks=True)
        assert looker.committed(play.orders.id) is None
        looker.require_free(play.orders.id)
        looker.close()
        assert sorted(play.folder.rglob("*")) == before, "looking at a target that is not there made something"

    # -- helpers

    def _play(self, folder: Path) -> Play:
        return Play(folder, self.new_sink)

    def _check(self, play: Play) -> None:
        """Every target holds exactly what its table did."""
        upsert = play.sink(looks=True).writes[0] == UPSERT
        for table in (play.orders, play.items):
            found, wanted = _comparable(self.rows(play.folder, table.id), table, upsert=upsert), _wanted(table, upsert)
            assert found == wanted, f"{table.id}: {len(found)} rows instead of {len(wanted)}, or other ones"

    @staticmethod
    def _is_refused(late: Callable[[], None], *, always: bool = False) -> None:
        """A driver that comes too late is told so, or, where there is nothing left to do, may do nothing."""
        try:
            late()
        except (FencedError, SinkError):
            return
        assert not always, "a driver that was replaced wrote an epoch that nobody had written"


def _write(sink: Sink, work: TableWork) -> None:
    sink.commit(work, sink.stage([work])[work.target])


def _place(vector: CommitVector | None) -> tuple[int, int] | None:
    return None if vector is None else vector.place


def _wanted(table: ScriptedTable, upsert: bool) -> list[Any]:
    return table.contents() if upsert else list(table.changelog)


def _comparable(rows: list[Row], table: ScriptedTable, *, upsert: bool) -> list[Any]:
    """Rows by key, or changes in their order, with the columns that the table has now."""
    names = [column.name for column in table.schema.columns]
    if upsert:
        return sorted(({name: row[name] for name in names} for row in rows), key=table.key)
    return [(row["_op"], {name: row[name] for name in names}) for row in sorted(rows, key=lambda row: row["_seq"])]
