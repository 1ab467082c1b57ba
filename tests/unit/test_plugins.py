"""The plug-in door: broken, doubled, unknown and foreign plug-ins."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from raycdc import plugins
from raycdc.cli.entry import main
from raycdc.config import SinkConfig
from raycdc.errors import ConfigError, ExitCode
from raycdc.plugins import Plugin, PluginGroup, list_plugins, load_plugin

GOOD = Plugin("good", "a sink", SinkConfig, "builtins:repr")
NOT_A_PLUGIN = object()
NO_FACTORY = Plugin("nofactory", "", SinkConfig, "nowhere.at.all:Sink")


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Entry points the test announces, in place of the installed ones."""
    points: list[EntryPoint] = []

    def found(*, group: str) -> list[EntryPoint]:
        return [point for point in points if point.group == group]

    monkeypatch.setattr(plugins, "entry_points", found)
    plugins._discover.cache_clear()
    yield points
    plugins._discover.cache_clear()


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, "raycdc.sinks")


def failure(plugin_type: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_plugin(PluginGroup.SINKS, plugin_type)
    return str(caught.value)


def test_a_third_party_is_created_by_its_factory(announced: list[EntryPoint]) -> None:
    announced.append(point("good", f"{__name__}:GOOD"))
    plugin: Any = load_plugin(PluginGroup.SINKS, "good")
    assert plugin is GOOD
    assert plugin.create("a configuration") == "'a configuration'"


def test_an_unexpected_error_names_the_third_party_whose_plugin_is_in_use(
    announced: list[EntryPoint], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_words: list[str]) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("raycdc.cli.app.run_app", fails)
    announced += [point("delta", "raycdc.sinks.delta.plugin:DELTA"), point("unused", "not_imported:PLUGIN")]
    load_plugin(PluginGroup.SINKS, "delta")
    assert main(["run"]) == ExitCode.BUG
    assert capsys.readouterr().err.endswith("This is a bug in raycdc; please report it with the lines above.\n")
    package = SimpleNamespace(name="raycdc-good")
    monkeypatch.setattr(EntryPoint, "dist", property(lambda _point: package))
    announced.append(point("good", f"{__name__}:GOOD"))
    plugins._discover.cache_clear()
    assert main(["run"]) == ExitCode.BUG
    text = capsys.readouterr().err
    assert "ZeroDivisionError" in text
    assert text.splitlines()[-1] == (
        "This is a bug in the plug-in good (package raycdc-good) or in raycdc; report it there first, with the lines "
        "above."
    )


def test_a_broken_plugin_is_named_when_asked_for_and_listed(announced: list[EntryPoint]) -> None:
    announced += [point("gone", "no.such.module:PLUGIN"), point("odd", f"{__name__}:NOT_A_PLUGIN")]
    assert failure("gone") == (
        "sink.type: the plug-in 'gone' of an unknown package (no.such.module:PLUGIN) is broken: "
        "ModuleNotFoundError: No module named 'no'"
    )
    assert failure("odd").endswith("is broken: it is a object, not a raycdc.plugins.Plugin")
    assert [(p.type, p.error is None) for p in list_plugins()] == [("gone", False), ("odd", False)]


def test_a_factory_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"type 'nofactory' is broken: nowhere.at.all:Sink: No module named 'nowhere'"
    ):
        NO_FACTORY.create(None)


def test_a_type_two_packages_claim_is_refused(announced: list[EntryPoint]) -> None:
    announced += [point("good", f"{__name__}:GOOD"), point("good", f"{__name__}:NO_FACTORY")]
    assert failure("good") == "sink.type: 'good' is claimed by an unknown package. Uninstall one of them."


def test_unknown_types_get_a_suggestion(announced: list[EntryPoint]) -> None:
    announced.append(point("good", f"{__name__}:GOOD"))
    assert failure("god") == 'sink.type: unknown type "god"; did you mean "good"? Available: good'
    assert failure("xyz") == 'sink.type: unknown type "xyz". Available: good'
