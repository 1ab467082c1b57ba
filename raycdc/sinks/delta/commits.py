"""Makes the commits of this pipeline to a Delta table through delta-rs. Each commit writes the pipeline's vector.
Called by `target`, `evolution` and `maintenance`, by one thread at a time per table. delta-rs refuses a *concurrent*
commit of the same app, but not a later commit that repeats an app's version. Each commit therefore checks the vector in
the snapshot on which it is based. Two properties of delta-rs need care:

* It sees no conflict between a commit that replaces all rows and a concurrent commit of another writer, so a concurrent
  OPTIMIZE would bring the old rows back. A commit that replaces all rows is therefore only valid for the next version,
  and is retried if it fails.
* It stores minima and maxima of decimals as 64-bit floats. Our tables have no statistics of decimals
  (`raycdc.sinks.lakes.statistics`), and a merge by a key of more than `EXACT_DIGITS` digits reads every file.

`WriteChecks` decides if rows may be written to the table, and with which columns. It uses the layout and the
constraints in the snapshot of the last refresh.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    TableFeatures,
    Transaction,
    write_deltalake,
)
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from raycdc.core.failpoints import reach
from raycdc.errors import TargetModifiedError
from raycdc.model.rules.layout import ANY_LAYOUT, TableLayout
from raycdc.sinks.delta.layout import set_by_us
from raycdc.sinks.delta.reading import RewrittenColumn, is_table, rewritten_batches, staged_batches, storage_options
from raycdc.sinks.delta.small_merge import in_types, rewrite
from raycdc.sinks.delta.table import (
    CREATED_BY,
    NOT_NOTED,
    DeltaTarget,
    digest_app,
    digest_version,
    is_the_tables,
    listed,
    mark_of,
    number_of,
    vector_to_version,
)
from raycdc.sinks.delta.table_constraints import TableConstraints
from raycdc.sinks.lakes.ownership import nothing_left
from raycdc.sinks.lakes.statistics import for_table, properties
from raycdc.sinks.lakes.unreachable import is_absent, is_refused
from raycdc.sinks.rows import DELETED
from raycdc.sinks.steps import CommitMetadata, holds
from raycdc.sinks.targets import absent, lost_files
from raycdc.sinks.tasks import DataFile
from raycdc.storage.files import delete, reading, relative


class WriteChecks:
    """Checks if rows may be written to one table, and with which columns; see the module's docstring."""

    def __init__(self, target: DeltaTarget) -> None:
        self._target = target

    def constraints(self) -> TableConstraints:
        """Return the constraints of the table. Raises `SinkError` for one that only Spark can satisfy."""
        constraints = TableConstraints.of(self._target.table)
        if constraints.identity:
            raise TargetModifiedError(
                f"{self._target.location} has the identity column {constraints.identity[0]!r}, whose values are "
                "Spark's to give. Make the table without it, or route the source table to another name."
            )
        return constraints

    def check_merge(self) -> None:
        """Raise `SinkError` if the table has a generated column, which delta-rs does not compute when it updates
        rows.
        """
        if generated := self.constraints().generated:
            raise TargetModifiedError(
                f"{self._target.location} has the generated column {generated[0]!r}, which delta-rs does not compute "
                "anew where rows are updated. Make the table without it, or route the source table to another name."
            )

    def check_removals(self) -> None:
        """Raise `SinkError` if the table only accepts new rows, and so no commit that updates or deletes rows."""
        if self._target.table.metadata().configuration.get(APPEND_ONLY, "false").lower() == "true":
            raise TargetModifiedError(
                f"{self._target.location} has the property {APPEND_ONLY} = true, which another writer set: its rows "
                f"can be neither updated nor deleted. Unset the property, or route the source table to another name."
            )

    def check_files(self, files: Sequence[DataFile]) -> None:
        """Raise `SinkError` if staged files cannot be added to the table as they are.

        The reason may be that the table uses column mapping, or that its partitions differ from those for which the
        files were written.
        """
        if self._target.table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            raise TargetModifiedError(
                f"{self._target.location} maps its columns, and files of rows cannot be added to it. Delete the folder "
                "and read its source table anew, or route the table to another name."
            )
        if invalid := next((file for file in files if [*file.partition] != self._target.partition_columns), None):
            raise TargetModifiedError(
                f"{self._target.location} is partitioned by {listed(self._target.partition_columns)}, and rows were "
                f"written by {listed([*invalid.partition])}: somebody made the table anew. Start again."
            )

    def whole(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with the table's columns in their order, except those that delta-rs computes."""
        return in_types(rows, self.written(self.constraints(), rows.column_names))

    def written(self, constraints: TableConstraints, names: Collection[str]) -> pa.Schema:
        """Return the columns of the table that are written for rows with the columns `names`; columns that delta-rs
        computes are left out.

        Each returned column is nullable, so that delta-rs itself checks NOT NULL and the other constraints of the
        table.
        """
        present = self._target.arrow()
        fields = [field for field in present if field.name in names or field.name not in constraints.generated]
        return pa.schema([field.with_nullable(nullable=True) for field in fields])


#: How often a commit is retried because another writer of the table (for example OPTIMIZE) committed first.
CONFLICT_RETRIES = 5

#: The table property with the checkpoint interval, and its default. delta-rs makes a checkpoint after a commit if the
#: commit's version plus one is a multiple of the interval.
CHECKPOINT_INTERVAL = "delta.checkpointInterval"
CHECKPOINT_EVERY = 100

#: The table property with which a table refuses every commit that removes or rewrites rows.
APPEND_ONLY = "delta.appendOnly"

#: Decimals of up to this many digits are exact as 64-bit floats.
EXACT_DIGITS = 15


class DeltaCommits:
    """Makes commits to `target`, and refreshes its handle after each of them. Errors of delta-rs become a `SinkError`
    that names the table.
    """

    def __init__(self, target: DeltaTarget) -> None:
        self._target = target
        self.write_checks = WriteChecks(target)

    def create(
        self,
        schema: pa.Schema,
        commit_metadata: CommitMetadata,
        layout: TableLayout = ANY_LAYOUT,
        *,
        replaces: bool = False,
    ) -> None:
        """Create an empty table of `schema`; with `replaces`, the existing content is removed in the same commit."""

        def run() -> None:
            DeltaTable.create(
                str(self._target.path),
                storage_options=storage_options(self._target.path),
                schema=schema,
                mode="overwrite" if replaces else "error",
                partition_by=list(layout.columns),
                configuration={
                    **set_by_us(layout),
                    **nothing_left(self._target.app_id),
                    **self._configuration(schema, layout.columns),
                },
                raise_if_key_not_exists=False,
                commit_properties=self._properties(commit_metadata, next_version=True, made=True, replaces=replaces),
            )

        for attempt in range(CONFLICT_RETRIES + 1):
            try:
                run()
                break
            except Exception as cause:
                if not is_the_tables(cause):
                    raise
                # The store may have created the table although it reported an error. It may also have reported that the
                # table exists although none does.
                if self._is_made(commit_metadata):
                    break
                if attempt == CONFLICT_RETRIES or not _is_conflict(cause) or is_table(self._target.path):
                    raise self._target.error("cannot be created", cause) from cause
        self._target.forget()
        self._target.refresh()

    def add_columns(self, fields: Sequence[pa.Field], commit_metadata: CommitMetadata) -> None:
        """Add nullable columns at the end.

        The commits have no vector, which is written when the whole change is complete. A retry adds columns that are
        still missing.
        """
        zoneless = any(pa.types.is_timestamp(f.type) and f.type.tz is None for f in fields)

        def run() -> None:
            features = self._target.table.protocol().writer_features or []
            if zoneless and "timestampNtz" not in features:
                self._target.table.alter.add_feature(
                    TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True
                )
                self._target.refresh()
            added = list(DeltaSchema.from_arrow(pa.schema(fields)).fields)
            note = CommitProperties(custom_metadata={"userMetadata": commit_metadata.text(self._target.app_id)})
            self._target.table.alter.add_columns(added, commit_properties=note)

        def done() -> bool:
            return {field.name for field in fields} <= {*self._target.arrow().names}

        self._guarded("cannot get new columns", run, done)

    def set_options(self, options: Mapping[str, str]) -> None:
        """Set table properties that differ, in a separate commit without a vector."""
        if changed := self._target.lacking(options):
            self._guarded(
                f"cannot have the properties {', '.join(changed)}",
                lambda: self._target.table.alter.set_table_properties(changed, raise_if_not_exists=False),
                lambda: not self._target.lacking(changed),
            )

    def fill(self, defaults: Mapping[str, str], commit_metadata: CommitMetadata) -> None:
        """Set the values of columns that were just added and are null everywhere, in one commit.

        `defaults` are SQL by column name.
        """
        self.write_checks.check_removals()
        values = {quote(column): sql for column, sql in defaults.items()}
        empty = " AND ".join(f"{column} IS NULL" for column in values)
        self._committed(
            commit_metadata,
            f"cannot be filled with the default of {', '.join(defaults)}",
            lambda: self._target.table.update(
                values,
                predicate=empty,
                commit_properties=self._properties(commit_metadata),
                post_commithook_properties=hooks(self._target.table),
            ),
        )

    def rewrite(self, columns: Sequence[RewrittenColumn], commit_metadata: CommitMetadata, *, empty: bool) -> None:
        """Rewrite the table with `columns`, batch by batch, in one commit. With `empty`, leave out all rows."""
        self.write_checks.check_removals()

        def run() -> None:
            schema = _moved_columns(
                pa.schema([column.field for column in columns]), self._target.arrow(), commit_metadata
            )
            placed = [replace(column, field=field) for column, field in zip(columns, schema, strict=True)]
            partition_by = self._target.partition_columns
            batches = iter(()) if empty else rewritten_batches(self._target.table, placed)
            write_deltalake(
                self._target.table,
                pa.RecordBatchReader.from_batches(schema, batches),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=partition_by or None,
                configuration=self._configuration(schema, partition_by)
                if self._target.ownership.created_by_us
                else None,
                commit_properties=self._properties(commit_metadata, next_version=True),
                post_commithook_properties=hooks(self._target.table),
            )

        self._committed(commit_metadata, "cannot be written with its new columns", run)

    def append(self, files: Sequence[DataFile], commit_metadata: CommitMetadata) -> None:
        """Add staged Parquet files; without files, make an empty commit. If the table has constraints, delta-rs reads
        the staged files, checks their rows and writes them to files of its own, and the staged files are deleted.
        """
        if files:
            self.write_checks.check_files(files)
            if constraints := self.write_checks.constraints():
                self._append_rows(files, constraints, commit_metadata)
                return
        configuration = self._target.table.metadata().configuration
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=relative(file.path, self._target.path),
                size=file.size,
                partition_values=dict(file.partition),
                modification_time=time.time_ns() // 1_000_000,
                data_change=True,
                stats=for_table(file.statistics, configuration),
            )
            for file in files
        ]
        self._committed(
            commit_metadata,
            "cannot take an append",
            lambda: self._target.table.create_write_transaction(
                actions,
                mode="append",
                schema=self._target.table.schema(),
                partition_by=self._target.partition_columns,
                commit_properties=self._properties(commit_metadata),
                post_commithook_properties=hooks(self._target.table),
            ),
        )
        reach("before_look")
        if missing := absent(file.path for file in files):
            raise lost_files(self._target.location, commit_metadata.vector.epoch, missing)

    def merge(
        self, source: pa.Table, key: Sequence[str], commit_metadata: CommitMetadata, *, order_by: str = ""
    ) -> None:
        """Upsert and delete compacted rows (`rows.last_per_key`) held in memory.

        With `order_by`, a row of the table with a greater value of that column stays unchanged.
        """
        self.write_checks.check_merge()
        self.write_checks.check_removals()
        columns = [name for name in source.column_names if name != DELETED]
        values = {quote(name): f"s.{quote(name)}" for name in columns}
        left = self._target.ownership.left_behind(self._target.arrow().names, columns)
        # A column that the source no longer has becomes null in updated rows, as it does in new ones.
        updates = values | {quote(name): "NULL" for name in left}
        # Rewriting whole rows would lose the values of other writers' columns.
        whole = len(columns) + len(left) == len(self._target.arrow())
        alive = f"NOT s.{quote(DELETED)}"
        by = quote(order_by)
        newer = f"{alive} AND (t.{by} IS NULL OR s.{by} >= t.{by})" if order_by else alive

        def run() -> None:
            actions = rewrite(self._target.table, self._target.path, source, key) if whole and not order_by else None
            if actions is not None:
                self._target.table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=self._target.table.schema(),
                    partition_by=self._target.partition_columns,
                    commit_properties=self._properties(commit_metadata, next_version=True),
                    post_commithook_properties=hooks(self._target.table),
                )
                return
            merger = self._target.table.merge(
                source,
                predicate=" AND ".join(f"t.{quote(name)} = s.{quote(name)}" for name in key),
                source_alias="s",
                target_alias="t",
                # If the keys are in memory, delta-rs skips files by their statistics, which must be exact for that.
                streamed_exec=any(_is_wide(source.schema.field(name).type) for name in key),
                commit_properties=self._properties(commit_metadata),
                post_commithook_properties=hooks(self._target.table),
            )
            merger = merger.when_matched_delete(f"s.{quote(DELETED)}")
            merger = merger.when_matched_update(updates, predicate=newer)
            merger.when_not_matched_insert(values, predicate=alive).execute()

        self._committed(commit_metadata, "cannot be merged into", run)

    def add_rows(self, rows: pa.Table, commit_metadata: CommitMetadata) -> None:
        """Append rows held in memory. The table's other columns are null."""
        whole = self.write_checks.whole(rows)
        self._committed(
            commit_metadata,
            "cannot take an append",
            lambda: write_deltalake(
                self._target.table,
                whole,
                mode="append",
                commit_properties=self._properties(commit_metadata),
                post_commithook_properties=hooks(self._target.table),
            ),
        )

    def overwrite(self, rows: pa.Table, commit_metadata: CommitMetadata) -> None:
        """Replace all rows by `rows` in one commit: a truncation and the rows after it.

        A lenient target keeps dropped columns, which `rows` do not have; they are null.
        """
        self.write_checks.check_removals()
        whole = self.write_checks.whole(rows)
        self._committed(
            commit_metadata,
            "cannot be overwritten",
            lambda: write_deltalake(
                self._target.table,
                whole,
                mode="overwrite",
                schema_mode=None,
                commit_properties=self._properties(commit_metadata, next_version=True),
                post_commithook_properties=hooks(self._target.table),
            ),
        )

    def mark(self, commit_metadata: CommitMetadata) -> None:
        """Commit only the vector, unless the table already holds the vector with its digest. Needed after a merge by
        Spark, which can write only one app transaction and so no digest.
        """
        self._target.refresh()
        held = self._target.vector()
        if not self._holds(commit_metadata) or (held is not None and held.digest != commit_metadata.vector.digest):
            self.append([], commit_metadata)

    def _append_rows(
        self, files: Sequence[DataFile], constraints: TableConstraints, commit_metadata: CommitMetadata
    ) -> None:
        """Append the rows of staged files, file by file, in one commit that checks the table's constraints."""

        def run() -> None:
            with reading(files[0].path) as first:
                schema = self.write_checks.written(constraints, [*pq.read_schema(first).names, *files[0].partition])
            write_deltalake(
                self._target.table,
                pa.RecordBatchReader.from_batches(schema, staged_batches(files, schema)),
                mode="append",
                commit_properties=self._properties(commit_metadata),
                post_commithook_properties=hooks(self._target.table),
            )

        self._committed(commit_metadata, "cannot take an append", run)
        delete(file.path for file in files)

    def _committed(self, commit_metadata: CommitMetadata, what: str, run: Callable[[], Any]) -> None:
        """Run a commit, and retry it if another writer was faster, until the table holds its vector. Does nothing if
        the table already holds it.

        delta-rs detects any commit between the snapshot and this commit, even one of this pipeline. It has the same
        error class for a commit that the table's own properties forbid. Only a conflict leaves a newer version in the
        table's log.
        """
        for attempt in range(CONFLICT_RETRIES + 1):
            self._target.renewed()
            if self._holds(commit_metadata):
                return
            version = self._target.table.version()
            try:
                self._target.tried()
                run()
                break
            except CommitFailedError as cause:
                if not self._has_newer(version):
                    raise self._target.error(what, cause) from cause
                if attempt == CONFLICT_RETRIES:
                    raise self._target.error(f"{what}: other writers were faster {attempt + 1} times", cause) from cause
            except Exception as cause:
                if not is_the_tables(cause):
                    raise
                raise self._target.error(what, cause) from cause
        self._target.refresh()
        if not self._holds(commit_metadata):
            # A merge or update that changes nothing makes no commit, but the vector must be written.
            self.append([], commit_metadata)

    def _has_newer(self, version: int) -> bool:
        """Return True if the table's log has a version after `version`, or if the table was deleted."""
        return not self._target.refresh() or self._target.table.version() > version

    def _is_made(self, commit_metadata: CommitMetadata) -> bool:
        """Return True if the table exists and this commit created it."""
        self._target.forget()
        return self._target.refresh() and self._target.ownership.created_by_us and self._holds(commit_metadata)

    def _holds(self, commit_metadata: CommitMetadata) -> bool:
        return holds(self._target.vector(), commit_metadata.vector, self._target.name)

    def _guarded(self, what: str, run: Callable[[], Any], done: Callable[[], bool]) -> None:
        """Run a commit without a vector until the table has the desired state. If another writer was faster, retry.

        A store may have accepted a commit for which it reported an error.
        """
        for attempt in range(CONFLICT_RETRIES + 1):
            try:
                run()
                self._target.refresh()
                return
            except Exception as cause:
                if not is_the_tables(cause):
                    raise
                if self._target.refresh() and done():
                    return
                if attempt == CONFLICT_RETRIES or not isinstance(cause, CommitFailedError):
                    raise self._target.error(what, cause) from cause

    def _configuration(self, schema: pa.Schema, partition_by: Sequence[str]) -> dict[str, str]:
        """Return the properties of a table that this pipeline creates."""
        return {CREATED_BY: self._target.app_id, **properties(schema, partition_by)}

    def _properties(
        self, commit_metadata: CommitMetadata, *, next_version: bool = False, made: bool = False, replaces: bool = False
    ) -> CommitProperties:
        """Return the properties of a commit.

        If `next_version` is True, the commit fails if any other commit was made after its snapshot. If `made` is True,
        the commit creates the table, whose id is not known yet. If `replaces` is True, it also removes the mark of the
        table that it replaces.
        """
        here = "" if made else self._target.id
        marks = [Transaction(mark_of(self._target.app_id), number_of(here))] if here else []
        if replaces:
            marks = [Transaction(mark_of(self._target.app_id), NOT_NOTED)]
        vector = commit_metadata.vector
        if vector.digest:
            marks.append(Transaction(digest_app(self._target.app_id), digest_version(vector)))
        return CommitProperties(
            max_commit_retries=0 if next_version else None,
            app_transactions=[Transaction(self._target.app_id, vector_to_version(vector)), *marks],
            custom_metadata={"userMetadata": commit_metadata.text(self._target.app_id)},
        )


def hooks(table: DeltaTable) -> PostCommitHookProperties:
    """Return the settings for delta-rs's work after the next commit: old commits are deleted from the log only after a
    checkpoint.

    Without a new checkpoint nothing can be deleted, and each search for old commits lists the whole log. If another
    writer makes the commit with the checkpoint, old commits are deleted after a later checkpoint.
    """
    said = table.metadata().configuration.get(CHECKPOINT_INTERVAL, "")
    every = (int(said) if said.isdecimal() else 0) or CHECKPOINT_EVERY
    makes_checkpoint = (table.version() + 2) % every == 0
    # None means that the table's `delta.enableExpiredLogCleanup` decides.
    return PostCommitHookProperties(cleanup_expired_logs=None if makes_checkpoint else False)


#: Metadata of a column that names the epoch and generation whose change moved columns.
MOVED = b"raycdc.moved"


def _moved_columns(wanted: pa.Schema, present: pa.Schema, commit_metadata: CommitMetadata) -> pa.Schema:
    """Return `wanted` with a mark on the first moved column, if it has the columns of `present` in another order.
    delta-rs considers two schemas that differ only in the order of columns as equal, and would keep the order of the
    table. The mark is metadata that makes the schemas differ.
    """
    fields = list(wanted)
    moved = next((i for i, (new, old) in enumerate(zip(wanted, present, strict=False)) if new.name != old.name), None)
    if moved is None or set(wanted.names) != set(present.names):
        return wanted
    metadata = fields[moved].metadata or {}
    reported = f"{commit_metadata.vector.epoch}.{commit_metadata.vector.generation}".encode()
    fields[moved] = fields[moved].with_metadata({**metadata, MOVED: reported})
    return pa.schema(fields)


def _is_conflict(cause: Exception) -> bool:
    """Return True if a store reported that another writer was faster.

    delta-rs has no error class for that at a table's first commit.
    """
    return not (is_absent(cause) or is_refused(cause))


def _is_wide(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(arrow)) and int(arrow.precision) > EXACT_DIGITS


def quote(name: str) -> str:
    """Return an identifier in delta-rs's SQL."""
    return '"' + name.replace('"', '""') + '"'
