r"""Converts frozen dataclasses to values of JSON and msgpack and back, by their type hints.

Used for documents and messages. A `JsonObject` is written as an object with a key for each field. Any other dataclass,
and a `NamedTuple`, is written as the list of its fields' values, in their order. A field may have these types:

| type | as written |
|---|---|
| `int`, `float`, `str`, `bool`, `bytes`, `None` | the value itself; its type is checked when it is read |
| `X \| None` | null, or X |
| `tuple[X, ...]`, `Sequence[X]` | an array |
| `Mapping[K, X]` | an object |
| `frozenset[X]` | an array in ascending order |
| `tuple[X, Y]` | an array with as many values |
| an `Enum` | the value of the member |
| a `JsonText` | its text |
| a class with its own `to_json` and `from_json` | the result of its `to_json` |
| a `JsonObject` | an object |
| any other dataclass | a list |
| a union of classes | a list: the name of the class, then its object, or its fields' values |
| a union of types that are different in JSON, such as `str \| tuple[str, ...]` | the written form of the value's own \
type |
| `Any`, `Json` | the value itself |

`stored` gives a field options that a type hint cannot express: a key that differs from the field's name, a default that
is not written, or a value for older documents.

When a class is first used, it is compiled to one function that writes and one that reads. They are as fast as
handwritten code, because a manifest may have 100,000 tables. A value that cannot be read raises a `CodecError` with the
path to the value. A second, slower reading finds the path, so that the first one can be fast.
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
