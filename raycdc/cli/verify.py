"""``raycdc verify``: compares targets with their source, also during a run. Changes nothing anywhere."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from raycdc.cli.screens.formatting import counted, duration_text
from raycdc.config import PipelineConfig, load_config
from raycdc.core.terminal_text import printable, printable_json, printable_text
from raycdc.errors import ConfigError, ExitCode
from raycdc.model import TableId
from raycdc.verify.results import ComparisonReport, ComparisonVerdict, TableResult
from raycdc.verify.table import ComparisonTimeouts
from raycdc.verify.verifier import Verifier, Watched

#: Seconds between two lines of progress: on a terminal, and elsewhere.
_SHOWN_EVERY_S = 0.5
_REPORT_EVERY_S = 30.0
#: The maximum number of differing columns that are shown.
COLUMNS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of the command."""

    tables: Sequence[str] = ()
    wait_s: float = 60.0
    show_keys: bool = False
    as_json: bool = False
    sample: str = ""
    repair: bool = False

    @property
    def fraction(self) -> float:
        """Return the sample as a fraction. Raises `ConfigError` for an invalid one."""
        if not self.sample:
            return 1.0
        number = re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?) ?%?", self.sample.strip())
        fraction = float(number[1]) / 100 if number else 0.0
        if not 0 < fraction <= 1:
            raise ConfigError(f'--sample "{self.sample}" is no percentage: write one from 0.001% to 100%.')
        return fraction


def verify_config(path: Path, asked: VerifyOptions) -> int:
    """Compare the tables, and print a line for each.

    Returns DIFFERENT if a row differs, else UNVERIFIED if a table could not be compared, else DONE. Tables that the
    pipeline does not follow any more count only if they were named.
    """
    config = load_config(path)
    stopped = threading.Event()
    results = []
    terms = ComparisonTimeouts(asked.wait_s, asked.show_keys, asked.repair, asked.fraction, stopped)
    with closing(_Progress()) as progress, closing(Verifier(config, terms, progress.watch)) as verifier:
        try:
            for result in verifier.compare(verifier.tables(asked.tables)):
                progress.watch(None)
                _print(result, as_json=asked.as_json)
                results.append(result)
        finally:
            stopped.set()
    if asked.repair:
        _repair(path, config, results, as_json=asked.as_json)
    verdicts = {result.verdict for result in results}
    if ComparisonVerdict.DIFFERENT in verdicts:
        return int(ExitCode.DIFFERENT)
    named_in_vain = bool(asked.tables) and ComparisonVerdict.LEFT_OUT in verdicts
    unverified = named_in_vain or ComparisonVerdict.NOT_COMPARED in verdicts
    return int(ExitCode.UNVERIFIED if unverified else ExitCode.DONE)


def _repair(path: Path, config: PipelineConfig, results: Sequence[TableResult], *, as_json: bool) -> None:
    """Request that differing rows are read again, by the run or at the next start.

    A table is resnapshotted if its rows cannot be named, or if the next start parks its target. With JSON, only the
    results are printed to standard output.
    """
    from raycdc.source.snapshot.rereading.backfill_keys import distinct_lists

    out = sys.stderr if as_json else sys.stdout
    different = [result for result in results if result.verdict is ComparisonVerdict.DIFFERENT]
    lacking = lacking_targets(config, [TableId.parse(result.target) for result in different])
    for table in dict.fromkeys(result.table for result in different):
        ours = [one for one in different if one.table == table and one.comparison is not None]
        comparisons = [one.comparison for one in ours if one.comparison is not None]
        with contextlib.redirect_stdout(out):
            if behind := next((one.target for one in ours if TableId.parse(one.target) in lacking), ""):
                _resnapshot(path, table, f"{behind} lacks epochs that were committed to it")
                continue
            if not all(comparison.repair for comparison in comparisons):
                _resnapshot(path, table, "its rows cannot be named one by one, or are too many")
                continue
            # A row may differ in several targets of its table.
            keys, count = distinct_lists([text for comparison in comparisons for text in comparison.repair])
            _read_again(path, table, keys, count)


def lacking_targets(config: PipelineConfig, targets: Sequence[TableId]) -> set[TableId]:
    """Return those of `targets` that lack epochs of the commit record, or that their sink refuses, as after a restore.

    The next start parks such a target before it carries out a backfill. Returns nothing during a run, which has found
    that at its start, and nothing for a sink that keeps no record.
    """
    from raycdc.cli.planning.check_targets import held_targets
    from raycdc.state.location import state_of
    from raycdc.state.recovery import shortfalls
    from raycdc.state.store import CheckpointStore

    store = CheckpointStore(state_of(config), create=False)
    record = store.last_commit()
    if not targets or record is None or store.lock.holder():
        return set()
    holds, refused = held_targets(config, store.app_id, [name for name in targets if str(name) in record.tables])
    return {*refused, *shortfalls(holds, recorded=record.tables)}


def _read_again(path: Path, table: str, keys: Sequence[str], count: int) -> None:
    """Have the rows with these keys read again; each text of `keys` is a list of keys."""
    from raycdc.cli.tables import carry_out
    from raycdc.source.tables.table_commands import TableAction, TableCommand

    read = f"The rows of {counted(count, 'key')} are read again; rows that the source lacks are deleted"
    print(printable(f"Repair of {table}: {read}."), flush=True)
    try:
        carry_out(path, TableCommand.new(TableAction.BACKFILL, table, keys=keys))
    except ConfigError as refused:
        _resnapshot(path, table, str(refused))


def _resnapshot(path: Path, table: str, why: str) -> None:
    from raycdc.cli.tables import change_table
    from raycdc.source.tables.table_commands import TableAction

    print(printable_text(f"Repair of {table}: the whole table is read again ({why})."), flush=True)
    change_table(path, table, TableAction.RESNAPSHOT)


def _print(result: TableResult, *, as_json: bool) -> None:
    if as_json:
        print(printable_json(json.dumps(result.to_json(), ensure_ascii=False)), flush=True)
        return
    name = result.table if result.table == result.target else f"{result.table} in {result.target}"
    print(printable_text(f"{name}: {_said(result)}", indent="    "), flush=True)
    for note in result.notes:
        print(printable_text(f"    {note}.", indent="    "), flush=True)
    keys = None if result.comparison is None else result.comparison.keys
    for kind, shown in (
        () if keys is None else (("missing", keys.missing), ("extra", keys.extra), ("changed", keys.changed))
    ):
        for key in shown:
            print(printable(f"    {kind}: {key}"), flush=True)


def _said(result: TableResult) -> str:
    comparison = result.comparison
    if comparison is None:
        return f"{result.verdict}: {result.reason}"
    parts = [_differences(comparison)] if result.verdict is ComparisonVerdict.DIFFERENT else []
    counts = comparison.counts
    if counts.kept_changing:
        parts.append(
            f"{counts.kept_changing} rows kept changing in {comparison.rounds} rounds, so nothing is known of them"
        )
    if counts.behind:
        parts.append(
            f"{counts.behind} rows differ and changed at the source since the pipeline's last commit: it is behind"
        )
    rate = comparison.source.rows / comparison.seconds if comparison.seconds else 0
    read = f"{counted(comparison.source.rows, 'row')} in {counted(comparison.ranges, 'range')}, {rate:,.0f} rows/s"
    return f"{'; '.join(parts) or 'equal'} ({read}, checksum {comparison.source.checksum[:16]})"


def _differences(comparison: ComparisonReport) -> str:
    counts = comparison.counts
    kinds = (
        (counts.missing, "missing in the target"),
        (counts.extra, "too many in the target"),
        (counts.changed, "with other values"),
    )
    text = "DIFFERENT: " + ", ".join(f"{number} {what}" for number, what in kinds if number)
    names = [column.name for column in comparison.columns]
    more = f" and {len(names) - COLUMNS_SHOWN} more" if names[COLUMNS_SHOWN:] else ""
    return f"{text} in {', '.join(names[:COLUMNS_SHOWN])}{more}" if names else text


def progress_line(watched: Watched, seconds: float) -> str:
    """Return the progress of a table after `seconds` of comparison."""
    reading = watched.reading
    if reading.doing:
        return printable(f"{watched.table}: {reading.doing}")
    rows = reading.source_rows
    read = f"{reading.target_rows:,} of the target"
    if reading.round > 1:
        again = f"round {reading.round}, {counted(reading.keys, 'key')} that changed meanwhile"
        return printable(f"{watched.table}: {again}, {rows:,} rows of the source, {read}")
    of = f" of about {watched.about:,}" if watched.about else ""
    line = f"{watched.table}: {rows:,}{of} rows of the source, {read}"
    if rows:
        rate = rows / max(seconds, 0.001)
        line += f", {rate:,.0f} rows/s"
        if watched.about > rows:
            left_ms = max(1000.0, 1000 * (watched.about - rows) / rate)
            line += f", {100 * rows // watched.about} %, about {duration_text(left_ms)} left"
    return printable(line)


class _Progress:
    """Shows the progress of the table that is being compared, on standard error, from its own thread."""

    def __init__(self) -> None:
        self._watched: Watched | None = None
        self._since_s = time.monotonic()
        self._ended = threading.Event()
        self._on_terminal = sys.stderr.isatty()
        self._reported_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="verify-progress", daemon=True)
        self._thread.start()

    def watch(self, watched: Watched | None) -> None:
        """Show the progress of `watched` from now on; None means that no table is being compared."""
        self._watched, self._since_s = watched, time.monotonic()
        self._clear()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._clear()

    def _run(self) -> None:
        while not self._ended.wait(_SHOWN_EVERY_S):
            watched = self._watched
            if watched is None:
                continue
            now = time.monotonic()
            if self._on_terminal:
                print(f"\r\x1b[K{progress_line(watched, now - self._since_s)}", end="", file=sys.stderr, flush=True)
            elif now - self._reported_s >= _REPORT_EVERY_S:
                self._reported_s = now
                print(progress_line(watched, now - self._since_s), file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
