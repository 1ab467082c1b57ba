"""Traces to a collector over OTLP/HTTP, with OpenTelemetry's own SDK and exporter: the one module that loads them.

The SDK's batch processor is not used: it would tell of a collector that is away with each batch, and drop what it could
not send. Its spans are collected here and handed to its exporter by the thread of `raycdc.tracing.outbox`, which alone
decides what is tried again.

Sources: OpenTelemetry specification, "Trace SDK" (explicit times and parents) and "OTLP" 1.x ("OTLP/HTTP": which
answers are tried again).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http import trace_exporter as otlp
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Status, StatusCode, set_span_in_context
from requests import PreparedRequest, Request, Response, Session
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import RequestException, SSLError, Timeout

from raycdc.certificate_faults import TlsServer, certificate_fault
from raycdc.config.fields import Secret
from raycdc.config.traces import TracesOptions
from raycdc.references import newest
from raycdc.tracing.outbox import THREAD, NotTakenError
from raycdc.tracing.trace import Span

#: Answers that say that the same traces would be refused for ever (OTLP: bad data); others may get better.
_NEVER = (400, 413, 415, 422)
#: What is said of a request beside a user's own headers. They are given to the exporter, because it would rather take
#: those of ``OTEL_EXPORTER_OTLP_HEADERS``, which nobody has checked: they may be meant for another collector.
_OF_REQUESTS = {
    "content-type": "application/x-protobuf",
    "content-encoding": "gzip",
    "user-agent": f"raycdc/{version('raycdc')}",
}

Made = list[ReadableSpan]


class OtlpExporter:
    """A `raycdc.tracing.outbox.Exporter`."""

    def __init__(self, options: TracesOptions) -> None:
        self._options = options
        self._wire = _Wire(options)
        self._headers = _Headers(options.headers)
        session = _Session()
        # It also keeps requests from looking for a password in a file of the user's.
        session.auth = self._headers
        session.mount("http://", self._wire)
        session.mount("https://", self._wire)
        with _quiet_about_headers():
            self._exporter = otlp.OTLPSpanExporter(
                endpoint=options.url,
                certificate_file=options.ca,
                headers=_OF_REQUESTS,
                timeout=options.timeout.total_seconds(),
                compression=Compression.Gzip,
                session=session,
            )
        self._spans = _Collected()
        provider = TracerProvider(sampler=ALWAYS_ON, resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(self._spans)
        self._tracer = provider.get_tracer("raycdc", version("raycdc"))
        # The warning of the outbox says all of it, once. The same filter twice is one.
        logging.getLogger(otlp.__name__).addFilter(_is_not_ours)

    def __repr__(self) -> str:
        return f"OtlpExporter({self._options.place!r})"

    def made(self, trace: Span) -> Made:
        """See `Exporter.made`; none where ``OTEL_SDK_DISABLED`` says so."""
        # No span of somebody else's is the parent of one of ours.
        self._add(trace, Context())
        return self._spans.take()

    def send(self, traces: Sequence[Made]) -> None:
        """See `Exporter.send`."""
        spans = [span for trace in traces for span in trace]
        if not spans:
            return
        self._wire.forget()
        self._headers.read()
        try:
            taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except RequestException:
            # Some versions of the exporter let it pass.
            taken = False
        if not (taken or self._wire.taken):
            raise self._wire.refusal()

    def close(self) -> None:
        """See `Exporter.close`."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

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
        made.end(span.ended_ns)


class _Collected(SpanProcessor):
    """The spans that ended since they were taken."""

    def __init__(self) -> None:
        self._spans: Made = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> Made:
        """Those, which are not collected any more."""
        spans, self._spans = self._spans, []
        return spans


class _Headers(AuthBase):
    """Puts headers into a request."""

    def __init__(self, headers: Mapping[str, Secret]) -> None:
        self._headers = headers
        self._texts: dict[str, str] = {}

    def read(self) -> None:
        """Read them again. `NotTakenError` for one that cannot be sent any more, which is not shown."""
        self._texts = {name: newest(secret.reveal()) for name, secret in self._headers.items()}
        for name, text in self._texts.items():
            if not (text.isascii() and text.isprintable()):
                raise NotTakenError(f"traces.headers: {name} is not printable ASCII any more", again=True)

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request.headers.update(self._texts)
        return request


class _Session(Session):
    """Takes no header of the environment from the exporter, not even to look whether it can be sent."""

    def prepare_request(self, request: Request) -> PreparedRequest:
        """See `Session.prepare_request`."""
        request.headers = {name: value for name, value in request.headers.items() if name.lower() in _OF_REQUESTS}
        return super().prepare_request(request)


class _NotSentError(RequestException):
    """No error of a connection for the exporter, which would try again by itself, in silence and for long."""


class _Wire(HTTPAdapter):
    """Remembers how a try ended, which the exporter keeps to its log."""

    def __init__(self, options: TracesOptions) -> None:
        super().__init__()
        self._options = options
        self._tried = False
        self._status: int | None = None
        self._cause: Exception | None = None

    def forget(self) -> None:
        """A new try begins."""
        self._tried = False
        self._status = self._cause = None

    @property
    def taken(self) -> bool:
        """Whether the collector has said so, even where the rest of its answer was lost."""
        return self._status is not None and 200 <= self._status < 300

    def send(self, request: PreparedRequest, *arguments: Any, **named: Any) -> Response:
        """See `HTTPAdapter.send`; `_NotSentError` for whatever is no success. An answer that leads elsewhere is none,
        because headers are for this collector alone.
        """
        self.forget()
        self._tried = True
        # A proxy of the environment would see headers that are for this collector alone.
        named["proxies"] = {}
        if self._options.ca is not None:
            # A variable of the environment would come before the session's own file (requests, `REQUESTS_CA_BUNDLE`).
            named["verify"] = self._options.ca
        try:
            response = self._sent(request, *arguments, **named)
        except Exception as cause:
            self._cause = cause
            raise _NotSentError from cause
        self._status = response.status_code
        if not self.taken:
            response.close()
            raise _NotSentError
        return response

    def _sent(self, request: PreparedRequest, *arguments: Any, **named: Any) -> Response:
        try:
            return super().send(request, *arguments, **named)
        except RequestsConnectionError as cause:
            if isinstance(cause, SSLError | Timeout):
                raise
            # The collector may have closed a connection that was kept from the last request.
            return super().send(request, *arguments, **named)

    def refusal(self) -> NotTakenError:
        """The error that says why the last try failed."""
        if not self._tried:
            # The exporter gave them up by itself, as it would each time.
            return NotTakenError("they cannot be encoded, or are too large for a request", again=False)
        status, cause = self._status, self._cause
        if status is not None:
            redirected = ", and no redirect is followed" if 300 <= status < 400 else ""
            return NotTakenError(f"it answers with {status}{redirected}", again=status not in _NEVER)
        if isinstance(cause, Timeout):
            return NotTakenError(f"it did not answer within {self._options.timeout.total_seconds():g} s", again=True)
        parts, ca = urlsplit(self._options.url), self._options.ca
        if parts.scheme == "https":
            server = TlsServer(parts.hostname or "", parts.port or 443, "traces.ca", "traces.endpoint", ca)
            if fault := certificate_fault(server):
                return NotTakenError(fault.rstrip("."), again=True)
        return NotTakenError("there is no connection to it", again=True)


def _resource() -> Resource:
    """Who sends; ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` say other things, and more."""
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
    """Within it this thread logs nothing of variables with headers: the line would quote one that is mistyped."""
    thread = threading.get_ident()

    def is_of_others(_: logging.LogRecord) -> bool:
        return threading.get_ident() != thread

    logger = logging.getLogger("opentelemetry.util.re")
    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


def _is_not_ours(record: logging.LogRecord) -> bool:
    """Whether a line of the exporter is of somebody else's use of it."""
    return record.threadName != THREAD
