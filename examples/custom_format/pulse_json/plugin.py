"""The object that the entry point names. It imports quickly: the format itself is imported when a pipeline uses it."""

from __future__ import annotations

from raycdc.config import option
from raycdc.formats.options import FormatOptions
from raycdc.plugins import Plugin


class PulseOptions(FormatOptions):
    """The options of ``pulse-json``: those of every format, and one of its own."""

    hex_bytes: bool = option(default=True, help="Whether bytes are hexadecimal (as Pulse 2 writes them) or base64.")


PLUGIN = Plugin("pulse-json", "Pulse's change messages", PulseOptions, "pulse_json.format:PulseJson")
