"""Merging of answers made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.agent_server.fleet.answers import Answer, Located, Status, stated_host
from whystall.agent_server.fleet.merge import merge
from whystall.agent_server.fleet.text import TEXT_LIMIT, fleet_text
from whystall.tools.contract.foreign_json import inert


def finding(kind: str = "path.wait", severity: str = "major", **changed: Any) -> dict[str, Any]:
    given = {
        "kind": kind,
        "subject": {"type": "thread", "comm": "train", "pid": 7},
        "interval": {"start_ns": 0, "end_ns": 1},
        "metrics": {"window_pct": 50.0},
        "attributes": {"wait": "disk", "function": "save (train.py:212)"},
        "severity": severity,
        "polarity": "abnormal",
    }
    return {**given, **changed}


def answered(host: str, *findings: dict[str, Any], located: Located | None = None, **changed: Any) -> Answer:
    reply = {"status": "ok", "coverage": {"host": host}, "findings": list(findings), "data": {}, **changed}
    return Answer(host, "answered", reply=reply, located=located)


def test_the_same_finding_of_many_hosts_and_ranks_is_one_row() -> None:
    answers = [
        answered(f"n{rank}", finding(subject={"type": "thread", "comm": "train", "pid": 100 + rank, "rank": rank}))
        for rank in range(4)
    ]
    result = merge("critical_path", answers)
    (row,) = result.findings
    assert (row.count, row.ranks) == (4, [0, 1, 2, 3])
    assert result.suspect is None  # four hosts have it: none of them stands out
    assert result.without == 0


def test_findings_of_different_severity_are_ordered_and_the_worst_names_the_suspect() -> None:
    mild = finding(severity="minor", attributes={"wait": "socket"})
    located = Located(7, 17, {7: 17, 8: 18})
    result = merge(
        "critical_path", [answered("a", mild), answered("b", finding(), mild, located=located), answered("c")]
    )
    assert [(row.finding.severity.value, row.count) for row in result.findings] == [("major", 1), ("minor", 2)]
    suspect = result.suspect
    assert suspect is not None
    assert (suspect.rank, suspect.host, suspect.comm, suspect.pid) == (17, "b", "train", 7)
    assert "rank 17 -> b -> train (pid 7) -> save (train.py:212)" in fleet_text(result, "en")
    assert [row.host for row in result.hosts] == ["b", "a", "c"]


def test_two_hosts_with_different_findings_of_equal_severity_name_no_suspect() -> None:
    other = finding(attributes={"wait": "lock"})
    assert merge("critical_path", [answered("a", finding()), answered("b", other)]).suspect is None


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ([answered("a"), answered("b")], "clear"),
        ([answered("a"), Answer("b", "absent")], "clear"),
        ([answered("a"), answered("b", status="partial")], "clear_in_part"),
        ([answered("a"), answered("b", data={"verdict": "cannot_tell"})], "clear_in_part"),
        ([answered("a"), Answer("b", "slow")], "clear_in_part"),
        ([answered("a", status="partial")], "unknown"),
        ([Answer("a", "slow"), Answer("b", "absent")], "unknown"),
        ([Answer("a", "absent")], "unknown"),
        ([Answer("a", "answered", reply={"status": "ok"})], "unknown"),
        ([answered("a"), answered("b", status="partial", findings=[finding()])], "abnormal"),
        ([answered("a", verdict="confirmed", cause="slow_disk")], "abnormal"),
        ([answered("a", verdict="healthy", cause=None)], "clear"),
        ([answered("a"), answered("b", verdict="inconclusive", cause=None)], "clear_in_part"),
    ],
)
def test_a_fleet_is_clear_only_if_every_host_answered_in_full(answers: list[Answer], verdict: str) -> None:
    assert merge("diagnose", answers).verdict == verdict


_ODD: list[Any] = [None, 7, -1.5, "", "x", [], [[]], {}, {"a": []}, True, 10**30]


@pytest.mark.parametrize("field", ["status", "coverage", "findings", "data", "verdict", "cause"])
@pytest.mark.parametrize("value", _ODD, ids=str)
def test_odd_values_of_a_reply_neither_raise_nor_accuse(field: str, value: Any) -> None:
    base = {"status": "ok", "coverage": {"host": "a"}, "findings": [], "data": {}, "verdict": "healthy", "cause": None}
    result = merge("diagnose", [Answer("a", "answered", reply={**base, field: value})])
    assert result.findings == []
    assert fleet_text(result, "en")


@pytest.mark.parametrize("field", list(finding()))
@pytest.mark.parametrize("value", _ODD, ids=str)
def test_odd_values_of_a_finding_do_not_raise(field: str, value: Any) -> None:
    result = merge("critical_path", [answered("a", finding(**{field: value}))])
    assert result.hosts[0].unread + result.hosts[0].abnormal <= 1
    assert fleet_text(result, "zh")


def test_a_normal_finding_is_not_reported() -> None:
    assert merge("critical_path", [answered("a", finding(polarity="normal"))]).findings == []


def test_missing_hosts_are_grouped_by_status_with_their_reasons() -> None:
    statuses: list[tuple[str, Status, str]] = [
        ("a", "unreachable", "refused"),
        ("b", "slow", "no answer within 30 s"),
        ("c", "unreachable", "refused"),
        ("d", "unreachable", "its name is not known"),
    ]
    result = merge("critical_path", [Answer(*one) for one in statuses])
    assert [(one.status, one.count, one.details) for one in result.missing] == [
        ("slow", 1, ["no answer within 30 s"]),
        ("unreachable", 3, ["refused", "its name is not known"]),
    ]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_text_of_10000_hosts_is_within_its_limit(lang: Any) -> None:
    answers = [answered(f"n{n}", finding(attributes={"wait": "disk", "code": f"f{n} (a.py:1)"})) for n in range(1000)]
    answers += [Answer(f"m{n}", "slow", "no answer") for n in range(9000)]
    result = merge("critical_path", answers)
    assert (result.asked, result.left_out) == (10_000, 9000)
    assert len(fleet_text(result, lang)) <= TEXT_LIMIT


def test_texts_of_a_host_are_inert_and_without_the_token() -> None:
    assert inert({"a\x1b": ["\u202ex", "my-token-1", 1, None]}, "my-token-1") == {
        "a\\x1b": ["\\u202ex", "***", 1, None]
    }
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    for bad in (deep, [0] * 300_000):
        with pytest.raises(ValueError, match="nested too deep"):
            inert(bad)


@pytest.mark.parametrize(
    ("reply", "host"),
    [
        ({"coverage": {"host": "a"}}, "a"),
        ({"coverage": [{"host": ""}, {"host": "b"}]}, "b"),
        ({"coverage": "x"}, ""),
        ({"coverage": {"host": 7}}, ""),
        ({}, ""),
    ],
)
def test_the_host_that_a_reply_states(reply: dict[str, Any], host: str) -> None:
    assert stated_host(reply) == host
