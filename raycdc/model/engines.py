"""The engines that read and write: the driver's own process, Ray's actors, or Spark's tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

#: The default of ``spark.from_bytes``. A Spark job costs about 70 ms of a Python worker, the time in which that worker
#: writes this many bytes.
FROM_BYTES = 4 << 20


class EngineName(StrEnum):
    """The names of the engines.

    Events have these names (`raycdc.observe.events`), and programs read them, so they must not change.
    """

    DRIVER = "driver"
    RAY = "ray"
    SPARK = "spark"


#: Numbers of rows by the engine that read or wrote them.
RowsBy = Mapping[EngineName, int]

_READERS = {EngineName.RAY: "Ray's readers", EngineName.DRIVER: "this process"}
_WRITERS = {EngineName.SPARK: "Spark", EngineName.DRIVER: "this process"}


@dataclass(frozen=True, slots=True)
class EngineRows:
    """The numbers of rows in epochs that the sink holds.

    `read` has the number of rows that the run read, by engine. `written` has the number of rows written to all targets,
    by engine. The two sums differ if rows go to several targets or to none, or if an earlier run read them.
    """

    read: RowsBy = field(default_factory=dict)
    written: RowsBy = field(default_factory=dict)

    def __add__(self, other: EngineRows) -> EngineRows:
        return EngineRows(_sum(self.read, other.read), _sum(self.written, other.written))

    def __str__(self) -> str:
        """Return a text for people; empty if there are no rows."""
        parts = []
        for verb, rows, names in (("read", self.read, _READERS), ("written", self.written, _WRITERS)):
            if counts := [f"{rows[engine]:,} by {name}" for engine, name in names.items() if rows.get(engine)]:
                parts.append(f"rows {verb}: {', '.join(counts)}")
        return "; ".join(parts)

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return the numbers under the keys that programs read."""
        return {
            "rows_read_by": {str(engine): rows for engine, rows in self.read.items()},
            "rows_written_by": {str(engine): rows for engine, rows in self.written.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, int]]) -> EngineRows:
        """Return the inverse of `to_json`; engines that this version does not know are left out."""
        known = {str(engine): engine for engine in EngineName}
        read, written = (
            {known[name]: rows for name, rows in data.get(key, {}).items() if name in known}
            for key in ("rows_read_by", "rows_written_by")
        )
        return cls(read, written)


NO_ENGINE_ROWS = EngineRows()


def _sum(first: RowsBy, second: RowsBy) -> RowsBy:
    return dict(Counter(first) + Counter(second))
