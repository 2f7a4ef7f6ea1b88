"""What is exported by OTLP, as a real HTTP server receives it, and that no diagnosis waits for one."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from watch_status import HOSTILE, status, write_status

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.otlp.export import OtlpExport
from whystall.agent_server.settings.sections.otlp import OtlpSettings
from whystall.knowledge_base.models import Diagnosis

pytestmark = pytest.mark.thorough
RECORDED = Path(__file__).parents[2] / "recorded/checkpoint"
_FORMS: dict[str, Any] = {
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
}


class Collector:
    """A collector of OpenTelemetry: takes what is posted, or refuses it with `refuse`; answers once `released`."""

    def __init__(self) -> None:
        self.taken: dict[str, list[Any]] = {path: [] for path in _FORMS}
        self.keys: set[str | None] = set()
        self.refuse = 0
        self.reached, self.released = threading.Event(), threading.Event()
        self.released.set()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.reached.set()
                collector.released.wait(60)
                collector.keys.add(self.headers["x-key"])
                if not collector.refuse:
                    message = _FORMS[self.path]()
                    message.ParseFromString(gzip.decompress(body))
                    collector.taken[self.path].append(message)
                self.send_response(collector.refuse or 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    monkeypatch.setenv("OTLP_KEY", "s3cret")
    write_status(tmp_path, status(HOSTILE))
    with App(tmp_path / "kb.db").closing() as app:
        yield app


def settings(url: str, **more: Any) -> OtlpSettings:
    return OtlpSettings.model_validate(
        {"endpoint": url, "headers": {"x-key": {"env": "OTLP_KEY"}}, "timeout_s": 1.0, **more}
    )


def diagnosed(app: App) -> Diagnosis:
    return anyio.run(lambda: app.diagnose(DiagnoseParams(symptom="training stalls"), source=RECORDED))


def attributes(one: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in one.attributes}


def test_metrics_findings_and_spans_of_a_diagnosis_arrive(app: App, collector: Collector) -> None:
    diagnosed(app)  # before the server started
    export = OtlpExport(app.kb(), settings(collector.url))
    diagnosis = diagnosed(app)
    export.tick()
    assert collector.taken["/v1/traces"] == [], "its transcript may still be written"
    export.tick()
    app.kb().save_diagnosis(diagnosis.model_copy(update={"ticket": "1"}))  # stored again, and sent once
    export.tick()
    export.tick()
    assert collector.keys == {"s3cret"}

    (sent,) = collector.taken["/v1/metrics"][0].resource_metrics
    assert attributes(sent.resource)["service.name"] == "whystall"
    metrics = {metric.name: metric for metric in sent.scope_metrics[0].metrics}
    seconds = metrics["whystall_watch_stall_seconds_total"].sum
    assert seconds.is_monotonic
    assert sorted(point.as_double for point in seconds.data_points) == [1.0, 42.5]
    assert seconds.data_points[0].start_time_unix_nano > 0
    assert attributes(metrics["whystall_watch_step_seconds"].gauge.data_points[0])["rank"] == "3"

    (request,) = collector.taken["/v1/traces"]
    spans = request.resource_spans[0].scope_spans[0].spans
    root, *others = spans
    assert root.name == "diagnosis"
    assert attributes(root)["whystall.diagnosis"] == diagnosis.id
    assert attributes(root)["whystall.cause"] == diagnosis.cause
    windows = [span for span in others if span.name == "window"]
    assert [attributes(span)["whystall.window.why"] for span in windows] == [step.why for step in diagnosis.steps]
    assert {span.parent_span_id for span in windows} == {root.span_id}
    for window, step in zip(windows, diagnosis.steps, strict=True):
        tools = [span for span in others if span.parent_span_id == window.span_id]
        assert {span.name for span in tools} == {f"tool {name}" for name in step.tools}
    for span in others:
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano

    (request,) = collector.taken["/v1/logs"]
    records = request.resource_logs[0].scope_logs[0].log_records
    assert [attributes(one)["whystall.finding"] for one in records] == [finding.id for finding in diagnosis.findings]
    assert {(one.trace_id, one.span_id) for one in records} == {(root.trace_id, root.span_id)}


def test_a_collector_that_does_not_answer_holds_up_nobody_and_gets_it_later(app: App, collector: Collector) -> None:
    export = OtlpExport(app.kb(), settings(collector.url, signals=["metrics", "traces"]))
    export.tick()
    collector.reached.clear()
    collector.released.clear()
    tick = threading.Thread(target=export.tick)
    tick.start()
    assert collector.reached.wait(60)
    diagnosis = diagnosed(app)  # completes while the collector does not answer
    assert app.kb().get_diagnosis(diagnosis.id).id == diagnosis.id
    tick.join(60)
    assert not tick.is_alive(), "a request has an end"
    collector.released.set()
    collector.refuse = 400
    export.tick()
    export.tick()
    assert collector.taken["/v1/traces"] == []
    collector.refuse = 0
    export.tick()
    (request,) = collector.taken["/v1/traces"]
    assert attributes(request.resource_spans[0].scope_spans[0].spans[0])["whystall.diagnosis"] == diagnosis.id


def test_a_backlog_is_bounded(app: App, collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    export = OtlpExport(app.kb(), settings(collector.url, signals=["traces"]))
    with app.kb().transaction():
        for number in range(600):
            made = {"id": f"d{number}", "created": "2026-01-01T00:00:00Z", "target": "t", "verdict": "inconclusive"}
            app.kb().save_diagnosis(Diagnosis.model_validate(made))
    for _ in range(40):
        export.tick()
    names = [
        attributes(request.resource_spans[0].scope_spans[0].spans[0])["whystall.diagnosis"]
        for request in collector.taken["/v1/traces"]
    ]
    assert names == [f"d{number}" for number in range(100, 600)]
    assert "100 diagnoses are not exported" in caplog.text


def test_the_exporter_stops_while_a_collector_does_not_answer(app: App, collector: Collector) -> None:
    export = OtlpExport(app.kb(), settings(collector.url))
    collector.released.clear()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(export.run)
            await anyio.to_thread.run_sync(collector.reached.wait)
            group.cancel_scope.cancel()

    anyio.run(main)


def test_what_a_hostile_host_is_called_arrives_as_text(app: App, collector: Collector) -> None:
    OtlpExport(app.kb(), settings(collector.url, signals=["metrics"])).tick()
    (request,) = collector.taken["/v1/metrics"]
    assert "\\x0a" in str(request)
    assert "\u202e" not in str(request)
