"""Write the report: one line per case, and a page of tables."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from benchmarks.faults.results import Result
from benchmarks.faults.score import wilson

_HEAD = """\
# Diagnosis of real faults

Made by `make bench-faults`; docs/benchmark.md explains the scenarios, the proof that each fault was real, and the
score. Intervals are 95 % (Wilson). A void case is one whose fault could not be proved; it does not count.
"""
_ROWS = 5


def line(result: Result) -> str:
    """Return a result in one line."""
    head = f"{result.scenario} #{result.repeat} {result.diagnoser}: "
    if result.void:
        return f"{head}VOID {result.title}: {result.void.splitlines()[0][:300]}"
    if result.answer is None or result.score is None:
        return f"{head}FAILED {result.title}: {result.failed}"
    answer, score = result.answer, result.score
    scope = " ".join(f"{name}{'+' if hit else '-'}" for name, hit in score.scope.items())
    parts = [
        f"{score.outcome.upper():13} {result.title}",
        f"verdict {answer.verdict}",
        f"cause {', '.join(answer.causes[:3]) or '-'} (expected {', '.join(result.expected) or '-'})",
        f"scope {scope or '-'}",
        f"{result.seconds:.1f} s" if result.seconds else "",
        f"slowdown {result.slowdown:+.0%}" if result.slowdown is not None else "",
        f"account off by {score.account:.1f}" if score.account is not None else "",
        f"others' CPU {result.others_cpu_pct:.0f} %",
    ]
    return head + "; ".join(part for part in parts if part)


def lines(results: Iterable[Result]) -> list[str]:
    """Return every result, with the largest rows of its account."""
    found = []
    for result in results:
        found.append(line(result))
        if result.answer:
            found += [
                f"        {row.pct:5.1f} % {row.wait} at {row.code or '?'} {row.text[:200]}"
                for row in result.answer.rows[:_ROWS]
            ]
            if result.answer.rows:
                found.append("        log: " + ", ".join(f"{k} {v:.0f} %" for k, v in result.shares.items()))
    return found


def share(results: Sequence[Result], right: Callable[[Result], bool]) -> str:
    """Return ``n of m (p %, low to high)``."""
    hits = sum(map(right, results))
    low, high = wilson(hits, len(results))
    if not results:
        return "-"
    return f"{hits} of {len(results)} ({100 * hits / len(results):.0f} %, {100 * low:.0f} to {100 * high:.0f})"


def page(results: Sequence[Result]) -> str:
    """Return the report as Markdown."""
    parts = [_HEAD]
    commits = sorted({result.commit for result in results})
    parts.append(f"Commit {', '.join(commits)}; {len(results)} cases, {sum(bool(r.void) for r in results)} void.\n")
    for name in sorted({result.diagnoser for result in results}):
        own = [result for result in results if result.diagnoser == name]
        parts += [f"## {name}\n", *_tables(own)]
    return "\n".join(parts)


def _tables(results: Sequence[Result]) -> list[str]:
    judged = [r for r in results if r.score is not None]
    faults = [r for r in judged if not r.control]
    controls = [r for r in judged if r.control]
    parts = [_totals(faults, controls), "### Faults by group\n"]
    parts.append(_table(("group", "top-1", "top-3", "asserted and right", "wrong", "false healthy"), _groups(faults)))
    parts.append("### Verdicts\n\nHow often the cause was right, by the verdict's strength.\n")
    rows = [
        (verdict, share([r for r in faults if r.answer and r.answer.verdict == verdict], lambda r: bool(_top1(r))))
        for verdict in ("confirmed", "likely", "inconclusive", "healthy", "idle")
    ]
    parts.append(_table(("verdict", "right"), rows))
    parts.append("### Confusions\n")
    wrong = Counter(
        (r.title, r.answer.verdict, (r.answer.causes or ["-"])[0]) for r in judged if r.answer and not _good(r)
    )
    parts.append(
        _table(("case", "verdict", "cause", "times"), [(*key, str(count)) for key, count in wrong.most_common()])
    )
    parts.append("### Cases\n")
    parts.append(_table(("id", "case", "outcome", "verdict", "cause", "scope", "s", "slowdown"), map(_row, results)))
    return parts


def _totals(faults: Sequence[Result], controls: Sequence[Result]) -> str:
    scope = [hit for r in faults if r.score for hit in r.score.scope.values()]
    asserted = [r for r in faults if r.answer and r.answer.verdict in ("confirmed", "likely")]
    seconds = [r.seconds for r in faults if r.seconds is not None]
    slowdowns = [r.slowdown for r in [*faults, *controls] if r.slowdown is not None]
    rows = [
        ("root cause first", share(faults, lambda r: bool(_top1(r)))),
        ("root cause among three", share(faults, lambda r: bool(r.score and r.score.top3))),
        ("asserted and right", share(faults, lambda r: _outcome(r) == "right")),
        ("asserted and wrong", f"{sum(_outcome(r) == 'wrong' for r in faults)} of {len(asserted)} asserted"),
        ("false healthy", share(faults, lambda r: _outcome(r) == "false_healthy")),
        ("false alarms on controls", share(controls, lambda r: _outcome(r) == "false_alarm")),
        ("facts of the scope named", f"{sum(scope)} of {len(scope)}"),
        ("seconds, median", f"{statistics.median(seconds):.1f}" if seconds else "-"),
        ("slowdown of the job, median", f"{statistics.median(slowdowns):+.1%}" if slowdowns else "-"),
    ]
    return _table(("measure", "value"), rows)


def _groups(faults: Sequence[Result]) -> list[tuple[str, ...]]:
    found = []
    for group in sorted({r.group for r in faults}):
        own = [r for r in faults if r.group == group]
        outcomes = Counter(_outcome(r) for r in own)
        top3 = share(own, lambda r: bool(r.score and r.score.top3))
        counts = (str(outcomes[name]) for name in ("right", "wrong", "false_healthy"))
        found.append((group, share(own, lambda r: bool(_top1(r))), top3, *counts))
    return found


def _row(result: Result) -> tuple[str, ...]:
    answer, score = result.answer, result.score
    if result.void or answer is None or score is None:
        why = f"void: {result.void}" if result.void else f"failed: {result.failed}"
        return (result.scenario, result.title, why.splitlines()[0][:160], "", "", "", "", "")
    scope = ", ".join(name if hit else f"~~{name}~~" for name, hit in score.scope.items())
    slowdown = "" if result.slowdown is None else f"{result.slowdown:+.0%}"
    cause = (answer.causes or [""])[0]
    return (
        result.scenario,
        result.title,
        score.outcome,
        answer.verdict,
        cause,
        scope,
        f"{result.seconds:.1f}",
        slowdown,
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _outcome(result: Result) -> str:
    return result.score.outcome if result.score else ""


def _top1(result: Result) -> bool | None:
    return result.score.top1 if result.score else None


def _good(result: Result) -> bool:
    return _outcome(result) in ("right", "quiet")
