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

#: After so many objects more than were dropped, and after so many looks at the younger ones (Python: 700, 10, 10).
_SELDOM = (20_000, 20, 20)


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pyarrow does without pandas in this process", name=name)
        return None


def without_pandas() -> None:
    """From here on pyarrow does without pandas in this process; whoever else wants it may import it.

    Without effect where pyarrow has looked for pandas already: it asks once per process and remembers the answer.
    """
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])  # An empty list is not looked at.
    finally:
        sys.meta_path.remove(finder)


def collect_seldom() -> None:
    """From here on cycles are looked for less often in this process, which makes and drops very many objects without
    any: a coordinator, whose messages are a seventh of its time otherwise (measured at 1,000 readers).
    """
    gc.set_threshold(*_SELDOM)


@contextmanager
def without_collection() -> Iterator[None]:
    """No cycles are looked for while the block runs, in any thread; several blocks may run at once."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
