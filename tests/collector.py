"""A collector of traces: it takes OTLP over HTTP, as OpenTelemetry's own or Jaeger does, and remembers all of it."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from raycdc.observe.tracing.epoch_traces import Attribute
from tests.receiver import receiving


@dataclass(frozen=True, slots=True)
class Received:
    """A span as it came, with the attributes of who sent it."""

    trace: bytes
    id: bytes
    parent: bytes
    name: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Attribute]
    sender: dict[str, Attribute]
    events: list[tuple[str, dict[str, Attribute]]]
    failed: bool
    error: str


@dataclass(slots=True)
class Collector:
    """`answers` come before the good ones; while `free` is not set, requests hang. Answers that are `cut` have lost
    their body.
    """

    spans: list[Received] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    free: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    cut: bool = False
    url: str = ""

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self.asked.set()
        self.free.wait()
        self.headers.append(headers)
        if self.answers:
            return self.answers.pop(0)
        plain = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        self.paths.append(path)
        self.bodies.append(plain)
        self.spans += received(plain)
        return 200

    def roots(self) -> list[Received]:
        return [span for span in self.spans if not span.parent]

    def below(self, parent: Received) -> list[Received]:
        return [span for span in self.spans if (span.trace, span.parent) == (parent.trace, parent.id)]


def received(body: bytes) -> Iterator[Received]:
    request = ExportTraceServiceRequest.FromString(body)
    for of_sender in request.resource_spans:
        sender = {each.key: value_of(each.value) for each in of_sender.resource.attributes}
        for scope in of_sender.scope_spans:
            for span in scope.spans:
                yield received_span(span, sender)


def received_span(span: Span, sender: dict[str, Attribute]) -> Received:
    return Received(
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.name,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        {each.key: value_of(each.value) for each in span.attributes},
        sender,
        [(event.name, {each.key: value_of(each.value) for each in event.attributes}) for event in span.events],
        span.status.code == Status.STATUS_CODE_ERROR,
        span.status.message,
    )


def value_of(value: AnyValue) -> Attribute:
    match value.WhichOneof("value"):
        case "string_value":
            return str(value.string_value)
        case "bool_value":
            return bool(value.bool_value)
        case "int_value":
            return int(value.int_value)
        case "array_value":
            values = value.array_value.values
            if all(each.WhichOneof("value") == "int_value" for each in values):
                return tuple(int(each.int_value) for each in values)
            return tuple(str(each.string_value) for each in values)
        case kind:
            raise AssertionError(f"an attribute of the kind {kind}")


@contextmanager
def collecting(tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    """A collector at a free port of this machine."""
    collector = Collector()
    collector.free.set()

    def take(path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        status = collector.take(path, headers, body)
        elsewhere = {"Location": "/elsewhere"} if 300 <= status < 400 else {}
        return status, elsewhere | {"Content-Length": "9" if collector.cut else "0"}

    with receiving(take, tls) as collector.url:
        try:
            yield collector
        finally:
            collector.free.set()
