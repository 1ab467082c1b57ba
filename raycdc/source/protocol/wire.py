r"""Converts frozen dataclasses to msgpack values and back, by their type hints alone.

A dataclass is the list of its fields' values, in their order; a member of a union of dataclasses is preceded by its
class's name. A field may have these types:

| type | on the wire |
|---|---|
| `int`, `float`, `str`, `bool`, `bytes`, `None` | itself, checked when it is read |
| `X \| None`, `tuple[X, ...]`, `Mapping[K, X]`, an `Enum` | nil or X, an array, a map, the member's value |
| a class with `to_json` and `from_json` | their JSON; in a map, each value separately packed as msgpack bytes |
| `TableId` | its name |
| a frozen dataclass, a union of them | a list; with its name first |
| `Any`, `Mapping[str, Any]` | itself: JSON that only its connector knows |

A value of another type raises a `ProtocolError` that names the class and the field. The form of a class is computed
once, at first use. A coordinator handles a dozen messages per chunk and spends most of its time here, so plain values
are checked by their type only; if a check fails, a second pass goes field by field to name the error.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

import msgpack

from raycdc.errors import ProtocolError
from raycdc.model import TableId

_PLAIN = (int, float, str, bool, bytes)


@dataclass(frozen=True, slots=True)
class _Form:
    """The functions that write and read values of one type; `read` raises `ProtocolError` without naming the place."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Fields:
    """The form of a class: `values_of` gets a member's values.

    Those that are not `plain` are written by their forms.
    """

    forms: tuple[tuple[str, _Form], ...]
    values_of: Callable[[Any], tuple[Any, ...]]
    #: The class that a value has, by its index, where it is itself on the wire.
    plain: tuple[tuple[int, type[Any]], ...]
    others: tuple[tuple[int, _Form], ...]
    #: True if the class converts itself by `to_json` and `from_json`.
    is_json: bool


#: The form of each class that was used.
_KNOWN: dict[type[Any], _Fields] = {}

#: Errors that a wrong value raises in any form.
_DECODE_ERRORS = (ProtocolError, KeyError, TypeError, ValueError, AttributeError)


def write(value: Any) -> list[Any]:
    """The fields of a dataclass as a msgpack-able list."""
    fields = _fields_of(type(value))
    values = [*fields.values_of(value)]
    for index, form in fields.others:
        values[index] = form.write(values[index])
    return values


def read(cls: type[Any], values: Sequence[Any]) -> Any:
    """Inverse of `write`. Raises `ProtocolError` naming the class and what of it is wrong."""
    fields = _fields_of(cls)
    if len(fields.forms) != len(values):
        raise ProtocolError(f"{cls.__name__} has {len(values)} fields instead of {len(fields.forms)}")
    found = [*values]
    try:
        for index, kind in fields.plain:
            if type(found[index]) is not kind:
                found[index] = fields.forms[index][1].read(found[index])
        for index, form in fields.others:
            found[index] = form.read(found[index])
    except _DECODE_ERRORS:
        for (name, form), value in zip(fields.forms, values, strict=True):
            try:
                form.read(value)
            except _DECODE_ERRORS as cause:
                raise ProtocolError(f"{cls.__name__}.{name}: {cause}") from cause
        raise
    return cls(*found)


def write_named(value: Any) -> list[Any]:
    """A member of a union: its class's name, and its fields, or its JSON where the class says itself what that is."""
    cls = type(value)
    return [cls.__name__, value.to_json()] if _fields_of(cls).is_json else [cls.__name__, *write(value)]


def read_named(members: Mapping[str, type[Any]], data: Any, *, what: str) -> Any:
    """Inverse of `write_named`; a name that `members` does not have is a `ProtocolError`."""
    if not isinstance(data, list | tuple) or not data or not isinstance(data[0], str):
        raise ProtocolError(f"A {what} must be [type, fields...], and is a {type(data).__name__}")
    cls = members.get(data[0])
    if cls is None:
        raise ProtocolError(f"Unknown {what} {data[0]!r}")
    if len(data) == 2 and _fields_of(cls).is_json:
        return cls.from_json(data[1])
    return read(cls, data[1:])


def _fields_of(cls: Any) -> _Fields:
    known = _KNOWN.get(cls)
    if known is None:
        known = _KNOWN[cls] = _found_fields(cls)
    return known


def _found_fields(cls: Any) -> _Fields:
    hints: dict[str, Any] = {} if hasattr(cls, "from_json") else typing.get_type_hints(cls)
    names = [name for name in (field.name for field in dataclasses.fields(cls)) if name in hints]
    kinds = {index: hints[name] for index, name in enumerate(names) if hints[name] in _PLAIN}
    forms = tuple((name, _form(hints[name])) for name in names)
    return _Fields(
        forms,
        _values(names),
        tuple(kinds.items()),
        tuple((index, form) for index, (_, form) in enumerate(forms) if index not in kinds),
        is_json=hasattr(cls, "from_json"),
    )


def _values(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a getter of these attributes as a tuple; `attrgetter` returns no tuple for a single name."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _form(hint: Any) -> _Form:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return _Form(_same, _same)
    if hint in _PLAIN:
        return _Form(_same, _checked(hint))
    if hint is TableId:
        return _Form(str, lambda data: TableId.parse(_checked(str)(data)))
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if origin is tuple:
        return _array(_form(arguments[0]))
    if origin in (Mapping, dict):
        form = _form(arguments[1])
        return _map(_form(arguments[0]), _packed(form) if hasattr(arguments[1], "from_json") else form)
    if not isinstance(hint, type):
        raise TypeError(f"No form on the wire for {hint!r}")
    if issubclass(hint, Enum):
        return _Form(lambda value: value.value, hint)
    if hasattr(hint, "from_json"):
        return _Form(lambda value: value.to_json(), hint.from_json)
    if dataclasses.is_dataclass(hint):
        return _Form(write, lambda data: read(hint, data))
    base: Any = hint  # of which each member is known by its name
    return _Form(write_named, lambda data: read_named(base.members(), data, what=base.__name__))


def _union(arguments: tuple[Any, ...]) -> _Form:
    rest = [argument for argument in arguments if argument is not types.NoneType]
    if len(rest) < len(arguments):
        form = _form(rest[0]) if len(rest) == 1 else _union(tuple(rest))
        return _Form(
            lambda value: None if value is None else form.write(value),
            lambda data: None if data is None else form.read(data),
        )
    members = {member.__name__: member for member in rest}
    return _Form(write_named, lambda data: read_named(members, data, what="value"))


def _array(form: _Form) -> _Form:
    def read_all(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list | tuple):
            raise ProtocolError(f"not an array: {type(data).__name__}")
        return tuple(form.read(value) for value in data)

    return _Form(lambda values: [form.write(value) for value in values], read_all)


def _map(key: _Form, form: _Form) -> _Form:
    def read_all(data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise ProtocolError(f"not a map: {type(data).__name__}")
        return {key.read(name): form.read(value) for name, value in data.items()}

    return _Form(lambda values: {key.write(name): form.write(value) for name, value in values.items()}, read_all)


def _packed(form: _Form) -> _Form:
    """Return the form of a value packed as bytes, so that of 100,000 tables in a map only one is unpacked at a time."""

    def read_packed(data: Any) -> Any:
        try:
            value = msgpack.unpackb(data, raw=False, strict_map_key=False)
        except msgpack.exceptions.UnpackException as cause:
            raise ProtocolError(f"not msgpack: {cause}") from cause
        return form.read(value)

    return _Form(lambda value: msgpack.packb(form.write(value), use_bin_type=True), read_packed)


def _checked(kind: type[Any]) -> Callable[[Any], Any]:
    allowed = (int, float) if kind is float else kind

    def check(value: Any) -> Any:
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            raise ProtocolError(f"{type(value).__name__} is no {kind.__name__}")
        return value

    return check


def _same(value: Any) -> Any:
    return value
