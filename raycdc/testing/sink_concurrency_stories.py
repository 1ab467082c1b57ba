"""Stories of targets that other writers change.

Every sink must pass them: a change is harmless, or the sink notices it before a row is lost.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from raycdc.delivery.targets.parked_targets import ParkingPolicy, SinkOutagePolicy
from raycdc.errors import SinkError, StateError, TableRefusedError, TargetExistsError
from raycdc.model import TableId
from raycdc.sinks.api import UPSERT, Sink, TableCommit
from raycdc.testing.sink_play import LARGE, Play
from raycdc.testing.sink_stories import SinkStories, write


def _followed_by_rows(sink: Sink, work: TableCommit) -> None:
    sink.apply_schema(work)
    write(sink, work)


class ConcurrentWriterStories(SinkStories):
    """Tests with concurrent writers; see the module's docstring."""

    def test_a_foreign_target_is_refused(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.sink()
        self.occupy(play.folder, play.orders.id)
        theirs = self.rows(play.folder, play.orders.id)
        assert theirs, "occupy left no row"
        inspects = partial(play.sink(inspects=True).require_free, play.orders.id)
        begins = partial(play.sink().apply_schema, play.commits(1)[0])
        for refused in (inspects, begins):
            taken = True
            try:
                refused()
            except TargetExistsError:
                taken = False
            assert not taken, "a target that somebody else made was taken without being asked for"
        assert self.rows(play.folder, play.orders.id) == theirs

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

    def test_a_lost_target_is_recreated_during_the_run(self, tmp_path: Path) -> None:
        for noticed in (True, False):
            play, sink = self._touchable(tmp_path / ("noticed" if noticed else "unnoticed"))
            self.lose(play.folder, play.orders.id)
            if noticed:
                play.epochs(1)
                play.run(sink, parking=ParkingPolicy())
                assert list(play.parked()) == [str(play.orders.id)], "the table whose target went is parked alone"
            play.resnapshot(play.orders)
            play.run(sink, parking=ParkingPolicy())
            assert play.parked() == {}, "the way out that people are told did not help without a restart"
            self._check(play)
            play.epochs(1)
            play.run(sink, parking=ParkingPolicy())
            self._check(play)
            play.epochs(1)
            play.restart(parking=ParkingPolicy())
            self._check(play)

    def test_a_target_restored_from_an_older_copy_is_resnapshotted_during_the_run(self, tmp_path: Path) -> None:
        self._need("back_up")
        play, sink = self._touchable(tmp_path)
        restore = self.back_up(play.folder, play.orders.id)
        play.epochs(1)
        play.run(sink)
        restore()
        play.epochs(1)
        play.run(sink, parking=ParkingPolicy())
        assert list(play.parked()) == [str(play.orders.id)], "the table whose target was restored is parked alone"
        reported = play.parked()[str(play.orders.id)].casefold()
        if sink.writes[0] != UPSERT or "delete" in reported or "drop" in reported:
            # Rows of a changelog would remain. Some targets need deletions first, and their messages say so.
            self.lose(play.folder, play.orders.id)
        play.resnapshot(play.orders)
        play.run(sink, parking=ParkingPolicy())
        assert play.parked() == {}, "the way out that people are told did not help without a restart"
        self._check(play)

    def test_a_recreated_target_is_refused(self, tmp_path: Path) -> None:
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
        self._need("replace")
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
            for work in play.commits(2):
                self._is_refused(partial(write, driver, work), always=True)
        self._check(other)
        other.epochs(1)
        other.restart()
        self._check(other)

    def test_a_driver_with_a_copy_of_the_state_is_refused_at_its_first_commit(self, tmp_path: Path) -> None:
        for name, ours, theirs in (("same", 1, 1), ("earlier", 2, 1), ("later", 1, 2)):
            play, sink = self._touchable(tmp_path / name)
            copy = play.copied()
            other = copy.sink()
            for table in (copy.orders, copy.items):
                assert other.committed(table.id) is not None
            play.script.generation = play.store.generations.next()
            for _ in range(ours):
                play.epochs(1)
                play.run(sink)
            for _ in range(theirs - 1):
                copy.idle_epoch()
            copy.epochs(1)
            for work in copy.commits(copy.store.next_epoch() - 1):
                self._is_refused(partial(_followed_by_rows, other, work), always=True)
            self._check(play)

    def test_a_start_with_a_copy_of_the_state_is_refused(self, tmp_path: Path) -> None:
        play, sink = self._touchable(tmp_path)
        copy = play.copied()
        copy.epochs(1)
        play.script.generation = play.store.generations.next()
        play.epochs(1)
        play.run(sink)
        self._is_refused(copy.restart, always=True)
        self._check(play)

    def test_a_target_that_a_copy_of_the_state_brought_to_our_epoch_is_parked_alone(self, tmp_path: Path) -> None:
        self._need("back_up")
        play, _ = self._touchable(tmp_path)
        restore, copy = self.back_up(play.folder, play.orders.id), play.copied()
        play.script.generation = play.store.generations.next()
        play.epochs(1)
        play.run()
        restore()
        copy.epochs(1)
        other = copy.sink()
        for work in copy.commits(copy.store.next_epoch() - 1):
            if work.target == copy.orders.id:
                try:
                    _followed_by_rows(other, work)
                except TableRefusedError:
                    return  # The history of a lake's table shows that it was restored.
        self._is_parked_alone(play, None, play.orders.id)

    def test_a_foreign_column_keeps_its_values(self, tmp_path: Path) -> None:
        self._need("widen")
        play = self._play(tmp_path)
        play.epochs(1)
        play.run()
        self.widen(play.folder, play.orders.id)
        before = {row["id"]: row["note"] for row in self.rows(play.folder, play.orders.id)}
        play.epochs(2)
        play.restart()
        self._check(play)
        after = {row["id"]: row["note"] for row in self.rows(play.folder, play.orders.id)}
        # A row that was deleted and inserted again counts as another row.
        kept = {key: note for key, note in after.items() if note is not None}
        assert kept, "the values that somebody else gave a column of theirs are gone"
        assert kept.items() <= before.items()

    def test_a_target_that_was_restored_from_an_older_copy_is_parked_alone(self, tmp_path: Path) -> None:
        self._need("back_up")
        for runs in (True, False):
            play, sink = self._touchable(tmp_path, runs)
            restore = self.back_up(play.folder, play.orders.id)
            play.epochs(1)
            play.run(sink)
            restore()
            self._is_parked_alone(play, sink if runs else None, play.orders.id)

    def test_an_altered_target_that_rows_do_not_fit_is_parked_alone(self, tmp_path: Path) -> None:
        self._need("alter")
        for runs in (True, False):
            play, sink = self._touchable(tmp_path, runs)
            self.alter(play.folder, play.orders.id)
            self._is_parked_alone(play, sink if runs else None, play.orders.id)

    def test_deleted_target_rows_are_noticed_or_later_changes_arrive(self, tmp_path: Path) -> None:
        self._need("erase")
        for runs in (True, False):
            play, sink = self._touchable(tmp_path, runs)
            full = self._sorted(play, play.orders.id)
            self.erase(play.folder, play.orders.id)
            left = self._sorted(play, play.orders.id)
            assert len(left) < len(full), "erase left every row"
            play.large_epoch()
            if runs:
                play.run(sink, parking=ParkingPolicy())
            else:
                play.restart(parking=ParkingPolicy())
            self._check(play, play.items)
            if parked := play.parked():
                assert list(parked) == [str(play.orders.id)], "the table whose rows went is parked, and no other"
                assert self._sorted(play, play.orders.id) == left, "something was written to a target that was touched"
            else:
                assert any(row["qty"] == LARGE for row in self.rows(play.folder, play.orders.id)), "a change is missing"

    def test_a_target_that_may_not_be_written_any_more_is_parked_alone(self, tmp_path: Path) -> None:
        self._need("revoke")
        for runs in (True, False):
            play, sink = self._touchable(tmp_path, runs)
            give_back = self.revoke(play.folder, play.orders.id)
            try:
                self._is_parked_alone(play, sink if runs else None, play.orders.id)
            finally:
                give_back()

    def test_what_administrators_do_now_and_then_is_harmless(self, tmp_path: Path) -> None:
        self._need("maintain")
        for runs in (True, False):
            play, sink = self._touchable(tmp_path, runs)
            self.maintain(play.folder, play.orders.id)
            play.epochs(2)
            if runs:
                play.run(sink, parking=ParkingPolicy())
            else:
                play.restart(parking=ParkingPolicy())
            assert play.parked() == {}, "a table was parked for what is harmless"
            self._check(play)

    def test_a_renamed_target_is_parked_alone(self, tmp_path: Path) -> None:
        self._need("rename")
        renamed = TableId("shop", "renamed")
        for runs in (True, False):
            play, sink = self._touchable(tmp_path, runs)
            self.rename(play.folder, play.orders.id, renamed)
            assert self.rows(play.folder, renamed), "rename left no rows"
            self._is_parked_alone(play, sink if runs else None, renamed)
            assert self.rows(play.folder, play.orders.id) == [], "the target was made again, without the rows it had"

    def test_exchanged_targets_get_no_rows(self, tmp_path: Path) -> None:
        self._need("rename")
        if "exchange" in self.impossible:
            self._need("exchange")
        for runs in (True, False):
            play, sink = self._touchable(tmp_path, runs)
            orders, items = (self._sorted(play, table.id) for table in (play.orders, play.items))
            self.exchange(play.folder, play.orders.id, play.items.id)
            play.large_epoch()
            try:
                if runs:
                    play.run(sink, parking=ParkingPolicy())
                else:
                    play.restart(parking=ParkingPolicy())
                refused = False
            except (SinkError, StateError):
                # If no target is as it was, there may be one cause, and nothing is parked.
                refused = True
            names = sorted(map(str, (play.orders.id, play.items.id)))
            assert refused or sorted(play.parked()) == names, "two targets have each other's name, and nobody noticed"
            now = [self._sorted(play, table.id) for table in (play.items, play.orders)]
            assert now == [orders, items], "rows were written to a target that another table has the name of"

    def test_a_briefly_unreachable_store_is_waited_for(self, tmp_path: Path) -> None:
        self._need("unreachable")
        play, sink = self._touchable(tmp_path)
        play.epochs(2)
        reported: list[str] = []
        with ExitStack() as absence:

            def notify(text: str) -> None:
                reported.append(text)
                absence.close()

            absence.enter_context(self.unreachable(play.folder))
            play.run(sink, parking=ParkingPolicy(waiting=SinkOutagePolicy(notify=notify)))
        assert reported, "the store was away, and nobody was told that it is waited for"
        assert play.parked() == {}, "no table is to blame for a store that is away"
        self._check(play)
        play.epochs(1)
        play.restart()
        self._check(play)
