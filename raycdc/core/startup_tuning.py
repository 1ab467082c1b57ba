"""Makes processes start quickly: without pandas, and without garbage collection while they read a state.

pyarrow imports pandas, if it is installed, at the first conversion of a Python list. That costs a third of a second of
CPU, for nothing, in readers, the coordinator, runs with ``--local`` and inspection commands. The garbage collector goes
through all objects again and again while very many are made. That is half of the time in which the state of 100,000
tables is read, and a state has no cycles.
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
    """Make pyarrow work without pandas in this process; other code may still import pandas.

    Has no effect if pyarrow has already checked for pandas, because it checks once per process.
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

    In a coordinator it would otherwise take a seventh of the time (measured with 1,000 readers).
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
