"""Scores of a classification against labels: accuracy, abstention, confusion, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pydantic import Field

from whystall.knowledge_base.classify.rules import UNKNOWN
from whystall.knowledge_base.models import Model
from whystall.knowledge_base.shares import Share, share


class ClassScore(Model):
    """One class. `recall`: share of its members that got this class. `precision`: share of those that got this class
    and belong to it.
    """

    category: str
    recall: Share | None
    precision: Share | None
    abstained: int


class Confusion(Model):
    """How many of `truth` were classified as `given`."""

    truth: str
    given: str
    count: int


class Score(Model):
    """`right`: share classified correctly, ``unknown`` included. `answered`: share classified as anything. `precise`:
    share of the answered that is correct. `by`: `precise` by what decided.
    """

    right: Share | None
    answered: Share | None
    precise: Share | None
    classes: list[ClassScore] = Field(default_factory=list)
    by: dict[str, Share] = Field(default_factory=dict)
    confusion: list[Confusion] = Field(default_factory=list)


class Tally:
    """Counts pairs of label and result, in bounded memory."""

    def __init__(self) -> None:
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._by: Counter[tuple[str, bool]] = Counter()

    def add(self, truth: str, given: str, by: str) -> None:
        """Add a result. `by`: what decided (`Decision.by`)."""
        self._pairs[truth, given] += 1
        if given != UNKNOWN:
            self._by[by.partition(":")[0], truth == given] += 1

    @property
    def count(self) -> int:
        return self._pairs.total()

    def score(self) -> Score:
        names = dict.fromkeys(sorted({name for pair in self._pairs for name in pair}))
        answered = self._sum(pair for pair in self._pairs if pair[1] != UNKNOWN)
        hits = self._sum((name, name) for name in names if name != UNKNOWN)
        return Score(
            right=share(hits + self._pairs[UNKNOWN, UNKNOWN], self.count),
            answered=share(answered, self.count),
            precise=share(hits, answered),
            classes=[self._class(name) for name in names],
            by={
                name: found
                for name in sorted({name for name, _ in self._by})
                if (found := share(self._by[name, True], self._by[name, True] + self._by[name, False])) is not None
            },
            confusion=[
                Confusion(truth=truth, given=given, count=count)
                for (truth, given), count in sorted(self._pairs.items(), key=lambda item: (-item[1], item[0]))
                if truth != given
            ],
        )

    def _class(self, name: str) -> ClassScore:
        hits = self._pairs[name, name]
        return ClassScore(
            category=name,
            recall=share(hits, self._sum(pair for pair in self._pairs if pair[0] == name)),
            precision=share(hits, self._sum(pair for pair in self._pairs if pair[1] == name)),
            abstained=self._pairs[name, UNKNOWN] if name != UNKNOWN else 0,
        )

    def _sum(self, pairs: Iterable[tuple[str, str]]) -> int:
        return sum(self._pairs[pair] for pair in pairs)
