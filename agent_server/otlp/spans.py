"""The spans of a diagnosis, from its transcript: windows, their tools, and calls of a language model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from whystall.agent_server.diagnosis.transcript import (
    Answered,
    AnswerFailed,
    Header,
    ObservationFailed,
    Observed,
    RanksJudged,
    Record,
)
from whystall.knowledge_base.models import Diagnosis
from whystall.knowledge_base.times import moment

MOST = 1000
"""Maximum spans of a diagnosis."""
_NS = 1_000_000_000
Value = str | int | float | bool


@dataclass(frozen=True)
class SpanData:
    """A span. Times in ns since the epoch; `parent`: index of a span before it, None: the diagnosis itself is first.
    `error`: a code; empty if it succeeded."""

    name: str
    start_ns: int
    end_ns: int
    parent: int | None
    attributes: dict[str, Value] = field(default_factory=dict)
    error: str = ""


def spans_of(diagnosis: Diagnosis, records: Sequence[Record]) -> list[SpanData]:
    """Return the spans of `diagnosis`, the first of all of it. `records`: of its transcript, empty if there is none;
    those of older versions have no times and give no spans.

    A window reaches from the record before to its own: it holds the observation and the judging. The same holds for its
    tools, as these are judged together.
    """
    start = _began(diagnosis, records)
    last = max((one.at_s or 0.0 for one in records), default=0.0)
    found = [SpanData("diagnosis", start, start + _ns(last), None, _of(diagnosis))]
    before = 0.0
    for record in records:
        if record.at_s is None:
            continue
        span = (start + _ns(before), start + _ns(record.at_s))
        before = record.at_s
        if isinstance(record, Observed | ObservationFailed | RanksJudged):
            found += _window(record, *span, len(found))
        elif isinstance(record, Answered | AnswerFailed):
            found.append(_call(record, *span))
        if len(found) >= MOST:
            break
    return found[:MOST]


def _window(record: Observed | ObservationFailed | RanksJudged, start: int, end: int, index: int) -> list[SpanData]:
    if isinstance(record, ObservationFailed):
        about: dict[str, Value] = {"whystall.tools": ", ".join(record.tools)}
        return [SpanData("window", start, end, 0, about, record.code.value)]
    if isinstance(record, RanksJudged):
        about, results = {"whystall.ranks": record.ranks}, [record.result]
    else:
        about = {"whystall.window.seconds": record.duration, "whystall.window.why": record.why}
        results = record.results
    return [
        SpanData("window", start, end, 0, about),
        *(
            SpanData(
                f"tool {result.get('tool', '')}",
                start,
                end,
                index,
                {
                    "whystall.status": str(result.get("status", "")),
                    "whystall.findings": len(result.get("findings", ())),
                },
            )
            for result in results
        ),
    ]


def _call(record: Answered | AnswerFailed, start: int, end: int) -> SpanData:
    """Attributes are named as in OpenTelemetry's conventions for generative AI."""
    if isinstance(record, AnswerFailed):
        return SpanData("chat", start, end, 0, {"gen_ai.operation.name": "chat"}, record.code)
    return SpanData(
        "chat",
        start,
        end,
        0,
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.usage.input_tokens": record.reply.tokens_in,
            "gen_ai.usage.output_tokens": record.reply.tokens_out,
        },
    )


def _of(diagnosis: Diagnosis) -> dict[str, Value]:
    about: dict[str, Value] = {
        "whystall.diagnosis": diagnosis.id,
        "whystall.target": diagnosis.target,
        "whystall.verdict": diagnosis.verdict.value,
        "whystall.cause": diagnosis.cause or "",
        "whystall.ticket": diagnosis.ticket or "",
        "gen_ai.request.model": diagnosis.reasoning.model if diagnosis.reasoning is not None else "",
    }
    return {name: value for name, value in about.items() if value != ""}


def _began(diagnosis: Diagnosis, records: Sequence[Record]) -> int:
    header = next((one for one in records if isinstance(one, Header)), None)
    at = moment(header.created if header is not None else diagnosis.created) or datetime.now(timezone.utc)
    return _ns(at.timestamp())


def _ns(seconds: float) -> int:
    return int(seconds * _NS)
