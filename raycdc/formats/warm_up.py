"""Compiles all loops of the formats, so that no command and no reader compiles at its first message."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from raycdc.formats.api import MessageBatch, Origin
from raycdc.formats.json.maxwell_json import MaxwellJson
from raycdc.formats.options import FormatOptions

_MESSAGE = b'{"database":"d","table":"t","type":"insert","ts":1,"data":{"a":1,"b":"x"}}'


def compile_all() -> None:
    """Compile every loop, or find it compiled. Takes about a minute the first time."""
    decoder = MaxwellJson(FormatOptions(type="maxwell-json")).decoder()
    values = pa.array([_MESSAGE], pa.large_binary())
    decoder.decode(MessageBatch(Origin("warm"), values, np.zeros(1, np.int64)))
