"""Waits that are followed from host to host, on results of critical_path made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from whystall.agent_server.fleet.answers import Answer, Located
from whystall.agent_server.fleet.hops import MOST_HOPS
from whystall.agent_server.fleet.hostlist import fold
from whystall.agent_server.fleet.joint_path import followed
from whystall.agent_server.fleet.merge import FleetResult, merge
from whystall.agent_server.fleet.text import TEXT_LIMIT, fleet_text
from whystall.tools.contract.foreign_json import inert
from whystall.tools.host.critical_path.across import SLICES

WINDOW_S = 10.0
RECEIVES = "receive (net.py:30)"
SAVES = ("running", "user", "save (train.py:212)")
Share = float | Callable[[float], float]


def pid_of(host: str) -> int:
    return 100 + int(host[-1])


def end(host: str, port: int) -> str:
    return f"10.0.0.{host[-1]}:{port}"


def link(host: str, other: str) -> tuple[str, str]:
    """Both ends of the connection between two hosts, of which the first is of `host`."""
    port = 4000 + min(pid_of(host), pid_of(other))
    return end(host, port), end(other, port)


class Host:
    """What a host answers: parts of the time of its process, at first none."""

    def __init__(self, name: str, **answer: Any) -> None:
        self.name, self.pid = name, pid_of(name)
        self.parts: list[dict[str, Any]] = []
        self.connections: list[dict[str, Any]] = []
        self.findings: list[dict[str, Any]] = []
        self.given = {
            "began": 100.0,
            "ended": 100.0 + WINDOW_S + 0.4,
            "located": Located(self.pid, ranks={self.pid: self.pid - 100}),
        }
        self.given |= answer

    def does(self, share: Share, what: str, mode: str = "", line: str = "", **more: Any) -> Host:
        """`share`: of each slice, or by the place in the window from 0 to 1."""
        at = [(number + 0.5) / SLICES for number in range(SLICES)]
        shares = [share(each) if callable(share) else share for each in at]
        slices = [round(1000 * each) for each in shares]
        part = {"pid": self.pid, "comm": "train", "what": what, "mode": mode, "line": line, "slices": slices}
        self.parts.append(part | more)
        return self

    def waits_for(self, *others: str, share: Share, what: str = "socket", line: str = RECEIVES) -> Host:
        return self.does(share, what, line=line, ends=[self.connected(*link(self.name, other)) for other in others])

    def connected(self, local: str, remote: str, pid: int | None = None) -> int:
        """The number of a connection that it lists."""
        self.connections.append({"pid": pid or self.pid, "local": local, "remote": remote})
        return len(self.connections) - 1

    def serves(self, *others: str) -> Host:
        for other in others:
            self.connected(*link(self.name, other))
        return self

    def finds(self, severity: str, wait: str, line: str) -> Host:
        self.findings.append(
            {
                "kind": "path.wait",
                "subject": {"type": "thread", "comm": "train", "pid": self.pid, "tid": self.pid},
                "interval": {"start_ns": 0, "end_ns": 1},
                "metrics": {"window_pct": 80.0},
                "attributes": {"wait": wait, "function": line},
                "severity": severity,
                "polarity": "abnormal",
            }
        )
        return self

    def answer(self, **changed: Any) -> Answer:
        across = {"window_ms": 1000 * WINDOW_S, "parts": self.parts, "connections": self.connections, "cut": False}
        thread = {"pid": self.pid, "tid": self.pid, "comm": "train"}
        data = {"thread": thread, "across": across | changed}
        reply = {"status": "ok", "coverage": {"host": self.name}, "findings": self.findings, "data": data}
        return Answer(self.name, "answered", reply=inert(reply), **self.given)


def asked(*hosts: Host | Answer, later: Sequence[Host] = (), stored: bool = False) -> FleetResult:
    answers = [one.answer() if isinstance(one, Host) else one for one in hosts]
    paths = followed(answers, [(one.pid, one.answer()) for one in later], stored=stored)
    return merge("critical_path", answers, {}, paths)


def hops(result: FleetResult, number: int = 0) -> list[tuple[str, str, str]]:
    return [(hop.host, hop.when, hop.line or hop.peer) for hop in result.paths[number].hops]


def outcomes(result: FleetResult) -> list[str]:
    return [path.outcome for path in result.paths]


def waiting(host: str, other: str, share: Share = 0.8, **answer: Any) -> Host:
    return Host(host, **answer).waits_for(other, share=share).does(0.2, *SAVES[:2], "load (x.py:1)")


# --- found --------------------------------------------------------------------------------------------------------


def test_a_wait_is_followed_over_two_hosts_to_the_line() -> None:
    first = waiting("node1", "node2").finds("critical", "socket", RECEIVES)
    second = Host("node2").serves("node1").waits_for("node3", share=0.9, line="fetch (relay.py:8)")
    third = Host("node3").serves("node2").does(0.95, *SAVES)
    result = asked(first, second, third)
    assert outcomes(result) == ["found"]
    expected = [
        ("node1", "window", RECEIVES),
        ("node2", "meanwhile", "fetch (relay.py:8)"),
        ("node3", "meanwhile", SAVES[2]),
    ]
    assert hops(result) == expected
    assert (result.paths[0].hosts, result.paths[0].count) == (fold(["node1", "node2"]), 2)
    assert result.suspect is not None
    assert (result.suspect.rank, result.suspect.host, result.suspect.pid, result.suspect.line) == (
        3,
        "node3",
        103,
        SAVES[2],
    )
    for lang in ("en", "zh"):
        text = fleet_text(result, lang)
        assert "rank 3 -> node3 -> train (pid 103) -> save (train.py:212)" in text
        assert RECEIVES in text
        assert len(text) <= TEXT_LIMIT


def test_the_shares_are_of_the_wait_and_not_of_the_window() -> None:
    """It saves while the other one waits, and has other work in the rest of the time."""
    first = waiting("node1", "node2", lambda at: float(0.3 < at < 0.7))
    second = Host("node2").serves("node1").does(lambda at: float(0.2 < at < 0.8), *SAVES)
    second.does(lambda at: float(not 0.2 < at < 0.8), "running", "user", "compute (train.py:5)")
    (path,) = asked(first, second).paths
    assert path.hops[0].pct == pytest.approx(40)
    assert (path.hops[1].line, path.hops[1].when, path.hops[1].pct) == (SAVES[2], "meanwhile", pytest.approx(100))
    assert path.hops[1].apart_ms == pytest.approx(400)


@pytest.mark.parametrize("given", [{"ended": 100.0 + WINDOW_S + 4}, {"began": 80.0, "ended": 90.4}])
def test_windows_that_cannot_be_aligned_are_told_and_taken_whole(given: dict[str, Any]) -> None:
    """The call took so long that the window may lie anywhere in it; or both were observed at different times."""
    first = waiting("node1", "node2", lambda at: float(0.5 < at < 0.6))
    second = Host("node2", **given).serves("node1").does(lambda at: float(at >= 0.3), *SAVES)
    second.does(lambda at: float(at < 0.3), "running", "user", "compute (train.py:5)")
    result = asked(first, second)
    assert hops(result)[1] == ("node2", "whole_window", SAVES[2])
    assert result.paths[0].hops[1].pct == pytest.approx(70)
    assert "over its whole window" in fleet_text(result, "en")


def test_hosts_that_measured_what_else_they_did_are_aligned_well() -> None:
    """The calls took 9 s longer than the windows, of which 8.9 s are known to be before or after them."""

    def asked_for(host: Host, before_s: Any, after_s: Any) -> Answer:
        answer = host.answer()
        assert answer.reply is not None
        answer.reply["coverage"].update(before_s=before_s, after_s=after_s)
        return answer

    long = {"ended": 100.0 + WINDOW_S + 9}
    first = waiting("node1", "node2", lambda at: float(0.5 <= at < 0.6), **long)
    second = Host("node2", **long).serves("node1").does(lambda at: float(0.1 <= at < 0.3), *SAVES)
    second.does(lambda at: float(not 0.1 <= at < 0.3), "running", "user", "compute (train.py:5)")
    result = asked(asked_for(first, 1.0, 7.9), asked_for(second, 5.0, 3.9))  # it began 4 s later
    assert hops(result)[1] == ("node2", "meanwhile", SAVES[2])
    assert result.paths[0].hops[1].apart_ms == pytest.approx(100)
    for odd in (1e9, -3.0, float("nan"), "x", None, True):
        assert hops(asked(asked_for(first, 1.0, 7.9), asked_for(second, odd, 3.9)))[1][1] == "whole_window"


def test_recordings_have_no_common_time() -> None:
    result = asked(waiting("node1", "node2"), Host("node2").serves("node1").does(0.9, *SAVES), stored=True)
    assert hops(result)[1] == ("node2", "whole_window", SAVES[2])


def test_many_hosts_that_wait_for_one_are_one_path() -> None:
    others = [f"node{n}" for n in range(2, 9)]
    late = Host("node1").serves(*others).does(0.9, *SAVES)
    result = asked(late, *(waiting(one, "node1").finds("major", "socket", RECEIVES) for one in others))
    (path,) = result.paths
    assert (path.hosts, path.count, path.outcome) == (fold(others), 7, "found")
    assert result.suspect is not None
    assert (result.suspect.host, result.suspect.line) == ("node1", SAVES[2])


def test_what_another_process_of_the_host_did_is_told_apart() -> None:
    second = Host("node2").serves("node1").does(0.9, "file", line="decode (data.py:7)", pid=815, comm="worker")
    result = asked(waiting("node1", "node2"), second)
    assert "node2 -> train (pid 102) -> worker (pid 815)" in fleet_text(result, "en")


def test_processes_that_answer_each_other_wait_by_turns() -> None:
    """Each waits for half of the time: not a cycle, but one that works while the other one waits."""
    first = waiting("node1", "node2", 0.5)
    second = Host("node2").waits_for("node1", share=0.55).does(0.45, *SAVES)
    by = {path.hops[0].host: path for path in asked(first, second).paths}
    assert (by["node1"].outcome, by["node1"].hops[1].line) == ("found", SAVES[2])
    assert (by["node2"].outcome, by["node2"].hops[1].line) == ("found", "load (x.py:1)")
    idle = Host("node2").serves("node1").does(0.55, "events").does(0.45, *SAVES)
    assert hops(asked(first, idle))[1][2] == SAVES[2]


# --- nobody is named ------------------------------------------------------------------------------------------------


def test_two_that_wait_for_each_other_are_both_not_to_blame() -> None:
    first = waiting("node1", "node2", 1.0).finds("critical", "socket", RECEIVES)
    second = Host("node2").waits_for("node1", share=1.0, what="events")
    for other in (second, waiting("node2", "node1", 0.95)):
        result = asked(first, other)
        assert set(outcomes(result)) == {"cycle"}
        assert len(result.paths) == 1
        assert result.suspect is None


def test_three_that_wait_in_a_circle() -> None:
    result = asked(*(waiting(f"node{n}", f"node{n % 3 + 1}", 0.9).serves(f"node{(n + 1) % 3 + 1}") for n in (1, 2, 3)))
    assert (outcomes(result), result.paths[0].count) == (["cycle"], 3)
    assert result.suspect is None


def test_a_peer_without_work_is_not_to_blame() -> None:
    first = waiting("node1", "node2", 0.9).finds("critical", "socket", RECEIVES)
    result = asked(first, Host("node2").serves("node1").does(1.0, "events", line="serve (x.py:2)"))
    assert (outcomes(result), result.suspect) == (["idle"], None)


@pytest.mark.parametrize("what", ["unknown", "collective", "socket"])
def test_what_a_peer_waits_for_is_not_known(what: str) -> None:
    first = waiting("node1", "node2").finds("critical", "socket", RECEIVES)
    result = asked(first, Host("node2").serves("node1").does(1.0, what))
    assert (outcomes(result), result.suspect) == (["mixed"], None)


def test_an_address_that_nobody_lists_is_not_guessed() -> None:
    """The other host has the same address, but its end of the connection is another one."""
    first = waiting("node1", "node2").finds("critical", "socket", RECEIVES)
    behind = Host("node2").does(1.0, *SAVES)
    behind.connected(link("node2", "node1")[0], "192.168.0.1:9")
    for others in ([behind], [Answer("node2", "unreachable", "no connection")]):
        result = asked(first, *others)
        assert outcomes(result) == ["unknown_peer"]
        assert hops(result) == [("node1", "window", RECEIVES)]
        assert result.suspect is None
        assert link("node1", "node2")[1] in fleet_text(result, "en")


def test_an_end_that_two_hosts_claim_is_nobodys() -> None:
    lying = Host("node3").does(1.0, "running", "user", "innocent (x.py:1)")
    lying.connected(*link("node2", "node1"))
    result = asked(waiting("node1", "node2"), Host("node2").serves("node1").does(1.0, *SAVES), lying)
    assert (outcomes(result), result.paths[0].claimed_by) == (["disputed"], ["node2", "node3"])
    assert fold(["node2", "node3"]) in fleet_text(result, "en")


@pytest.mark.parametrize(
    "part",
    [
        {"slices": [1001] * SLICES},
        {"slices": [5] * (SLICES - 1)},
        {"ends": [7]},
        {"ends": [-1]},
        {"pid": -5},
        {"line": 7},
        {"extra": 1},
    ],
)
def test_a_host_that_answers_nonsense_is_not_used(part: dict[str, Any]) -> None:
    first, second = waiting("node1", "node2"), Host("node2").serves("node1").does(1.0, *SAVES)
    second.parts[0] |= part
    result = asked(first, second)
    assert outcomes(result) == ["unknown_peer"]
    assert outcomes(asked(first, Answer("node2", "answered", reply={"data": {"across": [], "thread": 3}}))) == [
        "unknown_peer"
    ]


def test_parts_that_exceed_the_window_are_scaled() -> None:
    second = Host("node2").serves("node1").does(1.0, *SAVES)
    for _ in range(15):
        second.does(1.0, "sleep", line="x")
    (path,) = asked(waiting("node1", "node2"), second).paths
    assert (path.outcome, path.hops[1].pct) == ("mixed", pytest.approx(100 / 16))


def test_texts_of_a_hostile_host_are_inert() -> None:
    second = Host("node2").serves("node1").does(1.0, "running", "user", "\x1b[2Jx {place} \u202e", comm="{pct}\n# a")
    text = fleet_text(asked(waiting("node1", "node2"), second), "en")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "{place}" in text


def test_one_of_several_connections_is_not_chosen() -> None:
    first = Host("node1").waits_for("node2", "node3", share=0.9, what="collective")
    rest = [Host(f"node{n}").serves("node1").does(1.0, *SAVES) for n in (2, 3)]
    result = asked(first, *rest)
    assert (outcomes(result), result.paths[0].hops[0].peers) == (["several_peers"], 2)
    both = Host("node1").does(0.9, "collective", ends=[0, 1])
    for port in (1, 2):
        both.connected(end("node1", port), end("node2", port))
        rest[0].connected(end("node2", port), end("node1", port))
    assert outcomes(asked(both, rest[0])) == ["found"]


def test_long_chains_end() -> None:
    names = [f"node{n}" for n in range(10)]
    chain = [waiting(one, other, 0.9) for one, other in pairwise(names)]
    for one, before in zip(chain[1:], names, strict=False):
        one.serves(before)
    result = asked(*chain, Host("node9").serves("node8").does(1.0, *SAVES))
    by = {path.outcome: path for path in result.paths}
    assert len(by["too_long"].hops) == MOST_HOPS
    assert by["found"].hops[-1].line == SAVES[2]


# --- a second look --------------------------------------------------------------------------------------------------


def test_a_process_that_was_not_observed_is_asked_for_and_its_time_told() -> None:
    first = waiting("node1", "node2").finds("critical", "socket", RECEIVES)
    second = Host("node2").does(1.0, "events")
    second.connected(*link("node2", "node1"), pid=555)
    answers = [first.answer(), second.answer()]
    paths = followed(answers)
    assert paths.unobserved == [("node2", 555)]
    result = merge("critical_path", answers, {}, paths)
    assert (outcomes(result), result.suspect) == (["not_observed"], None)
    assert "for node2 -> (pid 555)" in fleet_text(result, "en")
    later = Host("node2")
    later.pid = 555
    later.does(0.9, *SAVES)
    result = asked(first, second, later=[later])
    assert hops(result)[1] == ("node2", "later", SAVES[2])
    assert "at a later time" in fleet_text(result, "en")
    assert result.suspect is not None
    assert (result.suspect.host, result.suspect.pid) == ("node2", 555)


# --- where the most severe finding leads ------------------------------------------------------------------------------


def test_a_finding_of_its_own_names_its_own_host() -> None:
    second = Host("node2").serves("node1").does(1.0, *SAVES)
    own = waiting("node1", "node2").finds("critical", "file", "read (x.py:9)").finds("minor", "socket", RECEIVES)
    suspect = asked(own, second).suspect
    assert suspect is not None
    assert suspect.host == "node1"
    third = Host("node3").does(1.0, "file").finds("critical", "file", "read (x.py:9)")
    assert asked(own, second, third).suspect is None


def test_hosts_that_wait_for_nobody_elsewhere_have_no_path() -> None:
    assert asked(waiting("node1", "node2", 0.03), Host("node2").serves("node1").does(1.0, *SAVES)).paths == []
    assert asked(Host("node1").serves("node2").waits_for("node2", share=1.0, what="events")).paths == []
