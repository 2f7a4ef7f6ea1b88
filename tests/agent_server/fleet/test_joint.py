"""One judgement on what many hosts report: hang and slow_node_check."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hung_hosts import FIRST_PID, GATHERS, hung_host

from whystall.agent_server.fleet.answers import Answer, Located
from whystall.agent_server.fleet.merge import FleetResult, merge
from whystall.agent_server.fleet.text import fleet_text
from whystall.agent_server.interfaces import serialize
from whystall.tools.contract.foreign_json import inert
from whystall.tools.host.hang.tool import TOOL as HANG
from whystall.tools.host.hang.tool import Params
from whystall.tools.ranks.slow_node_check.tool import Params as SlowParams
from whystall.tools.ranks.slow_node_check.tool import judge as judge_slow
from whystall.tools.ranks.traces.gather import gather
from whystall.tools.recording.judging import judge
from whystall.tools.recording.packed import pack
from whystall.tools.recording.store import Recording

pytestmark = pytest.mark.thorough

TRACES = Path(__file__).parents[2] / "recorded/ranks"
WINDOW = {"duration": 2}


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def answer(recording: Recording, host: str = "", **changed: Any) -> Answer:
    """What a host answers that judges `recording`, called at 100 s for 3 s."""
    reply = serialize.structured(judge(HANG, recording, Params(top=200)))
    host = host or recording.manifest.host
    return replace(Answer(host, "answered", reply=inert(reply), began=100.0, ended=103.0), **changed)


def merged(*answers: Answer, **arguments: Any) -> FleetResult:
    return merge("hang", answers, WINDOW | arguments)


def data(result: FleetResult) -> Any:
    assert result.joint is not None
    return result.joint


def late(result: FleetResult) -> list[tuple[int, str, int]]:
    return [(row.rank, row.host, row.pid) for row in data(result).late]


def four_hosts(**changed: Any) -> list[Answer]:
    """Hosts with two ranks each, of which rank 5 on node2 reads a pipe."""
    return [
        answer(hung_host(f"node{n}", (2 * n, 2 * n + 1), 8, late=(5,)), **changed.get(f"node{n}", {})) for n in range(4)
    ]


# --- hang ---------------------------------------------------------------------------------------------------------


def test_the_late_rank_is_named_with_host_process_and_line() -> None:
    result = merged(*four_hosts())
    assert (result.verdict, data(result).verdict) == ("abnormal", "late")
    assert late(result) == [(5, "node2", FIRST_PID + 1)]
    assert data(result).late[0].waiting == "0-4, 6-7"
    assert result.suspect is not None
    assert (result.suspect.rank, result.suspect.host, result.suspect.pid) == (5, "node2", FIRST_PID + 1)
    assert [(row.hosts, row.ranks) for row in result.findings] == [("node2", [5])]
    assert [(row.host, row.abnormal) for row in result.hosts if row.abnormal] == [("node2", 1)]
    for lang in ("en", "zh"):
        text = fleet_text(result, lang)
        assert "rank 5 -> node2 -> python (pid 101) -> load (job.py:6)" in text
        assert "0-4, 6-7" in text


def test_a_rank_of_a_host_without_an_answer_is_unknown_and_never_late() -> None:
    answers = four_hosts()
    answers[2] = Answer("node2", "slow", "no answer within 30 s")
    result = merged(*answers)
    assert (result.verdict, data(result).verdict, late(result), result.findings) == ("unknown", "unseen", [], [])
    assert data(result).absent == "0: 4-5"
    text = fleet_text(result, "en")
    assert "0: 4-5" in text
    assert "node2" in text


def test_a_late_rank_is_named_though_others_are_unknown() -> None:
    answers = four_hosts()
    answers[0] = Answer("node0", "unreachable", "no connection")
    result = merged(*answers)
    assert (result.verdict, late(result)) == ("abnormal", [(5, "node2", FIRST_PID + 1)])
    assert data(result).absent == "0: 0-1"
    assert [one.hosts for one in result.missing] == ["node0"]


KILLED = 9


def failing(*, killed: dict[str, int], others: Any = None) -> list[Answer]:
    """Four hosts with two ranks each, of which those `killed` have ended; `others`: as of `hung_host`."""
    return [
        answer(hung_host(f"node{n}", (2 * n, 2 * n + 1), 8, ended=dict.fromkeys([rank], KILLED) if rank else others))
        for n in range(4)
        for rank in [killed.get(f"node{n}", 0)]
    ]


def failed(result: FleetResult) -> list[tuple[int, str, str, int | None]]:
    return [(row.rank, row.host, row.how, row.code) for row in data(result).failed]


def test_a_rank_that_was_killed_is_the_first_failure_of_all_hosts() -> None:
    result = merged(*failing(killed={"node2": 5}))
    assert (result.verdict, data(result).verdict) == ("abnormal", "first_failure")
    assert failed(result) == [(5, "node2", "killed", KILLED)]
    assert late(result) == []
    assert [(row.hosts, row.ranks) for row in result.findings] == [("node2", [5])]
    for lang in ("en", "zh"):
        text = fleet_text(result, lang)
        assert "node2" in text
        assert "0-4, 6-7" in text


def test_a_rank_that_lives_on_another_host_has_not_failed() -> None:
    """node1 believes that its rank 3 has ended, which node3 reports alive: as a late rank, it explains the others."""
    answers = failing(killed={"node1": 3})
    answers[3] = answer(hung_host("node3", (3, 6, 7), 8, late=(3,)))
    result = merged(*answers)
    assert (data(result).verdict, failed(result)) == ("late", [])
    assert [one[0] for one in late(result)] == [3]


def test_a_rank_that_several_hosts_claim_to_live_has_not_failed() -> None:
    """node0 and node3 both report rank 3 alive, which node1 believes to have ended: nothing is known of it."""
    answers = failing(killed={"node1": 3})
    answers[0] = answer(hung_host("node0", (0, 1, 3), 8))
    answers[3] = answer(hung_host("node3", (3, 6, 7), 8))
    result = merged(*answers)
    assert [(one.rank, one.hosts) for one in result.disputed] == [(3, ["node0", "node3"])]
    assert (data(result).verdict, failed(result)) == ("unseen", [])


def test_a_boolean_is_no_rank() -> None:
    answers = failing(killed={})
    answers[0] = Answer("node0", "slow", "no answer within 30 s")
    reply: Any = answers[1].reply
    reply["data"]["just_left"] = [True]
    assert data(merged(*answers)).verdict == "unseen"


def test_a_host_that_reports_nonsense_of_failed_ranks_accuses_nobody() -> None:
    answers = failing(killed={})
    reply: Any = answers[1].reply
    nonsense: list[Any] = [None, 7, {"rank": 6}, {"rank": -5, "how": "killed"}, {"rank": 10**12, "how": "x"}]
    reply["data"] |= {"failed": nonsense, "just_left": ["a", None, 2**70, 3]}
    result = merged(*answers)
    assert (data(result).verdict, failed(result)) == ("all_inside", [])


def test_what_hosts_report_alone_is_not_repeated() -> None:
    """On its own, node2 sees a rank that waits and one that is late; node3 made progress meanwhile."""
    answers = four_hosts()
    answers[3] = answer(hung_host("node3", (6, 7), 8, started=(37, 38)))
    result = merged(*answers)
    assert (result.verdict, data(result).verdict, late(result), result.findings) == ("clear", "moving", [], [])


def test_all_in_the_same_collective_is_abnormal_without_a_suspect() -> None:
    result = merged(*(answer(hung_host(f"node{n}", (n,), 2)) for n in range(2)))
    assert (result.verdict, data(result).verdict, result.suspect) == ("abnormal", "all_inside", None)


def test_another_collective_on_one_host_is_a_mismatch() -> None:
    result = merged(*(answer(hung_host(f"n{n}", (n,), 3, **({"stack": GATHERS} if n == 1 else {}))) for n in range(3)))
    assert data(result).verdict == "mismatch"
    assert late(result) == [(1, "n1", FIRST_PID)]
    assert result.suspect is not None
    assert result.suspect.host == "n1"


def test_a_rank_that_two_hosts_report_is_reported_and_used_of_neither() -> None:
    """node3 claims to have rank 4, late, beside its own."""
    answers = four_hosts()
    answers[3] = answer(hung_host("node3", (4, 6, 7), 8, late=(4,)))
    result = merged(*answers)
    assert [(one.rank, one.hosts) for one in result.disputed] == [(4, ["node2", "node3"])]
    assert late(result) == [(5, "node2", FIRST_PID + 1)]
    assert data(result).absent == "0: 4"
    assert "- rank 4: node2, node3" in fleet_text(result, "en").replace('"', "")


def test_a_host_that_claims_all_ranks_accuses_nobody() -> None:
    liar = answer(hung_host("node9", range(8), 8, late=(0, 7)))
    result = merged(*four_hosts(), liar)
    assert (result.verdict, late(result), len(result.disputed)) == ("unknown", [], 8)


def test_a_host_with_several_pods_answers_for_each() -> None:
    """Each answer of node2 has the ranks of both pods: they run there, and are of one job."""
    answers = four_hosts()
    result = merged(*answers, answers[2])
    assert (late(result), result.disputed) == ([(5, "node2", FIRST_PID + 1)], [])


def test_hosts_that_did_not_observe_at_the_same_time_are_not_compared() -> None:
    """node2 was read after the others had begun the next operation: its numbers are of another time."""
    result = merged(*four_hosts(node2={"began": 104.5, "ended": 107.0}))
    assert (data(result).verdict, late(result)) == ("unseen", [])
    assert [(one.status, one.hosts) for one in result.missing] == [("apart", "node2")]
    overlapping = merged(*four_hosts(node2={"began": 100.5, "ended": 103.5}))
    assert late(overlapping) == [(5, "node2", FIRST_PID + 1)]


def test_a_call_much_longer_than_its_window_shows_not_when_that_was() -> None:
    result = merged(*four_hosts(node1={"began": 100.0, "ended": 104.5}))
    assert [(one.status, one.hosts) for one in result.missing] == [("apart", "node1")]


@pytest.mark.parametrize("skew", [0, 30])
def test_recordings_are_compared_if_their_times_overlap(skew: int) -> None:
    hosts = [hung_host(f"node{n}", (2 * n, 2 * n + 1), 8, late=(5,)) for n in range(4)]
    hosts[2].manifest.started = f"2025-01-01T00:00:{skew:02d}.5Z"
    result = merged(*(answer(one, began=0.0, ended=0.0) for one in hosts), recording="/rec")
    assert data(result).verdict == ("unseen" if skew else "late")


def test_a_host_with_another_job_is_not_compared() -> None:
    ids = dict.fromkeys(range(4), "slurm:42") | {2: "slurm:43"}
    answers = four_hosts(**{f"node{n}": {"located": Located(100, job=job)} for n, job in ids.items()})
    result = merged(*answers)
    assert [(one.status, one.details) for one in result.missing] == [("other_job", ["its job is slurm:43"])]
    assert (data(result).verdict, late(result)) == ("unseen", [])


_ODD: list[Any] = [None, 7, -1, 10**30, "", "x", [], [[]], {}, True, 0.5, float("nan")]


@pytest.mark.parametrize("value", _ODD, ids=str)
def test_odd_values_neither_raise_nor_accuse_another_rank(value: Any) -> None:
    good = four_hosts()
    row = dict(good[2].reply["data"]["rows"][0])  # type: ignore[index]
    member = dict(row["groups"][0])
    changed = [{**row, name: value} for name in row] + [{**row, "groups": [{**member, n: value}]} for n in member]
    replies: Sequence[Any] = [
        *({"data": {"rows": [one]}, "coverage": {}} for one in changed),
        *({"data": {"rows": value}}, {"data": value}, {"data": {"rows": [value]}, "totals": value}),
    ]
    for reply in replies:
        result = merged(good[0], good[1], good[3], Answer("node2", "answered", reply=reply, began=100.0, ended=103.0))
        assert {row.host for row in data(result).late} <= {"node2"}
        assert fleet_text(result, "en")


def test_a_host_whose_job_has_another_size_is_not_compared() -> None:
    result = merged(*four_hosts(), answer(hung_host("node9", range(100), 999_999)))
    assert [(one.status, one.details) for one in result.missing] == [("other_job", ["its job has 999999 ranks"])]
    assert late(result) == [(5, "node2", FIRST_PID + 1)]


# --- slow_node_check ----------------------------------------------------------------------------------------------


def packed(kind: str, tmp_path: Path, **changed: str) -> list[Answer]:
    """Four hosts, each with the trace of one rank; `changed`: of which run that of a rank is."""
    answers = []
    for rank in range(4):
        directory = tmp_path / f"traces{rank}"
        directory.mkdir()
        shutil.copy(TRACES / changed.get(f"rank{rank}", kind) / f"rank{rank}.json.gz", directory)
        answers.append(Answer(f"node{rank}", "answered", content=pack(gather(directory))))
    return answers


@pytest.mark.parametrize("kind", ["compute", "nothing"])
def test_ranks_of_many_hosts_are_judged_as_those_of_one_directory(kind: str, tmp_path: Path) -> None:
    result = merge("slow_node_check", packed(kind, tmp_path), {"traces": "/traces"})
    alone = judge_slow(gather(TRACES / kind), SlowParams()).data
    assert data(result).verdict == alone.verdict
    assert [row.rank for row in data(result).accused] == [row.rank for row in alone.accused]
    assert (data(result).step_ms, data(result).lost_pct) == (alone.step_ms, alone.lost_pct)
    if kind == "nothing":
        assert (result.verdict, result.suspect) == ("clear", None)
    else:
        assert result.verdict == "abnormal"
        assert result.suspect is not None
        assert (result.suspect.rank, result.suspect.host) == (2, "node2")
        assert "rank 2 -> node2" in fleet_text(result, "en")


def test_clocks_of_hosts_may_differ(tmp_path: Path) -> None:
    answers = packed("compute", tmp_path)
    directory = tmp_path / "traces1"
    recording = gather(directory)
    recording.manifest.start_ns += 30_000_000_000
    answers[1] = replace(answers[1], content=pack(recording))
    result = merge("slow_node_check", answers, {"traces": "/traces"})
    assert [row.rank for row in data(result).accused] == [2]


def test_a_shared_directory_gives_each_rank_once(tmp_path: Path) -> None:
    whole = pack(gather(TRACES / "compute"))
    result = merge("slow_node_check", [Answer(f"n{n}", "answered", content=whole) for n in range(3)], {})
    assert ([row.rank for row in data(result).accused], result.disputed) == ([2], [])


def test_a_rank_of_which_hosts_give_different_traces_is_used_of_neither(tmp_path: Path) -> None:
    answers = packed("compute", tmp_path)
    answers.append(Answer("node9", "answered", content=pack(gather(TRACES / "nothing"))))
    result = merge("slow_node_check", answers, {})
    assert [one.hosts for one in result.disputed] == [[f"node{n}", "node9"] for n in range(4)]
    assert (result.verdict, data(result).verdict, result.findings) == ("unknown", "cannot_tell", [])


def test_without_the_slow_ranks_host_nobody_is_accused_for_it(tmp_path: Path) -> None:
    answers = packed("compute", tmp_path)
    answers[2] = Answer("node2", "unreachable", "no connection")
    result = merge("slow_node_check", answers, {})
    assert result.findings == []
    assert result.verdict in ("unknown", "clear_in_part")


@pytest.mark.parametrize("content", [b"", b"PK", b"x" * 1000])
def test_what_is_no_recording_is_reported(content: bytes, tmp_path: Path) -> None:
    answers = packed("nothing", tmp_path)
    answers[0] = Answer("node0", "answered", content=content)
    result = merge("slow_node_check", answers, {})
    (missing,) = result.missing
    assert (missing.status, missing.hosts) == ("invalid", "node0")
    assert "its ranks cannot be read" in missing.details[0]
