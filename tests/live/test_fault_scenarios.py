"""Two faults and a control of the benchmark of faults, diagnosed while they last."""

from __future__ import annotations

import shlex

import pytest

from benchmarks.faults.results import Result
from benchmarks.faults.run import RULES
from benchmarks.faults.runner import observe
from benchmarks.faults.scenario import load


def result_of(name: str) -> Result:
    """Run one case; a void one is repeated once, since other programs may have hidden the fault."""
    scenario = next(one for one in load() if one.id == name)
    for repeat in range(2):
        (result,) = observe(scenario, repeat, 1, {"rules": [*shlex.split(RULES), "--duration", "6"]}, "test")
        if not result.void:
            break
    assert (result.void, result.failed) == ("", "")
    assert result.score is not None
    return result


@pytest.mark.parametrize("name", ["d01", "h02"])
def test_a_fault_is_proved_and_its_cause_is_found(name: str) -> None:
    result = result_of(name)
    assert result.score is not None
    assert result.score.outcome == "right", result.model_dump_json(indent=1)


def test_a_job_without_a_fault_gets_no_cause() -> None:
    result = result_of("c01")
    assert result.score is not None
    assert result.score.outcome == "quiet", result.model_dump_json(indent=1)
