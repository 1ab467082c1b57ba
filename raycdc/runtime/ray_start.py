"""Starting a private Ray, or joining one, quickly: a pipeline needs its actors and nothing around them.

Besides GCS and raylet, a head node starts an API server, an autoscaler monitor and a log monitor. A private Ray of one
node that shows its logs to nobody and is scaled by nobody has no use for them; without them a start takes a third less
CPU time (measured 12.5 CPU-seconds with three actors, 4.4 of them theirs) and does not wait for the API server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from raycdc.errors import RaycdcError

#: Ray's object store carries no rows here; the smallest it accepts is enough.
OBJECT_STORE_BYTES = 80 << 20
#: Times a private Ray is started before the job gives up.
START_ATTEMPTS = 4

#: What a head node starts beside GCS and raylet; methods of Ray 2's private ``Node``. One that is missing is let be.
_DISPENSABLE = ("start_monitor", "start_log_monitor", "start_api_server")


def start_ray(address: str, *, workers: int) -> None:
    """Start or join Ray; a private one has `workers` processes ready for actors.

    A busy machine may miss Ray's own fixed start-up limit of 30 s, so starting is tried again.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address != "local":
        ray.init(address=address, **common)
        return
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            with lean_nodes():
                # Ray starts a worker per CPU ahead of the first actor. Our actors ask for no CPU: it means only that.
                # Without an address Ray would join one that runs here already, another job's for instance.
                ray.init(
                    address="local",
                    num_cpus=workers,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    **common,
                )
        except Exception as cause:
            ray.shutdown()
            if attempt == START_ATTEMPTS or "timed out" not in str(cause):
                raise RaycdcError(f"Ray did not start: {cause}") from cause
        else:
            return


@contextmanager
def lean_nodes() -> Iterator[None]:
    """Nodes started inside the block have nothing of `_DISPENSABLE`."""
    from ray._private.node import Node

    kept: dict[str, Callable[..., Any]] = {name: vars(Node)[name] for name in _DISPENSABLE if name in vars(Node)}
    for name in kept:
        setattr(Node, name, _nothing)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(Node, name, method)


def _nothing(_node: Any, *_args: Any, **_options: Any) -> None:
    """In place of a method of `Node` that would start a process."""
