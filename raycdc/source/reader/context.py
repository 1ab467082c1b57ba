"""The surroundings that a reader is created with: where rows go, how to speak, and threads that fetch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from raycdc.source.protocol.api import ChunkSource, ReaderOutput
from raycdc.source.protocol.source_event import Message
from raycdc.source.reader.availability import Availability
from raycdc.source.reader.fetcher_manager import FetcherManager, ThreadingModel
from raycdc.source.reader.split_reader import FetchedSplit, SplitReader
from raycdc.source.snapshot.reading import ChunkReader

ItemT = TypeVar("ItemT")
SplitT = TypeVar("SplitT", bound=FetchedSplit)


class FetcherThreads(Protocol):
    """Starts the threads that block on a source so that its reader never does, with their time counted."""

    def start(
        self, open_reader: Callable[[], SplitReader[SplitT, ItemT]], *, name: str, threading: ThreadingModel
    ) -> FetcherManager[SplitT, ItemT]:
        """A manager whose fetchers open a reader each; `name` says in figures and stack traces what they read."""

    def chunks(self, open_chunks: Callable[[], ChunkReader], *, threading: ThreadingModel) -> ChunkSource:
        """Fetchers that read chunks into segments, over a connection each."""


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """The surroundings of a reader: where rows go, how to speak to the coordinator, what wakes its thread, a monotonic
    clock in seconds, the bytes after which it asks for a seal, whether single tables may be parked, how to start
    fetchers, and how many of them may read splits at once (``readers.fetchers``).
    """

    output: ReaderOutput
    send: Callable[[Message], None]
    availability: Availability
    now_s: Callable[[], float]
    epoch_bytes_max: int
    threads: FetcherThreads
    parking: bool = True
    fetchers: int = 1
