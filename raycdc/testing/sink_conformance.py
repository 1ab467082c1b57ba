"""The stories that every sink must pass: the same epochs, crashes and replaced drivers, with the real epoch loop.

A test module of a sink of your own has::

    class TestMySink(SinkConformance):
        def settings(self, folder): return {"type": "my-sink", "path": str(folder / "target")}
        def rows(self, folder, target): ...
        def lose(self, folder, target): ...
        def occupy(self, folder, target): ...

and pytest plays each ``test_…`` below in a folder of its own. A sink that passes all of them stores each epoch exactly
once, as far as tests in a single process can show. The behaviour at a power failure depends on the sink's store.

`widen`, `back_up`, `alter`, `erase`, `rename`, `revoke`, `maintain` and `away` are operations of other users on a
target. A test module either supplies the operation, or gives the reason in `impossible` why a target of this sink does
not permit it. In the second case the operation's story is skipped with that reason. If a module does neither, the story
fails. `raycdc.testing.sink_stories.SinkHooks` describes all hooks.
"""

from __future__ import annotations

from raycdc.testing.sink_concurrency_stories import ConcurrentWriterStories
from raycdc.testing.sink_epoch_stories import EpochStories


class SinkConformance(EpochStories, ConcurrentWriterStories):
    """The base class for the tests of a sink; see the module's docstring."""
