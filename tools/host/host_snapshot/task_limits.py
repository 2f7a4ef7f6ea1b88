"""Judge how many processes and threads the cgroups of the target hold, beside their limit. Pure."""

from __future__ import annotations

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.host.common.findings import finding, window
from whystall.tools.recording.store import Recording

# The next fork may need several; one that failed has already ended.
_REACHED_PCT = 90.0


def findings(recording: Recording) -> list[Finding]:
    """Return a finding for each cgroup that is at its limit of tasks."""
    table = recording.find("proc.task_limits")
    if table is None:
        return []
    return [
        finding(
            "cgroup.task_limit",
            Subject(type="cgroup", cgroup=cgroup),
            window(recording.manifest.window_ns),
            {"tasks": tasks, "task_limit": limit},
            Severity.MAJOR,
        )
        for cgroup, tasks, limit in table.select("cgroup", "tasks", "limit").iter_rows()
        if tasks >= _REACHED_PCT / 100 * limit
    ]
