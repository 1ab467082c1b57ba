"""Constants of a schema as values: the default that rows which exist get in an added column.

The text is the one a `Column` carries as its default: what its type shows, TIMESTAMP in UTC, BINARY as UTF-8.
"""

from __future__ import annotations

import pyarrow as pa


def constant(text: str, arrow: pa.DataType) -> pa.Scalar:
    """`text` as a value of `arrow`. Raises `pa.ArrowException` where it is none."""
    scalar = pa.scalar(text)
    # A moment is read without a zone first: Arrow wants one in the text of a type that has one.
    return scalar.cast(pa.timestamp("us")).cast(arrow) if pa.types.is_timestamp(arrow) else scalar.cast(arrow)
