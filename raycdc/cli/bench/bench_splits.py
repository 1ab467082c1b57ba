"""``raycdc bench splits``: compares the strategies that cut a snapshot into chunks, on the user's own tables or on
generated ones.

For a source of partitions it compares numbers of readers instead, on the user's own topics.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from raycdc.bench.splits import comparison
from raycdc.bench.splits.comparison import ComparisonRequest, Expected, SplitComparison
from raycdc.bench.splits.figures import Report, StrategyResult, TableBenchResult, readers_text
from raycdc.bench.splits.partition_bench import ExpectedReads, PartitionBench, PartitionBenchRequest
from raycdc.bench.splits.partition_figures import PartitionReport
from raycdc.cli.screens.formatting import counted
from raycdc.config import PipelineConfig, config_from_dict, load_config
from raycdc.core.terminal_text import printable, printable_json, printable_text
from raycdc.core.typed_codec import Json
from raycdc.driver.resolve import next_run
from raycdc.errors import ConfigError, ExitCode
from raycdc.model import TableId
from raycdc.source.trials import PartitionTrial

#: The approximate number of rows of a table that are read with each strategy and number of readers.
ROWS_MAX = 1_000_000
#: The number of chunks into which generated tables are cut.
_CHUNKS = 100
#: Without a terminal, a line is printed every time the progress grows by this percentage.
_REPORT_PERCENT = 10


@dataclass(frozen=True, slots=True)
class BenchSplitsOptions:
    """The options of the command."""

    tables: Sequence[str] = ()
    strategies: str = ""
    rows: int = ROWS_MAX
    readers: str = "1,2,4,8"
    html: Path | None = None
    as_json: bool = False
    yes: bool = False

    def scheduled_readers(self) -> list[int]:
        """Return the numbers of readers to make schedules for. Raises `ConfigError` for invalid ones."""
        words = [word.strip() for word in self.readers.split(",")]
        if not all(word.isdecimal() and 1 <= int(word) <= 1024 for word in words):
            raise ConfigError(f'--readers "{self.readers}" is no list of numbers from 1 to 1024, such as 1,2,4,8.')
        return sorted({int(word) for word in words})


def compare_splits(path: Path, asked: BenchSplitsOptions) -> int:
    """Compare the strategies, and print a table of figures per source table and the recommendation.

    Writes nothing but the HTML page, if `asked` names one.
    """
    return _compare(load_config(path), asked)


def compare_generated(asked: BenchSplitsOptions, *, cases: str, server: str) -> int:
    """Compare the strategies on generated tables of private servers (`raycdc.sandbox.generated_tables`)."""
    from raycdc.sandbox.generated_tables import COLLECTION, NAMES

    names = [name.strip() for name in cases.split(",") if name.strip()] or list(NAMES)
    for name in names:
        if name not in NAMES:
            raise ConfigError(f'--cases: "{name}" is none of {", ".join(NAMES)}.')
    if server not in ("mariadb", "mysql"):
        raise ConfigError(f'--server: "{server}" is neither mariadb nor mysql.')
    if asked.html is not None and len({name == COLLECTION for name in names}) > 1:
        raise ConfigError("--html: a page is of one server. Name the cases: without collection, or it alone.")
    codes = [_compare(config, replace(asked, yes=True)) for config in _generated(names, asked.rows, server)]
    return max(codes)


def _generated(names: Sequence[str], rows: int, server: str) -> Iterator[PipelineConfig]:
    """Yield a configuration per server for its generated tables; the server runs until the next one is taken."""
    from raycdc.sandbox.generated_tables import (
        COLLECTION,
        DATABASE,
        DOCUMENTS_MAX,
        generated_collection,
        generated_tables,
    )

    def print_progress(text: str) -> None:
        print(f"{text} …", file=sys.stderr, flush=True)

    tables = [name for name in names if name != COLLECTION]
    if tables:
        with generated_tables(tables, rows, mysql=server == "mysql", on_progress=print_progress) as port:
            yield _config_of({
                "type": "mysql", "port": port, "user": "root", "password": "root",
                "tables": [f"{DATABASE}.{name}" for name in tables],
                "snapshot": {"chunk_rows": max(1, rows // _CHUNKS)},
            })  # fmt: skip
    if COLLECTION in names:
        with generated_collection(min(rows, DOCUMENTS_MAX), on_progress=print_progress) as uri:
            collections = [f"{DATABASE}.{COLLECTION}"]
            section: dict[str, Json] = {"startup": "snapshot", "schema": "document", "snapshot": {"chunk_size": "1MiB"}}
            yield _config_of({"type": "mongodb", "uri": uri, "collections": collections, **section})


def _config_of(source: Mapping[str, Json]) -> PipelineConfig:
    """Return a pipeline configuration with this source; state and sink are placeholders."""
    nowhere = {"type": "jsonl", "path": "nowhere"}
    return config_from_dict({"pipeline": {"name": "splits", "state": "nowhere"}, "source": source, "sink": nowhere})


def _compare(config: PipelineConfig, asked: BenchSplitsOptions) -> int:
    source = next_run(config).source
    trial = source.partition_trial()
    if trial is not None:
        return _measure_partitions(config, trial, asked)
    # Only the requested tables are examined, because other tables of the file may no longer exist.
    source = next_run(_narrowed(config, asked.tables)).source
    readers = asked.scheduled_readers()
    page = None if asked.html is None else _page_writer(asked.html)
    terms = ComparisonRequest(
        asked.tables,
        tuple(filter(None, (word.strip() for word in asked.strategies.split(",")))),
        asked.rows,
        readers,
        _job_readers(config),
    )
    with _Shown() as shown:
        compared = SplitComparison(source, _where(config), terms, shown.watch)
        expected = compared.expected()
        if not _confirmed(_cost(config, expected), asked):
            return int(ExitCode.DONE)
        shown.start()
        report = compared.run(expected)
    if asked.as_json:
        print(printable_json(json.dumps(report.to_json(), ensure_ascii=False)))
    else:
        _print(report, terms.job_readers)
    if page is not None:
        page(report)
    return int(ExitCode.INTERRUPTED if report.ended_early else ExitCode.DONE)


def _narrowed(config: PipelineConfig, names: Sequence[str]) -> PipelineConfig:
    """Return the configuration restricted to the named tables; unchanged if it does not select all of them."""
    try:
        tables = [TableId.parse(name) for name in names]
    except ValueError:
        return config
    if not tables or not all(map(config.source.captures, tables)):
        return config
    chosen = {config.source.tables_key: tuple(map(re.escape, names))}
    return replace(config, source=config.source.model_copy(update=chosen))


def _measure_partitions(config: PipelineConfig, trial: PartitionTrial, asked: BenchSplitsOptions) -> int:
    """Read the partitions of a source with different numbers of readers; print the figures and the recommendation."""
    if asked.strategies:
        raise ConfigError("--strategies is for tables that are cut. Partitions are shared out by their bytes.")
    if asked.html is not None:
        raise ConfigError(
            f"--html: there is no page of the partitions of a {config.source.type} source. The screen and --json have "
            "the figures."
        )
    readers, where = asked.scheduled_readers(), _where(config)
    request = PartitionBenchRequest(asked.tables, asked.rows, readers, _job_readers(config), config.source.rate_limit)
    with _Shown() as shown:

        def watch(text: str, part: float) -> None:
            shown.watch(comparison.ComparisonProgress(text, 0, 1, part))

        bench = PartitionBench(trial, where, request, watch)
        expected = bench.expected()
        if not _confirmed(_partitions_cost(config, where, expected), asked):
            return int(ExitCode.DONE)
        shown.start()
        report = bench.run(expected)
    _print_partitions(report, as_json=asked.as_json)
    return int(ExitCode.INTERRUPTED if report.ended_early else ExitCode.DONE)


def _job_readers(config: PipelineConfig) -> int:
    return config.readers.max or os.cpu_count() or 1


def _confirmed(cost: str, asked: BenchSplitsOptions) -> bool:
    """Print the expected cost, and ask a person whether to go on."""
    print(printable_text(cost), file=sys.stderr, flush=True)
    return asked.yes or not (sys.stdin.isatty() and sys.stderr.isatty()) or _agreed()


def _page_writer(path: Path) -> Callable[[Report], None]:
    """Return a function that writes the HTML page to `path`.

    Raises `ConfigError` if the page cannot be written, before anything is measured.
    """
    try:
        from raycdc.bench.splits.page import write_page
    except ImportError:
        raise ConfigError("--html draws with plotly, which is not installed: pip install 'raycdc[report]'.") from None
    if not path.parent.is_dir():
        raise ConfigError(f"--html {path}: there is no folder {path.parent}.")

    def write(report: Report) -> None:
        write_page(report, path)
        print(f"The page with plots is {path}.", file=sys.stderr)

    return write


def _where(config: PipelineConfig) -> str:
    source = config.source
    return f"{source.type} at {source.address}" if source.address else source.type


def _cost(config: PipelineConfig, expected: Expected) -> str:
    """Return the text that is printed before the measurement: the tables, and how much of each is read."""
    lines = [f"{name}: about {counted(rows, 'row')}" for name, rows in expected.tables.items()]
    read = f"about {expected.rows_read:,} rows in all" if expected.rows_read else "as many rows as there are"
    rate_limit = f", at {config.source.rate_limit} at most" if config.source.rate_limit else ""
    really = " and ".join(map(str, expected.really))
    return (
        f"{'; '.join(lines)}. Each is cut by {', '.join(expected.strategies)}; then chunks are read with {really} "
        f"reader{'s' if expected.really[-1] > 1 else ''}: {read}{rate_limit}, from {_where(config)}. "
        "Nothing is written. Ctrl-C ends it, and shows what is known by then."
    )


def _agreed() -> bool:
    print("Go on? [Y/n] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    return answer.strip().lower() in ("", "y", "yes") if answer else False  # Ctrl-D: no answer.


class _Shown:
    """Shows the progress on standard error: a bar with the remaining time on a terminal, else occasional lines."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.percentage:.0f} %"))
        self._console = Console(stderr=True)
        self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True)
        self._task = self._bar.add_task("starting", total=1.0)
        self._confirmed = -_REPORT_PERCENT
        self._step = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def start(self) -> None:
        if self._console.is_terminal:
            self._bar.start()

    def watch(self, at: comparison.ComparisonProgress) -> None:
        part = (at.done + at.part) / max(at.steps, 1)
        if self._console.is_terminal:
            self._bar.update(self._task, description=printable(at.text), completed=part)
        elif at.done != self._step or part * 100 >= self._confirmed + _REPORT_PERCENT:
            self._confirmed, self._step = int(part * 100), at.done
            print(printable(f"{part:4.0%} {at.text}"), file=sys.stderr, flush=True)


def _print(report: Report, job_readers: int) -> None:
    console = Console(soft_wrap=not sys.stdout.isatty())
    for table in report.tables:
        about = f", about {counted(table.rows, 'row')}" if table.rows else ""
        console.print(Text(printable(f"{table.table}{about}"), style="bold"))
        if any(result.runs for result in table.strategies):
            console.print(_comparison(table, job_readers))
        for result in table.strategies:
            if result.refused:
                console.print(Text(printable_text(f"{result.name}: not measured: {result.refused}", indent="    ")))
        if table.advice is not None:
            console.print(Text(printable_text(table.advice.reason)))
        console.print()
    if report.advice is not None:
        console.print(Text("Recommended, as lines of the configuration:", style="bold"))
        console.print(Text(printable_text(report.advice.settings), style="green"))
    if report.ended_early:
        console.print("It was ended before all was measured.")


def _comparison(table: TableBenchResult, job_readers: int) -> RenderableType:
    best = "" if table.advice is None else table.advice.strategy
    view = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    measured = [result for result in table.strategies if result.runs]
    really = [] if not measured else [run.readers for run in measured[0].runs]
    for name in ("", "strategy", "cut", "rows read\nto cut", "chunks", "rows\np50", "\nmax"):
        view.add_column(name, justify="left" if name in ("", "strategy") else "right", no_wrap=True)
    for readers in really:
        view.add_column(f"rows/s\nby {readers}", justify="right", no_wrap=True)
    view.add_column(f"whole\nby {job_readers}", justify="right", no_wrap=True)
    for result in measured:
        view.add_row(*_cells(result, job_readers, chosen=result.name == best))
    return view


def _cells(result: StrategyResult, job_readers: int, *, chosen: bool) -> list[Text]:
    planning, rows = result.planning, result.rows()
    assert planning is not None
    read = planning.costs.rows_read
    least = "≥" if result.cut_off else ""
    cells = [
        "→" if chosen else " ",
        result.name,
        f"{planning.seconds:.2f} s",
        "?" if read is None else _short(read),
        f"{planning.chunks:,}",
        _short(rows.p50),
        f"{least}{_short(rows.most)}",
        *(_short(run.rows_per_s) for run in result.runs),
        f"{least}{result.whole_s(job_readers):.1f} s",
    ]
    return [Text(cell, style="green" if chosen else "") for cell in cells]


def _short(number: float) -> str:
    """Return the number as exactly as is useful in a narrow column: ``940``, ``12.3 k``, ``1.2 M``."""
    for unit, one, least in (("M", 1_000_000, 1_000_000), ("k", 1_000, 10_000)):
        if number >= least:
            return f"{number / one:,.1f} {unit}"
    return f"{number:,.0f}"


#: The number of partitions that the screen shows. The largest partitions are shown.
_PARTITIONS_SHOWN_MAX = 12


def _partitions_cost(config: PipelineConfig, where: str, expected: ExpectedReads) -> str:
    """Return the text that is printed before the measurement: the topics, and how much of each is read."""
    messages_max: dict[str, list[int]] = {}
    for partition in expected.partitions:
        messages_max.setdefault(partition.topic, []).append(partition.messages_max)
    topics = "; ".join(
        f"{name}: about {counted(sum(of), 'message')} in {counted(len(of), 'partition')}"
        for name, of in messages_max.items()
    )
    rate_limit = f", at {config.source.rate_limit} at most" if config.source.rate_limit else ""
    really = " and ".join(map(str, expected.really))
    return (
        f"{topics}. They are read with {really} reader{'s' if expected.really[-1] > 1 else ''}: "
        f"about {expected.messages:,} messages in all{rate_limit}, from {where}. Nothing is written, and no "
        "offset is committed. Ctrl-C ends it, and shows what is known by then."
    )


def _print_partitions(report: PartitionReport, *, as_json: bool) -> None:
    """Print the report, as tables or as JSON."""
    if as_json:
        print(printable_json(json.dumps(report.to_json(), ensure_ascii=False)))
        return
    console = Console(soft_wrap=not sys.stdout.isatty())
    if report.partitions:
        console.print(_partitions(report))
        console.print()
        console.print(_readers(report))
        console.print()
    if report.advice is not None:
        console.print(Text(printable_text(report.advice.reason)))
        console.print()
        console.print(Text("Recommended, as lines of the configuration:", style="bold"))
        console.print(Text(printable_text(report.advice.settings), style="green"))
    if report.ended_early:
        console.print("It was ended before all was measured.")


def _partitions(report: PartitionReport) -> RenderableType:
    view = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("partition", "offsets", "messages read", "MiB read", "s, whole", "of the work"):
        view.add_column(name, justify="left" if name == "partition" else "right", no_wrap=name != "partition")
    times_s = report.times_s()
    whole_s = sum(times_s.values())
    ordered = sorted(report.partitions, key=lambda each: -times_s[each.name])
    for each in ordered[:_PARTITIONS_SHOWN_MAX]:
        seconds = times_s[each.name]
        view.add_row(
            printable(each.name),
            f"{each.messages_max:,}",
            f"{each.read.messages:,}",
            f"{each.read.size / 2**20:,.1f}",
            f"{seconds:.1f}",
            f"{seconds / whole_s if whole_s else 0:.0%}",
        )
    if len(ordered) > _PARTITIONS_SHOWN_MAX:
        view.add_row(f"… {len(ordered) - _PARTITIONS_SHOWN_MAX} more")
    return view


def _readers(report: PartitionReport) -> RenderableType:
    view = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    view.add_column("", no_wrap=True)
    for name in ("s, whole", "idle", "messages/s"):
        view.add_column(name, justify="right", no_wrap=True)
    measured = {run.readers: f"{run.messages_per_s:,.0f}" for run in report.runs}
    best = 0 if report.advice is None else report.advice.readers
    for count in sorted({*report.scheduled, *measured} | ({best} if best else set())):
        schedule = report.schedule(count)
        arrow = "→" if count == best else " "
        cells = (
            f"{arrow} {readers_text(count)}",
            f"{schedule.seconds:.1f}",
            f"{schedule.idle:.0%}",
            measured.get(count, ""),
        )
        view.add_row(*(Text(cell, style="green" if count == best else "") for cell in cells))
    return view
