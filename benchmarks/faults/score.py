"""Compare an answer with the known cause of the case."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

from pydantic import BaseModel

from benchmarks.faults.answer import Answer
from benchmarks.faults.case import Case
from benchmarks.faults.judgement import judgement
from benchmarks.faults.key import PastCase
from benchmarks.faults.scenario import Dimension
from benchmarks.faults.source import Place

Outcome = Literal["right", "weak", "wrong", "abstained", "false_healthy", "false_alarm", "quiet"]
_STRONG = ("confirmed", "likely")
_CALM = ("healthy", "idle")
_CODE = re.compile(r"(?P<function>[^\s(]+) \((?P<file>[^:()]+):(?P<line>\d+)\)")
_EVIDENCE = 3  # further pieces do not count, else an answer that lists every measure would be right


class Score(BaseModel):
    """The score of one answer. `top1`, `top3`: a right cause is first, or among three; None for controls.

    `outcome` of a fault: `right` (right cause first, and confirmed or likely), `weak` (right cause first, not asserted;
    or a cause of `also` asserted), `wrong` (another cause asserted), `false_healthy` (verdict healthy or idle), else
    `abstained`. Of a control: `false_alarm`, or `quiet`; `false_healthy` if its job suffers, so that neither healthy
    nor idle is an accepted verdict. `scope`: by dimension whether an accepted fact is in the answer. `evidence`: one
    of the first three measures shows the mechanism of an accepted cause; `advice`: the first piece of advice removes
    one; None for controls. `tempted`: a cause of `tempting` is asserted; None without such. `account`: largest
    difference between the shares of the log's phases and those of the answer, points of the window.
    """

    outcome: Outcome
    top1: bool | None = None
    top3: bool | None = None
    verdict_ok: bool = False
    tempted: bool | None = None
    scope: dict[Dimension, bool] = {}
    evidence: bool | None = None
    advice: bool | None = None
    account: float | None = None


def score(case: Case | PastCase, answer: Answer, shares: dict[str, float]) -> Score:
    """Score an answer; `shares`: by phase of the log, its share of the observed time in percent."""
    expected = case.scenario.expected
    accepted = set(expected.causes)
    strong = answer.verdict in _STRONG
    first = answer.causes[0] if answer.causes else None
    common: dict[str, Any] = {
        "verdict_ok": answer.verdict in expected.verdicts,
        "tempted": strong and first in expected.tempting if expected.tempting else None,
        "scope": {dimension: found(case, dimension, facts, answer) for dimension, facts in expected.scope.items()},
        "account": account(case, answer, shares),
    }
    if case.scenario.control:
        alarm = strong and first not in expected.also
        calm = answer.verdict in _CALM and not set(_CALM) & set(expected.verdicts)
        return Score(outcome="false_alarm" if alarm else "false_healthy" if calm else "quiet", **common)
    outcome: Outcome = "abstained"
    if answer.verdict in _CALM and answer.verdict not in expected.verdicts:
        outcome = "false_healthy"
    elif first in accepted or (not accepted and answer.verdict in expected.verdicts):
        outcome = "right" if answer.verdict in expected.verdicts else "weak"
    elif strong:
        outcome = "weak" if first in expected.also else "wrong"
    return Score(
        outcome=outcome,
        top1=first in accepted,
        top3=bool(accepted & set(answer.causes[:3])),
        evidence=shows_mechanism(answer, expected.causes),
        advice=removes_cause(answer, expected.causes),
        **common,
    )


def shows_mechanism(answer: Answer, causes: list[str]) -> bool:
    """Return whether one of the first measures of the answer, with a value above 0, is accepted for one of `causes`."""
    measured = dict.fromkeys(one.measure for one in answer.evidence if one.value)
    return bool(set(list(measured)[:_EVIDENCE]) & set(judgement().of(causes).measures))


def removes_cause(answer: Answer, causes: list[str]) -> bool:
    """Return whether the first piece of advice is accepted for one of `causes`."""
    return bool(answer.advice) and answer.advice[0].action in judgement().of(causes).actions


def found(case: Case | PastCase, dimension: Dimension, facts: list[str], answer: Answer) -> bool:
    """Return whether one of the accepted facts of a dimension is in the answer."""
    stated = answer.scope.get(dimension, [])
    if dimension == "code":
        return any(is_at(text, case.places[fact]) for fact in facts for text in stated)
    if dimension == "pid":
        pids = {str(case.pids[role]) for role in facts if role in case.pids}
        owners = {str(case.threads.get(int(text), text)) for text in stated if text.isdigit()}
        return bool(pids & owners)
    if dimension == "wait":
        return bool(set(facts) & set(stated))
    known = [str(case.facts[fact]) for fact in facts]
    return any(fact in text for fact in known for text in stated)


def is_at(text: str, place: Place) -> bool:
    """Return whether a text such as ``save (train.py:41)`` names the place: its line, or its function."""
    for match in _CODE.finditer(text):
        if match["file"].rpartition("/")[2] == place.file and (
            int(match["line"]) == place.line or match["function"].rpartition(".")[2] == place.function
        ):
            return True
    return False


def account(case: Case | PastCase, answer: Answer, shares: dict[str, float]) -> float | None:
    """Return the largest difference between logged and answered shares; None if the answer has no account."""
    if not answer.rows or not case.scenario.account:
        return None
    return max(
        abs(
            shares.get(phase, 0.0)
            - sum(row.pct for row in answer.rows if any(_on_line(row.code, case.places[m]) for m in marks.split()))
        )
        for phase, marks in case.scenario.account.items()
    )


def _on_line(text: str, place: Place) -> bool:
    return any(
        match["file"].rpartition("/")[2] == place.file and int(match["line"]) == place.line
        for match in _CODE.finditer(text)
    )


def wilson(right: float, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a proportion (Wilson 1927), as fractions; (0, 1) without trials."""
    if not total:
        return 0.0, 1.0
    share = right / total
    middle = share + z * z / (2 * total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
