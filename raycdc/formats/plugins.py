"""The built-in formats as plug-ins, and `load_format`.

Imports quickly, because decoders are imported only when they are used.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from raycdc.errors import ConfigError
from raycdc.formats.api import Format
from raycdc.formats.json.canal_json import CanalOptions
from raycdc.formats.json.debezium_json import DebeziumOptions
from raycdc.formats.options import FormatOptions
from raycdc.plugins import Plugin, PluginGroup, load_plugin

MAXWELL_JSON = Plugin(
    "maxwell-json",
    "Maxwell's daemon: rows, bootstraps, definitions",
    FormatOptions,
    "raycdc.formats.json.maxwell_json:MaxwellJson",
)
CANAL_JSON = Plugin(
    "canal-json", "Canal's flat messages, several rows each", CanalOptions, "raycdc.formats.json.canal_json:CanalJson"
)
DEBEZIUM_JSON = Plugin(
    "debezium-json",
    "Debezium's change events, with or without schema, MongoDB's too",
    DebeziumOptions,
    "raycdc.formats.json.debezium_json:DebeziumJson",
)
OGG_JSON = Plugin("ogg-json", "Oracle GoldenGate's JSON", FormatOptions, "raycdc.formats.json.ogg_json:OggJson")
PLAIN_JSON = Plugin("json", "Every message is a row", FormatOptions, "raycdc.formats.json.plain_json:PlainJson")


def load_format(identifier: str, *, key_path: str = "source.format", **options: Any) -> Format:
    """Return the format called `identifier` with `options`.

    Raises `ConfigError` at `key_path` with all problems.
    """
    plugin = load_plugin(PluginGroup.FORMATS, identifier.replace("_", "-"), key_path=key_path)
    try:
        config = plugin.config(type=plugin.name, **options)
    except ValidationError as error:
        problems = (
            f"{key_path}.{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
            for problem in error.errors()
        )
        raise ConfigError(*problems) from error
    created: Format = plugin.create(config)
    return created
