"""The source coordinator: registration, fencing, assignment tracking and the sealing of epochs around an enumerator.

Flink's SourceCoordinator, SplitAssignmentTracker and CheckpointCoordinator in one plain class without a thread: its
shell (`raycdc.runtime.coordinator_host`) calls one method at a time and carries packets. The only side effect is the
manifest, written through `ManifestWriter` at the moment the last reader has sealed.

Epochs. One epoch is open. It is sealed when it is `epoch_interval_s` old and something changed, when it holds
`epoch_bytes_max` (`epoch_bytes_idle` while the sink is idle), or when a reader asks (schema change, end of input); but
never while `in_flight_max` sealed epochs wait for the sink. Every registered reader cuts and reports; one that is
silent for `reader_timeout_s`, or without progress for `progress_timeout_s`, is fenced: its incarnation is over, its
splits go back to the enumerator at their last *sealed* state, and the epoch is completed without it. The manifest is
written when nobody is waited for; then the epoch exists, before that nothing of it does.

| a message from | is |
|---|---|
| the current incarnation | handled, once, in order (`raycdc.source.protocol.link`) |
| an older incarnation or generation | refused with `FencedError`; that process must end |
| a newer incarnation | a new link: its first message must be `ReaderRegistration` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raycdc.checkpoint.manifest import Manifest, Segment, TableEpoch
from raycdc.errors import FencedError, ProtocolError, RaycdcError, StateError, error_by_name
from raycdc.failpoints import reach
from raycdc.model import TableId
from raycdc.source.parking import Refusal
from raycdc.source.protocol.acknowledging import Acknowledgements, told_nobody
from raycdc.source.protocol.api import SplitEnumerator
from raycdc.source.protocol.coordination import CoordinatorSettings, LiveReader, ManifestWriter, Sealing
from raycdc.source.protocol.link import Identity, Link, read_packet
from raycdc.source.protocol.source_event import (
    AddSplits,
    CheckpointComplete,
    EpochSealed,
    Heartbeat,
    Message,
    NoMoreSplits,
    ReaderFailed,
    ReaderRegistration,
    Registered,
    RemoveSplits,
    RequestSplit,
    SealEpoch,
    Shutdown,
    SourceEvent,
    SourceEventWrapper,
    SplitsAdded,
    SplitsRemoved,
)
from raycdc.source.snapshot.stream_state import StreamState
from raycdc.source.split import STREAM_SPLIT_ID, PartitionSplit, SnapshotSplit, SourceSplit, StreamSplit

__all__ = ["CoordinatorSettings", "ManifestWriter", "SourceCoordinator"]

#: A position that moved without rows is worth a manifest only now and then.
IDLE_SEAL_INTERVAL_S = 10.0


class SourceCoordinator:
    """See the module's docstring. Not thread-safe; every method takes the shell's monotonic `now_s`.

    `last` is the newest manifest, `committed` the newest epoch the sink holds, `first_epoch` the first number that no
    epoch ever had (dropped ones keep theirs); `acknowledgements` hear of commits, None: nobody does.
    """

    def __init__(
        self,
        *,
        generation: int,
        enumerator: Callable[[SourceCoordinator], SplitEnumerator],
        writer: ManifestWriter,
        settings: CoordinatorSettings,
        last: Manifest | None,
        committed: int,
        first_epoch: int,
        call_async: Callable[[Callable[[], Any], Callable[[Any], None], float], None],
        wall_ms: Callable[[], int],
        acknowledgements: Acknowledgements | None = None,
    ) -> None:
        self._generation = generation
        self._writer = writer
        self._settings = settings
        self._call_async = call_async
        self._wall_ms = wall_ms
        self._readers: dict[int, LiveReader] = {}
        self._incarnations: dict[int, int] = {}
        self._splits: dict[str, Any] = dict(last.to_splits) if last else {}
        self._sealed = first_epoch - 1
        self._committed = committed
        self._manifests: dict[int, Manifest] = {}
        self._sealing: Sealing | None = None
        self._last_seal_s = 0.0
        self._stopping = False
        self._final_epoch: int | None = None
        self._rows: dict[TableId, int] = {}
        self._lost_values: dict[TableId, int] = dict(last.lost) if last else {}
        self._failure: RaycdcError | None = None
        self._lost: list[tuple[int, int, str]] = []
        self._acknowledgements = acknowledgements or told_nobody()
        if last is not None and last.epoch <= committed:
            # Whoever committed it may have ended before it could tell.
            self._acknowledgements.committed(last.to_splits)
        self._enumerator = enumerator(self)

    def __repr__(self) -> str:
        return (
            f"SourceCoordinator(generation={self._generation}, sealed={self._sealed}, committed={self._committed}, "
            f"readers={sorted(self._readers)}, sealing={self._sealing is not None})"
        )

    # --- the shell's side -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._enumerator.start()

    @property
    def failure(self) -> RaycdcError | None:
        """The error that ends the job, if one was reported."""
        return self._failure

    @property
    def sealed(self) -> int:
        return self._sealed

    @property
    def final_epoch(self) -> int | None:
        """The last epoch of the run, once it is sealed."""
        return self._final_epoch

    def sealed_after(self, epoch: int) -> int | None:
        """The first sealed epoch after `epoch` that is not committed; numbers of dropped ones are left out."""
        return min((e for e in self._manifests if e > epoch), default=None)

    def receive(self, subtask_id: int, data: bytes, *, now_s: float) -> None:
        """Handle a packet. `FencedError` tells the sender that it is over; other errors end the job."""
        packet = read_packet(data)
        if packet.identity.generation != self._generation:
            raise FencedError(
                f"Reader {subtask_id} belongs to generation {packet.identity.generation}; this is {self._generation}."
            )
        current = self._incarnations.get(subtask_id, 0)
        if packet.identity.incarnation < current:
            raise FencedError(f"Reader {subtask_id}.{packet.identity.incarnation} was replaced by .{current}.")
        reader = self._readers.get(subtask_id)
        if packet.identity.incarnation > current:
            if reader is not None:
                self._lose(subtask_id, "a newer incarnation registered")
            self._incarnations[subtask_id] = packet.identity.incarnation
            reader = LiveReader(Link(packet.identity), node="", pid=0, last_heard_s=now_s, last_spoke_s=now_s)
            self._readers[subtask_id] = reader
        elif reader is None:
            raise FencedError(f"Reader {subtask_id}.{current} was given up as lost.")
        reader.last_heard_s = now_s
        for message in reader.link.receive(packet):
            reader.last_spoke_s = now_s
            self._handle(subtask_id, reader, message)

    def outgoing(self, subtask_id: int, incarnation: int) -> bytes | None:
        """The packet to send to this incarnation now; None when it is not the current one."""
        reader = self._readers.get(subtask_id)
        if reader is None or reader.link.identity != Identity(self._generation, incarnation):
            return None
        return reader.link.packet()

    def has_outgoing(self, subtask_id: int) -> bool:
        reader = self._readers.get(subtask_id)
        return reader is not None and reader.link.has_unacknowledged

    def tick(self, *, now_s: float) -> bool:
        """Timers: fence the silent, seal what is due. True when there was something to do."""
        patience_s = self._settings.reader_timeout_s
        silent = {s: "silent" for s, r in self._readers.items() if now_s - r.last_heard_s > patience_s}
        stuck_s = self._settings.progress_timeout_s
        silent |= {s: "stuck" for s, r in self._readers.items() if now_s - r.last_spoke_s > stuck_s}
        for subtask_id, how in silent.items():
            self._lose(subtask_id, f"{how} for {stuck_s if how == 'stuck' else patience_s:g} s")
        seal = self._sealing is None and self._seal_is_due(now_s)
        if seal:
            self._begin_seal(now_s)
        return seal or bool(silent)

    def was_busy(self, seconds: float) -> None:
        """The coordinator was at work for so long itself (a slow disk) and heard nobody: no reader was silent."""
        for reader in self._readers.values():
            reader.last_heard_s += seconds
            reader.last_spoke_s += seconds

    def reader_lost(self, subtask_id: int, incarnation: int, reason: str) -> None:
        """The shell saw the process end. A newer incarnation is not affected."""
        if subtask_id in self._readers and self._incarnations[subtask_id] == incarnation:
            self._lose(subtask_id, reason)

    def take_lost(self) -> list[tuple[int, int, str]]:
        """(subtask, incarnation, reason) fenced or lost since the last call: the shell must end and replace them."""
        lost, self._lost = self._lost, []
        return lost

    def epoch_committed(self, epoch: int) -> None:
        """The sink holds `epoch`: its segments may go, and there is room for another."""
        self._committed = max(self._committed, epoch)
        done = [self._manifests.pop(e) for e in sorted(self._manifests) if e <= epoch]
        self._enumerator.notify_checkpoint_complete(epoch)
        if done:
            self._acknowledgements.committed(done[-1].to_splits)
        segments = [segment for manifest in done for segment in manifest.segments]
        nodes = {reader.node for reader in self._readers.values()}
        elsewhere = tuple(segment for segment in segments if segment.node not in nodes)
        for reader in self._readers.values():
            mine = tuple(segment.path for segment in segments if segment.node == reader.node)
            reader.link.send(CheckpointComplete(epoch, mine, elsewhere))
            elsewhere = ()

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        """The driver commits no more of these tables."""
        self._enumerator.park_tables(refusals)

    def retire(self, subtask_id: int) -> bool:
        """Let go of a reader that is not needed any more; False while it has splits, so ask again.

        From the first call on it gets no partitions, and gives back those it has at its next seal.
        """
        reader = self._readers.get(subtask_id)
        if reader is None:
            return False
        if not reader.leaving and any(isinstance(split, PartitionSplit) for split in reader.splits.values()):
            reader.leaving = True
            self.remove_splits(subtask_id, list(reader.splits))
        if reader.splits or self._sealing is not None:
            return False
        del self._readers[subtask_id]
        self._enumerator.add_splits_back([], subtask_id)
        return True

    def stop(self) -> None:
        """Seal what is there and let the job end after it."""
        self._stopping = True

    def shutdown_readers(self, reason: str) -> None:
        for reader in self._readers.values():
            reader.link.send(Shutdown(reason))

    def adopt(self, manifest: Manifest) -> None:
        """A sealed epoch of an earlier generation that the driver still has to commit."""
        self._manifests[manifest.epoch] = manifest

    def status(self) -> dict[str, Any]:
        """Progress and readers, JSON-able, for people, `run --json` and tests."""
        tables = self._enumerator.progress()
        for table, rows in self._rows.items():
            tables.setdefault(str(table), {"phase": "stream", "chunks_done": 0, "chunks_total": 0})["rows"] = rows
        for table, lost in self._lost_values.items():
            if str(table) in tables:
                tables[str(table)]["lost_values"] = lost
        return {
            "generation": self._generation,
            "sealed": self._sealed,
            "committed": self._committed,
            "final": self._final_epoch,
            "tables": tables,
            "chunks_waiting": self._enumerator.chunks_waiting,
            "problems": {**self._enumerator.problems, **self._acknowledgements.problems},
            "readers": [reader.figures(subtask_id) for subtask_id, reader in sorted(self._readers.items())],
        }

    # --- the enumerator's context -----------------------------------------------------------------------------

    def registered_readers(self) -> Sequence[int]:
        return [s for s, reader in self._readers.items() if reader.registered and not reader.leaving]

    def assign_splits(self, assignment: Mapping[int, Sequence[SourceSplit]]) -> None:
        for subtask_id, splits in assignment.items():
            reader = self._readers[subtask_id]
            for split in splits:
                reader.splits[split.split_id] = split
                if isinstance(split, PartitionSplit):
                    self._splits[split.split_id] = split.state
                if isinstance(split, StreamSplit):
                    self._splits[split.split_id] = split.state.to_json()
                    for fingerprint, document in split.schemas.items():
                        self._writer.put_document(fingerprint, document)
            reader.link.send(AddSplits(tuple(splits)))

    def send_event(self, subtask_id: int, event: SourceEvent) -> None:
        reader = self._readers.get(subtask_id)
        if reader is not None:
            reader.link.send(SourceEventWrapper(event))

    def remove_splits(self, subtask_id: int, split_ids: Sequence[str]) -> None:
        reader = self._readers.get(subtask_id)
        fresh = [] if reader is None else [s for s in split_ids if s in reader.splits and s not in reader.asked_back]
        if reader is not None and fresh:
            reader.asked_back.update(fresh)
            reader.link.send(RemoveSplits(tuple(fresh)))

    @property
    def open_epoch(self) -> int:
        return self._sealed + (2 if self._sealing is not None else 1)

    def end_split(self, split_id: str, *, attempt: int) -> None:
        for reader in self._readers.values():
            split = reader.splits.get(split_id)
            if isinstance(split, SnapshotSplit) and split.attempt == attempt:
                del reader.splits[split_id]

    def signal_no_more_splits(self, subtask_id: int) -> None:
        reader = self._readers.get(subtask_id)
        if reader is not None:
            reader.link.send(NoMoreSplits())

    def call_async(self, call: Callable[[], Any], handler: Callable[[Any], None], *, after_s: float = 0.0) -> None:
        self._call_async(call, handler, after_s)

    # --- messages ---------------------------------------------------------------------------------------------

    def _handle(self, subtask_id: int, reader: LiveReader, message: Message) -> None:
        if not reader.registered and not isinstance(message, ReaderRegistration):
            raise ProtocolError(f"Reader {subtask_id} sent {type(message).__name__} before its ReaderRegistration")
        match message:
            case ReaderRegistration(node, pid, _):
                reader.node, reader.pid, reader.registered = node, pid, True
                reader.link.send(Registered(self.open_epoch))
                self._enumerator.add_reader(subtask_id)
            case RequestSplit():
                self._enumerator.handle_split_request(subtask_id)
            case SourceEventWrapper(event):
                self._enumerator.handle_source_event(subtask_id, event)
            case SplitsAdded():
                return
            case SplitsRemoved(states):
                reader.asked_back.difference_update(states)
                splits = [reader.splits.pop(split_id) for split_id in states if split_id in reader.splits]
                self._give_up(subtask_id, splits)
            case Heartbeat(_, _, metrics) if self._sealing is not None and subtask_id in self._sealing.waiting:
                # Sent before the cut: what it says of the open epoch is being sealed already.
                reader.heartbeat = Heartbeat(0, wants_seal=False, metrics=metrics)
            case Heartbeat():
                reader.heartbeat = message
            case EpochSealed():
                self._on_sealed(subtask_id, message)
            case ReaderFailed(error, text):
                self._failure = self._failure or error_by_name(error)(text)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not a message for the coordinator")

    def _lose(self, subtask_id: int, reason: str) -> None:
        reader = self._readers.pop(subtask_id)
        self._lost.append((subtask_id, reader.link.identity.incarnation, reason))
        chunks = [split for split in reader.splits.values() if isinstance(split, SnapshotSplit)]
        self._enumerator.add_splits_back(chunks, subtask_id)
        self._give_up(subtask_id, list(reader.splits.values()))
        sealing = self._sealing
        if STREAM_SPLIT_ID in reader.splits:
            if sealing is not None and subtask_id in sealing.reported:
                sealing.stream_lost_by = subtask_id
            else:
                self._take_stream_back(subtask_id)
        if sealing is not None:
            sealing.waiting.discard(subtask_id)
            if not sealing.waiting:
                self._finish_seal(sealing)

    def _give_up(self, subtask_id: int, splits: Sequence[SourceSplit]) -> None:
        """Partition splits without a reader go on from their last *sealed* state, a seal under way included."""
        partitions = [split for split in splits if isinstance(split, PartitionSplit)]
        if partitions and self._sealing is not None:
            self._sealing.given_up.append((subtask_id, partitions))
        elif partitions:
            back = [PartitionSplit(s.split_id, self._splits[s.split_id], s.until) for s in partitions]
            self._enumerator.add_splits_back(back, subtask_id)

    def _take_stream_back(self, subtask_id: int) -> None:
        """The stream goes on from its last *sealed* state; rows read since then were in no manifest.

        Every chunk under way ends with it: the enumerator tells their readers.
        """
        for reader in self._readers.values():
            reader.splits.clear()
        state = StreamState.from_json(self._splits[STREAM_SPLIT_ID])
        fingerprints = {table.schema for table in state.followed.values()}
        split = StreamSplit(state, {f: self._writer.document(f) for f in fingerprints})
        self._enumerator.add_splits_back([split], subtask_id)

    # --- epochs -----------------------------------------------------------------------------------------------

    def _seal_is_due(self, now_s: float) -> bool:
        readers = [reader for reader in self._readers.values() if reader.registered]
        if not readers or self._final_epoch is not None:
            return False
        if len(self._manifests) >= self._settings.in_flight_max:
            return False
        if self._stopping or self._enumerator.wants_seal or any(reader.heartbeat.wants_seal for reader in readers):
            return True
        open_bytes = sum(reader.heartbeat.open_bytes for reader in readers)
        enough = self._settings.epoch_bytes_max if self._manifests else self._settings.epoch_bytes_idle
        if open_bytes >= min(enough, self._settings.epoch_bytes_max):
            return True
        age_s = now_s - self._last_seal_s
        if open_bytes > 0:
            return age_s >= self._settings.epoch_interval_s
        dirty = any(reader.heartbeat.metrics.get("dirty") for reader in readers)
        return dirty and age_s >= max(IDLE_SEAL_INTERVAL_S, self._settings.epoch_interval_s)

    def _begin_seal(self, now_s: float) -> None:
        waiting = {subtask_id for subtask_id, reader in self._readers.items() if reader.registered}
        self._sealing = Sealing(self._sealed + 1, waiting)
        self._last_seal_s = now_s
        for subtask_id in waiting:
            reader = self._readers[subtask_id]
            reader.heartbeat = Heartbeat(0, wants_seal=False, metrics=reader.heartbeat.metrics)
            reader.link.send(SealEpoch(self._sealing.epoch))

    def _on_sealed(self, subtask_id: int, report: EpochSealed) -> None:
        sealing = self._sealing
        if sealing is None or report.epoch != sealing.epoch or subtask_id not in sealing.waiting:
            raise ProtocolError(f"Reader {subtask_id} sealed epoch {report.epoch}, which nobody asked it for")
        sealing.waiting.discard(subtask_id)
        sealing.reported.add(subtask_id)
        sealing.reports.append(report)
        if not sealing.waiting:
            self._finish_seal(sealing)

    def _finish_seal(self, sealing: Sealing) -> None:
        self._sealing = None
        manifest = self._manifest(sealing)
        reach("before_manifest")
        try:
            self._writer.write_manifest(manifest)
        except FencedError as cause:
            # Another driver has the state. Not the sender of the last report is fenced: the job is over.
            raise StateError(str(cause)) from cause
        reach("after_manifest")
        self._splits = dict(manifest.to_splits)
        self._sealed = manifest.epoch
        self._lost_values = manifest.lost
        self._manifests[manifest.epoch] = manifest
        for segment in manifest.segments:
            self._rows[segment.table] = self._rows.get(segment.table, 0) + segment.rows
        if manifest.final:
            self._final_epoch = manifest.epoch
        if sealing.stream_lost_by is not None:
            self._take_stream_back(sealing.stream_lost_by)
        for subtask_id, splits in sealing.given_up:
            self._give_up(subtask_id, splits)

    def _manifest(self, sealing: Sealing) -> Manifest:
        to_splits = dict(self._splits)
        segments: list[Segment] = []
        tables: dict[TableId, TableEpoch] = {}
        for report in sealing.reports:
            to_splits.update(report.splits)
            segments.extend(report.segments)
            tables.update({TableId.parse(t): e for t, e in report.tables.items()})
            self._enumerator.handle_splits_finished(report.finished)
        for fingerprint, document in (pair for report in sealing.reports for pair in report.schemas.items()):
            self._writer.put_document(fingerprint, document)
        share = self._enumerator.epoch_sealed(sealing.epoch, to_splits)
        tables.update(share.tables)
        for fingerprint, document in share.schemas.items():
            self._writer.put_document(fingerprint, document)
        watermarks = [r.watermark_ms for r in sealing.reports if r.watermark_ms is not None]
        ended = [r for r in sealing.reports if r.splits]
        read_to_end = bool(ended) and all(r.end_of_input for r in ended)
        final = self._stopping or (read_to_end if share.final is None else share.final)
        return Manifest(
            epoch=sealing.epoch,
            generation=self._generation,
            created_ms=self._wall_ms(),
            from_splits=dict(self._splits),
            to_splits=to_splits,
            enumerator=self._enumerator.snapshot_state(sealing.epoch),
            segments=tuple(segments),
            tables=tables,
            watermark_ms=min(watermarks) if watermarks else None,
            final=final,
            lost=self._lost_up_to(segments),
        )

    def _lost_up_to(self, segments: Sequence[Segment]) -> dict[TableId, int]:
        total = dict(self._lost_values)
        for segment in segments:
            if segment.lost:
                total[segment.table] = total.get(segment.table, 0) + segment.lost
        return total
