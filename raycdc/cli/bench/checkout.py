"""``raycdc bench NAME``: the benchmarks of a source checkout, each with its own servers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import raycdc
from raycdc.errors import ConfigError


def run(words: Sequence[str]) -> int:
    """Run ``python -m bench`` with the arguments `words`; return its exit code.

    Raises `ConfigError` if this installation has no benchmarks.
    """
    root = Path(raycdc.__file__).parent.parent
    if not (root / "bench" / "__main__.py").exists():
        raise ConfigError(
            "raycdc bench: the benchmarks are not part of the installed package. Run it in a checkout of raycdc's "
            "source, after make setup."
        )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])}
    return subprocess.run([sys.executable, "-m", "bench", *words], env=environment, check=False).returncode
