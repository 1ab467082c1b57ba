"""The driver's part of a job of `bench.scale`, in a process of its own as it is in a cluster: it reads manifests.

``python -m bench.scale_driver STATE`` reads the number of the last committed epoch from each line of its input, reads
the epoch after it, and answers with the seconds of that and with its largest size so far in bytes.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from raycdc.state.store import CheckpointStore


def main(folder: str) -> None:
    store = CheckpointStore(Path(folder), pipeline="scale", create=False)
    for line in sys.stdin:
        began_s = time.perf_counter()
        manifest = store.manifest_after(int(line))
        took_s = time.perf_counter() - began_s
        assert manifest is not None
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps([manifest.epoch, took_s, size]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
