"""``raycdc bench splits`` for a source of partitions: how many readers share them well, on the user's own topics."""

from __future__ import annotations

import json
import sys

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from raycdc.bench.splits.figures import readers_text
from raycdc.bench.splits.partition_bench import ExpectedReads
from raycdc.bench.splits.partition_figures import PartitionReport
from raycdc.cli.screens.formatting import counted
from raycdc.config import PipelineConfig
from raycdc.core.terminal_text import printable, printable_json, printable_text

#: The number of partitions that the screen shows: the largest ones.
_SHOWN_MAX = 12


def cost_text(config: PipelineConfig, where: str, expected: ExpectedReads) -> str:
    """Return the text that is printed before the measurement: how much of which topics is read."""
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


def show(report: PartitionReport, *, as_json: bool) -> None:
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
    for each in ordered[:_SHOWN_MAX]:
        seconds = times_s[each.name]
        view.add_row(
            printable(each.name),
            f"{each.messages_max:,}",
            f"{each.read.messages:,}",
            f"{each.read.size / 2**20:,.1f}",
            f"{seconds:.1f}",
            f"{seconds / whole_s if whole_s else 0:.0%}",
        )
    if len(ordered) > _SHOWN_MAX:
        view.add_row(f"… {len(ordered) - _SHOWN_MAX} more")
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
