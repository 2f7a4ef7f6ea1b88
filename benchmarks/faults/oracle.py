"""Prove that the workload is affected and that the mechanism is active. Otherwise the case is void."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.faults.case import Case
from benchmarks.faults.readings import Sample, value


@dataclass(frozen=True)
class Proof:
    """One check: its value, that of the baseline, and whether it holds."""

    reading: str
    value: float
    baseline: float | None
    holds: bool


def prove(case: Case, baseline: tuple[Sample, Sample], faulty: tuple[Sample, Sample]) -> list[Proof]:
    """Evaluate all checks of the case over the faulty span."""
    found = []
    for number, check in enumerate(case.scenario.oracle):
        now, before = value(case, number, *faulty), None
        holds = (check.at_least is None or now >= check.at_least) and (check.at_most is None or now <= check.at_most)
        if check.over_baseline is not None or check.under_baseline is not None:
            before = value(case, number, *baseline)
            holds = holds and before > 0
            holds = holds and (check.over_baseline is None or now >= check.over_baseline * before)
            holds = holds and (check.under_baseline is None or now <= check.under_baseline * before)
        found.append(Proof(check.reading, round(now, 4), before if before is None else round(before, 4), holds))
    return found
