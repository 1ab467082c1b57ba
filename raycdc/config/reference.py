"""The configuration's reference page and JSON Schema, generated from the fields' own metadata.

``python -m raycdc.config.reference`` prints the page (Markdown), with ``--json-schema`` the schema, which editors
use to complete and check ``*.toml`` files. Installed plug-ins appear with their own sections.
"""

from __future__ import annotations

import enum
import json
import sys
import types
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, create_model
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from raycdc.config.fields import Deprecated, Options, Secret, show_duration, show_size
from raycdc.config.model import COMMON_SECTIONS, REPEATED_SECTIONS
from raycdc.config.problems import show_value
from raycdc.plugins import PluginGroup, list_plugins, load_plugin

_INTRODUCTION = (
    "Unknown keys are errors. Texts may hold `${env:NAME}`, `${env:NAME:-default}` and `${file:PATH}`. "
    'Sizes are written as `"256MiB"`, durations as `"2s"`.'
)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a whole configuration. Source and sink are chosen by their ``type``."""
    sections: dict[str, Any] = {name: (model, model()) for name, model in COMMON_SECTIONS.items() if name != "pipeline"}
    sections["pipeline"] = (COMMON_SECTIONS["pipeline"], ...)
    for name, group in (("source", PluginGroup.SOURCES), ("sink", PluginGroup.SINKS)):
        sections[name] = (Union[*(model for _, model in _plugin_models(group))], ...)
    for name, (_, repeated) in REPEATED_SECTIONS.items():
        sections[name] = (types.GenericAlias(tuple, (repeated, ...)), ())
    # One model for the whole configuration, so that shared definitions are where the references point.
    whole = create_model("raycdc pipeline", __base__=Options, **sections)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole.model_json_schema()}


def reference_page() -> str:
    """Return every section with its keys, defaults, units and unsupported values, as Markdown."""
    parts = ["# Configuration", _INTRODUCTION]
    for name, common in COMMON_SECTIONS.items():
        parts += _section(f"[{name}]", common)
    for name, group in (("source", PluginGroup.SOURCES), ("sink", PluginGroup.SINKS)):
        for plugin_type, model in _plugin_models(group):
            parts += _section(f'[{name}] type = "{plugin_type}"', model)
    parts += format_sections()
    for name, (_, repeated) in REPEATED_SECTIONS.items():
        parts += _section(f"[[{name}]]", repeated)
    return "\n\n".join(parts) + "\n"


def format_sections() -> list[str]:
    """Return the options of each format, as parts of a page."""
    parts = []
    for model, types_ in _format_models().items():
        named = ", ".join(f'"{format_type}"' for format_type in types_)
        parts += _section(f"[source.format], [sink.format] type = {named}", model)
    return parts


def _plugin_models(group: PluginGroup) -> Iterator[tuple[str, type[BaseModel]]]:
    for listing in list_plugins():
        if listing.group is group and listing.error is None:
            yield listing.type, load_plugin(group, listing.type).config


def _format_models() -> dict[type[BaseModel], list[str]]:
    """Return each model of formats' options with the formats that have it; most formats have the same."""
    models: dict[type[BaseModel], list[str]] = {}
    for format_type, model in _plugin_models(PluginGroup.FORMATS):
        models.setdefault(model, []).append(format_type)
    return models


def _section(title: str, model: type[BaseModel]) -> list[str]:
    lines = ["| key | value | default | meaning |", "|---|---|---|---|", *_rows(model, "")]
    doc = " ".join((model.__doc__ or "").split())
    return [f"## {title}", doc, "\n".join(lines)]


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = next((t for t in _leaves(field.annotation) if isinstance(t, type) and issubclass(t, BaseModel)), None)
        if inner is not None:
            yield from _rows(inner, f"{prefix}{field.alias or name}.")
            continue
        default = "**required**" if field.is_required() else f"`{_default(field)}`"
        cells = (f"`{prefix}{field.alias or name}`", _kind(field), default, _meaning(field))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _extra(field: FieldInfo) -> JsonDict:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def _kind(field: FieldInfo) -> str:
    unit = _extra(field).get("unit")
    if unit:
        return str(unit)
    leaves = _leaves(field.annotation)
    choices = [c for leaf in leaves for c in _choices(leaf)]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    return " or ".join(_type_name(leaf) for leaf in leaves if leaf is not type(None))


def _choices(leaf: Any) -> tuple[str, ...]:
    if get_origin(leaf) is Literal:
        return tuple(str(choice) for choice in get_args(leaf))
    if isinstance(leaf, type) and issubclass(leaf, enum.Enum):
        return tuple(str(member.value) for member in leaf)
    return ()


def _type_name(leaf: Any) -> str:
    origin = get_origin(leaf) or leaf
    known = {int: "number", float: "number", str: "text", bool: "true or false", dict: "table", tuple: "list"}
    return {**known, Secret: "secret"}.get(origin, "text")


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    match value:
        case None:
            return "none"
        case enum.Enum():
            return show_value(value.value)
        case timedelta():
            return show_value(show_duration(value))
        case int() if _extra(field).get("unit") == "size":
            return show_value(show_size(value))
        case Secret():
            return '""'
        case str() | bool() | int() | dict() | list() | tuple():
            return show_value(value)
        case _:
            return show_value(str(value))


def _meaning(field: FieldInfo) -> str:
    text = field.description or ""
    if field.examples:
        text += f" Example: `{show_value(field.examples[0])}`."
    if (deprecated := Deprecated.of(field)) is not None:
        text += f" **Deprecated since {deprecated.since}.** {deprecated.instead}"
    return text


def _leaves(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(leaf for part in get_args(annotation) for leaf in _leaves(part))
    return (annotation,)


if __name__ == "__main__":
    page = json.dumps(json_schema(), indent=2) if "--json-schema" in sys.argv[1:] else reference_page()
    sys.stdout.write(page + "\n")
