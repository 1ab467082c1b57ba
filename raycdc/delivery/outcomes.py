"""The epoch loop's reports: statistics of a committed epoch, the result of recovery, and the forecast of a start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raycdc.model.engines import NO_ENGINE_ROWS, EngineRows
from raycdc.state.manifests.manifest import Manifest


@dataclass(frozen=True, slots=True)
class FollowedChange:
    """Schema changes of `table` that an epoch applied to `target`, such as ``add_column note``, without values."""

    table: str
    target: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EpochStatistics:
    """The statistics of one committed epoch, for the tables that a target took.

    `staging_s` overlaps the previous commit.
    """

    epoch: int
    bytes: int
    tables: Mapping[str, int]
    staging_s: float
    commit_s: float
    committed_ms: int
    sealed_ms: int
    watermark_ms: int | None
    final: bool
    #: The number of rows left out so far, for each table that has any.
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    schema_changes: tuple[FollowedChange, ...] = ()
    engines: EngineRows = NO_ENGINE_ROWS

    @property
    def rows(self) -> int:
        return sum(self.tables.values())

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        committed_ms: int,
        bad_rows: Mapping[str, int],
        schema_changes: tuple[FollowedChange, ...] = (),
        *,
        staging_s: float,
        commit_s: float,
    ) -> EpochStatistics:
        """Return the statistics of `manifest`, which was recorded at `committed_ms`."""
        rows = dict.fromkeys(map(str, manifest.tables), 0)
        for segment in manifest.segments:
            rows[str(segment.table)] += segment.rows
        return cls(
            epoch=manifest.epoch,
            bytes=sum(segment.bytes for segment in manifest.segments),
            tables=rows,
            staging_s=staging_s,
            commit_s=commit_s,
            committed_ms=committed_ms,
            sealed_ms=manifest.created_ms,
            watermark_ms=manifest.watermark_ms,
            final=manifest.final,
            bad_rows=bad_rows,
            schema_changes=schema_changes,
        )


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of `EpochLoop.recover`.

    It lists the epochs that were recorded, replayed, dropped and frozen. A frozen epoch is complete for some targets;
    the source tables of its other targets are resnapshotted. Reading goes on after `epoch`.
    """

    epoch: int
    recorded: tuple[int, ...] = ()
    replayed: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    frozen: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StartForecast:
    """The result of `EpochLoop.inspect`.

    `parked` are the targets that a start would park, with the reason. `unasked` are the nodes that have needed segments
    and were not contacted.
    """

    parked: Mapping[str, str] = field(default_factory=dict)
    unasked: tuple[str, ...] = ()
