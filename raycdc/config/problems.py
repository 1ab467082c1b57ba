"""Turns pydantic's errors into sentences that a user can act on, each with its place."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from raycdc.config.fields import Deprecated, Secret
from raycdc.core.secrets import KeyPath, show_key_path
from raycdc.plugins import did_you_mean


def problems_of(
    error: ValidationError,
    model: type[BaseModel],
    section: str,
    *,
    redacted: set[KeyPath],
    elsewhere: Mapping[str, str],
) -> Iterator[tuple[KeyPath, str]]:
    """Return each problem as (place, text).

    Values at `redacted` places are not shown. `elsewhere` maps a key that is in the wrong section to the right section.
    """
    for item in error.errors(include_url=False):
        key_path: KeyPath = (section, *(part for part in item["loc"] if not _is_artifact(part)))
        shown = "" if _is_secret(model, key_path[1:]) or key_path in redacted else f", got {show_value(item['input'])}"
        yield key_path, f"{show_key_path(key_path)}: {_text(item, model, key_path, shown, elsewhere)}"


def deprecated_keys(options: BaseModel, key_path: KeyPath) -> Iterator[str]:
    """Return a warning for each key that is set and deprecated (`raycdc.config.fields.Deprecated`)."""
    for name, field in type(options).model_fields.items():
        if name not in options.model_fields_set:
            continue
        here: KeyPath = (*key_path, field.alias or name)
        if (deprecated := Deprecated.of(field)) is not None:
            yield f"{show_key_path(here)} is deprecated since {deprecated.since}. {deprecated.instead}"
        value = getattr(options, name)
        if isinstance(value, BaseModel):
            yield from deprecated_keys(value, here)


def show_value(value: Any) -> str:
    """Return a value as TOML would spell it, shortened."""
    match value:
        case str():
            text = f'"{value}"'
        case bool():
            text = "true" if value else "false"
        case dict():
            text = "{ " + ", ".join(f"{k} = {show_value(v)}" for k, v in value.items()) + " }"
        case list() | tuple():
            text = "[" + ", ".join(show_value(v) for v in value) + "]"
        case _:
            text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _text(item: Any, model: type[BaseModel], key_path: KeyPath, shown: str, elsewhere: Mapping[str, str]) -> str:
    context: Mapping[str, object] = item.get("ctx") or {}
    match item["type"]:
        case "extra_forbidden":
            return _unknown_key(model, key_path, elsewhere)
        case "missing":
            return "is required" + _example(model, key_path)
        case "literal_error" | "enum":
            return _not_one_of(item["input"], context)
        case "value_error":
            return str(context["error"])
        case "greater_than_equal":
            return f"must be at least {context['ge']}{shown}"
        case "less_than_equal":
            return f"must be at most {context['le']}{shown}"
        case "too_short":
            return f"must not be empty{_example(model, key_path)}"
        case "string_too_short":
            return f"must not be empty{_example(model, key_path)}"
        case kind if kind in _EXPECTED:
            return f"must be {_EXPECTED[kind]}{shown}"
        case _:
            return f"{item['msg'][0].lower()}{item['msg'][1:]}{shown}"


_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text (in quotes)",
    "tuple_type": 'a list, such as ["a", "b"]',
    "list_type": 'a list, such as ["a", "b"]',
    "dict_type": 'a table, such as { key = "value" }',
    "model_type": 'a table, such as { key = "value" }',
    "model_attributes_type": 'a table, such as { key = "value" }',
}


#: Keys that earlier development versions had, and what to write instead.
_BEFORE = {
    "pipeline.start_in_process": 'write engines = "auto" instead of true, engines = "always" instead of false',
}


def _unknown_key(model: type[BaseModel], key_path: KeyPath, elsewhere: Mapping[str, str]) -> str:
    key = str(key_path[-1])
    if (instead := _BEFORE.get(show_key_path(key_path))) is not None:
        return f"unknown key; {instead}"
    parent = _model_at(model, key_path[1:-1])
    known = sorted(field.alias or name for name, field in parent.model_fields.items()) if parent is not None else []
    hint = did_you_mean(key, known)
    if hint:
        return f"unknown key{hint}"
    if key in elsewhere:
        return f"unknown key here; it belongs into [{elsewhere[key]}]"
    return f"unknown key. Known: {', '.join(known)}"


def _not_one_of(value: Any, context: Mapping[str, object]) -> str:
    expected = str(context.get("expected", "")).replace(" or ", ", ").replace("'", "").split(", ")
    hint = did_you_mean(value, expected) if isinstance(value, str) else ""
    return f"{show_value(value)} is not one of {', '.join(expected)}{hint}"


def _example(model: type[BaseModel], key_path: KeyPath) -> str:
    parent = _model_at(model, key_path[1:-1])
    field = parent.model_fields.get(str(key_path[-1])) if parent is not None else None
    if field is None or not field.examples:
        return ""
    return f", e.g. {key_path[-1]} = {show_value(field.examples[0])}"


def _model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """Return the model of the table at `path` inside `model`'s section."""
    for part in path:
        field = model.model_fields.get(str(part))
        inner = None if field is None else next((t for t in _leaf_types(field.annotation) if _is_model(t)), None)
        if inner is None:
            return None
        model = inner
    return model


def _is_secret(model: type[BaseModel], path: KeyPath) -> bool:
    """Return True if the value is a secret, or one of several named ones."""
    return _has_secrets(model, path) or _has_secrets(model, path[:-1])


def _has_secrets(model: type[BaseModel], path: KeyPath) -> bool:
    parent = _model_at(model, path[:-1]) if path else None
    field = parent.model_fields.get(str(path[-1])) if parent is not None else None
    return field is not None and Secret in (*_leaf_types(field.annotation), *get_args(field.annotation))


def _leaf_types(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(leaf for part in get_args(annotation) for leaf in _leaf_types(part))
    return (annotation,)


def _is_model(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)


def _is_artifact(part: Any) -> bool:
    """Return True for names of validators that pydantic mixes into a location; our keys never contain brackets."""
    return isinstance(part, str) and any(c in part for c in "[]()")
