"""Kinds of values that the configuration has beyond TOML's own (sizes, durations, secrets), and how a key is declared.

`option` is the one way to declare a key: its help, unit and example feed the reference page and the JSON Schema.

A TOML document as it is read. Only the loader and the validators of sections interpret its values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from raycdc.core.secrets import Renewed
from raycdc.model.rules.selector import check_pattern
from raycdc.storage.url import check_local_path, check_location

TomlValue: TypeAlias = "str | int | float | bool | date | time | Sequence[TomlValue] | Mapping[str, TomlValue]"
TomlTable: TypeAlias = Mapping[str, TomlValue]


def section_of(document: TomlTable, name: str) -> dict[str, TomlValue]:
    """Return a copy of a section that may be changed; empty if there is no table of that name."""
    section = document.get(name)
    return dict(section) if isinstance(section, Mapping) else {}


def texts_of(section: TomlTable, name: str) -> tuple[str, ...]:
    """Return the texts listed under `name`, or its single text."""
    texts = section.get(name, ())
    if isinstance(texts, str):
        return (texts,)
    return tuple(map(str, texts)) if isinstance(texts, Sequence) else ()


_SIZE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
#: The maximum size, which is larger than any disk, and the maximum duration, which is the longest timeout of the
#: operating system.
SIZE_MAX = 1 << 60
SPAN_MAX = timedelta(days=36_500)
_DURATION_PART = re.compile(r"(?<![\d.])(\d++(?:\.\d++)?)\s*+([a-z]++)\s*+")


class Options(BaseModel):
    """Base of every configuration section. A section is immutable. A key that it does not declare is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Secret:
    """A text that is not shown: ``repr`` and ``str`` return ``***``.

    Pickling keeps the text and its references (`raycdc.core.secrets.newest`).
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself, for the one call that needs it."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(strict=True)
        from_text = core_schema.no_info_after_validator_function(cls, text)

        def made(value: Any, checked: Callable[[Any], str]) -> Secret:
            """Keep the text's class, because pydantic would turn a `Renewed` into a plain text."""
            if isinstance(value, cls):
                return value
            plain = checked(value)
            return cls(value if isinstance(value, Renewed) else plain)

        from_either = core_schema.no_info_wrap_validator_function(made, text)
        return core_schema.json_or_python_schema(
            json_schema=from_text, python_schema=from_either, serialization=core_schema.to_string_ser_schema()
        )


@dataclass(frozen=True, slots=True)
class Deprecated:
    """A key that will be removed.

    `since` is the first version that warned of it, `instead` says what to do, as a sentence.
    """

    since: str
    instead: str

    @classmethod
    def of(cls, field: FieldInfo) -> Deprecated | None:
        """Return the deprecation that was passed to `option` for a key."""
        extra = field.json_schema_extra
        if not isinstance(extra, dict) or not extra.get("deprecated"):
            return None
        return cls(str(extra["since"]), str(extra["instead"]))


def option(
    default: Any = ...,
    *,
    help: str,  # noqa: A002 - the word every command line uses for it
    unit: str = "",
    example: Any = None,
    change: str = "",
    init: bool = False,
    deprecated: Deprecated | None = None,
    **constraints: Any,
) -> Any:
    """Declare a key.

    Without `default` it is required.

    `change` is for plug-ins that are not part of raycdc: the effect of changing the key while a state exists
    (`raycdc.config.changes`). If `init` is True, ``raycdc init`` asks for the key although it has a default. A
    `deprecated` key works, but setting it causes a warning. `constraints` are pydantic's (``ge``, ``le``,
    ``min_length`` …).
    """
    extra: JsonDict = {"unit": unit} if unit else {}
    if change:
        extra["change"] = change
    if init:
        extra["init"] = True
    if deprecated:
        # JSON Schema's own keyword, for which editors strike the key through.
        extra |= {"deprecated": True, "since": deprecated.since, "instead": deprecated.instead}
    if isinstance(default, timedelta):
        extra["default"] = show_duration(default)
    elif unit == "size":
        extra["default"] = show_size(default)
    examples = None if example is None else [example]
    return Field(default, description=help, examples=examples, json_schema_extra=extra, **constraints)


def parse_size(value: object) -> int:
    """Return the bytes of ``"256MiB"``, ``"64 kB"`` or a plain number.

    Raises ValueError with the accepted forms.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        number, unit = float(value), ""
    else:
        matched = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", value.strip()) if isinstance(value, str) else None
        if matched is None or matched[2].upper() not in _SIZE_UNITS:
            raise ValueError(f'must be a size such as "256MiB" or "64kB", got {_shown(value)}')
        number, unit = float(matched[1]), matched[2].upper()
    if number * _SIZE_UNITS[unit] > SIZE_MAX:
        raise ValueError(f"must be at most {show_size(SIZE_MAX)}, got {_shown(value)}")
    size = int(number * _SIZE_UNITS[unit])
    if size <= 0:
        raise ValueError(f"must be more than 0 bytes, got {_shown(value)}")
    return size


def parse_duration(value: object) -> timedelta:
    """Return the time span of ``"2s"``, ``"500ms"`` or ``"1h30m"``. A number without a unit is refused."""
    if isinstance(value, timedelta):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    parts = _DURATION_PART.findall(text)
    whole = "".join(matched.group(0) for matched in _DURATION_PART.finditer(text)) == text
    if not parts or not whole or any(unit not in _DURATION_UNITS_MS for _, unit in parts):
        raise ValueError(f'must be a duration such as "2s", "500ms" or "1h30m", got {_shown(value)}')
    milliseconds = sum(float(number) * _DURATION_UNITS_MS[unit] for number, unit in parts)
    if milliseconds > SPAN_MAX / timedelta(milliseconds=1):
        raise ValueError(f"must be at most {show_duration(SPAN_MAX)}, got {_shown(value)}")
    span = timedelta(milliseconds=milliseconds)
    if span <= timedelta(0):
        raise ValueError(f"must be longer than nothing, got {_shown(value)}")
    return span


def show_size(size: int) -> str:
    """Return the shortest exact text for a size, as `parse_size` accepts it."""
    for name in ("TiB", "GiB", "MiB", "KiB"):
        if size % _SIZE_UNITS[name.upper()] == 0:
            return f"{size // _SIZE_UNITS[name.upper()]}{name}"
    return f"{size}B"


def show_duration(span: timedelta) -> str:
    """Return the shortest exact text for a duration, as `parse_duration` accepts it."""
    ms = round(span / timedelta(milliseconds=1))
    for unit in ("d", "h", "m", "s"):
        if ms % _DURATION_UNITS_MS[unit] == 0:
            return f"{ms // _DURATION_UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def _shown(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


#: Bytes; written as text with a unit.
Size = Annotated[int, BeforeValidator(parse_size, json_schema_input_type=str | int), PlainSerializer(show_size)]
#: A time span; written as text with a unit.
Duration = Annotated[
    timedelta, BeforeValidator(parse_duration, json_schema_input_type=str), PlainSerializer(show_duration)
]
#: ``DATABASE.TABLE``, or a regular expression that matches it in full.
TablePattern = Annotated[str, AfterValidator(check_pattern)]


class LocalPath:
    """A mark of keys that name a local file or folder, for which the URL of an object store is refused."""


class AnyLocation:
    """A mark of keys that name a local folder or a location on an object store."""


#: A folder of this machine, or the URL of a location on an object store (`raycdc.storage.url`).
FolderOrUrl = Annotated[str, AfterValidator(check_location), AnyLocation()]
#: A folder of this machine; the URL of a store is refused.
Folder = Annotated[str, AfterValidator(check_local_path), LocalPath()]
#: A file of this machine; the URL of a store is refused.
FilePath = Annotated[str, AfterValidator(check_local_path), LocalPath()]


def flattened_texts(table: TomlTable) -> dict[str, str]:
    """Return the nested, typed table that TOML reads as dotted names and texts, as Spark and Kafka expect their
    settings.
    """
    return {
        key: v if isinstance(v, str) else str(v).lower() if isinstance(v, bool) else str(v)
        for key, v in _flattened(table).items()
    }


def _kept(value: str, checked: ValidatorFunctionWrapHandler) -> str:
    plain: str = checked(value)
    return value if isinstance(value, Renewed) else plain


#: A text that may hold a secret. If it has a reference, it stays a `Renewed`, which is resolved again later.
KeptText = Annotated[str, WrapValidator(_kept)]


def _flattened(table: TomlTable, prefix: str = "") -> dict[str, TomlValue]:
    """Return nested tables as dotted names, because TOML reads ``spark.driver.memory = "4g"`` as nested tables, and
    Spark expects the whole name.
    """
    flat: dict[str, TomlValue] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flattened(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
