"""Write the report: one line per case, a page of tables, and the same as JSON.

``python -m benchmarks.faults.report RESULTS...`` writes it from files of results, or the JSON of reports.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.results import Result, read
from benchmarks.faults.scenario import HERE
from benchmarks.faults.summary import (
    VERDICTS,
    Share,
    Summary,
    answered,
    common,
    is_right,
    outcome,
    share,
    summaries,
    verdict,
)

_HEAD = """\
# Diagnosis of real faults

Made by `make bench-faults`; docs/benchmark.md explains the scenarios, the proof that each fault was real, and the
score. A case is one repeat of a scenario. Shares are followed by their 95 % interval (Wilson), which counts each
scenario as one trial, since its repeats are much alike. A void case is one whose fault could not be proved; it does not
count. Diagnosers answer about the same injection, in random order. The medians of seconds and slowdown leave out cases
in an emulated machine.
"""
_ROWS = 5
_REASONS = HERE / "reasons.yaml"


def line(result: Result) -> str:
    """Return a result in one line."""
    head = f"{result.scenario} #{result.repeat} {result.diagnoser}: "
    if result.void:
        return f"{head}VOID {result.title}: {result.void.splitlines()[0][:300]}"
    if result.answer is None or result.score is None:
        return f"{head}FAILED {result.title}: {result.failed}"
    answer, score = result.answer, result.score
    scope = " ".join(f"{name}{'+' if hit else '-'}" for name, hit in score.scope.items())
    also = {"evidence": score.evidence, "advice": score.advice}
    parts = [
        f"{score.outcome.upper():13} {result.title}",
        f"verdict {answer.verdict}",
        f"cause {', '.join(answer.causes[:3]) or '-'} (expected {', '.join(result.expected) or '-'})",
        f"scope {scope or '-'}",
        " ".join(f"{name}{'+' if hit else '-'}" for name, hit in also.items() if hit is not None),
        f"{result.seconds:.1f} s" if result.seconds else "",
        f"slowdown {result.slowdown:+.0%}" if result.slowdown is not None else "",
        f"account off by {score.account:.1f}" if score.account is not None else "",
        f"others' CPU {result.others_cpu_pct:.0f} %",
        f"kernel {_kernel(result)}" if result.emulated else "",
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


def write(results: Sequence[Result], page_to: Path, json_to: Path) -> None:
    """Write the page, and the JSON with a line for each diagnoser and result."""
    page_to.write_text(page(results))
    json_to.write_text(_lines(as_json(results)) + "\n")


def _lines(content: dict[str, Any]) -> str:
    parts = [
        f"{json.dumps(name)}: "
        + ("[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if isinstance(value, list) else json.dumps(value))
        for name, value in content.items()
    ]
    return "{" + ",\n".join(parts) + "}"


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """Return the scores of all diagnosers, and every result without the details of its answer."""
    brief = []
    for result in results:
        one = result.model_dump(mode="json", exclude={"answer"})
        if result.answer:
            one["answer"] = result.answer.model_dump(mode="json", include={"verdict", "causes", "scope", "evidence"})
        brief.append(one | {"outcome": outcome(result)})
    return {
        "commits": sorted({result.commit for result in results}),
        "cases": len(_cases(results)),
        "void": len(_cases(r for r in results if r.void)),
        "diagnosers": [asdict(one) for one in summaries(results)],
        "results": brief,
    }


def page(results: Sequence[Result]) -> str:
    """Return the report as Markdown."""
    found = summaries(results)
    ours = [one for one in found if not one.baseline]
    commits = ", ".join(sorted({result.commit for result in results}))
    void = len(_cases(r for r in results if r.void))
    scenarios = len({result.scenario for result in results})
    parts = [_HEAD, f"Commit {commits}; {scenarios} scenarios, {len(_cases(results))} cases, {void} void.\n"]
    parts.append(_kernels(results))
    parts += [_goals(ours or found), "## Diagnosers side by side\n", _side_by_side(found), _same_cases(results)]
    parts += [_tempting(found), _verdicts(found), _groups(found), _scenarios(results, found)]
    for one in found:
        parts += [f"## Answers of {one.diagnoser}\n", _confusion(one, results)]
        if not one.baseline:
            parts += [_not_right(one.diagnoser, results), _details(one.diagnoser, results)]
    parts.append(_void(results))
    return "\n".join(parts)


def _kernel(result: Result) -> str:
    return f"{result.kernel or 'unknown'}{', emulated' if result.emulated else ''}"


def _kernels(results: Sequence[Result]) -> str:
    cases = {(r.scenario, r.repeat, r.commit, _kernel(r)) for r in results if not r.void}
    counts = Counter(kernel for *_, kernel in cases)
    return f"Kernels: {'; '.join(f'{name}: {count} cases' for name, count in counts.most_common())}.\n"


def _cases(results: Iterable[Result]) -> set[tuple[str, int, str]]:
    return {(result.scenario, result.repeat, result.commit) for result in results}


def _goals(found: Sequence[Summary]) -> str:
    rows = []
    for number, goal in enumerate(found[0].goals if found else []):
        reached = [one.goals[number] for one in found]
        marks = {True: "", False: " **missed**", None: ""}
        rows.append((goal.name, goal.goal, *(f"{one.reached}{marks[one.met]}" for one in reached)))
    return "## Goals\n\n" + _table(("goal", "", *(one.diagnoser for one in found)), rows)


def _side_by_side(found: Sequence[Summary]) -> str:
    rows = [
        ("cases of faults (scenarios)", *(f"{one.faults} ({one.fault_scenarios})" for one in found)),
        ("cases of controls (scenarios)", *(f"{one.controls} ({one.control_scenarios})" for one in found)),
        *((name, *(str(one.measures[name]) for one in found)) for name in (found[0].measures if found else ())),
        ("scenarios right in some repeats only", *(str(len(one.unstable)) for one in found)),
        ("no answer (failed)", *(str(one.failed) for one in found)),
        ("seconds: median, longest", *(f"{_number(one.seconds_median)}, {_number(one.seconds_max)}" for one in found)),
        ("slowdown of the job, median (cases)", *(f"{_pct(one.slowdown_median)} ({one.slowdown_of})" for one in found)),
    ]
    return _table(("measure", *(one.diagnoser for one in found)), rows)


def _same_cases(results: Sequence[Result]) -> str:
    same = common(results)
    scenarios, cases = len({result.scenario for result in same}), len(_cases(same))
    judged = len(_cases(result for result in results if not result.void))
    text = f"## The same cases for all\n\n{cases} of {judged} cases ({scenarios} scenarios) count for every diagnoser"
    if cases in (0, judged):
        return f"{text}.\n"
    return f"{text}; the table above has all that count for each.\n\n{_side_by_side(summaries(same))}"


def _tempting(found: Sequence[Summary]) -> str:
    text = "## Tempting wrong answers\n\nHow often a wrong cause was asserted that the evidence suggests.\n"
    names = sum((Counter(one.tempting) for one in found), Counter())
    rows = [(name, *(str(one.tempting.get(name, 0)) for one in found)) for name, _ in names.most_common()]
    return text + "\n" + _table(("asserted", *(one.diagnoser for one in found)), rows)


def _verdicts(found: Sequence[Summary]) -> str:
    text = """\
## Reliability of the verdicts

How often an answer of this strength was right: of a fault, the right cause first; of a control, no false alarm. So
`healthy` and `idle` are right on controls only.
"""
    rows = [(name, *(str(one.verdicts[name]) for one in found)) for name in VERDICTS]
    return text + "\n" + _table(("verdict", *(one.diagnoser for one in found)), rows)


def _groups(found: Sequence[Summary]) -> str:
    groups = sorted({group for one in found for group in one.groups})
    cells = [[one.groups.get(group, {}).get("asserted and right", share([])) for one in found] for group in groups]
    rows = [(group, *map(str, row)) for group, row in zip(groups, cells, strict=True)]
    return "## Faults by group, asserted and right\n\n" + _table(("group", *(one.diagnoser for one in found)), rows)


def _scenarios(results: Sequence[Result], found: Sequence[Summary]) -> str:
    text = """\
## Scenarios

Right answers; of a control (c), answers without a false alarm. Intervals are over the repeats. Unstable: right in some
repeats only.
"""
    titles = {r.scenario: f"{r.title} ({_kernel(r)})" if r.emulated else r.title for r in results}
    rows = [
        (scenario, title, *(_short(one.scenarios.get(scenario, share([]))) for one in found))
        for scenario, title in sorted(titles.items())
    ]
    return text + "\n" + _table(("id", "case", *(one.diagnoser for one in found)), rows)


def _short(one: Share) -> str:
    if not one.of:
        return "void"
    unstable = "**unstable** " if 0 < one.hits < one.of else ""
    return f"{unstable}{one.hits}/{one.of} ({one.low_pct:.0f} to {one.high_pct:.0f})"


def _confusion(one: Summary, results: Sequence[Result]) -> str:
    text = "Answers by expected cause; in brackets a verdict without an asserted cause; right ones in bold.\n"
    own = [result for result in results if result.diagnoser == one.diagnoser]
    right = {(_expected(result), answered(result)) for result in own if is_right(result)}
    rows = [
        (
            expected,
            ", ".join(
                f"**{name} {times}**" if (expected, name) in right else f"{name} {times}"
                for name, times in answers.items()
            ),
        )
        for expected, answers in one.confusion.items()
    ]
    return text + "\n" + _table(("expected", "answered"), rows)


def _expected(result: Result) -> str:
    return "no fault" if result.control else result.expected[0]


def _not_right(name: str, results: Sequence[Result]) -> str:
    found = [r for r in results if r.diagnoser == name and not r.void and not is_right(r)]
    rows = [
        (f"{r.scenario} #{r.repeat}", r.title, outcome(r), f"{verdict(r)} {answered(r)}", _expected(r), why(r))
        for r in found
    ]
    return f"### Not right: {len(found)}\n\n" + _table(("case", "", "outcome", "answer", "expected", "why"), rows)


def why(result: Result) -> str:
    """Return in one line why an answer was not right: a reason that was written down, else what the answer shows."""
    if reason := reasons().get(f"{result.diagnoser} {result.scenario}"):
        return reason
    if result.answer is None:
        return result.failed.splitlines()[0][:160] if result.failed else ""
    named = list(dict.fromkeys(one.measure for one in result.answer.evidence))[:3]
    missing = result.answer.detail.get("missing") or []
    parts = [
        f"measured {', '.join(named)}" if named else "no evidence",
        f"also named {', '.join(result.answer.causes[1:3])}" if result.answer.causes[1:] else "",
        f"lacks {', '.join(map(str, missing))}" if missing else "",
    ]
    return "; ".join(part for part in parts if part)


@cache
def reasons() -> dict[str, str]:
    """Return reasons by ``DIAGNOSER SCENARIO``, written by a person: reasons.yaml."""
    return yaml.safe_load(_REASONS.read_text(encoding="utf-8")) or {}


def _details(name: str, results: Sequence[Result]) -> str:
    own = [result for result in results if result.diagnoser == name and not result.void]
    rows = []
    for scenario in sorted({result.scenario for result in own}):
        same = [result for result in own if result.scenario == scenario]
        scored = [result.score for result in same if result.score]
        facts = list(scored[0].scope) if scored else []
        rows.append(
            (
                scenario,
                ", ".join(dict.fromkeys(f"{verdict(r)} {answered(r)}" for r in same)),
                ", ".join(f"{d} {_count(one.scope.get(d) for one in scored)}" for d in facts),
                _count(one.evidence for one in scored),
                _count(one.advice for one in scored),
                _number(_median([r.seconds for r in same])),
                _pct(_median([r.slowdown for r in same])),
            )
        )
    head = ("id", "answers", "scope", "evidence", "advice", "s", "slowdown")
    return "### By scenario\n\n" + _table(head, rows)


def _void(results: Sequence[Result]) -> str:
    found = {(r.scenario, r.repeat): (r.title, r.void.splitlines()[0]) for r in results if r.void}
    rows = [(f"{s} #{repeat}", title, reason[:200]) for (s, repeat), (title, reason) in sorted(found.items())]
    return f"## Void: {len(found)}\n\n" + _table(("case", "", "reason"), rows)


def _count(values: Iterable[bool | None]) -> str:
    one = share(values)
    return f"{one.hits}/{one.of}" if one.of else ""


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _pct(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    found = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    found += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(found) + "\n"


def main(arguments: list[str]) -> int:
    """Write the report of files of results; return 1 if they have none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    found = [result for path in options.results for result in read(path)]
    if not any(result.score for result in found):
        print("faults: no case was judged", file=sys.stderr)
        return 1
    write(found, options.out, options.json or options.out.with_suffix(".json"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
