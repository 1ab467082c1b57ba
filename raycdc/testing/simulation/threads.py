"""Readers without threads: what blocks in production is stepped by the simulation, and polled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

from raycdc.source.reader.fetcher_manager import ThreadingModel
from raycdc.source.reader.split_reader import SplitReader
from raycdc.source.snapshot.reading import ChunkReader


class NoThreads:
    """`raycdc.source.reader.context.FetcherThreads` of a reader whose fetchers are simulated."""

    def start(self, open_reader: Callable[[], SplitReader[Any, Any]], *, name: str, threading: ThreadingModel) -> Never:
        raise AssertionError("simulated splits need no thread")

    def chunks(self, open_chunks: Callable[[], ChunkReader], *, threading: ThreadingModel) -> Never:
        raise AssertionError("simulated chunks need no thread")
