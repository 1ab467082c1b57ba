"""The laws of every source of tables, played with the real enumerator, readers and coordinator.

A test module of a connector of your own has::

    class TestMySource(SourceConformance):
        def new_source(self, folder, context): return MySource(MySourceConfig(...), context)
        def change(self, folder, step): ...
        def rows(self, folder, table): ...

and pytest plays each ``test_…`` below in a folder of its own. The source must have at least two tables with rows and a
primary key, and each step of `change` must insert, update and delete rows of all of them. A source whose rows are only
appended says ``kinds = frozenset({RowKind.INSERT})``: then `change` inserts, and the log must tell of nothing else.

`raycdc.testing.source_hooks` is the page of all that a test may supply.
"""

from __future__ import annotations

from raycdc.testing.source_chunk_stories import ChunkStories
from raycdc.testing.source_log_stories import LogStories
from raycdc.testing.source_run_stories import RunStories


class SourceConformance(RunStories, LogStories, ChunkStories):
    """See the module's docstring."""
