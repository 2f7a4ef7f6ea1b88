"""The record of a row of the account of a thread's time."""

from __future__ import annotations

from whystall.tools.contract.result import Model


class AccountRow(Model):
    """A row of the account of the victim's time in the window, from a finding of kind ``path.running`` or
    ``path.wait`` (`finding`: its id).

    `what`: ``running``, a wait code of `path_codes.WAITS`, or ``rest`` for all rows that are not listed. `total_s`:
    seconds; `count` and `max_ms` of single waits or runs, None if not known. `code`: innermost line of Python;
    `function`: the innermost line of the program; `by`: who ended the wait or had the CPU; `chain`: the chain of waits
    as text; `root_*`: what the thread at its end did, `root_pct` in percent of the row's time, `root_by_pct` with what
    else its process did. `open`: not ended.
    `cpus`: the only ones that the thread may use, where that matters. `growth`: by what factor calls of the function
    took longer in the last third of the window than in the first, 1 without a trend, None if not known. `between`,
    `between_object`: what little the thread does between its sleeps (`path_codes.ASKS` and so on), in `between_ms`.
    `standstill`: ``yes`` if all threads of the job wait for each other.
    """

    finding: str = ""
    window_pct: float
    total_s: float
    count: int | None = None
    max_ms: float | None = None
    what: str
    mode: str = ""
    detail: str = ""
    code: str = ""
    function: str = ""
    object: str = ""
    by: str = ""
    chain: str = ""
    root_wait: str = ""
    root_code: str = ""
    root_by: str = ""
    root_object: str = ""
    root_detail: str = ""
    root_mode: str = ""
    root_pct: float = 0.0
    root_by_pct: float = 0.0
    role: str = ""
    cpus: str = ""
    between: str = ""
    between_object: str = ""
    between_ms: float = 0.0
    growth: float | None = None
    open: bool = False
    standstill: str = ""
