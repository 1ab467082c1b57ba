"""The mixing of hashes, compiled."""

from __future__ import annotations

import numpy as np

from raycdc.core.compiled import inlined

_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(33)


@inlined
def mixed(code: np.uint64) -> np.uint64:
    """Return `code` so mixed that every bit moves half of the others: the finalizer of MurmurHash3 (Appleby 2011)."""
    code = (code ^ (code >> _HALF)) * _MIX_1
    code = (code ^ (code >> _HALF)) * _MIX_2
    return code ^ (code >> _HALF)
