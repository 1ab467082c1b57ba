"""Stories of epochs, which every sink must pass: crashes, tasks that run twice, and drivers that were replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from raycdc.core import failpoints
from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.model.evolution.events import AddColumnEvent
from raycdc.segments import run_in_process
from raycdc.segments.tasks import ResultT, StageTask
from raycdc.sinks.api import STEP_LAST, STEP_TOMBSTONE
from raycdc.testing.sink_stories import SinkStories, progress, write

#: The failpoints where a run is stopped by an error. The epoch loop reaches each; the sink reaches ``in_commit``.
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


class EpochStories(SinkStories):
    """Tests of epochs; see the module's docstring."""

    def test_every_change_is_there_once(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs()
        play.run()
        self._check(play)
        held = play.sink()
        for table in (play.orders, play.items):
            assert progress(held.committed(table.id)) == (3, STEP_LAST)

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
                for work in play.commits(epoch):
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
        commits = play.commits(1)
        for work in commits:
            sink.apply_schema(work)
        sink.stage(commits)
        for table in (play.orders, play.items):
            assert self.rows(play.folder, table.id) == []

    def test_a_replaced_driver_writes_nothing(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.run(play.sink())
        play.epochs(1)
        asleep = play.sink()
        late = play.commits(2)
        staged = asleep.stage(late)
        play.restart()
        before = {table.id: self.rows(play.folder, table.id) for table in (play.orders, play.items)}
        for work in late:
            self._is_refused(partial(asleep.commit, work, staged[work.target]))
        # The old driver must not write an epoch that was not written yet.
        play.epochs(1)
        for work in play.commits(3, generation=play.script.generation - 1):
            self._is_refused(partial(write, asleep, work), always=True)
        assert {table: self.rows(play.folder, table) for table in before} == before
        play.restart()
        self._check(play)

    def test_what_a_target_holds_is_read_from_the_target(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.run()
        first, other = play.sink(), play.sink()
        assert progress(first.committed(play.orders.id)) == (1, STEP_LAST)
        play.epochs(1)
        (work, *_) = [work for work in play.commits(2) if work.target == play.orders.id]
        other.commit(work, other.stage([work])[work.target])
        assert progress(first.committed(play.orders.id)) == (2, STEP_LAST)
        assert progress(first.committed(play.items.id)) == (1, STEP_LAST), "one target says nothing of another one"
        assert first.committed(TableId("shop", "never_written")) is None

    def test_a_tombstone_bars_its_epoch(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.run()
        play.epochs(1)
        asleep = play.sink()
        late = play.commits(2)
        staged = asleep.stage(late)
        before = {work.target: self.rows(play.folder, work.target) for work in late}
        driver = play.sink()
        for work in play.commits(2, generation=play.store.generations.next()):
            driver.tombstone(replace(work, segments=()))
            assert progress(play.sink().committed(work.target)) == (2, STEP_TOMBSTONE)
        for work in late:
            self._is_refused(partial(asleep.commit, work, staged[work.target]))
        assert {target: self.rows(play.folder, target) for target in before} == before

    def test_a_tombstone_does_not_hide_rows(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.run()
        sink = play.sink()
        for work in play.commits(1, generation=play.store.generations.next()):
            self._is_refused(partial(sink.tombstone, replace(work, segments=())))
            assert progress(play.sink().committed(work.target)) == (1, STEP_LAST)
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
            assert progress(play.sink().committed(table.id)) == (1, STEP_LAST)
            assert self.rows(play.folder, table.id) == []

    def test_looking_changes_nothing(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs()
        play.run()
        looker = play.sink(inspects=True)
        fresh = TableId("shop", "fresh")
        assert looker.committed(fresh) is None
        looker.require_free(fresh)
        assert progress(looker.committed(play.orders.id)) == (3, STEP_LAST)
        assert looker.committed(fresh) is None, "looking at a target made it"
        self._check(play)

    def test_looking_before_anything_was_written_makes_nothing(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        before = sorted(play.folder.rglob("*"))
        looker = play.sink(inspects=True)
        assert looker.committed(play.orders.id) is None
        looker.require_free(play.orders.id)
        looker.close()
        assert sorted(play.folder.rglob("*")) == before, "looking at a target that is not there made something"
