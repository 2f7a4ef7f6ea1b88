"""A case: what was asked, what was looked at, and what follows from it. Drivers choose what to look at next."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from whystall.agent_server.diagnosis.assess import Link, assess
from whystall.agent_server.diagnosis.causes import of_hosts
from whystall.agent_server.diagnosis.observer import Observer, Options
from whystall.agent_server.diagnosis.rules import FIRST_TOOL
from whystall.agent_server.diagnosis.step_progress import StepProgress
from whystall.agent_server.diagnosis.transcript import Transcript
from whystall.agent_server.diagnosis.verdict import Conclusion, conclude, culprit
from whystall.agent_server.diagnosis.victim import choose_feeder, choose_victim
from whystall.knowledge_base.causes import asked_for, measured
from whystall.knowledge_base.models import Assessment, Cause, Diagnosis, Reasoning, Step, Verdict, Victim
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.findings import Finding, Severity
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import Status, ToolResult

ADVISE = "hybrid_io_advise"
"""The tool that judges trials of direct I/O."""
# A wait for a colleague that takes this share of the window is worth asking who ends it.
_WAIT_PCT = 10.0


class Case:
    """The state of one investigation, the same for every driver.

    `results` hold the latest result of each tool; the ids of their findings are unique within the case. `tried`: all
    tools that were to look, also those that could not be served. `duration`: seconds that a look may take. A driver
    that is a model leaves its `reasoning` here, and the conclusion that it `settled`.
    """

    def __init__(
        self,
        causes: Mapping[str, Cause],
        tools: Mapping[str, Tool[Any, Any]],
        observer: Observer,
        *,
        duration: float,
        symptom: str = "",
        target: str = "",
        numbered: int = 0,
        wanted: Collection[str] = (),
        transcript: Transcript | None = None,
        progress: StepProgress | None = None,
    ) -> None:
        """`symptom` says which causes are worth examining; who gives a profile asks for all. `numbered`: findings that
        bear numbers already, where this is a part of a larger case. `wanted`: tools that are to look whatever the first
        look says. `progress` reports every step.
        """
        hosts = of_hosts(causes)
        self.causes = hosts if observer.profiled else asked_for(hosts, symptom)
        self.tools = tools
        self.observer = observer
        self.duration = duration
        self.symptom = symptom
        self.target = target
        self.results: dict[str, ToolResult[Any]] = {}
        self.steps: list[Step] = []
        self.tried: set[str] = set()
        self.wanted = frozenset(wanted)
        self.transcript = transcript or Transcript()
        self.progress = progress or StepProgress()
        self.reasoning: Reasoning | None = None
        self.settled: Conclusion | None = None
        self._options: dict[str, Mapping[str, Any]] = {}
        self._found: dict[str, Finding] = {}
        self._count = numbered

    async def observe(
        self, names: Sequence[str], duration: float, why: str, options: Options | None = None
    ) -> list[ToolResult[Any]]:
        """Run the tools `names` in one window and return their results, numbered; those that nothing here can serve
        are left out.

        Live, the tools that ran before look again in the same window, with their latest options: evidence of
        different times does not confirm each other. `why` is a code of ``why`` in ``prompts/words``. Raises what the
        observer raises; the case then stands as before.
        """
        wanted = self._options | dict(options or {})
        again = [name for name in self.results if name not in names] if self.observer.live else []
        asked = list(dict.fromkeys([*again, *names]))
        self.progress.look(len(self.steps) + 1, list(names) or again, why, duration)
        try:
            found = await self.observer.observe([self.tools[name] for name in asked], duration, wanted)
        except ToolError as error:
            self.transcript.look_failed(asked, wanted, error)
            raise
        self._options = wanted
        return self._kept(asked, duration, why, found)

    async def calibrate(self) -> None:
        """Try direct I/O beside buffered on the file systems of the last look, which writes a temporary file there, and
        judge that look by it: no other window, and nothing where none was looked at that saw the page cache.
        """
        if not self.observer.live or ADVISE not in self.tools:
            return
        wanted = {**self._options, ADVISE: {"calibrate": True}}
        self.progress.look(len(self.steps) + 1, [ADVISE], "tried_here", 1.0)
        if found := await self.observer.calibrate(self.tools[ADVISE], wanted):
            self._options = wanted
            self._kept([ADVISE], 0.0, "tried_here", found)

    def _kept(
        self, asked: Sequence[str], duration: float, why: str, found: Sequence[ToolResult[Any]]
    ) -> list[ToolResult[Any]]:
        """`found` numbered, as a step of this case."""
        self.tried.update(asked)
        results = [self._numbered(r) for r in found]
        self.transcript.look(asked, duration, why, self._options, results)
        self.results.update({r.tool: r for r in results})
        if results:
            self.steps.append(
                Step(
                    tools=[r.tool for r in results],
                    why=why,
                    window_s=results[0].coverage.window_s,
                    findings=[f.id for r in results for f in r.findings],
                    status={r.tool: r.status.value for r in results},
                )
            )
        return results

    def _numbered(self, result: ToolResult[Any]) -> ToolResult[Any]:
        findings = []
        for finding in result.findings:
            self._count += 1
            named = finding.model_copy(update={"id": f"F{self._count}"})
            self._found[named.id] = named
            findings.append(named)
        return result.model_copy(update={"findings": findings})

    @property
    def findings(self) -> list[Finding]:
        """What holds now: the findings of each tool's latest look."""
        return [f for r in self.results.values() for f in r.findings]

    def options(self, tool: str) -> Mapping[str, Any]:
        """The arguments with which `tool` looked last, beyond target and duration; empty where it did not."""
        return self._options.get(tool, {}) if tool in self.results else {}

    def current(self, id: str) -> str | None:
        """The id under which what the finding `id` says is known now; None where it holds no more, or never did.

        A later look of the same tool finds the same anew: it then bears another number.
        """
        holds = self.findings
        if any(f.id == id for f in holds):
            return id
        if (old := self._found.get(id)) is None:
            return None
        same = [f for f in holds if f.fingerprint == old.fingerprint and f.polarity is old.polarity]
        same.sort(key=lambda f: (f.subject != old.subject, f.subject.tid != old.subject.tid))
        return same[0].id if same else None

    def victim(self) -> Victim | None:
        """Who suffers, as far as is known."""
        return choose_victim(self.findings) or self._feeder()

    def _feeder(self) -> Victim | None:
        """The victim of a recording that holds the scheduler's events alone."""
        result = self.results.get("host_bound")
        if result is None or FIRST_TOOL in self.results:
            return None
        return choose_feeder(result.findings, result.data.dispatchers)

    def assess(self) -> list[Assessment]:
        """Every cause judged by what was found, the one that explains most first."""
        victim = self.victim()
        return assess(self.causes, self.findings, victim, self._saw(), self._links(victim))

    def signs(self) -> list[str] | None:
        """Causes that want a sign in the first look before a closer one, and have it; None where that was not taken."""
        if FIRST_TOOL not in self.results:
            return None
        victim, findings = self.victim(), self.findings

        return [
            id
            for id, cause in self.causes.items()
            if any(measured(sign, finding, victim) for sign in cause.signs for finding in findings)
        ]

    def _saw(self) -> list[str]:
        """Tools that ran and whose collectors were proven alive: only those can rule anything out."""
        return [
            name
            for name, r in self.results.items()
            if r.status is not Status.PARTIAL or all(c.proven for c in r.coverage.collectors)
        ]

    def _links(self, victim: Victim | None) -> list[Link]:
        """Threads that end the victim's waits, where the wakers were recorded."""
        result = self.results.get("offcputime")
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

    def waits_for_a_colleague(self) -> bool:
        """Whether the victim waits so long for another thread that it is worth asking who ends it."""
        victim = self.victim()
        return victim is not None and any(
            _waits_for_thread(f, victim) and f.window_pct >= _WAIT_PCT for f in self.findings
        )

    def conclude(self, preferred: str | None = None) -> Conclusion:
        """The verdict on what was found so far; `preferred` as in `verdict.conclude`."""
        blind = [spot for r in self.results.values() for spot in r.coverage.not_seen]
        found = conclude(self.causes, self.assess(), self.findings, self.victim(), blind, preferred)
        if found.verdict is Verdict.HEALTHY and FIRST_TOOL not in self.results:
            return Conclusion(verdict=Verdict.INCONCLUSIVE, missing=["rivals_open"])  # most was not looked at
        return found

    def diagnosis(self, conclusion: Conclusion | None = None) -> Diagnosis:
        """The case as it stands now, with everything it rests on. `conclusion`: another than was `settled`."""
        victim, assessments, findings = self.victim(), self.assess(), self.findings
        coverage = [r.coverage for r in self.results.values()]
        conclusion = conclusion or self.settled or self.conclude()
        known = {f.id for f in findings}  # a later look of the same tool replaces what an earlier one found
        now = datetime.now(timezone.utc)
        recording = self.observer.recording
        return Diagnosis(
            id=f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
            created=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
            target=self.target,
            symptom=self.symptom,
            verdict=conclusion.verdict,
            cause=conclusion.cause,
            severity=Severity.INFO if conclusion.verdict is Verdict.HEALTHY else conclusion.severity,
            victim=victim,
            culprit=culprit(conclusion, findings, self.causes, victim),
            explained_pct=conclusion.explained_pct,
            chain=conclusion.chain,
            assessments=assessments,
            missing=conclusion.missing,
            findings=findings,
            steps=[s.model_copy(update={"findings": [i for i in s.findings if i in known]}) for s in self.steps],
            coverage=coverage,
            artifacts=[a.uri for r in self.results.values() for a in r.artifacts],
            recording=recording.manifest.id if recording else None,
            reasoning=self.reasoning,
        )


def _waits_for_thread(finding: Finding, victim: Victim) -> bool:
    return finding.kind == "offcpu.lock_wait" and finding.subject.tid == victim.tid
