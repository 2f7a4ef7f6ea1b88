"""Account for the victim's time in the window, by the rows of its critical path. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.knowledge_base.account_row import AccountRow
from whystall.knowledge_base.models import Victim
from whystall.tools.contract.findings import Finding

MAX_ROWS = 12
REST = "rest"
_RUNNING, _WAIT = "path.running", "path.wait"
# Shares below this are rounding errors, percent.
_NOTHING_PCT = 0.05
_TEXTS = (
    *("mode", "detail", "code", "function", "object", "by", "chain"),
    *("root_wait", "root_code", "root_by", "root_object", "root_detail", "root_mode"),
    *("role", "cpus", "between", "between_object", "standstill"),
)


def account(findings: Sequence[Finding], victim: Victim | None) -> list[AccountRow]:
    """Return the rows of the critical path of `victim`, largest first: at most `MAX_ROWS`, and one for the rest.

    The rows of one thread sum to 100 % of the window; empty if its path was not observed.
    """
    if victim is None:
        return []
    own = [f for f in findings if f.kind in (_RUNNING, _WAIT) and f.subject.tid == victim.tid]
    own = sorted((f for f in own if f.window_pct > 0), key=lambda f: -f.window_pct)
    if not own:
        return []
    rows = [_row(finding) for finding in own[:MAX_ROWS]]
    left = 100.0 - sum(row.window_pct for row in rows)
    if left >= _NOTHING_PCT:
        window_s = 100.0 * rows[0].total_s / rows[0].window_pct
        rows.append(AccountRow(what=REST, window_pct=left, total_s=left / 100.0 * window_s))
    return rows


def _row(finding: Finding) -> AccountRow:
    metrics, words = finding.metrics, finding.attributes
    # the count of a running row is a number of samples
    count = metrics.get("count") if finding.kind == _WAIT else None
    return AccountRow(
        finding=finding.id,
        window_pct=finding.window_pct,
        total_s=metrics.get("total_ms", 0.0) / 1e3,
        count=int(count) if count is not None else None,
        max_ms=metrics.get("max_ms"),
        what="running" if finding.kind == _RUNNING else words.get("wait") or "unknown",
        root_pct=metrics.get("root_pct", 0.0),
        root_by_pct=metrics.get("root_by_pct", 0.0),
        growth=metrics.get("growth_ratio"),
        between_ms=metrics.get("between_ms", 0.0),
        open=words.get("open") == "yes",
        **{name: words.get(name, "") for name in _TEXTS},
    )
