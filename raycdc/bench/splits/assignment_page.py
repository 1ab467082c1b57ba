"""The comparison of assignments as one HTML page with plots, in the frame of `raycdc.bench.splits.page`."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from pathlib import Path

from raycdc.bench.splits.assignment_figures import Assignment, AssignmentReport
from raycdc.bench.splits.figures import readers_text
from raycdc.bench.splits.page import colour, gantt, html_document, recommended, where_and_when
from raycdc.model.json_value import Json

#: Partitions that the table and the bars have; of more the largest.
_SHOWN_MAX = 40


def write_assignment_page(report: AssignmentReport, path: Path) -> None:
    """Write it to `path`."""
    figures: dict[str, Json] = {}
    body = "\n".join(_body(report, figures))
    path.write_text(html_document("raycdc: partitions and readers", body, figures), encoding="utf-8")


def _body(report: AssignmentReport, figures: dict[str, Json]) -> Iterator[str]:
    yield "<h1>Partitions and the readers that share them</h1>"
    yield where_and_when(report.source, report.cores, report.began_ms, ended_early=report.ended_early)
    if report.advice is not None:
        yield recommended(report.advice.settings, report.advice.reason)
    if not report.partitions:
        return
    yield from _readers(report)
    plots = [
        ("bytes", "MiB of each partition", _bytes(report)),
        ("time", "Seconds until all is read, by readers", _times(report)),
    ]
    runs = [runs[-1] for runs in report.runs.values() if runs]
    if runs and runs[0].readers > 1:
        title = f"What {readers_text(runs[0].readers)} did: each bar is a partition's part of its reader's time"
        plots.append(("gantt", title, _gantt(report)))
    for name, title, figure in plots:
        figures[name] = figure
        label = f"{title}; the figures are in the tables"
        yield f'<h3>{html.escape(title)}</h3><div id="{name}" role=img aria-label="{html.escape(label)}"></div>'
    yield from _partitions(report)


def _readers(report: AssignmentReport) -> Iterator[str]:
    """A row for each number of readers."""
    best = None if report.advice is None else report.advice.readers
    yield "<div class=scroll><table><caption>Seconds until all that the topics hold is read, from what each partition "
    yield "took one reader; messages/s were measured.</caption>"
    heads = "".join(
        f"<th scope=col>by {assignment}, seconds</th><th scope=col>idle</th><th scope=col>messages/s</th>"
        for assignment in Assignment
    )
    yield f"<tr><td></td>{heads}</tr>"
    real = {
        (assignment, run.readers): f"{run.messages_per_s:,.0f}"
        for assignment, runs in report.runs.items()
        for run in runs
    }
    for count in sorted({*report.scheduled, *(readers for _, readers in real)} | ({best} if best else set())):
        cells = []
        for assignment in Assignment:
            found = report.schedule(assignment, count)
            cells += [f"{found.seconds:.2f}", f"{found.idle:.0%}", real.get((assignment, count), "")]
        mark = " class=best" if count == best else ""
        yield f"<tr><th scope=row{mark}>{readers_text(count)}</th>"
        yield "".join(f"<td{mark}>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table></div>"


def _partitions(report: AssignmentReport) -> Iterator[str]:
    times_s = report.times_s()
    whole_s = sum(times_s.values())
    shown = sorted(report.partitions, key=lambda each: -times_s[each.name])[:_SHOWN_MAX]
    less = "" if len(shown) == len(report.partitions) else f" The {len(shown)} largest of {len(report.partitions)}."
    yield "<h3>Partitions</h3><div class=scroll><table><caption>Messages, rows and bytes are of what was read: "
    yield f"{report.fraction:.1%} of the offsets.{less}</caption>"
    names = ("offsets", "messages read", "rows", "MiB", "seconds of the whole", "part of the work")
    yield "<tr><td></td>" + "".join(f"<th scope=col>{name}</th>" for name in names) + "</tr>"
    for each in shown:
        seconds, read = times_s[each.name], each.read
        cells = (
            f"{each.messages_max:,}",
            f"{read.messages:,}",
            f"{read.rows:,}",
            f"{read.size / 2**20:,.1f}",
            f"{seconds:.2f}",
            f"{seconds / whole_s if whole_s else 0:.0%}",
        )
        yield (
            f"<tr><th scope=row>{html.escape(each.name)}</th>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        )
    yield "</table></div>"


def _bytes(report: AssignmentReport) -> Mapping[str, Json]:
    shown = sorted(report.partitions, key=lambda each: -each.read.size)[:_SHOWN_MAX]
    data: list[Json] = [{
        "type": "bar", "x": [each.name for each in shown],
        "y": [round(each.read.size / report.fraction / 2**20, 3) for each in shown],
        "marker": {"color": colour(0)}, "hovertemplate": "%{y:,.1f} MiB<extra>%{x}</extra>",
    }]  # fmt: skip
    layout: dict[str, Json] = {
        "height": 320, "margin": {"t": 10, "r": 10}, "showlegend": False,
        "xaxis": {"type": "category", "automargin": True}, "yaxis": {"title": {"text": "MiB"}, "rangemode": "tozero"},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _times(report: AssignmentReport) -> Mapping[str, Json]:
    data: list[Json] = []
    for number, assignment in enumerate(Assignment):
        data.append({
            "type": "scatter", "mode": "lines+markers", "name": f"by {assignment}", "x": list(report.scheduled),
            "y": [round(report.schedule(assignment, count).seconds, 3) for count in report.scheduled],
            "line": {"color": colour(number)}, "hovertemplate": "%{y:.2f} s with %{x} readers<extra></extra>",
        })  # fmt: skip
    layout: dict[str, Json] = {
        "height": 340, "margin": {"t": 30, "r": 10}, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "xaxis": {"title": {"text": "readers"}, "type": "category"},
        "yaxis": {"title": {"text": "seconds"}, "rangemode": "tozero"},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _gantt(report: AssignmentReport) -> Mapping[str, Json]:
    data: list[Json] = []
    lanes: list[str] = []
    for number, (assignment, runs) in enumerate(report.runs.items()):
        for reader, group in enumerate(runs[-1].groups):
            lane = f"by {assignment} {reader + 1}"
            lanes.append(lane)
            ends_s = 0.0
            for read in sorted(group, key=lambda each: -each.seconds):
                data.append({
                    "type": "bar", "orientation": "h", "y": [lane], "base": [round(ends_s, 4)],
                    "x": [round(read.seconds, 4)], "text": f"{read.name}: {read.messages:,} messages",
                    "textposition": "none", "hovertemplate": "%{text}, %{x:.3f} s<extra>%{y}</extra>",
                    "marker": {"color": colour(number), "line": {"width": 1, "color": "rgba(255,255,255,.7)"}},
                })  # fmt: skip
                ends_s += read.seconds
    return gantt(data, lanes)
