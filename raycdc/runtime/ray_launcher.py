"""Coordinator and readers as Ray actors. The only module that applies ``ray.remote``.

Actors are never restarted by Ray: an actor that lost its state is a new incarnation, which only the supervisor may
start, under a number that fences the old one. Readers reach the coordinator by name, not by handle, and a call that
fails is not repeated by Ray (measured: it ran in-flight calls twice); `raycdc.source.link` repeats what must be.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from raycdc.errors import FencedError, RaycdcError, StateError
from raycdc.runtime.coordinator_host import CoordinatorHost
from raycdc.runtime.launcher import (
    CoordinatorHandle,
    CoordinatorLostError,
    CoordinatorStart,
    JobSpec,
    ReaderHandle,
    host_from,
    worker_from,
)
from raycdc.runtime.ray_start import start_ray
from raycdc.runtime.reader_worker import ReaderIdentity

#: Calls in flight in the coordinator: one long poll and one exchange per reader, and the driver's.
COORDINATOR_CONCURRENCY = 128
#: A coordinator that does not answer for so long (beyond the wait a call asked for) counts as gone.
ANSWER_TIMEOUT_S = 15.0
#: A coordinator's process that is not up after so long counts as gone too; a busy machine takes tens of seconds.
START_TIMEOUT_S = 120.0


class CoordinatorActor:
    """`CoordinatorHost` in an actor."""

    def __init__(self, spec: JobSpec, start: CoordinatorStart) -> None:
        self._host: CoordinatorHost = host_from(spec, start)

    def pid(self) -> int:
        return os.getpid()

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return getattr(self._host, method)(*args, **kwargs)


class ReaderActor:
    """`ReaderWorker` in an actor."""

    def __init__(self, spec: JobSpec, identity: ReaderIdentity, coordinator: str, namespace: str) -> None:
        actor = ray.get_actor(coordinator, namespace=namespace)
        self._worker = worker_from(spec, identity, RayCoordinator(actor, pid=0))

    def run(self) -> None:
        self._worker.run()


class RayCoordinator:
    """Handle of a `CoordinatorActor`: blocking calls, with the actor's errors as they were raised."""

    def __init__(self, actor: Any, *, pid: int) -> None:
        self.actor = actor
        self.pid = pid

    def exchange(self, subtask_id: int, incarnation: int, packet: bytes, *, wait_s: float) -> bytes:
        answer: bytes = self._call("exchange", subtask_id, incarnation, packet, wait_s=wait_s)
        return answer

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]:
        epoch, final = self._call("next_sealed", after, wait_s=wait_s)
        return epoch, final

    def epoch_committed(self, epoch: int) -> None:
        self._call("epoch_committed", epoch)

    def reader_lost(self, subtask_id: int, incarnation: int, reason: str) -> None:
        self._call("reader_lost", subtask_id, incarnation, reason)

    def take_lost(self) -> list[tuple[int, int, str]]:
        lost: list[tuple[int, int, str]] = self._call("take_lost")
        return lost

    def retire(self, subtask_id: int) -> bool:
        return bool(self._call("retire", subtask_id))

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self._call("status")
        return status

    def stop(self) -> None:
        self._call("stop")

    def shutdown_readers(self, reason: str) -> None:
        self._call("shutdown_readers", reason)

    def close(self) -> None:
        ray.kill(self.actor)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        timeout_s = ANSWER_TIMEOUT_S + float(kwargs.get("wait_s", 0.0))
        try:
            return ray.get(self.actor.call.remote(method, args, kwargs), timeout=timeout_s)
        except RaycdcError as error:
            raise _plain(error) from None
        except (RayActorError, GetTimeoutError) as cause:
            raise CoordinatorLostError(f"{method}: {type(cause).__name__}") from cause


class RayReader:
    """Handle of a `ReaderActor`."""

    def __init__(self, identity: ReaderIdentity, actor: Any) -> None:
        self.identity = identity
        self._actor = actor
        self._run = actor.run.remote()

    def ended(self) -> str | None:
        done, _ = ray.wait([self._run], timeout=0)
        if not done:
            return None
        try:
            ray.get(self._run)
        except FencedError:
            return "fenced"
        except (RayError, RaycdcError) as error:
            return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        return "left"

    def kill(self) -> None:
        ray.kill(self._actor)


class RayLauncher:
    """Starts a private Ray (``address = "local"``) or joins one; the job's actors have a namespace of their own.

    `readers` is how many are about to be started.
    """

    def __init__(self, spec: JobSpec, *, address: str, readers: int) -> None:
        self._spec = spec
        self._namespace = f"raycdc-{uuid.uuid4().hex}"
        self._count = 0
        self._owned = not ray.is_initialized()
        if self._owned:
            start_ray(address, workers=1 + readers)

    def start_coordinator(self, start: CoordinatorStart) -> CoordinatorHandle:
        self._count += 1
        actor = _actor(CoordinatorActor, name=self._coordinator_name(), namespace=self._namespace).remote(
            self._spec, start
        )
        try:
            pid = ray.get(actor.pid.remote(), timeout=START_TIMEOUT_S)
        except RaycdcError as error:
            raise _plain(error) from None
        except GetTimeoutError as cause:
            ray.kill(actor)
            raise CoordinatorLostError(f"its process did not start within {START_TIMEOUT_S:g} s") from cause
        except RayActorError as cause:
            raise _constructor_error(cause) from cause
        return RayCoordinator(actor, pid=pid)

    def start_reader(self, identity: ReaderIdentity, coordinator: CoordinatorHandle) -> ReaderHandle:
        actor = _actor(ReaderActor, name=None, namespace=self._namespace).remote(
            self._spec, identity, self._coordinator_name(), self._namespace
        )
        return RayReader(identity, actor)

    def close(self) -> None:
        if self._owned:
            ray.shutdown()

    def _coordinator_name(self) -> str:
        return f"coordinator-{self._count}"


def _actor(cls: type[Any], *, name: str | None, namespace: str) -> Any:
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
    if name is not None:
        options |= {"name": name, "namespace": namespace, "max_concurrency": COORDINATOR_CONCURRENCY}
    return ray.remote(cls).options(**options)


def _plain(error: RaycdcError) -> RaycdcError:
    """The error as it was raised: Ray hands out a subclass whose text is the remote traceback."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, RaycdcError) else error


def _constructor_error(error: RayActorError) -> RaycdcError:
    text = str(error).strip()
    return StateError(f"The coordinator did not start: {text.splitlines()[-1] if text else type(error).__name__}")
