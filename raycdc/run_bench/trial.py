"""The configuration of a run that is measured: the user's own, with a state and a target that are thrown away."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raycdc.config import PipelineConfig, config_from_dict
from raycdc.config.toml import TomlTable, TomlValue
from raycdc.errors import ConfigError

#: The sink in whose place `--into` puts files, which cost little beside the way to them.
PLAIN = "parquet"
#: Sections by which others hear of the real pipeline, and would take a measured run for it.
TOLD_TO_OTHERS = ("traces", "notify", "metrics", "logging")


@dataclass(frozen=True, slots=True)
class Setting:
    """Another value of a key, as ``readers.max=4``."""

    key: str
    value: TomlValue

    @classmethod
    def parse(cls, text: str) -> Setting:
        """`ConfigError` for what is no such text."""
        key, equals, value = text.partition("=")
        if not equals or "." not in key.strip(". "):
            raise ConfigError(f'--try "{text}" is no KEY=VALUE with a section in the key, such as readers.max=4.')
        try:
            return cls(key.strip(), tomllib.loads(f"value = {value}")["value"])
        except ValueError:
            return cls(key.strip(), value.strip())

    def put_into(self, data: TomlTable) -> TomlTable:
        """Parsed TOML with this value."""
        return _with(data, self.key.split("."), self.value)


def trial_config(data: TomlTable, settings: Sequence[Setting], folder: Path, *, into: str = "") -> PipelineConfig:
    """The configuration `data` with other `settings`, a state and a target in `folder`.

    `ConfigError` where the configuration is wrong, or its sink has no folder that could be another one. With `into` its
    sink is one of files, of that type.
    """
    # Most of what is measured would be in process, and a pipeline spends its life on Ray and Spark.
    changed = _with(data, ["pipeline", "start_in_process"], value=False)
    for setting in settings:
        changed = setting.put_into(changed)
    changed = _with(changed, ["pipeline", "state"], str(folder / "state"))
    # Copies of segments are the real pipeline's, like offsets that a group shows, and the port of its door.
    changed = _with(changed, ["pipeline", "spool"], None)
    # Of a state on an object store, which this one is not.
    changed = _with(changed, ["pipeline", "work"], None)
    changed = _with(changed, ["source", "group_id"], None)
    changed = _with(changed, ["control"], {"enabled": False})
    for section in TOLD_TO_OTHERS:
        changed = _with(changed, [section], None)
    place = str(folder / "target")
    if into:
        write: TomlTable = {} if into == "delta" else {"write": "changelog"}
        return config_from_dict({**changed, "sink": {"type": into, "path": place, **write}})
    sink = config_from_dict(changed).sink
    if not sink.folder or "path" not in _section(changed, "sink"):
        raise ConfigError(
            f'raycdc bench run: a target of sink.type = "{sink.type}" that is no folder of this machine is not thrown '
            f"away so easily. Measure all but the sink with --into {PLAIN}, or with --into delta."
        )
    return config_from_dict(_with(changed, ["sink", "path"], place))


def _section(data: TomlTable, name: str) -> TomlTable:
    section = data.get(name, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name} is no section.")
    return section


def _with(data: TomlTable, path: Sequence[str], value: TomlValue | None) -> TomlTable:
    """`data` with a value at this path; None takes it out."""
    name, *rest = path
    if rest:
        value = _with(_section(data, name), rest, value)
    return {key: each for key, each in {**data, name: value}.items() if each is not None}
