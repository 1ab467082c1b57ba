"""Processes that must be up quickly do without pandas, and without looking for garbage while they read a state.

pyarrow imports pandas, when it is installed, at the first conversion of a Python list: a third of a second of CPU that
readers, the coordinator, runs with ``--local`` and inspection commands would spend for nothing. Python looks through
all objects there are for cycles again and again while very many are made: that is half of the time in which the state
of 100,000 tables is read, and a state has no cycles.
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

    No effect if pyarrow has checked for pandas already: it checks once per process.
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

    In a coordinator it would take a seventh of the time otherwise (measured at 1,000 readers).
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
