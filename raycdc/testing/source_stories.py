"""What the stories of sources have in common: a play, what must be true at its end, and the log as a reader sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from raycdc.model import TableId
from raycdc.source.snapshot.log_unit import LogUnit, TableAltered, TableBegun, updates_of
from raycdc.source.snapshot.snapshot_plan import StartPoint, first_state
from raycdc.source.snapshot.stream_state import StreamState
from raycdc.source.split import StreamSplit
from raycdc.source.table_life import Live
from raycdc.testing.source_hooks import SourceHooks
from raycdc.testing.source_play import SourcePlay

#: Steps of `SourceHooks.change` of a story.
STEPS = 3
#: Looks of a quiet log that say that it has no more, and units after which it has no end.
QUIET, UNITS_MAX = 3, 10_000


class SourceStories(SourceHooks):
    """Base of the stories. Each of them is a test, whose folder is pytest's."""

    def _play(self, folder: Path) -> SourcePlay:
        return SourcePlay(folder, partial(self.new_source, folder))

    def _check(self, play: SourcePlay, folder: Path, *, but: TableId | None = None) -> None:
        """Every target but that one has the rows that its table has at the source."""
        for table in self.new_source(folder).tables().keys() - {but}:
            written = sorted(map(shown, play.target.get(table, {}).values()))
            wanted = sorted(map(shown, self.rows(folder, table)))
            more, less = set(written) - set(wanted), set(wanted) - set(written)
            assert written == wanted, (
                f"{table} at the source has {len(wanted)} rows, the target {len(written)}; only in the target: "
                f"{sorted(more)[:3]}; only at the source: {sorted(less)[:3]}"
            )

    def _start(self, folder: Path) -> StartPoint:
        source = self.new_source(folder)
        return source.enumerator_dialect().start_point()

    def _split(self, start: StartPoint) -> StreamSplit:
        """The log from `start` on, of tables whose snapshots begin."""
        return StreamSplit(first_state(start), {plan.fingerprint: plan.document for plan in start.tables})

    def _followed(self, start: StartPoint) -> StreamSplit:
        """The log from `start` on, of tables that are followed without a snapshot."""
        split = self._split(start)
        live = {plan.table: Live(plan.fingerprint, announced=True, incarnation=0) for plan in start.tables}
        state = StreamState(start.position, start.ordinal, live, notes=start.notes)
        return StreamSplit(state, split.schemas)

    def _units(self, folder: Path, split: StreamSplit) -> Iterator[LogUnit]:
        """The units of the log from `split` on, until it is quiet."""
        with closing(self.new_source(folder).log_reader(split)) as reader:
            quiet = 0
            for _ in range(UNITS_MAX):
                unit = reader.fetch()
                quiet = quiet + 1 if unit is None else 0
                if unit is not None:
                    yield unit
                if quiet == QUIET:
                    return
        raise AssertionError(f"the log has no end after {UNITS_MAX} units")


def behind(split: StreamSplit, unit: LogUnit) -> StreamSplit:
    """The log behind `unit`, as a reader would seal it."""
    followed, schemas = dict(split.state.followed), dict(split.schemas)
    for update in updates_of(unit):
        followed.pop(update.table, None)
        if isinstance(update, TableAltered | TableBegun):
            followed[update.table] = Live(update.fingerprint, announced=True, incarnation=0)
            schemas[update.fingerprint] = update.document
    notes = split.state.notes if unit.place.notes is None else unit.place.notes
    return StreamSplit(StreamState(unit.place.position, unit.place.ordinal, followed, notes=notes), schemas)


def shown(row: Mapping[str, Any]) -> str:
    """A row as a text that is the same for equal rows."""
    return str(sorted(row.items()))
