"""The calls that would tell most after a result, with their arguments. What a finding suggests is data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from socket import gethostname
from typing import Any
from urllib.parse import quote

import yaml

from whystall.agent_server.interfaces.incident_lookup import Hits
from whystall.agent_server.interfaces.mcp.resources import SCHEME, Page
from whystall.agent_server.job_lookup.models import Resolution
from whystall.knowledge_base.models import Diagnosis, Lang, Verdict
from whystall.prompts.escape import printable
from whystall.prompts.render import words
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.result import ToolResult

Call = tuple[str, dict[str, Any]]
"""A tool and its arguments."""
MOST = 3
_OTHERS = ("root_by", "by", "holder", "waker")
# python3 (812), or with the process of a thread: worker (813 of 812). Threads of the kernel have no path to follow.
_KERNEL = "kworker|ksoftirqd|kswapd|jbd2|migration|rcu|swapper|irq/|nvme"
_LABEL = re.compile(rf"^(?!{_KERNEL}).*\((?:\d+ of )?(\d+)\)$", re.DOTALL)
# Arguments that do not make a tool that has run tell more.
_SAME = frozenset({"pid", "recording", "duration", "min_ms"})
# Arguments that name traces of ranks, whose processes may be of another time or host.
_STORED = frozenset({"traces", "after"})
_LONGER = 2.5
_FINDINGS = 20


@dataclass(frozen=True)
class NextCalls:
    """Chooses next calls. `offered`: the tools that clients know; `serves`: whether a tool can judge a recording;
    `runs`: whether a process still runs."""

    serves: Callable[[str, Path], bool]
    offered: set[str] = field(default_factory=set)
    runs: Callable[[int], bool] = lambda pid: Path(f"/proc/{pid}").exists()

    def after(self, tool: str, given: dict[str, Any], result: Any, source: Path | None) -> list[Call]:
        """Return at most `MOST` calls after ``tool(given)``, which judged the recording `source` or observed (None)."""
        pid, ran = given.get("pid"), {tool}
        proposed: Iterable[Call] = ()
        if isinstance(result, Diagnosis):
            victim = result.victim
            pid = (victim.pid if victim is not None and _is_here(victim.host) else 0) or pid
            ran = {name for step in result.steps for name in step.tools}
            proposed = _after_diagnosis(result, given, pid)
        elif isinstance(result, Resolution):
            proposed = [("diagnose", {"pid": result.pid})] if result.pid is not None else ()
        elif isinstance(result, Hits):
            proposed = [_incident(hit.incident.id) for hit in result.hits[:1] if not hit.match.weak]
        elif isinstance(result, Page):
            proposed = [(tool, {"uri": result.uri, "offset": result.next_offset})] if result.next_offset else ()
        elif isinstance(result, ToolResult):
            pid = pid or next((p for f in _ordered(result.findings) if (p := _pid(f))), None)
            proposed = _after_tool(result, pid)
        found: list[Call] = []
        for name, arguments in proposed:
            if "pid" in arguments and given.keys() & _STORED:
                continue
            other = arguments.get("pid")
            if source is None and isinstance(other, int) and other != pid and not self.runs(other):
                continue
            again = name in ran and arguments.get("pid") in (pid, None)
            call = (name, arguments) if source is None else self._of_recording(name, arguments, pid, source)
            if call is None or name not in self.offered or (again and not call[1].keys() - _SAME) or call in found:
                continue
            found.append(call)
        return found[:MOST]

    def _of_recording(self, name: str, arguments: dict[str, Any], pid: int | None, source: Path) -> Call | None:
        """Return a call that judges the same recording; None if that cannot tell more, or not of that process."""
        if name == "diagnose" or arguments.get("pid") not in (None, pid) or not self.serves(name, source):
            return None
        kept = {key: value for key, value in arguments.items() if key not in ("pid", "duration", "waker", "syscalls")}
        return name, {"recording": str(source), **kept}


def next_lines(calls: Sequence[Call], lang: Lang) -> str:
    """Return the calls as text: one line each, the arguments as JSON; empty without calls."""
    if not calls:
        return ""
    lines = [f"- {name} {json.dumps(arguments, ensure_ascii=False)}" for name, arguments in calls]
    heading = f"{words(lang)['labels']['next_calls']}{words(lang)['marks']['colon']}".rstrip()
    return "\n".join([heading, *map(printable, lines)]) + "\n"


def _after_diagnosis(d: Diagnosis, given: dict[str, Any], pid: int | None) -> Iterator[Call]:
    """Yield what the evidence suggests, best first; if nothing was found, a longer diagnosis before that."""
    chain = [f for f in d.findings if f.id in d.chain]
    unsure = d.verdict in (Verdict.HEALTHY, Verdict.IDLE, Verdict.INCONCLUSIVE)
    if unsure and pid is not None and not given.get("traces"):
        longer = min(600.0, _LONGER * given.get("duration", 12.0))
        kept = {key: given[key] for key in ("symptom", "profile") if given.get(key)}
        if d.verdict is Verdict.INCONCLUSIVE:
            yield from islice(_suggested([*chain, *_ordered(d.findings)], pid), 1)
        yield "diagnose", {"pid": pid, "duration": longer, **kept}
    yield from _suggested([*chain, *_ordered(d.findings)], pid)
    for match in d.matches:
        if match.known:
            yield _incident(match.incident)


def _incident(id: str) -> Call:
    return "artifact_read", {"uri": f"{SCHEME}incidents/{quote(id, safe='')}"}


def _after_tool(result: ToolResult[Any], pid: int | None) -> Iterator[Call]:
    """Yield what the result itself proposes, then what its findings suggest."""
    for call in getattr(result.data, "next", []):
        named = call.arguments.keys()
        if "pid" in named or ("before" in named and named & {"after", "recording"}):
            yield call.tool, dict(call.arguments)
    yield from _suggested(_ordered(result.findings), pid)


def _ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Return the abnormal findings, worst first."""
    abnormal = [f for f in findings if f.polarity is Polarity.ABNORMAL]
    return sorted(abnormal, key=lambda f: (-f.severity.rank, -f.window_pct))


def _suggested(findings: Sequence[Finding], pid: int | None) -> Iterator[Call]:
    """Yield the calls of the first findings: the best of each, then the second of each; then those of a process in
    general."""
    made = [list(_filled(f)) for f in findings[:_FINDINGS]]
    for rank in range(max(map(len, made), default=0)):
        yield from (calls[rank] for calls in made if rank < len(calls))
    yield from _with(_table()[""], {"$pid": pid})


def _filled(finding: Finding) -> Iterator[Call]:
    code = finding.attributes.get("wait") or finding.attributes.get("mode", "")
    family = finding.kind.partition(".")[0]
    names = (f"{finding.kind}:{code}", finding.kind, family)
    calls = next((_table()[name] for name in names if name in _table()), [])
    other = next((found for name in _OTHERS if (found := _LABEL.search(finding.attributes.get(name, "")))), None)
    pid = _pid(finding)
    yield from _with(calls, {"$pid": pid, "$other": int(other[1]) if other and pid else None})


def _pid(finding: Finding) -> int | None:
    """Return the process of a finding, if it is on this host."""
    return finding.subject.pid if _is_here(finding.subject.host) else None


def _is_here(host: str | None) -> bool:
    return host is None or host == gethostname()


def _with(calls: Sequence[dict[str, Any]], values: dict[str, int | None]) -> Iterator[Call]:
    """Yield `calls` with `values` in place of their names; calls with an unknown one are left out."""
    for call in calls:
        arguments = {k: values.get(v) if isinstance(v, str) else v for k, v in call.items() if k != "tool"}
        if None not in arguments.values():
            yield call["tool"], arguments


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = yaml.safe_load(
        Path(__file__).with_name("next_calls.yaml").read_text("utf-8")
    )
    return found
