"""Stories of whole runs of a source: crashes, lost logs, tables that people pause and have read again."""

from __future__ import annotations

import json
import pickle
from contextlib import suppress
from pathlib import Path

from raycdc import failpoints
from raycdc.consumer import Epoch
from raycdc.errors import LogLostError
from raycdc.model import RowKind, TableSchema
from raycdc.source.parking import TableRequest
from raycdc.testing.source_stories import STEPS, SourceStories

#: Where an incarnation of a reader, or a generation of the job, is ended by an error.
POINTS = ("before_seal", "after_seal", "after_close", "before_manifest", "after_manifest")
#: Longest that a run may take to come to the source's present end.
RUN_PATIENCE_S = 300.0


class RunStories(SourceStories):
    """The target equals the source after every run, whatever happens in it, and `check` says what a run does."""

    def test_the_target_equals_the_source_after_every_run(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.run()
        self._check(play, tmp_path)
        for step in range(1, STEPS + 1):
            self.change(tmp_path, step)
            play.run()
            self._check(play, tmp_path)

    def test_changes_during_the_snapshot_are_in_it_or_behind_it(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        steps = iter(range(1, STEPS + 1))

        def change(_: Epoch) -> None:
            if (step := next(steps, None)) is not None:
                self.change(tmp_path, step)

        play.run(change)
        play.run()
        self._check(play, tmp_path)

    def test_a_change_of_the_log_comes_once(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        for step in range(1, STEPS + 1):
            play.run()
            self.change(tmp_path, step)
        play.run()
        twice = {one for one in play.places if play.places.count(one) > 1} if len(play.places) < 5_000 else set()
        assert len(set(play.places)) == len(play.places), f"came twice: {sorted(twice, key=str)[:5]}"
        # An update's row before says no more than the row after it, and a truncation is none of the changes of rows.
        told = {kind for _, _, kind in play.places} - {RowKind.UPDATE_BEFORE.symbol, RowKind.TRUNCATE.symbol}
        wanted = {kind.symbol for kind in self.kinds}
        assert told == wanted, (
            f"the log told of {sorted(told)}, and the source has {sorted(wanted)}; rows without `_pos` count as those "
            "of chunks"
        )

    def test_a_process_that_ends_anywhere_loses_and_doubles_nothing(self, tmp_path: Path) -> None:
        for point in POINTS:
            folder = tmp_path / point
            play = self._play(folder)
            # Where the job ends with it, as a process would have, the next run goes on.
            with suppress(failpoints.FailpointError), failpoints.planned(point, count=2, folder=folder):
                play.run(lambda epoch, folder=folder: self.change(folder, epoch.number))  # type: ignore[misc]
            play.run()
            self._check(play, folder)
            assert len(set(play.places)) == len(play.places), f"rows came twice after {point}"

    def test_nothing_is_acknowledged_before_it_is_committed(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)

        def look(_: Epoch) -> None:
            known = self.acknowledged(tmp_path)
            assert known is None or known <= play.committed_ordinal, (
                f"the source was told that all up to {known} is safe, and the sink holds {play.committed_ordinal}"
            )

        for step in range(1, STEPS + 1):
            play.run(look)
            self.change(tmp_path, step)
        play.run(look)
        known = self.acknowledged(tmp_path)
        assert known is None or known == play.committed_ordinal, f"the last commit was not told, but {known}"

    def test_a_log_that_is_lost_is_told(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.run()
        last = play.store.last_manifest()
        self.new_source(tmp_path).preflight(last)
        self.change(tmp_path, 1)
        if not self.lose_log(tmp_path):
            return
        lost = False
        try:
            self.new_source(tmp_path).preflight(last)
        except LogLostError:
            lost = True
        assert lost, "preflight says nothing of a log that does not reach back"
        assert last is not None
        restart = self.new_source(tmp_path).restart(last)
        assert restart is None or restart.ordinal > play.stream.ordinal, "the log goes on before the gap"

    def test_a_paused_table_holds_nobody_up_and_goes_on_where_it_was_left(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.run(patience_s=RUN_PATIENCE_S)
        table = min(play.stream.followed)
        left = dict(play.target[table])
        play.ask(table, TableRequest.PAUSE)
        play.run(patience_s=RUN_PATIENCE_S)
        self.change(tmp_path, 1)
        play.run(patience_s=RUN_PATIENCE_S)
        assert play.target[table] == left, f"{table} is paused, and its rows were told"
        self._check(play, tmp_path, but=table)
        play.ask(table, TableRequest.RESUME)
        play.run(patience_s=RUN_PATIENCE_S)
        # A log that is kept until it is acknowledged has not what the table missed; then the table says so.
        lost = play.stream.parked.get(table)
        assert lost is None or lost.reason
        self._check(play, tmp_path, but=None if lost is None else table)

    def test_a_table_is_read_anew_when_somebody_asks_for_it(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.run(patience_s=RUN_PATIENCE_S)
        table = min(play.stream.followed)
        # Whatever the target has, it is emptied for the new snapshot.
        play.target[table] = {(): {"of": "nobody"}}
        play.ask(table, TableRequest.RESNAPSHOT)
        self.change(tmp_path, 1)
        play.run(patience_s=RUN_PATIENCE_S)
        assert table in play.stream.followed, (
            f"{table} was to begin again, and did not: the log begins the tables of `split.state.parked` that are to "
            "begin `again` (`raycdc.source.new_beginnings.begin`)"
        )
        self._check(play, tmp_path)

    def test_check_and_plan_agree_with_a_run(self, tmp_path: Path) -> None:
        source = self.new_source(tmp_path)
        findings = source.check(None, names_told=False)
        bad = [str(result) for result in findings.results if result.required and not result.ok]
        assert not bad, f"check finds {bad}"
        planned = {table: described.schema.fingerprint() for table, described in source.tables().items()}
        play = self._play(tmp_path)
        play.run()
        followed = {table: state.schema for table, state in play.stream.followed.items()}
        assert planned.keys() == followed.keys() == set(findings.tables)
        schemas = {table: TableSchema.from_json(play.store.document(fp)) for table, fp in followed.items()}
        assert planned == {table: schema.fingerprint() for table, schema in schemas.items()}
        assert all(map(source.config.captures, followed)), "the configuration says that it does not capture them"

    def test_it_can_be_sent_to_other_processes(self, tmp_path: Path) -> None:
        source = pickle.loads(pickle.dumps(self.new_source(tmp_path)))
        assert source.tables().keys() == self.new_source(tmp_path).tables().keys()
        source.warm_up()
        json.dumps(source.statistics())
