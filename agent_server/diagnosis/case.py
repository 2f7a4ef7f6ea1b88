"""The state of one investigation: which tools ran, what they found, and what follows. Drivers choose the next tools."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import count
from typing import Any, Literal

from whystall.agent_server.diagnosis.account import account
from whystall.agent_server.diagnosis.assess import assess, links
from whystall.agent_server.diagnosis.causes import (
    FIRST_TOOL,
    HARDWARE_TOOL,
    NEWER_TOOLS,
    PATH_TOOL,
    SERVING_TOOL,
    of_hosts,
)
from whystall.agent_server.diagnosis.culprit import culprit
from whystall.agent_server.diagnosis.observer import Observer, Options
from whystall.agent_server.diagnosis.path_needs import NEEDED_PCT, WORTH_PCT, unneeded_tools
from whystall.agent_server.diagnosis.reliability import lost_much, reliable
from whystall.agent_server.diagnosis.step_progress import StepProgress
from whystall.agent_server.diagnosis.transcript import Transcript
from whystall.agent_server.diagnosis.verdict import ONE_SOURCE, Conclusion, conclude
from whystall.agent_server.diagnosis.victim import FEEDS, choose_feeder, choose_victim, victim_on_path
from whystall.knowledge_base.causes import considered_for, measured
from whystall.knowledge_base.complaints import is_complaint
from whystall.knowledge_base.models import (
    Assessment,
    Cause,
    CauseState,
    Diagnosis,
    OtherProcess,
    Reasoning,
    Step,
    Verdict,
    Victim,
)
from whystall.knowledge_base.times import rfc3339
from whystall.knowledge_base.tokens import concepts
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.findings import Finding, Severity
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import Artifact, BlindSpot, ToolResult
from whystall.tools.timeline.recorded import FILE

DIRECT_IO_TOOL = "hybrid_io_advise"
"""Judges trials of direct I/O."""


class Case:
    """One investigation of a host, the same for every driver.

    `results` hold the latest result of each tool; ids of findings are unique within the case. `tried`: all tools that
    were requested, including those that could not be served. `duration`: seconds of a window. A model driver stores its
    `reasoning`, and in `settled` the conclusion after its claims were checked. `target_ended`: before a further window.
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
        options: Options | None = None,
        transcript: Transcript | None = None,
        progress: StepProgress | None = None,
        hardware_first: bool = True,
        excluded: Collection[str] = (),
    ) -> None:
        """`symptom` selects the causes to examine; with an accelerator's profile all are. `numbered`: findings numbered
        before, if this is part of a larger case. `wanted`: tools that run whatever the first window shows; `options`:
        arguments of tools besides those that the investigation chooses. `hardware_first`: the first window reads what
        drivers reported; transcripts of older versions have it later, or not at all. `excluded`: causes that are
        known not to explain the symptom.
        """
        hosts = of_hosts(causes, serving=SERVING_TOOL in wanted)
        considered = considered_for(hosts, symptom, any_symptom=observer.profiled)
        self.causes = {id: cause for id, cause in considered.items() if id not in excluded}
        self.tools = {
            name: tool
            for name, tool in tools.items()
            if tool.reads not in ("logs", "topology")  # these observe nothing
            and (name != SERVING_TOOL or name in wanted)
        }
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
        self.target_ended = False
        self.hardware_first = hardware_first
        self.hangs = "hang" in concepts(symptom)
        self.slow = not self.hangs and is_complaint(symptom)
        self.others: list[OtherProcess] = []
        self._artifacts_of_others: list[Artifact] = []
        self._options: dict[str, Mapping[str, Any]] = dict(options or {})
        self._all_findings: dict[str, Finding] = {}
        self._count = numbered

    # --- observing ------------------------------------------------------------------------------------------------

    async def observe(
        self, names: Sequence[str], duration: float, why: str, options: Options | None = None
    ) -> list[ToolResult[Any]]:
        """Run the tools `names` in one window and return their results, without tools that cannot be served here.

        Live, the tools that ran before run again in the same window with their latest options: evidence from different
        times does not confirm each other. `why` is a code of ``why`` in ``prompts/words``. Raises what the observer
        raises; the case is then unchanged.
        """
        wanted = self._options | dict(options or {})
        again = [name for name in self.results if name not in names] if self.observer.live else []
        requested = list(dict.fromkeys([*again, *names]))
        self.progress.start_step(len(self.steps) + 1, list(names) or again, why, duration)
        try:
            results = await self.observer.observe([self.tools[name] for name in requested], duration, wanted)
        except ToolError as error:
            self.transcript.observation_failed(requested, wanted, error)
            raise
        self._options = wanted
        return self._add_step(requested, duration, why, results)

    async def observe_process(
        self, finding: Finding, role: str, pid: int, names: Sequence[str], duration: float
    ) -> list[ToolResult[Any]]:
        """Run the tools `names` on the process `pid`, which `finding` names as `role`, and return their results.

        They are kept in `others`, apart from the results that are judged: their findings have ids of their own, and no
        verdict, victim or claim rests on them. Raises what the observer raises.
        """
        named_in = next(r.coverage.recording for r in self.results.values() if finding in r.findings)
        self.progress.start_step(len(self.steps) + 1, list(names), "model_asked", duration)
        try:
            results = await self.observer.observe_process(pid, named_in, [self.tools[n] for n in names], duration)
        except ToolError as error:
            self.transcript.observation_failed(names, {}, error, pid)
            raise
        ids = count(1 + sum(len(other.findings) for other in self.others))
        results = [
            r.model_copy(update={"findings": [f.model_copy(update={"id": f"P{next(ids)}"}) for f in r.findings]})
            for r in results
        ]
        self.transcript.observed(names, duration, "model_asked", {}, results, pid)
        found = [f for result in results for f in result.findings]
        tools = [result.tool for result in results]
        self.others.append(OtherProcess(finding=finding.id, role=role, pid=pid, tools=tools, findings=found))
        self._artifacts_of_others += [artifact for result in results for artifact in result.artifacts]
        return results

    def window_options(self) -> Options:
        """Return the options of the next window: those of the critical path, and how far back drivers' messages are
        read: by the first window only the last hour, afterwards all if a cause that they decide shows signs."""
        if not self.hardware_first or not self.observer.live:
            return self.path_options()
        brief = HARDWARE_TOOL not in self.tried or self._options.get(HARDWARE_TOOL, {}).get("first_look")
        brief = brief and not (self.results and self._hardware_matters())
        return {**self.path_options(), HARDWARE_TOOL: {"first_look": True} if brief else {}}

    def path_options(self) -> Options:
        """Return the options of the critical path for the next window: whether threads that stand still matter, and the
        processes for which the victim waits that were not recorded so far."""
        path = self.results.get(PATH_TOOL)
        unseen = path.data.unseen if path is not None else []
        known = str(self._options.get(PATH_TOOL, {}).get("peers", "")).split(",")
        peers = ",".join(dict.fromkeys([*filter(None, known), *map(str, unseen)]))
        options = {"stands_still": True} if self.hangs else {}
        return {PATH_TOOL: {**options, **({"peers": peers} if peers else {})}} if options or peers else {}

    async def calibrate(self) -> None:
        """Try direct I/O beside buffered (writes a temporary file), and judge the last window with the trials.

        Do nothing if no live window recorded the page cache.
        """
        if not self.observer.live or DIRECT_IO_TOOL not in self.tools:
            return
        wanted = {**self._options, DIRECT_IO_TOOL: {"calibrate": True}}
        self.progress.start_step(len(self.steps) + 1, [DIRECT_IO_TOOL], "tried_here", 1.0)
        if results := await self.observer.calibrate(self.tools[DIRECT_IO_TOOL], wanted):
            self._options = wanted
            self._add_step([DIRECT_IO_TOOL], 0.0, "tried_here", results)

    def _add_step(
        self, requested: Sequence[str], duration: float, why: str, results: Sequence[ToolResult[Any]]
    ) -> list[ToolResult[Any]]:
        """Store `results` as a step of the case; return them with numbered findings."""
        self.tried.update(requested)
        results = self._numbered(results)
        self.transcript.observed(requested, duration, why, self._options, results)
        self.results.update({r.tool: r for r in results})
        if results:
            self.steps.append(step_of(results, why))
        return results

    def _numbered(self, results: Sequence[ToolResult[Any]]) -> list[ToolResult[Any]]:
        """Return the results of one window with numbered findings. What two tools report alike, since both judge the
        same tables (a kill for lack of memory), has one number."""
        numbers: dict[str, str] = {}
        numbered = []
        for result in results:
            findings = []
            for finding in result.findings:
                content = finding.model_dump_json(exclude={"id"})
                if content not in numbers:
                    self._count += 1
                    numbers[content] = f"F{self._count}"
                named = finding.model_copy(update={"id": numbers[content]})
                self._all_findings[named.id] = named
                findings.append(named)
            numbered.append(result.model_copy(update={"findings": findings}))
        return numbered

    # --- what is known --------------------------------------------------------------------------------------------

    @property
    def artifacts(self) -> list[Artifact]:
        """The artifacts of each tool's latest result, then those of other processes."""
        return [*(a for r in self.results.values() for a in r.artifacts), *self._artifacts_of_others]

    @property
    def findings(self) -> list[Finding]:
        """The findings of each tool's latest result, each once."""
        return list({f.id: f for r in self.results.values() for f in r.findings}.values())

    def options(self, tool: str) -> Mapping[str, Any]:
        """Return the latest arguments of `tool` besides target and duration; empty if it did not run."""
        return self._options.get(tool, {}) if tool in self.results else {}

    def current(self, id: str) -> str | None:
        """Return the current id of a finding, which a later window may have found anew; None if it no longer holds."""
        findings = self.findings
        if any(f.id == id for f in findings):
            return id
        if (old := self._all_findings.get(id)) is None:
            return None
        same = [f for f in findings if f.fingerprint == old.fingerprint and f.polarity is old.polarity]
        same.sort(key=lambda f: (f.subject != old.subject, f.subject.tid != old.subject.tid))
        return same[0].id if same else None

    def victim(self) -> Victim | None:
        """Return the victim, if known: the thread that an accelerator waits for, else the one whose critical path was
        observed, else the one that loses most time by the kernel's counters."""
        victim = choose_victim(self.findings)
        path = self.results.get(PATH_TOOL)
        if path is not None and path.data.thread is not None and not (victim and victim.chosen_by == FEEDS):
            thread = path.data.thread
            return victim_on_path(path.findings, thread.pid, thread.tid, thread.comm, path.data.chosen_by)
        if victim is not None:
            return victim
        result = self.results.get("host_bound")
        if result is None or FIRST_TOOL in self.results:
            return None
        return choose_feeder(result.findings, result.data.dispatchers)  # only scheduler events were recorded

    def signs(self) -> list[str] | None:
        """Return the causes whose `signs` the findings show; None if the first tool did not run."""
        if FIRST_TOOL not in self.results:
            return None
        victim, findings = self.victim(), self.findings
        return [
            id
            for id, cause in self.causes.items()
            if any(measured(sign, finding, victim) for sign in cause.signs for finding in findings)
        ]

    def _hardware_matters(self) -> bool:
        """Return whether a cause that drivers' messages decide shows signs. If none does, it stays out of the verdict
        that these may not be readable here."""
        signs = self.signs()
        return signs is None or any(HARDWARE_TOOL in self.causes[id].examined_by for id in signs)

    def unneeded_tools(self, least_pct: float = WORTH_PCT) -> set[str]:
        """Return the tools that measure less than `least_pct` of the victim's time, by the account of its critical
        path."""
        path = self.results.get(PATH_TOOL)
        if not self.observer.live or path is None or path.data.thread is None or not reliable(path):
            return set()
        return unneeded_tools(path.findings, least_pct)

    # --- judging --------------------------------------------------------------------------------------------------

    def assess(self, causes: Mapping[str, Cause] | None = None) -> list[Assessment]:
        """Judge every cause by the findings; the one that explains most comes first. `causes`: others than those that
        the symptom selected."""
        victim = self.victim()
        found = assess(
            causes or self.causes, self.findings, victim, self.reliable_tools(), links(self.findings, victim)
        )
        skipped = self.unneeded_tools(NEEDED_PCT)
        open_ones = (CauseState.NOT_EXAMINED,) if causes is None else ()
        return [self._ruled_by_path(a, skipped) if a.state in open_ones else a for a in found]

    def _ruled_by_path(self, assessment: Assessment, skipped: set[str]) -> Assessment:
        """Return the assessment of a cause that no tool examined: without evidence, if the victim spends no time in
        what its tools measure."""
        able = set(self.causes[assessment.cause].examined_by) & self.tools.keys()
        if not able or not able <= skipped:
            return assessment
        return assessment.model_copy(update={"state": CauseState.UNSUPPORTED, "by": [PATH_TOOL]})

    def reliable_tools(self) -> list[str]:
        """Return the tools that ran with collectors verified to work: only those can rule anything out."""
        return [name for name, result in self.results.items() if reliable(result)]

    def _decidable(self) -> list[Assessment]:
        """Return the assessments without causes that an older recording cannot decide, because their tools are
        newer."""
        newer = NEWER_TOOLS if PATH_TOOL not in self.results else frozenset()
        unserved = {*newer, HARDWARE_TOOL} - self.results.keys()
        if not self._hardware_matters():
            unserved |= {HARDWARE_TOOL}
        return [
            a
            for a in self.assess()
            if a.state is not CauseState.NOT_EXAMINED or not set(self.causes[a.cause].examined_by) <= unserved
        ]

    def conclude(self, preferred: str | None = None) -> Conclusion:
        """Return the verdict on the findings so far; `preferred` as in `verdict.conclude`."""
        unread = set() if self._hardware_matters() else {HARDWARE_TOOL}
        blind = [
            spot
            for result in self.results.values()
            if result.tool not in unread
            for spot in result.coverage.not_seen
            if spot.code != "events_lost" or lost_much(result)
        ]
        if self.target_ended:
            blind.append(BlindSpot(code="target_exited"))
        reported: Literal["", "hangs", "slow"] = "hangs" if self.hangs else "slow" if self.slow else ""
        found = conclude(
            self.causes, self._decidable(), self.findings, self.victim(), blind, preferred, reported=reported
        )
        if found.verdict.no_fault and FIRST_TOOL not in self.results:
            return Conclusion(verdict=Verdict.INCONCLUSIVE, missing=["rivals_open"])  # most was not examined
        if found.verdict is Verdict.CONFIRMED and self._one_file():
            found = replace(found, verdict=Verdict.LIKELY, missing=[ONE_SOURCE])
        if self.target_ended and found.missing and "target_exited" not in found.missing:
            return replace(found, missing=[*found.missing, "target_exited"])  # why no more was examined
        return found

    def _one_file(self) -> bool:
        """Return whether all findings are from one trace file: its events confirm each other only if it is right."""
        sources = {(one.name, one.engine) for result in self.results.values() for one in result.coverage.collectors}
        return len(sources) == 1 and {engine for _, engine in sources} == {FILE}

    def diagnosis(self, conclusion: Conclusion | None = None) -> Diagnosis:
        """Return the diagnosis of the case as it is now; `conclusion` replaces the settled or computed one."""
        victim, assessments, findings = self.victim(), self.assess(), self.findings
        conclusion = conclusion or self.settled or self.conclude()
        known = {f.id for f in findings}  # a later result of a tool replaces its earlier findings
        now = datetime.now(timezone.utc)
        recording, path = self.observer.recording, self.results.get(PATH_TOOL)
        return Diagnosis(
            id=f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
            created=rfc3339(now),
            target=self.target,
            symptom=self.symptom,
            verdict=conclusion.verdict,
            cause=conclusion.cause,
            severity=Severity.INFO if conclusion.verdict.no_fault else conclusion.severity,
            victim=victim,
            culprit=culprit(conclusion, findings, self.causes, victim),
            explained_pct=conclusion.explained_pct,
            chain=conclusion.chain,
            assessments=assessments,
            missing=conclusion.missing,
            findings=findings,
            account=account(findings, victim),
            compared=path.data.compared if path is not None else None,
            steps=[s.model_copy(update={"findings": [i for i in s.findings if i in known]}) for s in self.steps],
            coverage=[r.coverage for r in self.results.values()],
            artifacts=[a.uri for r in self.results.values() for a in r.artifacts],
            recording=recording.manifest.id if recording else None,
            reasoning=self.reasoning,
        )


def step_of(results: Sequence[ToolResult[Any]], why: str) -> Step:
    """Return the step of a diagnosis for the results of one window."""
    return Step(
        tools=[r.tool for r in results],
        why=why,
        window_s=results[0].coverage.window_s,
        findings=list(dict.fromkeys(f.id for r in results for f in r.findings)),
        status={r.tool: r.status.value for r in results},
    )
