"""Tracks the reader of each assigned chunk, and handles the loss of that reader or of the log's reader.

Invariant: a chunk has at most one current attempt; messages about other attempts are out of date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from raycdc.model import TableId
from raycdc.source.protocol.api import SplitEnumeratorContext
from raycdc.source.snapshot.chunk_events import ChunkReaderEvent, ChunkVoided, DiscardSegments, VoidChunkRequest
from raycdc.source.snapshot.enumerator.snapshot_plan import EnumeratorDialect
from raycdc.source.snapshot.enumerator.snapshot_planning import SnapshotPlanning
from raycdc.source.snapshot.enumerator.stream_placement import StreamAssignment
from raycdc.source.snapshot.handoff.as_of import AssignedChunk, Turns
from raycdc.source.split import ChunkId, SnapshotSplit
from raycdc.state.manifests.manifest import Segment


@dataclass(slots=True)
class ChunkReaders:
    """The readers that request chunks, in the order of their requests, and the readers that have a connection for
    chunks because they got some. If a reader was notified that there are no more chunks, its request still counts,
    because a table may be resnapshotted later.
    """

    asking: list[int] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    _reported: set[int] = field(default_factory=set)

    def keep(self, registered: Iterable[int]) -> None:
        """Forget all readers except `registered`."""
        self.asking = [subtask for subtask in self.asking if subtask in registered]
        self._reported &= set(self.asking)

    def next_of(
        self,
        may_have: Callable[[int], bool],
        *,
        connected: Callable[[], Iterable[int]],
        most: int,
    ) -> int | None:
        """Return the reader that gets the next chunk: the first reader that may have a chunk, and that has a connection
        or may open one. At most `most` readers may be connected (0: any number). `connected` goes through all readers,
        so it is called only if there is such a limit. A reader that is about to leave gets no more chunks, but counts
        as connected while it works on a chunk.
        """
        if most:
            self.known &= set(connected())
        full = most and len(self.known) >= most
        asking = (subtask for subtask in self.asking if may_have(subtask))
        found = next((subtask for subtask in asking if not full or subtask in self.known), None)
        if found is not None:
            self.known.add(found)
            self.asking.remove(found)
            self._reported.discard(found)
        return found

    def take_unnotified(self, *, but: int | None) -> list[int]:
        """Return the readers that request chunks and were not yet notified that there are no more. The reader `but` is
        left out.
        """
        unnotified = sorted(set(self.asking) - self._reported - {but})
        self._reported.update(unnotified)
        return unnotified


class ChunkAssignments:
    """Gives pending chunks to readers that ask, and takes them back.

    `dialect` limits the number of readers with chunks.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext,
        dialect: EnumeratorDialect,
        planning: SnapshotPlanning,
        stream: StreamAssignment,
    ) -> None:
        self._context, self._dialect = context, dialect
        self._planning, self._stream = planning, stream
        self._out: dict[str, AssignedChunk] = {}
        #: For each table, the number of assigned chunks that are not published; counted, because each event needs it.
        self._unpublished: Counter[TableId] = Counter()
        self._readers, self._turns = ChunkReaders(), Turns()
        self._rubbish: list[Segment] = []

    def __repr__(self) -> str:
        return f"ChunkAssignments({list(self._out)})"

    @property
    def out(self) -> Collection[AssignedChunk]:
        """Return the assigned chunks that are in no manifest yet. Chunks that are published in the log reader's open
        epoch are included.
        """
        return self._out.values()

    @property
    def all_published(self) -> bool:
        """Return True if all assigned chunks are published in the log reader's open epoch."""
        return not self._unpublished

    @property
    def any_out(self) -> bool:
        """Return True if an assigned chunk is in no manifest yet."""
        return bool(self._out)

    def publish(self, out: AssignedChunk) -> None:
        """Record that the log reader's open epoch has the chunk."""
        if not out.published:
            out.published = True
            self._count_off(out)
            self._planning.changes.published(out.split, +1, out.segments)

    @property
    def owing(self) -> frozenset[str]:
        """Return the spools that have segments of chunks which were read and are in no manifest."""
        return frozenset(segment.node for out in self._out.values() for segment in out.segments)

    def attempt(self, chunk: ChunkId) -> AssignedChunk | None:
        """Return the assigned chunk, if this attempt is the current one."""
        out = self._out.get(chunk.split_id)
        return None if out is None or out.split.attempt != chunk.attempt else out

    def ask(self, subtask_id: int) -> None:
        """Record that the reader asks for a chunk."""
        self._readers.asking.append(subtask_id)

    def assign(self) -> None:
        """Give pending chunks to waiting readers, as long as there is a log reader to open them."""

        def connected() -> set[int]:
            at_work = {out.owner for out in self._out.values() if out.owner is not None and not out.published}
            return {*self._context.registered_readers(), *at_work}

        # While the log's reader is about to leave, no new chunk is assigned, because the chunk would need that reader.
        while self._readers.asking and (log := self._stream.reader) is not None and self._context.may_have_splits(log):
            split = self._turns.next_of(self._planning.pending, self._unpublished.keys(), self._planning.held.now)
            if split is None:
                return
            may_have, most = self._context.may_have_splits, self._dialect.chunk_readers_max
            if (subtask_id := self._readers.next_of(may_have, connected=connected, most=most)) is None:
                return
            self._planning.pending.remove(split)
            self._out[split.split_id] = AssignedChunk(split, subtask_id)
            self._unpublished[split.table] += 1
            self._context.assign_splits({subtask_id: [split]})

    def signal_no_more(self) -> None:
        """Notify readers that there are no more chunks.

        Called when every chunk is in a manifest, because until then the log reader's death would make chunks pending
        again. The log's reader is not notified, because it must go on.
        """
        for subtask_id in self._readers.take_unnotified(but=self._stream.reader):
            self._context.signal_no_more_splits(subtask_id)

    def send(self, out: AssignedChunk, event: ChunkReaderEvent) -> None:
        """Send the event to the reader of the chunk, unless that reader was lost."""
        if out.owner is not None:
            self._context.send_event(out.owner, event)

    def keep(self, registered: Iterable[int]) -> None:
        """Forget all readers except `registered`."""
        self._readers.keep(registered)

    def lose(self, split: SnapshotSplit) -> None:
        """Handle the loss of the chunk's reader."""
        out = self.attempt(split.chunk_id)
        if out is None or out.published:
            return
        out.owner = None
        if self._stream.reader is not None:
            # The log reader may be about to publish the chunk, so its answer decides. If the log reader is lost, too,
            # `lose_log` is called.
            self._stream.send(VoidChunkRequest(split.chunk_id))
        else:
            self.put_back(out)

    def lose_log(self) -> None:
        """Take back all chunks, because the log reader died with everything opened or published since the last
        manifest.
        """
        for out in list(self._out.values()):
            self.send(out, ChunkVoided(out.split.chunk_id, "the log reader is gone"))
            self.put_back(out)

    def put_back(self, out: AssignedChunk) -> None:
        """End the attempt at the chunk. The chunk becomes pending again if its table has the same incarnation."""
        self.finish(out.split.split_id)
        if out.published or out.owner is None:
            self.discard(out.segments)
        self._planning.put_back(out.split)

    def void(self, table: TableId) -> None:
        """Ask the log reader to void the assigned chunks of the table, because they are of an earlier incarnation. The
        answers of the log reader end the attempts.
        """
        for out in self._out.values():
            if out.split.table == table:
                self._stream.send(VoidChunkRequest(out.split.chunk_id))

    def finish(self, split_id: str) -> AssignedChunk:
        """Remove the chunk from the assigned ones: it is in a manifest, or the attempt is over."""
        out = self._out.pop(split_id)
        if out.published:
            self._planning.changes.published(out.split, -1, out.segments)
        else:
            self._count_off(out)
        return out

    def discard(self, segments: Sequence[Segment] = ()) -> None:
        """Ask any registered reader to delete `segments`. If no reader is registered, the segments are remembered for
        the next call.
        """
        self._rubbish += segments
        reader = next(iter(self._context.registered_readers()), None) if self._rubbish else None
        if reader is not None:
            rubbish, self._rubbish = self._rubbish, []
            self._context.send_event(reader, DiscardSegments(tuple(rubbish)))

    def _count_off(self, out: AssignedChunk) -> None:
        """Count the table's chunk as published or finished."""
        self._unpublished[out.split.table] -= 1
        if not self._unpublished[out.split.table]:
            del self._unpublished[out.split.table]
