"""The investigation: look, judge the causes, look closer where they are still open, conclude."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from whystall.agent_server.investigation.assess import Link, assess
from whystall.agent_server.investigation.causes import of_hosts
from whystall.agent_server.investigation.observer import Observer, Options
from whystall.agent_server.investigation.rules import FIRST_LOOK, next_tools
from whystall.agent_server.investigation.verdict import Conclusion, conclude, culprit
from whystall.agent_server.investigation.victim import choose_feeder, choose_victim
from whystall.knowledge_base.causes import asked_for
from whystall.knowledge_base.models import Assessment, Cause, Diagnosis, Step, Verdict, Victim
from whystall.tools.contract.findings import Finding, Severity
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import Status, ToolResult

_FIRST_LOOK_S = 2.0
# A wait for a colleague that takes this share of the window is worth asking who ends it.
_WAIT_PCT = 10.0


class Investigation:
    """One run. `findings` and `results` hold the latest result of each tool; ids are unique within the run."""

    def __init__(
        self,
        causes: Mapping[str, Cause],
        tools: Mapping[str, Tool[Any, Any]],
        observer: Observer,
        numbered: int = 0,
    ) -> None:
        """`numbered`: findings that bear numbers already, where this is a part of a larger case."""
        self._causes = of_hosts(causes)
        self._tools = tools
        self._observer = observer
        self._results: dict[str, ToolResult[Any]] = {}
        self._steps: list[Step] = []
        self._count = numbered

    async def run(self, duration: float, symptom: str, target: str) -> Diagnosis:
        """Observe for about `duration` seconds in all and conclude.

        `symptom` says which causes are worth examining; who gives a profile asks for all.
        """
        if not self._observer.profiled:
            self._causes = asked_for(self._causes, symptom)
        first = min(_FIRST_LOOK_S, duration / 4)
        await self._look([FIRST_LOOK], first if self._observer.live else 0.0, "first_look", {})
        chosen = next_tools(self._causes, self._assess(), self._tools, list(self._results))
        if chosen:
            # The first look is taken again in the same window, so that all accounts speak about the same time.
            await self._look([FIRST_LOOK, *chosen], duration - first, "separates_causes", {})
        if self._observer.live and self._conclude().verdict is not Verdict.CONFIRMED and self._waits_for_a_colleague():
            await self._look(
                [FIRST_LOOK, *chosen], duration / 2, "who_wakes_the_victim", {"offcputime": {"waker": True}}
            )
        return self._diagnose(symptom, target)

    async def _look(self, names: Sequence[str], duration: float, why: str, options: Options) -> None:
        tools = [self._tools[name] for name in dict.fromkeys(names)]
        results = [self._numbered(r) for r in await self._observer.look(tools, duration, options)]
        self._results.update({r.tool: r for r in results})
        if results:
            self._steps.append(
                Step(
                    tools=[r.tool for r in results],
                    why=why,
                    window_s=results[0].coverage.window_s,
                    findings=[f.id for r in results for f in r.findings],
                    status={r.tool: r.status.value for r in results},
                )
            )

    def _numbered(self, result: ToolResult[Any]) -> ToolResult[Any]:
        findings = []
        for finding in result.findings:
            self._count += 1
            findings.append(finding.model_copy(update={"id": f"F{self._count}"}))
        return result.model_copy(update={"findings": findings})

    @property
    def _findings(self) -> list[Finding]:
        return [f for r in self._results.values() for f in r.findings]

    def _victim(self) -> Victim | None:
        return choose_victim(self._findings) or self._feeder()

    def _feeder(self) -> Victim | None:
        """The victim of a recording that holds the scheduler's events alone."""
        result = self._results.get("host_bound")
        if result is None or FIRST_LOOK in self._results:
            return None
        return choose_feeder(result.findings, result.data.dispatchers)

    def _assess(self) -> list[Assessment]:
        victim = self._victim()
        return assess(self._causes, self._findings, victim, self._saw(), self._links(victim))

    def _saw(self) -> list[str]:
        """Tools that ran and whose collectors were proven alive: only those can rule anything out."""
        return [
            name
            for name, r in self._results.items()
            if r.status is not Status.PARTIAL or all(c.proven for c in r.coverage.collectors)
        ]

    def _links(self, victim: Victim | None) -> list[Link]:
        """Threads that end the victim's waits, where the wakers were recorded."""
        result = self._results.get("offcputime")
        if victim is None or result is None:
            return []
        # Sleeps and polls are ended by timers and devices too, in an interrupt of a thread that has no part in it.
        waits = {f.attributes["syscall"]: f.id for f in result.findings if _waits_for_thread(f, victim)}
        window_ms = max(result.coverage.window_s * 1e3, 1.0)
        return [
            Link(w.waker_tid, waits[w.syscall], min(100.0, 100.0 * w.waker_blocked_ms / window_ms))
            for w in result.data.wakers
            if w.tid == victim.tid and w.syscall in waits and w.waker_pid == victim.pid and w.waker_tid != victim.tid
        ]

    def _waits_for_a_colleague(self) -> bool:
        victim = self._victim()
        return victim is not None and any(
            _waits_for_thread(f, victim) and f.window_pct >= _WAIT_PCT for f in self._findings
        )

    def _conclude(self) -> Conclusion:
        blind = [spot for r in self._results.values() for spot in r.coverage.not_seen]
        found = conclude(self._causes, self._assess(), self._findings, self._victim(), blind)
        if found.verdict is Verdict.HEALTHY and FIRST_LOOK not in self._results:
            return Conclusion(verdict=Verdict.INCONCLUSIVE, missing=["rivals_open"])  # most was not looked at
        return found

    def _diagnose(self, symptom: str, target: str) -> Diagnosis:
        victim, assessments, findings = self._victim(), self._assess(), self._findings
        coverage = [r.coverage for r in self._results.values()]
        conclusion = self._conclude()
        known = {f.id for f in findings}  # a later look of the same tool replaces what an earlier one found
        now = datetime.now(timezone.utc)
        recording = self._observer.recording
        return Diagnosis(
            id=f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
            created=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
            target=target,
            symptom=symptom,
            verdict=conclusion.verdict,
            cause=conclusion.cause,
            severity=Severity.INFO if conclusion.verdict is Verdict.HEALTHY else conclusion.severity,
            victim=victim,
            culprit=culprit(conclusion, findings),
            explained_pct=conclusion.explained_pct,
            chain=conclusion.chain,
            assessments=assessments,
            missing=conclusion.missing,
            findings=findings,
            steps=[s.model_copy(update={"findings": [i for i in s.findings if i in known]}) for s in self._steps],
            coverage=coverage,
            artifacts=[a.uri for r in self._results.values() for a in r.artifacts],
            recording=recording.manifest.id if recording else None,
        )


def _waits_for_thread(finding: Finding, victim: Victim) -> bool:
    return finding.kind == "offcpu.lock_wait" and finding.subject.tid == victim.tid
