"""By how much each part of a thread's step changed between two spans, and whether by more than chance. Pure.

Steps are compared as `change_tests.compare` compares parts of spans: neighbouring steps are averaged in blocks, which
are permuted; at most 5 % of the rows that are reported are expected to be false. A row without a change is called
unchanged only if a relevant change would have been found with a probability of 80 % (minimum detectable effect: H. S.
Bloom, Evaluation Review 19, 1995), at the level of a test of all rows (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.history.change_tests import LEVEL, Compared, compare
from whystall.tools.history.grid import Floats
from whystall.tools.history.path_data import Comparison, PathChange, PathDifference, Verdict
from whystall.tools.history.summary import direction

REST = "rest"
# Of the mean step of both spans: shorter rows count as the rest, and a smaller change is not reported; a rest that is
# shorter is left out.
_LEAST, _NOTHING = 0.01, 0.001
_RELEVANT = 0.05
"""Of the mean step: a change of this size must be detectable for a row to be called unchanged."""


class Did(NamedTuple):
    """What a thread did: codes as in the rows of ``critical_path``."""

    what: str
    mode: str = ""
    detail: str = ""
    line: str = ""
    object: str = ""


class PathKey(NamedTuple):
    """A row. `who`: the role of the thread at the end of the chain of waits, ``thread NAME`` of the same process or
    ``process NAME``; of a wait for a CPU, who had it. `root`: what it did; None: it is not known, or there is none."""

    does: Did
    who: str = ""
    root: Did | None = None


class Chain(NamedTuple):
    """See `PathChange`."""

    root: str = ""
    by: str = ""
    chain: str = ""


@dataclass(frozen=True)
class Account:
    """`parts`: rows x steps, seconds in each; without steps, rows x equal parts of time, seconds per second. `chains`:
    with most of the time of a row."""

    keys: tuple[PathKey, ...]
    parts: Floats
    chains: Mapping[PathKey, Chain] = field(default_factory=dict)


class Changes(NamedTuple):
    """See `PathDifference`."""

    step: Comparison
    rows: list[PathChange]
    tested: int | None
    changed: int


def changes_of(before: Account, after: Account) -> Changes:
    """Return how each row changed: first what changed, the largest change first, then what may have, then the rest. A
    change of the whole is judged by itself."""
    keys, one, other = _aligned(before, after)
    size = (one.sum(axis=0).mean() + other.sum(axis=0).mean()) / 2
    kept = np.flatnonzero((one.mean(axis=1) + other.mean(axis=1)) / 2 >= _LEAST * size)
    left = np.setdiff1d(np.arange(len(keys)), kept)
    chosen = [keys[at] for at in kept]
    whole_of = one.sum(axis=0)[None], other.sum(axis=0)[None]
    rest = [part[left].sum(axis=0)[None] for part in (one, other)]
    one, other = one[kept], other[kept]
    if sum(float(part.mean()) for part in rest) >= 2 * _NOTHING * size:
        chosen.append(PathKey(Did(REST)))
        one, other = np.vstack([one, rest[0]]), np.vstack([other, rest[1]])
    whole = _compared(*whole_of)
    found = _compared(one, other)
    step = Comparison.model_validate(_numbers(whole, *whole_of, 0, size))
    rows = []
    for at, key in enumerate(chosen):
        texts = _texts(key, after.chains.get(key) or before.chains.get(key, Chain()))
        rows.append(PathChange.model_validate(texts | _numbers(found, one, other, at, size)))
    rows.sort(key=_order)
    return Changes(step, rows, len(rows) if found is not None else None, len(_changed(rows)))


def _order(row: PathChange) -> tuple[int, float]:
    group = {"cannot_tell": 1, "unchanged": 2}.get(row.verdict, 0)
    return group, -(row.before_ms + row.after_ms) if group else -abs(row.change_ms)


def _aligned(before: Account, after: Account) -> tuple[tuple[PathKey, ...], Floats, Floats]:
    """Return the rows of both accounts, and the parts of each: 0 where it does not have the row."""
    keys = tuple(dict.fromkeys((*before.keys, *after.keys)))
    place = {key: at for at, key in enumerate(keys)}
    made = []
    for account in (before, after):
        parts = np.zeros((len(keys), account.parts.shape[1]))
        parts[[place[key] for key in account.keys]] = account.parts
        made.append(parts)
    return keys, made[0], made[1]


def _compared(one: Floats, other: Floats) -> Compared | None:
    return compare(one, other, (np.ones(one.shape[1]), np.ones(other.shape[1])))


def _numbers(found: Compared | None, one: Floats, other: Floats, at: int, size: float) -> dict[str, object]:
    """Return the members of a `Comparison` of row `at`; `size`: seconds of the mean step."""
    old, new = (float(part[at].mean()) if part.shape[1] else 0.0 for part in (one, other))
    numbers: dict[str, object] = {"before_ms": _ms(old), "after_ms": _ms(new), "change_ms": _ms(new - old)}
    if found is None:
        return {**numbers, "verdict": "cannot_tell"}
    old, new = float(found.before[at]), float(found.after[at])  # of whole blocks
    detectable = float(found.detectable[at])
    verdict: Verdict = "unchanged" if detectable <= _RELEVANT * size else "cannot_tell"
    if found.q[at] <= LEVEL and abs(new - old) >= _LEAST * size:
        verdict = direction(old, new)
    return {
        "verdict": verdict,
        "before_ms": _ms(old),
        "after_ms": _ms(new),
        "change_ms": _ms(new - old),
        "low_ms": _ms(float(found.low[at])),
        "high_ms": _ms(float(found.high[at])),
        "p_value": float(found.p[at]),
        "q_value": float(found.q[at]),
        "detectable_ms": _ms(detectable),
    }


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)


def _texts(key: PathKey, chain: Chain) -> dict[str, object]:
    """Return the members of a `PathChange` that name it."""
    does = {**key.does._asdict(), **chain._asdict()}
    return does | {**{f"root_{name}": text for name, text in (key.root or Did(""))._asdict().items()}}


def findings_of_path(found: PathDifference, start_ns: int, end_ns: int) -> list[Finding]:
    """Return a finding per row that changed. A longer part of the steps is abnormal beside the other span, and no fault
    by itself. `start_ns`, `end_ns`: the compared part, relative to the start of the span."""
    return [_finding(found, number, row, start_ns, end_ns) for number, row in enumerate(_changed(found.rows), 1)]


def _changed(rows: Sequence[PathChange]) -> list[PathChange]:
    return [row for row in rows if row.verdict not in ("unchanged", "cannot_tell")]


def _finding(found: PathDifference, number: int, row: PathChange, start_ns: int, end_ns: int) -> Finding:
    numbers = {"before": row.before_ms, "after": row.after_ms, "low": row.low_ms, "high": row.high_ms}
    per_step = found.unit == "step"
    metrics = {
        f"{name}_ms" if per_step else f"{name}_ratio": value if per_step else round(value / 1e3, 6)
        for name, value in numbers.items()
        if value is not None
    }
    chance = {"p_value": row.p_value, "q_value": row.q_value}
    words = {"wait": row.what, "detail": row.detail, "code": row.line, "object": row.object, "root_by": row.root}
    words |= {"root_wait": row.root_what, "root_code": row.root_line, "root_object": row.root_object}
    words |= {"direction": row.verdict}
    more = row.change_ms > 0
    return Finding(
        id=f"history.path.{number}",
        kind="step.change",
        subject=Subject(type="thread", pid=found.pid, tid=found.tid, comm=found.comm or None),
        interval=Interval(start_ns=start_ns, end_ns=end_ns),
        metrics=metrics | {name: value for name, value in chance.items() if value is not None},
        attributes={name: text for name, text in words.items() if text},
        severity=Severity.MINOR if more else Severity.INFO,
        polarity=Polarity.ABNORMAL if more else Polarity.NORMAL,
    )
