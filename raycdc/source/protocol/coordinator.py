"""The source coordinator: it registers and fences readers, tracks the splits that an enumerator assigns, and seals
epochs.

Flink's SourceCoordinator, SplitAssignmentTracker and CheckpointCoordinator in one plain class without a thread: its
shell (`raycdc.runtime.coordinator.coordinator_host`) calls one method at a time and carries packets. Its only side
effect is the manifest, which it writes through `ManifestWriter` when the last reader has sealed.

Epochs. One epoch is open. It is sealed for one of three reasons: it has changes and is `epoch_interval_s` old; it holds
`epoch_bytes_max`; or a reader requests it (because of a schema change or the end of the input). An idle sink makes
seals earlier, and a busy sink delays those of small epochs (`CoordinatorSettings`). No epoch is sealed while
`in_flight_max` sealed epochs wait for the sink. Every registered reader cuts and reports. A reader that is silent for
`reader_timeout_s`, or without progress for `progress_timeout_s`, is fenced: its incarnation ends, its splits go back to
the enumerator at their last *sealed* state, and the epoch is completed without it. The manifest is written when all
reports are in; only then does the epoch exist.

`LiveReaders` decides whose messages are accepted. Each message is handled once and in order
(`raycdc.source.protocol.link`), and the first message of an incarnation must be `ReaderRegistration`. The other parts
are `PendingEpochs` (the sealed epochs), `SealTimer` (when to seal), `RateLimitedReaders` (each reader's quota of the
source's budget) and `EnumeratorContext` (the enumerator's calls). Without a rate limit there is no `RateLimiter`, and
no quotas are sent.

Quotas are explained in `raycdc.source.protocol.rate_budget`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from raycdc.core.failpoints import reach
from raycdc.errors import FencedError, ProtocolError, RaycdcError, StateError, error_by_name
from raycdc.model import TableId
from raycdc.source.protocol.api import SplitEnumerator, Streamed, TablesProgress
from raycdc.source.protocol.coordination import (
    CoordinatorEnvironment,
    CoordinatorSettings,
    EnumeratorContext,
    ManifestWriter,
    SealTimer,
)
from raycdc.source.protocol.epochs import PendingEpochs, RecoveryPoint, Sealing
from raycdc.source.protocol.job_status import JobStatus, Seals, SealStatus, SealTimes, TableStatus
from raycdc.source.protocol.link import read_packet
from raycdc.source.protocol.live_readers import LiveReader, LiveReaders, log_on_its_way
from raycdc.source.protocol.rate_budget import LEASE_S, Grant, Holder, RateDemand, RateLimiter
from raycdc.source.protocol.source_event import (
    CheckpointComplete,
    EpochSealed,
    Heartbeat,
    Message,
    RateQuotas,
    ReaderFailed,
    ReaderRegistration,
    Registered,
    RequestSplit,
    SealEpoch,
    SourceEventWrapper,
    SplitsAdded,
    SplitsRemoved,
)
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import STREAM_SPLIT_ID, PartitionSplit, SnapshotSplit, SourceSplit, StreamSplit
from raycdc.source.tables.parking import Refusal
from raycdc.state.manifests.manifest import Manifest


class RateLimitedReaders:
    """Gives the readers their quotas of the source's rate limit; see the module's docstring.

    Owned by the coordinator.
    """

    def __init__(self, readers: LiveReaders, keeper: RateLimiter | None) -> None:
        self._readers = readers
        self._keeper = keeper

    def joined(self, subtask_id: int) -> None:
        """Send a newly registered reader its first, empty quotas."""
        if self._keeper is not None:
            holder = self._readers[subtask_id].holder(subtask_id)
            self._notify({holder: self._keeper.join(holder)})

    def heard(self, subtask_id: int, demand: RateDemand | None) -> None:
        """Record the demand in a reader's heartbeat."""
        if self._keeper is not None and demand is not None:
            self._keeper.heard(self._readers[subtask_id].holder(subtask_id), demand)

    def ended(self, subtask_id: int, reader: LiveReader) -> None:
        """Keep the quotas of a fenced reader reserved for a while, because its process may live on."""
        if self._keeper is not None:
            self._keeper.lost(reader.holder(subtask_id), heard_s=reader.last_heard_s)

    def poll(self, *, now_s: float) -> bool:
        """Send the quotas that are due; return True if there were any."""
        return self._keeper is not None and self._notify(self._keeper.poll(now_s=now_s))

    def _notify(self, grants: Mapping[Holder, Grant]) -> bool:
        for (subtask_id, _), grant in grants.items():
            self._readers[subtask_id].link.send(RateQuotas(grant.number, grant.quotas, LEASE_S))
        return bool(grants)


__all__ = ["CoordinatorEnvironment", "CoordinatorSettings", "ManifestWriter", "RecoveryPoint", "SourceCoordinator"]


class SourceCoordinator:
    """The coordinator of one source; see the module's docstring.

    Not thread-safe; every method takes the shell's monotonic `now_s`. The shell reads `readers` and `epochs`, and takes
    lost readers from them.
    """

    def __init__(
        self,
        enumerator: Callable[[EnumeratorContext], SplitEnumerator],
        *,
        recovered: RecoveryPoint,
        settings: CoordinatorSettings,
        surroundings: CoordinatorEnvironment,
    ) -> None:
        last, self._surroundings = recovered.last, surroundings
        self._settings = settings
        self.readers = LiveReaders(recovered.generation)
        self.epochs = PendingEpochs(recovered)
        self._timer = SealTimer(settings)
        keeper = RateLimiter(after_another=recovered.generation > 1) if settings.is_rate_limited else None
        self._rate_limit = RateLimitedReaders(self.readers, keeper)
        self._stopping = False
        #: The error that ends the job, if one was reported.
        self.failure: RaycdcError | None = None
        if last is not None and last.epoch <= recovered.committed:
            # The last commit is acknowledged again, because the process that made the commit may have ended before it
            # notified the source.
            surroundings.acknowledgements.committed(last.to_splits)
        self._context = EnumeratorContext(self.readers, self.epochs, surroundings.writer, surroundings.call_async)
        self._enumerator = enumerator(self._context)

    def __repr__(self) -> str:
        return f"SourceCoordinator({self.readers!r}, {self.epochs!r})"

    def start(self) -> None:
        self._enumerator.start()

    def receive(self, subtask_id: int, data: bytes, *, now_s: float) -> None:
        """Handle a packet. `FencedError` means that the sender is replaced; any other error ends the job."""
        self._context.now_s = now_s
        packet = read_packet(data)
        self.readers.check(subtask_id, packet.identity)
        if self.readers.is_new(subtask_id, packet.identity):
            if self.readers.get(subtask_id) is not None:
                self._lose(subtask_id, "a newer incarnation registered")
            self.readers.add(subtask_id, packet.identity, now_s=now_s)
        reader = self.readers[subtask_id]
        reader.last_heard_s = now_s
        for message in reader.link.receive(packet):
            reader.last_spoke_s = now_s
            self._handle(subtask_id, reader, message)

    def tick(self, *, now_s: float) -> bool:
        """Fence silent readers, and start a seal if it is due. Returns True if there was anything to do."""
        self._context.now_s = now_s
        settings = self._settings
        silent = self.readers.silent(
            now_s=now_s,
            reader_timeout_s=settings.reader_timeout_s,
            progress_timeout_s=settings.progress_timeout_s,
        )
        for subtask_id, reason in silent.items():
            self._lose(subtask_id, reason)
        is_rate_limited = self._rate_limit.poll(now_s=now_s)
        registered = self.readers.registered
        may_seal = self.epochs.sealing is None and self.epochs.final is None
        asked = self._stopping or self._enumerator.wants_seal or log_on_its_way(self.readers) is not None
        seal = may_seal and self._timer.is_due(
            registered.values(),
            asked=asked,
            in_flight=self.epochs.in_flight,
            reads_chunks=self.readers.chunks.under_way,
            now_s=now_s,
        )
        if seal:
            self._begin_seal(now_s)
        return seal or is_rate_limited or bool(silent)

    def reader_lost(self, subtask_id: int, incarnation: int, reason: str) -> None:
        """Treat the reader as lost, because its process has ended. A newer incarnation is not affected."""
        if self.readers.is_live(subtask_id, incarnation):
            self._lose(subtask_id, reason)

    def epoch_committed(self, epoch: int) -> None:
        """Record that the sink holds `epoch`: its segments may be deleted, and another epoch may be sealed."""
        done = self.epochs.commit(epoch)
        self._enumerator.notify_checkpoint_complete(epoch)
        if done:
            self._surroundings.acknowledgements.committed(done[-1].to_splits)
        segments = [segment for manifest in done for segment in manifest.segments]
        nodes = {reader.node for _, reader in self.readers}
        elsewhere = tuple(segment for segment in segments if segment.node not in nodes)
        for _, reader in self.readers:
            mine = tuple(segment.path for segment in segments if segment.node == reader.node)
            reader.link.send(CheckpointComplete(epoch, mine, elsewhere))
            elsewhere = ()

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        """Stop reading these tables, because the driver commits no more of them."""
        self._enumerator.park_tables(refusals)

    def retire(self, subtask_id: int) -> bool:
        """Release a reader that is not needed any more.

        Returns False while the reader has splits; then call it again later.

        After the first call the reader gets no new splits. It finishes its current chunk. It gives its partitions back
        at its next seal. It gives the log back at the first seal at which no chunk is unfinished.
        """
        reader = self.readers.get(subtask_id)
        if reader is None:
            return subtask_id in self.readers.ended
        if not reader.leaving:
            reader.leaving = True
            reader.ask_back([s.split_id for s in reader.splits.values() if isinstance(s, PartitionSplit)])
        if reader.splits or self.epochs.sealing is not None:
            return False
        self._rate_limit.ended(subtask_id, reader)
        self.readers.let_go(subtask_id)
        self._enumerator.add_splits_back([], subtask_id)
        return True

    def stop(self) -> None:
        """Seal the open epoch, and let the job end after it."""
        self._stopping = True

    def status(self, *, tables: bool = True) -> JobStatus:
        """Return progress and readers, for the supervisor, people and tests.

        Without `tables`, the duration grows only with the number of readers.
        """
        enumerator, epochs = self._enumerator.statistics(), self.epochs
        counts, sealing = enumerator.progress.counts(), epochs.sealing
        return JobStatus(
            generation=self.readers.generation,
            sealed=epochs.sealed,
            committed=epochs.committed,
            tables=_table_statuses(epochs, enumerator.progress) if tables else {},
            # If a log is read without a snapshot, only the tables that had rows are known.
            counts=replace(counts, tables=max(counts.tables, len(epochs.rows)), chunks_out=enumerator.chunks_out),
            chunks_waiting=enumerator.chunks_waiting,
            problems={**enumerator.problems, **self._surroundings.acknowledgements.problems},
            readers=self.readers.statuses(),
            seals=Seals(
                None if sealing is None else SealStatus(sealing.epoch, tuple(sealing.waiting)), (*epochs.seals,)
            ),
            stalled=tuple(enumerator.stalled),
            owing=epochs.owing | enumerator.owing,
        )

    def _handle(self, subtask_id: int, reader: LiveReader, message: Message) -> None:
        if not reader.registered and not isinstance(message, ReaderRegistration):
            raise ProtocolError(f"Reader {subtask_id} sent {type(message).__name__} before its ReaderRegistration")
        sealing = self.epochs.sealing
        match message:
            case ReaderRegistration(node, pid, _):
                reader.node, reader.pid, reader.registered = node, pid, True
                reader.link.send(Registered(self.epochs.open))
                self._rate_limit.joined(subtask_id)
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
            case Heartbeat(rate_demand=demand):
                # The heartbeat was sent before the cut: its open bytes belong to the epoch being sealed.
                is_early = sealing is not None and subtask_id in sealing.waiting
                heard = message.after(reader.heartbeat)
                reader.heartbeat = heard.without_epoch() if is_early else heard
                self._rate_limit.heard(subtask_id, demand)
            case EpochSealed():
                self._on_sealed(subtask_id, message)
            case ReaderFailed(error, text):
                self.failure = self.failure or error_by_name(error)(text)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not a message for the coordinator")

    def _lose(self, subtask_id: int, reason: str) -> None:
        reader = self.readers.lose(subtask_id, reason)
        self._rate_limit.ended(subtask_id, reader)
        chunks = [split for split in reader.splits.values() if isinstance(split, SnapshotSplit)]
        self._enumerator.add_splits_back(chunks, subtask_id)
        self._give_up(subtask_id, list(reader.splits.values()))
        sealing = self.epochs.sealing
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
        """Give back the partition splits of a lost reader, in their last *sealed* state.

        If a seal is in progress, the splits are given back after it, in the state of its manifest.
        """
        partitions = [split for split in splits if isinstance(split, PartitionSplit)]
        if partitions and self.epochs.sealing is not None:
            self.epochs.sealing.given_up.append((subtask_id, partitions))
        elif partitions:
            back = [replace(split, state=self.epochs.splits[split.split_id]) for split in partitions]
            self._enumerator.add_splits_back(back, subtask_id)

    def _take_stream_back(self, subtask_id: int) -> None:
        """Restart the stream from its last *sealed* state, because rows that were read since then are in no manifest.

        Unfinished chunks are cancelled, too; the enumerator notifies the readers of these chunks.
        """
        for _, reader in self.readers:
            reader.splits.clear()
        self.readers.chunks.clear()
        state = StreamState.of(self.epochs.splits[STREAM_SPLIT_ID])
        document = self._surroundings.writer.document
        split = StreamSplit.of(state, lambda fingerprint: SchemaDocument.from_json(document(fingerprint)))
        self._enumerator.add_splits_back([split], subtask_id)

    def _begin_seal(self, now_s: float) -> None:
        registered = self.readers.registered
        sealing = self.epochs.begin_seal(registered, asked_ms=self._surroundings.wall_ms())
        self._timer.restart(now_s=now_s)
        for reader in registered.values():
            reader.heartbeat = reader.heartbeat.without_epoch()
            reader.link.send(SealEpoch(sealing.epoch))

    def _on_sealed(self, subtask_id: int, report: EpochSealed) -> None:
        sealing = self.epochs.sealing
        if sealing is None or report.epoch != sealing.epoch or subtask_id not in sealing.waiting:
            raise ProtocolError(f"Reader {subtask_id} sealed epoch {report.epoch}, which nobody asked it for")
        sealing.take(subtask_id, report, at_ms=self._surroundings.wall_ms())
        if not sealing.waiting:
            self._finish_seal(sealing)

    def _finish_seal(self, sealing: Sealing) -> None:
        self.epochs.sealing = None
        manifest = self._manifest(sealing)
        reach("before_manifest")
        try:
            self._surroundings.writer.write_manifest(manifest)
        except FencedError as cause:
            # Another driver has the state. The whole job is over; the sender of the last report is not at fault.
            raise StateError(str(cause)) from cause
        reach("after_manifest")
        self.epochs.seal(manifest)
        sealed_ms = self._surroundings.wall_ms()
        self.epochs.seals.append(SealTimes(sealing.epoch, sealing.asked_ms, sealed_ms, sealing.reported))
        if sealing.stream_lost_by is not None:
            self._take_stream_back(sealing.stream_lost_by)
        for subtask_id, splits in sealing.given_up:
            self._give_up(subtask_id, splits)
        moving = log_on_its_way(self.readers)
        if moving is not None and moving in sealing.reported:
            # Treated as if the reader had died right after its report: rows read since then are in no manifest.
            self._rate_limit.ended(moving, self.readers[moving])
            self.readers.let_go(moving)
            self._take_stream_back(moving)

    def _manifest(self, sealing: Sealing) -> Manifest:
        to_splits = sealing.states_after(self.epochs.splits)
        for report in sealing.reports:
            self._enumerator.handle_splits_finished(report.finished)
        # The enumerator may ask for schemas that this epoch's reports are the first to name.
        self._put_documents(sealing.schemas)
        part = self._enumerator.epoch_sealed(sealing.epoch, to_splits)
        self._put_documents(part.schemas)
        return Manifest(
            epoch=sealing.epoch,
            generation=self.readers.generation,
            created_ms=self._surroundings.wall_ms(),
            from_splits=dict(self.epochs.splits),
            to_splits=to_splits,
            enumerator=self._enumerator.snapshot_state(sealing.epoch),
            segments=sealing.segments,
            tables={**sealing.tables, **part.tables},
            watermark_ms=sealing.watermark_ms,
            final=self._stopping or (sealing.read_to_end if part.final is None else part.final),
            lost=self.epochs.lost_with(sealing.segments),
        )

    def _put_documents(self, documents: Mapping[str, SchemaDocument]) -> None:
        if documents:
            self._surroundings.writer.put_documents({name: each.to_json() for name, each in documents.items()})


def _table_statuses(epochs: PendingEpochs, known: TablesProgress) -> dict[TableId, TableStatus]:
    rows, lost = epochs.rows, epochs.lost_values
    progress = {**Streamed(rows).tables(), **known.tables()}
    return {table: TableStatus(how_far, rows.get(table), lost.get(table)) for table, how_far in progress.items()}
