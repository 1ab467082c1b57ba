"""What a test of a sink supplies for `raycdc.testing.SinkConformance`: how others see its targets, and touch them.

Called by the stories, each in a folder of its own in which all targets lie, or which says where they do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

from raycdc.model import TableId
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.sinks.api import Sink
from raycdc.storage.settings import LIKE_ANYBODY, StorageSettings
from raycdc.testing.epochs import Change, Row, ScriptedTable


class SinkHooks(ABC):
    """See the module's docstring. A hook with a default need not be supplied where nobody can do such a thing to a
    target, if `impossible` says why.
    """

    #: The hooks that are not supplied, by name, each with the reason, which the skipped story shows; ``replace`` stands
    #: for that of ``pipeline.on_existing``.
    impossible: ClassVar[Mapping[str, str]] = {}
    #: Whether a changelog keeps the order of all changes; else of those of one key.
    keeps_order: ClassVar[bool] = True
    #: The types of changes that the stories spare the targets, as ``pipeline.exclude_schema_changes`` does.
    left_out: ClassVar[frozenset[str]] = frozenset()

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
        """Return the settings of object stores, for a sink that takes their URLs."""
        return LIKE_ANYBODY

    @abstractmethod
    def rows(self, folder: Path, target: TableId) -> list[Row]:
        """The rows of `target` as its readers see them, as Python values by column; of a changelog with ``_op`` and
        ``_seq`` as the sink writes them. None yet: an empty list.
        """

    @abstractmethod
    def lose(self, folder: Path, target: TableId) -> None:
        """Remove `target`, as another user might."""

    @abstractmethod
    def occupy(self, folder: Path, target: TableId) -> None:
        """Put something of another user at `target`, with at least one row."""

    def changes(self, table: ScriptedTable) -> list[Change]:
        """The changes of `table`, in order, as a changelog of this sink tells them: a kind of row, and the row."""
        return list(table.changelog)

    # -- what others do to a target

    def widen(self, folder: Path, target: TableId) -> None:
        """Add a column ``note`` to `target`, as somebody else might, and give all its rows a value there. Not where
        rows are never updated.
        """
        raise NotImplementedError

    def back_up(self, folder: Path, target: TableId) -> Callable[[], None]:
        """Copy `target` and the pipeline's record of it, as a backup does; the function brings both back. Not where an
        older copy cannot be told from what people may do, such as taking files away.
        """
        raise NotImplementedError

    def alter(self, folder: Path, target: TableId) -> None:
        """Change `target` so that a row whose ``qty`` is `raycdc.testing.sink_play.LARGE` cannot be written to it: drop
        the column, make it narrower, forbid such values.
        """
        raise NotImplementedError

    def erase(self, folder: Path, target: TableId) -> None:
        """Delete some rows of `target`, by the means of its store."""
        raise NotImplementedError

    def rename(self, folder: Path, target: TableId, to: TableId) -> None:
        """Call `target` `to`."""
        raise NotImplementedError

    def revoke(self, folder: Path, target: TableId) -> Callable[[], object]:
        """Take from the sink's user the right to write to `target`, and to no other; the function gives it back."""
        raise NotImplementedError

    def maintain(self, folder: Path, target: TableId) -> None:
        """Do to `target` what administrators may do to it at any time, as no row goes and every row still fits: an
        index, a compaction, a vacuum, more partitions, a comment.
        """
        raise NotImplementedError

    def unreachable(self, folder: Path) -> AbstractContextManager[object]:
        """The store does not answer, or has no time, until the context ends, which another thread may do. Not for a
        store that is as near as the pipeline's own state.
        """
        raise NotImplementedError

    def _need(self, hook: str) -> None:
        """Skip the story where `hook` is `impossible`; an error where it is neither supplied nor that."""
        if (reason := self.impossible.get(hook)) is not None:
            raise SkipTest(f"{hook}: {reason}")
        own, default = getattr(type(self), hook, None), getattr(SinkHooks, hook, None)
        assert own is not default or own is None, f"supply `{hook}`, or say in `impossible` why nobody can do that"
