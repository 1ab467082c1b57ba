"""Makes derived segments, with the rows that pass a transform's filter and with the columns that Spark computes.

Each segment of a transformed table becomes one *derived* segment. Python reads the columns that expressions use and
passes them to the JVM. The JVM computes the expressions row by row, in order, and passes back only the results. A
second Python function reads the remaining columns from the original segment, and writes the derived segment. Columns
that are only copied therefore never go through the JVM, and rows never reach the driver. Sinks read a derived segment
like any other segment.

**The filter** applies to the before-image and the after-image of an update separately:

| before | after | becomes |
|---|---|---|
| in | in | the update (a deletion and an insert where ``primary_keys`` give the row another key) |
| in | out | a deletion |
| out | in | an insert |
| out | out | nothing |

*Crashes*: if an epoch is staged again, its derived segments are made again. They get the same rows, because expressions
must be deterministic. The next run deletes the files that a run left.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import RowRefusedError, SegmentUnavailableError, SinkError
from raycdc.model import META_COLUMNS, META_FIELDS, Column, LogicalType, RowKind, TableSchema
from raycdc.model.column_names import spark_fold
from raycdc.model.redaction import row_named
from raycdc.segments import SegmentWriter
from raycdc.segments.access import HERE, SegmentAccess
from raycdc.segments.bad_rows import (
    ON_BAD_RECORD,
    BadRecords,
    DeadLetterFile,
    FilteredSegment,
    counted,
    judged,
    update_indexes,
    whole_updates,
    write_filtered,
)
from raycdc.segments.reading import read_segment, verify_segments
from raycdc.segments.writing import MadeSegments
from raycdc.sinks import jvm_end
from raycdc.sinks.lakes.unreachable import is_absent
from raycdc.spark.transforms import TransformSession, quiet_errors
from raycdc.state.manifests.manifest import Segment
from raycdc.transform import ResolvedTransform
from raycdc.transform.resolved import COMPUTED, META_LOGICAL

_KEEP = "_raycdc_keep"
#: The column with the index of the first expression that failed on a row (-1: none). Only a job that goes on after
#: failures has it.
_FAILED = "_raycdc_failed"
#: Texts in errors of jobs that failed for another reason than a value: memory, a dead worker, a segment, or a bug.
_NO_VALUES = ("OutOfMemoryError", "ExecutorLostFailure", "Python worker exited unexpectedly", "raycdc/spark/")
#: The name of an error condition in Spark's message, and the last line of the traceback of a user's function.
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\]")
_CLASS = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))(?::|$)")
#: The errors of reading from a JVM that ends during the call.
_CUT_OFF = (ConnectionError, EOFError, pa.ArrowInvalid)
_STORED_META = tuple(field.name for field in META_FIELDS)

#: Below this much input, a job of Python workers costs more than it saves.
IN_PROCESS_BYTES_MAX = 4 << 20


class Deriver(MadeSegments):
    """Makes derived segments in `folder`, on the Spark session that `session` returns. Callable from any thread.

    If Spark's tasks run on other machines, this process itself reads the columns that expressions use, and writes the
    derived segments. It also serves them (`raycdc.runtime.spools`). Files that tasks write on other machines would be
    served by no process. If `upsert` is True, the sink keeps the last row of each key, so the after-image of an update
    is enough.

    An expression that fails on a value ends its job. The rows are then processed again by *forgiving* expressions,
    which report the failing rows. The policy `records` decides about these rows.
    """

    def __init__(
        self,
        session: TransformSession,
        folder: Path,
        *,
        access: SegmentAccess = HERE,
        upsert: bool = False,
        records: BadRecords | None = None,
    ) -> None:
        self._session = session
        super().__init__(folder)
        self._access = access
        self._upsert = upsert
        self._records = records or BadRecords(upsert=upsert)
        #: The session of forgiving expressions, and the session from which it was made.
        self._second: tuple[Any, Any] = (None, None)
        self._local = str(session().sparkContext.master).startswith("local")

    def __call__(self, segments: Sequence[Segment], resolved: ResolvedTransform, epoch: int) -> list[FilteredSegment]:
        """Return the derived segment of each segment, with the segment's view. A result's `segment` is None if no row
        passes the filter.

        Raises `SegmentUnavailableError` if a segment cannot be read now, `DataError` if an expression fails on a value
        and `BadRecords` leaves no rows out, and `SparkLostError` if Spark's JVM ended.
        """
        if not verify_segments(segments, access=self._access):
            raise SegmentUnavailableError(f"A segment of {resolved.table} is not there now.")
        self._folder.mkdir(parents=True, exist_ok=True)
        task = _Task(resolved, self._folder, self._access, self._records, epoch, upsert=self._upsert)
        made = self._run([replace(segment, view=None) for segment in segments], task)
        return [
            replace(one, segment=replace(one.segment, view=segment.view)) if one.segment is not None else one
            for one, segment in zip(made, segments, strict=True)
        ]

    def _run(self, segments: Sequence[Segment], task: _Task) -> list[FilteredSegment]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        small = sum(segment.bytes for segment in segments) <= IN_PROCESS_BYTES_MAX
        way = self._here if small else self._in_workers if self._local else self._one_by_one
        spark = self._session()
        with quiet_errors():
            try:
                return way(segments, task, spark)
            except (Py4JError, PySparkException, *_CUT_OFF) as cause:
                self._require_there(spark, cause, task)
                failure = _kind(cause)
            second = replace(task, forgiving=True, run=uuid.uuid4().hex)
            try:
                made = way(segments, second, self._forgiving(spark))
            except (Py4JError, PySparkException, *_CUT_OFF) as cause:
                self._require_there(spark, cause, second)
                if not _is_a_values(cause):
                    raise SinkError(
                        f"{task.resolved.table}: its transform failed in Spark: {_reason(cause)}"
                    ) from cause
                raise RowRefusedError(
                    f"{task.resolved.table}: its transform failed on a value: {_kind(cause)}"
                ) from None
            finally:
                self._delete_files_of(task)  # All of its tasks have ended by now.
        why = next((one.why for one in made if one.bad), "")
        if why and not self._records.leaves_out:
            raise RowRefusedError(
                f"{task.resolved.table}: its transform failed on a value: {why}: {failure}. {ON_BAD_RECORD}"
            )
        return made

    def _require_there(self, spark: Any, cause: Exception, task: _Task) -> None:
        """Raise `SparkLostError` if `task` failed with `cause` because the JVM of `spark` ended.

        Raises `cause` if the connection broke for another reason, which is a bug.
        """
        lost = jvm_end.lost(spark, cause)
        if lost is not None or isinstance(cause, _CUT_OFF):
            self._delete_files_of(task)
        if lost is not None:
            raise lost from cause
        if isinstance(cause, _CUT_OFF):
            raise cause

    def _delete_files_of(self, task: _Task) -> None:
        """Delete the files that parts of `task` wrote before another part failed."""
        for path in self._folder.glob(f"*derived-{task.run}-*"):
            path.unlink(missing_ok=True)

    def _forgiving(self, spark: Any) -> Any:
        """Return a session with the same functions for forgiving expressions. In this session, Spark does not move an
        expression out of the expression that catches its failure.
        """
        from pyspark.sql import SparkSession

        second, first = self._second
        if first is not spark:
            second = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
            second.conf.set("spark.sql.subexpressionElimination.enabled", "false")
            self._second = second, spark
        return second

    def _in_workers(self, segments: Sequence[Segment], task: _Task, spark: Any) -> list[FilteredSegment]:
        texts = [json.dumps(segment.to_json()) for segment in segments]
        frame = spark.range(0, len(texts), 1, len(texts)).mapInArrow(_Read(texts, task), task.input_ddl())
        answers: dict[str, Any] = {}
        for row in _computed(frame, task, spark).mapInArrow(_Write(texts, task), "`made` string").collect():
            answers |= json.loads(row["made"])
        made = [answers[segment.name] for segment in segments]
        return [FilteredSegment(Segment.from_json(one) if one else None, bad, why) for one, bad, why in made]

    def _one_by_one(self, segments: Sequence[Segment], task: _Task, spark: Any) -> list[FilteredSegment]:
        """Process the segments like `_here`, with the rows of one segment in memory at a time."""
        return [made for segment in segments for made in self._here([segment], task, spark)]

    def _here(self, segments: Sequence[Segment], task: _Task, spark: Any) -> list[FilteredSegment]:
        """Make the derived segments in this process; only the expressions are computed in the JVM. For few rows, this
        costs less than Python workers.
        """
        from pyspark.sql.types import StructType

        arrow = pa.schema([(name, kind.arrow()) for name, kind in task.types().items()])
        batches = [batch for segment in segments for batch in task.inputs_of(segment)]
        rows = pa.Table.from_batches(batches).cast(arrow)
        frame = spark.createDataFrame(rows, StructType.fromDDL(task.input_ddl()))
        computed = _Rows(iter(_computed(frame, task, spark).toArrow().to_batches()))
        return [task.write(segment, computed) for segment in segments]


def _computed(frame: Any, task: _Task, spark: Any) -> Any:
    """Return the results of the expressions of `task`; in a forgiving task, each is a list of its value, or null if it
    failed.
    """
    if not task.forgiving:
        return frame.selectExpr(*task.select()).toDF(*task.computed())
    from pyspark.sql import functions
    from pyspark.sql.classic.column import Column as SparkColumn

    jvm = spark._jvm.org.apache.spark.sql
    tried = []
    for sql in task.select()[:-1]:
        listed = jvm.classic.ExpressionUtils.expression(functions.array(functions.expr(sql))._jc)
        # Spark's own try_ functions use this expression.
        forgiven = jvm.catalyst.expressions.TryEval(listed)
        tried.append(SparkColumn(jvm.classic.ExpressionUtils.column(forgiven)))
    return frame.select(*tried, "_seq").toDF(*task.computed())


@dataclass(frozen=True, slots=True)
class _Task:
    """The inputs of the Spark tasks of one table, pickled into them."""

    resolved: ResolvedTransform
    folder: Path
    access: SegmentAccess
    records: BadRecords
    epoch: int
    upsert: bool
    forgiving: bool = False
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def inputs(self) -> list[str]:
        """Return the columns that expressions use, and `_seq`, which identifies the rows."""
        uses = self.resolved.uses
        names = [column.name for column in self.resolved.source.columns if spark_fold(column.name) in uses.columns]
        meta = uses.meta | uses.filter_meta
        return [*names, *(name for name in META_COLUMNS if name in meta and name != "_seq"), "_seq"]

    def types(self) -> dict[str, LogicalType]:
        """Return the types of `inputs`."""
        known = {column.name: column.type for column in self.resolved.source.columns} | META_LOGICAL
        return {name: known[name] for name in self.inputs()}

    def input_ddl(self) -> str:
        return TableSchema(tuple(Column(name, kind) for name, kind in self.types().items())).spark_ddl()

    def select(self) -> list[str]:
        """Return the SQL expressions of the job."""
        keep = [f"coalesce(({self.resolved.transform.filter}), false)"] if self.resolved.transform.filter else []
        return [*(column.sql for column in self.resolved.computed), *keep, "_seq"]

    def computed(self) -> list[str]:
        """Return the names that the results of `select` get."""
        names = [f"{COMPUTED}{number}" for number in range(len(self.resolved.computed))]
        return [*names, *([_KEEP] if self.resolved.transform.filter else []), "_seq"]

    def stored(self) -> list[str]:
        """Return the columns of the table that its rows keep, and those that tell rows with a new key apart."""
        wanted = {column.stored for column in self.resolved.columns if column.stored} | set(self.resolved.owner)
        return [column.name for column in self.resolved.source.columns if column.name in wanted]

    def key(self) -> list[str]:
        """Return the stored columns of the result's key if it differs from the table's key; none if `upsert` is True.
        An update that changes the result's key becomes a deletion and an insert.
        """
        if self.upsert or not self.resolved.has_new_key:
            return []
        outputs = {output.name: output for output in self.resolved.projection().outputs}
        return [outputs[name].stored for name in self.resolved.schema.primary_key if outputs[name].stored]

    def inputs_of(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Return batches of the segment's rows with the columns `inputs`."""
        return read_segment(segment, self.inputs(), access=self.access, symbols=True)

    def write(self, segment: Segment, computed: _Rows) -> FilteredSegment:
        """Write the derived segment of `segment`, and return it; its `segment` is None if no row remains.

        The next rows of `computed` are the computed columns of this segment's rows.
        """
        writer = SegmentWriter.remaking(segment, self.folder, f"derived-{self.run}-{uuid.uuid4().hex}.arrow")
        dead_letters = self.records.dead_letters(self.epoch, segment.name) if self.forgiving else None
        records = self.records.of_kind(segment.kind)
        if self.resolved.transform.soft:
            # Deleting a row softly writes the row, which may never have been in the target.
            records = replace(records, keeps_unwanted=True)
        rows = whole_updates(self._joined(segment, computed))
        passed = (self._passed(batch, dead_letters, records) for batch in rows)
        return write_filtered(writer, dead_letters, passed, seq_base=segment.seq_base)

    def _joined(self, segment: Segment, computed: _Rows) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the segment with the computed columns, and with `_seq` as the segment stores it.

        In a forgiving task, batches have all columns of the table, and the number of the expression that failed.
        """
        stored = [column.name for column in self.resolved.source.columns] if self.forgiving else self.stored()
        for batch in read_segment(segment, [*stored, *_STORED_META], access=self.access):
            recomputed = computed.take(batch.num_rows)
            numbers = batch.column("_seq")
            if not recomputed.column("_seq").combine_chunks().equals(numbers):
                raise AssertionError(f"{segment.table}: rows came back from Spark in another order")
            columns = {name: batch.column(name) for name in [*stored, *_STORED_META]}
            columns["_seq"] = pc.subtract(numbers, pa.scalar(segment.seq_base, pa.int64()))
            failed = np.full(batch.num_rows, -1)
            for number, name in enumerate(self.computed()[:-1]):
                columns[name] = recomputed.column(name).combine_chunks()
                if self.forgiving:
                    missing = columns[name].is_null().to_numpy(zero_copy_only=False)
                    failed = np.where((failed < 0) & missing, number, failed)
                    columns[name] = pc.list_element(columns[name], 0)
                if number < len(self.resolved.computed):
                    # Workers get a TIMESTAMP in the time zone of the session, the driver gets it in UTC.
                    columns[name] = columns[name].cast(self.resolved.computed[number].type.arrow())
            if self.forgiving:
                columns[_FAILED] = pa.array(failed)
            yield pa.RecordBatch.from_pydict(columns)

    def _passed(
        self, batch: pa.RecordBatch, dead_letters: DeadLetterFile | None, records: BadRecords
    ) -> tuple[pa.RecordBatch, int, str]:
        """Return the rows that pass the filter with their new codes, the number of bad rows, and the reason for the
        first.
        """
        ops, numbers = batch.column("_op").to_numpy(), batch.column("_seq").to_numpy()
        emptied = ops == RowKind.TRUNCATE
        wanted, bad = np.ones(len(ops), np.bool_), np.zeros(len(ops), np.bool_)
        if self.resolved.transform.filter:
            keep = pc.fill_null(batch.column(_KEEP), fill_value=True)
            wanted = keep.to_numpy(zero_copy_only=False).astype(np.bool_) | emptied
        if self.forgiving:
            bad = (batch.column(_FAILED).to_numpy() >= 0) & wanted & ~emptied
        ops, kept = judged(ops, numbers, wanted, bad, records)
        before = update_indexes(batch.column("_op").to_numpy(), numbers)
        moved = before[kept[before] & kept[before + 1] & self._moved(batch)[before]]
        ops[moved], ops[moved + 1] = RowKind.DELETE, RowKind.INSERT
        names = [*self.stored(), *(name for name in self.computed() if name not in (_KEEP, "_seq")), *_STORED_META]
        columns = {name: batch.column(name) for name in names}
        columns["_op"] = pa.array(ops, pa.int8())
        if emptied.any():
            for name in names:
                if name.startswith(COMPUTED):
                    columns[name] = pc.if_else(pa.array(emptied), pa.scalar(None, columns[name].type), columns[name])
        count, why = self._write_dead_letters(batch, bad, dead_letters) if bad.any() else (0, "")
        return pa.RecordBatch.from_pydict(columns).filter(pa.array(kept)), count, why

    def _write_dead_letters(
        self, batch: pa.RecordBatch, bad: Any, dead_letters: DeadLetterFile | None
    ) -> tuple[int, str]:
        """Write the bad rows, if dead letters are kept; return their number, and the reason for the first."""
        ops, failed = batch.column("_op").to_numpy(), batch.column(_FAILED).to_numpy()
        # An expression only fails on a deleted row if the same row was bad before and was reported then. The deletion
        # is therefore reported only if no bad row is allowed.
        reported = np.flatnonzero(counted(ops, bad) if self.records.leaves_out else bad)
        if dead_letters is not None and len(reported):
            reasons = [self._reason(int(failed[index])) for index in reported]
            dead_letters.append(
                batch.take(pa.array(reported)), reasons, table=self.resolved.table, schema=self.resolved.source
            )
        if not len(reported):
            return 0, ""
        first = int(reported[0])
        return len(reported), f"{self._reason(int(failed[first]))} ({row_named(batch, first, self.resolved.source)})"

    def _reason(self, number: int) -> str:
        if number == len(self.resolved.computed):
            return f"the filter ({self.resolved.transform.filter}) cannot be computed"
        column = self.resolved.computed[number]
        return f"column {column.name!r} ({column.sql}) cannot be computed"

    def _moved(self, batch: pa.RecordBatch) -> Any:
        """Return for each row whether the next row has another key."""
        moved = np.zeros(batch.num_rows, np.bool_)
        for name in self.key():
            column = batch.column(name)
            here, there = column.slice(0, max(0, len(column) - 1)), column.slice(1)
            same = pc.or_kleene(pc.equal(here, there), pc.and_(pc.is_null(here), pc.is_null(there)))
            moved[: len(same)] |= ~pc.fill_null(same, fill_value=False).to_numpy(zero_copy_only=False)
        return moved


class _Rows:
    """Rows of a stream of batches, taken by their number."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: list[pa.RecordBatch] = []

    def take(self, count: int) -> pa.Table:
        """Return the next `count` rows."""
        while (there := sum(batch.num_rows for batch in self._rest)) < count:
            batch = next(self._batches, None)
            if batch is None:
                raise AssertionError(f"{there} rows came back from Spark where {count} were sent")
            self._rest.append(batch)
        rows = pa.Table.from_batches(self._rest)
        self._rest = rows.slice(count).to_batches()
        return rows.slice(0, count)


class _Read:
    """The first function of the job: for each input row, the index of a segment, it yields that segment's `inputs`."""

    def __init__(self, segments: list[str], task: _Task) -> None:
        self._segments = segments
        self._task = task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from self._task.inputs_of(Segment.from_json(json.loads(self._segments[index])))


class _Write:
    """The last function of the job: it writes the derived segment whose index is the number of the partition."""

    def __init__(self, segments: list[str], task: _Task) -> None:
        self._segments = segments
        self._task = task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        segment = Segment.from_json(json.loads(self._segments[context.partitionId()]))
        made = self._task.write(segment, _Rows(batches))
        reported = made.segment.to_json() if made.segment else None, made.bad, made.why
        yield pa.RecordBatch.from_pydict({"made": [json.dumps({segment.name: reported})]})


def _is_a_values(error: Exception) -> bool:
    """Return True if the error means that an expression or a user's function failed on a value. Return False for all
    other failures of Spark or raycdc.
    """
    from py4j.protocol import Py4JError, Py4JJavaError

    lost_jvm = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    return not lost_jvm and not is_absent(error) and not any(sign in str(error) for sign in _NO_VALUES)


def _kind(error: Exception) -> str:
    """Return Spark's name for the error of an expression on a value, or the class of the error that a user's function
    raised.

    The error's text is left out, because it quotes the value.
    """
    if condition := _CONDITION.search(str(error)):
        return condition[0]
    classes = [name[1] for line in str(error).splitlines() if (name := _CLASS.match(line.strip()))]
    return classes[-1] if classes else type(error).__name__


def _reason(error: Exception) -> str:
    """Return the error of a job without Java's stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    classified = next((line for line in lines if "[" in line and "]" in line and not line.startswith("at ")), "")
    return (classified or (lines[0] if lines else repr(error)))[:500]
