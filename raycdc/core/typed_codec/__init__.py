r"""Frozen dataclasses ⇄ values of JSON and msgpack, by their type hints alone: documents of a state, and messages.

A `JsonObject` is an object with a key for each field. Any other dataclass, or `NamedTuple`, is the list of its fields'
values, in their order. A field may have these types:

| type | as written |
|---|---|
| `int`, `float`, `str`, `bool`, `bytes`, `None` | itself; its type is checked when it is read |
| `X \| None`, `tuple[X, ...]`, `Sequence[X]`, `Mapping[K, X]` | null or X, two arrays, an object |
| `frozenset[X]` | an array in ascending order |
| `tuple[X, Y]` | an array of that length |
| an `Enum`, a `JsonText` | the member's value, the text |
| a class with its own `to_json` and `from_json` | the result of these |
| a `JsonObject`, another dataclass | an object, a list |
| a union of classes | a list: the name of the class, then its object, or its fields' values |
| a union of types that JSON tells apart, such as `str \| tuple[str, ...]` | the one that it is |
| `Any`, `Json` | itself |

`stored` says what a hint cannot: another name, that a default is left out, or the value in older documents.

A class is compiled once, when it is first met, to a function that writes and one that reads: the code is what a person
would write by hand, because a manifest may have 100,000 tables. A value that cannot be read is a `CodecError` with the
path to it; the path is found by a second reading, so that the first one does not pay for it.
"""

from __future__ import annotations

from raycdc.core.typed_codec.classes import JsonObject, NamedUnion, read, reader, stored_names, write
from raycdc.core.typed_codec.fields import LEFT_OUT, NOWHERE, PACKED, SPREAD, CodecError, JsonText, stored

__all__ = [
    "LEFT_OUT",
    "NOWHERE",
    "PACKED",
    "SPREAD",
    "CodecError",
    "JsonObject",
    "JsonText",
    "NamedUnion",
    "read",
    "reader",
    "stored",
    "stored_names",
    "write",
]
