"""The difference between two runs as findings: the step first, then its causes, the largest first.

A part is reported if it makes at least a fifth of the change, is significant, and lies on ranks that the others wait
for: what takes longer where there is time to spare costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.text import clean
from whystall.tools.ranks.compare_runs.parts import OWN, Steps, by_rank, mean_ms, slack_ms
from whystall.tools.ranks.compare_runs.tables import CollectiveRow, CompareData, OperatorRow, PartRow
from whystall.tools.ranks.statistics.probability import corrected
from whystall.tools.ranks.statistics.two_samples import rank_test
from whystall.tools.timeline.rank_data.rank_list import rank_list

ALPHA = 0.01
"""Significance level: a difference that chance makes in more than one of a hundred comparisons is ignored."""
SHARE = 0.2
"""Share of the step's change that a part must make to be named."""
MOST, _APART = 0.5, 0.9
"""Few steps, or correlated ones, allow no test of each rank. One is named all the same when it makes half of a
significant change of the step, in nine of ten pairs of steps."""
_CRITICAL_PCT, _MAJOR_PCT = 20.0, 10.0  # as for a slow rank
_MOST_NAMED = 5


@dataclass(frozen=True)
class Culprit:
    """A part of a rank's own work that changed, on `ranks`; means over them, ms per step."""

    what: str
    ranks: tuple[int, ...]
    before_ms: float
    after_ms: float


def culprits(before: Steps, after: Steps, change_ms: float, affected: Sequence[int] | None) -> list[Culprit]:
    """Return the parts of own work, with their ranks, that make the change of the step. `affected`: steps of `after`
    that are slow; None: they are alike."""
    slack = slack_ms(after if change_ms > 0 else before)
    ranks = sorted(slack)
    one, other = (by_rank(run) for run in (before, after))
    found = []
    for part in OWN:
        changed: dict[int, tuple[float, float]] = {}
        for rank in ranks:
            if rank not in one or rank not in other:
                continue
            series = [frame[rank][part].to_list() for frame in (one, other)]
            means = mean_ms(series[0]), mean_ms(series[1])
            change = (means[1] - means[0]) * math.copysign(1, change_ms)
            if change < SHARE * abs(change_ms) or slack[rank] > change:
                continue
            tested = other[rank] if affected is None else other[rank].filter(pl.col("step").is_in(list(affected)))
            after_values = tested[part].to_list()
            p_value, superior = rank_test(series[0], after_values)
            apart = max(superior, 1 - superior) >= _APART and change >= MOST * abs(change_ms)
            if apart or corrected(p_value, len(ranks) * len(OWN)) < ALPHA:
                changed[rank] = means
        if changed:
            sums = [sum(means[place] for means in changed.values()) / len(changed) for place in (0, 1)]
            found.append(Culprit(part, tuple(sorted(changed)), sums[0], sums[1]))
    return sorted(found, key=lambda one: -abs(one.after_ms - one.before_ms))


@dataclass
class Differences:
    """Builds the findings of one comparison. `window_ns`: length of the recording."""

    data: CompareData
    window_ns: int
    min_pct: float
    found: list[tuple[float, Finding]] = field(default_factory=list)

    def of(self, own: Sequence[Culprit]) -> list[Finding]:
        """Return the step's finding and those of what makes the difference."""
        for one in own:
            self._difference(one.what, one.before_ms, one.after_ms, ranks=one.ranks)
        reported = {one.what for one in own}
        for part in self.data.parts:
            if self._matters(part) and part.what not in reported and part.what != "rest":
                key = self._key(self.data.collectives) if part.what == "transfer" else None
                self._part(part, key)
        if "compute" in reported or not own:
            self._operators(self.data.operators)
        self.found.sort(key=lambda pair: -pair[0])
        return [self.step(), *(finding for _, finding in self.found)]

    def step(self) -> Finding:
        """Return the finding on the step itself; normal when the runs are alike."""
        data, differs = self.data, self.data.verdict in ("slower", "faster")
        metrics = {
            "before_ms": data.step_before_ms or 0.0,
            "after_ms": data.step_after_ms or 0.0,
            "change_pct": data.change_pct or 0.0,
        } | ({} if data.p_value is None else {"p_value": data.p_value})
        return Finding(
            kind="run.step_time",
            subject=Subject(type="job"),
            interval=Interval(start_ns=0, end_ns=self.window_ns),
            metrics=metrics,
            severity=self._severity() if differs else Severity.INFO,
            polarity=Polarity.ABNORMAL if differs else Polarity.NORMAL,
        )

    def _matters(self, part: PartRow) -> bool:
        change = self.data.change_ms or 0.0
        return part.p_value < ALPHA and part.change_ms * math.copysign(1, change) >= SHARE * abs(change)

    def _key(self, rows: Sequence[CollectiveRow]) -> CollectiveRow | None:
        """Return the kind of operation that changed most in the same direction."""
        sign = math.copysign(1, self.data.change_ms or 0.0)
        alike = [row for row in rows if row.change_ms * sign > 0]
        return max(alike, key=lambda row: abs(row.change_ms), default=None)

    def _part(self, part: PartRow, key: CollectiveRow | None) -> None:
        if key is None:
            self._difference(part.what, part.before_ms, part.after_ms)
            return
        name = f"{key.op} {key.bytes} B x{key.size}"
        self._difference(
            part.what,
            part.before_ms,
            part.after_ms,
            name=name,
            ranks=key.ranks,
            counts=(key.count_before, key.count_after),
        )

    def _operators(self, rows: Sequence[OperatorRow]) -> None:
        change = self.data.change_ms or 0.0
        sign = math.copysign(1, change)
        for row in [row for row in rows if row.kind != "rest"][:_MOST_NAMED]:
            enough = abs(row.change_ms) * 100 >= self.min_pct * max(row.before_ms, 1e-9)
            if row.change_ms * sign >= SHARE * abs(change) and enough:
                counts = (row.count_before, row.count_after)
                name = clean(row.name)
                self._difference("operator", row.before_ms, row.after_ms, name=name, ranks=row.ranks, counts=counts)

    def _difference(
        self,
        what: str,
        before: float,
        after: float,
        *,
        name: str = "",
        ranks: Sequence[int] | str = (),
        counts: tuple[float, float] | None = None,
    ) -> None:
        change, whole = after - before, self.data.change_ms or 0.0
        on_ranks = ranks if isinstance(ranks, str) else rank_list(ranks)
        metrics = {"before_ms": before, "after_ms": after, "change_ms": change, "of_change_pct": 100 * change / whole}
        if counts is not None:
            metrics |= {"count_before": counts[0], "count_after": counts[1]}
        words = {"what": what, "name": name, "ranks": on_ranks}
        finding = Finding(
            kind="run.difference",
            subject=Subject(type="job"),
            interval=Interval(start_ns=0, end_ns=self.window_ns),
            metrics=metrics,
            attributes={key: word for key, word in words.items() if word},
            severity=self._severity(abs(change) / max(self.data.step_before_ms or 0.0, 1e-9) * 100),
            polarity=Polarity.ABNORMAL,
        )
        self.found.append((abs(change), finding))

    def _severity(self, pct: float | None = None) -> Severity:
        """Return the severity of a cost per step, at most the step's own loss; a faster run has none."""
        if self.data.verdict != "slower":
            return Severity.INFO
        whole = abs(self.data.change_pct or 0.0)
        pct = whole if pct is None else min(pct, whole)
        if pct >= _CRITICAL_PCT:
            return Severity.CRITICAL
        return Severity.MAJOR if pct >= _MAJOR_PCT else Severity.MINOR
