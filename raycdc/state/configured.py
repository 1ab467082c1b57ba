"""Records the configuration with which a state was made. Each start compares it (`raycdc.config.changes`).

``configured.json`` has `keys` with values as in TOML, by ``section.key``. For a key that may hold a credential it has
only a digest. Keys that may change freely are left out. A state of an older version, without the document, gets it at
its next start, which then compares nothing.

``changelog.json`` records the origin of the row before a change (``source.changelog``, `FullBy`); a pipeline keeps its
first setting forever.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, TypeAlias

from pydantic import BaseModel

from raycdc.config.changes import CLASSES, ConfigChangeClass, class_of, is_location, keys_of, may_hold_secret
from raycdc.config.fields import Secret
from raycdc.config.model import COMMON_SECTIONS, REPEATED_SECTIONS, PipelineConfig
from raycdc.errors import ConfigError
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.state.codec import NEW_STATE
from raycdc.state.store import CheckpointStore

#: The value of a key as in TOML; None if it is not set.
Setting: TypeAlias = "bool | int | float | str | list[Setting] | dict[str, Setting] | None"

_NAME = "configured.json"

#: Keys and values that a state may have under an older name.
_RENAMED = {f"source.start.{key}": f"source.startup.{key}" for key in ("mode", "offsets", "timestamp_ms", "otherwise")}
_RENAMED_VALUES: Mapping[tuple[str, str], Setting] = {
    ("source.types.invalid_dates", "error"): "park",
    ("source.types.invalid_text", "error"): "park",
}
_RENAMED_IN_LOOKUPS = {"on_misfit": "on_type_mismatch"}

#: Keys that may change, but are compared to find newly selected tables.
_SELECTION = frozenset({"source.tables", "source.collections", "source.exclude"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose value differs from the one with which the state was made."""

    key: str
    change: ConfigChangeClass
    was: Setting
    now: Setting

    def __str__(self) -> str:
        if str(self.was).startswith("sha256:"):
            return f"{self.key} differs from when the state was made"
        return f"{self.key} is {json.dumps(self.now)}, and was {json.dumps(self.was)} when the state was made"

    def tables(self, followed: Collection[str]) -> list[str]:
        """Return the tables whose rows in the targets do not match the new value: the tables that the values name, or
        all of `followed`.
        """
        if isinstance(self.was, dict) or isinstance(self.now, dict):
            was = self.was if isinstance(self.was, dict) else {}
            now = self.now if isinstance(self.now, dict) else {}
            return sorted(name for name in {*was, *now} if was.get(name) != now.get(name) and name in followed)
        return sorted(followed)


def configured_keys(config: PipelineConfig, *, has_sink: bool = True) -> dict[str, Setting]:
    """Return the keys of `config` that a state records. Without a sink, the sink's section is left out."""
    keys: dict[str, Setting] = {}
    for name in COMMON_SECTIONS:
        keys |= _kept(name, name, getattr(config, name))
    keys |= _kept("source", f"source:{config.source.type}", config.source)
    if has_sink:
        keys |= _kept("sink", f"sink:{config.sink.type}", config.sink)
    for name, (field, _) in REPEATED_SECTIONS.items():
        keys[name] = [_kept("", name, options) for options in getattr(config, field)]
    return keys


def all_keys(config: PipelineConfig) -> dict[str, Setting]:
    """Return every key, for a plan.

    Keys that a state records have the same values as in `configured_keys`. Other keys have a number or a boolean as it
    is, and any other value as a digest. Keys that may hold a secret are left out: they may change at any time, and a
    secret could be guessed from its digest.
    """
    keys: dict[str, Setting] = {}
    for name in COMMON_SECTIONS:
        keys |= _planned(name, name, getattr(config, name))
    keys |= _planned("source", f"source:{config.source.type}", config.source)
    keys |= _planned("sink", f"sink:{config.sink.type}", config.sink)
    for name, (field, _) in REPEATED_SECTIONS.items():
        keys[name] = [_planned("", name, options) for options in getattr(config, field)]
    return keys


def read_configured(store: CheckpointStore) -> dict[str, Setting] | None:
    """Return the configuration with which the state was made; None if the state does not record it."""
    document = store.documents.read(_NAME)
    return None if document is None else as_of_now(document["keys"])


def as_of_now(keys: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return `keys`, which a state may have, with the present names of keys and values."""
    named = {_RENAMED.get(key, key): value for key, value in keys.items()}
    values = {key: _RENAMED_VALUES.get((key, str(value)), value) for key, value in named.items()}
    lookups = values.get("lookup")
    if isinstance(lookups, list):
        values["lookup"] = [
            {_RENAMED_IN_LOOKUPS.get(key, key): value for key, value in one.items()} if isinstance(one, dict) else one
            for one in lookups
        ]
    return values


def kept_sink(keys: Mapping[str, Setting]) -> str | None:
    """Return the type of the sink for which a state's epochs were made; None if they were for Python callers."""
    kind = keys.get("sink.type")
    return None if kind is None else str(kind)


def kept_texts(keys: Mapping[str, Setting], key: str) -> tuple[str, ...]:
    """Return the value of a key that is a list of texts; empty if the state does not have the key."""
    value = keys.get(key)
    return tuple(map(str, value)) if isinstance(value, list) else ()


def write_configured(store: CheckpointStore, keys: Mapping[str, Setting]) -> None:
    """Record `keys`, if they differ from the recorded ones."""
    if read_configured(store) != keys:
        store.documents.write(_NAME, {"keys": dict(keys)})


def differences(was: Mapping[str, Setting], now: Mapping[str, Setting], config: PipelineConfig) -> list[Difference]:
    """Return the keys of `now` that differ from `was`.

    A key that `now` or `was` lacks is ignored. If the type of source or sink differs, that is the only difference
    returned for its section.
    """
    changed = [key for key in now if key in was and was[key] != now[key] and key not in _SELECTION]
    for kind in ("source", "sink"):
        if f"{kind}.type" in changed:
            changed = [key for key in changed if key == f"{kind}.type" or not key.startswith(f"{kind}.")]
    return [Difference(key, _class(key, config), was[key], now[key]) for key in changed]


def _class(key: str, config: PipelineConfig) -> ConfigChangeClass:
    if key in REPEATED_SECTIONS:
        changes = {change for (listed, _), change in CLASSES.items() if listed == key}
        return ConfigChangeClass.FREE if changes == {ConfigChangeClass.FREE} else ConfigChangeClass.JUDGED
    section, _, rest = key.partition(".")
    model: BaseModel = getattr(config, section)
    kind = f"{section}:{getattr(model, 'type', '')}" if section in ("source", "sink") else section
    return class_of(kind, rest, dict(keys_of(type(model))).get(rest))


def _kept(prefix: str, section: str, options: BaseModel) -> dict[str, Setting]:
    """Return the keys of a section that may not change freely, with their values."""
    keys: dict[str, Setting] = {}
    for key, field in keys_of(type(options)):
        value = _value(options, key)
        here = f"{prefix}.{key}" if prefix else key
        if key == "format" and isinstance(value, dict):
            # A format is compared as one key, so that an added option counts as a difference.
            keys[here] = {k: v for k, v in value.items() if class_of("format", k, None) is not ConfigChangeClass.FREE}
            continue
        change = class_of(section, key, field)
        if change is ConfigChangeClass.FREE and here not in _SELECTION:
            continue
        plain = change is not ConfigChangeClass.LOCATION or is_location(field)
        keys[here] = value if plain and not isinstance(_raw(options, key), Secret) else _digest(_raw(options, key))
    return keys


def _planned(prefix: str, section: str, options: BaseModel) -> dict[str, Setting]:
    """Return all keys of a section except those that may hold a secret."""
    kept = _kept(prefix, section, options)
    keys: dict[str, Setting] = {}
    for key, field in keys_of(type(options)):
        if may_hold_secret(field):
            continue
        here, value = f"{prefix}.{key}" if prefix else key, _value(options, key)
        if key == "format" and isinstance(value, dict):
            keys |= _planned_format(here, value)
        else:
            keys[here] = kept[here] if here in kept else _plain(value, _raw(options, key))
    return keys


def _planned_format(prefix: str, options: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return the options that are set of a message format, each as a key."""
    fields = dict(keys_of(load_plugin(PluginGroup.FORMATS, str(options["type"])).config))
    hidden = {key.partition(".")[0] for key, field in fields.items() if may_hold_secret(field)}
    keys: dict[str, Setting] = {}
    for key, value in options.items():
        if key in hidden:
            continue
        free = class_of("format", key, fields.get(key)) is ConfigChangeClass.FREE
        keys[f"{prefix}.{key}"] = _plain(value, value) if free else value
    return keys


def _plain(value: Setting, raw: Any) -> Setting:
    """Return `raw` if it is a number or a boolean; else a digest of `value`."""
    return raw if raw is None or isinstance(raw, bool | int | float) else _digest(value)


def _raw(options: BaseModel, key: str) -> Any:
    """Return the value of a key as the model has it; None if it is in a table that is not set."""
    value: Any = options
    for part in key.split("."):
        if value is None:
            return None
        fields = type(value).model_fields
        name = next(name for name, field in fields.items() if part in (name, field.alias))
        value = getattr(value, name)
    return value


def _value(options: BaseModel, key: str) -> Any:
    """Return the value of a key as in TOML."""
    dumped: Any = options.model_dump(mode="json", by_alias=True)
    for part in key.split("."):
        dumped = None if dumped is None else dumped[part]
    return dumped


def _digest(value: Any) -> str:
    text = value.reveal() if isinstance(value, Secret) else json.dumps(value, default=str, sort_keys=True)
    return f"sha256:{sha256(text.encode()).hexdigest()}"


_CHANGELOG = "changelog.json"


class FullBy(StrEnum):
    """The origin of the row before a change: none (or none is needed), the source, or the state's row store."""

    NOTHING = ""
    SOURCE = "images"
    ROW_STORE = "known rows"


def keep_changelog(store: CheckpointStore, full_by: FullBy) -> None:
    """Record the origin. Before the first sealed epoch, each start records it again."""
    if full_by is not begun_with(store, full=bool(full_by)):
        store.documents.write(_CHANGELOG, {"by": str(full_by)})


def begun_with(store: CheckpointStore, *, full: bool) -> FullBy:
    """Return the origin with which the pipeline began.

    Raises `ConfigError` if rows were written with a different one than `full`.
    """
    document = store.documents.read(_CHANGELOG)
    begun = FullBy(document["by"]) if document is not None else FullBy.NOTHING
    if store.last_manifest() is not None and bool(begun) is not full:
        was, now = ("full", "upsert") if begun else ("upsert", "full")
        raise ConfigError(
            f'source.changelog: the pipeline was begun with "{was}", but this says "{now}". It cannot be changed for '
            f"an existing state, because nobody knows which rows its target has. Put it back, or {NEW_STATE}."
        )
    return begun
