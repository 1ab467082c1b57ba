"""Keeps inspection commands light: the first output comes within a second."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas(MetaPathFinder):
    """pyarrow imports pandas when it is there, a third of a second for nothing: no inspection uses it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of inspection commands", name=name)
        return None


def without_pandas() -> None:
    """From here on this process has no pandas, unless it was imported before."""
    sys.meta_path.insert(0, _NoPandas())
