"""The keys that differ: as people read them, and as a backfill takes them.

A backfill reads them again, and deletes those that the source has not. Sides are read once more for them, because a
comparison knows keys by their hashes. Used by `raycdc.verify.table`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from raycdc.model import TableSchema
from raycdc.source.snapshot.key_list import lists_of_keys
from raycdc.verify.canonical import Compared
from raycdc.verify.digests import Differing
from raycdc.verify.results import ShownKeys

#: Beyond so many keys a table is read anew as a whole: they are in the state, and each is looked up by itself.
KEYS_MAX = 10_000


class KeyTexts:
    """Gathers the keys of `found` as texts."""

    def __init__(self, compared: Compared, found: Differing) -> None:
        self._compared, self._found = compared, found
        self._wanted = np.sort(found.keys())
        self._texts: dict[int, str] = {}

    def look(self, columns: Mapping[str, pa.Array], rows: int) -> None:
        """Rows of either side, by the names of the compared columns."""
        keys = self._compared.key_hashes(columns, rows)
        for place in np.flatnonzero(np.isin(keys, self._wanted)):
            values = [str(columns[part.name][int(place)].as_py()) for part in self._compared.key]
            self._texts.setdefault(int(keys[place]), ", ".join(values))

    @property
    def is_complete(self) -> bool:
        return len(self._texts) == len(np.unique(self._wanted))

    def shown(self, most: int) -> ShownKeys:
        """The first of each kind."""
        kinds = (self._found.missing, self._found.extra, self._found.changed)
        lists = (sorted(self._texts[int(key)] for key in kind if int(key) in self._texts) for kind in kinds)
        return ShownKeys(*(each[:most] for each in lists))


class KeysToRepair:
    """Gathers the keys with the hashes `wanted` (ascending). `source_key` says which column of the source each part of
    the compared key is.
    """

    def __init__(
        self, compared: Compared, source_key: Mapping[str, str], schema: TableSchema, wanted: np.ndarray
    ) -> None:
        self._compared, self._wanted = compared, wanted
        self._columns = source_key
        self._schema = pa.schema([(name, schema.column(name).type.arrow()) for name in source_key.values()])
        self._found: list[pa.Table] = []
        self._seen: set[int] = set()

    def look(self, columns: Mapping[str, pa.Array], rows: int) -> None:
        """Rows of either side, by the names of the compared columns. `ArrowException` for a key that no row of the
        source can have.
        """
        hashes = self._compared.key_hashes(columns, rows)
        places = [place for place in np.flatnonzero(np.isin(hashes, self._wanted)) if self._is_new(int(hashes[place]))]
        if places:
            taken = pa.array(places)
            named = zip(self._columns, self._schema, strict=True)
            arrays = [columns[part].take(taken).cast(field.type) for part, field in named]
            self._found.append(pa.Table.from_arrays(arrays, schema=self._schema))

    @property
    def is_complete(self) -> bool:
        return len(self._seen) == len(np.unique(self._wanted))

    def lists(self) -> tuple[str, ...]:
        """All of them, in lists (`lists_of_keys`); none where a key was on neither side any more."""
        if not self.is_complete:
            return ()
        return lists_of_keys(pa.concat_tables(self._found))

    def _is_new(self, key: int) -> bool:
        known = key in self._seen
        self._seen.add(key)
        return not known
