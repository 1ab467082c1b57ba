"""What a comparison found, as values; `to_json` is what ``raycdc verify --json`` prints, a line per table.

No value of a row is in them unless keys were asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

from raycdc.verify.digests import Checksum

#: Of the JSON lines; raised when a key changes its meaning.
RESULT_VERSION = 1


class Verdict(StrEnum):
    """What is known of a table once it was compared."""

    #: Every row is the same on both sides.
    EQUAL = "equal"
    #: At least one row differs that was the same all the time.
    DIFFERENT = "different"
    #: No row is known to differ, but some changed whenever they were looked at, or are not written yet.
    UNSETTLED = "unsettled"
    #: It was not compared, for a reason.
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class Counts:
    """Keys by what is known of them. `missing` are not in the target, `extra` not at the source; `changed` are in both
    with other values. `kept_changing` differed in each round, and changed in each; `behind` differ because the pipeline
    has not written their last changes.
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
class Side:
    """One side's rows as they were first read."""

    rows: int
    checksum: str

    @classmethod
    def of(cls, checksum: Checksum) -> Side:
        return cls(checksum.rows, str(checksum))


class KeysJson(TypedDict):
    """Keys that differ, as they are printed when they were asked for."""

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
    keys: KeysJson | None


@dataclass(frozen=True, slots=True)
class ShownKeys:
    """Some of the keys that differ, as text."""

    missing: Sequence[str] = ()
    extra: Sequence[str] = ()
    changed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a table was compared: in how many `ranges` of the source and `rounds`, and what was found. `sample` is the
    share of the ranges that were read.
    """

    source: Side
    target: Side
    ranges: int
    rounds: int
    counts: Counts
    seconds: float
    keys: ShownKeys | None = None
    sample: float = 1.0
    #: Lists of the keys that differ (`raycdc.source.snapshot.key_list`), where they were asked for and can be named.
    repair: tuple[str, ...] = ()
    #: Of reading both sides, in each round.
    round_seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TableResult:
    """`reason` is empty unless the table was not compared; `notes` are for people."""

    table: str
    target: str
    comparison: Comparison | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def refused(cls, table: str, target: str, *, why: str, notes: Sequence[str] = ()) -> TableResult:
        """A table that was not compared. `why` may be a sentence already, as the reason of a parked table is."""
        return cls(table, target, reason=f"{why.rstrip('.')}.", notes=tuple(dict.fromkeys(notes)))

    @property
    def verdict(self) -> Verdict:
        if self.comparison is None:
            return Verdict.NOT_COMPARED
        counts = self.comparison.counts
        if counts.different:
            return Verdict.DIFFERENT
        return Verdict.UNSETTLED if counts.kept_changing or counts.behind else Verdict.EQUAL

    def to_json(self) -> TableJson:
        found = self.comparison or Comparison(Side(0, ""), Side(0, ""), 0, 0, Counts(), 0.0)
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
            keys=None
            if keys is None
            else KeysJson(missing=list(keys.missing), extra=list(keys.extra), changed=list(keys.changed)),
        )
