"""Recent answers of a dimension: documents and their absence, up to an age, a number of keys and of bytes.

Columns, no objects: a look is one hash join of the keys asked for with those that are known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.lookup.api import KEY

_FOUND = "_raycdc_found"
_SINCE = "_raycdc_since"
#: Bytes that one cache remembers: documents may have 16 MiB each, and Arrow's columns of text end at 2 GiB.
CACHE_BYTES_MAX = 256 << 20


class Cache:
    """Safe to use from several threads. `rows_max` keys and `bytes_max` bytes are remembered, the newest; each for
    `ttl_s`, counted from before it was asked for, so that nothing that comes out is older.
    """

    def __init__(
        self,
        *,
        rows_max: int,
        ttl_s: float,
        bytes_max: int = CACHE_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        #: Oldest first; replaced as a whole.
        self._entries: pa.Table | None = None

    def __repr__(self) -> str:
        return f"Cache({0 if self._entries is None else self._entries.num_rows} of {self._rows_max} keys)"

    def known(self, keys: pa.Array) -> tuple[pa.Table | None, pa.Array]:
        """The documents known of `keys`, and the keys of which nothing is known, not even that there is none."""
        entries = self._fresh(self._entries)
        if entries is None or not entries.num_rows:
            return None, keys
        places = pc.index_in(keys, value_set=entries.column(KEY).combine_chunks())
        hits = entries.take(places.drop_null())
        documents = hits.filter(hits.column(_FOUND)).drop_columns([_FOUND, _SINCE])
        return documents, keys.filter(places.is_null())

    def add(self, asked: pa.Array, documents: pa.Table, *, since: float) -> None:
        """`documents` were all that there were of `asked`, at some time after `since`."""
        places = pc.index_in(asked, value_set=documents.column(KEY).combine_chunks())
        added = documents.take(places).set_column(documents.schema.get_field_index(KEY), KEY, asked)
        added = added.append_column(_FOUND, places.is_valid())
        added = added.append_column(_SINCE, pa.array(np.full(len(asked), since)))
        with self._lock:
            entries = self._fresh(self._entries)
            if entries is not None:
                older = pc.is_in(entries.column(KEY), value_set=asked)
                added = pa.concat_tables([entries.filter(pc.invert(older)), added])
            self._entries = self._newest(added).combine_chunks()

    def _newest(self, entries: pa.Table) -> pa.Table:
        entries = entries.slice(max(0, entries.num_rows - self._rows_max))
        while entries.nbytes > self._bytes_max:
            # As many as there is room for by their mean; that of the newest may be greater.
            entries = entries.slice(entries.num_rows - entries.num_rows * self._bytes_max // entries.nbytes)
        return entries

    def _fresh(self, entries: pa.Table | None) -> pa.Table | None:
        if entries is None:
            return None
        return entries.filter(pc.greater(entries.column(_SINCE), self.clock() - self._ttl_s))
