"""Writes the comparison as one HTML page with plots, which needs no other file and no network.

The colours follow the reader's system, light or dark. plotly draws the plots
(https://plotly.com/javascript/reference/); its script is a part of the page.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from plotly.offline import get_plotlyjs

from raycdc.bench.splits.figures import MeasuredRun, Report, StrategyResult, TableBenchResult, readers_text
from raycdc.core.typed_codec import Json

#: The number of bars of a histogram.
_BINS = 40
#: A histogram has a logarithmic axis if its largest value exceeds the median by this factor.
_WIDE = 20
#: The colours of the strategies. They are those of Okabe and Ito, which colour-blind people can distinguish.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_ROW_PX = 110
_LEGEND: Mapping[str, Json] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6875; --paper: #fff; --panel: #f4f6f8; --line: #d8dee4;
  --good: #00664b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaee; --soft: #9aa7b4; --paper: #14181d; --panel: #1d242c;
  --line: #323c47; --good: #4ecda0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin: 1.5rem 0 0; }
p.soft, caption { color: var(--soft); }
.advice { background: var(--panel); border-left: 4px solid var(--good); padding: .8rem 1.2rem; border-radius: 4px; }
pre { font: 14px ui-monospace, monospace; white-space: pre-wrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .3rem 0; }
th, td { padding: .25rem .8rem; text-align: right; font-weight: 400; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; }
.best { font-weight: 600; color: var(--good); }
"""

_SCRIPT = """
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const style = getComputedStyle(document.documentElement);
  const colour = name => style.getPropertyValue(name).trim();
  for (const [id, figure] of Object.entries(figures)) {
    const layout = structuredClone(figure.layout);
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.font = { color: colour("--ink"), family: "system-ui, sans-serif" };
    for (const key of Object.keys(layout).filter(key => /^[xy]axis/.test(key)))
      layout[key] = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), ...layout[key] };
    Plotly.react(id, structuredClone(figure.data), layout, { responsive: true, displayModeBar: false });
  }
}
dark.addEventListener("change", draw);
draw();
"""


def write_page(report: Report, path: Path) -> None:
    """Write the page to `path`."""
    figures: dict[str, Json] = {}
    body = "\n".join(_body(report, figures))
    path.write_text(html_document("raycdc: ways to cut tables", body, figures), encoding="utf-8")


def html_document(title: str, body: str, figures: Mapping[str, Json]) -> str:
    """Return an HTML page of `body` with plotly's `figures`, by the ids of the elements that contain them."""
    # Only "<" could end a script early.
    data = json.dumps(figures, ensure_ascii=False).replace("<", "\\u003c")
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>\n<body>{body}\n"
        f'<script type="application/json" id="figures">{data}</script>\n<script>{get_plotlyjs()}</script>\n'
        f"<script>{_SCRIPT}</script></body></html>"
    )


def where_and_when(source: str, cores: int, began_ms: int, *, ended_early: bool) -> str:
    """Return the line below the heading of a page: the source and the time."""
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(began_ms / 1000))
    early = " It was ended before all was measured." if ended_early else ""
    on = "1 core" if cores == 1 else f"{cores} cores"
    return f"<p class=soft>{_text(source)}, read on {on}, {began}.{early}</p>"


def recommended(settings: str, reason: str) -> str:
    """Return the recommended lines of the configuration, with the reason."""
    return f"<div class=advice><b>Recommended</b><pre>{_text(settings)}</pre><p>{_text(reason)}</p></div>"


def _body(report: Report, figures: dict[str, Json]) -> Iterator[str]:
    yield "<h1>Ways to cut tables into chunks</h1>"
    yield where_and_when(report.source, report.cores, report.began_ms, ended_early=report.ended_early)
    if report.advice is not None:
        yield recommended(report.advice.settings, report.advice.reason)
    for number, table in enumerate(report.tables):
        about = f", about {table.rows:,} rows" if table.rows else ""
        yield f"<h2>{_text(table.table)}{about}</h2>"
        if table.advice is not None and len(report.tables) > 1:
            yield f"<p>{_text(table.advice.strategy)}: {_text(table.advice.reason)}</p>"
        for result in table.strategies:
            if result.refused:
                yield f"<p class=soft>{_text(result.name)} was not measured: {_text(result.refused)}</p>"
        measured = [result for result in table.strategies if result.runs]
        if measured:
            yield from _table(report, table, measured)
            yield from _plots(f"t{number}", report, measured, figures)


def _table(report: Report, table: TableBenchResult, measured: Sequence[StrategyResult]) -> Iterator[str]:
    """Return the table of figures, with a column per strategy."""
    best = "" if table.advice is None else table.advice.strategy
    yield "<div class=scroll><table><caption>Rows and bytes are of chunks that were read. Rows/s were measured; "
    yield "seconds of the whole table are from the chunks' times with one reader, and from how much more "
    yield "of them slowed each other.</caption>"
    heads = "".join(f"<th scope=col{_marked(r, best)}>{_text(r.name)}</th>" for r in measured)
    yield f"<tr><td></td>{heads}</tr>"
    columns = [dict(_figures(result, report.readers)) for result in measured]
    for name in columns[0]:
        cells = "".join(
            f"<td{_marked(result, best)}>{_text(column[name])}</td>"
            for result, column in zip(measured, columns, strict=True)
        )
        yield f"<tr><th scope=row>{_text(name)}</th>{cells}</tr>"
    yield "</table></div>"


def _marked(result: StrategyResult, best: str) -> str:
    return " class=best" if result.name == best else ""


def _figures(result: StrategyResult, readers: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Yield the figures with their names."""
    planning, rows, sizes = result.planning, result.rows(), result.sizes()
    assert planning is not None
    least = "≥ " if result.cut_off else ""
    read = len(result.known)
    yield "chunk key", planning.key
    yield "chunks", f"{planning.chunks:,}" + (f", {read:,} of them read" if read < planning.chunks else "")
    yield "seconds to cut", f"{planning.seconds:.2f}"
    yield "seconds until the first chunks", f"{planning.first_s:.2f}"
    yield "statements to cut", _known(planning.costs.queries)
    yield "rows the server read to cut", _known(planning.costs.rows_read)
    yield "the server's CPU seconds to cut", _known(planning.costs.cpu_s, digits=2)
    yield "rows of a chunk, median", f"{rows.p50:,.0f}"
    yield "99th percentile", f"{rows.p99:,.0f}"
    yield "largest", f"{least}{rows.most:,.0f}"
    yield "largest, in times of the mean", f"{least}{rows.unevenness:.1f}"
    yield "MiB of a chunk, median", f"{sizes.p50 / 2**20:,.1f}"
    yield "MiB of the largest", f"{least}{sizes.most / 2**20:,.1f}"
    for run in result.runs:
        yield f"rows/s of {readers_text(run.readers)}", f"{run.rows_per_s:,.0f}"
        yield f"idle share of {readers_text(run.readers)}", f"{run.idle:.0%}"
    for count in readers:
        yield f"seconds of the whole table, {readers_text(count)}", f"{least}{result.whole_s(count):.2f}"
    yield "memory of a reader, MiB", f"{max(run.peak_bytes for run in result.runs) / 2**20:,.0f}"


def _plots(prefix: str, report: Report, measured: Sequence[StrategyResult], figures: dict[str, Json]) -> Iterator[str]:
    most = measured[0].runs[-1].readers
    plots = (
        ("rows", "Rows per chunk", _histograms(measured)),
        ("gantt", f"What {readers_text(most)} did: each bar is a chunk", _gantt([(r, r.runs[-1]) for r in measured])),
        ("time", "Seconds until the table is read, by readers", _times(measured, report.readers)),
        ("cost", "What cutting costs, and the largest chunk", _costs(measured)),
    )
    for name, title, figure in plots:
        figures[f"{prefix}-{name}"] = figure
        label = f"{title}; the figures are in the table above"
        yield f'<h3>{_text(title)}</h3><div id="{prefix}-{name}" role=img aria-label="{_text(label)}"></div>'


def _histograms(measured: Sequence[StrategyResult]) -> dict[str, Json]:
    """Return histograms below each other, with the same bars on the same axis."""
    values = [[chunk.rows for chunk in result.alone] for result in measured]
    every = sorted(max(value, 1) for rows in values for value in rows)
    most, wide = every[-1], every[-1] > _WIDE * every[len(every) // 2]
    edges = np.geomspace(1, most, _BINS + 1) if wide else np.linspace(0, max(most, 1), _BINS + 1)
    data: list[Json] = []
    for number, (result, rows) in enumerate(zip(measured, values, strict=True)):
        counts, _ = np.histogram(np.clip(rows, edges[0], edges[-1]), edges)
        hover = [f"{low:,.0f} to {high:,.0f} rows" for low, high in pairwise(edges)]
        data.append({
            "type": "bar", "name": result.name, "x": ((edges[1:] + edges[:-1]) / 2).tolist(), "y": counts.tolist(),
            "width": (edges[1:] - edges[:-1]).tolist(), "marker": {"color": colour(number)}, "text": hover,
            "textposition": "none", "hovertemplate": "%{y} chunks of %{text}<extra>%{fullData.name}</extra>",
            **_axes(number),
        })  # fmt: skip
    axis: dict[str, Json] = {"title": {"text": "rows"}, "type": "log" if wide else "linear"}
    return {"data": data, "layout": _stacked(measured, axis, "chunks")}


def _gantt(runs: Sequence[tuple[StrategyResult, MeasuredRun]]) -> dict[str, Json]:
    data: list[Json] = []
    for number, (result, run) in enumerate(runs):
        chunks = sorted(run.chunks, key=lambda chunk: chunk.began_s)
        data.append({
            "type": "bar", "orientation": "h", "name": result.name,
            "y": [f"{result.name} {chunk.reader + 1}" for chunk in chunks],
            "base": [round(chunk.began_s, 4) for chunk in chunks],
            "x": [round(chunk.seconds, 4) for chunk in chunks],
            "text": [f"chunk {chunk.number}: {chunk.rows:,} rows" for chunk in chunks], "textposition": "none",
            "marker": {"color": colour(number), "line": {"width": 1, "color": "rgba(255,255,255,.7)"}},
            "hovertemplate": "%{text}, %{x:.3f} s<extra>%{y}</extra>",
        })  # fmt: skip
    lanes = [f"{result.name} {reader + 1}" for result, run in runs for reader in range(run.readers)]
    return gantt(data, lanes)


def gantt(bars: Sequence[Json], lanes: Sequence[str]) -> dict[str, Json]:
    """Return a plot of `bars` over time, each in one of `lanes`; the first lane is on top."""
    layout: dict[str, Json] = {
        "barmode": "overlay", "showlegend": False, "height": 90 + 32 * len(lanes), "margin": {"t": 10, "r": 10},
        "xaxis": {"title": {"text": "seconds"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category", "categoryarray": [*lanes]},
    }  # fmt: skip
    return {"data": [*bars], "layout": layout}


def _times(measured: Sequence[StrategyResult], readers: Sequence[int]) -> dict[str, Json]:
    data: list[Json] = []
    for number, result in enumerate(measured):
        data.append({
            "type": "scatter", "mode": "lines+markers", "name": result.name, "x": list(readers),
            "y": [round(result.whole_s(count), 3) for count in readers], "line": {"color": colour(number)},
            "hovertemplate": "%{y:.2f} s with %{x} readers<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    layout: dict[str, Json] = {
        "height": 340, "margin": {"t": 30, "r": 10}, "legend": _LEGEND,
        "xaxis": {"title": {"text": "readers"}, "type": "category"},
        "yaxis": {"title": {"text": "seconds"}, "rangemode": "tozero"},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _costs(measured: Sequence[StrategyResult]) -> dict[str, Json]:
    """Return three plots side by side, because their units differ."""
    names = [result.name for result in measured]
    kinds: list[tuple[str, list[float | None]]] = [
        ("seconds to cut", [None if r.planning is None else round(r.planning.seconds, 3) for r in measured]),
        ("rows the server read to cut", [None if r.planning is None else r.planning.costs.rows_read for r in measured]),
        ("rows of the largest chunk", [r.rows().most for r in measured]),
    ]
    colours = [colour(number) for number in range(len(measured))]
    data: list[Json] = []
    layout: dict[str, Json] = {"height": 320, "margin": {"t": 30, "r": 10}, "showlegend": False}
    for number, (title, values) in enumerate(kinds):
        data.append({"type": "bar", "x": names, "y": values, "marker": {"color": colours}, **_axes(number, number),
                     "hovertemplate": "%{y:,}<extra>%{x}</extra>"})  # fmt: skip
        end = "" if number == 0 else str(number + 1)
        left = number / len(kinds)
        layout[f"xaxis{end}"] = {"domain": [left + 0.03, left + 0.3], "anchor": f"y{end}", "title": {"text": title}}
        layout[f"yaxis{end}"] = {"anchor": f"x{end}", "rangemode": "tozero"}
    return {"data": data, "layout": layout}


def _stacked(measured: Sequence[StrategyResult], axis: Mapping[str, Json], unit: str) -> dict[str, Json]:
    """Return the layout of plots below each other that share the lowest axis."""
    count = len(measured)
    layout: dict[str, Json] = {
        "height": 100 + _ROW_PX * count, "margin": {"t": 30, "r": 10}, "bargap": 0, "legend": _LEGEND,
        "xaxis": {**axis, "anchor": "y" if count == 1 else f"y{count}"},
    }  # fmt: skip
    for number in range(count):
        end = "" if number == 0 else str(number + 1)
        bottom = 1 - (number + 1) / count
        layout[f"yaxis{end}"] = {"domain": [bottom + 0.15 / count, bottom + 1 / count], "title": {"text": unit}}
    return layout


def _axes(number: int, across: int = 0) -> dict[str, str]:
    return {"xaxis": "x" if across == 0 else f"x{across + 1}", "yaxis": "y" if number == 0 else f"y{number + 1}"}


def colour(number: int) -> str:
    """Return the color of the strategy with this number."""
    return _COLOURS[number % len(_COLOURS)]


def _known(value: float | None, digits: int = 0) -> str:
    return "?" if value is None else f"{value:,.{digits}f}"


def _text(value: str) -> str:
    return html.escape(value)
