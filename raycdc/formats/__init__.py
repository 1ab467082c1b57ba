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
    """Compile every loop of the formats into the user's cache. Quick if that was done before."""
    from raycdc.formats.warm_up import compile_all

    compile_all()
