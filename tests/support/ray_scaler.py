"""Ray's autoscaler in a process of its own, for a cluster of this machine: its nodes are raylets of this machine.

``python -m tests.support.ray_scaler VERSION GCS-ADDRESS CONFIG LOGS SPOOLS`` runs until SIGTERM, and then ends the
nodes that it has made. VERSION is v1, which KubeRay has had for long and many clusters still have, or v2. Each node has
a folder below SPOOLS for segments, as machines of their own have. Ray's own helper for such a cluster stops every Ray
of the machine, and needs a file that no wheel has.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from raycdc.runtime.spools import FOLDER_VARIABLE


def main(version: str, gcs_address: str, config: str, logs: str, spools: str) -> None:
    """See the module's docstring."""
    from ray.autoscaler._private.fake_multi_node import node_provider

    from raycdc.runtime.ray.ray_start import lean_nodes

    providers: list[Any] = []
    kind: Any = node_provider.FakeMultiNodeProvider

    def first(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        providers.append(self)

    def next_id(self: Any) -> str:
        made: str = number(self)
        # The node that is started next inherits it.
        os.environ[FOLDER_VARIABLE] = str(Path(spools, made[-5:]))
        return made

    def end(_signal: int, _frame: FrameType | None) -> None:
        for provider in providers:
            for node in [node for node in provider._nodes.values() if "node" in node]:
                provider._terminate_node(node)
        os._exit(0)

    begin, number = kind.__init__, kind._next_hex_node_id
    kind.__init__, kind._next_hex_node_id = first, next_id
    signal.signal(signal.SIGTERM, end)
    with lean_nodes():
        monitor = _monitor(version, gcs_address, config, logs)
        monitor._signal_handler = end  # The action of v1 at SIGTERM.
        monitor.run()


def _monitor(version: str, gcs_address: str, config: str, logs: str) -> Any:
    """Return the autoscaler, which is imported only here, because each of the two reads the environment at import."""
    if version == "v1":
        from ray.autoscaler._private.monitor import Monitor

        return Monitor(gcs_address, config, log_dir=logs)
    from ray.autoscaler.v2.instance_manager.config import FileConfigReader
    from ray.autoscaler.v2.monitor import AutoscalerMonitor

    return AutoscalerMonitor(gcs_address, FileConfigReader(config), log_dir=logs)


if __name__ == "__main__":
    main(*sys.argv[1:])
