"""Makes processes start quickly: without pandas, and without garbage collection while they read a state.

pyarrow imports pandas, if it is installed, at the first conversion of a Python list. In readers, the coordinator, runs
with ``--local`` and inspection commands, this costs a third of a second of CPU without any use. While very many objects
are made, the garbage collector goes through all of them again and again. This takes half of the time in which the state
of 100,000 tables is read, and finds nothing, because a state has no cycles.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Thresholds of the garbage collector: objects allocated minus freed, and numbers of younger collections (Python: 700,
#: 10, 10).
_SELDOM = (20_000, 20, 20)


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pyarrow does without pandas in this process", name=name)
        return None


def without_pandas() -> None:
    """Make pyarrow work without pandas in this process.

    Other code may still import pandas. The call has no effect if pyarrow has already checked for pandas, which it does
    once per process.
    """
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])  # pyarrow checks for pandas only if the list is not empty.
    finally:
        sys.meta_path.remove(finder)


def collect_seldom() -> None:
    """Run the garbage collector less often, in a process that makes and frees very many objects without cycles.

    Otherwise the collector would take a seventh of a coordinator's time (measured with 1,000 readers).
    """
    gc.set_threshold(*_SELDOM)


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable the garbage collector while the block runs, in all threads; blocks may be nested and concurrent."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
