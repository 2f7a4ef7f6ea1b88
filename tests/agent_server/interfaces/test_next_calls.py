"""The next calls after a result: from its findings by a table, offered tools only, valid arguments."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from making import checkpoint, finding, victim

from whystall.agent_server.interfaces.mcp import next_calls
from whystall.agent_server.interfaces.mcp.next_calls import NextCalls, next_lines
from whystall.agent_server.interfaces.mcp.resources import Page
from whystall.agent_server.interfaces.mcp.toolsets import TOOLSETS, toolset_of
from whystall.agent_server.job_lookup.models import Resolution
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.tools.contract.kinds import KINDS
from whystall.tools.contract.params import parse_params
from whystall.tools.contract.result import Coverage, Status, ToolResult
from whystall.tools.host import offcputime
from whystall.tools.host.common.path_codes import MODES, WAITS
from whystall.tools.toolbox import registry

EVERY = {name for names in TOOLSETS.values() for name in names}
COVERAGE = Coverage(
    recording="r", host="h", kernel="k", start="", window_s=8, requested_s=8, target="pid 812", collectors=[]
)


def following(*offered: str, serves: bool = True, ended: int = 0) -> NextCalls:
    return NextCalls(lambda _tool, _recording: serves, set(offered) or EVERY, lambda pid: pid != ended)


def result(*findings: Any, tool: str = "offcputime") -> ToolResult[Any]:
    data = offcputime.Data()
    return ToolResult[offcputime.Data](
        tool=tool, status=Status.OK, findings=list(findings), coverage=COVERAGE, data=data
    )


def wait(code: str, pid: int = 812, share: float = 60, **words: str) -> Any:
    subject = {"pid": pid, "tid": pid, "comm": "train"}
    return finding("path.wait", subject=subject, severity="critical", words={"wait": code, **words}, window_pct=share)


def diagnosis(verdict: Verdict, *findings: Any) -> Diagnosis:
    who = victim().model_copy(update={"pid": 812, "tid": 812})
    return checkpoint(verdict=verdict, victim=who, findings=list(findings), chain=[], matches=[], steps=[])


def test_the_table_names_kinds_that_exist_and_calls_that_are_valid() -> None:
    tools = registry()
    families = {kind.partition(".")[0] for kind in KINDS}
    for name, calls in next_calls._table().items():
        kind, _, code = name.partition(":")
        assert kind in KINDS or kind in families or kind == "", name
        assert not code or code in WAITS or code in MODES, name
        for call in calls:
            arguments = {k: 812 if isinstance(v, str) else v for k, v in call.items() if k != "tool"}
            assert toolset_of(call["tool"]) is not None
            if call["tool"] != "diagnose":
                parse_params(tools.get(call["tool"]).params, arguments)


@pytest.mark.parametrize("label", ["server (830)", "worker (831 of 830)", "a (1) b (830)"])
def test_a_wait_leads_to_the_process_at_its_end(label: str) -> None:
    calls = following().after("offcputime", {"pid": 812}, result(wait("socket", root_by=label)), None)
    assert calls[0] == ("critical_path", {"pid": 830})
    assert calls[1] == ("net_latency", {"pid": 812})
    assert len(calls) == next_calls.MOST


def test_a_process_that_has_ended_is_not_proposed() -> None:
    found = result(wait("socket", root_by="server (830)"))
    assert following(ended=830).after("offcputime", {"pid": 812}, found, None)[0] == ("net_latency", {"pid": 812})
    with subprocess.Popen(["true"]) as short:
        short.wait()
    assert not NextCalls(lambda *_: True).runs(short.pid)
    assert NextCalls(lambda *_: True).runs(os.getpid())


@pytest.mark.parametrize("label", ["", "kworker/u8:0 (10759)", "no number"])
def test_a_wait_that_no_process_ends_leads_to_none(label: str) -> None:
    calls = following().after("offcputime", {"pid": 812}, result(wait("socket", by=label)), None)
    assert all(arguments.get("pid") in (812, None) for _, arguments in calls)


def test_only_offered_tools_are_proposed_and_none_twice() -> None:
    found = result(wait("lock", root_by="x (9)"), wait("file", share=20), wait("lock", share=10), tool="lock_wait")
    calls = following("lock_wait", "fileslower", "host_snapshot").after("lock_wait", {"pid": 812}, found, None)
    assert calls == [("fileslower", {"pid": 812, "min_ms": 1}), ("host_snapshot", {"duration": 5})]


def test_a_recording_is_judged_again_and_no_other_process_observed(tmp_path: Path) -> None:
    """Its processes may be of another host."""
    found = result(wait("socket", by="server (830)"), wait("file", share=20))
    calls = following().after("offcputime", {}, found, tmp_path)
    assert calls
    assert all(arguments["recording"] == str(tmp_path) and "pid" not in arguments for _, arguments in calls)
    assert "offcputime" not in {name for name, _ in calls}
    assert following(serves=False).after("offcputime", {}, found, tmp_path) == []


def test_no_process_of_another_host_is_proposed() -> None:
    far = wait("collective").model_copy(update={"subject": wait("file").subject.model_copy(update={"host": "node7"})})
    assert all("pid" not in arguments for _, arguments in following().after("hang", {}, result(far), None))
    traced = following().after("slow_node_check", {"traces": "/t"}, result(wait("collective")), None)
    assert all("pid" not in arguments for _, arguments in traced)


def test_an_uncertain_diagnosis_is_repeated_for_longer() -> None:
    asked = {"pid": 812, "duration": 12.0, "symptom": "slow"}
    for verdict in (Verdict.HEALTHY, Verdict.IDLE):
        calls = following().after("diagnose", asked, diagnosis(verdict), None)
        assert calls[0] == ("diagnose", {"pid": 812, "duration": 30.0, "symptom": "slow"})
    unsure = following().after("diagnose", asked, diagnosis(Verdict.INCONCLUSIVE, wait("device")), None)
    assert [name for name, _ in unsure][:2] == ["host_bound", "diagnose"]
    sure = following().after("diagnose", asked, diagnosis(Verdict.CONFIRMED, wait("device")), None)
    assert "diagnose" not in {name for name, _ in sure}


def test_a_job_leads_to_its_diagnosis_and_a_page_to_the_next() -> None:
    found = Resolution(status="found", pid=812)
    assert following().after("find_job", {"text": "x"}, found, None) == [("diagnose", {"pid": 812})]
    several = Resolution(status="several")
    assert following().after("find_job", {"text": "x"}, several, None) == []
    page = Page(uri="whystall://a", media_type="", text="x", offset=0, next_offset=10, total_chars=20)
    assert following().after("artifact_read", {}, page, None) == [("artifact_read", {"uri": page.uri, "offset": 10})]


@pytest.mark.parametrize(("lang", "heading"), [("en", "Next:"), ("zh", "下一步：")])
def test_the_text_has_a_call_per_line(lang: Any, heading: str) -> None:
    text = next_lines([("diagnose", {"pid": 1, "symptom": "a\nb\x1b"})], lang)
    first, second = text.splitlines()
    assert first == heading
    assert json.loads(second.removeprefix("- diagnose "))["pid"] == 1
    assert "\x1b" not in text
    assert next_lines([], lang) == ""
