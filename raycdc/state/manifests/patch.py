"""The difference of two JSON objects, for manifests whose state is mostly unchanged.

Invariant: ``Patch.between(before, after).onto(before)`` is equal to `after` in every digit. Only the order of keys may
differ, on which neither a state's meaning nor its checksum depends (`checkpoint.codec`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgpack

from raycdc.core.typed_codec import LEFT_OUT, JsonObject, stored
from raycdc.model.json_value import Json


@dataclass(frozen=True, slots=True)
class Patch(JsonObject):
    """The difference of two objects: keys that are `put` (new or replaced), `removed` keys, and `inside`, the patches
    of objects that differ in some keys.

    No key is in two of these. In a manifest or a message, each is left out if it is empty.
    """

    put: Mapping[str, Json] = field(default_factory=dict, metadata=LEFT_OUT)
    gone: tuple[str, ...] = field(default=(), metadata=stored("gone", left_out=True))
    inside: Mapping[str, Patch] = field(default_factory=dict, metadata=LEFT_OUT)

    def __bool__(self) -> bool:
        """Return True if there is any difference."""
        return bool(self.put or self.gone or self.inside)

    @property
    def entries(self) -> int:
        """Return the number of changed keys on all levels."""
        return len(self.put) + len(self.gone) + sum(patch.entries for patch in self.inside.values())

    @property
    def is_written(self) -> bool:
        """Return True if JSON keeps all keys of this level. JSON turns keys of other types into texts."""
        return all(isinstance(key, str) for key in (*self.put, *self.gone, *self.inside))

    @classmethod
    def between(cls, before: Mapping[str, Json], after: Mapping[str, Json], *, depth: int) -> Patch:
        """Return the difference. Objects are compared down to `depth` levels; below that they are replaced as a whole.

        Identical objects cost almost nothing.
        """
        put: dict[str, Json] = {}
        inside: dict[str, Patch] = {}
        for key, value in after.items():
            known = before.get(key, _NOTHING)
            if known is value:
                continue
            if depth and isinstance(value, Mapping) and isinstance(known, Mapping):
                patch = cls.between(known, value, depth=depth - 1)
                if not patch.is_written:
                    put[key] = value
                elif patch:
                    inside[key] = patch
            elif not _same(known, value):
                put[key] = value
        return cls(put, tuple(key for key in before if key not in after), inside)

    def onto(self, before: Mapping[str, Json]) -> dict[str, Json]:
        """Return the object that results from `before`, which is not changed.

        Raises `KeyError` or `TypeError` if the patch belongs to another object.
        """
        after = dict(before)
        for key in self.gone:
            del after[key]
        for key, patch in self.inside.items():
            inner = after[key]
            if not isinstance(inner, Mapping):
                raise TypeError(f"{key} is no object")
            after[key] = patch.onto(inner)
        after.update(self.put)
        return after


#: The value of a missing key, which differs from every value.
_NOTHING = object()


def _same(one: object, other: object) -> bool:
    """Return True if both are written identically. Python treats ``True``, ``1`` and ``1.0`` as equal."""
    if one is _NOTHING or one != other:
        return False
    same: bool = msgpack.packb(one) == msgpack.packb(other)
    return same
