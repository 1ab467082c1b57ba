"""The segments made of those of an epoch on their way to the targets: exact, derived, joined, without bad rows.

Called by the epoch writer for the works that it stages. A segment that was made once is remembered with the epoch, so
that works which are staged again, because a node did not answer, have the same one.
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

#: Tables whose rows Spark goes through at once: small jobs wait for the driver more than they compute.
DERIVED_AT_ONCE = 4


@dataclass(slots=True)
class Derived:
    """The segments derived from those of one epoch; None if no row is left.

    The keys are the names of the original segments, with the target's name if only one target gets them. `bad` has the
    number of rows that each lost, and the reason of the first.
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
    """See the module's docstring. `left_out` hears which tables lose rows; `access` says where segments are now."""

    def __init__(self, routing: Routing, left_out: LeftOut, access: Callable[[], SegmentAccess]) -> None:
        self._routing = routing
        self._left_out = left_out
        self._access = access

    def exact(
        self, commits: Sequence[TableCommit], sources: Sequence[TableCommit], known: dict[str, Segment | None]
    ) -> list[TableCommit]:
        """`commits` with exact segments instead of those of `sources`; `known` remembers them by the names of those
        they are made of. Raises what `RowStore.exact` does.
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
        """`commits` with derived segments instead of those of the tables that need it, and without rows that targets
        cannot have; `known` remembers them. Blocks while Spark computes. Raises what `Routing.derive` does.
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
                        # A repeated call, after a node did not answer, finds them here.
                        known.segments[made.segment.name] = made.segment
            commits = [replace(work, segments=tuple(_derived_segments(work, known.segments))) for work in commits]
            commits = self._filtered(commits, known, pool)
        self._left_out.add(known.bad_rows())
        return commits

    def _filtered(self, commits: list[TableCommit], known: Derived, pool: ThreadPoolExecutor) -> list[TableCommit]:
        """`commits` without rows of which a value is none of the target's type."""
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
                # A repeated staging finds the segment here.
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
                # Exact ones are still to be added to the known rows.
                self._forget(one.segment for one in made)
            return joined
        return made

    def forget(self, segments: Iterable[Segment | None], epoch: int) -> None:
        """Derived segments of `epoch`, which is recorded."""
        self._forget(segments)
        if self._routing.joiner is not None:
            self._routing.joiner.forget(epoch)

    def _forget(self, segments: Iterable[Segment | None]) -> None:
        made = [segment for segment in segments if segment is not None]
        for maker in self._routing.makers:
            maker.forget(made)


def _filtered_name(work: TableCommit, segment: Segment) -> str:
    """The name of a segment as one target has it, in `Derived`."""
    return f"{work.target}/{segment.name}"


def _filtered_segments(work: TableCommit, known: Mapping[str, Segment | None]) -> Iterator[Segment]:
    for segment in work.segments:
        made = known.get(_filtered_name(work, segment), segment)
        if made is not None:
            # Where a node's server is may have changed since it was sifted.
            yield segment if made.name == segment.name else replace(made, view=segment.view)


def _derived_segments(work: TableCommit, known: Mapping[str, Segment | None]) -> Iterator[Segment]:
    """Yield the segments of `work` with derived ones in place of their originals, without empty ones."""
    for segment in work.segments:
        made = known.get(segment.name, segment)
        if made is not None:
            yield replace(made, view=segment.view, partition=segment.partition)
