"""The results of a comparison, as values; ``raycdc verify --json`` prints `to_json`, a line per table.

They contain no value of a row unless keys were requested.

Differing keys are collected as texts for people, and as lists for a backfill, which reads these rows again and deletes
those that the source lacks. Both sides are read once more to collect keys, because a comparison knows only their
hashes. Used by `raycdc.verify.table`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

import numpy as np
import pyarrow as pa

from raycdc.model import TableSchema
from raycdc.model.arrays import python_value
from raycdc.source.snapshot.rereading.backfill_keys import lists_of_keys
from raycdc.verify.canonical import Compared
from raycdc.verify.differing_columns import DifferingColumn
from raycdc.verify.digests import Checksum, Differing

#: The version of the JSON lines; raised when a key changes its meaning.
RESULT_VERSION = 1


class ComparisonVerdict(StrEnum):
    """The result of a table's comparison."""

    #: Every row is equal on both sides.
    EQUAL = "equal"
    #: At least one row differs that did not change meanwhile.
    DIFFERENT = "different"
    #: No row is known to differ. Some rows changed during each round, or are not written yet, and are undecided.
    UNSETTLED = "unsettled"
    #: The table was not compared, for a reason.
    NOT_COMPARED = "not compared"
    #: The table was not compared because the pipeline does not follow it any more, as a user decided.
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """The numbers of differing keys.

    `missing` keys are not in the target, `extra` keys are not in the source, and `changed` keys are in both with
    different values. `kept_changing` keys differed in each round, and were changed during each. `behind` keys differ
    because the pipeline has not written their last changes yet.
    """

    missing: int = 0
    extra: int = 0
    changed: int = 0
    kept_changing: int = 0
    behind: int = 0

    @property
    def different(self) -> int:
        return self.missing + self.extra + self.changed


@dataclass(frozen=True, slots=True)
class SideCounts:
    """The number and size of one side's rows in the first round."""

    rows: int
    checksum: str

    @classmethod
    def of(cls, checksum: Checksum) -> SideCounts:
        return cls(checksum.rows, str(checksum))


class KeysJson(TypedDict):
    """The differing keys, if they were requested."""

    missing: list[str]
    extra: list[str]
    changed: list[str]


class TableJson(TypedDict):
    """A `TableResult` for programs."""

    version: int
    table: str
    target: str
    verdict: str
    reason: str
    notes: list[str]
    source_rows: int
    target_rows: int
    source_checksum: str
    target_checksum: str
    ranges: int
    rounds: int
    seconds: float
    round_seconds: list[float]
    sample_percent: float
    missing: int
    extra: int
    changed: int
    kept_changing: int
    behind: int
    columns: list[str]
    keys: KeysJson | None


@dataclass(frozen=True, slots=True)
class ShownKeys:
    """Some of the differing keys, as text."""

    missing: Sequence[str] = ()
    extra: Sequence[str] = ()
    changed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """The result of a comparison, in `ranges` of the source and `rounds`.

    `sample` is the fraction of the ranges that were read.
    """

    source: SideCounts
    target: SideCounts
    ranges: int
    rounds: int
    counts: KeyCounts
    seconds: float
    keys: ShownKeys | None = None
    sample: float = 1.0
    #: Lists of the differing keys (`raycdc.source.snapshot.rereading.backfill_keys`), if they were requested and can be
    #: named.
    repair: tuple[str, ...] = ()
    #: The seconds of reading both sides, in each round.
    round_seconds: tuple[float, ...] = ()
    #: The columns in which rows of both sides differ, as far as they were examined.
    columns: tuple[DifferingColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class TableResult:
    """The result of a table.

    `reason` is empty unless the table was not compared; `notes` are for people. `is_left_out` means that the pipeline
    does not follow the table any more.
    """

    table: str
    target: str
    comparison: ComparisonReport | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()
    is_left_out: bool = False

    @classmethod
    def refused(cls, table: str, target: str, *, why: str, notes: Sequence[str] = ()) -> TableResult:
        """Return the result for a table that was not compared.

        `why` may already be a sentence, like the reason of a parked table.
        """
        return cls(table, target, reason=f"{why.rstrip('.')}.", notes=tuple(dict.fromkeys(notes)))

    @property
    def verdict(self) -> ComparisonVerdict:
        if self.comparison is None:
            return ComparisonVerdict.LEFT_OUT if self.is_left_out else ComparisonVerdict.NOT_COMPARED
        counts = self.comparison.counts
        if counts.different:
            return ComparisonVerdict.DIFFERENT
        return ComparisonVerdict.UNSETTLED if counts.kept_changing or counts.behind else ComparisonVerdict.EQUAL

    def to_json(self) -> TableJson:
        found = self.comparison or ComparisonReport(SideCounts(0, ""), SideCounts(0, ""), 0, 0, KeyCounts(), 0.0)
        keys = found.keys
        return TableJson(
            version=RESULT_VERSION,
            table=self.table,
            target=self.target,
            verdict=self.verdict.value,
            reason=self.reason,
            notes=list(self.notes),
            source_rows=found.source.rows,
            target_rows=found.target.rows,
            source_checksum=found.source.checksum,
            target_checksum=found.target.checksum,
            ranges=found.ranges,
            rounds=found.rounds,
            seconds=round(found.seconds, 3),
            round_seconds=[round(seconds, 3) for seconds in found.round_seconds],
            sample_percent=round(100 * found.sample, 3),
            missing=found.counts.missing,
            extra=found.counts.extra,
            changed=found.counts.changed,
            kept_changing=found.counts.kept_changing,
            behind=found.counts.behind,
            columns=[column.name for column in found.columns],
            keys=None
            if keys is None
            else KeysJson(missing=list(keys.missing), extra=list(keys.extra), changed=list(keys.changed)),
        )


#: If more keys than this differ, the table is resnapshotted. For fewer, the keys are stored in the state, and each is
#: looked up separately.
KEYS_MAX = 10_000


class KeyTexts:
    """Collects the keys of `found` as texts."""

    def __init__(self, compared: Compared, found: Differing) -> None:
        self._compared, self._found = compared, found
        self._wanted = np.sort(found.keys())
        self._texts: dict[int, str] = {}

    def observe(self, columns: Mapping[str, pa.Array], rows: int) -> None:
        """Collect keys of rows of either side; `columns` are by the names of the compared columns."""
        keys = self._compared.key_hashes(columns, rows)
        for index in np.flatnonzero(np.isin(keys, self._wanted)):
            values = [str(python_value(columns[part.name][int(index)])) for part in self._compared.key]
            self._texts.setdefault(int(keys[index]), ", ".join(values))

    @property
    def is_complete(self) -> bool:
        return len(self._texts) == len(np.unique(self._wanted))

    def shown(self, most: int) -> ShownKeys:
        """Return the first keys of each kind."""
        kinds = (self._found.missing, self._found.extra, self._found.changed)
        lists = (sorted(self._texts[int(key)] for key in kind if int(key) in self._texts) for kind in kinds)
        return ShownKeys(*(each[:most] for each in lists))


class KeysToRepair:
    """Collects the keys with the hashes `wanted` (ascending).

    `source_key` has the source's column of each part of the compared key.
    """

    def __init__(
        self, compared: Compared, source_key: Mapping[str, str], schema: TableSchema, wanted: np.ndarray
    ) -> None:
        self._compared, self._wanted = compared, wanted
        self._columns = source_key
        self._schema = pa.schema([(name, schema.column(name).type.arrow()) for name in source_key.values()])
        self._found: list[pa.Table] = []
        self._seen: set[int] = set()

    def observe(self, columns: Mapping[str, pa.Array], rows: int) -> None:
        """Collect keys of rows of either side; `columns` are by the names of the compared columns.

        Raises `ArrowException` for a key that no row of the source can have.
        """
        hashes = self._compared.key_hashes(columns, rows)
        places = [index for index in np.flatnonzero(np.isin(hashes, self._wanted)) if self._is_new(int(hashes[index]))]
        if places:
            taken = pa.array(places)
            named = zip(self._columns, self._schema, strict=True)
            arrays = [columns[part].take(taken).cast(field.type) for part, field in named]
            self._found.append(pa.Table.from_arrays(arrays, schema=self._schema))

    @property
    def is_complete(self) -> bool:
        return len(self._seen) == len(np.unique(self._wanted))

    def lists(self) -> tuple[str, ...]:
        """Return all collected keys, in lists (`lists_of_keys`); empty if a wanted key was found on neither side."""
        if not self.is_complete:
            return ()
        return lists_of_keys(pa.concat_tables(self._found))

    def _is_new(self, key: int) -> bool:
        known = key in self._seen
        self._seen.add(key)
        return not known
