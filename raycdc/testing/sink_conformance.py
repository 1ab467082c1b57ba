"""The stories that every sink must pass: the same epochs, crashes and replaced drivers, with the real epoch loop.

A test module of a sink of your own has::

    class TestMySink(SinkConformance):
        def settings(self, folder): return {"type": "my-sink", "path": str(folder / "target")}
        def rows(self, folder, target): ...
        def lose(self, folder, target): ...
        def occupy(self, folder, target): ...

and pytest plays each ``test_…`` below in a folder of its own. A sink that fails none of them keeps an epoch exactly
once as far as a single process can tell; what its store does at a power cut is the store's.

`widen`, `back_up`, `alter`, `rename` and `away` say how others do something to a target, where anybody can; the stories
of those that are not supplied are skipped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import SkipTest

from raycdc import failpoints
from raycdc.bridge import run_in_process
from raycdc.bridge.tasks import ResultT, StageTask
from raycdc.epochs.parked_targets import Parking, Waiting
from raycdc.errors import FencedError, SinkError, StateError, TargetTakenError
from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.schema.events import AddColumnEvent
from raycdc.sinks.api import STEP_LAST, STEP_TOMBSTONE, UPSERT, CommitVector, Sink, TableWork
from raycdc.stores.settings import LIKE_ANYBODY, StorageSettings
from raycdc.testing.epochs import Row, ScriptedTable
from raycdc.testing.sink_play import Play

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

    def back_up(self, folder: Path, target: TableId) -> Callable[[], None] | None:
        """Copy `target` and the pipeline's record of it, as a backup does; the function brings both back. None where
        an older copy cannot be told from what people may do, such as taking files away.
        """
        return None

    def alter(self, folder: Path, target: TableId) -> bool:
        """Change `target` so that a row whose ``qty`` is `raycdc.testing.sink_play.LARGE` cannot be written to it: drop
        the column, make it narrower, forbid such values. False where nobody can.
        """
        return False

    def rename(self, folder: Path, target: TableId, to: TableId) -> bool:
        """Call `target` `to`. False where nobody can."""
        return False

    def away(self, folder: Path) -> AbstractContextManager[object] | None:
        """The store does not answer, or has no time, until the context ends, which another thread may do. None for a
        store that is as near as the pipeline's own state.
        """
        return None

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
        self._need(self.widen(play.folder, play.orders.id), "widen")
        before = {row["id"]: row["note"] for row in self.rows(play.folder, play.orders.id)}
        play.epochs(2)
        play.restart()
        self._check(play)
        after = {row["id"]: row["note"] for row in self.rows(play.folder, play.orders.id)}
        # A row that was deleted and inserted again is another one.
        kept = {key: note for key, note in after.items() if note is not None}
        assert kept, "the values that somebody else gave a column of theirs are gone"
        assert kept.items() <= before.items()

    def test_a_target_that_was_restored_from_an_older_copy_is_parked_alone(self, tmp_path: Path) -> None:
        for runs in (True, False):
            play, sink = self._touchable(tmp_path, runs)
            restore = self.back_up(play.folder, play.orders.id)
            self._need(restore is not None, "back_up")
            assert restore is not None
            play.epochs(1)
            play.run(sink)
            restore()
            self._is_parked_alone(play, sink if runs else None, play.orders.id)

    def test_a_target_that_somebody_altered_so_that_rows_do_not_fit_is_parked_alone(self, tmp_path: Path) -> None:
        for runs in (True, False):
            play, sink = self._touchable(tmp_path, runs)
            self._need(self.alter(play.folder, play.orders.id), "alter")
            self._is_parked_alone(play, sink if runs else None, play.orders.id)

    def test_a_target_that_somebody_renamed_is_parked_alone(self, tmp_path: Path) -> None:
        renamed = TableId("shop", "renamed")
        for runs in (True, False):
            play, sink = self._touchable(tmp_path, runs)
            self._need(self.rename(play.folder, play.orders.id, renamed), "rename")
            assert self.rows(play.folder, renamed), "rename left no rows"
            self._is_parked_alone(play, sink if runs else None, renamed)
            assert self.rows(play.folder, play.orders.id) == [], "the target was made again, without the rows it had"

    def test_a_store_that_is_away_for_a_moment_is_waited_for(self, tmp_path: Path) -> None:
        play, sink = self._touchable(tmp_path)
        play.epochs(2)
        told: list[str] = []
        with ExitStack() as absence:

            def tell(text: str) -> None:
                told.append(text)
                absence.close()

            away = self.away(play.folder)
            self._need(away is not None, "away")
            assert away is not None
            absence.enter_context(away)
            play.run(sink, parking=Parking(waiting=Waiting(tell=tell)))
        assert told, "the store was away, and nobody was told that it is waited for"
        assert play.parked() == {}, "no table is to blame for a store that is away"
        self._check(play)
        play.epochs(1)
        play.restart()
        self._check(play)

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

    @staticmethod
    def _need(supplied: bool, hook: str) -> None:
        if not supplied:
            raise SkipTest(f"the sink's test supplies no {hook}")

    def _touchable(self, folder: Path, runs: bool = True) -> tuple[Play, Sink]:
        """A play whose targets have rows, and the sink that wrote them."""
        play = self._play(folder / ("runs" if runs else "starts"))
        play.epochs(1)
        sink = play.sink()
        play.run(sink)
        return play, sink

    def _is_parked_alone(self, play: Play, sink: Sink | None, touched: TableId) -> None:
        """Somebody touched the target of shop.orders, whose rows are now `touched`: in the running `sink`, or at the
        next start, that table is parked by its name, and the other one goes on.
        """
        before = self._sorted(play, touched)
        play.large_epoch()
        if sink is None:
            play.restart(parking=Parking())
        else:
            play.run(sink, parking=Parking())
        for _ in range(2):
            parked = play.parked()
            assert list(parked) == [str(play.orders.id)], "the table whose target was touched is parked, and no other"
            assert "orders" in parked[str(play.orders.id)], "the reason names the table"
            assert self._sorted(play, touched) == before, "something was written to a target that was touched"
            self._check(play, play.items)
            play.epochs(1)
            play.restart(parking=Parking())

    def _sorted(self, play: Play, target: TableId) -> Sequence[object]:
        """The rows of `target`: stores need not give them in an order."""
        return sorted(self.rows(play.folder, target), key=repr)

    def _check(self, play: Play, *tables: ScriptedTable) -> None:
        """Every target, or those of `tables`, hold exactly what their tables did."""
        upsert = play.sink(looks=True).writes[0] == UPSERT
        for table in tables or (play.orders, play.items):
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
