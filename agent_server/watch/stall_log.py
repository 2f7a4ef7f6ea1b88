"""The log of stalls with what was found, what people are notified of, and counts of both."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from whystall.agent_server.metrics.stall_seconds import StallSeconds
from whystall.agent_server.watch.cases import Case
from whystall.agent_server.watch.requests import Answer
from whystall.agent_server.watch.status import StatusFiles

_RECENT = 20
_OWN_LINE_PCT = 40.0


class StallLog:
    """Logs to `files`, and calls `note` with lines for people. `counts`: by what happened; `seconds`: of stalls that
    have ended; `recent`: the latest entries; `failed`: why the last one was not written, empty if it was."""

    def __init__(self, files: StatusFiles, note: Callable[[str], None]) -> None:
        self._files, self._note = files, note
        self.counts: dict[str, int] = {}
        self.seconds = StallSeconds()
        self.recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self.failed = ""

    def count(self, what: str) -> None:
        """Count that `what` happened."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def log(self, case: Case, why: str, answer: Answer | None = None) -> None:
        """Log `case`: `why` it is logged, and the answer of its investigation."""
        self.count(f"why_{why}")
        stall = next(iter(case.stalls.values()), None)
        entry: dict[str, Any] = {
            "at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "job": case.job.id,
            "name": case.job.name,
            "why": why,
            "noticed_ns": case.noticed_ns,
        }
        if stall is not None:
            pid, stall = case.main()
            self._count_seconds(case)
            entry |= {"pid": pid, "stall": asdict(stall), "processes": sorted(case.stalls)}
        if answer is not None:
            entry["answer"] = asdict(answer)
            self._notify(case.job.name, answer)
        self.recent.append({key: value for key, value in entry.items() if key != "stall"})
        self.failed = self._files.log(entry)

    def _notify(self, name: str, answer: Answer) -> None:
        if answer.error:
            self._note(f"{name}: a stall could not be explained: {answer.error}")
        if answer.line and answer.action != "ticket" and answer.line_pct >= _OWN_LINE_PCT:
            share = answer.line_before_pct
            before = "" if share is None else f", {share:.0f} % of the time before"
            self._note(f"{name}: ran {answer.line} for {answer.line_pct:.0f} % of a pause{before}; no ticket")
        if answer.ticket:
            word = "ticket" if answer.new else "seen again, ticket"
            self._note(f"{name}: {answer.title or 'no cause found'} ({answer.verdict}); {word} {answer.ticket}")
            self.count("tickets" if answer.new else "tickets_again")

    def _count_seconds(self, case: Case) -> None:
        """Count the stalls of `case` that have ended; a slowdown has no length."""
        for pid, stall in case.stalls.items():
            if stall.end_ns is not None and stall.kind not in ("slowdown", "drift"):
                length = (stall.end_ns - stall.start_ns) / 1e9
                self.seconds.add(case.job.name, case.job.ranks.get(pid), case.cause, length)
