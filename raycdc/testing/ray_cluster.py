"""Ray clusters on one machine: one node that many jobs join, or several, for tests of readers that are elsewhere.

Each node has a raylet of its own, as on machines of their own. Of several nodes each has a spool folder of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raycdc.errors import RaycdcError
from raycdc.runtime.ray_environment import prepare
from raycdc.runtime.spools import FOLDER_VARIABLE

#: The least Ray accepts: rows never pass through its object store here.
OBJECT_STORE_BYTES = 80 << 20
#: Times the nodes are started before the test gives up.
START_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class TwoNodes:
    """A head node and another one; `spool` is where readers on either keep segments, unless it is the driver's."""

    address: str
    spool: Path
    _cluster: Any
    _other: Any

    def segments(self) -> list[Path]:
        """Segments in spools other than the state's."""
        return sorted(self.spool.rglob("*.arrow"))

    def kill_other(self) -> None:
        """The node that is not the head's loses power."""
        self._cluster.remove_node(self._other, allow_graceful=False)


@contextmanager
def two_nodes(folder: Path) -> Iterator[TwoNodes]:
    """Start both, and end them with all their processes."""
    spool = folder / "other-spool"
    with _environment({FOLDER_VARIABLE: str(spool)}), _cluster(others=1) as (cluster, [other]):
        yield TwoNodes(cluster.address, spool, cluster, other)


@contextmanager
def one_node() -> Iterator[str]:
    """The address of a Ray that jobs join one after the other, so that none of them has to start its own."""
    with _cluster(others=0) as (cluster, _):
        yield str(cluster.address)


@contextmanager
def _cluster(*, others: int) -> Iterator[tuple[Any, list[Any]]]:
    """A head node and `others`."""
    prepare("auto")
    # Without tokens: a process that imported Ray before would not know them.
    with _environment({"RAY_AUTH_MODE": "disabled"}):
        from ray.cluster_utils import Cluster

        from raycdc.runtime.ray_start import lean_nodes

        options = {"num_cpus": 2, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
        with lean_nodes():
            cluster, nodes = _start(Cluster, options, others)
        try:
            yield cluster, nodes
        finally:
            cluster.shutdown()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start(kind: Any, options: dict[str, Any], others: int) -> tuple[Any, list[Any]]:
    """A busy machine may miss Ray's own fixed start-up limit, so starting is tried again."""
    for attempt in range(1, START_ATTEMPTS + 1):
        cluster = kind()
        try:
            cluster.add_node(**options)
            nodes = [cluster.add_node(num_cpus=2, object_store_memory=OBJECT_STORE_BYTES) for _ in range(others)]
            cluster.wait_for_nodes()
        except Exception as cause:
            cluster.shutdown()
            if attempt == START_ATTEMPTS:
                raise RaycdcError(f"Ray's nodes did not start: {cause}") from cause
        else:
            return cluster, nodes
    raise AssertionError("the last attempt raised")
