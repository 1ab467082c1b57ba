"""The stories that every sink must pass: the same epochs, crashes and replaced drivers, with the real epoch loop.

A test module of a sink of your own has::

    class TestMySink(SinkConformance):
        def settings(self, folder): return {"type": "my-sink", "path": str(folder / "target")}
        def rows(self, folder, target): ...
        def lose(self, folder, target): ...
        def occupy(self, folder, target): ...

and pytest plays each ``test_…`` below in a folder of its own. A sink that fails none of them keeps an epoch exactly
once as far as a single process can tell; what its store does at a power cut is the store's.

`widen`, `back_up`, `alter`, `erase`, `rename`, `revoke`, `maintain` and `away` say how others do something to a target.
Each is supplied, or `impossible` says why nobody can do that to a target of this sink; its story is skipped then, with
that reason, and fails where neither is there. `raycdc.testing.sink_hooks` is the page of all hooks.
"""

from __future__ import annotations

from raycdc.testing.sink_concurrency_stories import ConcurrentWriterStories
from raycdc.testing.sink_epoch_stories import EpochStories


class SinkConformance(EpochStories, ConcurrentWriterStories):
    """See the module's docstring."""
