"""Coordinator and readers as Ray actors.

Readers reach the coordinator by name, not by handle, and a call that fails is not repeated by Ray (measured: it ran
in-flight calls twice); `raycdc.source.protocol.link` repeats what must be. The coordinator lives on the driver's node,
where the state is; readers are shared out over the nodes that have a spool server (`raycdc.runtime.ray_spools`).
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from raycdc.bridge.access import SpoolAddress
from raycdc.errors import ClusterLostError, FencedError, RaycdcError, StateError
from raycdc.lean import without_pandas
from raycdc.runtime.coordinator_calls import CoordinatorCalls
from raycdc.runtime.coordinator_host import CoordinatorStart
from raycdc.runtime.launcher import (
    CoordinatorHandle,
    CoordinatorLostError,
    JobSpec,
    ReaderHandle,
    host_from,
    warm_up,
    worker_from,
)
from raycdc.runtime.ray_actors import COROUTINES, actor_class, plain_error
from raycdc.runtime.ray_head import RayHead
from raycdc.runtime.ray_spools import RaySpools, SpoolSettings
from raycdc.runtime.ray_start import head_of_ray, start_ray
from raycdc.runtime.reader_worker import ReaderIdentity
from raycdc.runtime.restarts import ProcessEnd
from raycdc.source.parking import Refusal
from raycdc.source.protocol.job_status import JobStatus

#: A coordinator that does not answer for so long (beyond the wait a call asked for) counts as gone.
ANSWER_TIMEOUT_S = 15.0
#: How often a call that waits looks whether Ray's head is still there.
LOOK_S = 1.0
#: A coordinator's process that is not up after so long counts as gone too; a busy machine takes tens of seconds.
START_TIMEOUT_S = 120.0


class SplitEnumerator:
    """`CoordinatorHost` in an actor, whose process is there before its work begins.

    The name is what Ray's state and a process list show: the actor that has the source's enumerator. All its methods
    are coroutines, so that calls which wait take no threads.
    """

    def __init__(self, spec: JobSpec) -> None:
        without_pandas()
        self._spec = spec
        self._calls: CoordinatorCalls | None = None

    async def begin(self, start: CoordinatorStart) -> int:
        """Coordinate from `start` on; called once, before everything else. Returns the process id."""
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
    """`ReaderWorker` in an actor, whose process is there before its work begins; named as Ray's state shows it."""

    def __init__(self, spec: JobSpec) -> None:
        without_pandas()
        warm_up(spec)
        self._spec = spec

    def run(self, identity: ReaderIdentity, coordinator: str, namespace: str, spool: SpoolAddress | None) -> None:
        """Be reader `identity` to its end; called once."""
        actor = ray.get_actor(coordinator, namespace=namespace)
        worker_from(self._spec, identity, RayCoordinator(actor, pid=0), spool=spool).run()


class RayCoordinator:
    """Handle of a `SplitEnumerator`: blocking calls, with the actor's errors as they were raised."""

    def __init__(self, actor: Any, *, pid: int, head: RayHead | None = None) -> None:
        """`head` is looked at while a call waits; readers, which end with it anyway, have none."""
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

    def status(self) -> JobStatus:
        status: JobStatus = self._call("status")
        return status

    def stop(self) -> None:
        self._call("stop")

    def shutdown_readers(self, reason: str) -> None:
        self._call("shutdown_readers", reason)

    def close(self) -> None:
        """Returns when the process is gone, or does not end: nothing of it must come after what follows."""
        ray.kill(self.actor)
        if self._head is not None and self._head.lost is not None:
            return  # Nobody carries the order out; it ends with its raylet, and its generation is fenced.
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


class RayReader:
    """Handle of a `SourceReader`."""

    def __init__(self, identity: ReaderIdentity, actor: Any, run: Any, *, node: str | None) -> None:
        self.identity = identity
        self.node = node
        self._actor = actor
        self._run = run

    def ended(self) -> ProcessEnd | None:
        done, _ = ray.wait([self._run], timeout=0)
        if not done:
            return None
        try:
            ray.get(self._run)
        except FencedError:
            return ProcessEnd("fenced")
        except RaycdcError as error:
            plain = plain_error(error)
            return ProcessEnd.of(plain, _last_line(plain))
        except RayError as error:
            return ProcessEnd(_last_line(error))
        return ProcessEnd("left")

    def kill(self) -> None:
        ray.kill(self._actor)


@dataclass(frozen=True, slots=True)
class RayListeners:
    """Who is told, from any thread: `warn` of what the user should know, `lost` that a joined cluster's head is gone,
    and the run with it, which takes its time to end; `stuck` that the run does not end, because some call waits for
    Ray: it must end the process.
    """

    warn: Callable[[str], None]
    lost: Callable[[ClusterLostError], None]
    stuck: Callable[[ClusterLostError], None]


class RayLauncher:
    """Starts a private Ray (``address = "local"``) or joins one; the job's actors have a namespace of their own.

    `readers` is how many are about to be started. `spools` is None where no process of another node has to reach a
    segment.
    """

    def __init__(
        self, spec: JobSpec, *, address: str, readers: int, spools: SpoolSettings | None, listeners: RayListeners
    ) -> None:
        self._spec = spec
        self._address = address
        self._spool_settings = spools
        self._listeners = listeners
        self._begin(readers)

    def _begin(self, readers: int) -> None:
        """Start or join Ray, and what the first coordinator and `readers` readers need."""
        self._namespace = f"raycdc-{uuid.uuid4().hex}"
        self._count = 0
        self._owned = not ray.is_initialized()
        #: Readers somebody still has a handle of; Ray ends an actor that nobody has and that has nothing left to do.
        self._readers: WeakSet[RayReader] = WeakSet()
        #: Processes that start while Spark does, for the first coordinator and readers of a private Ray.
        self._prepared: list[Any] = []
        self._prepared_readers: list[Any] = []
        if self._owned:
            start_ray(self._address, workers=1 + readers)
        self._head = head_of_ray(private=self._owned and not self._joined)
        self._head.watch(self._listeners.lost if self._joined else lambda _: None, self._listeners.stuck)
        try:
            spools = self._spool_settings
            self._spools = (
                None if spools is None else RaySpools(spools, warn=self._listeners.warn, look=self._head.look)
            )
            if self._spools is None:
                self._prepared = [self._new_coordinator()]
                self._prepared_readers = [self._new_reader(None) for _ in range(readers)]
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

    def start_reader(self, identity: ReaderIdentity, coordinator: CoordinatorHandle) -> ReaderHandle:
        node, spool = self._place()
        actor = self._prepared_readers.pop() if self._prepared_readers else self._new_reader(node)
        run = actor.run.remote(identity, self._coordinator_name(), self._namespace, spool)
        reader = RayReader(identity, actor, run, node=node)
        self._readers.add(reader)
        return reader

    def request_readers(self, count: int) -> None:
        """Tell Ray's autoscaler, which a private Ray does not have: one CPU per reader, until told otherwise."""
        while len(self._prepared_readers) > count:
            ray.kill(self._prepared_readers.pop())
        if self._joined:
            # Importing it costs a third of a second, and every actor imports this module.
            from ray.autoscaler.sdk import request_resources

            request_resources(bundles=[{"CPU": 1}] * count)

    def look(self) -> None:
        self._head.look()
        # Asking for the nodes waits for the head, if that is away.
        if self._spools is not None and self._head.answering:
            self._spools.look()

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
        with suppress(RayError, RuntimeError, OSError):  # The cluster may be what ended the job.
            if self._head.answering:
                self.request_readers(0)
        if self._owned:
            ray.shutdown()

    def _place(self) -> tuple[str | None, SpoolAddress | None]:
        """The node with the fewest of our readers, the driver's first, and its spool; None in a private Ray."""
        if self._spools is None:
            return None, None
        load = Counter(reader.node for reader in self._readers if reader.ended() is None)
        spools = self._spools.addresses()
        if not spools:
            raise CoordinatorLostError("no node has a spool server")
        node = min(spools, key=lambda candidate: load[candidate])
        return node, spools[node]

    def _new_coordinator(self) -> Any:
        self._count += 1
        node = self._spools.own if self._spools else None
        named = {"name": self._coordinator_name(), "namespace": self._namespace}
        return actor_class(SplitEnumerator, node_id=node, concurrency=COROUTINES, **named).remote(self._spec)

    def _new_reader(self, node: str | None) -> Any:
        return actor_class(SourceReader, node_id=node).remote(self._spec)

    def _coordinator_name(self) -> str:
        return f"coordinator-{self._count}"


def answer(head: RayHead | None, reference: Any, timeout_s: float) -> Any:
    """The result of a call. Without Ray's `head` an answer may never come, nor the news that none will."""
    while head is not None and timeout_s > LOOK_S and not ray.wait([reference], timeout=LOOK_S)[0]:
        head.look()
        timeout_s -= LOOK_S
    return ray.get(reference, timeout=timeout_s)


def error_of_begin(cause: RayActorError) -> StateError | CoordinatorLostError:
    """Why a coordinator did not begin: its class cannot be made here at all, or its process ended, as any may."""
    if cause.actor_init_failed:
        return StateError(f"The coordinator did not start: {_last_line(cause)}")
    return CoordinatorLostError(f"its process ended while it began: {_last_line(cause)}")


def _last_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[-1] if text else type(error).__name__
