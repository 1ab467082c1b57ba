r"""Converts frozen dataclasses to values of JSON and msgpack and back, by their type hints: documents of a state, and
messages.

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

`stored` gives the options that a type hint cannot: another name, leaving out a default, or the value in older
documents.

When a class is first used, it is compiled to one function that writes and one that reads. They are as fast as
handwritten code, because a manifest may have 100,000 tables. A value that cannot be read raises a `CodecError` with the
path to the value. The path is found by a second, slower reading, so the usual reading does not pay for it.
"""

from __future__ import annotations

from raycdc.core.typed_codec.classes import JsonObject, NamedUnion, read, reader, stored_names, write
from raycdc.core.typed_codec.forms import LEFT_OUT, NOWHERE, PACKED, SPREAD, CodecError, Json, JsonText, stored

__all__ = [
    "LEFT_OUT",
    "NOWHERE",
    "PACKED",
    "SPREAD",
    "CodecError",
    "Json",
    "JsonObject",
    "JsonText",
    "NamedUnion",
    "read",
    "reader",
    "stored",
    "stored_names",
    "write",
]
