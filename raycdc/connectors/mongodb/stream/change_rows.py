"""Makes the rows of the changes in a stream, with their documents. Parks collections whose changes cannot be followed.

An update comes with the document at the time of the server's answer, which may be later than the event, or, if every
collection keeps images, with the documents before and after it. If neither is there, the document is read by its key,
as of the event or later (`raycdc.connectors.mongodb.stream.document_reads`). A document that does not fit its columns
parks its collection; other collections go on.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mongodb.bson import code_loops as codes
from raycdc.connectors.mongodb.large_documents import LargeDocuments
from raycdc.connectors.mongodb.stream.document_reads import DocumentReads
from raycdc.connectors.mongodb.stream.events import EventBatch
from raycdc.connectors.mongodb.stream.followed import FollowedCollections
from raycdc.errors import DataError
from raycdc.model import TableId
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.snapshot.log.log_unit import ParkTableUpdate
from raycdc.source.tables.resnapshots import StatementPosition

Ints = npt.NDArray[np.int64]

_NO_IMAGES = (
    'a change of {0} came without the documents before and after it, which source.changelog = "full" was begun with: '
    "its images were switched off or have expired, or it is too large to come with them. Switch them on, and have it "
    "read again: raycdc tables resnapshot"
)


class ChangeRows:
    """The maker of one stream's rows; see the module's docstring. One thread."""

    def __init__(
        self,
        followed: FollowedCollections,
        document_reads: DocumentReads,
        large: LargeDocuments,
        *,
        needs_before_images: bool = False,
    ) -> None:
        """Take the followed collections and the document reads.

        If `needs_before_images`, a change without the documents before and after it parks its collection.
        """
        self._followed = followed
        self._document_reads = document_reads
        self._large = large
        self._needs_before_images = needs_before_images
        #: Collections of an unfinished transaction: those that appeared in it, and those that cannot be followed, with
        #: the reason.
        self._new: dict[TableId, None] = {}
        self._unfit: dict[TableId, str] = {}

    def of(self, batch: EventBatch, *, rank: int, widen: bool) -> tuple[LogRows, ...]:
        """Return the rows of followed collections. `rank` is the number of earlier events with the first one's time.

        `widen`: new columns for these changes can be announced before their rows.
        """
        kinds, named = batch.events[:, codes.E_KIND], batch.events[:, codes.E_NAMESPACE]
        first = self._followed.numbers.take(2 * len(batch))
        numbers = first + 2 * np.arange(len(batch), dtype=np.int64)
        ranks = 2 * _ranks(batch.times, rank)
        rows: list[LogRows] = []
        for number in np.unique(named[(kinds != codes.OTHER) & (named >= 0)]):
            table = batch.names[int(number)]
            if table is None:
                continue
            writer = self._followed.writer(table)
            if writer is None:
                if self._followed.is_new(table):
                    self._new[table] = None
                continue
            own = (named == number) & (kinds != codes.OTHER)
            data, events = self._document_reads.filled(batch, np.flatnonzero(own), writer)
            self._large.count_at(table, data, events[:, codes.E_AFTER])
            if self._needs_before_images and _lacks_images(batch.events[own]):
                self._unfit.setdefault(table, _NO_IMAGES.format(table))
            if table in self._unfit:
                continue
            try:
                rows += self._written(table, data, events, numbers[own], ranks[own], widen=widen)
            except DataError as mismatch:
                # The rows of these events are dropped, because a resnapshot reads the whole collection again.
                self._unfit[table] = str(mismatch)
        return tuple(rows)

    def take_parked(self, position: StatementPosition) -> list[ParkTableUpdate]:
        """Return the collections to park because of their changes, each once.

        Called between two transactions, at `position`.
        """
        parked = [self._followed.first_seen(table, position) for table in self._new if self._followed.is_new(table)]
        parked += [self._followed.unfit(table, why, position) for table, why in self._unfit.items()]
        self._new.clear()
        self._unfit.clear()
        return parked

    def _written(
        self, table: TableId, data: bytes, events: Ints, numbers: Ints, ranks: Ints, *, widen: bool
    ) -> list[LogRows]:
        """Return the rows of `events`.

        If the layout gets more columns, the rows are made again with it, if `widen` permits it.
        """
        while True:
            writer = self._followed.writer(table)
            assert writer is not None
            rows = list(writer.rows(data, events, numbers=numbers, ranks=ranks))
            if not self._followed.widen(table, data, at_once=widen):
                return rows


def _lacks_images(events: Ints) -> bool:
    """Return True if a document before or after one of these changes is missing."""
    kinds = events[:, codes.E_KIND]
    return bool(
        ((kinds != codes.INSERT) & (events[:, codes.E_BEFORE] == 0)).any()
        or ((kinds != codes.DELETE) & (events[:, codes.E_AFTER] == 0)).any()
    )


def _ranks(times: Ints, first: int) -> Ints:
    """Return the number of each event among those of its cluster time. The first time's numbers begin at `first`."""
    if not len(times):
        return np.zeros(0, np.int64)
    begins = np.searchsorted(times, times)
    ranks: Ints = np.arange(len(times)) - begins + np.where(times == times[0], first, 0)
    return ranks
