"""The stories that every source of tables must pass, with the real enumerator, readers and coordinator.

A test module of a connector of your own has::

class TestMySource(SourceConformance): def new_source(self, folder, context): return MySource(MySourceConfig(...),
context) def change(self, folder, step): ... def rows(self, folder, table): ...

and pytest plays each ``test_…`` below in a folder of its own. The source must have at least two tables with rows and a
primary key, and each step of `change` must insert, update and delete rows of all of them. The test of a source whose
rows are only appended sets ``kinds = frozenset({RowKind.INSERT})``. Then `change` only inserts rows, and the log must
have no other changes.

`SourceHooks` describes all hooks that a test may supply. Each story calls them with its own folder, in which a source
may keep files.

There are three groups of stories: `ChunkStories` about chunks, which a snapshot reads one by one; `LogStories` about
the log, which a reader reads unit by unit; and `RunStories` about whole runs, with crashes, lost logs, and tables that
are paused and resnapshotted.
"""

from __future__ import annotations

import json
import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from raycdc.core import failpoints
from raycdc.driver.consumer import Epoch
from raycdc.errors import LogLostError
from raycdc.model import RowKind, TableId, TableSchema, changelog_schema
from raycdc.source.connector import IncrementalSource, SourceContext
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.snapshot_plan import StartPoint, first_state
from raycdc.source.snapshot.log.log_rows import key_values
from raycdc.source.snapshot.log.log_unit import (
    AlterTableUpdate,
    BeginTableUpdate,
    LogUnit,
    in_transaction,
    rows_of,
    updates_of,
)
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import OpenedAt, SnapshotSplit, StreamSplit
from raycdc.source.tables.parking import TableRequest
from raycdc.source.tables.table_life import Live
from raycdc.state.opaque import PlannerState
from raycdc.testing.source_play import Row, SourcePlay


class SourceHooks(ABC):
    """The hooks of a source's test. A hook with a default need not be supplied."""

    #: The kinds of changes that the source has. An update is represented by the row after it.
    kinds: ClassVar[frozenset[RowKind]] = frozenset({RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE})

    @abstractmethod
    def new_source(self, folder: Path, context: SourceContext | None = None) -> IncrementalSource[Any]:
        """Return the source, as any process creates it."""

    @abstractmethod
    def change(self, folder: Path, step: int) -> None:
        """Change rows of all tables at the source, in all of its `kinds`. `step` counts from 1.

        Sources that were created earlier see the change, too, as with a server.
        """

    @abstractmethod
    def rows(self, folder: Path, table: TableId) -> list[Row]:
        """Return the present rows of `table` at the source, as Python values by column."""

    def acknowledged(self, folder: Path) -> int | None:
        """Return the ordinal up to which changes were acknowledged to the source; None if the source does not store
        acknowledgements.
        """
        return None

    def lose_log(self, folder: Path) -> bool:
        """Purge the present log of the source; return False if that is not possible."""
        return False


#: The number of steps of `SourceHooks.change` in a story.
STEPS = 3
#: The number of polls without a unit after which a log counts as quiet, and the maximum number of units of a log.
QUIET, UNITS_MAX = 3, 10_000


class SourceStories(SourceHooks):
    """Base of the stories. Each story is a test with its own temporary folder."""

    def _play(self, folder: Path) -> SourcePlay:
        return SourcePlay(folder, partial(self.new_source, folder))

    def _check(self, play: SourcePlay, folder: Path, *, but: TableId | None = None) -> None:
        """Check that every target, except one, has the rows that its table has at the source."""
        for table in self.new_source(folder).tables().keys() - {but}:
            written = sorted(map(shown, play.target.get(table, {}).values()))
            wanted = sorted(map(shown, self.rows(folder, table)))
            more, less = set(written) - set(wanted), set(wanted) - set(written)
            assert written == wanted, (
                f"{table} at the source has {len(wanted)} rows, the target {len(written)}; only in the target: "
                f"{sorted(more)[:3]}; only at the source: {sorted(less)[:3]}"
            )

    def _start(self, folder: Path) -> StartPoint:
        source = self.new_source(folder)
        return source.enumerator_dialect().start_point()

    def _split(self, start: StartPoint) -> StreamSplit:
        """Return the log from `start` on, of tables whose snapshots begin."""
        return StreamSplit(first_state(start), {plan.fingerprint: plan.document for plan in start.tables})

    def _followed(self, start: StartPoint) -> StreamSplit:
        """Return the log from `start` on, of tables that are followed without a snapshot."""
        split = self._split(start)
        live = {plan.table: Live(plan.fingerprint, announced=True, incarnation=0) for plan in start.tables}
        state = StreamState(start.position, start.ordinal, live, notes=start.notes)
        return StreamSplit(state, split.schemas)

    def _units(self, folder: Path, split: StreamSplit) -> Iterator[LogUnit]:
        """Return the units of the log from `split` on, until it is quiet."""
        with closing(self.new_source(folder).log_reader(split)) as reader:
            quiet = 0
            for _ in range(UNITS_MAX):
                unit = reader.fetch()
                quiet = quiet + 1 if unit is None else 0
                if unit is not None:
                    yield unit
                if quiet == QUIET:
                    return
        raise AssertionError(f"the log has no end after {UNITS_MAX} units")


def behind(split: StreamSplit, unit: LogUnit) -> StreamSplit:
    """Return the log after `unit`, as a reader would seal it."""
    followed, schemas = dict(split.state.followed), dict(split.schemas)
    for update in updates_of(unit):
        followed.pop(update.table, None)
        if isinstance(update, AlterTableUpdate | BeginTableUpdate):
            followed[update.table] = Live(update.fingerprint, announced=True, incarnation=0)
            schemas[update.fingerprint] = update.document
    notes = split.state.notes if unit.log_position.notes is None else unit.log_position.notes
    return StreamSplit(
        StreamState(unit.log_position.position, unit.log_position.ordinal, followed, notes=notes), schemas
    )


def shown(row: Mapping[str, Any]) -> str:
    """Return a row as text; equal rows have equal texts."""
    return str(sorted(row.items()))


class ChunkStories(SourceStories):
    """Stories of chunks: together they have every row of a table once, including the log's changes from before they
    were opened.
    """

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
            assert high.ordinal >= split.state.ordinal, (
                f"{high} is before the position {split.state.ordinal} it must see"
            )
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


#: The maximum time until a read ends after it is woken.
TIMEOUT_S = 120.0


class LogStories(SourceStories):
    """Stories of logs: a log has every change once and in order, and continues from each of its positions."""

    def test_log_positions_ascend(self, tmp_path: Path) -> None:
        start = self._start(tmp_path)
        self.change(tmp_path, 1)
        before = start.ordinal
        for unit in self._units(tmp_path, self._followed(start)):
            position, ordinal = unit.log_position.position.to_json(), unit.log_position.ordinal
            assert json.loads(json.dumps(position)) == position, "a position must be JSON"
            for rows in rows_of(unit):
                ordinals = rows.ordinals
                assert ordinals.dtype == np.int64, f"ordinals are {ordinals.dtype}"
                assert (np.diff(ordinals) >= 0).all(), "rows of a table come in the log's order"
                assert before < ordinals[0], f"a row at {ordinals[0]} behind the position {before}"
                assert in_transaction(unit) or ordinals[-1] <= ordinal, "a row lies behind its unit's position"
            assert ordinal >= before, f"the log went back from {before} to {ordinal}"
            before = ordinal

    def test_the_log_resumes_from_every_position(self, tmp_path: Path) -> None:
        split = self._followed(self._start(tmp_path))
        for step in range(1, STEPS + 1):
            self.change(tmp_path, step)
        units = list(self._units(tmp_path, split))
        reported = [_comparable(unit) for unit in units]
        for number, unit in enumerate(units):
            split = behind(split, unit)
            if in_transaction(unit):
                continue
            rest = [row for again in self._units(tmp_path, split) for row in _comparable(again)]
            wanted = [row for rows in reported[number + 1 :] for row in rows]
            position = unit.log_position.position
            assert rest == wanted, f"from {position} on the log has {len(rest)} rows, not {len(wanted)}"

    def test_rows_are_as_their_schema_says(self, tmp_path: Path) -> None:
        split = self._followed(self._start(tmp_path))
        self.change(tmp_path, 1)
        for unit in self._units(tmp_path, split):
            split = behind(split, unit)
            for rows in rows_of(unit):
                state = split.state.followed.get(rows.table)
                assert state is not None, f"rows of {rows.table}, which is not followed"
                schema = changelog_schema(split.schemas[state.schema].schema)
                assert rows.batch.schema.equals(schema), f"{rows.table} has\n{rows.batch.schema}\nand not\n{schema}"
                assert rows.batch.num_rows == rows.ordinals.size

    def test_an_update_is_a_row_before_and_a_row_after(self, tmp_path: Path) -> None:
        split = self._followed(self._start(tmp_path))
        self.change(tmp_path, 1)
        for unit in self._units(tmp_path, split):
            for rows in rows_of(unit):
                kinds = rows.batch.column("_op").to_pylist()
                for number, kind in enumerate(kinds):
                    if kind == RowKind.UPDATE_BEFORE:
                        assert kinds[number + 1 : number + 2] == [RowKind.UPDATE_AFTER], f"in {kinds}"
                    if kind == RowKind.UPDATE_AFTER:
                        assert kinds[max(0, number - 1)] == RowKind.UPDATE_BEFORE, f"in {kinds}"
                numbers = rows.batch.column("_seq").to_numpy()
                assert (np.diff(numbers) > 0).all(), "_seq numbers the rows in their order"

    def test_a_waiting_read_can_be_woken(self, tmp_path: Path) -> None:
        reader = self.new_source(tmp_path).log_reader(self._followed(self._start(tmp_path)))
        ended = threading.Event()

        def read() -> None:
            while not ended.is_set():
                reader.fetch()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        ended.set()
        reader.wake_up()
        thread.join(timeout=TIMEOUT_S)
        assert not thread.is_alive(), f"fetch did not return {TIMEOUT_S:g} s after wake_up"
        reader.close()


def _comparable(unit: LogUnit) -> list[tuple[str, Any, str]]:
    """Return comparable rows of a unit: table, position and values."""
    reported = [(str(update.table), type(update).__name__, "") for update in updates_of(unit)]
    for rows in rows_of(unit):
        for row in rows.batch.to_pylist():
            values = {name: value for name, value in row.items() if name not in ("_seq", "_ts_ms")}
            reported.append((str(rows.table), row["_pos"], shown(values)))
    return sorted(reported, key=str) if len(rows_of(unit)) > 1 else reported


#: The failpoints where an incarnation of a reader, or a generation of the job, is ended by an error.
POINTS = ("before_seal", "after_seal", "after_close", "before_manifest", "after_manifest")
#: The maximum time until a run reaches the present end of the source.
RUN_TIMEOUT_S = 300.0


class RunStories(SourceStories):
    """Stories of runs: after every run the target equals the source, whatever happens during the run, and `check`
    predicts the run.
    """

    def test_the_target_equals_the_source_after_every_run(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.run()
        self._check(play, tmp_path)
        for step in range(1, STEPS + 1):
            self.change(tmp_path, step)
            play.run()
            self._check(play, tmp_path)

    def test_changes_during_the_snapshot_are_in_it_or_behind_it(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        steps = iter(range(1, STEPS + 1))

        def change(_: Epoch) -> None:
            if (step := next(steps, None)) is not None:
                self.change(tmp_path, step)

        play.run(change)
        play.run()
        self._check(play, tmp_path)

    def test_a_change_of_the_log_comes_once(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        for step in range(1, STEPS + 1):
            play.run()
            self.change(tmp_path, step)
        play.run()
        twice = (
            {one for one in play.positions if play.positions.count(one) > 1} if len(play.positions) < 5_000 else set()
        )
        assert len(set(play.positions)) == len(play.positions), f"came twice: {sorted(twice, key=str)[:5]}"
        # The row before an update adds nothing to the row after it, and a truncation is no change of a row.
        reported = {kind for _, _, kind in play.positions} - {RowKind.UPDATE_BEFORE.symbol, RowKind.TRUNCATE.symbol}
        wanted = {kind.symbol for kind in self.kinds}
        assert reported == wanted, (
            f"the log told of {sorted(reported)}, and the source has {sorted(wanted)}; rows without `_pos` count as "
            "those of chunks"
        )

    def test_a_process_that_ends_anywhere_loses_and_doubles_nothing(self, tmp_path: Path) -> None:
        for point in POINTS:
            folder = tmp_path / point
            play = self._play(folder)
            # If the job ends with the error, as a process would have, the next run continues.
            with suppress(failpoints.FailpointError), failpoints.planned(point, count=2, folder=folder):
                play.run(lambda epoch, folder=folder: self.change(folder, epoch.number))  # type: ignore[misc]
            play.run()
            self._check(play, folder)
            assert len(set(play.positions)) == len(play.positions), f"rows came twice after {point}"

    def test_nothing_is_acknowledged_before_it_is_committed(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)

        def inspect(_: Epoch) -> None:
            known = self.acknowledged(tmp_path)
            assert known is None or known <= play.committed_ordinal, (
                f"the source was told that all up to {known} is safe, and the sink holds {play.committed_ordinal}"
            )

        for step in range(1, STEPS + 1):
            play.run(inspect)
            self.change(tmp_path, step)
        play.run(inspect)
        known = self.acknowledged(tmp_path)
        assert known is None or known == play.committed_ordinal, f"the last commit was not told, but {known}"

    def test_a_lost_log_is_reported(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.run()
        last = play.store.last_manifest()
        self.new_source(tmp_path).preflight(last)
        self.change(tmp_path, 1)
        if not self.lose_log(tmp_path):
            return
        lost = False
        try:
            self.new_source(tmp_path).preflight(last)
        except LogLostError:
            lost = True
        assert lost, "preflight says nothing of a log that does not reach back"
        assert last is not None
        restart = self.new_source(tmp_path).restart(last)
        assert restart is None or restart.ordinal > play.stream.ordinal, "the log goes on before the gap"

    def test_a_paused_table_holds_nobody_up_and_goes_on_where_it_was_left(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.run(timeout_s=RUN_TIMEOUT_S)
        table = min(play.stream.followed)
        left = dict(play.target[table])
        play.ask(table, TableRequest.PAUSE)
        play.run(timeout_s=RUN_TIMEOUT_S)
        self.change(tmp_path, 1)
        play.run(timeout_s=RUN_TIMEOUT_S)
        assert play.target[table] == left, f"{table} is paused, and its rows were told"
        self._check(play, tmp_path, but=table)
        play.ask(table, TableRequest.RESUME)
        play.run(timeout_s=RUN_TIMEOUT_S)
        # A log that is kept only until it is acknowledged lacks the changes that the paused table missed. The table
        # then reports that.
        lost = play.stream.parked.get(table)
        assert lost is None or lost.reason
        self._check(play, tmp_path, but=None if lost is None else table)

    def test_a_table_is_read_again_on_request(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.run(timeout_s=RUN_TIMEOUT_S)
        table = min(play.stream.followed)
        # The target is emptied for the new snapshot, whatever it contains.
        play.target[table] = {(): {"of": "nobody"}}
        play.ask(table, TableRequest.RESNAPSHOT)
        self.change(tmp_path, 1)
        play.run(timeout_s=RUN_TIMEOUT_S)
        assert table in play.stream.followed, (
            f"{table} was to begin again, and did not: the log begins the tables of `split.state.parked` that are to "
            "begin `again` (`raycdc.source.tables.resnapshots.begin`)"
        )
        self._check(play, tmp_path)

    def test_check_and_plan_agree_with_a_run(self, tmp_path: Path) -> None:
        source = self.new_source(tmp_path)
        findings = source.check(None, names_reported=False)
        bad = [str(result) for result in findings.results if result.required and not result.ok]
        assert not bad, f"check finds {bad}"
        planned = {table: described.schema.fingerprint() for table, described in source.tables().items()}
        play = self._play(tmp_path)
        play.run()
        followed = {table: state.schema for table, state in play.stream.followed.items()}
        assert planned.keys() == followed.keys() == set(findings.tables)
        schemas = {table: TableSchema.from_json(play.store.document(fp)) for table, fp in followed.items()}
        assert planned == {table: schema.fingerprint() for table, schema in schemas.items()}
        assert all(map(source.config.captures, followed)), "the configuration says that it does not capture them"

    def test_it_can_be_sent_to_other_processes(self, tmp_path: Path) -> None:
        source = pickle.loads(pickle.dumps(self.new_source(tmp_path)))
        assert source.tables().keys() == self.new_source(tmp_path).tables().keys()
        source.warm_up()
        json.dumps(source.statistics())


class SourceConformance(RunStories, LogStories, ChunkStories):
    """The base class for the tests of a source; see the module's docstring."""
