"""Formats: conversions between bytes of messages and changelog batches.

All of them are loaded through ``raycdc.formats``.
"""

from __future__ import annotations

from raycdc.formats.api import (
    BadMessage,
    BadMessageError,
    ChangeItem,
    CorruptMessageError,
    Decoded,
    EncodedBatch,
    Format,
    FormatDecoder,
    FormatEncoder,
    MessageBatch,
    MissingBeforeImageError,
    Origin,
    RowsItem,
    UnknownTypeError,
    UnrepresentableValueError,
)

__all__ = [
    "BadMessage",
    "BadMessageError",
    "ChangeItem",
    "CorruptMessageError",
    "Decoded",
    "EncodedBatch",
    "Format",
    "FormatDecoder",
    "FormatEncoder",
    "MessageBatch",
    "MissingBeforeImageError",
    "Origin",
    "RowsItem",
    "UnknownTypeError",
    "UnrepresentableValueError",
    "warm_up",
]


def warm_up() -> None:
    """Compile every loop of the formats into the user's cache, so that no reader compiles at its first message.

    Takes about a minute the first time, and is quick afterwards.
    """
    import numpy as np
    import pyarrow as pa

    from raycdc.formats.json.maxwell_json import MaxwellJson
    from raycdc.formats.options import FormatOptions

    decoder = MaxwellJson(FormatOptions(type="maxwell-json")).decoder()
    message = b'{"database":"d","table":"t","type":"insert","ts":1,"data":{"a":1,"b":"x"}}'
    decoder.decode(MessageBatch(Origin("warm"), pa.array([message], pa.large_binary()), np.zeros(1, np.int64)))
