"""Forms, each of which writes and reads values of one type, and the options of fields.

A form works directly, and also generates code; the code of the forms of all fields makes up the functions of a class. A
field's options say what its type hint cannot express.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import msgpack

#: A value that JSON can represent.
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

#: Stands for a value that was not given.
NONE_GIVEN: Any = object()


class CodecError(ValueError):
    """The error for a value that cannot be read.

    `path` leads to the value from the outermost object, as in ``segments[3].rows``.
    """

    def __init__(self, problem: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        where = "".join(self.path).removeprefix(".")
        return f"{where}: {self.problem}" if where else self.problem

    def within(self, step: str) -> CodecError:
        """Return the error with `step` before its path, for the object that contains the value."""
        return CodecError(self.problem, (step, *self.path))


class JsonText:
    """Base of values that are texts in documents: ``str`` writes them, and the class method ``parse`` reads them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FieldOptions:
    """The options of a field; `stored` explains them."""

    name: str = ""
    left_out: bool = False
    older: object = NONE_GIVEN
    before: str = ""
    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None
    nowhere: bool = False
    spread: bool = False
    packed: bool = False


OPTIONS_KEY = "raycdc.stored"


PLAIN = FieldOptions()


def stored(
    name: str = "",
    *,
    left_out: bool = False,
    older: object = NONE_GIVEN,
    before: str = "",
    write: Callable[[Any], Any] | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Mapping[str, FieldOptions]:
    """Return the metadata of a field with these options.

    `name` is its key, if that differs from the field's name.

    If `left_out` is True, a value that equals the default is not written. `older` is the value for documents that lack
    the key. Without `left_out` a value equal to `older` is still written; with `left_out` it is not written, instead of
    the default. `before` names a field in front of whose key this one is written. `write` and `read` replace the
    functions that the type hint gives.
    """
    return {OPTIONS_KEY: FieldOptions(name, left_out, older, before, write, read)}


#: Metadata of a field that is not written if its value is the default.
LEFT_OUT = stored(left_out=True)


#: Metadata of a field that is never written.
NOWHERE = {OPTIONS_KEY: FieldOptions(nowhere=True)}
#: Metadata of a field whose value is a dataclass, and whose keys are written as keys of the object itself.
SPREAD = {OPTIONS_KEY: FieldOptions(spread=True)}
#: Metadata of a mapping in which each value is packed as msgpack. With 100,000 tables, only one value at a time is then
#: in memory as lists and maps.
PACKED = {OPTIONS_KEY: FieldOptions(packed=True)}


#: The errors that are raised if a value does not have the form of its type.
FAULTS = (LookupError, TypeError, ValueError, AttributeError)


JSON_NAMES = {dict: "an object", list: "an array", tuple: "an array", str: "a string", int: "an integer"}
JSON_NAMES |= {float: "a number", bool: "a boolean", bytes: "bytes", types.NoneType: "null"}


_BUILTINS = {kind.__name__ for kind in (int, float, str, bool, bytes, dict, list, tuple)}


class CodeBuilder:
    """A builder of the source code of one function, with the objects that the code names."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"Mapping": Mapping, "CodecError": CodecError, "FAULTS": FAULTS}
        self._locals = 0

    def bound(self, value: object) -> str:
        """Return a name in the code for the object `value`."""
        if isinstance(value, type) and value.__name__ in _BUILTINS:
            return value.__name__
        for name, known in self.names.items():
            if known is value:
                return name
        name = f"_{len(self.names)}"
        self.names[name] = value
        return name

    def local(self) -> str:
        """Return an unused name of a local variable."""
        self._locals += 1
        return f"x{self._locals}"

    def function(self, head: str, body: Sequence[str], title: str) -> Callable[[Any], Any]:
        text = f"def {head}:\n" + "".join(f"    {line}\n" for line in body)
        exec(compile(text, f"<codec of {title}>", "exec"), self.names)  # noqa: S102  text of our own making
        function: Callable[[Any], Any] = self.names[head.partition("(")[0]]
        return function


class Form:
    """The written form of values of one type, with functions that write and read them.

    `kinds` are the JSON types of the written values.
    """

    kinds: tuple[type[Any], ...] = ()

    def write(self, value: Any) -> Any:
        raise NotImplementedError

    def read(self, data: Any) -> Any:
        """Return the value whose written form is `data`. Raises one of `FAULTS`, with the path to the invalid part."""
        raise NotImplementedError

    def writes(self, source: CodeBuilder, value: str) -> str:
        """Return the code that writes the value of the expression `value`."""
        return f"{source.bound(self.write)}({value})"

    def reads(self, source: CodeBuilder, data: str) -> str:
        return f"{source.bound(self.read)}({data})"


class ItselfForm(Form):
    """The form of a value that is written unchanged, whatever it is."""

    def write(self, value: Any) -> Any:
        return value

    def read(self, data: Any) -> Any:
        return data

    def writes(self, source: CodeBuilder, value: str) -> str:
        return value

    def reads(self, source: CodeBuilder, data: str) -> str:
        return data


class ScalarForm(ItselfForm):
    """The form of a number, text, boolean or bytes."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind
        self.kinds = (int, float) if kind is float else (kind,)
        self.name = JSON_NAMES[kind]

    def read(self, data: Any) -> Any:
        if not isinstance(data, self.kinds) or (isinstance(data, bool) and self.kind is not bool):
            raise unexpected(self.name, data)
        return data

    def reads(self, source: CodeBuilder, data: str) -> str:
        return f"({data} if type({data}) is {self.kind.__name__} else {source.bound(self.read)}({data}))"


class OwnForm(Form):
    """The form of a value that two given functions write and read."""

    def __init__(self, write: Callable[[Any], Any], read: Callable[[Any], Any]) -> None:
        # The function of a class may return any JSON type.
        self.write = write  # type: ignore[method-assign, assignment]
        self.read = read  # type: ignore[method-assign, assignment]
        self.kinds = (dict, list, str)


class PartlyOwnForm(Form):
    """The form of a value with a given function for writing or for reading. The other direction is that of `form`."""

    def __init__(self, form: Form, write: Callable[[Any], Any] | None, read: Callable[[Any], Any] | None) -> None:
        self.form = form
        self.by_hand = write, read
        self.kinds = form.kinds

    def write(self, value: Any) -> Any:
        return (self.by_hand[0] or self.form.write)(value)

    def read(self, data: Any) -> Any:
        return (self.by_hand[1] or self.form.read)(data)

    def writes(self, source: CodeBuilder, value: str) -> str:
        return super().writes(source, value) if self.by_hand[0] else self.form.writes(source, value)

    def reads(self, source: CodeBuilder, data: str) -> str:
        return super().reads(source, data) if self.by_hand[1] else self.form.reads(source, data)


class TextForm(Form):
    """The form of a value that is written as a text."""

    kinds = (str,)

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self.parse = parse

    def write(self, value: Any) -> Any:
        return str(value)

    def read(self, data: Any) -> Any:
        if not isinstance(data, str):
            raise unexpected("a string", data)
        return self.parse(data)

    def writes(self, source: CodeBuilder, value: str) -> str:
        return f"str({value})"

    def reads(self, source: CodeBuilder, data: str) -> str:
        return f"{source.bound(self.parse)}({data})"


class ChoiceForm(Form):
    """The form of the members of an `Enum`, or of the values of a `Literal`, by their written values."""

    def __init__(self, members: Mapping[Any, Any], what: str) -> None:
        self.members = members
        self.what = what
        self.kinds = tuple({type(value) for value in members})

    def write(self, value: Any) -> Any:
        return value.value if isinstance(value, Enum) else value

    def read(self, data: Any) -> Any:
        if data not in self.members:
            raise CodecError(f"{data!r} is not a valid {self.what}")
        return self.members[data]

    def writes(self, source: CodeBuilder, value: str) -> str:
        return f"{value}.value" if any(isinstance(one, Enum) for one in self.members.values()) else value

    def reads(self, source: CodeBuilder, data: str) -> str:
        return f"{source.bound(self.members)}[{data}]"


class OptionalForm(Form):
    """The form of a value that may be None."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.kinds = (types.NoneType, *form.kinds)

    def write(self, value: Any) -> Any:
        return None if value is None else self.form.write(value)

    def read(self, data: Any) -> Any:
        return None if data is None else self.form.read(data)

    def writes(self, source: CodeBuilder, value: str) -> str:
        code = self.form.writes(source, value)
        return value if code == value else f"(None if {value} is None else {code})"

    def reads(self, source: CodeBuilder, data: str) -> str:
        code = self.form.reads(source, data)
        return data if code == data else f"(None if {data} is None else {code})"


class ArrayForm(Form):
    """The form of an array of any length. `kind` is the Python type of the value that is read."""

    kinds = (list,)

    def __init__(self, form: Form, kind: type[Any]) -> None:
        self.form = form
        self.kind = kind

    def write(self, value: Any) -> Any:
        return [self.form.write(each) for each in self._ordered(value)]

    def read(self, data: Any) -> Any:
        return self.kind([read_at(f"[{index}]", self.form, each) for index, each in enumerate(items_of(data))])

    def writes(self, source: CodeBuilder, value: str) -> str:
        local = source.local()
        code = self.form.writes(source, local)
        array = f"[*{value}]" if code == local else f"[{code} for {local} in {value}]"
        return f"sorted({array})" if self.kind is frozenset else array

    def reads(self, source: CodeBuilder, data: str) -> str:
        if isinstance(self.form, ScalarForm) and self.form.kind is str:
            # Joining the items is the fastest test that all of them are texts.
            kind, slow = source.bound(self.kind), source.bound(self.read)
            return f"({kind}({data}) if type({data}) is list and ''.join({data}) is not None else {slow}({data}))"
        local = source.local()
        code = self.form.reads(source, local)
        items = f"({data} if type({data}) is list else {source.bound(items_of)}({data}))"
        if code == local:
            return f"{source.bound(self.kind)}({items})"
        array = f"[{code} for {local} in {items}]"
        return array if self.kind is list else f"{source.bound(self.kind)}({array})"

    def _ordered(self, value: Any) -> Any:
        return sorted(value) if self.kind is frozenset else value


class TupleForm(Form):
    """The form of a tuple with one value for each of the `forms`."""

    kinds = (list,)

    def __init__(self, forms: Sequence[Form]) -> None:
        self.forms = forms

    def write(self, value: Any) -> Any:
        return [form.write(each) for form, each in zip(self.forms, value, strict=True)]

    def read(self, data: Any) -> Any:
        items = items_of(data)
        if len(items) != len(self.forms):
            raise CodecError(f"expected {len(self.forms)} values, found {len(items)}")
        return tuple(
            read_at(f"[{i}]", form, each) for i, (form, each) in enumerate(zip(self.forms, items, strict=True))
        )

    def writes(self, source: CodeBuilder, value: str) -> str:
        return (
            f"[*{value}]" if all(isinstance(form, ItselfForm) for form in self.forms) else super().writes(source, value)
        )

    def pattern(self, source: CodeBuilder) -> tuple[str, str]:
        """Return the pattern that unpacks such an array, and the code that makes the tuple."""
        locals_ = [source.local() for _ in self.forms]
        values = "".join(f"{form.reads(source, local)}, " for form, local in zip(self.forms, locals_, strict=True))
        return f"[{', '.join(locals_)}]", f"({values})"


class MapForm(Form):
    """The form of a mapping with any keys."""

    kinds = (dict,)

    def __init__(self, key: Form, form: Form) -> None:
        self.key = key
        self.form = form

    def write(self, value: Any) -> Any:
        return {self.key.write(key): self.form.write(each) for key, each in value.items()}

    def read(self, data: Any) -> Any:
        entries = entries_of(data)
        return {
            read_at(f"[{key!r}]", self.key, key): read_at(f"[{key!r}]", self.form, each)
            for key, each in entries.items()
        }

    def writes(self, source: CodeBuilder, value: str) -> str:
        key, local = source.local(), source.local()
        key_code, code = self.key.writes(source, key), self.form.writes(source, local)
        if (key_code, code) == (key, local):
            return f"{{**{value}}}"
        return f"{{{key_code}: {code} for {key}, {local} in {value}.items()}}"

    def reads(self, source: CodeBuilder, data: str) -> str:
        key, local = source.local(), source.local()
        code, target = self.form.reads(source, local), local
        if isinstance(self.form, TupleForm):
            target, code = self.form.pattern(source)
        entries = f"({data} if type({data}) is dict else {source.bound(entries_of)}({data}))"
        if code == local and isinstance(self.key, ItselfForm):
            return entries
        # The keys of a JSON object are texts.
        key_code = key if isinstance(self.key, ItselfForm) else self.key.reads(source, key)
        return f"{{{key_code}: {code} for {key}, {target} in {entries}.items()}}"


class PackedForm(Form):
    """The form of a value that is packed as msgpack."""

    kinds = (bytes,)

    def __init__(self, form: Form) -> None:
        self.form = form

    def write(self, value: Any) -> Any:
        return msgpack.packb(self.form.write(value), use_bin_type=True)

    def read(self, data: Any) -> Any:
        try:
            value = msgpack.unpackb(data, raw=False, strict_map_key=False)
        except msgpack.exceptions.UnpackException as cause:
            raise CodecError(f"not msgpack: {cause}") from cause
        return self.form.read(value)


class KindForm(Form):
    """The form of a union whose members have different JSON types; `classes` are the Python types of the values."""

    def __init__(self, forms: Sequence[tuple[Any, Form]]) -> None:
        self.forms = {kind: form for _, form in forms for kind in form.kinds}
        self.classes = [(typing.get_origin(hint) or hint, form) for hint, form in forms]
        self.kinds = tuple(self.forms)

    def write(self, value: Any) -> Any:
        form = next((form for kind, form in self.classes if isinstance(value, kind)), None)
        if form is None:
            raise TypeError(f"{type(value).__name__} is no member of the union")
        return form.write(value)

    def read(self, data: Any) -> Any:
        kind = list if isinstance(data, tuple) else type(data)
        if kind not in self.forms:
            names = dict.fromkeys(JSON_NAMES[one] for one in self.forms)
            raise unexpected(" or ".join(names), data)
        return self.forms[kind].read(data)

    def writes(self, source: CodeBuilder, value: str) -> str:
        return self._first_inline(value, super().writes(source, value))

    def reads(self, source: CodeBuilder, data: str) -> str:
        return self._first_inline(data, super().reads(source, data))

    def _first_inline(self, value: str, otherwise: str) -> str:
        """Return code that tests for the first type of the union inline, if that is a scalar."""
        first = self.classes[0][1]
        if not isinstance(first, ScalarForm):
            return otherwise
        return f"({value} if type({value}) is {first.kind.__name__} else {otherwise})"


def fault_of(form: Form, data: Any) -> CodecError | None:
    """Return the error for `data`, which cannot be read; None if it can be read."""
    try:
        form.read(data)
    except CodecError as error:
        return error
    except FAULTS as error:
        return CodecError(f"{type(error).__name__}: {error}" if isinstance(error, LookupError) else str(error))
    return None


def unexpected(expected: str, data: Any) -> CodecError:
    """Return the error for `data`, whose type is not the `expected` one."""
    return CodecError(f"expected {expected}, found {JSON_NAMES.get(type(data), type(data).__name__)}")


def read_at(step: str, form: Form, data: Any) -> Any:
    """Return the value of `data`, which is at `step` of an array or object."""
    try:
        return form.read(data)
    except CodecError as error:
        raise error.within(step) from error
    except FAULTS as error:
        raise CodecError(str(error), (step,)) from error


def items_of(data: Any) -> Any:
    """Return `data` if it is an array. Raises `CodecError` otherwise."""
    if not isinstance(data, list | tuple):
        raise unexpected("an array", data)
    return data


def entries_of(data: Any) -> Any:
    """Return `data` if it is an object. Raises `CodecError` otherwise."""
    if not isinstance(data, Mapping):
        raise unexpected("an object", data)
    return data
