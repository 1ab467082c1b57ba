"""What goes over the wire to a collector, and what its answers mean."""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from raycdc.config.fields import Secret
from raycdc.config.traces import TracesOptions
from raycdc.references import Renewed
from raycdc.testing.servers.certificates import write_certificates
from raycdc.tracing.otlp import OtlpExporter
from raycdc.tracing.outbox import THREAD, NotTakenError
from raycdc.tracing.trace import Span, SpanEvent
from tests.collector import collecting

TRACE = Span(
    "epoch",
    1_000,
    9_000,
    {"raycdc.epoch": 4, "raycdc.tables": ("a.b",), "raycdc.table_rows": (3,), "raycdc.final": False},
    (SpanEvent("parked", 5_000, {"raycdc.table": "a.b"}),),
    "SinkError",
    (Span("seal", 1_000, 2_000, {}, children=(Span("reader", 1_000, 1_500, {"raycdc.reader": 0}),)),),
)


def sent(exporter: OtlpExporter, *traces: Span) -> str:
    """Why they were not taken; empty where they were. In a thread as the outbox has it."""
    why: list[str] = [""]

    def send() -> None:
        try:
            exporter.send([exporter.made(trace) for trace in traces])
        except NotTakenError as refused:
            why[0] = f"{refused} ({'again' if refused.again else 'never'})"

    thread = threading.Thread(target=send, name=THREAD)
    thread.start()
    thread.join()
    return why[0]


def test_a_trace_is_on_the_wire_with_its_times_parents_events_and_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with collecting() as collector:
        assert sent(OtlpExporter(TracesOptions(endpoint=f"{collector.url}/base/")), TRACE, TRACE) == ""
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
        exporter = OtlpExporter(TracesOptions(endpoint=collector.url, headers=headers))
        assert sent(exporter, TRACE) == ""
        token.write_text("second")
        assert sent(exporter, TRACE) == ""
        token.write_text("thi\nrd")
        assert sent(exporter, TRACE) == "traces.headers: x-token is not printable ASCII any more (again)"
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
        options = TracesOptions(endpoint=collector.url, headers={"x-token": Secret("ours")})
        assert sent(OtlpExporter(options), TRACE) == ""
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
        assert sent(OtlpExporter(TracesOptions(endpoint=collector.url)), TRACE) == ""


def test_traces_that_the_exporter_gives_up_by_itself_are_never_tried_again() -> None:
    with collecting() as collector:
        exporter = OtlpExporter(TracesOptions(endpoint=collector.url))
        collector.answers = [503]
        assert sent(exporter, TRACE) == "it answers with 503 (again)"
        # Half of a character: no UTF-8 can be made of it.
        why = sent(exporter, replace(TRACE, name="\ud800"))
        assert why == "they cannot be encoded, or are too large for a request (never)"
        assert sent(exporter, TRACE) == ""


def test_an_answer_that_is_cut_behind_its_status_has_taken_them() -> None:
    with collecting() as collector:
        collector.cut = True
        assert sent(OtlpExporter(TracesOptions(endpoint=collector.url)), TRACE) == ""
    assert len(collector.roots()) == 1


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (400, "it answers with 400 (never)"),
        (401, "it answers with 401 (again)"),
        (503, "it answers with 503 (again)"),
        (307, "it answers with 307, and no redirect is followed (again)"),
    ],
)
def test_answers_say_whether_to_try_again_and_none_leads_elsewhere(
    status: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting() as collector, caplog.at_level(logging.DEBUG, "opentelemetry"):
        collector.answers = [status]
        assert sent(OtlpExporter(TracesOptions(endpoint=collector.url)), TRACE) == why
    assert len(collector.headers) == 1
    assert caplog.records == []


def test_a_collector_that_is_away_or_does_not_answer_is_told_by_what_is_known() -> None:
    away = TracesOptions(endpoint="http://127.0.0.1:1")
    assert sent(OtlpExporter(away), TRACE) == "there is no connection to it (again)"
    with collecting() as collector:
        collector.free.clear()
        hangs = TracesOptions(endpoint=collector.url, timeout=timedelta(seconds=0.3))
        assert sent(OtlpExporter(hangs), TRACE) == "it did not answer within 0.3 s (again)"


def test_a_certificate_is_checked_and_what_is_wrong_with_it_is_told(tmp_path: Path) -> None:
    for name in ("ours", "others"):
        (tmp_path / name).mkdir()
        write_certificates(tmp_path / name)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "ours" / "server.pem", tmp_path / "ours" / "server.key")

    def why(ca: Path) -> str:
        return sent(
            OtlpExporter(TracesOptions(endpoint=collector.url, ca=str(ca), timeout=timedelta(minutes=1))), TRACE
        )

    with collecting(tls) as collector:
        assert why(tmp_path / "ours" / "ca.pem") == ""
        assert len(collector.roots()) == 1
        assert "traces.ca" in why(tmp_path / "others" / "ca.pem")
        assert "traces.ca" in why(tmp_path / "nowhere.pem")
    assert len(collector.headers) == 1


def test_a_server_without_tls_is_no_collector_that_is_trusted() -> None:
    with collecting() as collector:
        plain = TracesOptions(endpoint=collector.url.replace("http:", "https:"))
        assert sent(OtlpExporter(plain), TRACE) == "there is no connection to it (again)"
    assert collector.paths == []


def test_nothing_is_sent_where_the_environment_turns_the_sdk_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with collecting() as collector:
        assert sent(OtlpExporter(TracesOptions(endpoint=collector.url)), TRACE) == ""
    assert collector.headers == []


def test_what_others_log_of_their_own_exporters_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        exporter = OtlpExporter(TracesOptions(endpoint=collector.url))
        collector.answers = [400]
        with pytest.raises(NotTakenError), caplog.at_level(logging.ERROR):
            exporter.send([exporter.made(TRACE)])
    assert [record.name for record in caplog.records] == ["opentelemetry.exporter.otlp.proto.http.trace_exporter"]


def test_a_representation_shows_no_path_and_no_header(tmp_path: Path) -> None:
    options = TracesOptions(endpoint="http://127.0.0.1:4318/geheim", headers={"a": Secret("geheim")}, ca=str(tmp_path))
    assert "geheim" not in repr(OtlpExporter(options.model_copy(update={"ca": None})))
    assert "geheim" not in repr(options.headers)
