"""Fetchers with their time counted: `raycdc.source.reader.context.FetcherThreads` of a reader's process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from raycdc.runtime.chunk_fetcher import ChunkFiles, ChunkSplitReader, FetchedChunks
from raycdc.runtime.paced import PacedChunks, PacedSplits, PaceGate
from raycdc.runtime.stopwatch import Stopwatch
from raycdc.source.protocol.api import ChunkSource
from raycdc.source.reader.availability import Availability
from raycdc.source.reader.fetcher_manager import FetcherManager, SplitFetcherManager, ThreadingModel
from raycdc.source.reader.records import RecordsWithSplitIds
from raycdc.source.reader.split_reader import FetchedSplit, SplitReader, SplitsChange
from raycdc.source.snapshot.reading import ChunkReader
from raycdc.waiting.stages import Board, Stage

ItemT = TypeVar("ItemT")
SplitT = TypeVar("SplitT", bound=FetchedSplit)
OpenedT = TypeVar("OpenedT")


class TimedThreads:
    """See the module's docstring. All that is fetched passes the `gate`, where there is one."""

    def __init__(
        self,
        *,
        availability: Availability,
        stopwatch: Stopwatch,
        board: Board,
        chunk_files: ChunkFiles,
        gate: PaceGate | None,
    ) -> None:
        self._gate = gate
        self._board = board
        self._availability = availability
        self._stopwatch = stopwatch
        self._chunk_files = chunk_files

    def start(
        self, open_reader: Callable[[], SplitReader[SplitT, ItemT]], *, name: str, threading: ThreadingModel
    ) -> FetcherManager[SplitT, ItemT]:
        return SplitFetcherManager(
            lambda: _TimedReader(self._paced(self._opened(open_reader)), self._stopwatch, self._board, name),
            threading=threading,
            name=name,
            notify=self._availability.notify,
        )

    def chunks(self, open_chunks: Callable[[], ChunkReader], *, threading: ThreadingModel) -> ChunkSource:
        files = self._chunk_files  # It counts the time of reading and of writing itself.
        fetchers = SplitFetcherManager(
            lambda: ChunkSplitReader(partial(self._opened_chunks, open_chunks), files),
            threading=threading,
            name="chunk-fetcher",
            notify=self._availability.notify,
        )
        return FetchedChunks(fetchers, files)

    def _opened(self, open_reader: Callable[[], OpenedT]) -> OpenedT:
        """In the fetcher's thread."""
        with self._board.doing(Stage.OPEN, "waits for the server to let it in"):
            return open_reader()

    def _opened_chunks(self, open_chunks: Callable[[], ChunkReader]) -> ChunkReader:
        reader = self._opened(open_chunks)
        return reader if self._gate is None else PacedChunks(reader, self._gate)

    def _paced(self, reader: SplitReader[SplitT, ItemT]) -> SplitReader[SplitT, ItemT]:
        return reader if self._gate is None else PacedSplits(reader, self._gate)


class _TimedReader(Generic[SplitT, ItemT]):
    """A `SplitReader` with the time of its fetches counted under `name`."""

    def __init__(self, reader: SplitReader[SplitT, ItemT], stopwatch: Stopwatch, board: Board, name: str) -> None:
        self._reader = reader
        self._work = board.lasting(Stage.LOG, "fetches and decodes")
        self._stopwatch = stopwatch
        self._name = name

    def fetch(self) -> RecordsWithSplitIds[ItemT] | None:
        with self._stopwatch.running(self._name), self._work.turn():
            return self._reader.fetch()

    def handle_splits_changes(self, change: SplitsChange[SplitT]) -> None:
        self._reader.handle_splits_changes(change)

    def wake_up(self) -> None:
        self._reader.wake_up()

    def close(self) -> None:
        self._work.close()
        self._reader.close()
