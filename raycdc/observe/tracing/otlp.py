"""Sends traces to a collector over OTLP/HTTP, with OpenTelemetry's SDK. No other module imports the SDK.

The SDK's batch processor queues the spans and sends them in the background, and its exporter retries temporary
failures, for at most `traces.timeout`. If all retries of a request fail, its spans are dropped. The run warns once
about that, and reports when the collector accepts spans again.

Sources: OpenTelemetry specification, "Trace SDK" (explicit times and parents, "Batching processor") and "OTLP" 1.x
("OTLP/HTTP": which answers are tried again).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http import trace_exporter as otlp
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Status, StatusCode, set_span_in_context
from requests import PreparedRequest, Request, Response, Session
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import RequestException, SSLError, Timeout

from raycdc.config.fields import Secret
from raycdc.config.sections.observability import TracesOptions
from raycdc.core.certificate_faults import TlsServer, certificate_fault
from raycdc.core.secrets import newest
from raycdc.observe.tracing.epoch_traces import Span

#: The maximum number of waiting spans: an epoch has up to a few hundred, and at most one epoch comes a second.
SPANS_MAX = 20_000
#: The maximum number of spans in one request.
BATCH_MAX = 1000
#: The longest time for which a span waits, so that several spans are sent together.
DELAY_MS = 1000
#: The name of the sending thread.
THREAD = "raycdc traces"
#: Seconds that the end of a run waits for a collector whose last answer was a failure.
FAILING_WAIT_S = 1.0
#: The headers of a request in addition to a user's own. They are set explicitly, because the exporter would otherwise
#: use those of ``OTEL_EXPORTER_OTLP_HEADERS``, which may be meant for another collector.
_OF_REQUESTS = {
    "content-type": "application/x-protobuf",
    "content-encoding": "gzip",
    "user-agent": f"raycdc/{version('raycdc')}",
}


class OtlpTraces:
    """Sends the traces of one run to the collector. `put` is called by one thread at a time, and returns immediately.

    `warn` is called by the sending thread, and by the thread that calls `end`.
    """

    def __init__(self, options: TracesOptions, warn: Callable[[str], None]) -> None:
        self._location, self._warn = options.receiver, warn
        self._exporter = _Exporter(options, warn)
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=SPANS_MAX,
            schedule_delay_millis=DELAY_MS,
            max_export_batch_size=BATCH_MAX,
        )
        provider = TracerProvider(sampler=ALWAYS_ON, resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("raycdc", version("raycdc"))
        self._spans = 0
        self._ended = False

    def __repr__(self) -> str:
        return f"OtlpTraces({self._location!r}, {self._spans} spans)"

    def put(self, trace: Span) -> None:
        """Queue a trace. If ``OTEL_SDK_DISABLED`` is set, no trace is sent."""
        if not self._ended:
            # A span of other code must not be the parent of these spans.
            self._add(trace, Context())

    def end(self, wait_s: float) -> None:
        """Send the waiting traces, for at most `wait_s`; then report how many spans were lost."""
        self._ended = True
        # The processor would wait as long as the exporter retries.
        ending = threading.Thread(target=self._processor.shutdown, name="raycdc traces end", daemon=True)
        ending.start()
        ending.join(min(wait_s, FAILING_WAIT_S) if self._exporter.fails else wait_s)
        lost = self._spans - self._exporter.ended()
        if lost:
            self._warn(f"traces: {_count(lost)} not sent to {self._location} before the end of the run.")

    def _add(self, span: Span, parent: Context) -> None:
        made = self._tracer.start_span(
            span.name, context=parent, attributes=dict(span.attributes), start_time=span.began_ns
        )
        for event in span.events:
            made.add_event(event.name, dict(event.attributes), event.at_ns)
        if span.error:
            made.set_attribute("error.type", span.error)
            made.set_status(Status(StatusCode.ERROR, span.error))
        inside = set_span_in_context(made, parent)
        for child in span.children:
            self._add(child, inside)
        # A span that is not recorded, for example because the SDK is disabled, is never sent.
        self._spans += made.is_recording()
        made.end(span.ended_ns)


class _Exporter(SpanExporter):
    """OpenTelemetry's exporter, with the present headers and with warnings about failures.

    `export` is called by the processor's thread.
    """

    def __init__(self, options: TracesOptions, warn: Callable[[str], None]) -> None:
        self._location, self._warn = options.receiver, warn
        self._wire = _Wire(options)
        self._headers = _Headers(options.headers)
        session = _Session()
        # This also keeps requests from reading a password in a file of the user.
        session.auth = self._headers
        session.mount("http://", self._wire)
        session.mount("https://", self._wire)
        with _quiet_about_headers():
            self._otlp = otlp.OTLPSpanExporter(
                endpoint=options.url,
                certificate_file=options.ca,
                headers=_OF_REQUESTS,
                timeout=options.timeout.total_seconds(),
                compression=Compression.Gzip,
                session=session,
            )
        self._lock = threading.Lock()
        #: The number of spans that were delivered or whose loss was reported, and of spans dropped since.
        self._accounted = self._dropped = 0
        self._over = False
        self.fails = False
        # The run's warnings replace the exporter's log messages. Adding the same filter again has no effect.
        logging.getLogger(otlp.__name__).addFilter(_is_not_ours)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter.export`."""
        # The thread's name identifies its messages in the logs of libraries.
        threading.current_thread().name = THREAD
        why = self._sent(spans)
        with self._lock:
            if self._over:
                return SpanExportResult.FAILURE
            failed, self.fails = self.fails, bool(why)
            lost = self._dropped
            if why:
                self._dropped += len(spans)
            else:
                self._accounted += len(spans) + lost
                self._dropped = 0
        if why and not failed:
            self._warn(f"traces: {self._location} does not take them: {why}. The run goes on without its traces.")
        elif failed and not why:
            self._warn(f"traces: {self._location} takes them again; {_count(lost)} dropped meanwhile.")
        return SpanExportResult.FAILURE if why else SpanExportResult.SUCCESS

    def ended(self) -> int:
        """Stop sending and reporting, and return the number of spans that were delivered or reported as lost."""
        with self._lock:
            self._over = True
        self._otlp.shutdown()  # type: ignore[no-untyped-call]
        return self._accounted

    def _sent(self, spans: Sequence[ReadableSpan]) -> str:
        """Send the spans; return the reason why they were not accepted, or an empty text."""
        self._wire.forget()
        if why := self._headers.read():
            return why
        # Some versions of the exporter raise this error instead of handling it.
        with suppress(RequestException):
            self._otlp.export(spans)
        # The exporter's own result is not used: the exporter treats a redirection as success, and an answer whose body
        # was lost as a failure.
        return "" if self._wire.taken else self._wire.refusal()


def _count(spans: int) -> str:
    return "1 span was" if spans == 1 else f"{spans} spans were"


class _Headers(AuthBase):
    """Adds the configured headers to a request."""

    def __init__(self, headers: Mapping[str, Secret]) -> None:
        self._headers = headers
        self._texts: dict[str, str] = {}

    def read(self) -> str:
        """Read the headers again.

        Return the problem of a header that cannot be sent any more, without its value; else empty.
        """
        self._texts = {name: newest(secret.reveal()) for name, secret in self._headers.items()}
        for name, text in self._texts.items():
            if not (text.isascii() and text.isprintable()):
                return f"traces.headers: {name} is not printable ASCII any more"
        return ""

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request.headers.update(self._texts)
        return request


class _Session(Session):
    """A session without headers from the environment and without redirections.

    The configured headers may hold secrets for this collector only. Headers from the environment are not validated by
    the exporter.
    """

    def prepare_request(self, request: Request) -> PreparedRequest:
        """See `Session.prepare_request`."""
        request.headers = {name: value for name, value in request.headers.items() if name.lower() in _OF_REQUESTS}
        return super().prepare_request(request)

    def get_redirect_target(self, _: Response) -> str | None:
        """See `Session.get_redirect_target`."""
        return None


class _NotSentError(RequestException):
    """Raised for a failure that the exporter must not retry; it retries connection errors only."""


class _Wire(HTTPAdapter):
    """Sends a request, and remembers the result of the last attempt, which the exporter only logs."""

    def __init__(self, options: TracesOptions) -> None:
        super().__init__()
        self._options = options
        self._tried = False
        self._status: int | None = None
        self._cause: Exception | None = None

    def forget(self) -> None:
        """Forget the last result before a new attempt."""
        self._tried = False
        self._status = self._cause = None

    @property
    def taken(self) -> bool:
        """Return True if the collector accepted the request, even if the rest of its answer was lost."""
        return self._status is not None and 200 <= self._status < 300

    def send(self, request: PreparedRequest, *arguments: Any, **named: Any) -> Response:
        """See `HTTPAdapter.send`."""
        self.forget()
        self._tried = True
        # No proxy of the environment is used, because it would see headers that are for this collector only.
        named["proxies"] = {}
        if self._options.ca is not None:
            # A variable of the environment would override the configured file (requests, `REQUESTS_CA_BUNDLE`).
            named["verify"] = self._options.ca
        try:
            response = super().send(request, *arguments, **named)
        except (SSLError, Timeout, OSError) as cause:
            self._cause = cause
            if isinstance(cause, RequestsConnectionError) and not isinstance(cause, SSLError | Timeout):
                raise
            raise _NotSentError from cause
        self._status = response.status_code
        return response

    def refusal(self) -> str:
        """Return the reason why the last attempt failed."""
        if not self._tried:
            # The exporter stopped by itself, as it would in each attempt.
            return "they cannot be encoded, or are too large for a request"
        status, cause = self._status, self._cause
        if status is not None:
            return f"it answers with {status}{', and no redirect is followed' if 300 <= status < 400 else ''}"
        if isinstance(cause, Timeout):
            return f"it did not answer within {self._options.timeout.total_seconds():g} s"
        parts, ca = urlsplit(self._options.url), self._options.ca
        if parts.scheme == "https":
            server = TlsServer(parts.hostname or "", parts.port or 443, "traces.ca", "traces.endpoint", ca)
            if fault := certificate_fault(server):
                return fault.rstrip(".")
        return "there is no connection to it"


def _resource() -> Resource:
    """Return the attributes that identify the sender.

    ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` override them.
    """
    own = Resource(
        {
            "service.name": "raycdc",
            "service.version": version("raycdc"),
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            "host.name": socket.gethostname(),
        }
    )
    return own.merge(OTELResourceDetector().detect())


@contextmanager
def _quiet_about_headers() -> Iterator[None]:
    """Suppress log messages of this thread about header variables, which would quote a mistyped value."""
    thread = threading.get_ident()

    def is_foreign(_: logging.LogRecord) -> bool:
        return threading.get_ident() != thread

    logger = logging.getLogger("opentelemetry.util.re")
    logger.addFilter(is_foreign)
    try:
        yield
    finally:
        logger.removeFilter(is_foreign)


def _is_not_ours(record: logging.LogRecord) -> bool:
    """Return True if a log message of the exporter comes from another user of the exporter."""
    return record.threadName != THREAD
