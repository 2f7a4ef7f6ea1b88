r"""Parse the text format of Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats/.

    # TYPE vllm:time_to_first_token_seconds histogram
    vllm:time_to_first_token_seconds_bucket{le="0.25",model_name="llama"} 17.0

It is foreign text: only samples of known metrics are kept, lines that are not understood are counted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from whystall.tools.collect.serving.catalogue import metrics

MOST_SAMPLES = 20_000
_MOST_LINE = 4096
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)[ \t]*(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*", re.ASCII)
_LABEL = re.compile(r'[ \t]*([A-Za-z_]\w*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)', re.ASCII)
_ESCAPED = re.compile(r"\\(.)")
_BOUNDLESS = {"+Inf": math.inf, "-Inf": -math.inf, "Inf": math.inf}


class Sample(NamedTuple):
    """A value of a known metric. `labels`: without ``le``, sorted; `le`: upper bound of a bucket, NaN for others."""

    server: str
    quantity: str
    name: str
    part: str
    labels: tuple[tuple[str, str], ...]
    le: float
    value: float


@dataclass
class Exposition:
    """The samples of known metrics in one answer. `odd`: lines not understood; `other`: samples of other metrics;
    `left`: known samples beyond the limit."""

    samples: list[Sample]
    odd: int = 0
    other: int = 0
    left: int = 0


def parsed(text: str) -> Exposition:
    """Return the known samples of `text`; of several names of one quantity, those of the preferred one."""
    found, known = Exposition([]), metrics()
    best: dict[tuple[str, str], int] = {}
    kept: list[tuple[int, Sample]] = []
    for line in text.split("\n"):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        one = _SAMPLE.fullmatch(line) if len(line) <= _MOST_LINE else None
        if one is None:
            found.odd += 1
            continue
        metric = known.get(one[1])
        if metric is None:
            found.other += 1
            continue
        labels, value = _labels(one[2] or ""), _number(one[3])
        if labels is None or value is None or math.isinf(value) or value < 0:
            found.odd += 1
            continue
        bound = _number(labels.pop("le", "")) if metric.part == "bucket" else math.nan
        if bound is None:
            found.odd += 1
            continue
        if any(labels.get(name) != wanted for name, wanted in metric.labels.items()):
            continue
        if len(kept) >= MOST_SAMPLES:
            found.left += 1
            continue
        key = (metric.server, metric.quantity)
        best[key] = min(best.get(key, metric.rank), metric.rank)
        sample = Sample(*key, one[1], metric.part, tuple(sorted(labels.items())), bound, value * metric.factor)
        kept.append((metric.rank, sample))
    found.samples = [sample for rank, sample in kept if rank == best[sample.server, sample.quantity]]
    return found


def _labels(text: str) -> dict[str, str] | None:
    """Return the labels; None if `text` is malformed."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        one = _LABEL.match(text, at)
        if one is None:
            return None if text[at:].strip() else found
        found[one[1]] = _ESCAPED.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], one[2])
        at = one.end()
    return found


def _number(text: str) -> float | None:
    """Return a value; None for NaN and for what is no number."""
    if text in _BOUNDLESS:
        return _BOUNDLESS[text]
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        return None
    return None if math.isnan(value) else value
