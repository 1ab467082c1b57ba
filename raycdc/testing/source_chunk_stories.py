"""Stories of the chunks of a source, which a snapshot reads one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from raycdc.checkpoint.opaque import PlannerState
from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log_rows import key_values
from raycdc.source.snapshot.snapshot_plan import StartPoint
from raycdc.source.split import OpenedAt, SnapshotSplit
from raycdc.testing.source_stories import SourceStories, behind, shown


class ChunkStories(SourceStories):
    """Chunks have every row of a table once, and see what the log had when they were opened."""

    def test_every_row_is_in_one_chunk(self, tmp_path: Path) -> None:
        source, start = self.new_source(tmp_path), self._start(tmp_path)
        order = source.key_order(self._split(start))
        for plan in start.tables:
            wanted = {shown(row) for row in self.rows(tmp_path, plan.table)}
            read: list[str] = []
            for split in self._chunks(tmp_path, plan.table, plan.document):
                for batch in self._read(tmp_path, split, start, plan.document):
                    read += [shown(row) for row in batch.select(_names(plan.document)).to_pylist()]
                    if split.key is not None:
                        bounds = [order.bound(plan.table, raw) for raw in (split.lower, split.upper) if raw is not None]
                        cells = order.classify(plan.table, key_values(batch, split.key), bounds)
                        inside = 0 if split.lower is None else 1
                        assert (cells == inside).all() or split.includes_null, f"rows outside of {split}"
            assert sorted(read) == sorted(wanted), f"chunks of {plan.table} have {len(read)} rows of {len(wanted)}"

    def test_bounds_of_chunks_ascend_without_gaps(self, tmp_path: Path) -> None:
        source, start = self.new_source(tmp_path), self._start(tmp_path)
        order = source.key_order(self._split(start))
        for plan in start.tables:
            chunks = [chunk for chunk in self._chunks(tmp_path, plan.table, plan.document) if not chunk.only_null]
            assert (chunks[0].lower, chunks[-1].upper) == (None, None), "the first and the last chunk are open"
            assert all(one.upper == other.lower for one, other in pairwise(chunks)), "chunks touch each other"
            bounds = [order.bound(plan.table, chunk.upper) for chunk in chunks[:-1]]
            assert all(one < other for one, other in pairwise(bounds)), f"bounds of {plan.table} do not ascend"
            assert [chunk.index for chunk in chunks] == list(range(chunks[0].index, chunks[0].index + len(chunks)))

    def test_a_chunk_sees_what_the_log_had_when_it_was_opened(self, tmp_path: Path) -> None:
        start = self._start(tmp_path)
        split = self._followed(start)
        self.change(tmp_path, 1)
        for unit in self._units(tmp_path, split):
            split = behind(split, unit)
        (table, state), *_ = split.state.followed.items()
        document = split.schemas[state.schema]
        for chunk in self._chunks(tmp_path, table, document):
            with closing(self.new_source(tmp_path).chunk_reader()) as reader:
                for _ in reader.read(chunk, opened_at=OpenedAt(split.state.position), document=document):
                    continue
                high = reader.high_watermark()
            assert high.ordinal >= split.state.ordinal, f"{high} is before the place {split.state.ordinal} it must see"
            assert high.log_end >= high.ordinal

    def _chunks(self, folder: Path, table: TableId, document: SchemaDocument) -> list[SnapshotSplit]:
        dialect = self.new_source(folder).enumerator_dialect()
        chunks: list[SnapshotSplit] = []
        planner = PlannerState.from_json({})
        while True:
            planned = dialect.plan(document, table, planner, len(chunks))
            chunks += planned.splits
            if planned.planner is None:
                return chunks
            planner = planned.planner

    def _read(
        self, folder: Path, split: SnapshotSplit, start: StartPoint, document: SchemaDocument
    ) -> Iterator[pa.RecordBatch]:
        with closing(self.new_source(folder).chunk_reader()) as reader:
            yield from reader.read(split, opened_at=OpenedAt(start.position), document=document)


def _names(document: SchemaDocument) -> list[str]:
    return [column.name for column in document.schema.columns]
