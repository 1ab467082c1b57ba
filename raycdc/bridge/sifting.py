"""A segment written anew without its bad rows, and the letters of these: both are there in the end, or neither is.

Called by whoever makes segments of segments (`raycdc.epochs.sieve`, `raycdc.spark.derive`), on a thread of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from raycdc.bridge.bad_rows import Sifted
from raycdc.bridge.letters import Letters
from raycdc.bridge.segment import SegmentWriter

#: Rows that stay, how many bad ones were among them, and what the first of these has.
Sieved = tuple[pa.RecordBatch, int, str]


def write_sifted(writer: SegmentWriter, letters: Letters | None, batches: Iterable[Sieved], *, seq_base: int) -> Sifted:
    """The segment that `writer` makes of `batches`; none where no row stays. `letters` are those that making `batches`
    writes to. Blocks on the disk; whatever is raised meanwhile leaves neither a segment nor letters.
    """
    count, why = 0, ""
    try:
        for rows, bad, first in batches:
            count, why = count + bad, why or first
            writer.append(rows)
        segment = writer.finish(seq_base=seq_base) if writer.rows else None
        if letters is not None:
            letters.close()
    except BaseException:
        writer.abort()
        if letters is not None:
            letters.abort()
        raise
    return Sifted(segment, count, why)
