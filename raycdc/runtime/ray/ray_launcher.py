"""Starts coordinator and readers as Ray actors.

Readers reach the coordinator by name, not by handle, and Ray must not retry a failed call, because it was seen to run
such calls twice; `raycdc.source.protocol.link` repeats messages instead. The coordinator lives on the driver's node,
where the state is. Readers of a joined cluster take CPUs of nodes that Ray chooses: a reader without a free node waits,
and Ray's autoscaler sees its demand. When the reader has a process, a spool server is started on its node
(`raycdc.runtime.ray.ray_spools`), and then the reader begins.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from raycdc.core.startup_tuning import collect_seldom, without_pandas
from raycdc.errors import ClusterLostError, RaycdcError, StateError
from raycdc.model.engines import EngineName
from raycdc.runtime.coordinator.coordinator_calls import CoordinatorCalls
from raycdc.runtime.coordinator.coordinator_host import CoordinatorStart
from raycdc.runtime.launcher import (
    CoordinatorHandle,
    CoordinatorLostError,
    JobSpec,
    ReaderHandle,
    host_from,
    this_machine,
    warm_up,
    worker_from,
)
from raycdc.runtime.ray.ray_actors import COROUTINES, Needs, actor_class, last_line, plain_error
from raycdc.runtime.ray.ray_head import RayHead
from raycdc.runtime.ray.ray_nodes import RayNodes, ReaderNeeds
from raycdc.runtime.ray.ray_readers import RayReaders
from raycdc.runtime.ray.ray_spools import RaySpools, SpoolSettings
from raycdc.runtime.ray.ray_start import head_of_ray, start_ray
from raycdc.runtime.reader.reader_worker import ReaderIdentity
from raycdc.runtime.scaling import SeenNode
from raycdc.segments.access import SpoolAddress
from raycdc.source.protocol.job_status import JobStatus
from raycdc.source.tables.parking import Refusal

#: A coordinator that does not answer within this time (in addition to the wait that a call requested) counts as lost.
ANSWER_TIMEOUT_S = 15.0
#: Seconds between two checks of Ray's head by a waiting call.
POLL_S = 1.0
#: A coordinator whose process does not start within this time counts as lost, too; a busy machine takes tens of
#: seconds.
START_TIMEOUT_S = 120.0


class SplitEnumerator:
    """`CoordinatorHost` in an actor whose process exists before its work begins.

    Ray's state and process lists show this class name, so it is that of the source's enumerator, which the actor runs.
    All its methods are coroutines, so waiting calls use no threads.
    """

    def __init__(self, spec: JobSpec) -> None:
        without_pandas()
        collect_seldom()
        self._spec = spec
        self._calls: CoordinatorCalls | None = None

    async def begin(self, start: CoordinatorStart) -> int:
        """Start the coordinator with `start`; called once, before all other methods. Returns the process id."""
        host = await asyncio.get_running_loop().run_in_executor(None, host_from, self._spec, start)
        self._calls = CoordinatorCalls(host)
        return os.getpid()

    async def pid(self) -> int:
        return os.getpid()

    async def exchange(self, subtask_id: int, incarnation: int, packet: bytes, wait_s: float) -> bytes:
        assert self._calls is not None, "it has begun"
        return await self._calls.exchange(subtask_id, incarnation, packet, wait_s=wait_s)

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._calls is not None, "it has begun"
        return await self._calls.call(lambda host: getattr(host, method)(*args, **kwargs))


class SourceReader:
    """`ReaderWorker` in an actor whose process exists before its work begins.

    Ray's state and process lists show this class name.
    """

    def __init__(self, spec: JobSpec) -> None:
        without_pandas()
        self._spec = spec

    def where(self) -> str:
        """Return the id of the actor's Ray node."""
        return str(ray.get_runtime_context().get_node_id())

    def warm_up(self) -> None:
        """Load what the reader needs. Called before `run`, which may have to wait for a spool server."""
        warm_up(self._spec)

    def run(self, identity: ReaderIdentity, coordinator: str, namespace: str, spool: SpoolAddress | None) -> None:
        """Run the reader `identity` until it ends; called once."""
        actor = ray.get_actor(coordinator, namespace=namespace)
        worker_from(self._spec, identity, RayCoordinator(actor, pid=0), spool=spool).run()


class RayCoordinator:
    """The driver's handle of a `SplitEnumerator`: calls block, and raise the actor's errors as they were raised."""

    def __init__(self, actor: Any, *, pid: int, head: RayHead | None = None) -> None:
        """Create the handle.

        `head` is checked while a call waits. Readers pass no `head`, because they end together with Ray's head.
        """
        self.actor = actor
        self.pid = pid
        self._head = head

    def exchange(self, subtask_id: int, incarnation: int, packet: bytes, *, wait_s: float) -> bytes:
        called = self.actor.exchange.remote(subtask_id, incarnation, packet, wait_s)
        answered: bytes = self._answer("exchange", called, ANSWER_TIMEOUT_S + wait_s)
        return answered

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]:
        epoch, final = self._call("next_sealed", after, wait_s=wait_s)
        return epoch, final

    def epoch_committed(self, epoch: int) -> None:
        self._call("epoch_committed", epoch)

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        self._call("park_tables", refusals)

    def reader_lost(self, subtask_id: int, incarnation: int, reason: str) -> None:
        self._call("reader_lost", subtask_id, incarnation, reason)

    def take_lost(self) -> list[tuple[int, int, str]]:
        lost: list[tuple[int, int, str]] = self._call("take_lost")
        return lost

    def retire(self, subtask_id: int) -> bool:
        return bool(self._call("retire", subtask_id))

    def status(self, *, tables: bool) -> JobStatus:
        status: JobStatus = self._call("status", tables=tables)
        return status

    def stop(self) -> None:
        self._call("stop")

    def shutdown_readers(self, reason: str) -> None:
        self._call("shutdown_readers", reason)

    def close(self) -> None:
        """End the actor.

        Returns when its process has ended, so that it can do nothing later, or if it does not end.
        """
        ray.kill(self.actor)
        if self._head is not None and self._head.lost is not None:
            return  # Ray could not end the actor. Its process ends with its raylet, and its generation is fenced.
        with suppress(RayActorError, GetTimeoutError):
            ray.get(self.actor.pid.remote(), timeout=ANSWER_TIMEOUT_S)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        timeout_s = ANSWER_TIMEOUT_S + float(kwargs.get("wait_s", 0.0))
        return self._answer(method, self.actor.call.remote(method, args, kwargs), timeout_s)

    def _answer(self, method: str, called: Any, timeout_s: float) -> Any:
        try:
            return answer(self._head, called, timeout_s)
        except RaycdcError as error:
            raise plain_error(error) from None
        except (RayActorError, GetTimeoutError) as cause:
            raise CoordinatorLostError(f"{method}: {type(cause).__name__}") from cause


@dataclass(frozen=True, slots=True)
class RayListeners:
    """The callbacks of the launcher, which any thread may call.

    `warn` shows a warning to the user. `lost` is called if a joined cluster's head is lost. The run is then lost, too,
    but takes time to end. `stuck` is called if the run does not end because a call waits for Ray; the callback must end
    the process.
    """

    warn: Callable[[str], None]
    lost: Callable[[ClusterLostError], None]
    stuck: Callable[[ClusterLostError], None]


class RayLauncher:
    """Starts a private Ray (``address = "local"``) or joins a cluster. The job's actors have a namespace of their own.

    `readers` is the number of readers that are about to start. `spools` is None if no process of another node has to
    reach a segment. `needs` are a reader's needs in a joined cluster.
    """

    engine = EngineName.RAY

    def __init__(
        self,
        spec: JobSpec,
        *,
        address: str,
        readers: int,
        spools: SpoolSettings | None,
        listeners: RayListeners,
        needs: ReaderNeeds | None = None,
    ) -> None:
        self._spec = spec
        self._address = address
        self._needs = (needs or ReaderNeeds()) if self._joined else ReaderNeeds(cpus=0.0)
        self._spool_settings = spools
        self._listeners = listeners
        self._begin(readers)

    def _begin(self, readers: int) -> None:
        """Start or join Ray, and start what the first coordinator and `readers` readers need."""
        self._namespace = f"raycdc-{uuid.uuid4().hex}"
        self._count = 0
        self._owned = not ray.is_initialized()
        #: Processes for the first coordinator and readers of a private Ray, which start while Spark does.
        self._prepared: list[Any] = []
        if self._owned:
            start_ray(self._address, workers=1 + readers)
        self._head = head_of_ray(private=self._owned and not self._joined)
        self._head.watch(self._listeners.lost if self._joined else lambda _: None, self._listeners.stuck)
        try:
            self._spools: RaySpools | None = None
            if (spools := self._spool_settings) is not None:
                own, warn = str(ray.get_runtime_context().get_node_id()), self._listeners.warn
                nodes = RayNodes(self._needs, own=own, network=spools.authority is not None, warn=warn)
                self._spools = RaySpools(spools, nodes, warn=warn, poll=self._head.poll)
            self._readers = RayReaders(self._new_reader, self._run, self._spools)
            if self._spools is None:
                self._prepared = [self._new_coordinator()]
                self._readers.prepare(readers)
        except BaseException:
            self.close()
            raise

    @property
    def _joined(self) -> bool:
        return self._address != "local"

    def start_coordinator(self, start: CoordinatorStart) -> CoordinatorHandle:
        actor = self._prepared.pop() if self._prepared else self._new_coordinator()
        try:
            pid = answer(self._head, actor.begin.remote(start), START_TIMEOUT_S)
        except RaycdcError as error:
            raise plain_error(error) from None
        except GetTimeoutError as cause:
            ray.kill(actor)
            raise CoordinatorLostError(f"its process did not start within {START_TIMEOUT_S:g} s") from cause
        except RayActorError as cause:
            ray.kill(actor)
            raise error_of_begin(cause) from cause
        return RayCoordinator(actor, pid=pid, head=self._head)

    def start_reader(self, identity: ReaderIdentity, coordinator: CoordinatorHandle, *, node: str = "") -> ReaderHandle:
        return self._readers.start(identity, node)

    def request_readers(self, count: int) -> None:
        """End prepared readers beyond `count`."""
        self._readers.keep_prepared(count)

    def nodes(self) -> Sequence[SeenNode]:
        if self._spools is None:
            return [this_machine()]
        if not self._joined:
            # The CPUs of a private Ray are not real (`raycdc.runtime.ray.ray_start`).
            return [replace(this_machine(), name=node.name, label=node.label) for node in self._spools.nodes.seen()]
        return self._spools.nodes.seen()

    def avoid(self, node: str) -> None:
        if self._spools is not None and node:
            self._spools.nodes.avoid(node)
            self._readers.choose_again()

    def poll(self, owing: Collection[str] | None = None) -> None:
        self._head.poll()
        # A query of the nodes waits for the head, if that is unreachable.
        if self._spools is None or not self._head.answering:
            return
        self._spools.nodes.poll()
        used = self._readers.poll()
        self._spools.poll()
        if owing is not None:
            self._spools.give_back(used=used, owing=owing, waiting=bool(self._readers.waiting))

    def flights(self) -> Mapping[str, str]:
        return self._spools.flights() if self._spools is not None else {}

    def sweep(self, needed: Collection[str]) -> None:
        if self._spools is not None:
            self._spools.sweep(needed)

    def renew(self) -> bool:
        if not self._head.private:
            return False
        self.close()
        self._begin(readers=0)
        return True

    def close(self) -> None:
        self._head.close()
        if self._owned:
            ray.shutdown()

    def _new_coordinator(self) -> Any:
        self._count += 1
        node = self._spools.own if self._spools else None
        name, namespace = self._coordinator_name(), self._namespace
        made = actor_class(SplitEnumerator, node_id=node, concurrency=COROUTINES, name=name, namespace=namespace)
        return made.remote(self._spec)

    def _new_reader(self, node: str) -> tuple[Any, Any]:
        needs, labels = self._needs, {} if self._spools is None or node else self._spools.nodes.selector()
        taken = Needs(needs.cpus, resources=needs.resources, labels=labels, spread=self._joined and not node)
        actor = actor_class(SourceReader, needs=taken, node_id=node or None).remote(self._spec)
        where = actor.where.remote()
        actor.warm_up.remote()  # The run ends with the same error, if there is one.
        return actor, where

    def _run(self, actor: Any, identity: ReaderIdentity, spool: SpoolAddress | None) -> Any:
        return actor.run.remote(identity, self._coordinator_name(), self._namespace, spool)

    def _coordinator_name(self) -> str:
        return f"coordinator-{self._count}"


def answer(head: RayHead | None, reference: Any, timeout_s: float) -> Any:
    """Return the result of a call.

    If there is no `head` to check and Ray is lost, the call may wait forever.
    """
    while head is not None and timeout_s > POLL_S and not ray.wait([reference], timeout=POLL_S)[0]:
        head.poll()
        timeout_s -= POLL_S
    return ray.get(reference, timeout=timeout_s)


def error_of_begin(cause: RayActorError) -> StateError | CoordinatorLostError:
    """Return the error of a coordinator that did not start because its class cannot be created or its process ended."""
    if cause.actor_init_failed:
        return StateError(f"The coordinator did not start: {last_line(cause)}")
    return CoordinatorLostError(f"its process ended while it began: {last_line(cause)}")
