"""Select the tools that are not worth their hooks, by the critical path. Pure.

Hooks of system calls, pages and interrupts slow the job down; they are attached only if the victim spends time in what
they measure.
"""

from __future__ import annotations

from collections.abc import Sequence

from whystall.tools.contract.findings import Finding

# Least share of the window for which a tool is worth its hooks, and for which a cause needs it to be judged.
WORTH_PCT, NEEDED_PCT = 2.0, 5.0
_FILES = frozenset({"file", "page_fault", "swap", "memory", "io_uring", "file_lock"})
# A server waits at its poll although requests are not answered, or connections not accepted.
_REQUEST = "request"
# By tool: the waits and modes of running that it examines, of the victim or a thread that it waits for.
_EXAMINES: dict[str, frozenset[str]] = {
    "fileslower": _FILES | {"system"},
    "syscall_time": _FILES | {"system", "sleep", "timeout", "poll", "connect", "dns", "socket", _REQUEST},
    "biolatency": _FILES,
    "page_cache": _FILES | {"fault", "swap_in"},
    "runqlat": frozenset({"cpu", "quota"}),
    "interrupts": frozenset({"cpu", "interrupt"}),
}


def unneeded_tools(findings: Sequence[Finding], least_pct: float) -> set[str]:
    """Return the tools that would measure less than `least_pct` of the window, by the findings of the critical path."""
    spent: dict[str, float] = {}
    for finding in findings:
        if not finding.kind.startswith("path."):
            continue
        words = finding.attributes
        unanswered = finding.metrics.get("requests_in_flight", 0) > 0
        names = {words.get("wait"), words.get("mode"), words.get("root_wait"), words.get("main_wait")}
        for name in (names | ({_REQUEST} if unanswered else set())) - {None, ""}:
            spent[str(name)] = spent.get(str(name), 0.0) + finding.window_pct
        if words.get("main", "").startswith("system"):
            spent["system"] = spent.get("system", 0.0) + finding.window_pct
    used = {name for name, share in spent.items() if share >= least_pct}
    return {tool for tool, examined in _EXAMINES.items() if not examined & used}
