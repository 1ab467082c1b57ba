"""Finds and loads sources, sinks and formats by their entry points, those of raycdc and those of other packages.

A package announces ``[project.entry-points."raycdc.sinks"] mything = "its.module:PLUGIN"`` where ``PLUGIN`` is a
`Plugin`. The module must import quickly: it has the configuration model and the *name* of the factory, which is
imported only when a pipeline runs. A plug-in that cannot be loaded raises an error with its name when its type is first
used; `raycdc plugins` lists it with that error.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from raycdc.errors import ConfigError

#: Packages that only some of raycdc's own plug-ins need, each with the extra that installs it.
_EXTRAS = {
    "pyiceberg": "iceberg",
    "confluent_kafka": "kafka",
    "pymongo": "mongodb",
    "pymongoarrow": "mongodb",
    "bson": "mongodb",
    "adbc_driver_postgresql": "postgresql",
    "adbc_driver_manager": "postgresql",
    "opentelemetry": "otel",
}


class PluginGroup(StrEnum):
    """The entry-point groups; the value is the group's name in a package's metadata."""

    SOURCES = "raycdc.sources"
    SINKS = "raycdc.sinks"
    FORMATS = "raycdc.formats"

    @property
    def section(self) -> str:
        """The place in the configuration where a type of this group is named."""
        return {"raycdc.sources": "source", "raycdc.sinks": "sink"}.get(self.value, "source.format")


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plug-in: the object that an entry point refers to.

    `name` is the ``type`` in the configuration and the entry point's own name. `config` is the pydantic model of the
    component's TOML section (a subclass of `raycdc.config.SourceConfig` or `SinkConfig`); `factory` is
    ``"module:callable"``, called with the validated configuration, and for a source with its `SourceContext`. `init`
    names the questions of ``raycdc init`` in the same form, as a subclass of
    `raycdc.config.init_questions.InitQuestions`. Its default asks for the section's required keys. `statements` names a
    function that parses this source's DDL statements when a message format carries them
    (`raycdc.source.connector.ReadStatement`). `positions` names a function that formats a position of this source
    (`raycdc.state.opaque.Position`) as one readable line.
    """

    name: str
    summary: str
    config: type[Any]
    factory: str
    init: str = "raycdc.config.init_questions:InitQuestions"
    statements: str = ""
    positions: str = ""

    def create(self, config: Any, *given: Any) -> Any:
        """Import the factory and call it with `config` and the other arguments `given`.

        Raises `ConfigError` with the plug-in's name if the import fails.
        """
        return self._imported(self.factory)(config, *given)

    def init_questions(self) -> Any:
        """Return the questions that ``raycdc init`` asks. Raises `ConfigError` as `create` does."""
        return self._imported(self.init)(self.name, self.config)

    def read_statement(self) -> Any:
        """Return the function that `statements` names. Raises `ConfigError` as `create` does."""
        return self._imported(self.statements)

    def position_text(self) -> Any:
        """Return the function that `positions` names. Raises `ConfigError` as `create` does."""
        return self._imported(self.positions)

    def _imported(self, key_path: str) -> Callable[..., Any]:
        module_name, _, attribute = key_path.partition(":")
        try:
            made: Callable[..., Any] = getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError) as cause:
            if isinstance(cause, ModuleNotFoundError) and (missing := missing_extra(str(cause.name))):
                raise ConfigError(f"type = {self.name!r} {missing}") from cause
            raise ConfigError(f"The plug-in for type {self.name!r} is broken: {key_path}: {cause}") from cause
        return made


def missing_extra(module: str) -> str:
    """Return a message about the extra to install for a missing `module`; empty if raycdc itself requires
    the module.
    """
    extra = _EXTRAS.get(module.partition(".")[0])
    return f"needs a package that is not installed ({module}). Run: pip install 'raycdc[{extra}]'" if extra else ""


@dataclass(frozen=True, slots=True)
class PluginListing:
    """One line of `raycdc plugins`: a type, its package, and the error that prevents loading it, if any."""

    group: PluginGroup
    type: str
    package: str
    summary: str
    error: str | None


def load_plugin(group: PluginGroup, plugin_type: str, *, key_path: str | None = None) -> Plugin:
    """Return the plug-in for `plugin_type`.

    Raises `ConfigError` at `key_path` if it is unknown or cannot be loaded.
    """
    at = f"{key_path or group.section + '.type'}: "
    found = _discover(group).get(plugin_type)
    if found is None:
        raise ConfigError(at + _unknown(group, plugin_type))
    if len(found) > 1:
        packages = " and ".join(sorted({_package(point) for point in found}))
        raise ConfigError(f"{at}{plugin_type!r} is claimed by {packages}. Uninstall one of them.")
    plugin = _load(found[0])
    if isinstance(plugin, str):
        raise ConfigError(at + plugin)
    return plugin


def list_plugins() -> list[PluginListing]:
    """Return every announced plug-in, including those that cannot be loaded, in order of group and type."""
    listings: list[PluginListing] = []
    for group in PluginGroup:
        for plugin_type, points in sorted(_discover(group).items()):
            for point in points:
                plugin = _load(point)
                error = plugin if isinstance(plugin, str) else None
                summary = "" if isinstance(plugin, str) else plugin.summary
                listings.append(PluginListing(group, plugin_type, _package(point), summary, error))
    return listings


def third_parties() -> list[str]:
    """Return the plug-ins of other packages that this process has imported, each with its package."""
    points = [point for group in PluginGroup for same in _discover(group).values() for point in same]
    return [
        f"{point.name} (package {_package(point)})"
        for point in points
        if point.module in sys.modules and not point.module.startswith("raycdc.")
    ]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean "…"?``, or an empty text if no known name is similar."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def _unknown(group: PluginGroup, plugin_type: str) -> str:
    available = ", ".join(sorted(_discover(group))) or "none"
    hint = did_you_mean(plugin_type, _discover(group))
    return f'unknown type "{plugin_type}"{hint or "."} Available: {available}'


@cache
def _discover(group: PluginGroup) -> dict[str, tuple[EntryPoint, ...]]:
    plugins: dict[str, tuple[EntryPoint, ...]] = {}
    for point in dict.fromkeys(entry_points(group=group.value)):
        same = plugins.get(point.name, ())
        # A development install may be found twice, in the project directory and in site-packages. Two entries with the
        # same target are one plug-in.
        if not any(other.value == point.value for other in same):
            plugins[point.name] = (*same, point)
    return plugins


def _load(point: EntryPoint) -> Plugin | str:
    """Return the plug-in, or a message that says why it cannot be loaded."""
    try:
        plugin = point.load()
    except Exception as cause:  # noqa: BLE001 - a third party's module may raise anything; the text goes to the user
        return f"{_broken(point)}{type(cause).__name__}: {cause}"
    if not isinstance(plugin, Plugin):
        return f"{_broken(point)}it is a {type(plugin).__name__}, not a raycdc.plugins.Plugin"
    return plugin


def _broken(point: EntryPoint) -> str:
    """Return the beginning of the message about a plug-in that cannot be loaded.

    Called only for such plug-ins, because finding the name of the package reads all its metadata.
    """
    return f"the plug-in {point.name!r} of {_package(point)} ({point.value}) is broken: "


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"
