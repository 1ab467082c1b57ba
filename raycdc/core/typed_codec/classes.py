"""Compiles each dataclass to two functions, which write and read its values, from the forms of its fields."""

from __future__ import annotations

import dataclasses
import threading
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from typing import Any, ClassVar, Literal, NewType, Self, TypeAlias, TypeVar

from raycdc.core.typed_codec.forms import (
    JSON_NAMES,
    NONE_GIVEN,
    OPTIONS_KEY,
    PLAIN,
    ArrayForm,
    ChoiceForm,
    CodeBuilder,
    CodecError,
    FieldOptions,
    Form,
    ItselfForm,
    JsonText,
    KindForm,
    MapForm,
    OptionalForm,
    OwnForm,
    PackedForm,
    PartlyOwnForm,
    ScalarForm,
    TextForm,
    TupleForm,
    fault_of,
    unexpected,
)

_T = TypeVar("_T")
#: The type hint of a field: a class, a union, or a type with arguments.
_Hint: TypeAlias = Any


class JsonObject:
    """Base of frozen dataclasses that are written as objects.

    See the docstring of `raycdc.core.typed_codec`.

    Class attributes named in `written_first` are written before the fields, and not read. They are a version, which
    `raycdc.state.codec` checks, or the kind of the object. Unknown keys are ignored, unless the class
    `refuses_unknown_keys`. At most `interned_max` values of a class are cached, so that equal values share one object.
    """

    __slots__ = ()
    written_first: ClassVar[tuple[str, ...]] = ()
    refuses_unknown_keys: ClassVar[bool] = False
    interned_max: ClassVar[int] = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:]):
            raise TypeError(f"{cls.__name__} extends a document, whose functions write and read its own fields alone")

    def to_json(self) -> dict[str, Any]:
        """Return the object as a dictionary that JSON and msgpack can write."""
        return _codec_of(type(self)).write(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Return the inverse of `to_json`. Raises `CodecError`."""
        return _codec_of(cls).read(data)  # type: ignore[no-any-return]


def write(value: Any) -> Any:
    """Return the written form of the dataclass `value` according to its type hints, even if its class has its own
    ``to_json``.
    """
    return _codec_of(type(value)).write(value)


def read(cls: Any, data: Any) -> Any:
    """Return the inverse of `write`. Raises `CodecError`."""
    return _codec_of(cls).read(data)


def reader(cls: type[_T]) -> Callable[[Any], _T]:
    """Return the function that reads values of `cls`, for callers that read many."""
    return _codec_of(cls).read


def stored_names(cls: type[JsonObject]) -> list[str]:
    """Return the keys of an object in their order, including those that may be left out."""
    names = [*cls.written_first]
    for part in _in_order(_parts(cls)):
        names += [name for name, _ in part.spread] if part.spread else [part.key]
    return names


@dataclass(frozen=True, slots=True)
class _Codec:
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Part:
    """A field with its key and form.

    If the field's value is written as keys of the enclosing object, `spread` has these keys.
    """

    name: str
    key: str
    form: Form
    options: FieldOptions
    default: Callable[[], Any] | None
    spread: tuple[tuple[str, Form], ...] = ()
    spread_class: type[Any] | None = None
    #: True if the default is a fixed value, and not one that a factory makes each time.
    is_constant: bool = False

    @property
    def may_be_missing(self) -> bool:
        return self.default is not None and (self.options.left_out or self.options.older is not NONE_GIVEN)


_CODECS: dict[type[Any], _Codec] = {}
#: Classes whose compilation is in progress, each with the names in generated code that will refer to its functions.
_COMPILING: dict[type[Any], list[tuple[CodeBuilder, str, str]]] = {}
#: The handwritten functions of each class, recorded before compilation replaces them.
_BY_HAND: dict[type[JsonObject], tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None]] = {}
#: Held while classes are compiled, because a class may be first used by several threads.
_LOCK = threading.RLock()


def _codec_of(cls: type[Any]) -> _Codec:
    return _CODECS.get(cls) or _compiled(cls)


def _compiled(cls: type[Any]) -> _Codec:
    with _LOCK:
        if cls not in _CODECS:
            waiting = _COMPILING.setdefault(cls, [])
            try:
                codec = _object_codec(cls) if issubclass(cls, JsonObject) else _row_codec(cls)
            finally:
                del _COMPILING[cls]
            for source, name, act in waiting:
                source.names[name] = getattr(codec, act)
            _CODECS[cls] = codec
            if issubclass(cls, JsonObject):
                _install(cls, codec)
        return _CODECS[cls]


def _by_hand(cls: type[JsonObject]) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None]:
    """Return the handwritten functions of a class that write and read its objects; None for a function that it
    lacks.
    """
    if cls not in _BY_HAND:
        inherited, own = vars(JsonObject)["from_json"], cls.from_json
        is_own = getattr(own, "__func__", None) is not inherited.__func__
        _BY_HAND[cls] = None if cls.to_json is JsonObject.to_json else cls.to_json, own if is_own else None
    return _BY_HAND[cls]


def _install(cls: type[JsonObject], codec: _Codec) -> None:
    """Make the compiled functions the class's own methods, so that later calls need no lookup."""
    own_write, own_read = _by_hand(cls)
    if own_write is None:
        setattr(cls, "to_json", codec.write)  # noqa: B010  mypy takes no function for a method
    if own_read is None:
        setattr(cls, "from_json", staticmethod(codec.read))  # noqa: B010


def _object_codec(cls: type[Any]) -> _Codec:
    parts = _parts(cls)
    return _Codec(_object_writer(cls, parts), _object_reader(cls, parts))


def _object_writer(cls: type[Any], parts: Sequence[_Part]) -> Callable[[Any], Any]:
    source = CodeBuilder()
    parts = _in_order(parts)
    head = [f"{name!r}: value.{name}" for name in cls.written_first]
    first = next((index for index, part in enumerate(parts) if part.options.left_out), len(parts))
    entries = [f"{key!r}: {code}" for part in parts[:first] for key, code in _written(source, part)]
    whole = f"{{{', '.join(head + entries)}}}"
    if first == len(parts):
        return source.function("write(value)", [f"return {whole}"], cls.__qualname__)
    body = [f"out = {whole}"]
    for part in parts[first:]:
        indent = ""
        if part.options.left_out:
            body.append(f"if {_differs(source, part)}:")
            indent = "    "
        body += [f"{indent}out[{key!r}] = {code}" for key, code in _written(source, part)]
    return source.function("write(value)", [*body, "return out"], cls.__qualname__)


def _in_order(parts: Sequence[_Part]) -> list[_Part]:
    """Return the parts in the order in which their keys are written."""
    ordered = [part for part in parts if not part.options.before]
    for part in parts:
        if part.options.before:
            ordered.insert([other.name for other in ordered].index(part.options.before), part)
    return ordered


def _written(source: CodeBuilder, part: _Part) -> Iterator[tuple[str, str]]:
    """Yield the keys of a part, each with the code of its value."""
    for name, form in part.spread:
        yield name, form.writes(source, f"value.{part.name}.{name}")
    if not part.spread:
        form = part.form
        if part.options.left_out and isinstance(form, OptionalForm) and part.default is not None and not part.default():
            form = form.form  # None is the default, so it is left out.
        yield part.key, form.writes(source, f"value.{part.name}")


def _differs(source: CodeBuilder, part: _Part) -> str:
    """Return code that is true if the part has another value than its default."""
    assert part.default is not None, f"{part.name} is left out, and has no default"
    default = part.default()
    if default is None:
        return f"value.{part.name} is not None"
    return f"value.{part.name}" if not default else f"value.{part.name} != {source.bound(default)}"


def _object_reader(cls: type[Any], parts: Sequence[_Part]) -> Callable[[Any], Any]:
    source = CodeBuilder()
    make = lru_cache(maxsize=cls.interned_max)(cls) if cls.interned_max else cls
    source.names |= {"make": make, "explained": lambda data, cause: _explained_object(cls, parts, data, cause)}
    body = [
        "if type(data) is not dict and not isinstance(data, Mapping):",
        "    raise explained(data, None)",
        "try:",
    ]
    if cls.refuses_unknown_keys:
        source.names["known"] = frozenset(stored_names(cls))
        body += ["    if not known >= data.keys():", "        raise TypeError"]
    arguments = []
    for part in parts:
        local = source.local()
        value = local
        if part.spread:
            inner = ", ".join(form.reads(source, f"data[{name!r}]") for name, form in part.spread)
            value = f"{source.bound(part.spread_class)}({inner})"
        elif part.may_be_missing:
            default = "{}" if part.default is dict else f"{source.bound(part.default)}()"
            if part.is_constant:
                assert part.default is not None
                default = source.bound(part.default())
            body += [
                f"    if {part.key!r} in data:",
                f"        {local} = data[{part.key!r}]",
                f"        {local} = {part.form.reads(source, local)}",
                "    else:",
                f"        {local} = {default}",
            ]
        else:
            body.append(f"    {local} = data[{part.key!r}]")
            value = part.form.reads(source, local)
        arguments.append(f"{part.name}={value}")
    # Arguments are passed by position as long as none is left out, because that is slightly faster.
    names = [field.name for field in dataclasses.fields(cls)]
    for index, part in enumerate(parts):
        if part.name != names[index] or _is_keyword(cls, part.name):
            break
        arguments[index] = arguments[index].partition("=")[2]
    body += [f"    return make({', '.join(arguments)})", "except FAULTS as cause:"]
    body.append("    raise explained(data, cause) from cause")
    return source.function("read(data)", body, cls.__qualname__)


def _is_keyword(cls: type[Any], name: str) -> bool:
    return next(field.kw_only is True for field in dataclasses.fields(cls) if field.name == name)


def _explained_object(cls: type[Any], parts: Sequence[_Part], data: Any, cause: BaseException | None) -> CodecError:
    """Return the error that says what is wrong with `data`."""
    if not isinstance(data, Mapping):
        return unexpected("an object", data)
    for part in parts:
        for key, form in part.spread or ((part.key, part.form),):
            if key in data:
                if (error := fault_of(form, data[key])) is not None:
                    return error.within(f".{key}")
            elif not part.may_be_missing:
                return CodecError("it is missing", (f".{key}",))
    if cls.refuses_unknown_keys and (unknown := data.keys() - set(stored_names(cls))):
        return CodecError(f"{cls.__name__} has no such keys: {', '.join(sorted(map(str, unknown)))}")
    return CodecError(f"{cls.__name__}: {cause}")


def _row_codec(cls: type[Any]) -> _Codec:
    parts = tuple(_row_forms(cls))
    source = CodeBuilder()
    values = ", ".join(form.writes(source, f"value.{name}") for name, form in parts)
    writer = source.function("write(value)", [f"return [{values}]"], cls.__qualname__)
    source = CodeBuilder()
    source.names |= {"make": cls, "explained": lambda data, cause: _explained_row(cls, parts, data, cause)}
    locals_ = [source.local() for _ in parts]
    arguments = ", ".join(form.reads(source, local) for local, (_, form) in zip(locals_, parts, strict=True))
    body = [
        "if type(data) is not list and type(data) is not tuple:",
        "    raise explained(data, None)",
        "try:",
        f"    [{', '.join(locals_)}] = data",
        f"    return make({arguments})",
        "except FAULTS as cause:",
        "    raise explained(data, cause) from cause",
    ]
    return _Codec(writer, source.function("read(data)", body, cls.__qualname__))


def _row_forms(cls: type[Any]) -> Iterator[tuple[str, Form]]:
    hints = _hints(cls)
    if not dataclasses.is_dataclass(cls):
        yield from ((name, _form_of(hint)) for name, hint in hints.items())
        return
    for field in dataclasses.fields(cls):
        options: FieldOptions = field.metadata.get(OPTIONS_KEY, PLAIN)
        if not options.nowhere:
            yield field.name, _chosen_form(hints[field.name], options)


def _explained_row(
    cls: type[Any], parts: Sequence[tuple[str, Form]], data: Any, cause: BaseException | None
) -> CodecError:
    if not isinstance(data, list | tuple):
        return unexpected("an array", data)
    if len(data) != len(parts):
        return CodecError(f"{cls.__name__} has {len(data)} fields instead of {len(parts)}")
    for (name, form), value in zip(parts, data, strict=True):
        if (error := fault_of(form, value)) is not None:
            return error.within(f".{name}")
    return CodecError(f"{cls.__name__}: {cause}")


def _hints(cls: type[Any]) -> dict[str, _Hint]:
    # `Json` refers to itself, so its hints cannot be resolved; it stands for any JSON value.
    hints = typing.get_type_hints(cls, localns={"Json": Any})
    return {name: hint for name, hint in hints.items() if typing.get_origin(hint) is not ClassVar}


def _parts(cls: type[Any]) -> tuple[_Part, ...]:
    hints = _hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        options: FieldOptions = field.metadata.get(OPTIONS_KEY, PLAIN)
        if options.nowhere:
            continue
        hint = hints[field.name]
        form = _chosen_form(hint, options)
        spread = tuple((name, _form_of(inner)) for name, inner in _hints(hint).items()) if options.spread else ()
        found.append(
            _Part(
                field.name,
                options.name or field.name,
                form,
                options,
                _default_of(field, options),
                spread,
                hint if spread else None,
                options.older is not NONE_GIVEN or field.default is not dataclasses.MISSING,
            )
        )
    return tuple(found)


def _chosen_form(hint: Any, options: FieldOptions) -> Form:
    if options.write is not None and options.read is not None:
        return OwnForm(options.write, options.read)
    form = _form_of(hint, packed=options.packed)
    return form if options.write is options.read else PartlyOwnForm(form, options.write, options.read)


def _default_of(field: Any, options: FieldOptions) -> Callable[[], Any] | None:
    value = options.older if options.older is not NONE_GIVEN else field.default
    if value is not dataclasses.MISSING:
        return lambda: value
    return None if field.default_factory is dataclasses.MISSING else field.default_factory


class ClassForm(Form):
    """The form of a dataclass.

    The functions of its class are looked up when they are needed, because a class may contain itself.
    """

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls
        self.kinds = (dict,) if issubclass(cls, JsonObject) else (list,)
        #: The handwritten functions of the class, if it has any.
        self.own_write, self.own_read = _by_hand(cls) if issubclass(cls, JsonObject) else (None, None)

    def write(self, value: Any) -> Any:
        return (self.own_write or _codec_of(self.cls).write)(value)

    def read(self, data: Any) -> Any:
        return (self.own_read or _codec_of(self.cls).read)(data)

    def writes(self, source: CodeBuilder, value: str) -> str:
        return f"{source.bound(self.own_write) if self.own_write else self._compiled(source, 'write')}({value})"

    def reads(self, source: CodeBuilder, data: str) -> str:
        return f"{source.bound(self.own_read) if self.own_read else self._compiled(source, 'read')}({data})"

    def _compiled(self, source: CodeBuilder, act: str) -> str:
        """Return the name of the class's function in generated code.

        If the class is still being compiled, the name is bound later.
        """
        if self.cls not in _COMPILING:
            return source.bound(getattr(_codec_of(self.cls), act))
        name = source.bound(getattr(self, act))
        _COMPILING[self.cls].append((source, name, act))
        return name


class NamedUnion(Form):
    """The form of a union of classes.

    A value is written as the name of its class, followed by the value.

    `what` is the noun for such a value in error messages.
    """

    kinds = (list,)

    def __init__(self, members: Callable[[], Mapping[str, type[Any]]], what: str) -> None:
        self.members = members
        self.what = what
        #: For each class name the function that reads the value, and True if a single value follows the name, False if
        #: a list of fields does.
        self._known: dict[str, tuple[Callable[[Any], Any], bool]] = {}

    def write(self, value: Any) -> Any:
        cls: Any = type(value)
        written = _class_form(cls).write(value)
        return [cls.__name__, written] if _is_one_value(cls) else [cls.__name__, *written]

    def read(self, data: Any) -> Any:
        if not isinstance(data, list | tuple) or not data or not isinstance(data[0], str):
            found = JSON_NAMES.get(type(data), type(data).__name__)
            raise CodecError(f"A {self.what} must be [type, fields...], and is {found}")
        reader, is_one_value = self._known.get(data[0]) or self._found(data[0])
        if is_one_value and len(data) != 2:
            raise CodecError(f"{data[0]} has {len(data) - 1} values instead of 1")
        try:
            return reader(data[1] if is_one_value else data[1:])
        except CodecError as error:
            raise error.within(f".{data[0]}") from error

    def _found(self, name: str) -> tuple[Callable[[Any], Any], bool]:
        cls: Any = self.members().get(name)
        if cls is None:
            raise CodecError(f"Unknown {self.what} {name!r}")
        form = _class_form(cls)
        reader = (form.own_read or _codec_of(cls).read) if isinstance(form, ClassForm) else form.read
        known = self._known[name] = reader, _is_one_value(cls)
        return known


def _form_of(hint: Any, *, packed: bool = False) -> Form:
    if isinstance(hint, NewType):
        return _form_of(hint.__supertype__)
    if hint in (Any, object):
        return ItselfForm()
    if hint in (int, float, str, bool, bytes):
        return ScalarForm(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union_of(arguments)
    if origin is Literal:
        return ChoiceForm({value: value for value in arguments}, "value")
    if origin is tuple and arguments[-1] is not Ellipsis:
        return TupleForm([_form_of(argument) for argument in arguments])
    if origin in (tuple, frozenset):
        return ArrayForm(_form_of(arguments[0]), origin)
    if origin in (list, Sequence, Collection):
        return ArrayForm(_form_of(arguments[0]), list)
    if origin in (dict, Mapping):
        form = _form_of(arguments[1])
        return MapForm(_form_of(arguments[0]), PackedForm(form) if packed else form)
    if isinstance(hint, type):
        return _class_form(hint)
    raise TypeError(f"The codec has no form for {hint!r}")


@cache
def _class_form(cls: Any) -> Form:
    if issubclass(cls, Enum):
        return ChoiceForm({member.value: member for member in cls}, cls.__name__)
    if issubclass(cls, JsonText):
        return TextForm(cls.parse)
    if issubclass(cls, JsonObject):
        return ClassForm(cls)
    if hasattr(cls, "from_json"):
        return OwnForm(cls.to_json, cls.from_json)
    if dataclasses.is_dataclass(cls) or hasattr(cls, "_fields"):
        return ClassForm(cls)
    if hasattr(cls, "members"):
        return NamedUnion(cls.members, cls.__name__)
    raise TypeError(f"The codec has no form for {cls!r}")


def _union_of(arguments: Sequence[Any]) -> Form:
    members = [argument for argument in arguments if argument is not types.NoneType]
    if len(members) < len(arguments):
        return OptionalForm(_form_of(members[0]) if len(members) == 1 else _union_of(members))
    if all(isinstance(member, type) and dataclasses.is_dataclass(member) for member in members):
        by_name = {member.__name__: member for member in members}
        return NamedUnion(lambda: by_name, "value")
    return KindForm([(member, _form_of(member)) for member in members])


def _is_one_value(cls: type[Any]) -> bool:
    """Return True if a member of a union is written as one value after its name, not as a list of fields."""
    return issubclass(cls, JsonObject) or hasattr(cls, "from_json")
