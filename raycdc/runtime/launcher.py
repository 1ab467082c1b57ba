"""Starts coordinators and readers, as threads or as Ray actors. The supervisor does not know which.

`LocalLauncher` starts threads of this process (``--local``), and `raycdc.runtime.ray.ray_launcher` starts Ray actors.
The handles behave in the same way, so the supervisor does not depend on Ray.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from raycdc.core.startup_tuning import without_collection
from raycdc.model.engines import EngineName
from raycdc.model.rules.mask import Masks
from raycdc.model.rules.rate_limit import Until
from raycdc.runtime.coordinator.coordinator_host import CoordinatorHost, CoordinatorStart
from raycdc.runtime.reader.coordinator_connection import CoordinatorClient
from raycdc.runtime.reader.reader_worker import ReaderIdentity, ReaderSettings, ReaderWorker
from raycdc.runtime.restarts import ProcessEnd
from raycdc.runtime.scaling import SeenNode
from raycdc.segments.access import SegmentAccess, SpoolAddress
from raycdc.segments.certificates import JobAuthority
from raycdc.segments.copies import SegmentCopies
from raycdc.source.connector import Source
from raycdc.source.protocol.api import EnumeratorStart
from raycdc.source.protocol.coordinator import CoordinatorSettings
from raycdc.source.protocol.job_status import JobStatus
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.tables.parking import Refusal, Requests
from raycdc.source.tables.table_requests import refusals_of
from raycdc.state.documents import REQUESTS
from raycdc.state.location import StateLocation
from raycdc.state.manifests.manifest import STATE_NODE
from raycdc.state.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The inputs from which every process of a job is created.

    Picklable; `make_source` is a module-level callable or partial.
    """

    state: StateLocation
    make_source: Callable[[], Source[Any]]
    settings: CoordinatorSettings
    until: Until | None
    #: True if a table that cannot be followed is parked; otherwise it ends the run.
    parking: bool = True
    #: Tables that the source cannot follow any more, as found at the start.
    refused: tuple[Refusal, ...] = ()
    #: True if the sink needs the order of each key's changes, but no order between keys.
    partitioned: bool = False
    #: The number of threads of one reader that may each read a chunk.
    fetchers: int = 1
    #: The masks that readers apply to columns. They contain keys.
    masks: Masks = field(default_factory=Masks, repr=False)
    token: str | None = field(default=None, repr=False)
    #: The location of copies of segments; None if no copies are made.
    copies: SegmentCopies | None = None
    #: The certificate authority of Flight servers that listen beyond this machine; None if there are none.
    authority: JobAuthority | None = None

    @property
    def access(self) -> SegmentAccess:
        """Return how processes on the node with the state reach segments."""
        return SegmentAccess(token=self.token or "", authority=self.authority.certificate if self.authority else b"")


class CoordinatorHandle(CoordinatorClient, Protocol):
    """The driver's view of a running coordinator. Calls raise the job's error, or `CoordinatorLostError`."""

    pid: int

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]: ...

    def epoch_committed(self, epoch: int) -> None: ...

    def park_tables(self, refusals: Sequence[Refusal]) -> None: ...

    def reader_lost(self, subtask_id: int, incarnation: int, reason: str) -> None: ...

    def take_lost(self) -> list[tuple[int, int, str]]: ...

    def retire(self, subtask_id: int) -> bool: ...

    def status(self, *, tables: bool) -> JobStatus:
        """Return the status, including that of each table if `tables`."""
        ...

    def stop(self) -> None: ...

    def shutdown_readers(self, reason: str) -> None: ...

    def close(self) -> None: ...


class CoordinatorLostError(Exception):
    """Raised if the coordinator's process ended or does not answer; the supervisor starts another generation."""


class ReaderHandle(Protocol):
    """The driver's view of a running incarnation of a reader."""

    identity: ReaderIdentity

    @property
    def has_process(self) -> bool:
        """Return True if the reader has a process; False while it waits for a node with free resources."""

    @property
    def node(self) -> str:
        """Return the reader's node, as `Launcher.nodes` names it; empty while the reader waits."""

    def ended(self) -> ProcessEnd | None:
        """Return how the reader ended, or None while it runs."""

    def kill(self) -> None:
        """End the reader immediately; does nothing if it has ended."""


class Launcher(Protocol):
    """Starts the processes of a job."""

    @property
    def engine(self) -> EngineName:
        """Return the engine of readers that are started now."""

    def start_coordinator(self, start: CoordinatorStart) -> CoordinatorHandle: ...

    def start_reader(self, identity: ReaderIdentity, coordinator: CoordinatorHandle, *, node: str = "") -> ReaderHandle:
        """Start a reader; returns immediately, even if the reader has to wait for resources.

        `node` names the node that it should run on, or is empty.
        """

    def request_readers(self, count: int) -> None:
        """Set the number of readers wanted from now on."""

    def nodes(self) -> Sequence[SeenNode]:
        """Return the nodes that may have readers now. Never blocks for long."""

    def avoid(self, node: str) -> None:
        """Give this node no further reader for a while, because a reader on it was silent."""

    def poll(self, owing: Collection[str] | None = None) -> None:
        """Maintain the servers and nodes that readers and tasks need; called repeatedly while the job runs.

        `owing` has the names of spools with segments that the sink does not hold yet; None if these are unknown.
        """

    def flights(self) -> Mapping[str, str]:
        """Return the Flight endpoint of each spool that has one now, by the spool's name."""

    def sweep(self, needed: Collection[str]) -> None:
        """Delete segments on other nodes that are not in `needed`. Called before any reader starts."""

    def renew(self) -> bool:
        """Restart the cluster that a `ClusterLostError` reported as lost.

        Return False if only its owner can restart it. Called on the thread that created the launcher, while no process
        of the job runs.
        """

    def close(self) -> None: ...


def this_machine() -> SeenNode:
    """Return this machine as the only node; readers share its cores with all other work."""
    # Only Linux reports the cores that this process may use.
    cores = float(len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)
    return SeenNode("", cores, cores, own=True)


class LocalLauncher:
    """Runs everything in threads of this process. For ``--local``, debugging and small machines."""

    engine = EngineName.DRIVER

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec

    def start_coordinator(self, start: CoordinatorStart) -> CoordinatorHandle:
        return host_from(self._spec, start)

    def start_reader(self, identity: ReaderIdentity, coordinator: CoordinatorHandle, *, node: str = "") -> ReaderHandle:
        return LocalReader(identity, worker_from(self._spec, identity, coordinator))

    def request_readers(self, count: int) -> None:
        """Do nothing: threads need no nodes."""

    def nodes(self) -> Sequence[SeenNode]:
        return [this_machine()]

    def avoid(self, node: str) -> None:
        """Do nothing: there is no other node."""

    def poll(self, owing: Collection[str] | None = None) -> None:
        """Do nothing: threads need no maintenance."""

    def flights(self) -> Mapping[str, str]:
        return {}

    def sweep(self, needed: Collection[str]) -> None:
        """Do nothing: there is no other node."""

    def renew(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing: threads end with their handles."""


class LocalReader:
    """A reader worker in its own thread."""

    has_process = True
    node = ""

    def __init__(self, identity: ReaderIdentity, worker: ReaderWorker) -> None:
        self.identity = identity
        self._worker = worker
        self._ended: ProcessEnd | None = None
        self._thread = threading.Thread(target=self._run, name=f"reader-{identity.subtask_id}", daemon=True)
        self._thread.start()

    def ended(self) -> ProcessEnd | None:
        return self._ended

    def kill(self) -> None:
        self._worker.close()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        try:
            self._worker.run()
            self._ended = ProcessEnd("left")
        except Exception as error:  # noqa: BLE001 - returned by `ended`
            self._ended = ProcessEnd.of(error)


def host_from(spec: JobSpec, start: CoordinatorStart) -> CoordinatorHost:
    """Create the coordinator of a job in this process."""
    with without_collection():
        return _host_from(spec, start)


def _host_from(spec: JobSpec, start: CoordinatorStart) -> CoordinatorHost:
    store = CheckpointStore(spec.state, create=False)
    asked: Any = store.documents.read(REQUESTS)
    record = store.last_commit()
    begin = EnumeratorStart(
        spec.until,
        store.last_manifest(),
        lambda fingerprint: SchemaDocument.from_json(store.document(fingerprint)),
        Requests.from_json(asked) if asked else None,
        [*spec.refused, *(refusals_of(record.parked) if record else ())],
    )
    return CoordinatorHost(store, spec.make_source(), start=start, begin=begin, settings=spec.settings)


def warm_up(spec: JobSpec) -> None:
    """Load the code that a reader of the job needs, before the reader begins."""
    spec.make_source().warm_up()


def worker_from(
    spec: JobSpec, identity: ReaderIdentity, coordinator: CoordinatorClient, *, spool: SpoolAddress | None = None
) -> ReaderWorker:
    """Create a reader of a job in this process. `spool` is the spool of its node; None for the state's own spool."""
    spool = replace(spool or SpoolAddress(spec.state.work / "spool", STATE_NODE), copies=spec.copies)
    return ReaderWorker(
        identity,
        source=spec.make_source(),
        coordinator=coordinator,
        spool=spool,
        settings=ReaderSettings(
            access=replace(spec.access, node=spool.node),
            epoch_bytes_max=spec.settings.epoch_bytes_max,
            fetchers=spec.fetchers,
            parking=spec.parking,
            partitioned=spec.partitioned,
            masks=spec.masks,
        ),
    )
