"""The common part of the stories of sinks: a play that has begun, and the checks at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.errors import FencedError, SinkError
from raycdc.model import TableId
from raycdc.sinks.api import UPSERT, CommitVector, Sink, TableCommit
from raycdc.testing.epochs import ScriptedTable
from raycdc.testing.sink_hooks import SinkHooks
from raycdc.testing.sink_play import Play


class SinkStories(SinkHooks):
    """Base of the stories. Each story is a test with its own temporary folder."""

    def _play(self, folder: Path) -> Play:
        return Play(folder, self.new_sink, left_out=self.left_out)

    def _touchable(self, folder: Path, runs: bool = True) -> tuple[Play, Sink]:
        """Return a play whose targets have rows, and the sink that wrote them."""
        play = self._play(folder / ("runs" if runs else "starts"))
        play.epochs(1)
        sink = play.sink()
        play.run(sink)
        return play, sink

    def _is_parked_alone(self, play: Play, sink: Sink | None, affected: TableId) -> None:
        """Check that only the table of a target that another user changed is parked, and that the other table goes on.

        The target is that of shop.orders, whose rows are now `affected`. The check is in the running `sink`, or at the
        next start if there is no sink.
        """
        before = self._sorted(play, affected)
        play.large_epoch()
        if sink is None:
            play.restart(parking=ParkingPolicy())
        else:
            play.run(sink, parking=ParkingPolicy())
        for _ in range(2):
            parked = play.parked()
            assert list(parked) == [str(play.orders.id)], "the table whose target was touched is parked, and no other"
            assert "orders" in parked[str(play.orders.id)], "the reason names the table"
            assert self._sorted(play, affected) == before, "something was written to a target that was touched"
            self._check(play, play.items)
            play.epochs(1)
            play.restart(parking=ParkingPolicy())

    def _sorted(self, play: Play, target: TableId) -> Sequence[object]:
        """Return the rows of `target`, sorted, because stores need not return them in order."""
        return sorted(self.rows(play.folder, target), key=repr)

    def _check(self, play: Play, *tables: ScriptedTable) -> None:
        """Check that every target, or those of `tables`, have exactly the rows of their tables."""
        upsert = play.sink(inspects=True).writes[0] == UPSERT
        for table in tables or (play.orders, play.items):
            names = [column.name for column in table.schema.columns]
            rows = self.rows(play.folder, table.id)
            if upsert:
                found = sorted(({name: row[name] for name in names} for row in rows), key=table.key)
                _require_equal(table, found, table.contents())
                continue
            reported = [
                (row["_op"], {name: row[name] for name in names}) for row in sorted(rows, key=lambda row: row["_seq"])
            ]
            # Sorting by key keeps the order of the changes of a key.
            in_order = list if self.keeps_order else partial(sorted, key=lambda change: table.key(change[1]))
            _require_equal(table, in_order(reported), in_order(self.changes(table)))

    @staticmethod
    def _is_refused(late: Callable[[], None], *, always: bool = False) -> None:
        """Check that a driver that was replaced gets a `FencedError`, or does nothing if nothing is left to do."""
        try:
            late()
        except (FencedError, SinkError):
            return
        assert not always, "a driver that was replaced wrote an epoch that nobody had written"


def write(sink: Sink, work: TableCommit) -> None:
    """Stage and commit the part of one target."""
    sink.commit(work, sink.stage([work])[work.target])


def progress(vector: CommitVector | None) -> tuple[int, int] | None:
    """Return epoch and step of a record, if there is one."""
    return None if vector is None else vector.progress


def _require_equal(table: ScriptedTable, found: Sequence[object], wanted: Sequence[object]) -> None:
    assert found == wanted, f"{table.id}: {len(found)} rows instead of {len(wanted)}, or other ones"
