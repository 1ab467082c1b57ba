"""Compares one table, in rounds; the package's docstring explains why the result is exact."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import SinkError, TableChangedError, TableLockedError
from raycdc.model import META_COLUMNS
from raycdc.source.split import SnapshotSplit
from raycdc.verify.canonical import Compared
from raycdc.verify.changelog import EMPTIED, KIND, ORDER, Fold
from raycdc.verify.differing_columns import KEYS_MAX as COLUMNS_OF_KEYS_MAX
from raycdc.verify.differing_columns import DifferingColumn, SideByColumns, differing_columns
from raycdc.verify.digests import Checksum, Differing, Digests
from raycdc.verify.pipeline_state import CommittedState, PipelineState
from raycdc.verify.results import KEYS_MAX, ComparisonReport, KeyCounts, KeysToRepair, KeyTexts, ShownKeys, SideCounts
from raycdc.verify.source_rows import LogChanges, LogSaysMoreError, NamedKeys, ReadUpTo, SomeRows, SourceTableRows
from raycdc.verify.targets.api import NotComparedError, RowFilter, TargetTable

Result = TypeVar("Result")

#: The number of rounds in which a differing key is compared again while it keeps changing.
ROUNDS_MAX = 6
#: The maximum number of attempts for a table whose columns change while it is read.
ATTEMPTS_MAX = 3
#: The maximum number of columns, of those that only the target has, that are searched for the values of a differing
#: column.
EXAMPLES_MAX = 8
#: The maximum number of keys of each kind that are shown.
KEYS_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides of one table. `names` are the target's names of the compared columns."""

    source: SourceTableRows
    target: TargetTable
    compared: Compared
    names: Mapping[str, str]
    #: Selects the rows of the target that are compared: all except softly deleted rows.
    counts: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch
    #: Further columns of the target that `counts` needs.
    counted_by: tuple[str, ...] = ()
    #: True if the target's rows are changes, of which only the last one of each key counts.
    is_changelog: bool = False
    #: The source's column of each part of the compared key; empty if a key of the target does not identify a row of the
    #: source.
    source_key: Mapping[str, str] = field(default_factory=dict)
    #: True if the target may lack rows of the source.
    leaves_rows_out: bool = False

    def wanted(self, only: SomeRows | None) -> RowFilter | None:
        """Return the filter for the rows of the target that correspond to `only`; None for all rows."""
        if only is None or not only.values:
            return None
        return RowFilter({self.names[name]: values for name, values in only.values.items()}, self.is_changelog)

    def target_columns(self, batch: pa.RecordBatch) -> Mapping[str, pa.Array]:
        """Return the columns of a batch of the target, by the names of the compared columns."""
        return {name: batch.column(theirs) for name, theirs in self.names.items()}


@dataclass(slots=True)
class Reading:
    """The progress of reading both sides, for people. Each number is written by one thread."""

    source_rows: int = 0
    target_rows: int = 0
    round: int = 1
    #: The number of keys that a later round compares.
    keys: int = 0
    #: The activity while no rows are read, as a verb with its object.
    doing: str = ""


@dataclass(frozen=True, slots=True)
class ComparisonTimeouts:
    """The limits of a comparison.

    `wait_s` is the longest wait for a commit that contains all changes read from the log. `stopped` ends all waits.
    `sample` is the fraction of the source's ranges that are read. If it is below 1, extra rows of the target are not
    reported, because the source may have them in ranges that were not read.
    """

    wait_s: float = 60.0
    show_keys: bool = False
    repair: bool = False
    sample: float = 1.0
    stopped: threading.Event = field(default_factory=threading.Event)


class _EndedError(Exception):
    """Raised to stop reading a side whose rest is not needed."""


@dataclass(frozen=True, slots=True)
class _Round:
    """The result of one round: the `differing` keys, and the ordinal after which neither side has changes."""

    source: Checksum
    target: Checksum
    differing: Differing
    ranges: int
    high: int


class TableComparison:
    """Compares one table; `open_sides` opens both sides as of a commit, and may raise `NotComparedError`."""

    def __init__(
        self,
        state: PipelineState,
        open_sides: Callable[[CommittedState], Sides],
        terms: ComparisonTimeouts,
        reading: Reading,
    ) -> None:
        self._state = state
        self._open_sides = open_sides
        self._terms = terms
        self._reading = reading
        #: Set if one side failed, so that the other side is not read to its end.
        self._failed = threading.Event()
        #: The ranges of a sample. They are kept for all rounds, because a second choice would give different ranges.
        self._ranges: list[SnapshotSplit] | None = None

    def run(self) -> ComparisonReport:
        """Compare the table and return the report. Blocks.

        Raises `NotComparedError`, and errors of the source, the target and the state.
        """
        why = ""
        for _ in range(ATTEMPTS_MAX):
            held = self._state.held()
            sides = self._open_sides(held)
            split = held.split(sides.source.table)
            begun = time.monotonic()
            self._failed.clear()
            try:
                self._ranges = None if self._terms.sample >= 1 else _sampled(sides.source.splits(), self._terms.sample)
                named = NamedKeys(sides.compared, sides.source.document.schema, tuple(sides.source_key.values()))
                log = LogChanges(sides.source.source, split, sides.source.maker, sides.compared, named)
                with log:
                    comparison = self._compared(held, sides, log)
            except (LogSaysMoreError, TableChangedError, TableLockedError) as cause:
                why = str(cause)
                # The run has to pass that position before the comparison can continue after it.
                self._terms.stopped.wait(1.0)
                continue
            return replace(comparison, seconds=time.monotonic() - begun, sample=self._terms.sample)
        raise NotComparedError(f"{why.rstrip('.')}; that was so {ATTEMPTS_MAX} times. Compare it when that is over")

    def _compared(self, held: CommittedState, sides: Sides, log: LogChanges) -> ComparisonReport:
        first, seconds = self._timed(partial(self._round, held, sides, None))
        took = [seconds]
        confirmed, waiting = self._judged(held, sides, first, log)
        number, behind = 1, 0
        latest = first
        while len(waiting):
            if number == ROUNDS_MAX:
                break
            self._reading.doing = "waits for a commit of the run that has all changes that were seen"
            later = self._state.held_beyond(latest.high, self._terms.wait_s, self._terms.stopped)
            self._reading.doing = ""
            if later is None:
                behind = len(waiting)
                break
            number += 1
            self._reading.round, self._reading.keys = number, len(waiting)
            if later.document(sides.source.table) != held.document(sides.source.table):
                raise LogSaysMoreError("the table's columns were changed meanwhile")
            latest, seconds = self._timed(partial(self._later_round, later, sides, log.named.rows(waiting)))
            took.append(seconds)
            more, waiting = self._judged(later, sides, latest, log)
            confirmed = _joined(confirmed, more)
        shown = sought = None
        if confirmed.count and self._terms.show_keys:
            shown = KeyTexts(sides.compared, confirmed)
        if confirmed.count and self._terms.repair:
            sought = self._sought(sides, confirmed)
        keys, repair = self._named(held, sides, confirmed, shown, sought)
        columns = self._columns(held, sides, np.sort(confirmed.changed)[:COLUMNS_OF_KEYS_MAX])
        counts = KeyCounts(
            missing=len(confirmed.missing),
            extra=len(confirmed.extra),
            changed=len(confirmed.changed),
            kept_changing=0 if behind else len(waiting),
            behind=behind,
        )
        sizes = SideCounts.of(first.source), SideCounts.of(first.target)
        return ComparisonReport(
            *sizes,
            first.ranges,
            number,
            counts,
            seconds=0.0,
            keys=keys,
            repair=repair,
            round_seconds=tuple(took),
            columns=tuple(columns),
        )

    @staticmethod
    def _timed(read: Callable[[], Result]) -> tuple[Result, float]:
        begun = time.monotonic()
        return read(), time.monotonic() - begun

    def _judged(
        self, held: CommittedState, sides: Sides, found: _Round, log: LogChanges
    ) -> tuple[Differing, np.ndarray]:
        """Return the proven differences of a round, and the keys that must be compared again."""
        if not found.differing.count:
            return found.differing, np.zeros(0, np.uint64)
        keys = found.differing.keys()
        self._reading.doing = "reads the log, for the keys that changed meanwhile"
        changed = log.after(held.ordinal, found.high, keys)
        self._reading.doing = ""
        if not self._state.goes_on(sides.source.table, held):
            raise LogSaysMoreError("the pipeline resnapshotted the table, or stopped following it, meanwhile")
        proven = found.differing.without(changed)
        return proven, np.unique(keys[np.isin(keys, changed)])

    def _later_round(self, held: CommittedState, sides: Sides, only: SomeRows) -> _Round:
        """Compare only these rows in a later round, like `_round`.

        If a side cannot select these rows, both sides are read completely.
        """
        try:
            return self._round(held, sides, only)
        except (TableChangedError, NotComparedError, SinkError):
            if not only.is_narrow:
                raise
        self._failed.clear()
        return self._round(held, sides, only.whole())

    def _round(self, held: CommittedState, sides: Sides, only: SomeRows | None) -> _Round:
        """Read both sides at the same time, all rows or some, and return their differences."""
        with Digests() as ours, Digests() as theirs, ThreadPoolExecutor(1, "verify-target") as pool:
            if self._ranges is None or only is not None:
                reading: Future[None] = pool.submit(self._ending_both, self._read_target, sides, theirs, only)
                try:
                    up_to = self._ending_both(self._read_source, held, sides, ours, only)
                except _EndedError:
                    reading.result()  # This raises the error of the thread that read this side.
                    raise
                reading.result()
            else:
                up_to = self._read_source(held, sides, ours, only)
                self._read_target(sides, theirs, SomeRows(ours.keys()))
            differing = ours.differing(theirs)
            if self._ranges is not None:
                differing = replace(differing, extra=np.zeros(0, np.uint64))
            end = sides.source.source.enumerator_dialect().current_ordinal()
            return _Round(ours.checksum, theirs.checksum, differing, up_to.ranges, max(up_to.ordinal, end))

    def _read_source(self, held: CommittedState, sides: Sides, into: Digests, only: SomeRows | None) -> ReadUpTo:
        self._reading.source_rows = 0
        up_to = ReadUpTo()
        wanted = None if only is None else only.wanted()
        ranges = self._ranges if only is None or not only.lists else only.splits(sides.source.table)
        for batch in sides.source.batches(held.position, up_to, ranges):
            self._require_going()
            columns, rows = sides.source.maker.rows(batch)
            if wanted is not None:
                chosen = wanted.among(sides.compared.key_hashes(columns, rows))
                rows = int(chosen.sum())
                columns = {name: array.filter(pa.array(chosen)) for name, array in columns.items()}
            into.add(*sides.compared.row_hashes(columns, rows))
            self._reading.source_rows += batch.num_rows
        return up_to

    def _read_target(self, sides: Sides, into: Digests, only: SomeRows | None) -> None:
        self._reading.target_rows = 0
        fold = Fold()
        for batch in self._target_batches(sides, only):
            self._require_going()
            self._reading.target_rows += batch.num_rows
            read = batch if only is None else _of_keys(sides, batch, only)
            keys, rows = sides.compared.row_hashes(sides.target_columns(read), read.num_rows)
            if sides.is_changelog:
                fold.add(keys, rows, read.column(KIND), read.column(ORDER))
            else:
                into.add(keys, rows)
        if sides.is_changelog:
            into.add(*fold.rows())

    @staticmethod
    def _target_batches(
        sides: Sides, only: SomeRows | None = None, *, keys_alone: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the target's rows that are compared: all, or those of `only`, with further rows that its reader does
        not skip.
        """
        further = [*sides.counted_by, *((KIND, ORDER) if sides.is_changelog else ())]
        compared = sides.compared.key if keys_alone else sides.compared.columns
        names = dict.fromkeys([*(sides.names[part.name] for part in compared), *further])
        try:
            yield from map(sides.counts, sides.target.batches(list(names), sides.wanted(only)))
        except (OSError, pa.ArrowException) as cause:
            # A file of the target is missing or damaged, which does not concern the other tables.
            raise NotComparedError(
                f"its rows cannot be read from the target ({type(cause).__name__}: {cause})"
            ) from cause

    @staticmethod
    def _sought(sides: Sides, differing: Differing) -> KeysToRepair | None:
        """Return the collector of differing keys for a backfill; None if they cannot be named."""
        if not sides.source_key or sides.leaves_rows_out or sides.is_changelog or differing.count > KEYS_MAX:
            return None
        return KeysToRepair(sides.compared, sides.source_key, sides.source.document.schema, np.sort(differing.keys()))

    def _named(
        self,
        held: CommittedState,
        sides: Sides,
        differing: Differing,
        shown: KeyTexts | None,
        sought: KeysToRepair | None,
    ) -> tuple[ShownKeys | None, tuple[str, ...]]:
        """Read both sides once more, and return the differing keys as texts and as lists for a repair.

        Keys that both sides have are taken from the source, because a backfill compares them with the source's rows.
        The source is not read if all differing rows are extra and no repair is wanted. From the target, only the
        columns of its key are read, up to the last extra row.
        """
        looking: list[KeyTexts | KeysToRepair] = [each for each in (shown, sought) if each is not None]
        self._reading.doing = "reads once more, for the keys that differ"
        if looking and (sought is not None or len(differing.missing) + len(differing.changed)):
            for batch in sides.source.batches(held.position, ReadUpTo(), self._ranges):
                self._require_going()
                looking = _still_usable(looking, sides.source.maker.columns(batch), batch.num_rows)
        if not all(each.is_complete for each in looking):
            for batch in self._target_batches(sides, keys_alone=True):
                self._require_going()
                columns = {part.name: batch.column(sides.names[part.name]) for part in sides.compared.key}
                looking = _still_usable(looking, columns, batch.num_rows)
                if all(each.is_complete for each in looking):
                    break
        self._reading.doing = ""
        lists = sought.lists() if sought is not None and sought in looking else ()
        return None if shown is None else shown.shown(KEYS_SHOWN_MAX), lists

    def _columns(self, held: CommittedState, sides: Sides, wanted: np.ndarray) -> list[DifferingColumn]:
        """Return the columns in which the rows with these keys differ; none if a side cannot be read once more now."""
        if not len(wanted):
            return []
        self._reading.doing = "reads once more, for the columns that differ"
        try:
            return self._differing_columns(held, sides, wanted)
        except (TableChangedError, TableLockedError, NotComparedError):
            return []
        finally:
            self._reading.doing = ""

    def _differing_columns(self, held: CommittedState, sides: Sides, wanted: np.ndarray) -> list[DifferingColumn]:
        compared = [column for column in sides.compared.columns if column not in sides.compared.key]
        ours = SideByColumns(sides.compared, [(column, column.name) for column in compared], wanted)
        for batch in sides.source.batches(held.position, ReadUpTo(), self._ranges):
            self._require_going()
            columns, _ = sides.source.maker.rows(batch)
            ours.add({part.name: columns[part.name] for part in sides.compared.key}, columns, None)
            if ours.is_complete:
                break
        known = {*sides.names.values(), *sides.counted_by, *META_COLUMNS}
        others = [name for name in sides.target.columns() if name not in known][:EXAMPLES_MAX]
        pairs = [(column, sides.names[column.name]) for column in compared]
        pairs += [(column, other) for column in compared for other in others]
        theirs = SideByColumns(sides.compared, pairs, wanted)
        further = [*sides.counted_by, *((KIND, ORDER) if sides.is_changelog else ())]
        names = dict.fromkeys([*sides.names.values(), *others, *further])
        for batch in map(sides.counts, sides.target.batches(list(names), None)):
            self._require_going()
            changes = (batch.column(KIND), batch.column(ORDER)) if sides.is_changelog else None
            values = {name: batch.column(name) for name in batch.schema.names}
            theirs.add({part.name: values[sides.names[part.name]] for part in sides.compared.key}, values, changes)
            if theirs.is_complete:
                break
        return differing_columns(ours, theirs)

    def _ending_both(self, read: Callable[..., Result], *given: Any) -> Result:
        """Call `read` for one side; an error ends the other side, too."""
        try:
            return read(*given)
        except BaseException:
            self._failed.set()
            raise

    def _require_going(self) -> None:
        if self._terms.stopped.is_set() or self._failed.is_set():
            raise _EndedError


def _sampled(ranges: Iterable[SnapshotSplit], fraction: float) -> list[SnapshotSplit]:
    """Return about this fraction of the ranges, at least one, spread over all of them.

    Each call makes a different choice.
    """
    every, begin = list(ranges), random.random()  # noqa: S311 - nothing secret
    chosen = [each for number, each in enumerate(every) if (number * fraction + begin) % 1 < fraction]
    return chosen or [random.choice(every)]  # noqa: S311


def _kinds(differing: Differing) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return differing.missing, differing.extra, differing.changed


def _joined(one: Differing, other: Differing) -> Differing:
    """Return the union of the differences of two rounds.

    No key is in both, because only undecided keys are compared again.
    """
    return Differing(*(np.concatenate(pair) for pair in zip(_kinds(one), _kinds(other), strict=True)))


def _still_usable(
    looking: Sequence[KeyTexts | KeysToRepair], columns: Mapping[str, pa.Array], rows: int
) -> list[KeyTexts | KeysToRepair]:
    """Pass these rows to all collectors, and return those that can continue.

    A collector for a backfill cannot continue after a key that no row of the source can have.
    """
    left = []
    for each in looking:
        try:
            each.observe(columns, rows)
        except pa.ArrowException:
            if isinstance(each, KeyTexts):
                raise
            continue
        left.append(each)
    return left


def _of_keys(sides: Sides, batch: pa.RecordBatch, only: SomeRows) -> pa.RecordBatch:
    """Return the target's rows with these keys.

    If the rows are changes, rows which record that the table was emptied are returned, too.
    """
    chosen = np.isin(sides.compared.key_hashes(sides.target_columns(batch), batch.num_rows), only.hashes)
    if sides.is_changelog:
        chosen |= pc.equal(batch.column(KIND), EMPTIED).to_numpy(zero_copy_only=False)
    return batch.filter(pa.array(chosen))
