"""Loads a `PipelineConfig` from a TOML file or its parsed form, or raises one `ConfigError` with every problem."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from raycdc.config.fields import Options, Secret, TomlTable
from raycdc.config.model import COMMON_SECTIONS, REPEATED_SECTIONS, PipelineConfig, repeated_problems
from raycdc.config.problems import deprecated_keys, problems_of, show_value
from raycdc.config.sections.observability import ControlOptions
from raycdc.config.sections.pipeline import PipelineOptions
from raycdc.config.sections.source_and_sink import SinkConfig, SourceConfig
from raycdc.config.sections.storage import StorageOptions
from raycdc.core.secrets import KeyPath, ReferenceResolver, show_key_path
from raycdc.errors import ConfigError
from raycdc.plugins import PluginGroup, did_you_mean, load_plugin

#: A larger file is no configuration. The limit also ends the reading of a device file that has no end.
CONFIG_BYTES_MAX = 4 << 20

#: Schemes of URLs that name a file of this machine, and names of this machine.
_OF_FILES = ("sqlite", "file")
_OF_THIS_MACHINE = ("localhost", "::1")


def _may_be_secret(text: str) -> bool:
    """Return True if a value of a key that may hold a secret can be secret.

    A URL that has no account and names a file or this machine is not secret, because it contains nothing that readers
    of the configuration do not know.
    """
    if "://" not in text:
        return bool(text)
    try:
        url = urlsplit(text)
        host, alone = url.hostname or "", not (url.username or url.password or url.query)
    except ValueError:
        return True
    here = url.scheme.partition("+")[0] in _OF_FILES or host in _OF_THIS_MACHINE or host.startswith("127.")
    return not (here and alone)


_SOUNDS_SECRET = re.compile("auth|key|secret|token|password|cookie", re.IGNORECASE)
_PLUGIN_SECTIONS = {"source": PluginGroup.SOURCES, "sink": PluginGroup.SINKS}
_SECTIONS = (
    "pipeline",
    "source",
    "readers",
    *REPEATED_SECTIONS,
    "sink",
    "ray",
    "spark",
    "storage",
    "control",
    "metrics",
    "logging",
    "traces",
)


def load_config(path: str | Path, *, environment: Mapping[str, str] | None = None) -> PipelineConfig:
    """Read, resolve and validate the file. Raises `ConfigError`; its first line names the file."""
    path = Path(path)
    data = read_toml(path)
    try:
        return replace(config_from_dict(data, environment=environment), file=path.absolute())
    except ConfigError as error:
        count = len(error.problems)
        headline = f"{path} has {count} problem{'s' if count > 1 else ''}:"
        raise ConfigError(headline, *(f"  {problem}" for problem in error.problems)) from error


def read_toml(path: Path) -> TomlTable:
    """Read the file without resolving references. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            text = file.read(CONFIG_BYTES_MAX + 1)
        if len(text) > CONFIG_BYTES_MAX:
            raise ConfigError(f"{path} is larger than {CONFIG_BYTES_MAX >> 20} MiB, so it is no configuration.")
        # Some editors begin a text with a byte order mark.
        return tomllib.loads(text.decode("utf-8-sig"))
    except FileNotFoundError as cause:
        raise ConfigError(f"{path} cannot be read: {cause.strerror}. Write one with: raycdc init {path}") from cause
    except OSError as cause:
        raise ConfigError(f"{path} cannot be read: {cause.strerror}. Name a TOML file.") from cause
    except UnicodeDecodeError as cause:
        raise ConfigError(f"{path} is not UTF-8 text: {cause.reason} at byte {cause.start}") from cause
    except RecursionError as cause:
        raise ConfigError(f"{path} is not a configuration: its lists or tables are nested too deeply.") from cause
    except ValueError as cause:
        # TOML's own errors, and errors of Python, such as for a number of 5,000 digits or a path with a NUL.
        raise ConfigError(f"{path} is not valid TOML: {cause}") from cause


def config_from_dict(data: Mapping[str, Any], *, environment: Mapping[str, str] | None = None) -> PipelineConfig:
    """Validate parsed TOML. Raises `ConfigError` whose `problems` are one per mistake, each with its place."""
    return _Loader(data, os.environ if environment is None else environment).load()


def state_sections(
    data: TomlTable, *, environment: Mapping[str, str] | None = None
) -> tuple[PipelineOptions, StorageOptions]:
    """Return the sections that say where the state is.

    The other sections need not be valid. Raises `ConfigError`.
    """
    return _Loader(data, os.environ if environment is None else environment).state_sections()


def control_section(data: TomlTable, *, environment: Mapping[str, str] | None = None) -> ControlOptions:
    """Return the section ``[control]``. The other sections need not be valid. Raises `ConfigError`."""
    alone: TomlTable = {"control": data.get("control", {})}
    return _Loader(alone, os.environ if environment is None else environment).control_section()


class _Loader:
    def __init__(self, data: TomlTable, environment: Mapping[str, str]) -> None:
        self._resolver = ReferenceResolver(environment)
        self._data: TomlTable = self._resolver.resolve(dict(data))
        self._problems: list[str] = list(self._resolver.problems)
        self._warnings: list[str] = []

    def load(self) -> PipelineConfig:
        self._check_sections()
        sections: dict[str, Any] = {}
        for name, model in self._models().items():
            validated = self._section(name, model)
            if validated is not None:
                sections[name] = validated
                self._warn_about(validated, (name,))
        for name, (field, model) in REPEATED_SECTIONS.items():
            sections[field] = self._repeated(name, model)
            for index, options in enumerate(sections[field]):
                if options is not None:
                    self._warn_about(options, (name, index))
        if "source" in sections:
            repeated = {name: sections[field] for name, (field, _) in REPEATED_SECTIONS.items()}
            self._problems.extend(repeated_problems(sections["source"], **repeated))
        sections |= {field: tuple(filter(None, sections[field])) for field, _ in REPEATED_SECTIONS.values()}
        if self._problems:
            raise ConfigError(*self._problems)
        sections["source"] = sections["source"].for_sink(sections["sink"].type)
        return PipelineConfig(**sections, warnings=tuple(self._warnings))

    def state_sections(self) -> tuple[PipelineOptions, StorageOptions]:
        pipeline = self._section("pipeline", PipelineOptions)
        storage = self._section("storage", StorageOptions)
        if not isinstance(pipeline, PipelineOptions) or not isinstance(storage, StorageOptions) or self._problems:
            raise ConfigError(*self._problems)
        return pipeline, storage

    def control_section(self) -> ControlOptions:
        control = self._section("control", ControlOptions)
        if not isinstance(control, ControlOptions) or self._problems:
            raise ConfigError(*self._problems)
        return control

    def _check_sections(self) -> None:
        for name in self._data:
            if name not in _SECTIONS:
                hint = did_you_mean(name, _SECTIONS)
                self._problems.append(f"{name}: unknown section{hint or '. Known: ' + ', '.join(_SECTIONS)}")

    def _models(self) -> dict[str, type[Options]]:
        """Return the model of every section in the order of reported problems.

        A plug-in's model is included if its type is known.
        """
        models: dict[str, type[Options]] = {}
        for name in _SECTIONS:
            if name in COMMON_SECTIONS:
                models[name] = COMMON_SECTIONS[name]
            elif name in _PLUGIN_SECTIONS:
                model = self._plugin_model(name)
                if model is not None:
                    models[name] = model
        return models

    def _plugin_model(self, name: str) -> type[Options] | None:
        section = self._data.get(name)
        examples = {"source": 'type = "mysql"', "sink": 'type = "delta"'}
        if section is None:
            self._problems.append(f"[{name}] is missing. Add it, with {examples[name]}")
            return None
        plugin_type = section.get("type") if isinstance(section, dict) else None
        if not isinstance(plugin_type, str):
            self._problems.append(f"{name}.type: is required, e.g. {examples[name]}")
            return None
        try:
            plugin = load_plugin(_PLUGIN_SECTIONS[name], plugin_type)
        except ConfigError as error:
            self._problems.extend(error.problems)
            return None
        base = SourceConfig if name == "source" else SinkConfig
        if not issubclass(plugin.config, base):
            found = plugin.config.__name__
            self._problems.append(f"{name}.type: the plug-in {plugin_type!r} is broken: {found} is no {base.__name__}")
            return None
        return plugin.config

    def _repeated(self, name: str, model: type[Options]) -> tuple[Any, ...]:
        """Return the entries of a repeatable section; None for an invalid one."""
        data = self._data.get(name, [])
        if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
            self._problems.append(f"{name}: write each one under [[{name}]], in two pairs of brackets")
            return ()
        return tuple(self._validated(f"{name}[{index}]", model, item) for index, item in enumerate(data))

    def _section(self, name: str, model: type[Options]) -> Options | None:
        data = self._data.get(name, {})
        if not isinstance(data, dict):
            self._problems.append(f"[{name}] must be a table, got {show_value(data)}")
            return None
        return self._validated(name, model, data)

    def _validated(self, name: str, model: type[Options], data: TomlTable) -> Options | None:
        try:
            return model.model_validate(data)
        except (RecursionError, OverflowError):
            # Raised by the code of a validator: pydantic reports only its own errors and ValueErrors.
            self._problems.append(f"{name}: a value is too large, or too deeply nested, for what it stands for")
            return None
        except ValidationError as error:
            unresolved = {text.partition(": ")[0] for text in self._resolver.problems}
            for key_path, text in problems_of(
                error, model, name, redacted=self._redacted_paths(), elsewhere=self._keys_elsewhere(name)
            ):
                if show_key_path(key_path) not in unresolved:
                    self._problems.append(text)
            return None

    def _redacted_paths(self) -> set[KeyPath]:
        """Return the places of references, with entries of repeated sections named like in `_repeated`."""
        locations = self._resolver.locations
        return locations | {(show_key_path(p[:2]), *p[2:]) for p in locations if len(p) > 2 and isinstance(p[1], int)}

    def _keys_elsewhere(self, name: str) -> dict[str, str]:
        return {key: other for other, model in COMMON_SECTIONS.items() if other != name for key in model.model_fields}

    def _warn_about(self, options: BaseModel, key_path: KeyPath) -> None:
        self._warnings.extend(deprecated_keys(options, key_path))
        self._warn_about_literal_secrets(options, key_path)

    def _warn_about_literal_secrets(self, options: BaseModel, key_path: KeyPath) -> None:
        for name in type(options).model_fields:
            value = getattr(options, name)
            here: KeyPath = (*key_path, name)
            if isinstance(value, BaseModel):
                self._warn_about_literal_secrets(value, here)
            elif isinstance(value, dict):
                for key in filter(_SOUNDS_SECRET.search, value):
                    self._warn_about_literal(value[key], (*here, key))
            else:
                self._warn_about_literal(value, here)

    def _warn_about_literal(self, value: Any, key_path: KeyPath) -> None:
        if isinstance(value, Secret) and _may_be_secret(value.reveal()) and key_path not in self._resolver.locations:
            key = str(key_path[-1])
            self._warnings.append(
                f"{show_key_path(key_path)} is written in the configuration; keep it out of files with "
                f'{key} = "${{env:{key.upper().replace("-", "_")}}}" or "${{file:PATH}}"'
            )
