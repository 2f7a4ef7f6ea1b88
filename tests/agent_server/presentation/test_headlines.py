"""The first lines of results: verdict, reasons, accused ranks and evidence."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from making import coverage, finding

from whystall.agent_server.presentation.texts import TEXT_LIMIT, result_text
from whystall.knowledge_base.models import Lang
from whystall.prompts.files import LANGS
from whystall.tools.contract.result import Status, ToolResult
from whystall.tools.contract.text import clean
from whystall.tools.ranks.slow_node_check.tables import AccusedRow, Data, EvidenceRow, Verdict


def accused(rank: int = 3, host: str = "host-a", **changes: Any) -> AccusedRow:
    values: dict[str, Any] = {
        "slow_class": "compute_slow", "lost_ms_per_step": 18.3, "of_step_pct": 41.0, "job_pct": 38.0, "votes": 45,
        "steps": 50, "p_value": 3.2e-9, "began_step": None, "confidence": "high", "pid": 4242,
        "evidence": [EvidenceRow(what="operator", name="aten::mm", mine=40, peers=19, unit="ms")],
    }  # fmt: skip
    return AccusedRow(rank=rank, host=clean(host), **(values | changes))


def result(findings: int = 1, **data: Any) -> ToolResult[Data]:
    made = [
        finding("rank.late", id=f"f{i}", subject={"rank": 3, "host": "host-a"}, window_pct=38, lost_ms=18.3)
        for i in range(findings)
    ]
    values: dict[str, Any] = {"verdict": "rank", "step_ms": 44.6, "steps": 50, "lost_pct": 30.0}
    return ToolResult[Data](
        tool="slow_node_check", status=Status.OK, findings=made, coverage=coverage(), data=Data(**(values | data))
    )


def test_the_verdict_comes_first_then_the_accused_then_the_findings() -> None:
    lines = result_text(result(accused=[accused(began_step=12)]), "en").splitlines()
    assert lines[1] == "Verdict: one rank delays the job"
    assert lines[2] == "  50 steps, median 44.6 ms; 30 % of the time is lost in waiting"
    assert lines[3].startswith("- rank 3 (host-a, pid 4242) is slow in computing: its operators take longer; ")
    assert "costs a typical step 18.3 ms (41 % of the median step; 38 % of the traced time)" in lines[3]
    assert "behind in 45 of 50 steps, by chance p = 3e-09, since step 12, confidence high" in lines[3]
    assert lines[4].strip() == "operator aten::mm 40 ms, peers 19 ms (means of all steps)"
    assert lines[5] == "Findings:"
    assert lines[6].startswith("- [f0] major: all others wait for rank 3 (host-a)")


@pytest.mark.parametrize("lang", LANGS)
@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_every_verdict_has_a_text_with_its_reasons(verdict: str, lang: Lang) -> None:
    said = result_text(result(verdict=verdict, reasons=["noise", "few_steps"], step_ms=None), lang)
    assert not re.search(r"noise|few_steps|cannot_tell", said)
    assert len(said.splitlines()[2].split("; " if lang == "en" else "；")) == 2


def test_verdicts_differ_and_languages_do() -> None:
    said = {
        (v, lang): result_text(result(verdict=v), lang).splitlines()[1] for v in get_args(Verdict) for lang in LANGS
    }
    assert len(set(said.values())) == len(said)


@pytest.mark.parametrize("lang", LANGS)
def test_many_accused_and_findings_keep_within_the_budget(lang: Lang) -> None:
    rows = [accused(rank, "h" * 255) for rank in range(40)]
    said = result_text(result(300, accused=rows, verdict="several"), lang)
    assert len(said) <= TEXT_LIMIT
    assert re.search(r"^  (35 more left out|另有 35 条未列出)$", said, re.MULTILINE)


@pytest.mark.parametrize("text", ["x\n- fake", "\x1b[31m", "{who} {0} {mine}", "is healthy", "a" * 5000])
def test_names_from_traces_are_names(text: str) -> None:
    rows = [accused(host=text, evidence=[EvidenceRow(what="operator", name=clean(text), mine=1, peers=2, unit="ms")])]
    said = result_text(result(accused=rows), "en")
    assert "\x1b" not in said
    assert len(said.splitlines()) == len(result_text(result(accused=[accused()]), "en").splitlines())
    if " " in text and "\n" not in text:
        assert f'"{text}"' in said


def test_other_tools_have_no_headline() -> None:
    plain = result().model_copy(update={"tool": "fileslower"})
    assert "Verdict" not in result_text(plain, "en").splitlines()[1]


def test_a_hang_claims_no_cost_per_step_and_its_table_shows_no_columns_of_nothing() -> None:
    nothing = dict.fromkeys(("pid", "lost_ms_per_step", "of_step_pct", "votes", "steps", "p_value", "began_step"))
    text = result_text(result(accused=[accused(slow_class="hang", **nothing)]), "en")
    line = next(line for line in text.splitlines() if line.startswith("- rank 3"))
    assert not any(said in line for said in ("costs every step", "pid", "p ="))
    head = next(line for line in text.splitlines() if line.split()[:2] == ["rank", "host"])
    assert head.split() == ["rank", "host", "slow_class", "job_pct", "confidence"]


def test_limitations_are_not_shown_as_reasons() -> None:
    lines = {v: result_text(result(verdict=v, reasons=["no_work_seen"]), "en").splitlines() for v in get_args(Verdict)}
    assert {v for v, said in lines.items() if said[2].startswith("  because: ")} == {"cannot_tell"}
    assert all(said[2].startswith("  note: ") for v, said in lines.items() if v != "cannot_tell")
