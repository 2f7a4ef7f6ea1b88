"""Send metrics, findings and spans with the SDK of OpenTelemetry. Imported only where `[otlp]` has an endpoint.

Spans and logs of the past are emitted with their own times into a list, and sent as one request. The exporters are
called by our own loop: the SDK's batch processors would hold an unbounded backlog of threads and queues beside it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import requests
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from whystall.agent_server.otlp.spans import SpanData, Value
from whystall.agent_server.version import version
from whystall.tools.contract.findings import Finding, Severity
from whystall.tools.node.vantage import host_name

if TYPE_CHECKING:
    from whystall.agent_server.metrics.families import Family
    from whystall.agent_server.settings.sections.otlp import OtlpSettings
    from whystall.knowledge_base.models import Diagnosis

_NS = 1_000_000_000
_NAME = "whystall"
_FINDINGS = 500
_LEVELS = {
    Severity.INFO: SeverityNumber.INFO,
    Severity.MINOR: SeverityNumber.WARN,
    Severity.MAJOR: SeverityNumber.ERROR,
    Severity.CRITICAL: SeverityNumber.FATAL,
}


class Sender:
    """The three exporters. Methods block for at most `timeout_s`, and return whether the collector took it."""

    def __init__(self, settings: OtlpSettings) -> None:
        """Raises `ToolError` (bad_argument) if a header's secret cannot be read."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # `export` reports each failure once
        session = requests.Session()
        session.trust_env = False
        headers = {name: secret.read(f"[otlp.headers] {name}") for name, secret in settings.headers.items()}
        base, ca = settings.endpoint.rstrip("/"), str(settings.ca_file) if settings.ca_file else None
        seconds, gzip = settings.timeout_s, Compression.Gzip
        self._metrics = OTLPMetricExporter(
            f"{base}/v1/metrics", ca, headers=headers, timeout=seconds, compression=gzip, session=session
        )
        self._logs = OTLPLogExporter(
            f"{base}/v1/logs", ca, headers=headers, timeout=seconds, compression=gzip, session=session
        )
        self._spans = OTLPSpanExporter(
            f"{base}/v1/traces", ca, headers=headers, timeout=seconds, compression=gzip, session=session
        )
        self._resource = Resource(
            {"service.name": _NAME, "service.version": version(), "host.name": host_name()},
        )
        self._scope = InstrumentationScope(_NAME, version())

    def metrics(self, families: Sequence[Family], now: float) -> bool:
        """Send the values of `families` at `now`, s since the epoch."""
        made = [_metric(one, int(now * _NS)) for one in families if one.samples]
        scoped = [ScopeMetrics(self._scope, made, "")]
        data = MetricsData([ResourceMetrics(self._resource, scoped, "")])
        return self._metrics.export(data) is MetricExportResult.SUCCESS

    def traces(self, diagnosis: Diagnosis, spans: Sequence[SpanData]) -> bool:
        """Send `spans`, whose trace has an id made from that of the diagnosis: sent again it is the same."""
        return self._spans.export(_spans(self._resource, diagnosis.id, spans)) is SpanExportResult.SUCCESS

    def logs(self, diagnosis: Diagnosis, at_ns: int) -> bool:
        """Send the findings of `diagnosis` as records of its trace; `at_ns`: when it began."""
        trace, root = trace_id(diagnosis.id), _span_id(diagnosis.id, 0)
        context = set_span_in_context(
            NonRecordingSpan(SpanContext(trace, root, is_remote=False, trace_flags=TraceFlags(1)))
        )
        records = [
            ReadableLogRecord(_record(finding, diagnosis.id, at_ns, context), self._resource, self._scope)
            for finding in diagnosis.findings[:_FINDINGS]
        ]
        return not records or self._logs.export(records) is LogRecordExportResult.SUCCESS

    def close(self) -> None:
        """End the wait of a retry in progress, and close the connections."""
        for exporter in (self._metrics, self._logs, self._spans):
            exporter.shutdown()


def trace_id(diagnosis: str) -> int:
    """Return the id of the trace of a diagnosis."""
    return int.from_bytes(hashlib.sha256(diagnosis.encode()).digest()[:16], "big")


def _span_id(diagnosis: str, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{diagnosis}/{number}".encode()).digest()[:8], "big")


class _Ids(IdGenerator):
    """The ids of the spans of a diagnosis, in their order."""

    def __init__(self, diagnosis: str) -> None:
        self._diagnosis = diagnosis
        self._number = -1

    def generate_trace_id(self) -> int:
        return trace_id(self._diagnosis)

    def generate_span_id(self) -> int:
        self._number += 1
        return _span_id(self._diagnosis, self._number)


class _Collected(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def _spans(resource: Resource, diagnosis: str, spans: Sequence[SpanData]) -> list[ReadableSpan]:
    provider = TracerProvider(
        resource=resource, id_generator=_Ids(diagnosis), shutdown_on_exit=False, span_limits=SpanLimits()
    )
    collected = _Collected()
    provider.add_span_processor(collected)
    tracer = provider.get_tracer(_NAME, version())
    contexts: list[Context] = []
    for one in spans:
        parent = contexts[one.parent] if one.parent is not None else Context()
        span = tracer.start_span(one.name, parent, attributes=one.attributes, start_time=one.start_ns)
        if one.error:
            span.set_status(Status(StatusCode.ERROR, one.error))
        span.end(one.end_ns)
        contexts.append(set_span_in_context(span))
    return collected.spans


def _metric(family: Family, at_ns: int) -> Metric:
    since = int(family.since * _NS)
    points = [NumberDataPoint(dict(labels), since, at_ns, value) for labels, value in family.samples]
    if family.kind == "counter":
        data: Sum | Gauge = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(points)
    return Metric(family.name, family.about, "", data)


def _record(finding: Finding, diagnosis: str, at_ns: int, context: Context) -> LogRecord:
    subject = finding.subject.model_dump(exclude_none=True)
    about: dict[str, Value] = {
        "whystall.diagnosis": diagnosis,
        "whystall.finding": finding.id,
        "whystall.kind": finding.kind,
        "whystall.polarity": finding.polarity.value,
        **{f"whystall.subject.{name}": value for name, value in subject.items()},
        **{f"whystall.metric.{name}": value for name, value in finding.metrics.items()},
        **{f"whystall.attribute.{name}": value for name, value in finding.attributes.items()},
    }
    return LogRecord(
        timestamp=at_ns,
        observed_timestamp=at_ns,
        context=context,
        severity_text=finding.severity.value,
        severity_number=_LEVELS[finding.severity],
        body=finding.kind,
        attributes=about,
        event_name=f"{_NAME}.finding",
    )
