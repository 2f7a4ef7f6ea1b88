"""What a model may see beyond the target's findings: other processes, long windows, pages, past diagnoses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import model_server
import pytest
from driven_cases import Watching, concluding, data, driven, say
from model_http import Policy, Request, Turn
from model_reading import Reading
from recordings import COMM, PID, Scene, checkpoints
from solving import new_case, solve

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis import diagnose, rules, transcript_files
from whystall.agent_server.diagnosis import replay as replaying
from whystall.agent_server.diagnosis.artifact_pages import PAGE_BYTES, page
from whystall.agent_server.diagnosis.budget import Limits
from whystall.agent_server.diagnosis.functions import Functions
from whystall.agent_server.diagnosis.grounding.links import named_processes
from whystall.agent_server.diagnosis.observer import LiveObserver, RecordedObserver
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.diagnosis.past_incidents import KnownIncidents
from whystall.agent_server.llm.wire import ToolCall
from whystall.agent_server.presentation.texts import diagnosis_text
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.prompts.render import LANGS
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Finding, Interval, Polarity, Subject
from whystall.tools.contract.params import TargetParams
from whystall.tools.contract.registry import ArtifactContent
from whystall.tools.recording.home import home
from whystall.tools.recording.judging import write_artifact
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import resolve
from whystall.tools.toolbox import registry

pytestmark = pytest.mark.thorough

RECORDED = Path(__file__).parents[2] / "recorded"
TOOLS = {tool.name: tool for tool in registry().all()}
LOOKS = ["fileslower", "offcputime", "host_snapshot"]
NEIGHBOUR = 5000
"""A process that the findings of a calm job name."""


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


@cache
def calm() -> Recording:
    """A job that nothing delays, beside a process that computes."""
    return Scene().thread(user=97, system=1).process(PID, COMM, cpu=98).process(NEIGHBOUR, "other", cpu=60).build()


@cache
def stalled() -> Recording:
    """A job that stalls on its checkpoints; its pid is that of the calm one."""
    return checkpoints(Scene().thread(user=65, system=2, blocked=30).disk("loop7", busy=99, await_ms=200)).build()


def about(request: Request, pid: int) -> str:
    """The latest finding that is about the process `pid`."""
    findings = Reading(request).findings.values()
    return next(f["id"] for f in reversed(list(findings)) if f["id"].startswith("F") and f["subject"].get("pid") == pid)


def looking(*then: Turn, **arguments: Any) -> Policy:
    """Observe the neighbour first, then give the answers of `then`, the last one for ever."""
    left = list(then)

    def answer(request: Request) -> Turn:
        if not any(m["role"] == "tool" for m in request.messages):
            given = {"finding": about(request, NEIGHBOUR), "role": "subject", "tools": LOOKS, **arguments}
            return say(("observe_process", given))
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


# --- another process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_what_another_process_suffers_from_is_seen_and_shown_apart(protocol: str) -> None:
    watching = Watching(calm(), other=stalled())
    found = driven(watching, looking(concluding()), protocol=protocol)
    assert [(a.pid, a.tools) for a in watching.asked if a.pid is not None] == [(NEIGHBOUR, LOOKS)]
    returned = data(found.answers[0])[0]
    ids = [f["id"] for result in returned["results"] for f in result["findings"]]
    assert returned["process"] == NEIGHBOUR
    assert "P1" in ids
    assert all(id.startswith("P") for id in ids)
    assert len(ids) == len(set(ids))
    (other,) = found.reasoning.others
    assert (other.pid, other.role, other.tools) == (NEIGHBOUR, "subject", LOOKS)
    assert "file.slow_sync" in {f.kind for f in other.findings if f.polarity is Polarity.ABNORMAL}
    for lang in LANGS:
        assert str(NEIGHBOUR) in diagnosis_text(found.diagnosis, load_causes(), lang)
    assert "no evidence for the verdict" in diagnosis_text(found.diagnosis, load_causes(), "en")


CLAIMS = [
    ("is_symptom_of", "P1", "sync_checkpoint_write"),
    ("causes", "P1", "F1"),
    ("waits_for", "F1", "P1"),
    ("explains_share_of", "P2", "F1"),
    ("rules_out", "P1", "cpu_contention"),
    ("precedes", "P1", "P2"),
]


def test_findings_of_another_process_are_evidence_for_no_verdict() -> None:
    """The other one stalls for sure, has the name and the pid of the victim, and the model insists."""
    narrative = "{P1.window_pct} of the time goes to {P1.path}"
    insists = concluding("sync_checkpoint_write", *CLAIMS, narrative=narrative)
    first = say(*[("observe_process", {"finding": f"F{n}", "role": "subject", "tools": LOOKS}) for n in (1, 2, 8)])
    watching = Watching(calm(), other=stalled())
    found = driven(watching, [first, insists, insists, insists])
    assert {a.pid for a in watching.asked if a.pid} == {PID, NEIGHBOUR}
    assert (found.diagnosis.verdict, found.diagnosis.cause, found.diagnosis.chain) == (Verdict.HEALTHY, None, [])
    assert found.reasoning.claims == []
    assert found.reasoning.unverified.narrative == ""
    assert set(found.reasoning.struck) == {"no_finding", "contradicted", "placeholder"}
    assert all(f.id.startswith("F") for f in found.diagnosis.findings)
    assert found.diagnosis.culprit is None


def test_evidence_of_another_process_confirms_nothing_that_is_only_likely() -> None:
    """One mechanism alone shows the cause here; the other process shows both."""
    half = checkpoints(Scene().thread(user=65, system=2, blocked=30)).build()
    by_rules = solve(RecordedObserver(half), "slow")
    first = say(("observe_process", {"finding": "F1", "role": "subject", "tools": LOOKS}))
    found = driven(Watching(half, other=stalled()), [first, *[concluding("sync_checkpoint_write")] * 3])
    assert found.reasoning.others
    assert (found.diagnosis.verdict, found.diagnosis.cause) == (by_rules.verdict, by_rules.cause)
    assert (found.diagnosis.missing, found.diagnosis.explained_pct) == (by_rules.missing, by_rules.explained_pct)
    assert found.diagnosis.culprit == by_rules.culprit


@pytest.mark.parametrize("name", sorted(path.parent.name for path in RECORDED.glob("*/manifest.json")))
def test_observing_a_stalled_process_changes_no_verdict(name: str) -> None:
    """Every recorded case, with a process beside it that stalls on its disk."""

    def first(request: Request) -> Turn:
        if any(m["role"] == "tool" for m in request.messages):
            return concluding()
        ids = [id for id, f in Reading(request).findings.items() if f["subject"].get("pid")][:3]
        return say(*[("observe_process", {"finding": id, "role": "subject", "tools": LOOKS}) for id in ids])

    recording = Recording.open(RECORDED / name, COLLECTORS)
    watching = Watching(recording, other=stalled())
    found = driven(watching, first)
    assert [a.pid for a in watching.asked if a.pid], "nothing was observed"
    plain = driven(Watching(recording), [concluding(), concluding()])
    parts = {"verdict", "cause", "missing", "victim", "explained_pct"}
    assert found.diagnosis.model_dump(include=parts) == plain.diagnosis.model_dump(include=parts)


@pytest.mark.parametrize(
    "arguments",
    [
        {"finding": "F9", "role": "culprit", "tools": ["fileslower"]},
        {"finding": "F9", "role": "subject", "tools": []},
        {"finding": "F9", "role": "subject", "tools": ["shell"]},
        {"finding": "F9", "role": "subject", "tools": "fileslower"},
        {"finding": "F9", "role": "subject", "tools": [{}]},
        {"finding": "F9", "role": "subject"},
        {"finding": "F9", "role": "subject", "tools": ["fileslower"] * 9},
        {"finding": "F9", "role": "subject", "tools": ["fileslower"], "pid": 1},
        {"finding": "F9", "role": "subject", "tools": ["fileslower"], "duration": 1e9},
        {"finding": "F9", "role": "subject", "tools": ["fileslower"], "duration": True},
        {"finding": "F9", "role": "subject", "tools": ["fileslower"], "duration": float("nan")},
        {"finding": 9, "role": "subject", "tools": ["fileslower"]},
    ],
    ids=str,
)
def test_a_request_for_a_process_is_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolError) as refused:
        functions().read(ToolCall(id="1", name="observe_process", arguments=json.dumps(arguments)))
    assert refused.value.code is ErrorCode.BAD_ARGUMENT


@pytest.mark.parametrize("offset", [-1, 1.5, True, "1"])
def test_an_offset_is_a_whole_number(offset: Any) -> None:
    given = json.dumps({"uri": "whystall://artifacts/a", "offset": offset})
    with pytest.raises(ToolError, match="offset: "):
        functions().read(ToolCall(id="1", name="read_artifact", arguments=given))


def functions(duration: float | None = 12.0, extended: bool = True) -> Functions:
    tools = list(TOOLS.values())
    return Functions(tools, [], duration=duration, longest=150.0, extended=extended, searchable=True)


def test_what_is_offered_depends_on_the_case() -> None:
    further = {"observe_process", "read_artifact", "past_diagnoses"}
    assert further <= set(functions().names)
    assert further - set(functions(None).names) == {"observe_process"}, "a recording has no processes"
    assert not further & set(functions(extended=False).names)
    fields = {f.name: f.parameters["properties"] for f in functions().offered()}
    window = fields["fileslower"]["duration"]
    assert (window["minimum"], window["default"], window["maximum"]) == (6.0, 12.0, 150.0)
    assert "pid" not in fields["observe_process"]


def test_only_what_a_finding_of_the_case_names_is_observed() -> None:
    named = [("F999", "subject"), ("P1", "subject"), ("1", "subject"), ("F8", "holder"), ("F6", "subject")]
    calls = [("observe_process", {"finding": id, "role": role, "tools": ["fileslower"]}) for id, role in named]
    watching = Watching(calm(), other=stalled())
    found = driven(watching, [say(*calls), concluding(), concluding()])
    assert [data(text)[0]["error"] for text in found.answers[: len(calls)]] == ["not_found"] * len(calls)
    assert all(a.pid is None for a in watching.asked)
    assert found.reasoning.others == []


@pytest.mark.parametrize(("seconds", "windows"), [(600, 3), (20, 1)])
def test_windows_on_others_are_of_the_budget_and_not_repeated_for_ever(seconds: int, windows: int) -> None:
    repeated = [say(("observe_process", {"finding": "F8", "role": "subject", "tools": ["fileslower"]}))] * 9
    watching = Watching(calm(), other=stalled())
    found = driven(watching, repeated, limits=Limits(seconds=seconds))
    assert len([a for a in watching.asked if a.pid]) == windows
    assert found.reasoning.stopped == "repetition"


@pytest.mark.parametrize(
    ("kind", "attributes", "named"),
    [
        ("path.wait", {"wait": "lock", "by": "db (813 of 812)"}, {"subject": 7, "waker": 812, "holder": 812}),
        ("path.wait", {"wait": "lock", "by": "a (3 of 2)", "root_by": "b (5 of 4)"}, {"waker": 4, "holder": 4}),
        ("path.wait", {"wait": "queue", "by": "loader (99)"}, {"waker": 99, "peer": 99}),
        ("path.wait", {"wait": "lock", "by": "evil (12) of nothing"}, {"subject": 7}),
        ("path.wait", {"wait": "lock", "by": "x (99999999999)"}, {"subject": 7}),
    ],
)
def test_a_finding_names_processes_by_what_they_are(
    kind: str, attributes: dict[str, str], named: dict[str, int]
) -> None:
    subject, interval = Subject(type="thread", pid=7, tid=8, comm="train"), Interval(start_ns=0, end_ns=1)
    finding = Finding(
        kind=kind, subject=subject, interval=interval, metrics={}, attributes=attributes, polarity=Polarity.ABNORMAL
    )
    found = named_processes(finding)
    assert {"subject": 7, **named} == found


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator[Callable[[], int]]:
    """Starts processes that sleep."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> int:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_process_of_this_host_is_observed_if_it_ran_when_it_was_named(sleeper: Callable[[], int]) -> None:
    target, other, ending = sleeper(), sleeper(), sleeper()
    observer = LiveObserver(resolve(TargetParams(pid=target)), "procfs", None)
    tools = [TOOLS["host_snapshot"]]

    async def observe() -> None:
        (result,) = await observer.observe(tools, 0.2, {})
        named_in = result.coverage.recording
        (seen,) = await observer.observe_process(other, named_in, tools, 0.2)
        assert seen.coverage.target.startswith(f"pid {other}")
        assert observer.recording is not None
        assert observer.recording.manifest.id == named_in, "the window on the target stays the last one"
        os.kill(ending, 9)
        os.waitpid(ending, 0)
        late = sleeper()
        for pid, recording, code in (
            (ending, named_in, ErrorCode.NO_SUCH_PROCESS),
            (late, named_in, ErrorCode.NO_SUCH_PROCESS),
            (other, "of nowhere", ErrorCode.NO_SUCH_PROCESS),
            (target, named_in, ErrorCode.BAD_ARGUMENT),
            (os.getpid(), named_in, ErrorCode.BAD_ARGUMENT),
        ):
            with pytest.raises(ToolError) as refused:
                await observer.observe_process(pid, recording, tools, 0.2)
            assert refused.value.code is code, pid

    anyio.run(observe)


# --- windows, pages, past diagnoses -----------------------------------------------------------------------------------


def test_a_long_window_is_within_a_quarter_and_the_rest_of_the_budget() -> None:
    watching = Watching(calm())
    turns = [say((name, {"duration": 25})) for name in ("fileslower", "offcputime", "biolatency", "runqlat")]
    too_long = say(("fileslower", {"duration": 26}))
    found = driven(watching, [too_long, *turns, concluding(), concluding()], limits=Limits(seconds=100))
    assert [a.duration for a in watching.asked if a.duration > 12] == [25, 25, 25]
    assert "less than or equal to 25" in found.answers[0]
    assert "are left of the budget" in data(found.answers[4])[0]["message"]


def latest(request: Request) -> str:
    """The uri of an artifact of the latest result."""
    results = [part for m in request.messages if m["role"] == "tool" for part in data(m["content"])]
    found = [part["artifacts"] for result in results for part in result.get("results", [result]) if "artifacts" in part]
    return str(found[-1][0]["uri"]) if found else "whystall://artifacts/none"


def test_pages_of_the_cases_own_artifacts_are_read() -> None:
    def answer(request: Request) -> Turn:
        returned = sum(m["role"] == "tool" for m in request.messages)
        if returned == 0:
            return say(("offcputime", {}))
        if returned > 1:
            return concluding()
        (home() / "artifacts" / "00-secret.txt").write_text("of another job")
        wrong = ["whystall://artifacts/00-secret.txt", "whystall://artifacts/../knowledge.db", "/etc/passwd", ""]
        asked = [{"uri": latest(request)}, {"uri": latest(request), "offset": 1 << 40}, *({"uri": u} for u in wrong)]
        return say(*[("read_artifact", arguments) for arguments in asked])

    found = driven(RecordedObserver(stalled()), answer)
    page, *refused = [data(text)[0] for text in found.answers[1:7]]
    whole = App().artifact(page["uri"]).read_text()
    assert "\n".join(page["lines"]) + "\n" == whole
    assert (page["offset"], page["bytes"]) == (0, len(whole.encode()))
    assert [part["error"] for part in refused] == ["bad_argument", *["not_found"] * 4]
    assert "of another job" not in "".join(found.answers)


def test_pages_end_with_lines_and_make_up_the_whole() -> None:
    text = "".join(f"frame {n} 帧;{'x' * (n % 90)} {n}\n" for n in range(500))
    written = write_artifact(ArtifactContent("stacks.txt", "Stacks", "text/plain", text))
    read, offset = "", 0
    while offset is not None:
        part = page(written, offset)
        assert sum(len(line.encode()) + 1 for line in part["lines"]) <= PAGE_BYTES
        read, offset = read + "\n".join(part["lines"]) + "\n", part.get("next_offset")
    assert read == text
    Path(written.path).unlink()
    with pytest.raises(ToolError) as gone:
        page(written, 0)
    assert gone.value.code is ErrorCode.NOT_FOUND


def test_past_diagnoses_are_of_the_same_program_and_hold_no_findings(tmp_path: Path) -> None:
    case = new_case(RecordedObserver(stalled()), "slow")
    anyio.run(lambda: rules.finish(case))
    now = case.diagnosis()
    assert now.victim is not None
    other = now.victim.model_copy(update={"comm": "another"})
    with Stores(tmp_path / "knowledge.db") as kb:
        memory = KnownIncidents(kb, "en")
        assert memory.earlier(case) == []
        for number in range(7):
            stored = {"id": f"20250101T00000{number}-abcdef", "created": f"2025-01-01T00:00:0{number}Z"}
            kb.save_diagnosis(now.model_copy(update=stored))
        kb.save_diagnosis(now.model_copy(update={"id": "20260101T000000-abcdef", "victim": other}))
        returned = memory.earlier(case)
    assert [one["diagnosis"] for one in returned] == [f"20250101T00000{number}-abcdef" for number in (6, 5, 4, 3, 2)]
    assert returned[0]["cause"] == "sync_checkpoint_write"
    assert not any(finding.id in json.dumps(returned) for finding in now.findings[9:]), (
        "ids would be taken for this case's"
    )


def test_what_supports_and_refutes_a_cause_is_told_for_any_of_the_catalogue() -> None:
    asked = [{"causes": ["sync_checkpoint_write", "cpu_contention"]}, {"causes": ["gremlins"]}, {"causes": [{}]}]
    found = driven(RecordedObserver(stalled()), [say(*[("check_claims", a) for a in asked]), concluding()])
    (known, *_), (unknown, *_), (odd, *_) = (data(text) for text in found.answers[:3])
    assert [one["cause"] for one in known["causes"]] == ["sync_checkpoint_write", "cpu_contention"]
    assert {one["cause"]: one["state"] for one in known["causes"]}["cpu_contention"] != "supported"
    assert known["claims"] == []
    assert [unknown["error"], odd["error"]] == ["not_found", "bad_argument"]


# --- replay -----------------------------------------------------------------------------------------------------------


def diagnosed(policy: Policy, watching: Watching, monkeypatch: pytest.MonkeyPatch) -> Diagnosis:
    """A diagnosis of this process, whose windows find what `watching` does."""
    monkeypatch.setattr(diagnose, "LiveObserver", lambda *given: watching)
    with model_server.serve(policy) as server, App().closing() as app:
        monkeypatch.setenv("WHYSTALL_LLM_BASE_URL", server.base_url)
        monkeypatch.setenv("WHYSTALL_LLM_MODEL", model_server.MODEL)
        return anyio.run(lambda: app.diagnose(DiagnoseParams(llm=True, pid=os.getpid(), symptom="slow")))


@pytest.mark.parametrize("other", [stalled, None], ids=["runs", "ended"])
def test_a_case_that_looked_further_replays_to_the_same_end(
    other: Callable[[], Recording] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    more = say(("offcputime", {"duration": 40}), ("past_diagnoses", {}), ("kb_search", {"query": "slow"}))

    def policy(request: Request) -> Turn:
        returned = sum(m["role"] == "tool" for m in request.messages)
        if returned == 0:
            return say(("observe_process", {"finding": about(request, NEIGHBOUR), "role": "subject", "tools": LOOKS}))
        if returned == 4:
            return say(("read_artifact", {"uri": latest(request)}))
        return more if returned == 1 else concluding("sync_checkpoint_write", ("causes", "P1", "F1"))

    watching = Watching(calm(), other=other() if other else None)
    found = diagnosed(policy, watching, monkeypatch)
    path = transcript_files.path_of(found.id)
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "elsewhere"))
    done = anyio.run(lambda: replaying.replay(path, TOOLS))
    assert done.same, done.difference
    assert done.looks == len(watching.asked)
    assert found.reasoning is not None
    assert len(found.reasoning.others) == (1 if other else 0)
    assert found.reasoning.stopped is None
    text = path.read_text().replace(f'"process": {NEIGHBOUR}', '"process": 4')
    (tmp_path / "changed.jsonl").write_text(text)
    changed = anyio.run(lambda: replaying.replay(tmp_path / "changed.jsonl", TOOLS))
    assert changed.difference is not None
    assert f"on process {NEIGHBOUR}" in changed.difference.replayed


def test_an_older_transcript_is_replayed_with_the_functions_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the model asked for a longer window than was allowed, and was refused."""

    def policy(request: Request) -> Turn:
        returned = sum(m["role"] == "tool" for m in request.messages)
        asked = [("fileslower", {"duration": 600}), ("observe_process", {}), ("past_diagnoses", {})]
        return say(asked[returned]) if returned < 2 else concluding()

    found = diagnosed(policy, Watching(calm()), monkeypatch)
    path = transcript_files.path_of(found.id)
    old = path.read_text().replace('"schema_version": "4"', '"schema_version": "2"', 1)
    old = old.replace(', "extended": true', "").replace('"duration\\": 600', '"duration\\": 100')
    assert '"extended"' not in old
    path.write_text(old)
    done = anyio.run(lambda: replaying.replay(path, TOOLS))
    assert done.same, done.difference
