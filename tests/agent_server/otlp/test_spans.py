"""The spans of a diagnosis that a language model drove, by the times in its transcript."""

from __future__ import annotations

from typing import Any

from whystall.agent_server.diagnosis.transcript import (
    Answered,
    AnswerFailed,
    Header,
    ObservationFailed,
    Observed,
    Record,
    Request,
)
from whystall.agent_server.llm.wire import Reply
from whystall.agent_server.otlp.spans import MOST, spans_of
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.tools.contract.errors import ErrorCode

DIAGNOSIS = Diagnosis(id="d", created="2026-01-01T00:01:00Z", target="pid 7", verdict=Verdict.LIKELY, cause="slow_disk")
BEGAN = 1_767_225_600 * 10**9  # 2026-01-01T00:00:00Z


def look(at_s: float | None, **more: Any) -> Observed:
    results = [{"tool": "fileslower", "status": "ok", "findings": [1, 2]}]
    return Observed(at_s=at_s, tools=["fileslower"], duration=2.0, why="asked", options={}, results=results, **more)


def header() -> Header:
    return Header(at_s=0.0, whystall="0", id="d", created="2026-01-01T00:00:00Z", symptom="", causes="", tools="")


def test_windows_tools_and_calls_of_a_model_follow_each_other() -> None:
    records: list[Record] = [
        header(),
        Request(at_s=1.0, kept=0, messages=[]),
        Answered(at_s=4.0, reply=Reply(tokens_in=900, tokens_out=80)),
        look(7.0),
        ObservationFailed(
            at_s=8.0, tools=["biolatency"], options={}, code=ErrorCode.NO_SUCH_PROCESS, message="no", remedy=""
        ),
        Request(at_s=8.5, kept=0, messages=[]),
        AnswerFailed(at_s=9.0, code="timeout", message="late"),
    ]
    spans = spans_of(DIAGNOSIS, records)
    times = [(s.name, (s.start_ns - BEGAN) / 1e9, (s.end_ns - BEGAN) / 1e9, s.parent, s.error) for s in spans]
    assert times == [
        ("diagnosis", 0.0, 9.0, None, ""),
        ("chat", 1.0, 4.0, 0, ""),
        ("window", 4.0, 7.0, 0, ""),
        ("tool fileslower", 4.0, 7.0, 2, ""),
        ("window", 7.0, 8.0, 0, "no_such_process"),
        ("chat", 8.5, 9.0, 0, "timeout"),
    ]
    assert spans[0].attributes["whystall.cause"] == "slow_disk"
    assert spans[1].attributes["gen_ai.usage.input_tokens"] == 900
    assert spans[3].attributes == {"whystall.status": "ok", "whystall.findings": 2}


def test_a_transcript_without_times_or_none_gives_the_diagnosis_alone() -> None:
    for records in ([], [header().model_copy(update={"at_s": None}), look(None)]):
        (root,) = spans_of(DIAGNOSIS, records)
        assert root.name == "diagnosis"
        assert root.start_ns == root.end_ns


def test_the_number_of_spans_is_bounded() -> None:
    assert len(spans_of(DIAGNOSIS, [header(), *(look(float(n)) for n in range(1000))])) == MOST
