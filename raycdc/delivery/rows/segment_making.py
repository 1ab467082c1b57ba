"""Makes the segments that targets get from those of an epoch: exact, derived, joined, and without bad rows.

The epoch writer calls it for the commits that it stages. New segments are remembered with the epoch. If a node does not
answer and commits are staged again, they get the same segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from raycdc.delivery.ports import Routing
from raycdc.delivery.rows.bad_row_filter import LeftOut, UnrepresentableRows
from raycdc.delivery.targets.commit_planner import TargetBatch
from raycdc.model import TableId
from raycdc.segments.access import SegmentAccess
from raycdc.segments.bad_rows import FilteredSegment
from raycdc.sinks.api import TableCommit
from raycdc.state.manifests.manifest import Segment
from raycdc.transform import ResolvedTransform

#: The number of tables that Spark derives concurrently. Small jobs mostly wait for the driver.
DERIVED_AT_ONCE = 4


@dataclass(slots=True)
class Derived:
    """The segments that were made for one epoch; None for a segment of which no row is left.

    Each key is the name of the original segment. If only one target gets the new segment, that target's name stands
    before it. `bad` has the tables that lose rows, with the number of rows that were left out and the reason for the
    first.
    """

    segments: dict[str, Segment | None] = field(default_factory=dict)
    bad: dict[str, tuple[TableId, int, str]] = field(default_factory=dict)

    def add(self, name: str, table: TableId, made: FilteredSegment) -> None:
        self.segments[name] = made.segment
        if made.bad:
            self.bad[name] = table, made.bad, made.why

    def bad_rows(self) -> dict[TableId, int]:
        """Return the number of left-out rows of each table."""
        total: dict[TableId, int] = {}
        for table, count, _ in self.bad.values():
            total[table] = total.get(table, 0) + count
        return total


class SegmentMaking:
    """Makes segments; see the module's docstring.

    `left_out` is notified of tables that lose rows. `access` returns the present access to segments.
    """

    def __init__(self, routing: Routing, left_out: LeftOut, access: Callable[[], SegmentAccess]) -> None:
        self._routing = routing
        self._left_out = left_out
        self._access = access

    def exact(
        self, commits: Sequence[TableCommit], sources: Sequence[TableCommit], known: dict[str, Segment | None]
    ) -> list[TableCommit]:
        """Return `commits` with the exact segments of the source tables. `sources` are the parts of these tables in the
        epoch. `known` maps the names of original segments to exact segments, and gets the new ones. Raises the errors
        of `RowStore.exact`.
        """
        if self._routing.known is None:
            return list(commits)
        wanted = {segment.name for work in commits for segment in work.segments} - known.keys()
        for source in sources:
            if any(segment.name in wanted for segment in source.segments):
                located = replace(source, segments=self._access().located(source.segments))
                known.update(self._routing.known.exact(located))
        return [replace(work, segments=tuple(_derived_segments(work, known))) for work in commits]

    def derived(self, commits: Sequence[TableCommit], target_batch: TargetBatch, known: Derived) -> list[TableCommit]:
        """Return `commits` with derived segments for tables that need them, and without rows that do not fit merged
        targets.

        `known` has the segments that were already made, and gets the new ones. Blocks while Spark computes. Raises the
        errors of the deriver, the joiner and the filter.
        """
        epoch = commits[0].epoch if commits else 0
        wanted = {
            table: {
                s.name: s
                for work in commits
                for s in work.segments
                if s.table == table and s.name not in known.segments
            }
            for table in target_batch.derived
        }
        with ThreadPoolExecutor(DERIVED_AT_ONCE, thread_name_prefix="raycdc-derive") as pool:
            pending = {
                pool.submit(self._derive, list(segments.values()), target_batch.derived[table], epoch): list(
                    segments.values()
                )
                for table, segments in wanted.items()
                if segments
            }
            for future, segments in pending.items():
                for segment, made in zip(segments, future.result(), strict=True):
                    known.add(segment.name, segment.table, made)
                    if made.segment is not None:
                        # A repeated call, whose commits have the new segments, must not derive them again.
                        known.segments[made.segment.name] = made.segment
            commits = [replace(work, segments=tuple(_derived_segments(work, known.segments))) for work in commits]
            commits = self._filtered(commits, known, pool)
        self._left_out.add(known.bad_rows())
        return commits

    def _filtered(self, commits: list[TableCommit], known: Derived, pool: ThreadPoolExecutor) -> list[TableCommit]:
        """Return `commits` without rows whose values do not fit the type of a merged target."""
        if self._routing.bad_row_filter is None:
            return commits
        bad_row_filter = self._routing.bad_row_filter
        pending = [
            (work, segment, pool.submit(bad_row_filter, segment, work.target, work.epoch))
            for work in commits
            for segment in work.segments
            if bad_row_filter.concerns(segment) and _filtered_name(work, segment) not in known.segments
        ]
        for work, segment, future in pending:
            made = future.result()
            known.add(_filtered_name(work, segment), segment.table, made)
            if made.segment is not None:
                known.segments[_filtered_name(work, made.segment)] = made.segment
        return [replace(work, segments=tuple(_filtered_segments(work, known.segments))) for work in commits]

    def fitting(self, work: TableCommit, known: Derived, unrepresentable: UnrepresentableRows) -> TableCommit:
        """Return `work` without the rows that its target can never have, after it refused a value.

        Returns the same `work` if there is no such row. `known` caches the new segments. Raises the errors of
        `BadRowFilter.without_unrepresentable`.
        """
        bad_row_filter = self._routing.bad_row_filter
        segments: list[Segment | None] = list(work.segments)
        for index, segment in enumerate(work.segments if bad_row_filter is not None else ()):
            assert bad_row_filter is not None
            made = bad_row_filter.without_unrepresentable(segment, work, unrepresentable)
            if made.segment is segment:
                continue
            known.add(_filtered_name(work, segment), segment.table, made)
            if made.segment is not None:
                # A repeated staging, whose commits have the new segment, must not derive or filter it again.
                known.segments[made.segment.name] = known.segments[_filtered_name(work, made.segment)] = made.segment
            segments[index] = made.segment
        left = tuple(segment for segment in segments if segment is not None)
        if left == work.segments:
            return work
        self._left_out.add(known.bad_rows())
        return replace(work, segments=left)

    def _derive(self, segments: Sequence[Segment], resolved: ResolvedTransform, epoch: int) -> list[FilteredSegment]:
        plain = [replace(segment, view=None) for segment in segments]
        made = [FilteredSegment(segment) for segment in plain]
        if derived := self._routing.transforms.derived(resolved):
            assert self._routing.deriver is not None, resolved.table
            made = self._routing.deriver(plain, resolved, epoch)
        if resolved.lookups:
            assert self._routing.joiner is not None, resolved.table
            joined = self._routing.joiner(plain, made, resolved, epoch)
            if derived:
                # Only derived segments are deleted, because exact ones are still needed for the row store.
                self._forget(one.segment for one in made)
            return joined
        return made

    def forget(self, segments: Iterable[Segment | None], epoch: int) -> None:
        """Delete new segments of `epoch`, which is recorded."""
        self._forget(segments)
        if self._routing.joiner is not None:
            self._routing.joiner.forget(epoch)

    def _forget(self, segments: Iterable[Segment | None]) -> None:
        made = [segment for segment in segments if segment is not None]
        for maker in self._routing.makers:
            maker.forget(made)


def _filtered_name(work: TableCommit, segment: Segment) -> str:
    """Return the key in `Derived` of a segment that one target gets."""
    return f"{work.target}/{segment.name}"


def _filtered_segments(work: TableCommit, known: Mapping[str, Segment | None]) -> Iterator[Segment]:
    for segment in work.segments:
        made = known.get(_filtered_name(work, segment), segment)
        if made is not None:
            # An unchanged segment keeps its newer location.
            yield segment if made.name == segment.name else replace(made, view=segment.view)


def _derived_segments(work: TableCommit, known: Mapping[str, Segment | None]) -> Iterator[Segment]:
    """Yield the segments of `work`, with derived ones instead of their originals, and without empty ones."""
    for segment in work.segments:
        made = known.get(segment.name, segment)
        if made is not None:
            yield replace(made, view=segment.view, partition=segment.partition)
