"""Makes the data of open pages, once a second for each page.

The part that is equal for all pages is made once. Without an open page no work is done. Each open page gets the
pipeline's status with a selection of its tables, and the part of the history that it lacks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from raycdc.observe.status.documents import StatusDocuments
from raycdc.observe.status.history import STEPS, ChangeReport, EpochReport, History, Series
from raycdc.observe.status.model import Chosen, Status, TableReport
from raycdc.observe.status.table_order import TableOrder, TableQuery
from raycdc.server.blocking import TooManyCallsError, in_thread

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VERSION = 1


@dataclass(frozen=True, slots=True)
class ReaderSplits:
    """The splits that a reader has."""

    reader: int
    node: str
    pid: int
    splits: Annotated[tuple[str, ...], Field(description="The first of the splits.")]
    count: int


@dataclass(frozen=True, slots=True)
class UiPermissions:
    """The permissions of a page's session."""

    act: Annotated[bool, Field(description="Give commands about tables.")]
    verify: Annotated[bool, Field(description="Have tables compared; only for sessions that may act.")]


@dataclass(frozen=True, slots=True)
class UiSnapshot:
    """The data of one second for a page; `status.tables` are the requested tables."""

    version: int
    may: UiPermissions
    status: Status
    matching: Annotated[int, Field(description="Number of tables that match the request, on all pages.")]
    offset: Annotated[int, Field(description="Number of matching tables before the first one of this page.")]
    table: Annotated[TableReport | None, Field(description="The table that is requested in detail.")]
    parked: Annotated[tuple[TableReport, ...], Field(description="The first tables that are parked.")]
    splits: tuple[ReaderSplits, ...]
    series: Annotated[tuple[Series, ...], Field(description="Samples since the previous snapshot; the first has all.")]
    epochs: Annotated[
        tuple[EpochReport, ...], Field(description="Epochs since the previous snapshot; the first has all.")
    ]
    changes: Annotated[tuple[ChangeReport, ...], Field(description="Changes of schemas, the newest last.")]

    def to_json(self) -> bytes:
        """Return the document as one line of UTF-8."""
        return _adapter().dump_json(self)


@cache
def _adapter() -> TypeAdapter[UiSnapshot]:
    from pydantic import TypeAdapter

    return TypeAdapter(UiSnapshot)


#: The limit of open pages.
PAGES_MAX = 16
#: Seconds between two snapshots, and the maximum age of the part that is equal for all pages.
EVERY_S = 1.0
SHARED_FOR_S = 0.9
#: Seconds after which a browser must reconnect, which also renews its cookie.
STREAM_S = 3600.0
#: The maximum number of parked tables that are listed separately, and of splits per reader.
PARKED_MAX = SPLITS_MAX = 50
#: The maximum number of schema changes in a snapshot.
CHANGES_MAX = 30


#: The last events of a stream. The page's script knows them by these names.
ENDED = b"event: end\ndata: {}\n\n"
RECONNECT = b"event: reconnect\ndata: {}\n\n"


@dataclass(slots=True)
class _Seen:
    """The part of the history that a page has received: the number of samples of each step, and of epochs."""

    samples: tuple[int, ...] = field(default=(0,) * len(STEPS))
    epochs: int = 0


@dataclass(frozen=True, slots=True)
class _Shared:
    status: Status
    parked: tuple[TableReport, ...]
    splits: tuple[ReaderSplits, ...]


class Feed:
    """Serves the data of open pages; `follow` runs in the server's event loop."""

    def __init__(self, documents: StatusDocuments, history: History) -> None:
        self._documents = documents
        self._history = history
        self._order = TableOrder(lambda: documents.keeper.status)
        self._lock = threading.Lock()
        self._shared: tuple[float, _Shared] | None = None
        self._open_pages = 0

    def __repr__(self) -> str:
        return f"Feed({self._open_pages} open pages)"

    @property
    def full(self) -> bool:
        """Return True if no more pages can be served."""
        return self._open_pages >= PAGES_MAX

    async def follow(
        self, wanted: TableQuery, may: UiPermissions, authorization: Callable[[], bool], *, is_browser: bool
    ) -> AsyncIterator[bytes]:
        """Yield the data as server-sent events, until the client disconnects or `authorization` returns False.

        The authorization is checked before each event. The last event is ``end`` if the authorization was lost, and
        ``reconnect`` for a browser after `STREAM_S` seconds.
        """
        seen, until_s = _Seen(), time.monotonic() + STREAM_S
        self._open_pages += 1
        try:
            while authorization():
                if is_browser and time.monotonic() >= until_s:
                    yield RECONNECT
                    return
                try:
                    snapshot = await in_thread(lambda: self.snapshot(wanted, may, seen))
                except TooManyCallsError:
                    return  # The answer to the next request contains the reason.
                yield b"event: update\ndata: " + snapshot.to_json() + b"\n\n"
                await asyncio.sleep(EVERY_S)
            yield ENDED
        finally:
            self._open_pages -= 1

    def snapshot(self, wanted: TableQuery, may: UiPermissions, seen: _Seen | None = None) -> UiSnapshot:
        """Return the present data. `seen` is the part of the history that was sent before, and is updated."""
        seen = seen or _Seen()
        with self._lock:
            shared = self._now()
            matching, offset, names = self._order.page(wanted)
        series = self._history.series(seen.samples)
        epochs_count, epochs = self._history.epochs(seen.epochs)
        seen.samples, seen.epochs = tuple(each.count for each in series), epochs_count
        return UiSnapshot(
            version=VERSION,
            may=may,
            status=replace(shared.status, tables=self._documents.reports(names)),
            matching=matching,
            offset=offset,
            table=next(iter(self._documents.reports([wanted.table])), None),
            parked=shared.parked,
            splits=shared.splits,
            series=series,
            epochs=epochs,
            changes=self._history.changes()[-CHANGES_MAX:],
        )

    def _now(self) -> _Shared:
        now_s = time.monotonic()
        if self._shared is not None and now_s - self._shared[0] < SHARED_FOR_S:
            return self._shared[1]
        status = self._documents.status(Chosen(limit=0))
        counts = status.job.counts
        parked: tuple[TableReport, ...] = ()
        if counts is not None and counts.tables.get("parked"):
            parked = self._documents.reports(self._order.page(TableQuery(phase="parked", limit=PARKED_MAX))[2])
        job = self._documents.keeper.status.job
        splits = tuple(
            ReaderSplits(reader.subtask, reader.node, reader.pid, reader.splits[:SPLITS_MAX], len(reader.splits))
            for reader in (() if job is None else job.readers)
        )
        shared = _Shared(status, parked, splits)
        self._shared = (time.monotonic(), shared)
        return shared
