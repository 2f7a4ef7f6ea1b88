"""Five faults and two controls of the benchmark of faults, diagnosed while they last."""

from __future__ import annotations

import shlex

import pytest

from benchmarks.faults.diagnosers import command
from benchmarks.faults.results import Result
from benchmarks.faults.runner import observe
from benchmarks.faults.scenario import load

RULES = [*shlex.split(command("rules")), "--duration", "6"]


def result_of(name: str) -> Result:
    """Run one case; a void one is repeated once, since other programs may have hidden the fault."""
    scenario = next(one for one in load() if one.id == name).model_copy(update={"baseline_s": 2.0})
    for repeat in range(2):
        (result,) = observe(scenario, repeat, 1, {"rules": RULES}, "test")
        if not result.void:
            break
    assert (result.void, result.failed) == ("", "")
    return result


# a disk, a quota, a signal, a lock within the job, a server beside it
@pytest.mark.parametrize("name", ["d01", "h02", "h03", "p03", "s01"])
def test_a_fault_is_proved_and_its_cause_is_found(name: str) -> None:
    result = result_of(name)
    assert result.score is not None
    assert result.score.outcome == "right", result.model_dump_json(indent=1)
    assert result.score.scope.get("code") is not False, result.model_dump_json(indent=1)
    assert result.score.evidence
    assert result.score.advice


@pytest.mark.parametrize("name", ["c01", "c03"])
def test_a_job_without_a_fault_gets_no_cause(name: str) -> None:
    result = result_of(name)
    assert result.score is not None
    assert result.score.outcome == "quiet", result.model_dump_json(indent=1)
