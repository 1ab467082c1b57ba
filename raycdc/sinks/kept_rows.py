"""Whether rows that somebody else rewrote in a lake's table are still what this pipeline had written.

A compaction by hand, a column of others that gets its values, and an UPDATE of ours all take files out and put others
in, and their counts may be alike. So the rows themselves are compared, by the columns of the source table alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.model import key_hashes

#: Rewritten files up to this size, on both sides together, are read and compared: about ten seconds. Whoever rewrites
#: more is believed to keep the rows, unless the numbers of rows say otherwise.
COMPARED_BYTES_MAX = 1 << 30


def are_kept(before: Iterable[pa.RecordBatch], after: Iterable[pa.RecordBatch], columns: Sequence[str]) -> bool:
    """Whether each row of `before`, as `columns` say it, is also one of `after`, which may have more. Both have these
    columns with the same types. Holds eight bytes per row.
    """
    old, many = np.unique(_hashes(before, columns), return_counts=True)
    new, more = np.unique(_hashes(after, columns), return_counts=True)
    there = np.isin(new, old)
    return int(there.sum()) == len(old) and bool((more[there] >= many).all())


def _hashes(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    none = np.zeros(0, np.uint64)
    return np.concatenate([none, *(key_hashes(batch, columns) for batch in batches if batch.num_rows)])
