"""The official conformance runner gives what docs/conformance.md says."""

from __future__ import annotations

import pytest
from conformance import report, scenarios
from conformance.scenarios import Outcome, Requirements

Outcomes = dict[str, dict[str, Outcome]]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """What every scenario gives."""
    return scenarios.run_all()


@pytest.fixture(scope="module")
def required(outcomes: Outcomes) -> dict[str, Requirements]:
    """What the installed runner requires."""
    return {version: scenarios.requirements(version) for version in outcomes}


@pytest.mark.thorough
@pytest.mark.parametrize("version", scenarios.VERSIONS)
def test_exactly_the_known_checks_fail(version: str, outcomes: Outcomes) -> None:
    known = {name: tuple(sorted(one["checks"])) for name, one in report.KNOWN["failing"].get(version, {}).items()}
    assert {name: one.failed for name, one in outcomes[version].items() if one.failed} == known


@pytest.mark.thorough
@pytest.mark.parametrize("version", scenarios.VERSIONS)
def test_every_scored_scenario_passes(version: str, outcomes: Outcomes, required: dict[str, Requirements]) -> None:
    assert {report.result(outcomes[version][name]) for name in required[version].scored} == {"passed"}


@pytest.mark.thorough
def test_the_report_is_current(outcomes: Outcomes, required: dict[str, Requirements]) -> None:
    assert report.PAGE.read_text() == report.page(outcomes, required), "run `make conformance`"


@pytest.mark.thorough
def test_what_is_known_concerns_scenarios_that_run(outcomes: Outcomes) -> None:
    named = {*report.KNOWN["fixture_only"], *report.KNOWN["remarks"]}
    assert named <= {name for found in outcomes.values() for name in found}


def test_a_failed_check_is_not_hidden_by_others() -> None:
    checks = [{"id": "a", "status": "SUCCESS"}, {"id": "a", "status": "FAILURE"}, {"id": "b", "status": "SKIPPED"}]
    found = scenarios.outcome(checks)
    assert (found.passed, found.failed, found.skipped, report.result(found)) == (1, ("a",), ("b",), "failed")


def test_a_scenario_without_checks_has_not_run() -> None:
    skipped = scenarios.outcome([{"id": "a", "status": "SKIPPED"}, {"id": "b", "status": "INFO"}])
    assert report.result(skipped) == "not run"
