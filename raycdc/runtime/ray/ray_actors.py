"""Makes Ray actors of plain classes. No other module applies ``ray.remote``.

Ray never restarts these actors. An actor that replaces a lost one is a new incarnation. Only the supervisor may start
it, under a number that fences the lost one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raycdc.errors import RaycdcError

#: The number of concurrent calls of an actor with several callers; each has a thread from the start.
CONCURRENCY = 128
#: The number of concurrent calls of an actor whose methods are coroutines: two for each reader (a long poll and an
#: exchange), and those of the driver.
COROUTINES = 10_000


@dataclass(frozen=True, slots=True)
class Needs:
    """The resources that an actor needs on its node, and labels of allowed nodes (Ray's selectors).

    Ray reserves `memory_bytes`, but does not enforce it as a limit. If `spread` is True, a node with few actors is
    preferred.
    """

    cpus: float = 0.0
    memory_bytes: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    spread: bool = False


NOTHING = Needs()


def actor_class(
    cls: type[Any],
    *,
    needs: Needs = NOTHING,
    node_id: str | None = None,
    name: str | None = None,
    namespace: str | None = None,
    concurrency: int = 1,
) -> Any:
    """Return `cls` as an actor on the Ray node `node_id` only (None: any node with the resources in `needs`)."""
    options: dict[str, Any] = {"num_cpus": needs.cpus, "max_restarts": 0, "max_task_retries": 0}
    taken = {
        "memory": needs.memory_bytes,
        "resources": dict(needs.resources),
        "label_selector": dict(needs.labels),
        "scheduling_strategy": "SPREAD" if needs.spread else "",
    }
    options |= {name: value for name, value in taken.items() if value}
    if name is not None:
        options |= {"name": name, "namespace": namespace}
    if concurrency > 1:
        options["max_concurrency"] = concurrency
    if node_id is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(cls).options(**options)


def plain_error(error: RaycdcError) -> RaycdcError:
    """Return the original error of `error`, because Ray raises a subclass whose text is the remote traceback."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, RaycdcError) else error


def last_line(error: BaseException) -> str:
    """Return the last line of a Ray error, whose text is a whole traceback."""
    text = str(error).strip()
    return text.splitlines()[-1] if text else type(error).__name__
