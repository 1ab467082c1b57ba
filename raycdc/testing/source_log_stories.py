"""Stories of the log of a source, which a reader reads unit by unit."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np

from raycdc.model import RowKind, changelog_schema
from raycdc.source.snapshot.log_unit import LogUnit, in_transaction, rows_of, updates_of
from raycdc.testing.source_stories import STEPS, SourceStories, behind, shown

#: Longest that a read may take to end when it is woken.
PATIENCE_S = 120.0


class LogStories(SourceStories):
    """The log has every change once and in order, and goes on from each of its places."""

    def test_places_of_the_log_ascend(self, tmp_path: Path) -> None:
        start = self._start(tmp_path)
        self.change(tmp_path, 1)
        before = start.ordinal
        for unit in self._units(tmp_path, self._followed(start)):
            position, ordinal = unit.place.position.to_json(), unit.place.ordinal
            assert json.loads(json.dumps(position)) == position, "a position must be JSON"
            for rows in rows_of(unit):
                ordinals = rows.ordinals
                assert ordinals.dtype == np.int64, f"ordinals are {ordinals.dtype}"
                assert (np.diff(ordinals) >= 0).all(), "rows of a table come in the log's order"
                assert before < ordinals[0], f"a row at {ordinals[0]} behind the place {before}"
                assert in_transaction(unit) or ordinals[-1] <= ordinal, "a row lies behind its unit's place"
            assert ordinal >= before, f"the log went back from {before} to {ordinal}"
            before = ordinal

    def test_the_log_goes_on_from_every_place(self, tmp_path: Path) -> None:
        split = self._followed(self._start(tmp_path))
        for step in range(1, STEPS + 1):
            self.change(tmp_path, step)
        units = list(self._units(tmp_path, split))
        told = [_told(unit) for unit in units]
        for number, unit in enumerate(units):
            split = behind(split, unit)
            if in_transaction(unit):
                continue
            rest = [row for again in self._units(tmp_path, split) for row in _told(again)]
            wanted = [row for rows in told[number + 1 :] for row in rows]
            position = unit.place.position
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
        thread.join(timeout=PATIENCE_S)
        assert not thread.is_alive(), f"fetch did not return {PATIENCE_S:g} s after wake_up"
        reader.close()


def _told(unit: LogUnit) -> list[tuple[str, Any, str]]:
    """Rows of a unit, comparable: their table, place and values."""
    told = [(str(update.table), type(update).__name__, "") for update in updates_of(unit)]
    for rows in rows_of(unit):
        for row in rows.batch.to_pylist():
            values = {name: value for name, value in row.items() if name not in ("_seq", "_ts_ms")}
            told.append((str(rows.table), row["_pos"], shown(values)))
    return sorted(told, key=str) if len(rows_of(unit)) > 1 else told
