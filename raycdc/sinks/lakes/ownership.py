"""Whose a lake's table is, and whose each of its columns: what this pipeline notes in the table's properties. Pure.

A column that its source table has no more stays in the target where changes are followed leniently, and is null in
every row that is written since. A column that somebody else added to the target is theirs: rows that are updated keep
its values. So the table itself names those of its columns that were left behind.

Whether rows that somebody else rewrote in a lake's table are still what this pipeline had written.

A compaction by hand, a column of others that gets its values, and an UPDATE of ours all take files out and put others
in, and their counts may be alike. So the rows themselves are compared, by the columns of the source table alone.
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
    """The notes of a table for the pipeline `app_id`: who made or emptied it, and, as JSON text, which of its columns
    this pipeline left behind. None where it was a raycdc that wrote no such note.
    """

    app_id: str
    created_by: str
    left: str | None

    @classmethod
    def of(cls, properties: Mapping[str, str | None], app_id: str, created_by: str) -> Ownership:
        """As the `properties` of a table say it; `created_by` is the name of one of them."""
        return cls(app_id, properties.get(created_by) or "", properties.get(left_property(app_id)))

    @property
    def created_by_us(self) -> bool:
        """Whether this pipeline created or emptied the table, so that a snapshot row cannot be in it yet."""
        return self.created_by == self.app_id

    @property
    def created_by_pipeline(self) -> bool:
        """Whether this pipeline did, with this state or another one."""
        return is_of_pipeline(self.created_by, self.app_id)

    def left_behind(self, present: Sequence[str], source: Collection[str]) -> list[str]:
        """The columns, of those `present` in the table, that are null in rows to come, although the table's `source`
        lacks them; all of them where this pipeline created a table that does not say.
        """
        others = [name for name in present if name not in source]
        if self.left is None:
            return others if self.created_by_us else []
        left = json.loads(self.left)
        return [name for name in others if name in left]

    def note(self, present: Sequence[str], source: Collection[str]) -> dict[str, str]:
        """The property that an older raycdc did not give the table; empty where it has it, or needs none."""
        if self.left is not None or not self.created_by_us:
            return {}
        return {left_property(self.app_id): _text(self.left_behind(present, source))}

    def note_after(
        self, changes: Sequence[SchemaChangeEvent], present: Sequence[str], source: Collection[str]
    ) -> dict[str, str]:
        """The property after `changes` of the source table, which has the columns `source` by then and leave the
        target those `present`.
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
    """The property of a table that has no column but those of its source."""
    return {left_property(app_id): _text(())}


def left_property(app_id: str) -> str:
    """The table property that names the columns that the pipeline left behind."""
    return f"raycdc.left-behind.{hashlib.sha256(app_id.encode()).hexdigest()[:16]}"


def _text(names: Collection[str]) -> str:
    return json.dumps(sorted(names), ensure_ascii=False)


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
