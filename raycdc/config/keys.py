"""Every key that a configuration may have, as the models declare them: for the rules that must hold for each one.

`declared_models` are the sections and the plug-ins' of them; `keys_of` are the keys of a model, dotted where a section
has tables of its own.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from raycdc.config.fields import AnyPlace, LocalPath, Secret
from raycdc.config.model import COMMON_SECTIONS, REPEATED_SECTIONS
from raycdc.plugins import PluginGroup, list_plugins, load_plugin

_PLUGIN_SECTIONS = {PluginGroup.SOURCES: "source", PluginGroup.SINKS: "sink", PluginGroup.FORMATS: "format"}


def declared_models() -> Iterator[tuple[str, type[BaseModel]]]:
    """Each section with its model, as ``pipeline``, ``route``, ``sink:delta``; broken plug-ins have none."""
    yield from COMMON_SECTIONS.items()
    for name, (_, model) in REPEATED_SECTIONS.items():
        yield name, model
    for listing in list_plugins():
        if listing.error is None:
            config = load_plugin(listing.group, listing.type).config
            yield f"{_PLUGIN_SECTIONS[listing.group]}:{listing.type}", config


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """The keys of a section, as users write them; tables of one model are gone into."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        inner = next((leaf for leaf in leaf_types(field.annotation) if _is_model(leaf)), None)
        if inner is not None:
            yield from keys_of(inner, f"{key}.")
        else:
            yield key, field


def is_local_path(field: FieldInfo) -> bool:
    """Whether the URL of a store in the key's place is refused (`raycdc.config.fields.Folder`, `FilePath`)."""
    return _is_marked(field, LocalPath)


def is_place(field: FieldInfo) -> bool:
    """Whether the key names a folder or file, which may be on a store where `is_local_path` says no."""
    return _is_marked(field, LocalPath) or _is_marked(field, AnyPlace)


def may_hold_secret(field: FieldInfo) -> bool:
    """Whether the key's value is never shown, because it is a secret or often holds one (``repr=False``)."""
    return not field.repr or Secret in leaf_types(field.annotation)


def _is_marked(field: FieldInfo, mark: type[LocalPath | AnyPlace]) -> bool:
    return any(isinstance(one, mark) for one in (*field.metadata, *_metadata(field.annotation)))


def leaf_types(annotation: Any) -> tuple[Any, ...]:
    """The types that a value may have: a union's one by one."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(leaf for part in get_args(annotation) for leaf in leaf_types(part))
    return leaf_types(get_args(annotation)[0]) if get_origin(annotation) is Annotated else (annotation,)


def _metadata(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        yield from get_args(annotation)[1:]
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _metadata(part)


def _is_model(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)
