"""Compare two runs of one configuration: whether the step changed, in which steps, and which part on which ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from whystall.tools.contract.findings import Finding
from whystall.tools.contract.text import clean
from whystall.tools.ranks.analysis.analyse import JobAnalysis
from whystall.tools.ranks.compare_runs.configuration import common
from whystall.tools.ranks.compare_runs.findings import ALPHA, Culprit, Differences, culprits
from whystall.tools.ranks.compare_runs.parts import OWN, PARTS, Steps, by_rank, mean_ms, odd_steps, steps_of
from whystall.tools.ranks.compare_runs.tables import CompareData, OperatorRow, PartRow, RankChange, Shape, SlowStep
from whystall.tools.ranks.compare_runs.work import collectives, operators
from whystall.tools.ranks.job import Job
from whystall.tools.ranks.statistics.probability import corrected, median, spread
from whystall.tools.ranks.statistics.two_samples import more_often, rank_test, shift

LEAST_STEPS = 5
"""With fewer, even runs without any overlap differ by chance in more than one of a hundred comparisons."""
_LEAST_FOR_TAIL = 8
_FAR = 3.0
"""A step is an outlier when it is so many interquartile distances above the upper quartile."""
_CLEAR = 3.0
"""Slow steps are separated from usual ones if they lie so many standard deviations apart."""
_MOST_STEPS = 0.8
_SURE = 0.001
"""A difference that no part explains must be more significant: parts are a second witness."""


@dataclass
class Runs:
    """Both runs, and the answer as it grows."""

    data: CompareData
    before: JobAnalysis
    after: JobAnalysis
    min_pct: float

    def __post_init__(self) -> None:
        self.ranks = common(self.before.job, self.after.job)
        owns = (self.before.own, self.after.own)
        loader = all(bool((own["loader_ns"] >= 0).all()) for own in owns)
        self.waits = all(one.waits.height > 0 for one in (self.before, self.after))
        self.one, self.other = (steps_of(own, self.ranks, loader=loader, waits=self.waits) for own in owns)
        self.culprits: list[Culprit] = []
        # steps of the later run that are slow, if only some are
        self.affected: list[int] | None = None

    @property
    def differs(self) -> bool:
        """Whether the steps differ by more than chance."""
        return self.data.verdict in ("slower", "faster")

    def judge(self) -> None:
        """Fill in the answer."""
        data = self.data
        data.steps_before, data.steps_after = len(self.one.numbers), len(self.other.numbers)
        if not data.steps_before or not data.steps_after:
            data.reasons.append("few_steps")
            return
        self._step()
        if "other_format" not in data.reasons:
            data.parts = self._parts()
            data.ranks = self._ranks()
            if self.differs:
                self.culprits = culprits(self.one, self.other, data.change_ms or 0.0, self.affected)
            data.operators = self._operators()
        if self.waits:
            runs = [(one.waits, one.matched) for one in (self.before, self.after)]
            data.collectives = collectives(runs[0], runs[1], (data.steps_before, data.steps_after))
        if data.verdict == "slower":
            data.slow_steps = self._slow_steps()

    def findings(self, window_ns: int) -> list[Finding]:
        """Return the findings; none if it is undecided, and normal only if a difference could not hide."""
        data = self.data
        if not self.differs:
            alike = data.verdict == "none"
            return [Differences(data, window_ns, self.min_pct).step()] if alike else []
        found = Differences(data, window_ns, self.min_pct).of(self.culprits)
        if len(found) > 1:
            return found
        if (data.p_value or 0.0) >= _SURE:  # neither the steps nor any part of them is significant
            data.verdict, data.shape, data.began_step, data.slow_steps = "cannot_tell", "", None, []
            data.reasons.append("too_noisy")
            return []
        data.reasons.append("unexplained")
        return found

    # --- the step -----------------------------------------------------------------------------------------

    def _step(self) -> None:
        data = self.data
        rare, far = self._more_far_steps()
        if rare >= ALPHA:
            odd = [odd_steps(run) for run in (self.one, self.other)]
            self.one, self.other = self.one.without(odd[0]), self.other.without(odd[1])
            data.set_aside = sum(map(len, odd))
            data.reasons += ["odd_steps"] if data.set_aside else []
        before, after = self.one.series("step_ns"), self.other.series("step_ns")
        data.steps_before, data.steps_after = len(before), len(after)
        data.step_before_ms, data.step_after_ms = mean_ms(before), mean_ms(after)
        data.median_before_ms, data.median_after_ms = median(before) / 1e6, median(after) / 1e6
        data.change_ms = data.step_after_ms - data.step_before_ms
        data.change_pct = 100 * data.change_ms / data.step_before_ms if data.step_before_ms else 0.0
        if min(len(before), len(after)) < LEAST_STEPS:
            data.reasons.append("few_steps")
            return
        test = shift(before, after)
        data.p_value, data.superior = test.p_value, test.superior
        data.low_ms, data.high_ms = test.low / 1e6, test.high / 1e6
        shifted = test.p_value < ALPHA and (test.low > 0 or test.high < 0)
        if (shifted or rare < ALPHA) and abs(data.change_pct) >= self.min_pct:
            data.verdict = "slower" if data.change_ms > 0 else "faster"
            if not shifted:
                data.p_value = rare
            if data.change_ms > 0:
                data.shape, slow = _shape(before, after)
                if not shifted and data.shape != "since_step":
                    data.shape, slow = "some_steps", [place for place, value in enumerate(after) if value > far]
                if data.shape in ("since_step", "some_steps") and slow:
                    self.affected = [self.other.numbers[place] for place in slow]
                if data.shape == "since_step":
                    data.began_step = self.other.numbers[slow[0]]
            return
        data.verdict = "none"
        bound = self.min_pct / 100 * data.step_before_ms
        if shifted:
            data.reasons.append("below_min")
        elif data.high_ms >= bound or data.low_ms <= -bound:
            data.verdict = "cannot_tell"
            data.reasons.append("too_noisy")

    def _more_far_steps(self) -> tuple[float, float]:
        """Return the chance that one run has so many more outliers than the other, and the threshold of an outlier."""
        pair = [self.one.series("step_ns"), self.other.series("step_ns")]
        if min(map(len, pair)) < _LEAST_FOR_TAIL:
            return 1.0, 0.0
        usual = sorted(pair[0] if mean_ms(pair[0]) <= mean_ms(pair[1]) else pair[1])
        low, high = usual[len(usual) // 4], usual[3 * len(usual) // 4]
        far = high + _FAR * (high - low)
        hits = [sum(value > far for value in one) for one in pair]
        return more_often(hits[0], len(pair[0]), hits[1], len(pair[1])), far

    # --- which part -----------------------------------------------------------------------------------------

    def _parts(self) -> list[PartRow]:
        rows = []
        whole, affected = self.data.change_ms or 0.0, set(self.affected or ())
        for part in PARTS:
            before, after = self.one.series(part), self.other.series(part)
            means = mean_ms(before), mean_ms(after)
            if self.affected is not None:
                after = [value for step, value in zip(self.other.numbers, after, strict=True) if step in affected]
            change = means[1] - means[0]
            rows.append(
                PartRow(
                    what=part,
                    before_ms=means[0],
                    after_ms=means[1],
                    change_ms=change,
                    of_change_pct=100 * change / whole if self.differs else None,
                    p_value=rank_test(before, after)[0],
                )
            )
        return sorted(rows, key=lambda row: (row.what == "rest", -abs(row.change_ms)))

    def _ranks(self) -> list[RankChange]:
        """Return every rank that is compared, the largest change of its own time first."""
        hosts = {row["rank"]: clean(row["host"]) for row in self.after.job.table("ranks").iter_rows(named=True)}
        one, other = (by_rank(run) for run in (self.one, self.other))
        rows = []
        for rank in sorted(one.keys() & other.keys()):
            own = [frame[rank].select(pl.sum_horizontal(*OWN)).to_series().to_list() for frame in (one, other)]
            means = [
                {name: mean_ms(frame[rank][name].to_list()) for name in ("step_ns", *PARTS)} for frame in (one, other)
            ]
            changes = {name: means[1][name] - means[0][name] for name in means[0]}
            rows.append(
                RankChange(
                    rank=rank,
                    host=hosts.get(rank, ""),
                    step_before_ms=means[0]["step_ns"],
                    step_after_ms=means[1]["step_ns"],
                    step_change_ms=changes["step_ns"],
                    compute_change_ms=changes["compute"],
                    loader_change_ms=changes["loader"],
                    gap_change_ms=changes["gap"],
                    transfer_change_ms=changes["transfer"],
                    waiting_change_ms=changes["communication"],
                    rest_change_ms=changes["rest"],
                    own_before_ms=mean_ms(own[0]),
                    own_after_ms=mean_ms(own[1]),
                    p_value=corrected(rank_test(*own)[0], len(one)),
                )
            )
        return sorted(rows, key=lambda row: (-abs(row.own_after_ms - row.own_before_ms), row.rank))

    def _operators(self) -> list[OperatorRow]:
        """Return work of the ranks whose computing changed, else of all."""
        ranks = next((one.ranks for one in self.culprits if one.what == "compute"), self.ranks)
        work = [
            mean_ms(run.rows.filter(pl.col("rank").is_in(list(ranks)))["compute"].to_list())
            for run in (self.one, self.other)
        ]
        counts = [_steps_traced(job, run) for job, run in ((self.before.job, self.one), (self.after.job, self.other))]
        return operators(self.before.job, self.after.job, ranks, (counts[0], counts[1]), (work[0], work[1]))

    def _slow_steps(self) -> list[SlowStep]:
        """Return steps of the later run by what they take beyond the median of the earlier one."""
        usual = median(self.one.series("step_ns"))
        parts = {part: median(self.one.series(part)) for part in PARTS}
        rows = self.other.path.with_columns(excess=pl.col("step_ns") - usual).filter(pl.col("excess") > 0)
        whole = rows["excess"].sum()
        return [
            SlowStep(
                step=row["step"],
                after_ms=row["step_ns"] / 1e6,
                excess_ms=row["excess"] / 1e6,
                of_excess_pct=100 * row["excess"] / whole,
                rank=row["rank"],
                what=max(PARTS, key=lambda part: row[part] - parts[part]),
            )
            for row in rows.sort("excess", descending=True).iter_rows(named=True)
        ]


def _steps_traced(job: Job, run: Steps) -> int:
    """Return how many steps the tables of operators cover, on the median rank."""
    steps = job.table("steps").filter(pl.col("step") >= 0).group_by("rank").len()["len"].to_list()
    return round(median(steps)) if steps else len(run.numbers)


def _shape(before: Sequence[float], after: Sequence[float]) -> tuple[Shape, list[int]]:
    """Return which steps of `after` are slow, if that is clear: all, those from one on, or some; and their rows."""
    usual = median(before)
    upper = median(sorted(after)[len(after) // 2 :])
    if upper - usual < _CLEAR * max(spread(before), 1.0):
        return "all_steps", []
    slow = [value > (usual + upper) / 2 for value in after]
    if sum(slow) >= _MOST_STEPS * len(slow):
        return "all_steps", []
    # the split with the fewest steps on the wrong side
    wrong = [sum(slow[:at]) + sum(not one for one in slow[at:]) for at in range(len(slow))]
    at = min(range(len(wrong)), key=wrong.__getitem__)
    if at >= LEAST_STEPS - 2 and wrong[at] <= (1 - _MOST_STEPS) / 2 * len(slow):
        return "since_step", list(range(at, len(slow)))
    return "some_steps", [place for place, one in enumerate(slow) if one]
