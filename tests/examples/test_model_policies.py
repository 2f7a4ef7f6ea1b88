"""The example's policies know what a request tells them and nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from model_http import Die, Raw, Request, Turn
from model_policies import INVENTED_CAUSE, INVENTED_FILE, INVENTED_NUMBER, POLICIES, DiesAfter, engineer
from model_reading import Reading

from whystall.prompts.fence import Fence

FENCE = Fence()
SYNC, DEVICE, LOCK = "sync_checkpoint_write", "slow_device", "lock_wait"


def finding(id: str, kind: str, polarity: str = "abnormal", **metrics: float) -> dict[str, Any]:
    subject = {"comm": "python", "path": "/data/chk_*.bin"}
    return {"id": id, "kind": kind, "polarity": polarity, "subject": subject, "metrics": metrics}


SYNCED = finding("F2", "file.slow_sync", count=7.0, max_ms=811.80255, window_pct=60.9)
BLOCKED = finding("F3", "offcpu.blocked", count=65.0, total_ms=4790.316749)
IO = finding("F1", "process.io_wait", window_pct=59.0476)


def cause(name: str, state: str, *tools: str, **more: Any) -> dict[str, Any]:
    return {"cause": name, "state": state, "tools": tools, **more}


def conversation(*data: tuple[str, Any], system: str = "You are an engineer.", called: tuple[str, ...] = ()) -> Request:
    """A briefing and answers as the protocol carries them; `data`: role and what is fenced."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    messages += [{"role": role, "content": f"It says:\n{FENCE.put(value)}\nDecide."} for role, value in data]
    if called:
        calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in called]
        messages.insert(2, {"role": "assistant", "content": None, "tool_calls": calls})
    names = ("fileslower", "offcputime", "biolatency", "kb_search", "conclude")
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]
    return Request("POST", "/v1/chat/completions", {}, {"messages": messages, "tools": tools})


OPEN = [cause(SYNC, "not_examined", "fileslower", "offcputime"), cause(DEVICE, "not_examined", "biolatency")]
BRIEFING = {"symptom": "it stalls", "findings": [IO], "causes": OPEN}
SUPPORTED = cause(SYNC, "supported", **{"for": ["F2", "F3"]}, remedies=["async", "faster"])
STATE = {"causes": [SUPPORTED, cause(DEVICE, "ruled_out", "biolatency")]}
LOOKED = conversation(
    ("user", BRIEFING),
    ("tool", {"tool": "fileslower", "findings": [SYNCED]}),
    ("tool", {"tool": "offcputime", "findings": [BLOCKED], "state": STATE}),
    called=("fileslower", "offcputime"),
)
CONCLUDED = conversation(
    ("user", BRIEFING), ("tool", {"findings": [SYNCED, BLOCKED], "state": STATE}), called=("conclude",)
)


def said(answer: object) -> list[tuple[str, Any]]:
    assert isinstance(answer, Turn)
    return [(call.name, call.arguments) for call in answer.calls]


def concluded(answer: object) -> Any:
    [(name, arguments)] = said(answer)
    assert name == "conclude"
    return arguments


def test_it_looks_first_where_nobody_did() -> None:
    request = conversation(("user", {"symptom": "", "findings": []}))
    request.body["tools"].append({"type": "function", "function": {"name": "host_snapshot"}})
    assert said(engineer(request)) == [("host_snapshot", {})]


def test_it_calls_in_parallel_what_tells_the_open_causes_apart() -> None:
    calls = said(engineer(conversation(("user", BRIEFING))))
    assert calls == [("fileslower", {}), ("offcputime", {}), ("kb_search", {"query": "it stalls"})]


def test_it_goes_on_while_a_cause_is_open() -> None:
    left = {"causes": [SUPPORTED, cause(DEVICE, "not_examined", "biolatency", "fileslower")]}
    answers = ("tool", {"findings": [SYNCED], "state": left})
    request = conversation(("user", BRIEFING), answers, called=("fileslower", "offcputime", "kb_search"))
    assert said(engineer(request)) == [("biolatency", {})]


def test_it_takes_what_is_suggested_where_no_cause_asks_for_more() -> None:
    answers = ("tool", {"findings": [SYNCED], "state": {**STATE, "suggested": ["biolatency", "fileslower"]}})
    request = conversation(("user", BRIEFING), answers, called=("fileslower", "offcputime", "kb_search"))
    assert said(engineer(request)) == [("biolatency", {})]


def test_it_concludes_with_claims_about_findings_and_placeholders_for_their_numbers() -> None:
    arguments = concluded(engineer(LOOKED))
    assert (arguments["cause"], arguments["remedies"]) == (SYNC, ["async"])
    claims = [(claim["relation"], claim["subject"], claim["object"]) for claim in arguments["claims"]]
    assert claims == [("is_symptom_of", "F2", SYNC), ("is_symptom_of", "F3", SYNC)]
    assert {"{F2.path}", "{F2.max_ms}", "{F3.total_ms}"} <= set(re.findall(r"\{.*?\}", arguments["narrative"]))
    assert not re.search(r"\d", re.sub(r"\{.*?\}", "", arguments["narrative"]))


def test_it_answers_in_the_language_of_its_instructions() -> None:
    request = conversation(("user", BRIEFING), ("tool", {"findings": [SYNCED], "state": STATE}), system="你是工程师。")
    assert re.search("[\u4e00-\u9fff]", concluded(engineer(request))["narrative"])
    asked = conversation(("user", {**BRIEFING, "symptom": "训练卡住" * 100}))
    assert Reading(asked).language == "en", "what is fenced does not choose the language"


@pytest.mark.parametrize(("leading", "named"), [(DEVICE, DEVICE), (SYNC, SYNC), (None, "unknown")])
def test_it_concludes_the_cause_of_the_verdict_so_far(leading: str | None, named: str) -> None:
    state = {"causes": [SUPPORTED, {**SUPPORTED, "cause": DEVICE}], "verdict_so_far": {"cause": leading}}
    request = conversation(("user", BRIEFING), ("tool", {"findings": [SYNCED], "state": state}), called=("fileslower",))
    assert concluded(engineer(request))["cause"] == named


def test_it_names_no_cause_without_evidence() -> None:
    nothing = {"causes": [cause(SYNC, "ruled_out"), cause(DEVICE, "unsupported")]}
    assert (
        concluded(engineer(conversation(("user", {"symptom": "", "findings": [IO], **nothing}))))["cause"] == "unknown"
    )


def test_what_is_outside_of_a_fence_is_no_data() -> None:
    request = conversation(("user", BRIEFING))
    request.messages[1]["content"] += (
        f'\n{json.dumps({"findings": [SYNCED]})}\n<<data 12\n{{"id": "F9", "kind": "x"}}\n13 data>>'
    )
    assert list(Reading(request).findings) == ["F1"]


@pytest.mark.parametrize(
    "name",
    ["invented-number", "invented-file", "invented-cause", "invented-everything", "other-cause", "without-citation"],
)
def test_an_inventor_invents_and_corrects_itself_unless_it_is_stubborn(name: str) -> None:
    honest = concluded(engineer(LOOKED))
    inventor, stubborn = POLICIES[name].make(), POLICIES[f"{name}-stubborn"].make()
    invented = concluded(inventor(LOOKED))
    assert invented != honest
    assert concluded(inventor(CONCLUDED)) == concluded(engineer(CONCLUDED)) == honest
    assert concluded(stubborn(CONCLUDED)) == concluded(stubborn(LOOKED)) == invented
    assert said(inventor(conversation(("user", BRIEFING)))) == said(engineer(conversation(("user", BRIEFING))))


def test_inventions_are_found_nowhere_in_the_evidence() -> None:
    for name, invention in (("number", INVENTED_NUMBER), ("file", INVENTED_FILE), ("cause", INVENTED_CAUSE)):
        answer = json.dumps(concluded(POLICIES[f"invented-{name}"].make()(LOOKED)))
        assert invention in answer
        assert invention in json.dumps(concluded(POLICIES["invented-everything"].make()(LOOKED)))
        assert invention not in json.dumps(LOOKED.body)
    assert concluded(POLICIES["other-cause"].make()(LOOKED))["cause"] == DEVICE


def test_tokens_are_counted_by_what_was_said() -> None:
    short, long = (Request("POST", "/", {}, LOOKED.body, b"x" * size) for size in (400, 4000))
    told = [POLICIES["engineer"].make()(request) for request in (short, long)]
    assert [answer.usage[0] for answer in told if isinstance(answer, Turn) and answer.usage] == [100, 1000]


def test_a_mortal_answers_so_often_and_no_more() -> None:
    mortal = DiesAfter(engineer, 2)
    assert [type(mortal(LOOKED)) for _ in range(3)] == [Turn, Turn, Die]


def test_every_policy_answers_whatever_it_is_sent() -> None:
    bare = Request("POST", "/v1/chat/completions", {}, {"messages": [{"role": "user", "content": "hello"}]})
    for named in POLICIES.values():
        for request in (bare, LOOKED, CONCLUDED):
            assert isinstance(named.make()(request), (Turn, Raw))
