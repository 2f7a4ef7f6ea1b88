"""The score of evidence and advice, the counts and the pages of the benchmark of faults."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from making import finding

from benchmarks.faults import diagnosers, report
from benchmarks.faults.adapters import whystall_words
from benchmarks.faults.answer import Answer
from benchmarks.faults.judgement import judgement
from benchmarks.faults.results import Result, read
from benchmarks.faults.scenario import HERE, load
from benchmarks.faults.score import removes_cause, shows_mechanism
from benchmarks.faults.summary import confusion, is_right, share, share_of, summary
from whystall.knowledge_base.causes import load_causes, ranked_remedies
from whystall.tools.contract.kinds import KINDS
from whystall.tools.host.common.path_codes import MODES, WAITS

EXPECTED = sorted({cause for scenario in load() for cause in scenario.expected.causes})


def test_words_of_the_judgement_are_declared() -> None:
    found = judgement()
    for one in found.causes.values():
        assert set(one.measures) <= set(found.measures)
        assert set(one.actions) <= set(found.actions)
    assert set(EXPECTED) <= set(found.causes)


def test_the_documentation_lists_the_words() -> None:
    text = (HERE.parents[1] / "docs/benchmark.md").read_text(encoding="utf-8")
    for start, words in (("A `measure`", judgement().measures), ("An `action`", judgement().actions)):
        paragraph = text[text.index(f"{start} is one of") :].partition("\n\n")[0]
        assert re.findall(r"`(\w+)`", paragraph)[1:] == list(words)


def test_whystall_s_words_are_words_of_the_judgement() -> None:
    words = whystall_words._table()
    named = {*words["kinds"].values(), *words["waits"].values(), *words["modes"].values(), *words["calls"].values()}
    assert named <= set(judgement().measures)
    assert set(words["kinds"]) <= set(KINDS)
    assert set(words["waits"]) <= {*WAITS, "running"}
    assert set(words["modes"]) <= set(MODES)
    for cause, remedies in words["remedies"].items():
        assert set(remedies) <= {remedy.id for remedy in load_causes()[cause].remedies}
        assert set(remedies.values()) <= set(judgement().actions)


@pytest.mark.parametrize("cause", EXPECTED)
def test_the_first_remedy_of_a_cause_removes_it(cause: str) -> None:
    advice = whystall_words.advice(cause)
    assert [one["text"] for one in advice] == [remedy.text.en for remedy in ranked_remedies(load_causes()[cause])]
    for remedy in load_causes()[cause].remedies:
        for pattern in remedy.suits:
            words = {name: texts[0].replace("*", "x") for name, texts in pattern.attributes.items()}
            found = finding(pattern.kind, words=words)
            advised = whystall_words.advice(cause, cited=[found.model_dump(mode="json")])
            assert [one["text"] for one in advised] == [
                one.text.en for one in ranked_remedies(load_causes()[cause], [found])
            ]
    assert advice[0]["action"] in judgement().causes[cause].actions


def test_what_a_row_of_the_path_measures() -> None:
    measures = whystall_words.measures
    assert measures("path.wait", {"wait": "queue", "root_wait": "running"}) == ["handover_wait", "own_cpu"]
    assert measures("path.wait", {"wait": "file", "detail": "pwrite64 ext4"}) == ["file_write"]
    assert measures("path.wait", {"wait": "file", "detail": "fdatasync ext4"}) == ["file_sync"]
    assert measures("path.wait", {"wait": "pipe", "role": "subprocess"}) == ["handover_wait", "child_wait"]
    assert measures("path.running", {"mode": "system"}) == ["system_cpu"]
    assert measures("thread.time", {}) == []


def cited(*measures: str, value: float = 50.0) -> Answer:
    evidence = [{"measure": measure, "value": value} for measure in measures]
    return Answer.model_validate({"verdict": "likely", "evidence": evidence, "advice": [{"action": "raise_cpu_limit"}]})


def test_evidence_and_advice_are_judged_by_the_expected_cause() -> None:
    assert shows_mechanism(cited("cpu_wait", "throttled_time"), ["cgroup_cpu_throttling"])
    assert not shows_mechanism(cited("cpu_wait"), ["cgroup_cpu_throttling"])
    assert not shows_mechanism(cited("throttled_time", value=0.0), ["cgroup_cpu_throttling"])
    assert not shows_mechanism(cited("sleep", "own_cpu", "cpu_wait", "throttled_time"), ["cgroup_cpu_throttling"])
    assert removes_cause(cited(), ["cgroup_cpu_throttling"])
    assert not removes_cause(cited(), ["cpu_contention"])


def result(**values: object) -> Result:
    fields = {"scenario": "p01", "title": "t", "group": "g", "control": False, "repeat": 0, "diagnoser": "rules"}
    return Result.model_validate({**fields, "commit": "abc", "seed": 1, "expected": ["slow_peer"], **values})


def answered(outcome: str, verdict: str, cause: str = "", **values: object) -> Result:
    score = {"outcome": outcome, "top1": outcome == "right", "top3": outcome == "right", "scope": {"code": True}}
    score["tempted"] = {"wrong": True, "false_alarm": False}.get(outcome)
    answer = {"verdict": verdict, "causes": [cause] if cause else []}
    return result(score=score, answer=answer, seconds=10.0, slowdown=0.01, **values)


RESULTS = [
    answered("right", "confirmed", "slow_peer"),
    answered("wrong", "confirmed", "deadlock", repeat=1),
    answered("abstained", "inconclusive", repeat=2),
    answered("quiet", "healthy", scenario="c01", control=True, expected=[]),
    answered("false_alarm", "likely", "deadlock", scenario="c01", repeat=1, control=True, expected=[]),
    result(repeat=3, failed="exit status 1"),
    result(repeat=4, void="Void: not proved"),
    answered("right", "likely", "slow_peer", diagnoser="most_common"),
]


def test_counts_of_a_diagnoser() -> None:
    found = summary("rules", RESULTS[:-1])
    assert (found.faults, found.controls, found.failed) == (4, 2, 1)
    assert (found.measures["root cause first"].hits, found.measures["root cause first"].of) == (1, 4)
    assert (found.verdicts["confirmed"].hits, found.verdicts["confirmed"].of) == (1, 2)
    assert (found.verdicts["likely"].hits, found.verdicts["healthy"].hits) == (0, 1)
    assert {goal.name: goal.met for goal in found.goals} == {
        "root cause first": False,
        "facts of the scope named": False,
        "wrong and confirmed": False,
        "asserted and right": False,
        "false healthy": True,
        "false alarms on controls": False,
        "seconds to the verdict, median": True,
        "slowdown of the job in %, median": True,
    }
    assert confusion(RESULTS[:6]) == {
        "no fault": {"(healthy)": 1, "deadlock": 1},
        "slow_peer": {"slow_peer": 1, "deadlock": 1, "(inconclusive)": 1, "(failed)": 1},
    }


def test_repeats_of_a_scenario_are_one_trial_of_the_interval() -> None:
    right = {f"p{n:02}": n < 5 for n in range(10)}
    alike = [answered("right" if right[s] else "wrong", "likely", scenario=s, repeat=r) for s in right for r in (0, 1)]
    found, once = share_of(alike, is_right), share(right.values())
    assert (found.hits, found.of, found.scenarios) == (10, 20, 10)
    assert (found.low_pct, found.high_pct) == (once.low_pct, once.high_pct)


def test_the_page_shows_diagnosers_side_by_side_and_what_was_not_right(tmp_path: Path) -> None:
    report.write(RESULTS, tmp_path / "page.md", tmp_path / "page.json")
    assert read(tmp_path / "page.json") == RESULTS
    text = (tmp_path / "page.md").read_text()
    assert "2 scenarios, 7 cases, 1 void" in text
    assert "| cases of faults (scenarios) | 4 (1) | 1 (1) |" in text
    assert "| root cause first | 1 of 4 (25 %, 2 to 88) | 1 of 1 (100 %, 21 to 100) |" in text
    assert "1 of 6 cases (1 scenarios) count for every diagnoser; the table above" in text
    assert "| root cause first | 1 of 1 (100 %, 21 to 100) | 1 of 1 (100 %, 21 to 100) |" in text
    assert "| scenarios right in some repeats only | 2 | 0 |" in text
    assert "| p01 | t | **unstable** 1/4 (5 to 70) | 1/1 (21 to 100) |" in text
    assert "| tempting wrong cause asserted | 1 of 2 (50 %, 10 to 90) | - |" in text
    assert "| asserted | rules | most_common |\n|---|---|---|\n| deadlock | 1 | 0 |" in text
    assert "| slow_peer | **slow_peer 1**, deadlock 1, (inconclusive) 1, (failed) 1 |" in text
    assert "### Not right: 4" in text
    assert "| p01 #3 | t | failed |  (failed) | slow_peer | exit status 1 |" in text
    data = json.loads((tmp_path / "page.json").read_text())
    assert [one["diagnoser"] for one in data["diagnosers"]] == ["rules", "most_common"]
    assert len(data["results"]) == len(RESULTS)


def test_diagnosers_are_chosen_by_name_or_command() -> None:
    found = diagnosers.chosen(["rules,most_common", "mine=./mine.sh --a=b,c"])
    assert list(found) == ["rules", "most_common", "mine"]
    assert found["mine"] == "./mine.sh --a=b,c"
    assert list(diagnosers.chosen([])) == ["rules"]
    with pytest.raises(ValueError, match="unknown diagnoser 'rule'"):
        diagnosers.chosen(["rule"])
