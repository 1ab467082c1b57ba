"""What goes over the wire to a collector, and what its answers mean."""

from __future__ import annotations

import logging
import re
import ssl
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from raycdc.config.fields import Secret
from raycdc.config.sections.observability import TracesOptions
from raycdc.core.secrets import Renewed
from raycdc.observe.tracing import otlp as module
from raycdc.observe.tracing.epoch_traces import Attribute, Span, SpanEvent
from raycdc.observe.tracing.otlp import OtlpTraces
from raycdc.sandbox.servers.certificates import write_certificates
from tests.collector import Collector, collecting

TRACE = Span(
    "epoch",
    1_000,
    9_000,
    {"raycdc.epoch": 4, "raycdc.tables": ("a.b",), "raycdc.table_rows": (3,), "raycdc.final": False},
    (SpanEvent("parked", 5_000, {"raycdc.table": "a.b"}),),
    "SinkError",
    (Span("seal", 1_000, 2_000, {}, children=(Span("reader", 1_000, 1_500, {"raycdc.reader": 0}),)),),
)


CONTEXT = SpanContext(1, 2, is_remote=False)
#: A collector that is not well is tried again for so long: not at all, because the first pause is longer.
ONCE = timedelta(seconds=0.5)
_WHY = re.compile(r"traces: \S+ does not take them: (.*)\. The run goes on without its traces\.")


def options_for(url: str, **more: Any) -> TracesOptions:
    return TracesOptions(endpoint=url, **{"timeout": timedelta(minutes=1), **more})


def sent(options: TracesOptions, *traces: Span) -> str:
    """Why they were not taken; empty where they were."""
    warnings: list[str] = []
    out = OtlpTraces(options, warnings.append)
    for trace in traces:
        out.put(trace)
    out.end(600.0)
    if not warnings:
        return ""
    why, lost = warnings
    assert lost.endswith("not sent to " + options.receiver + " before the end of the run.")
    (found,) = _WHY.findall(why)
    return str(found)


def test_a_trace_is_on_the_wire_with_its_times_parents_events_and_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with collecting() as collector:
        assert sent(options_for(f"{collector.url}/base/"), TRACE, TRACE) == ""
    assert collector.paths == ["/base/v1/traces"]
    first, second = collector.roots()
    assert (first.trace, first.id) != (second.trace, second.id)
    assert (first.name, first.began_ns, first.ended_ns) == ("epoch", 1_000, 9_000)
    assert first.attributes == {**TRACE.attributes, "error.type": "SinkError"}
    assert (first.failed, first.error) == (True, "SinkError")
    assert first.events == [("parked", {"raycdc.table": "a.b"})]
    assert first.sender["service.name"] == "raycdc"
    assert first.sender["deployment.environment"] == "test"
    (seal,) = collector.below(first)
    assert (seal.name, seal.began_ns, seal.ended_ns, seal.failed) == ("seal", 1_000, 2_000, False)
    (reader,) = collector.below(seal)
    assert (reader.name, reader.attributes, collector.below(reader)) == ("reader", {"raycdc.reader": 0}, [])


def test_headers_are_read_again_for_each_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    headers = {"x-token": Secret(Renewed("first", f"${{file:{token}}}"))}
    with collecting() as collector:
        options = options_for(collector.url, headers=headers)
        assert sent(options, TRACE) == ""
        token.write_text("second")
        assert sent(options, TRACE) == ""
        token.write_text("thi\nrd")
        assert sent(options, TRACE) == "traces.headers: x-token is not printable ASCII any more"
    assert [headers["x-token"] for headers in collector.headers] == ["first", "second"]


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
def test_headers_of_the_librarys_own_variables_are_neither_sent_nor_logged(
    variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("api-key", "cookie", "user-agent", "content-type", "content-encoding", "accept")
    # The first is mistyped, the second is none that could be sent.
    odd = ["Authorization: Bearer geheim", "x-odd=a%0Ageheim"]
    monkeypatch.setenv(variable, ",".join([*odd, *(f"{name}=geheim" for name in names)]))
    with collecting() as collector, caplog.at_level(logging.DEBUG):
        assert sent(options_for(collector.url, headers={"x-token": Secret("ours")}), TRACE) == ""
    (headers,) = collector.headers
    assert headers["x-token"] == "ours"
    assert len(collector.roots()) == 1
    assert "geheim" not in repr(headers) + caplog.text


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with collecting() as collector:
        assert sent(options_for(collector.url), TRACE) == ""


def test_what_cannot_be_encoded_is_dropped() -> None:
    with collecting() as collector:
        # Half of a character: no UTF-8 can be made of it.
        why = sent(options_for(collector.url), replace(TRACE, name="\ud800"))
    assert why == "they cannot be encoded, or are too large for a request"
    assert collector.headers == []


def test_a_collector_that_is_not_well_for_a_moment_gets_them_later(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector, caplog.at_level(logging.DEBUG, "opentelemetry"):
        collector.answers = [503]
        assert sent(options_for(collector.url), TRACE) == ""
    assert (len(collector.headers), len(collector.roots())) == (2, 1)
    assert caplog.records == []


def test_an_answer_that_is_cut_behind_its_status_has_taken_them() -> None:
    with collecting() as collector:
        collector.cut = True
        assert sent(options_for(collector.url), TRACE) == ""
    assert len(collector.roots()) == 1


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (400, "it answers with 400"),
        (401, "it answers with 401"),
        (503, "it answers with 503"),
        (307, "it answers with 307, and no redirect is followed"),
    ],
)
def test_answers_that_take_nothing_are_told_of_and_none_leads_elsewhere(
    status: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting() as collector, caplog.at_level(logging.DEBUG, "opentelemetry"):
        collector.answers = [status]
        assert sent(options_for(collector.url, timeout=ONCE), TRACE) == why
    assert len(collector.headers) == 1
    assert caplog.records == []


def test_a_collector_that_is_away_or_does_not_answer_is_told_by_what_is_known() -> None:
    assert sent(options_for("http://127.0.0.1:1", timeout=ONCE), TRACE) == "there is no connection to it"
    with collecting() as collector:
        collector.free.clear()
        assert sent(options_for(collector.url, timeout=ONCE), TRACE) == "it did not answer within 0.5 s"


def test_a_certificate_is_checked_and_what_is_wrong_with_it_is_told(tmp_path: Path) -> None:
    for name in ("ours", "others"):
        (tmp_path / name).mkdir()
        write_certificates(tmp_path / name)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "ours" / "server.pem", tmp_path / "ours" / "server.key")

    def why(ca: Path) -> str:
        return sent(options_for(collector.url, ca=str(ca)), TRACE)

    with collecting(tls) as collector:
        assert why(tmp_path / "ours" / "ca.pem") == ""
        assert len(collector.roots()) == 1
        assert "traces.ca" in why(tmp_path / "others" / "ca.pem")
        assert "traces.ca" in why(tmp_path / "nowhere.pem")
    assert len(collector.headers) == 1


def test_a_server_without_tls_is_no_collector_that_is_trusted() -> None:
    with collecting() as collector:
        plain = options_for(collector.url.replace("http:", "https:"))
        assert sent(plain, TRACE) == "there is no connection to it"
    assert collector.paths == []


def test_nothing_is_sent_where_the_environment_turns_the_sdk_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with collecting() as collector:
        assert sent(options_for(collector.url), TRACE) == ""
    assert collector.headers == []


def test_what_others_log_of_their_own_exporters_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        out = OtlpTraces(options_for(collector.url), pytest.fail)
        collector.answers = [400]
        with caplog.at_level(logging.ERROR):
            OTLPSpanExporter(endpoint=f"{collector.url}/v1/traces").export([ReadableSpan("theirs", context=CONTEXT)])
        out.end(600.0)
    assert [record.name for record in caplog.records] == ["opentelemetry.exporter.otlp.proto.http.trace_exporter"]


@pytest.fixture
def _one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each span is a request of its own."""
    monkeypatch.setattr(module, "BATCH_MAX", 1)
    # A busy machine may need longer for the next try than a run's end would wait.
    monkeypatch.setattr(module, "FAILING_WAIT_S", 600.0)


def epoch(number: int) -> Span:
    return Span("epoch", number, number + 1, {"raycdc.epoch": number})


def epochs(collector: Collector) -> list[Attribute]:
    return [root.attributes["raycdc.epoch"] for root in collector.roots()]


@pytest.mark.usefixtures("_one_by_one")
def test_one_that_takes_nothing_is_told_of_once_and_once_more_when_it_does() -> None:
    warnings: list[str] = []
    with collecting() as collector:
        collector.answers = [400, 400, 400]
        out = OtlpTraces(options_for(collector.url), warnings.append)
        for number in range(5):
            out.put(epoch(number))
        out.end(600.0)
    assert epochs(collector) == [3, 4]
    assert warnings == [
        f"traces: {collector.url} does not take them: it answers with 400. The run goes on without its traces.",
        f"traces: {collector.url} takes them again; 3 spans were dropped meanwhile.",
    ]


@pytest.mark.usefixtures("_one_by_one")
def test_the_oldest_are_dropped_where_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPANS_MAX", 3)
    warnings: list[str] = []
    with collecting() as collector:
        collector.free.clear()
        out = OtlpTraces(options_for(collector.url), warnings.append)
        out.put(epoch(0))
        collector.asked.wait()
        for number in range(1, 6):
            out.put(epoch(number))
        collector.free.set()
        out.end(600.0)
    assert epochs(collector) == [0, 3, 4, 5]
    assert warnings == [f"traces: 2 spans were not sent to {collector.url} before the end of the run."]


@pytest.mark.usefixtures("_one_by_one")
def test_the_end_does_not_wait_for_one_that_hangs_and_says_what_is_lost() -> None:
    warnings: list[str] = []
    with collecting() as collector:
        collector.free.clear()
        out = OtlpTraces(options_for(collector.url), warnings.append)
        out.put(epoch(0))
        collector.asked.wait()
        out.put(epoch(1))
        out.end(0.0)
        out.put(epoch(2))
    assert warnings == [f"traces: 2 spans were not sent to {collector.url} before the end of the run."]


def test_an_end_without_traces_has_nothing_to_say() -> None:
    OtlpTraces(options_for("http://127.0.0.1:1"), pytest.fail).end(600.0)


def test_a_representation_shows_no_path_and_no_header(tmp_path: Path) -> None:
    options = TracesOptions(endpoint="http://127.0.0.1:4318/geheim", headers={"a": Secret("geheim")}, ca=str(tmp_path))
    out = OtlpTraces(options.model_copy(update={"ca": None}), pytest.fail)
    assert "geheim" not in repr(out)
    out.end(0.0)
    assert "geheim" not in repr(options.headers)
