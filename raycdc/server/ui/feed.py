"""Makes the data of the page: once a second for each open page; the part that is the same for all is made once.

Without an open page no work is done. A browser gets the pipeline's status with a page of its tables, and the new part
of its history.
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
    """The splits that a reader holds."""

    reader: int
    node: str
    pid: int
    splits: Annotated[tuple[str, ...], Field(description="The first of them.")]
    count: int


@dataclass(frozen=True, slots=True)
class UiPermissions:
    """The permissions of a page."""

    act: Annotated[bool, Field(description="Give commands about tables.")]
    verify: Annotated[bool, Field(description="Have tables compared; for whoever may act.")]


@dataclass(frozen=True, slots=True)
class UiSnapshot:
    """The data of one second for a page; see the module's docstring. `status.tables` are the requested ones."""

    version: int
    may: UiPermissions
    status: Status
    matching: Annotated[int, Field(description="Tables that were asked for, on all pages.")]
    offset: Annotated[int, Field(description="How many of them come before those that are here.")]
    table: Annotated[TableReport | None, Field(description="The one that is looked at closely.")]
    parked: Annotated[tuple[TableReport, ...], Field(description="The first tables that are parked.")]
    splits: tuple[ReaderSplits, ...]
    series: Annotated[tuple[Series, ...], Field(description="Samples since the look before; all in the first.")]
    epochs: Annotated[tuple[EpochReport, ...], Field(description="In the same way.")]
    changes: Annotated[tuple[ChangeReport, ...], Field(description="Of schemas, the newest last.")]

    def to_json(self) -> bytes:
        """The document, in UTF-8, in one line."""
        return _adapter().dump_json(self)


@cache
def _adapter() -> TypeAdapter[UiSnapshot]:
    from pydantic import TypeAdapter

    return TypeAdapter(UiSnapshot)


#: The limit of open pages.
LOOKERS_MAX = 16
#: From one look to the next, and how old the part that all see may be.
EVERY_S = 1.0
SHARED_FOR_S = 0.9
#: How often a browser reconnects, within a second, which also renews its cookie.
STREAM_S = 3600.0
#: Parked tables that are shown apart from the others, and splits of each reader.
PARKED_MAX = SPLITS_MAX = 50
#: Changes of schemas in each look.
CHANGES_MAX = 30


#: The last events of a stream. The page reads them by their names.
ENDED = b"event: end\ndata: {}\n\n"
AGAIN = b"event: again\ndata: {}\n\n"


@dataclass(slots=True)
class _Seen:
    """The part of the history that a page has: the number of samples of each step, and of epochs."""

    samples: tuple[int, ...] = field(default=(0,) * len(STEPS))
    epochs: int = 0


@dataclass(frozen=True, slots=True)
class _Shared:
    status: Status
    parked: tuple[TableReport, ...]
    splits: tuple[ReaderSplits, ...]


class Feed:
    """`follow` is for the door's loop."""

    def __init__(self, documents: StatusDocuments, history: History) -> None:
        self._documents = documents
        self._history = history
        self._order = TableOrder(lambda: documents.keeper.status)
        self._lock = threading.Lock()
        self._shared: tuple[float, _Shared] | None = None
        self._lookers = 0

    def __repr__(self) -> str:
        return f"Feed({self._lookers} look)"

    @property
    def full(self) -> bool:
        """Return True if no more pages can be served."""
        return self._lookers >= LOOKERS_MAX

    async def follow(
        self, wanted: TableQuery, may: UiPermissions, authorization: Callable[[], bool], *, is_browser: bool
    ) -> AsyncIterator[bytes]:
        """Yield the data as server-sent events, until the client disconnects or is not `authorization`.

        This is checked before each event. The last event after a lost authorization is ``end``, and that of a browser
        after `STREAM_S` is ``again``.
        """
        seen, until_s = _Seen(), time.monotonic() + STREAM_S
        self._lookers += 1
        try:
            while authorization():
                if is_browser and time.monotonic() >= until_s:
                    yield AGAIN
                    return
                try:
                    snapshot = await in_thread(lambda: self.snapshot(wanted, may, seen))
                except TooManyCallsError:
                    return  # The next request gets the reason.
                yield b"event: look\ndata: " + snapshot.to_json() + b"\n\n"
                await asyncio.sleep(EVERY_S)
            yield ENDED
        finally:
            self._lookers -= 1

    def snapshot(self, wanted: TableQuery, may: UiPermissions, seen: _Seen | None = None) -> UiSnapshot:
        """Return the present data; `seen` is the part that was sent before, and is updated."""
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
