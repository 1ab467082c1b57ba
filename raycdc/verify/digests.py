"""The hashes of one side's rows: their sums by ranges of key hashes, and the single hashes for ranges that differ.

Used by `raycdc.verify.table`, one instance per side, each filled by one thread. Hashes take 16 bytes a row. If they
need more than `MEMORY_BYTES_MAX`, they are written to files in a temporary folder, divided by key hash so that each
file fits in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from raycdc.verify import hash_loops as loops

#: The maximum memory of each side; beyond it, files are used.
MEMORY_BYTES_MAX = 512 << 20
#: The number of ranges of key hashes, as a power of two.
_RANGE_BITS = 12
_SHIFT = 64 - _RANGE_BITS
#: The number of files of one side, as a power of two: with a thousand million rows each file has 250 MB.
_PART_BITS = 6
_ROW_BYTES = 16


@dataclass(frozen=True, slots=True)
class Checksum:
    """The number of rows, and the sum of their hashes mod 2^128, in two halves.

    Does not depend on the order of rows.
    """

    rows: int
    first: int
    second: int

    def __str__(self) -> str:
        return f"{self.first:016x}{self.second:016x}"


@dataclass(frozen=True, slots=True)
class Differing:
    """The hashes (uint64) of the keys that differ, by the kind of difference."""

    missing: np.ndarray
    extra: np.ndarray
    changed: np.ndarray

    @property
    def count(self) -> int:
        return len(self.missing) + len(self.extra) + len(self.changed)

    def without(self, keys: np.ndarray) -> Differing:
        """Return the differing keys except `keys`."""
        kept = (part[~np.isin(part, keys)] for part in (self.missing, self.extra, self.changed))
        return Differing(*kept)

    def keys(self) -> np.ndarray:
        """Return the hashes of all differing keys."""
        return np.concatenate([self.missing, self.extra, self.changed])


@dataclass(slots=True)
class Digests:
    """The hashes of one side; see the module's docstring. A context manager that deletes the files at its end."""

    memory_bytes_max: int = MEMORY_BYTES_MAX
    _counts: np.ndarray = field(default_factory=lambda: np.zeros(1 << _RANGE_BITS, np.uint64))
    _first: np.ndarray = field(default_factory=lambda: np.zeros(1 << _RANGE_BITS, np.uint64))
    _second: np.ndarray = field(default_factory=lambda: np.zeros(1 << _RANGE_BITS, np.uint64))
    _kept: list[np.ndarray] = field(default_factory=list)
    _kept_bytes: int = 0
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def add(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Add rows by the hashes of their keys and of themselves.

        Both are uint64 arrays, contiguous, and not changed afterwards.
        """
        loops.sums(keys, rows, self._counts, self._first, self._second, _SHIFT)
        self._kept.append(np.stack([keys, rows]))
        self._kept_bytes += _ROW_BYTES * len(keys)
        if self._kept_bytes > self.memory_bytes_max:
            self._spill()

    @property
    def checksum(self) -> Checksum:
        """Return the checksum of all rows."""
        sums = (int(part.sum(dtype=np.uint64)) for part in (self._counts, self._first, self._second))
        return Checksum(*sums)

    def keys(self) -> np.ndarray:
        """Return the hashes of all keys, ascending: 8 bytes of memory a row."""
        everything = np.ones(1 << _RANGE_BITS, np.bool_)
        return np.concatenate([part[0] for part in self._parts(everything)])

    def differing(self, target: Digests) -> Differing:
        """Return how the target's rows differ from these, which are the source's."""
        unequal = (self._counts != target._counts) | (self._first != target._first) | (self._second != target._second)
        found = [
            _compared(ours, theirs) for ours, theirs in zip(self._parts(unequal), target._parts(unequal), strict=True)
        ]
        keys = np.concatenate([keys for keys, _ in found])
        kinds = np.concatenate([kinds for _, kinds in found])
        return Differing(*(keys[kinds == kind] for kind in (loops.MISSING, loops.EXTRA, loops.CHANGED)))

    def _parts(self, ranges: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the hashes in the given ranges, in parts; each part has a contiguous range of key hashes."""
        if self._folder is not None:
            self._spill()
        for part in range(1 << _PART_BITS):
            if self._folder is not None:
                path = self._part(part)
                data = np.fromfile(path, np.uint64).reshape(-1, 2).T if path.exists() else np.zeros((2, 0), np.uint64)
                yield _sorted(_within(data, ranges))
            elif part == 0:
                yield from self._in_memory(ranges)

    def _in_memory(self, ranges: np.ndarray) -> Iterator[np.ndarray]:
        chosen = [_within(data, ranges) for data in self._kept]
        everything = _sorted(np.concatenate([np.zeros((2, 0), np.uint64), *chosen], axis=1))
        bounds = np.arange(1, 1 << _PART_BITS, dtype=np.uint64) << np.uint64(64 - _PART_BITS)
        yield from np.split(everything, np.searchsorted(everything[0], bounds), axis=1)

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="raycdc-verify-")
        for data in self._kept:
            parts = data[0] >> np.uint64(64 - _PART_BITS)
            for part in np.unique(parts):
                with self._part(int(part)).open("ab") as file:
                    np.ascontiguousarray(data[:, parts == part].T).tofile(file)
        self._kept, self._kept_bytes = [], 0

    def _part(self, number: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"{number:02d}"


def _within(data: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    chosen: np.ndarray = data[:, ranges[(data[0] >> np.uint64(_SHIFT)).astype(np.int64)]]
    return chosen


def _sorted(data: np.ndarray) -> np.ndarray:
    """Return both arrays, sorted by key hash."""
    ordered: np.ndarray = data[:, np.argsort(data[0])]
    return ordered


def _compared(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs = np.ascontiguousarray(source), np.ascontiguousarray(target)
    room = ours.shape[1] + theirs.shape[1]
    keys, kinds = np.empty(room, np.uint64), np.empty(room, np.uint8)
    count = loops.compare(ours[0], ours[1], theirs[0], theirs[1], keys, kinds)
    return keys[:count], kinds[:count]
