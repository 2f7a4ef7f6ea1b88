"""What the comparison of two accounts of a thread's time returns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whystall.tools.contract.result import Model

Verdict = Literal["grew", "shrank", "appeared", "vanished", "unchanged", "cannot_tell"]


class Comparison(Model):
    """A time per step, or per second if no steps are known, before and after. `low_ms` to `high_ms`: 95 % interval of
    its change; `q_value`: p adjusted for all rows; None: not tested. `detectable_ms`: the smallest change that would
    have been found with a probability of 80 %. `verdict`: ``unchanged`` only if a relevant change would have been found
    so, else ``cannot_tell``."""

    verdict: Verdict
    before_ms: float
    after_ms: float
    change_ms: float
    low_ms: float | None = None
    high_ms: float | None = None
    p_value: float | None = None
    q_value: float | None = None
    detectable_ms: float | None = None


class PathChange(Comparison):
    """A part of the thread's time, by what it did and by what the thread at the end of its chain of waits did. Members
    and codes as in the rows of `critical_path`; `what` ``rest``: all shorter parts. Digits of paths are ``*``; of a
    thread that ran, the function is given instead of the line. `root`: that thread; empty: the wait itself is the end.
    `by`: who ended the waits, or had the CPU; `chain`: from that thread to the root, with most of the time."""

    what: str
    mode: str = ""
    detail: str = ""
    line: str = ""
    object: str = ""
    by: str = ""
    chain: str = ""
    root: str = ""
    root_what: str = ""
    root_mode: str = ""
    root_detail: str = ""
    root_line: str = ""
    root_object: str = ""


class PathSpan(Model):
    """The part of a span in full detail that was compared. `count`: of its steps, or of equal parts of time."""

    since: str
    until: str
    count: int


class PathDifference(Model):
    """The accounts of one thread in two spans. `unit`: what times are per; a step lasts from one wait at the line
    `step_line` to the next. `step`: its length, None without steps. `tested`: rows tested, None: too few steps;
    `changed`: how many of them changed."""

    pid: int
    tid: int
    comm: str
    unit: Literal["step", "second"]
    step_line: str = ""
    before: PathSpan
    after: PathSpan
    step: Comparison | None = None
    rows: list[PathChange] = Field(default_factory=list)
    left_out: int = 0
    tested: int | None = None
    changed: int = 0
