"""Metrics as families of samples, and their text form for Prometheus (exposition format 0.0.4). Pure.

prometheus-client would add 12 MiB to the watcher's memory for what `text` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from whystall.tools.contract.text import clean

LABEL = 80
"""Maximum characters of a label's value."""
OTHER = "other"
"""The label's value of what exceeds a bound."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Family:
    """A metric: `name` with its unit, `about` in one line, and a value per set of labels. `since`: when a counter was
    0, s since the epoch; 0 if that is unknown."""

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    samples: tuple[tuple[Labels, float], ...]
    since: float = 0.0


def family(
    name: str, kind: Literal["counter", "gauge"], about: str, samples: Iterable[tuple[Mapping[str, object], float]]
) -> Family:
    """Return a family. Labels without a value are left out; the others are made inert and cut."""
    made = tuple(
        ({key: clean(str(one), LABEL) for key, one in labels.items() if one not in (None, "")}, float(value))
        for labels, value in samples
    )
    return Family(f"whystall_{name}", kind, about, made)


def text(families: Iterable[Family]) -> str:
    """Return `families` as Prometheus reads them; one without samples is left out."""
    lines: list[str] = []
    for one in families:
        if one.samples:
            lines += [f"# HELP {one.name} {one.about}", f"# TYPE {one.name} {one.kind}"]
            lines += [f"{one.name}{_labels(labels)} {value!r}" for labels, value in one.samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    named = [f'{name}="{_escaped(value)}"' for name, value in labels.items()]
    return "{" + ",".join(named) + "}" if named else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
