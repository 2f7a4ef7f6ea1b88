"""Count results: shares with intervals, by diagnoser, scenario, group and verdict, and the goals. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.faults.diagnosers import in_order, is_baseline
from benchmarks.faults.results import Result
from benchmarks.faults.score import wilson

STRONG = ("confirmed", "likely")
VERDICTS = ("confirmed", "likely", "inconclusive", "healthy", "idle")
CONTROL = "no fault"
"""Expected cause of a control, in the confusion matrix."""


@dataclass(frozen=True)
class Share:
    """`hits` of `of`, with the 95 % interval in percent (Wilson 1927).

    `scenarios`: of how many scenarios they are. The interval counts each as one trial: its repeats are much alike.
    """

    hits: int
    of: int
    low_pct: float
    high_pct: float
    scenarios: int = 1

    @property
    def pct(self) -> float | None:
        """Return the share in percent, None without trials."""
        return 100 * self.hits / self.of if self.of else None

    def __str__(self) -> str:
        if not self.of:
            return "-"
        return (
            f"{self.hits} of {self.of} ({100 * self.hits / self.of:.0f} %, {self.low_pct:.0f} to {self.high_pct:.0f})"
        )


@dataclass(frozen=True)
class Goal:
    """A goal and what was reached; `met` is None without cases."""

    name: str
    goal: str
    reached: str
    met: bool | None


@dataclass
class Summary:
    """The score of one diagnoser.

    `measures`: shares by name. `verdicts`: how often the answer was right, by its verdict. `scenarios`: shares of right
    answers (of quiet ones for controls), with intervals over their repeats. `groups`: by group of faults, shares by
    measure. `confusion`: by expected and answered cause, how often. `tempting`: how often each cause was asserted where
    it is a tempting wrong one. Medians are None without values.
    """

    diagnoser: str
    baseline: bool
    faults: int
    fault_scenarios: int
    controls: int
    control_scenarios: int
    failed: int
    measures: dict[str, Share] = field(default_factory=dict)
    verdicts: dict[str, Share] = field(default_factory=dict)
    scenarios: dict[str, Share] = field(default_factory=dict)
    groups: dict[str, dict[str, Share]] = field(default_factory=dict)
    confusion: dict[str, dict[str, int]] = field(default_factory=dict)
    tempting: dict[str, int] = field(default_factory=dict)
    seconds_median: float | None = None
    seconds_max: float | None = None
    slowdown_median: float | None = None
    slowdown_of: int = 0
    goals: list[Goal] = field(default_factory=list)

    @property
    def unstable(self) -> list[str]:
        """Return the scenarios that are right in some repeats only."""
        return [name for name, one in self.scenarios.items() if 0 < one.hits < one.of]


def share(values: Iterable[bool | None]) -> Share:
    """Count the values of independent trials; None is no trial."""
    return _share((str(number), value) for number, value in enumerate(values))


def share_of(results: Iterable[Result], holds: Callable[[Result], bool | None]) -> Share:
    """Count the results for which a statement holds; None is no trial. Repeats of a scenario are not independent."""
    return _share((result.scenario, holds(result)) for result in results)


def _share(values: Iterable[tuple[str, bool | None]]) -> Share:
    """Count values by cluster. Their mean, with as many trials as clusters, gives the interval: the design effect of
    clusters of equal size that vary only between each other, its upper bound (Kish 1965).
    """
    counted = [(cluster, bool(value)) for cluster, value in values if value is not None]
    hits, clusters = sum(value for _, value in counted), len({cluster for cluster, _ in counted})
    low, high = wilson(hits * clusters / max(1, len(counted)), clusters)
    return Share(hits, len(counted), round(100 * low, 1), round(100 * high, 1), clusters)


def outcome(result: Result) -> str:
    """Return the outcome of a result; ``failed`` without an answer, ``void`` if it does not count."""
    if result.void:
        return "void"
    return result.score.outcome if result.score else "failed"


def verdict(result: Result) -> str:
    """Return the verdict of the answer, empty without one."""
    return result.answer.verdict if result.answer else ""


def is_right(result: Result) -> bool:
    """Return whether the answer is right: the cause of a fault, or no false alarm."""
    return outcome(result) in ("right", "quiet")


def answered(result: Result) -> str:
    """Return the asserted cause, or the verdict in brackets if none is asserted."""
    if result.answer is None:
        return "(failed)"
    causes = result.answer.causes
    return causes[0] if causes and result.answer.verdict in STRONG else f"({result.answer.verdict})"


def common(results: Sequence[Result]) -> list[Result]:
    """Return the results of the cases that count for every diagnoser: voids differ, so their own cases do too."""
    counted: dict[tuple[str, int, str], list[Result]] = {}
    for result in results:
        if not result.void:
            counted.setdefault((result.scenario, result.repeat, result.commit), []).append(result)
    names = {result.diagnoser for result in results}
    return [one for case in counted.values() if {r.diagnoser for r in case} == names for one in case]


def summaries(results: Sequence[Result]) -> list[Summary]:
    """Return the score of each diagnoser, whystall's first, baselines last."""
    names = in_order({result.diagnoser for result in results})
    names.sort(key=is_baseline)
    return [summary(name, [result for result in results if result.diagnoser == name]) for name in names]


def summary(name: str, results: Sequence[Result]) -> Summary:
    """Return the score of one diagnoser. A diagnoser that failed gave no right answer."""
    counted = [result for result in results if not result.void]
    faults = [result for result in counted if not result.control]
    controls = [result for result in counted if result.control]
    seconds = [result.seconds for result in counted if result.seconds is not None and not result.emulated]
    slowdowns = [result.slowdown for result in counted if result.slowdown is not None and not result.emulated]
    found = Summary(
        diagnoser=name,
        baseline=is_baseline(name),
        faults=len(faults),
        fault_scenarios=len({result.scenario for result in faults}),
        controls=len(controls),
        control_scenarios=len({result.scenario for result in controls}),
        failed=sum(outcome(result) == "failed" for result in counted),
        measures=measures(faults, controls),
        verdicts={one: share_of([r for r in counted if verdict(r) == one], _right_by_strength) for one in VERDICTS},
        scenarios=_by(counted, lambda r: r.scenario, is_right),
        groups={
            group: measures([r for r in faults if r.group == group], []) for group in sorted({r.group for r in faults})
        },
        confusion=confusion(counted),
        tempting=dict(Counter(answered(r) for r in counted if r.score and r.score.tempted).most_common()),
        seconds_median=statistics.median(seconds) if seconds else None,
        seconds_max=max(seconds, default=None),
        slowdown_median=statistics.median(slowdowns) if slowdowns else None,
        slowdown_of=len(slowdowns),
    )
    found.goals = goals(found, counted)
    return found


def _by(results: Sequence[Result], key: Callable[[Result], str], right: Callable[[Result], bool]) -> dict[str, Share]:
    return {one: share(right(r) for r in results if key(r) == one) for one in sorted({key(r) for r in results})}


def measures(faults: Sequence[Result], controls: Sequence[Result]) -> dict[str, Share]:
    """Return the shares of faults, or controls, for which each statement holds."""
    asked = {r.scenario: dict.fromkeys(r.score.scope, False) for r in faults if r.score}  # without an answer: not named
    named = [(r.scenario, r.score.scope if r.score else asked.get(r.scenario, {})) for r in faults]
    facts = [(scenario, hit) for scenario, scope in named for hit in scope.values()]
    return {
        "root cause first": share_of(faults, lambda r: bool(r.score and r.score.top1)),
        "root cause among three": share_of(faults, lambda r: bool(r.score and r.score.top3)),
        "asserted and right": share_of(faults, lambda r: outcome(r) == "right"),
        "asserted and wrong": share_of(faults, lambda r: outcome(r) == "wrong"),
        "weak": share_of(faults, lambda r: outcome(r) == "weak"),
        "abstained": share_of(faults, lambda r: outcome(r) in ("abstained", "failed")),
        "false healthy": share_of([*faults, *controls], lambda r: outcome(r) == "false_healthy"),
        "facts of the scope named": _share(facts),
        "evidence measures the mechanism": share_of(faults, lambda r: r.score.evidence if r.score else False),
        "first advice removes the cause": share_of(faults, lambda r: r.score.advice if r.score else False),
        "tempting wrong cause asserted": share_of([*faults, *controls], lambda r: r.score.tempted if r.score else None),
        "false alarms on controls": share_of(controls, lambda r: outcome(r) == "false_alarm"),
    }


def _right_by_strength(result: Result) -> bool:
    """Return whether the verdict was deserved: the right cause first, or a control without an alarm."""
    if result.control:
        return is_right(result)
    return bool(result.score and result.score.top1)


def confusion(results: Iterable[Result]) -> dict[str, dict[str, int]]:
    """Return by expected cause (the best of those accepted) how often each answer was given."""
    found: dict[str, Counter[str]] = {}
    for result in results:
        expected = CONTROL if result.control else result.expected[0]
        found.setdefault(expected, Counter())[answered(result)] += 1
    return {expected: dict(found[expected].most_common()) for expected in sorted(found)}


def wrongly_confirmed(results: Iterable[Result]) -> list[Result]:
    """Return the results with a wrong cause and the strongest verdict, on faults and controls."""
    return [r for r in results if verdict(r) == "confirmed" and outcome(r) in ("wrong", "false_alarm")]


def goals(found: Summary, counted: Sequence[Result]) -> list[Goal]:
    """Return the goals of the benchmark beside what the diagnoser reached."""
    wrong = len(wrongly_confirmed(counted))
    confirmed = found.verdicts["confirmed"].of

    def at_least(name: str, least: float) -> Goal:
        one = found.measures[name]
        return Goal(name, f">= {least:.0f} %", str(one), None if one.pct is None else one.pct >= least)

    def at_most(name: str, most: float) -> Goal:
        one = found.measures[name]
        return Goal(name, f"<= {most:.0f} %" if most else "0", str(one), None if one.pct is None else one.pct <= most)

    def below(name: str, value: float | None, most: float, text: str) -> Goal:
        return Goal(name, text, "-" if value is None else f"{value:.1f}", None if value is None else value < most)

    slowdown = None if found.slowdown_median is None else 100 * found.slowdown_median
    return [
        at_least("root cause first", 90),
        at_least("facts of the scope named", 85),
        Goal("wrong and confirmed", "0", f"{wrong} of {confirmed} confirmed", wrong == 0 if counted else None),
        at_least("asserted and right", 80),
        at_most("false healthy", 0),
        at_most("false alarms on controls", 2),
        below("seconds to the verdict, median", found.seconds_median, 20, "< 20"),
        below("slowdown of the job in %, median", slowdown, 5, "< 5"),
    ]
