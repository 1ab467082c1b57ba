"""The enumerator's way out: what it decides about splits and events becomes messages to live readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raycdc.source.protocol.acknowledging import CallAsync
from raycdc.source.protocol.coordination import ManifestWriter
from raycdc.source.protocol.epochs import Epochs
from raycdc.source.protocol.live_readers import LiveReaders
from raycdc.source.protocol.metrics import SplitLoad
from raycdc.source.protocol.source_event import AddSplits, NoMoreSplits, SourceEvent, SourceEventWrapper
from raycdc.source.split import PartitionSplit, SnapshotSplit, SourceSplit, StreamSplit


class EnumeratorContext:
    """`raycdc.source.protocol.api.SplitEnumeratorContext` of a coordinator.

    It notes who has which split, and the state in which an unbounded one is given away: that is where the split goes
    on until an epoch seals another.
    """

    def __init__(self, readers: LiveReaders, epochs: Epochs, writer: ManifestWriter, call_async: CallAsync) -> None:
        self._readers, self._epochs, self._writer = readers, epochs, writer
        self._call_async = call_async
        #: Of the coordinator's shell, which has the clock.
        self.now_s = 0.0

    def registered_readers(self) -> Sequence[int]:
        return [subtask_id for subtask_id, reader in self._readers.registered.items() if not reader.leaving]

    def may_have_splits(self, subtask_id: int) -> bool:
        reader = self._readers.get(subtask_id)
        return reader is not None and reader.registered and not reader.leaving

    def split_loads(self) -> Mapping[str, SplitLoad]:
        told = (reader.heartbeat.metrics.partitions for _, reader in self._readers)
        loads = (partitions.loads or {} for partitions in told if partitions is not None)
        return {split: load for each in loads for split, load in each.items()}

    def assign_splits(self, assignment: Mapping[int, Sequence[SourceSplit]]) -> None:
        for subtask_id, splits in assignment.items():
            reader = self._readers[subtask_id]
            for split in splits:
                reader.splits[split.split_id] = split
                if isinstance(split, SnapshotSplit):
                    self._readers.chunks.give(reader, split)
                if isinstance(split, PartitionSplit):
                    self._epochs.splits[split.split_id] = split.state
                if isinstance(split, StreamSplit):
                    self._epochs.splits[split.split_id] = split.state.sealed()
                    self._writer.put_documents({name: each.to_json() for name, each in split.schemas.items()})
            reader.link.send(AddSplits(tuple(splits)))

    def send_event(self, subtask_id: int, event: SourceEvent) -> None:
        reader = self._readers.get(subtask_id)
        if reader is not None:
            reader.link.send(SourceEventWrapper(event))

    def remove_splits(self, subtask_id: int, split_ids: Sequence[str]) -> None:
        reader = self._readers.get(subtask_id)
        if reader is not None:
            reader.ask_back(split_ids)

    @property
    def open_epoch(self) -> int:
        return self._epochs.open

    def end_split(self, split_id: str, *, attempt: int) -> None:
        self._readers.chunks.end(split_id, attempt)

    def signal_no_more_splits(self, subtask_id: int) -> None:
        reader = self._readers.get(subtask_id)
        if reader is not None:
            reader.link.send(NoMoreSplits())

    def call_async(self, call: Callable[[], Any], handler: Callable[[Any], None], *, after_s: float = 0.0) -> None:
        self._call_async(call, handler, after_s)
