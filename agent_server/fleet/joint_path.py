"""`critical_path` on many hosts: the paths of waits that cross hosts, and where they lead. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import ValidationError

from whystall.agent_server.fleet.answers import Answer
from whystall.agent_server.fleet.hops import Followed, HostPath, Process, Seen, follow
from whystall.tools.contract.findings import Finding
from whystall.tools.host.critical_path.across import Across
from whystall.tools.host.critical_path.tool import ThreadRow

TOOL = "critical_path"
ARGUMENTS = {"connections": True}
"""Asked of each host, beside the arguments given."""
_WAITS = frozenset({"path.wait", "path.waker"})
_LINES = ("function", "code", "root_code")


def followed(answers: Sequence[Answer], later: Iterable[tuple[int, Answer]] = (), *, stored: bool = False) -> Followed:
    """Return the paths of all `answers`. `later`: answers about single processes (pid) that were asked for afterwards;
    `stored`: hosts judged recordings, of which the centre does not know when they began."""
    seen = [one for answer in answers if (one := _seen(answer, stored=stored)) is not None]
    after = [one for pid, answer in later if (one := _seen(answer, stored=True, pid=pid)) is not None]
    ranks: dict[Process, int] = {}
    for answer in answers:
        listed = answer.located.ranks if answer.located is not None else None
        ranks |= {(answer.host, pid): rank for pid, rank in (listed or {}).items()}
    return follow(seen, after, ranks)


def path_of(finding: Finding, host: str, paths: Followed) -> HostPath | None:
    """Return the path of the wait that `finding` of `host` is about; None if it is about something else."""
    path, lines = paths.by.get(host, (None, frozenset()))
    own = finding.kind in _WAITS and any(finding.attributes.get(name) in lines for name in _LINES)
    return path if own else None


def _seen(answer: Answer, *, stored: bool, pid: int | None = None) -> Seen | None:
    """Return what a host reports of a process; None if it reports nothing, or nothing valid."""
    data = (answer.reply or {}).get("data")
    if answer.status != "answered" or not isinstance(data, dict):
        return None
    try:
        thread, across = ThreadRow.model_validate(data.get("thread")), Across.model_validate(data.get("across"))
    except ValidationError:
        return None
    starts = None if stored else _starts(answer, across.window_ms / 1000)
    return Seen(answer.host, pid or thread.pid, thread, across, starts, later=pid is not None)


def _starts(answer: Answer, window_s: float) -> tuple[float, float] | None:
    """Return when the window of a host began, at the earliest and at the latest, on the centre's clock: it lies between
    call and reply, and the host measured what else it did in that time. None if that is impossible."""
    coverage = (answer.reply or {}).get("coverage")
    around = [coverage.get(name) if isinstance(coverage, dict) else None for name in ("before_s", "after_s")]
    before, after = (one if isinstance(one, float) and one >= 0 else 0.0 for one in around)
    low, high = answer.began + before, answer.ended - after - window_s
    return (low, high) if low <= high else None
