"""What a source of many independent logs brings: its own enumerator and reader, without snapshot and hand-off.

Called by the shells in `raycdc.runtime`, in the process each part lives in. A source that has these two methods is one
of this kind; all others are incremental snapshots (`raycdc.source.enumerator`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from raycdc.checkpoint.manifest import Manifest
from raycdc.source.api import ReaderOutput, SourceReader, SplitEnumerator, SplitEnumeratorContext
from raycdc.source.source_event import Message


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """What a reader is given: where rows go, how to speak, how to wake its thread from another, a monotonic clock."""

    output: ReaderOutput
    send: Callable[[Message], None]
    notify: Callable[[], None]
    now_s: Callable[[], float]
    epoch_bytes_max: int


@runtime_checkable
class PartitionedSource(Protocol):
    """Made from the configuration in every process; picklable."""

    def make_enumerator(
        self,
        context: SplitEnumeratorContext,
        *,
        until: str | None,
        last: Manifest | None,
        document: Callable[[str], dict[str, Any]],
    ) -> SplitEnumerator:
        """A new enumerator (`last` is None) or the one that `last` describes; `document` gives schema documents."""

    def make_reader(self, context: ReaderContext) -> SourceReader: ...
