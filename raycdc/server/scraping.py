"""The server for scrapers and probes: ``/metrics``, ``/healthz``, ``/readyz``.

It is read-only. It opens at the first step of a run, and is also open while a standby waits.

| request | answer |
|---|---|
| ``GET /metrics`` | the metrics in Prometheus' format; if ``metrics.token`` is set, only with this token |
| ``GET /healthz`` | 200 while the run makes progress; else 503, with the reason why a supervisor should restart it |
| ``GET /readyz`` | 200 while rows are read and written; else 503, with the present step of the run |

If the server listens on a loopback address, the ``Host`` of a request must be an IP address or localhost. This refuses
requests of a page in a browser whose host name was rebound to 127.0.0.1 (DNS rebinding).

Metrics that Flink CDC (FLIP-33) or Debezium also have have the same names after ``raycdc_``, and are in milliseconds,
too: ``currentFetchEventTimeLag``, ``currentEmitEventTimeLag``, ``sourceIdleTime``, ``pendingRecords``,
``watermarkLag``, ``MilliSecondsBehindSource``. All other metrics are named by the rules of Prometheus, and are in
seconds and bytes. The number of label values is limited: at most `ScrapeLimits.tables` tables have labels, and no
reason or text is a label.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import ip_address

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from raycdc.config import MetricsOptions
from raycdc.driver.startup_checks import listen_for_scrapers
from raycdc.observe.status.documents import StatusDocuments
from raycdc.observe.status.model import Chosen, Status, TableReport
from raycdc.server.authorization import ApiToken
from raycdc.server.blocking import HEADERS, has_token, threaded, wants_token

#: Every phase of a table. A phase without tables has the value 0, because a missing time series would look stale.
PHASES = ("pending", "snapshot", "stream", "resuming", "paused", "removed", "ended", "parked", "new")


@dataclass(frozen=True, slots=True)
class ScrapeLimits:
    """The limits of a scrape."""

    #: The maximum number of tables that have their own metrics.
    tables: int


def exposition(
    status: Callable[[Chosen], Status], bounds: ScrapeLimits, accept: str, *, version: str
) -> tuple[bytes, str]:
    """Return the body of one scrape and its media type, in the Prometheus format that the header `accept` prefers."""
    encode, media_type = choose_encoder(accept)
    now = status(Chosen(first="parked", limit=bounds.tables))
    page = _Scrape(now, now.tables, version)
    return encode(page), media_type


class _Scrape:
    """Collects the metrics of one scrape, in the interface of the library's encoders."""

    def __init__(self, status: Status, tables: tuple[TableReport, ...], version: str) -> None:
        self._status = status
        self._tables = tables
        self._version = version
        self._labels = {"pipeline": status.pipeline}

    def collect(self) -> Iterator[Metric]:
        yield from self._run()
        yield from self._lags()
        yield from self._work()
        yield from self._each_table()

    def _run(self) -> Iterator[Metric]:
        status, run = self._status, self._status.run
        info = InfoMetricFamily("raycdc", "What runs.", labels=[*self._labels])
        info.add_metric([*self._labels.values()], {"version": self._version, "sink": status.sink or ""})
        yield info
        running = 0 if run is None else int(run.step == "running")
        yield self._gauge("running", "1 while rows are read and written; 0 while it starts, waits or ends.", running)
        started = None if run is None else run.started_ms / 1000
        yield self._gauge("start_time_seconds", "When the process of the run began, since 1970.", started)

    def _lags(self) -> Iterator[Metric]:
        job, lag = self._status.job, self._status.job.lag
        behind = "Now minus the time up to which the source is in the sink, also while idle (Debezium's name), in ms."
        yield self._gauge("MilliSecondsBehindSource", behind, job.lag_ms)
        if lag is not None:
            figures = (
                ("currentFetchEventTimeLag", "From a change's time until a reader had it, in ms.", "current_fetch"),
                ("currentEmitEventTimeLag", "From a change's time until it was in the sink, in ms.", "current_emit"),
            )
            for name, text, key in figures:
                yield self._gauge(name, f"{text} FLIP-33.", getattr(lag, f"{key}_event_time_lag_ms"))
            yield self._gauge("sourceIdleTime", "How long nothing has come, in ms. FLIP-33.", lag.source_idle_time_ms)
            yield self._gauge("pendingRecords", "Unread messages of topics. FLIP-33.", lag.pending_records)
            yield self._gauge("watermarkLag", "Of the slowest partition, in ms. FLIP-33.", lag.watermark_lag_ms)
        backlog = job.backlog
        yield self._gauge("backlog_bytes", "Of the log or of topics, not read yet.", backlog.bytes)
        yield self._gauge("backlog_seconds", "How long reading that takes at the rate of now.", backlog.seconds)
        retention = "Minimum time for which the source still keeps the unread log."
        yield self._gauge("retention_headroom_seconds", retention, backlog.retention_headroom_seconds)

    def _work(self) -> Iterator[Metric]:
        job, counts = self._status.job, self._status.job.counts
        if counts is not None:
            yield self._counter("commits", "Epochs that this run wrote.", counts.commits)
            yield self._counter("rows_committed", "Rows that this run wrote.", counts.rows_committed)
            read, written = counts.rows_read_by, counts.rows_written_by
            yield self._counts("rows_read", "Committed rows by who read them: driver or ray.", "read_by", read)
            yield self._counts("rows_written", "Rows of targets by who wrote: driver or spark.", "written_by", written)
            yield self._counter("warnings", "Warnings of this run.", counts.warnings)
        # Before the run has examined its tables, the number is unknown. It must not be shown as 0, because the true
        # number would then look like a change.
        if counts is not None and counts.tables:
            yield self._gauge("rows_left_out", "By pipeline.on_bad_record, in all runs.", counts.rows_left_out)
            yield self._gauge("values_lost", "That targets cannot hold, in all runs.", counts.values_lost)
            phases: Mapping[str, int] = dict.fromkeys(PHASES, 0) | dict(counts.tables)
            yield self._by("tables", "Tables by phase.", "phase", phases)
        if (commit := job.last_commit) is not None:
            yield self._gauge("last_commit_epoch", "The newest epoch in the sink.", commit.epoch)
            at_s = None if commit.at_ms is None else commit.at_ms / 1000
            yield self._gauge("last_commit_timestamp_seconds", "When it was written, since 1970.", at_s)
        yield self._gauge("rows_per_second", "Read lately.", job.rows_per_second)
        yield self._by("readers", "Readers by node; state is the node of the driver.", "node", job.nodes)
        yield self._gauge("chunks_waiting", "Chunks that no reader has yet, at least.", job.chunks_waiting)
        if job.bottleneck is not None:
            shares = job.bottleneck.shares
            yield self._by("stage_busy_ratio", "The part of the last minute that a stage was busy.", "stage", shares)

    def _each_table(self) -> Iterator[Metric]:
        tables = self._tables
        snapshots = [table for table in tables if table.phase == "snapshot" and table.snapshot is not None]
        yield self._of(tables, "table_parked", "1 for a table that is parked.", lambda t: int(t.phase == "parked"))
        yield self._of(tables, "table_MilliSecondsBehindSource", "As the pipeline's, in ms.", lambda t: t.lag_ms)
        yield self._of(tables, "table_rows", "Rows sealed in this run, of chunks and the log.", lambda t: t.rows)
        yield self._of(tables, "table_last_commit_timestamp_seconds", "When rows of it were written.", _committed_s)
        yield self._of(snapshots, "table_snapshot_ratio", "How much of its snapshot is done, 0 to 1.", _ratio)
        yield self._of(snapshots, "table_snapshot_eta_seconds", "How long it still takes.", _eta_s)
        yield self._of(tables, "table_rows_left_out", "By pipeline.on_bad_record.", lambda t: t.rows_left_out)

    def _gauge(self, name: str, text: str, value: float | None) -> Metric:
        """Return a gauge; None gives no sample, because an unknown figure is not 0."""
        family = GaugeMetricFamily(f"raycdc_{name}", text, labels=[*self._labels])
        if value is not None:
            family.add_metric([*self._labels.values()], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"raycdc_{name}", text, labels=[*self._labels])
        family.add_metric([*self._labels.values()], value)
        return family

    def _counts(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(f"raycdc_{name}", text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family

    def _by(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(f"raycdc_{name}", text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family

    def _of(
        self, tables: Iterable[TableReport], name: str, text: str, figure: Callable[[TableReport], float | None]
    ) -> Metric:
        known = ((table.table, figure(table)) for table in tables)
        return self._by(name, text, "table", {name: value for name, value in known if value is not None})


def _committed_s(table: TableReport) -> float | None:
    commit = table.last_commit
    return None if commit is None or commit.at_ms is None else commit.at_ms / 1000


def _ratio(table: TableReport) -> float | None:
    percent = None if table.snapshot is None else table.snapshot.percent
    return None if percent is None else percent / 100


def _eta_s(table: TableReport) -> float | None:
    return None if table.snapshot is None else table.snapshot.eta_seconds


#: A run checks its processes five times a second. In a recovery it has no processes, but its work makes progress. If a
#: run did neither for this many seconds, it hangs.
SILENT_MAX_S = 300.0


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """The sources of the answers.

    `step` returns the run's present activity, and `silent_s` the seconds since its last progress. Both return
    immediately. `status` may query the source, and so may block.
    """

    pipeline: str
    status: Callable[[Chosen], Status]
    step: Callable[[], str]
    silent_s: Callable[[], float]

    @classmethod
    def by(cls, documents: StatusDocuments) -> MetricsSource:
        """Return an instance that reads the documents of a run's status."""
        keeper = documents.keeper
        return cls(keeper.status.run.pipeline, documents.status, lambda: keeper.status.step, keeper.silent_s)


def prepare(options: MetricsOptions, documents: StatusDocuments) -> tuple[socket.socket, ASGIApp]:
    """Return the listening socket and the application. Raises `ConfigError` if the address cannot be opened."""
    return listen_for_scrapers(options), application(options, MetricsSource.by(documents))


def application(options: MetricsOptions, reported: MetricsSource) -> Starlette:
    """Return the ASGI application."""
    server = _MetricsEndpoint(options, reported)
    paths = {"/metrics": threaded(server.metrics), "/healthz": server.healthz, "/readyz": server.readyz}
    return Starlette(routes=[Route(path, answer) for path, answer in paths.items()])


class _MetricsEndpoint:
    def __init__(self, options: MetricsOptions, reported: MetricsSource) -> None:
        self._options = options
        self._reported = reported
        self._version = version("raycdc")
        self._token = ApiToken(options.token.reveal())

    def metrics(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        token = self._token.now()
        if token and not has_token(request, token):
            text = "The request lacks metrics.token (Authorization: Bearer …).\n"
            return wants_token(PlainTextResponse(text, 401))
        accept = request.headers.get("accept", "")
        page, media_type = exposition(
            self._reported.status, ScrapeLimits(self._options.tables_max), accept, version=self._version
        )
        return Response(page, headers=HEADERS | {"Content-Type": media_type})

    async def healthz(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        silent_s = self._reported.silent_s()
        if silent_s > SILENT_MAX_S:
            text = f"The run has not checked its processes for {silent_s:.0f} seconds, and its work made no progress."
            return self._said(503, text)
        return self._said(200, "ok")

    async def readyz(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        step = self._reported.step()
        return self._said(200, "ok") if step == "running" else self._said(503, step)

    def _refusal(self, request: Request) -> Response | None:
        if not self._options.is_loopback or _is_address(request.headers.get("host", "")):
            return None
        return PlainTextResponse("Call this server by its address, or as localhost.\n", 421)

    def _said(self, code: int, text: str) -> Response:
        return JSONResponse({"pipeline": self._reported.pipeline, "text": text}, code, headers=HEADERS)


def _is_address(host: str) -> bool:
    """Return True if a ``Host`` is an IP address or localhost, with a port or without."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
