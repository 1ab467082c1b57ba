"""Removes from an environment the packages that neither a package nor its given extras need: ``only_needed.py NAME
EXTRA…``.

The lock of a checkout also has development tools. The remaining packages have the versions and hashes of the lock.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution, distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(name: str, extras: frozenset[str]) -> set[str]:
    """Return the packages that `name` with its `extras` needs on this machine, including `name`."""
    found: dict[str, frozenset[str]] = {}
    waiting = [(canonicalize_name(name), extras)]
    while waiting:
        name, wanted = waiting.pop()
        if name in found and wanted <= found[name]:
            continue
        found[name] = found.get(name, frozenset()) | wanted
        for text in distribution(name).requires or ():
            each = Requirement(text)
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in found[name] | {""}):
                waiting.append((canonicalize_name(each.name), frozenset(each.extras)))
    return set(found)


def main(words: list[str]) -> int:
    """Remove all other packages, pip last; return its exit code."""
    kept = needed(words[0], frozenset(words[1:]))
    others = {canonicalize_name(each.name) for each in distributions()} - kept - {"pip"}
    sys.stdout.write(f"kept {len(kept)} packages, removing {len(others)}\n")
    command = [sys.executable, "-m", "pip", "uninstall", "-q", "-y"]
    return subprocess.run([*command, *sorted(others), "pip"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
