"""The hooks that a test of a sink supplies for `raycdc.testing.SinkConformance`, and the common part of its stories.

The hooks read and change targets as other users do. Each story calls them with its own folder, which contains all
targets or describes their location. The common part of the stories is a play (`sink_play.Play`) that has begun, and the
checks at its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.errors import FencedError, SinkError
from raycdc.model import TableId
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.sinks.api import UPSERT, CommitVector, Sink, TableCommit
from raycdc.storage.settings import LIKE_ANYBODY, StorageSettings
from raycdc.testing.epochs import Change, Row, ScriptedTable
from raycdc.testing.sink_play import Play


class SinkHooks(ABC):
    """The hooks of a sink's test.

    A hook with a default may be left out if the operation is not possible for this target; then `impossible` has the
    reason.
    """

    #: The hooks that are not supplied, by name, each with the reason that the skipped story shows. The name ``replace``
    #: stands for ``pipeline.on_existing = "replace"``.
    impossible: ClassVar[Mapping[str, str]] = {}
    #: True if a changelog keeps the order of all changes; False if it keeps only the order of each key's changes.
    keeps_order: ClassVar[bool] = True
    #: The types of schema changes that the stories leave out, as with ``pipeline.exclude_schema_changes``.
    left_out: ClassVar[frozenset[str]] = frozenset()

    def settings(self, folder: Path) -> dict[str, Any]:
        """Return the sink's section of a configuration with its ``type``, for a sink with an entry point."""
        raise NotImplementedError("supply settings, or new_sink")

    def new_sink(self, folder: Path) -> Sink:
        """Return a sink that is not open yet."""
        settings = self.settings(folder)
        plugin = load_plugin(PluginGroup.SINKS, settings["type"])
        sink: Sink = plugin.create(plugin.config(**settings))
        sink.storage = self.storage(folder)
        return sink

    def storage(self, folder: Path) -> StorageSettings:
        """Return the settings of object stores, for a sink that takes their URLs."""
        return LIKE_ANYBODY

    @abstractmethod
    def rows(self, folder: Path, target: TableId) -> list[Row]:
        """Return the rows of `target` as its readers see them, as Python values by column.

        Rows of a changelog have ``_op`` and ``_seq`` as the sink writes them. The list is empty if the target has no
        rows or does not exist yet.
        """

    @abstractmethod
    def lose(self, folder: Path, target: TableId) -> None:
        """Remove `target`, as another user might."""

    @abstractmethod
    def occupy(self, folder: Path, target: TableId) -> None:
        """Put something of another user at `target`, with at least one row."""

    def changes(self, table: ScriptedTable) -> list[Change]:
        """Return the changes of `table` in order, in the form of this sink's changelog: the kind of each row, and the
        row.
        """
        return list(table.changelog)

    def widen(self, folder: Path, target: TableId) -> None:
        """Add a column ``note`` to `target`, as another user might, and give all its rows a value there.

        Not needed if rows are never updated.
        """
        raise NotImplementedError

    def back_up(self, folder: Path, target: TableId) -> Callable[[], None]:
        """Copy `target` and the pipeline's record of it, as a backup does. The returned function restores both.

        Not needed if a restored copy cannot be distinguished from permitted operations, such as the removal of files.
        """
        raise NotImplementedError

    def alter(self, folder: Path, target: TableId) -> None:
        """Change `target` so that a row whose ``qty`` is `raycdc.testing.sink_play.LARGE` cannot be written to it: for
        example drop the column, make it narrower, or forbid such values.
        """
        raise NotImplementedError

    def erase(self, folder: Path, target: TableId) -> None:
        """Delete some rows of `target`, by the means of its store."""
        raise NotImplementedError

    def rename(self, folder: Path, target: TableId, to: TableId) -> None:
        """Rename `target` to `to`."""
        raise NotImplementedError

    def exchange(self, folder: Path, target: TableId, other: TableId) -> None:
        """Exchange two targets, so that each has the name of the other one.

        If `impossible` names it, the store does not show that: its tables have no identity, and no record of the
        pipeline in them.
        """
        spare = TableId(target.db, "spare")
        for name, to in ((target, spare), (other, target), (spare, other)):
            self.rename(folder, name, to)

    def revoke(self, folder: Path, target: TableId) -> Callable[[], object]:
        """Revoke the right of the sink's user to write to `target`, but to no other target.

        The returned function grants the right again.
        """
        raise NotImplementedError

    def maintain(self, folder: Path, target: TableId) -> None:
        """Do to `target` what administrators may do at any time, because no row is lost and every row still fits.

        For example create an index, compact or vacuum, add partitions or a comment.
        """
        raise NotImplementedError

    def unreachable(self, folder: Path) -> AbstractContextManager[object]:
        """Make the store unreachable or overloaded until the context ends. A different thread may end the context.

        Not for a store on the same machine as the pipeline's state.
        """
        raise NotImplementedError

    def _need(self, hook: str) -> None:
        """Skip the story if `hook` is `impossible`; raise an error if it is neither supplied nor impossible."""
        if (reason := self.impossible.get(hook)) is not None:
            raise SkipTest(f"{hook}: {reason}")
        own, default = getattr(type(self), hook, None), getattr(SinkHooks, hook, None)
        assert own is not default or own is None, f"supply `{hook}`, or say in `impossible` why nobody can do that"


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

        The changed target is that of shop.orders; its rows are now `affected`. If `sink` is given, the check uses this
        running sink; otherwise it uses a new start.
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
