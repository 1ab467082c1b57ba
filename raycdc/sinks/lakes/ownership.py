"""Records in the properties of a lake's table which writer the table and its columns belong to. Pure.

A target may have columns that its source table lacks. If changes are followed leniently, a column that the source has
dropped stays in the target, and is null in later rows. A column that another writer added belongs to that writer, and
updated rows keep its values. The table's properties list the columns that the source has dropped, so that the two kinds
can be distinguished. They also list the columns that the last schema change added, so that a repeated change does not
take them for those of another writer (`require_own_names`).

`are_kept` checks that rows which another writer rewrote still have the values that this pipeline wrote. A manual
compaction, new values in another writer's column, and an UPDATE of this pipeline's rows all replace files, possibly
with the same numbers of rows. Only a comparison of the rows shows the difference; it uses the columns of the source
table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.errors import TargetModifiedError
from raycdc.model import key_hashes
from raycdc.model.column_names import spark_fold
from raycdc.model.evolution.events import AddColumnEvent, DropColumnEvent, RenameColumnEvent, SchemaChangeEvent
from raycdc.sinks.targets import is_of_pipeline


@dataclass(frozen=True, slots=True)
class Ownership:
    """The properties of a table that record, for the pipeline `app_id`, the pipeline that created or emptied the table,
    and the columns that the source dropped. `left` is the JSON text of these columns; None if an older version of
    raycdc wrote the table.
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
        """Return True if a pipeline with this name created or emptied the table, with this state or with an earlier
        one.
        """
        return is_of_pipeline(self.created_by, self.app_id)

    def left_behind(self, present: Sequence[str], source: Collection[str]) -> list[str]:
        """Return the columns of the table that the source dropped and that are null in new rows. `present` are the
        columns of the table, and `source` those of its source table. If the table has no such property and this
        pipeline created it, all columns that the source lacks are returned.
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

    def require_own_names(
        self, location: str, events: Sequence[SchemaChangeEvent], overwritten: Collection[str]
    ) -> None:
        """Raise `TargetModifiedError` if a column of another writer would lose its values to a column that `events` add
        or rename. `overwritten` are the columns of the table that do not keep their values.
        """
        if self.left is None and self.created_by_us:
            return  # An older version of raycdc did not record whose the columns are.
        ours = {spark_fold(name) for name in json.loads(self.left or "[]")}
        ours.update(
            spark_fold(event.name) for event in events if isinstance(event, DropColumnEvent | RenameColumnEvent)
        )
        new = {spark_fold(name) for name in new_names(events)} - ours
        if theirs := sorted(name for name in overwritten if spark_fold(name) in new):
            raise TargetModifiedError(
                f"{location} has the column {theirs[0]} of another writer, and the source has a column of that name "
                "now, which would replace the values there. Nothing was written. Rename or drop the other writer's "
                "column, or route the table to another name."
            )

    def note_after(
        self,
        changes: Sequence[SchemaChangeEvent],
        present: Sequence[str],
        source: Collection[str],
        *,
        added: Collection[str] = (),
    ) -> dict[str, str]:
        """Return the value of the property after `changes` of the source table. `source` are the source's columns after
        the changes, and `present` those of the target, of which the changes `added` some.
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
        left = left.intersection(present).difference(source)
        return {left_property(self.app_id): _text(left.union(added).intersection(present))}


def new_names(events: Sequence[SchemaChangeEvent]) -> list[str]:
    """Return the names that `events` give to added and renamed columns."""
    names = []
    for event in events:
        match event:
            case AddColumnEvent(_, column, _):
                names.append(column.name)
            case RenameColumnEvent(_, _, new_name):
                names.append(new_name)
            case _:
                pass
    return names


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
    """Return True if each row of `before` is also in `after`, compared by `columns`. `after` may have additional rows.
    Both have these columns with the same types. Uses eight bytes of memory per row.
    """
    old, many = np.unique(_hashes(before, columns), return_counts=True)
    new, more = np.unique(_hashes(after, columns), return_counts=True)
    there = np.isin(new, old)
    return int(there.sum()) == len(old) and bool((more[there] >= many).all())


def _hashes(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    none = np.zeros(0, np.uint64)
    return np.concatenate([none, *(key_hashes(batch, columns) for batch in batches if batch.num_rows)])
