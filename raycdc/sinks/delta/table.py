"""A handle of one Delta table: its columns, and the pipeline's vector in its log. `commits` writes to the table. Called
by `sink`, by one thread at a time per table. Every commit carries an app transaction of the pipeline whose version
holds (epoch, step, generation), so the vector is part of the same atomic commit as the rows.

A handle sees no commits, not even its own, until `refresh` is called. `refresh` does two things that delta-rs does not
do:

* It syncs commits and their files to disk before they count.
* It searches for a RESTORE, DELETE, UPDATE or overwrite by other writers. These remove or change rows without changing
  the vector, so the table is refused unless all its files exist again.

A table that was deleted and created again is a different table, even if its content is equal. To detect that, each
commit records the table's Delta id in a second app transaction (`mark_of`). Commits of older versions of raycdc, and
the first commit of a table, have no such transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from raycdc.errors import SinkError, TargetDroppedError, TargetModifiedError
from raycdc.model import META_COLUMNS, TableId, key_hashes
from raycdc.model.arrays import python_rows
from raycdc.model.rules.layout import TableLayout
from raycdc.sinks.api import CommitVector
from raycdc.sinks.delta.layout import ABSENT
from raycdc.sinks.delta.log_inspection import LogWatch, Losses
from raycdc.sinks.delta.reading import is_table, key_batches, opened_with, storage_options
from raycdc.sinks.delta.table_constraints import TableConstraints, without_values
from raycdc.sinks.lakes.ownership import Ownership
from raycdc.sinks.lakes.unreachable import is_absent, is_refused, raised_in, refusal_of
from raycdc.sinks.source_tables import Key
from raycdc.sinks.targets import lost_files
from raycdc.storage.files import AnyPath, keys_change

#: The table property with the name of the pipeline that created or emptied the table. This pipeline may append snapshot
#: rows to the table without a merge.
CREATED_BY = "raycdc.created_by"

_STEP_BITS = 3
_GENERATION_BITS = 30
_DIGEST_BITS = 32


def vector_to_version(vector: CommitVector) -> int:
    """Return the vector as one int64 that grows with (epoch, step, generation), in 30, 3 and 30 bits."""
    assert 0 <= vector.step < 1 << _STEP_BITS
    assert 0 <= vector.generation < 1 << _GENERATION_BITS
    return ((vector.epoch << _STEP_BITS) | vector.step) << _GENERATION_BITS | vector.generation


def version_to_vector(version: int) -> CommitVector:
    """Return the inverse of `vector_to_version`."""
    generation = version & ((1 << _GENERATION_BITS) - 1)
    rest = version >> _GENERATION_BITS
    return CommitVector(rest >> _STEP_BITS, rest & ((1 << _STEP_BITS) - 1), generation)


def mark_of(app_id: str) -> str:
    """Return the id of the app transaction by which a pipeline's commits record the table that they were made for."""
    return f"{app_id}:table"


def digest_app(app_id: str) -> str:
    """Return the id of the app transaction by which a pipeline's commits say the digest of their epoch."""
    return f"{app_id}:digest"


def digest_version(vector: CommitVector) -> int:
    """Return the digest of the vector's epoch as the version of that transaction: 30 bits of epoch, 32 of digest."""
    return vector.epoch << _DIGEST_BITS | vector.digest


def with_digest(vector: CommitVector | None, version: int | None) -> CommitVector | None:
    """Return `vector` with the digest of a transaction's `version`, if that is of the same epoch."""
    if vector is None or version is None or version >> _DIGEST_BITS != vector.epoch:
        return vector
    return replace(vector, digest=version & ((1 << _DIGEST_BITS) - 1))


def number_of(table_id: str) -> int:
    """Return a table's id as the version of the app transaction that `mark_of` names."""
    return int.from_bytes(hashlib.sha256(table_id.encode()).digest()[:8]) >> 1


#: The version of `mark_of`'s transaction in a commit that replaces a table, because the new table's id is not known
#: yet.
NOT_NOTED = 0


@dataclass(frozen=True, slots=True)
class _Record:
    """The pipeline's vector in the table. `table` is the number (`number_of`) of the table for which the vector was
    written; None if the commits did not record it.
    """

    vector: CommitVector | None
    table: int | None

    @classmethod
    def read(cls, table: DeltaTable, app_id: str) -> _Record:
        """Return the record from the last checkpoint and all commits since then.

        delta-rs reads them again for each call.
        """
        version = table.transaction_version(app_id)
        noted = None if version is None else table.transaction_version(mark_of(app_id))
        if version is None:
            return cls(None, None)
        digest = table.transaction_version(digest_app(app_id))
        return cls(with_digest(version_to_vector(version), digest), noted or None)

    def after(self, transactions: Mapping[str, int], app_id: str) -> _Record:
        """Return the record after commits with these app transactions."""
        version = transactions.get(app_id)
        vector = self.vector if version is None else version_to_vector(version)
        vector = with_digest(vector, transactions.get(digest_app(app_id)))
        return _Record(vector, None if vector is None else transactions.get(mark_of(app_id), self.table) or None)


class DeltaTarget:
    """The handle of one Delta table; see the module's docstring. Errors of delta-rs become `SinkError` naming the
    table.
    """

    def __init__(self, path: AnyPath, name: TableId, app_id: str) -> None:
        self.path = path
        self.name = name
        self.app_id = app_id
        #: A description of the table, as the subject of a sentence.
        self.location = f"The Delta table {path} ({name})"
        self._table: DeltaTable | None = None
        #: The store's access settings with which the table was opened.
        self._reached: dict[str, str] | None = None
        self.log = LogWatch(path, app_id)
        #: The record of the pipeline, and the table's version from which it was read.
        self._record: tuple[int, _Record] | None = None
        #: The id of the table that this handle is for; empty as long as there is none.
        self._id = ""
        #: True if nothing was tried since the last refresh, so that a commit need not refresh again.
        self._fresh = False

    def refresh(self) -> bool:
        """Read the newest version of the table. Returns False if there is no Delta table.

        New commits are on disk afterwards. Raises `SinkError` if other writers removed rows of this pipeline, or if the
        table is a different table than before.
        """
        try:
            if self._table is not None and self.log.is_another():
                # An open table of delta-rs would go on with data of the deleted one.
                self.drop()
            if self._table is not None and keys_change(self.path) and self._reached != storage_options(self.path):
                # A table of delta-rs keeps the access keys with which it was opened.
                self._table = None
            if self._table is None:
                if not is_table(self.path):
                    self.drop()
                    return False
                self._reached = storage_options(self.path)
                self._table = opened_with(self._reached, self.path)
            elif not self.log.is_newest(self._table.version()):
                # Listing the log costs more with every commit, and most checks find nothing new.
                self._table.update_incremental()
            losses = self.log.inspect(self._table)
        except TableNotFoundError:
            self.drop()
            return False
        except (DeltaError, OSError) as cause:
            raise unreadable(self, cause) from cause
        self._fresh = True
        self._check_same()
        vector = self.vector()
        if vector is not None and self.log.lost:
            raise lost_files(self.location, vector.epoch, self.log.lost)
        if losses is not None and vector is not None:
            self._check_whole(losses)
        return True

    def forget(self) -> None:
        """Forget the earlier table before creating one; the next `refresh` finds what exists."""
        self.drop()
        self._id = ""

    def drop(self) -> None:
        """Close the handle. The next `refresh` opens the table again, and checks that it is the same table."""
        self._table, self._record, self.log = None, None, LogWatch(self.path, self.app_id)

    def _check_same(self) -> None:
        """Raise `SinkError` if the table is not the one that this handle, or a commit of the pipeline, was for."""
        here, record = self.id, self._held()
        if (self._id and self._id != here) or (record.table is not None and record.table != number_of(here)):
            raise TargetDroppedError(
                f"{self.location} is not the one that this pipeline wrote to: somebody deleted or replaced that one "
                "and made it anew. Nothing more was written. Delete the folder, or route the table to another name, "
                "and read its source table anew."
            )
        if record.vector is not None or self.ownership.created_by_us:
            self._id = here

    def _check_whole(self, losses: Losses) -> None:
        """Raise `SinkError` if rows that the target had are missing.

        Other writers may delete rows of a changelog, and rows that they wrote themselves.
        """
        if losses.restored:
            raise TargetDroppedError(
                f"{self.location} was restored to an older version after this pipeline had written to it: rows are "
                "missing that will not come again. Delete the folder, and read its source table anew."
            )
        if is_ours_alone(self):
            raise TargetModifiedError(
                f"{self.location} lost rows after this pipeline had written to it: another writer deleted or overwrote "
                "them. Restore the version before that, or delete the folder, and read its source table anew."
            )

    @property
    def table(self) -> DeltaTable:
        """Return the table as of the last `refresh` or a later commit of this handle.

        Raises `TargetDroppedError` if there was no table.
        """
        if self._table is None:
            raise TargetDroppedError(
                f"{self.location} disappeared while it was being written to. Read its source table anew."
            )
        return self._table

    def renewed(self) -> None:
        """Refresh the handle, unless it is fresh: no commit was tried since the last time."""
        if not self._fresh:
            self.refresh()

    def tried(self) -> None:
        """Note that a commit is tried: the handle is not fresh from here on, whether or not the commit succeeds."""
        self._fresh = False

    def vector(self) -> CommitVector | None:
        """Return the vector of this pipeline in the snapshot of the last `refresh`."""
        return self._held().vector

    @property
    def id(self) -> str:
        """Return the id that Delta gave the table when it was created."""
        return str(self.table.metadata().id)

    def _held(self) -> _Record:
        snapshot, record = self.table.version(), self._record
        if record is None or record[0] != snapshot:
            new = self.log.transactions
            if record is None or new is None or new.since != record[0]:
                with delta_errors(self):
                    self._record = snapshot, _Record.read(self.table, self.app_id)
            else:
                self._record = snapshot, record[1].after(new.versions, self.app_id)
        assert self._record is not None
        return self._record[1]

    @property
    def ownership(self) -> Ownership:
        """Return who created the table."""
        return Ownership.of(self.table.metadata().configuration, self.app_id, CREATED_BY)

    def left_empty(self) -> bool:
        """Return True if an earlier start of this pipeline, with another state, created the table and wrote no row."""
        return self.ownership.created_by_pipeline and not self.table.file_uris()

    def arrow(self) -> pa.Schema:
        return pa.schema(self.table.schema().to_arrow())

    @property
    def partition_columns(self) -> list[str]:
        return list(self.table.metadata().partition_columns)

    def check_layout(self, layout: TableLayout) -> None:
        """Raise `SinkError` if the table has other partitions than the layout requests."""
        if layout.partitions and (there := self.partition_columns) != list(layout.columns):
            raise TargetModifiedError(
                f"{self.location} is partitioned by {listed(there)}, and partition_by asks "
                f"for {listed(layout.columns)}: a table keeps the partitions that it was made with. Take partition_by "
                "back, or delete the table and take a new snapshot of its source table."
            )

    def first_of(self, keys: pa.Table) -> Key | None:
        """Return one of `keys` that a row of the table has, as columns and values; None if there is none.

        Reads the key columns of the files whose statistics do not exclude the keys.
        """
        if not keys.num_rows:
            return None
        names = keys.column_names
        least, most = pc.min_max(keys.column(0)).values()
        within = (ds.field(names[0]) >= least) & (ds.field(names[0]) <= most)
        hashes = np.concatenate([key_hashes(batch, names) for batch in keys.to_batches()])
        for batch in _key_batches(self, names, within):
            found = np.flatnonzero(np.isin(key_hashes(batch, names), hashes))
            if found.size:
                # Different keys rarely have equal hashes, so the keys themselves are compared.
                wanted = {tuple(row.values()) for row in python_rows(keys)}
                rows: Sequence[Key] = python_rows(pa.Table.from_batches([batch.take(pa.array(found))]))
                if same := next((row for row in rows if tuple(row.values()) in wanted), None):
                    return same
        return None

    def lacking(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return the given properties that the table does not have, or has with another value."""
        there = self.table.metadata().configuration
        return {name: value for name, value in options.items() if there.get(name, ABSENT.get(name)) != value}

    def error(self, what: str, cause: Exception) -> SinkError:
        """Return the error for `cause`, for which `is_the_tables` is True. The text `what` is the rest of a sentence
        whose subject is the table.
        """
        kind = (
            refusal_of(cause, keys_change=keys_change(self.path))
            if is_absent(cause) or is_refused(cause)
            else TargetModifiedError
        )
        text = without_values(str(cause))
        demands = str(TableConstraints.of(self.table)) if text != str(cause) and self._table else ""
        return kind(f"{self.location} {what}: {text}{demands and f' The table demands: {demands}.'}")


@contextmanager
def delta_errors(target: DeltaTarget) -> Iterator[None]:
    """Turn errors of delta-rs within the block into a `SinkError`.

    Errors may come late, because delta-rs reads parts of the log only when they are needed, and files may have been
    deleted by then. Errors of raycdc's own files pass through.
    """
    try:
        yield
    except Exception as cause:
        if not _is_of_delta(cause):
            raise
        raise unreadable(target, cause) from cause


def _key_batches(target: DeltaTarget, names: Sequence[str], within: ds.Expression) -> Iterator[pa.RecordBatch]:
    try:
        yield from key_batches(target.table, names, within)
    except Exception as cause:
        if not is_the_tables(cause):
            raise
        raise unreadable(target, cause) from cause


def unreadable(target: DeltaTarget, cause: Exception) -> SinkError:
    """Return the error for a failed read, and close the handle, so that the next `refresh` opens the table again."""
    error = target.error("cannot be read", cause)
    target.drop()
    return error


def is_ours_alone(target: DeltaTarget) -> bool:
    """Return True if all rows of the table come from its source, except rows that others added."""
    return target.ownership.created_by_us and not set(META_COLUMNS) <= set(target.arrow().names)


def is_the_tables(error: Exception) -> bool:
    """Return True if the error concerns the table and is no bug of raycdc. The error's text must be examined, because
    delta-rs has no class for some errors.
    """
    if type(error) is Exception or isinstance(error, DeltaError | OSError):
        return True
    # An error of Arrow's file readers is about the table's files, which may be damaged. Any other error of Arrow is a
    # bug of raycdc.
    libraries = ("deltalake", "pyarrow.parquet", "pyarrow.dataset")
    return isinstance(error, pa.ArrowException | ValueError) and raised_in(error, *libraries)


def _is_of_delta(error: Exception) -> bool:
    """Return True if the error comes from delta-rs, even if its class could also be that of our own files."""
    if isinstance(error, DeltaError):
        return True
    return (type(error) is Exception or isinstance(error, OSError)) and raised_in(error, "deltalake")


def listed(columns: Sequence[str]) -> str:
    """Return the names of the columns as a text for people."""
    return ", ".join(columns) if columns else "nothing"
