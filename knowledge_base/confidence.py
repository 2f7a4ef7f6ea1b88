"""How likely the first card of a search is right, from what it shares with the text (``catalog/confidence.yaml``)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache

from pydantic import Field

from whystall.knowledge_base.data import as_model, catalog, data_fault, read_yaml
from whystall.knowledge_base.models import Model


@dataclass(frozen=True)
class Signals:
    """What a card shares with a passage; every value is 0 to 1, but `information`.

    `coverage`: share of the passage's information; `complete`: all of it, which only short texts reach; `information`:
    logarithm of the covered information, in terms that one card has; `alike`: likeness in character n-grams; `lead`:
    root of the lead over the best card of another cause, relative to the score. `code_held`: the card has a code of the
    passage; `code_missed`: another card has; `code_unknown`: no card has. `names_unknown`: names of code that no card
    has, three of them counting as 1. `phrased`: share of the covered information that only the phrasings of the card
    have. `later`: not the first passage of a text; `chinese`.
    """

    coverage: float
    complete: float
    information: float
    alike: float
    lead: float
    code_held: float
    code_missed: float
    code_unknown: float
    names_unknown: float
    phrased: float
    later: float
    chinese: float


_NAMES = tuple(field.name for field in fields(Signals))


class Calibration(Model):
    """Logistic regression over `Signals`. `answer_from`: least confidence of an answer. `source`: what both were chosen
    on, and by which rule.
    """

    source: str = Field(min_length=1)
    answer_from: float = Field(gt=0, lt=1)
    intercept: float
    weights: dict[str, float]


def confidence(signals: Signals) -> float:
    """Return how likely the card with `signals` is right, 0 to 1."""
    calibration = _calibration()
    total = sum(calibration.weights[name] * getattr(signals, name) for name in _NAMES)
    return 1 / (1 + math.exp(-(calibration.intercept + total)))


def answers(sure: float) -> bool:
    """Return whether a card with confidence `sure` answers the text; others are only the nearest."""
    return sure >= _calibration().answer_from


@cache
def _calibration() -> Calibration:
    file = catalog("confidence.yaml")
    found = as_model(Calibration, read_yaml(file), file)
    if set(found.weights) != set(_NAMES):
        raise data_fault(file, "weights: one for each signal is required")
    return found
