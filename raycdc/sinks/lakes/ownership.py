"""The owner of a lake's table and of its columns, which this pipeline notes in the table's properties. Pure.

If changes are followed leniently, a column that the source table has dropped stays in the target, and is null in later
rows. A column that another writer added belongs to that writer, and updated rows keep its values. To tell the two
apart, the table's properties list the columns that the source has dropped.

`are_kept` checks that rows rewritten by others in a lake's table are still those that this pipeline wrote. A manual
compaction, new values in another writer's column, and an UPDATE of our rows all replace files, possibly with the same
numbers of rows. The rows themselves are therefore compared, by the columns of the source table only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.model import key_hashes
from raycdc.model.evolution.events import AddColumnEvent, DropColumnEvent, RenameColumnEvent, SchemaChangeEvent
from raycdc.sinks.targets import is_of_pipeline


@dataclass(frozen=True, slots=True)
class Ownership:
    """The notes in a table's properties for the pipeline `app_id`: who created or emptied it, and which columns the
    source dropped.

    `left` is JSON text; None if a version of raycdc without this note wrote the table.
    """

    app_id: str
    created_by: str
    left: str | None

    @classmethod
    def of(cls, properties: Mapping[str, str | None], app_id: str, created_by: str) -> Ownership:
        """Return the notes in the `properties` of a table; `created_by` is the name of the property with its
        creator.
        """
        return cls(app_id, properties.get(created_by) or "", properties.get(left_property(app_id)))

    @property
    def created_by_us(self) -> bool:
        """Return True if this pipeline created or emptied the table, so that it has no snapshot rows yet."""
        return self.created_by == self.app_id

    @property
    def created_by_pipeline(self) -> bool:
        """Return True if this pipeline created or emptied the table, with this state or another one."""
        return is_of_pipeline(self.created_by, self.app_id)

    def left_behind(self, present: Sequence[str], source: Collection[str]) -> list[str]:
        """Return those columns `present` in the table, and missing in the table's `source`, that are null in new rows.

        If the table has no note and this pipeline created it, these are all columns that the source lacks.
        """
        others = [name for name in present if name not in source]
        if self.left is None:
            return others if self.created_by_us else []
        left = json.loads(self.left)
        return [name for name in others if name in left]

    def note(self, present: Sequence[str], source: Collection[str]) -> dict[str, str]:
        """Return the property that an older raycdc did not set; empty if the table has it, or needs none."""
        if self.left is not None or not self.created_by_us:
            return {}
        return {left_property(self.app_id): _text(self.left_behind(present, source))}

    def note_after(
        self, changes: Sequence[SchemaChangeEvent], present: Sequence[str], source: Collection[str]
    ) -> dict[str, str]:
        """Return the property after `changes` of the source table.

        After them, `source` are the source's columns, and `present` those of the target.
        """
        left = set(self.left_behind(present, source))
        for event in changes:
            match event:
                case DropColumnEvent(_, name):
                    left.add(name)
                case RenameColumnEvent(_, name, new_name):
                    left.add(name)
                    left.discard(new_name)
                case AddColumnEvent(_, column, _):
                    left.discard(column.name)
        return {left_property(self.app_id): _text(left.intersection(present).difference(source))}


def nothing_left(app_id: str) -> dict[str, str]:
    """Return the property of a table that has no columns except those of its source."""
    return {left_property(app_id): _text(())}


def left_property(app_id: str) -> str:
    """Return the name of the table property that lists the columns that the source dropped."""
    return f"raycdc.left-behind.{hashlib.sha256(app_id.encode()).hexdigest()[:16]}"


def _text(names: Collection[str]) -> str:
    return json.dumps(sorted(names), ensure_ascii=False)


#: The most bytes of old and new files that are read and compared, which takes about ten seconds. Larger rewrites are
#: assumed to keep the rows, unless the numbers of rows contradict that.
COMPARED_BYTES_MAX = 1 << 30


def are_kept(before: Iterable[pa.RecordBatch], after: Iterable[pa.RecordBatch], columns: Sequence[str]) -> bool:
    """Return True if each row of `before`, compared by `columns`, is also in `after`, which may have more.

    Both have these columns with the same types. Uses eight bytes per row.
    """
    old, many = np.unique(_hashes(before, columns), return_counts=True)
    new, more = np.unique(_hashes(after, columns), return_counts=True)
    there = np.isin(new, old)
    return int(there.sum()) == len(old) and bool((more[there] >= many).all())


def _hashes(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    none = np.zeros(0, np.uint64)
    return np.concatenate([none, *(key_hashes(batch, columns) for batch in batches if batch.num_rows)])
