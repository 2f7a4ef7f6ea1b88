"""What hang must answer on a job of ``hanging_job.py``: for each fault of it, and for a job that is only slow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Due:
    """The answer: the verdict, and what the odd rank is found to do, or how it ended (with signal or exit status).
    `line`: whether the line of the fault is in the answer. `ddp`: whether the fault shows with the gradients averaged
    in the backward pass, too."""

    verdict: str
    doing: str = ""
    how: str = ""
    code: int | None = None
    exception: str = ""
    line: bool = True
    ddp: bool = True


_RAISED = "ValueError: no label in sample 17"
DUE: Mapping[str, Due] = {
    "sleeps": Due("late", "sleep"),
    "wants_lock": Due("late", "lock"),
    "reads_file": Due("late", "pipe"),
    "is_stopped": Due("late", "stopped"),
    # it is on a CPU, or waits for one
    "computes": Due("computing", "running"),
    "takes_other_branch": Due("mismatch", "collective", ddp=False),
    "exits": Due("first_failure", how="exited", code=3, line=False),
    "raises": Due("first_failure", how="exited", code=1, exception=_RAISED),
    "raises_and_stays": Due("first_failure", how="raised", exception=_RAISED),
    "is_killed": Due("first_failure", how="killed", code=9, line=False),
}
HEALTHY = Due("moving")


@dataclass(frozen=True)
class Score:
    """Whether the answer names the right rank and no other, the line, and the cause (with the verdict)."""

    rank: bool
    line: bool
    cause: bool

    @property
    def right(self) -> bool:
        return self.rank and self.line and self.cause


def score(fault: str, truth: Mapping[str, Any], data: Mapping[str, Any]) -> Score:
    """Compare `data` of hang's answer with what the odd rank logged before the fault."""
    due = DUE.get(fault, HEALTHY)
    named = [*data["failed"], *data["late"]]
    if due is HEALTHY:
        return Score(not named, True, data["verdict"] == due.verdict)
    if [(row["rank"], row["pid"]) for row in named] != [(truth["rank"], truth["rank_pid"])]:
        return Score(False, False, False)
    (row,) = named
    line = row["line"].rpartition("Faults.")[2].startswith(f"{truth['function']} (hanging_job.py:")
    wanted = {"how": due.how, "code": due.code, "exception": due.exception} if due.how else {"doing": due.doing}
    cause = data["verdict"] == due.verdict and all(row.get(name) == value for name, value in wanted.items())
    return Score(True, line or not due.line, cause)
