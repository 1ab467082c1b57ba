"""An immutable mapping, whose changed versions share the unchanged parts with it: a persistent map of two levels.

A status of 100,000 tables is replaced twice a second, and users of a status may keep old ones.
`PersistentMap.with_changes` copies the references to its buckets and each bucket that has a changed key, so a change of
a few keys takes microseconds for any number of keys. The order of iteration is undefined.
"""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterator, Mapping, ValuesView
from typing import TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

#: About the square root of 100,000. With this size, copying the references to all buckets costs as much as copying one
#: bucket.
BUCKETS = 256


class PersistentMap(Mapping[KeyT, ValueT]):
    """An immutable mapping; see the module's docstring for its cost. Any thread may read it."""

    __slots__ = ("_buckets", "_length")

    def __init__(self, entries: Mapping[KeyT, ValueT] | None = None) -> None:
        empty: dict[KeyT, ValueT] = {}
        self._buckets: list[dict[KeyT, ValueT]] = [empty] * BUCKETS
        self._length = 0
        if entries:
            self._take(entries, ())

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self.items())!r})"

    def __getitem__(self, key: KeyT) -> ValueT:
        return self._buckets[hash(key) % BUCKETS][key]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[KeyT]:
        for bucket in self._buckets:
            yield from bucket

    def items(self) -> ItemsView[KeyT, ValueT]:
        return _Items(self)

    def values(self) -> ValuesView[ValueT]:
        return _Values(self)

    def with_changes(
        self, changed: Mapping[KeyT, ValueT], dropped: Collection[KeyT] = ()
    ) -> PersistentMap[KeyT, ValueT]:
        """Return this map with the `changed` entries, and without the `dropped` keys that it has."""
        if not changed and not dropped:
            return self
        new: PersistentMap[KeyT, ValueT] = PersistentMap()
        new._buckets, new._length = list(self._buckets), self._length
        new._take(changed, dropped)
        return new

    def _take(self, changed: Mapping[KeyT, ValueT], dropped: Collection[KeyT]) -> None:
        """Change this map, which is not shared yet. Each bucket is copied before its first change."""
        own: set[int] = set()

        def bucket_of(key: KeyT) -> dict[KeyT, ValueT]:
            number = hash(key) % BUCKETS
            if number not in own:
                own.add(number)
                self._buckets[number] = dict(self._buckets[number])
            return self._buckets[number]

        for key, value in changed.items():
            bucket = bucket_of(key)
            self._length += key not in bucket
            bucket[key] = value
        for key in dropped:
            if key in (bucket := bucket_of(key)):
                self._length -= 1
                del bucket[key]


class _Items(ItemsView[KeyT, ValueT]):
    """Items view whose iteration does not look up each key."""

    def __init__(self, owner: PersistentMap[KeyT, ValueT]) -> None:
        super().__init__(owner)
        self._owner = owner

    def __iter__(self) -> Iterator[tuple[KeyT, ValueT]]:
        for bucket in self._owner._buckets:
            yield from bucket.items()


class _Values(ValuesView[ValueT]):
    """Values view whose iteration does not look up each key."""

    def __init__(self, owner: PersistentMap[KeyT, ValueT]) -> None:
        super().__init__(owner)
        self._owner = owner

    def __iter__(self) -> Iterator[ValueT]:
        for bucket in self._owner._buckets:
            yield from bucket.values()
