"""Run a diagnosis from its parameters to the stored result: on a host, on a recording, or on the ranks of a job."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from whystall.agent_server.diagnosis import transcript_files
from whystall.agent_server.diagnosis.budget import Limits
from whystall.agent_server.diagnosis.case import DIRECT_IO_TOOL, Case
from whystall.agent_server.diagnosis.causes import (
    BASELINE_TOOL,
    DEVICES_TOOL,
    FIRST_TOOL,
    LOGS_TOOL,
    RANKS_TOOL,
    SERVING_TOOL,
    TOPOLOGY_TOOL,
)
from whystall.agent_server.diagnosis.crashes import crash_diagnosis
from whystall.agent_server.diagnosis.known_fixes import known_in_logs, known_in_recording, known_on_this_host
from whystall.agent_server.diagnosis.model_driver import drive
from whystall.agent_server.diagnosis.observer import LiveObserver, Observer, RecordedObserver
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.diagnosis.past_incidents import KnownIncidents
from whystall.agent_server.diagnosis.rank_process import find_rank_process
from whystall.agent_server.diagnosis.ranks import rank_diagnosis, with_blind_spot, with_host
from whystall.agent_server.diagnosis.serving import recorded_serving, serving_options
from whystall.agent_server.diagnosis.step_progress import StepProgress
from whystall.agent_server.diagnosis.store_diagnosis import store_diagnosis
from whystall.agent_server.diagnosis.target_choice import choose_process, with_children
from whystall.agent_server.diagnosis.transcript import CaseOpened, TranscribedModel, Transcript
from whystall.agent_server.inputs.logs import ReadLogs, held_by, read_all
from whystall.agent_server.inputs.ranks import gathered, runs_named, with_baseline
from whystall.agent_server.inputs.recordings import check_profile_place, in_thread, joining, open_earlier, opened
from whystall.agent_server.inputs.topology import topology_of
from whystall.agent_server.llm.wire import LanguageModel
from whystall.agent_server.presentation.pages import judged
from whystall.agent_server.settings.load import load
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis, Lang, Reasoning
from whystall.knowledge_base.signatures import evidence
from whystall.knowledge_base.ticket_models import Ticket
from whystall.knowledge_base.verify import compare
from whystall.tools.collect.engines import ENGINES
from whystall.tools.collect.options import SwitchOptions
from whystall.tools.collect.own_priority import raised_when_starved
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import TargetParams, parse_params
from whystall.tools.contract.registry import Registry
from whystall.tools.contract.result import ToolResult
from whystall.tools.contract.text import clean
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target, resolve
from whystall.tools.recording.window import Progress, observe

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores


@dataclass(frozen=True)
class Driver:
    """A model that drives a diagnosis, within `limits`."""

    model: LanguageModel
    limits: Limits


@dataclass
class _Run:
    """One diagnosis in progress. `driver`: None for the rules; `wanted`: tools that run in any case; `options`:
    arguments given for tools; `excluded`: causes that are not considered."""

    params: DiagnoseParams
    registry: Registry
    progress: Progress | None
    driver: Driver | None
    lang: Lang
    wanted: frozenset[str] = frozenset()
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    excluded: frozenset[str] = frozenset()

    @cached_property
    def transcript(self) -> Transcript:
        """The transcript, created when there is a first record for it."""
        return transcript_files.begin(self.params.symptom, load_causes(), self.registry.all())

    @cached_property
    def step_progress(self) -> StepProgress:
        """Reports progress with the name of the step."""
        return StepProgress(self.progress, self.lang)

    def without_host(self, diagnosis: Diagnosis, code: str) -> Diagnosis:
        """Add to a diagnosis of ranks alone why the model, if one was requested, had no host to observe."""
        if self.driver is None:
            return diagnosis
        self.transcript.stopped(code)
        reasoning = Reasoning(model=clean(self.driver.model.name), stopped=code, transcript=self.transcript.uri)
        return diagnosis.model_copy(update={"reasoning": reasoning})

    def blind(self, diagnosis: Diagnosis, code: str, detail: str) -> Diagnosis:
        """Add a blind spot to `diagnosis` and to the transcript."""
        self.transcript.blind_spot(code, detail)
        return with_blind_spot(diagnosis, code, detail)

    def close(self) -> None:
        """Close the transcript, if there is one."""
        if "transcript" in self.__dict__:
            self.transcript.close()


class DiagnosisRunner:
    """Diagnoses with the tools of `registry` and stores the results in `kb`; holds `window` while observing."""

    def __init__(self, registry: Registry, kb: Stores, window: anyio.Lock) -> None:
        self._registry = registry
        self._kb = kb
        self._window = window

    async def diagnose(
        self,
        params: DiagnoseParams,
        *,
        source: Path | None = None,
        progress: Progress | None = None,
        driver: Driver | None = None,
        lang: Lang = "en",
        then: Callable[[Diagnosis], None] | None = None,
        wanted: Collection[str] = (),
        excluded: Collection[str] = (),
    ) -> Diagnosis:
        """Find out why the target stalls, match past incidents, and draft a ticket if requested and a fault was found.

        A profile is joined to every window that traces the scheduler. The ranks of a job are judged first; then the
        process of the slow rank is observed if it is on this host.

        Args:
            source: judge this recording instead of observing.
            driver: a model that chooses the tools instead of the rules.
            lang: of progress, and of the texts for a model.
            then: called with the stored diagnosis, in the same transaction.
            wanted: tools to run whatever the first window shows.
            excluded: causes that are known not to explain the symptom.

        If the disk is full the diagnosis has the blind spot `not_stored`, and no ticket.
        """
        params.check(source)
        ticket_service = self._ticket_service() if params.ticket else None  # reads the settings: fails early
        run = _Run(params, self._registry, progress, driver, lang, frozenset(wanted), excluded=frozenset(excluded))
        try:
            found = await self._find(run, source)
            found = found.model_copy(update={"id": run.transcript.id})
            # Not abandoned when cancelled: an observation is stored, however long the database is locked.
            diagnosis = await anyio.to_thread.run_sync(lambda: store_diagnosis(self._kb, found, ticket_service, then))
            run.transcript.end(diagnosis)
        finally:
            run.close()
        return diagnosis

    def _ticket_service(self) -> TicketService:
        return TicketService(self._kb, load())

    async def _find(self, run: _Run, source: Path | None) -> Diagnosis:
        """Return the diagnosis before it is compared with past incidents and stored."""
        params = run.params
        profile = Path(params.profile) if params.profile else None
        if params.log:
            paths = list(params.log)
            return await self._diagnose_logs(await in_thread(lambda: read_all(paths)), run)
        if params.traces is not None:
            runs = runs_named(params)
            if params.baseline is not None:
                self._kb.operator_baselines.load(params.baseline)  # fails before traces are read
            return await self._diagnose_ranks(await in_thread(lambda: gathered(runs)), run, live=True)
        before = await in_thread(lambda: open_earlier(params.before))
        if source is not None:
            recording = await opened(source, profile)
            if before is not None and not recording.has("switches"):
                message = "before compares critical paths, and the recording to judge has no waits"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, "leave it out, or give a recording of a host")
            recording.before = before
            if recording.has("crashes") and not recording.has("proc"):  # of logs, and not of a host
                return await self._diagnose_logs(held_by(recording), run)
            if recording.has("ranks"):
                return await self._diagnose_ranks(recording, run, live=False)
            if await in_thread(lambda: recorded_serving(recording)):
                run.wanted |= {SERVING_TOOL}
            target = recording.manifest.target.describe()
            recorded = await self._investigate(RecordedObserver(recording), run, target)
            return await in_thread(lambda: known_in_recording(recorded, recording))
        if profile is not None:
            check_profile_place(profile)
        async with self._window:
            with raised_when_starved():
                return await self._observed(run, profile, before)

    async def _observed(self, run: _Run, profile: Path | None, before: Recording | None) -> Diagnosis:
        """Return what is found on this host; `profile`: of an accelerator, to join; `before`: an earlier recording."""
        target = await self._target(run.params, run.progress)
        serving = await in_thread(lambda: serving_options(run.params.metrics_url, target))
        if serving is not None:
            run.wanted, run.options = run.wanted | {SERVING_TOOL}, serving
        observer = LiveObserver(target, run.params.engine, run.step_progress, joining(profile), before)
        found = await self._investigate(observer, run, target.describe())
        return await in_thread(lambda: known_on_this_host(found, target.pids))

    async def _diagnose_ranks(self, recording: Recording, run: _Run, *, live: bool) -> Diagnosis:
        """Judge the traces of ranks; if `live`, also observe the slow rank's process if it is on this host."""
        tool = self._registry.get(RANKS_TOOL)
        result = await in_thread(lambda: judged(tool, recording, tool.params(), "en"))
        ranks = recording.table("ranks.ranks").height
        comparison = await in_thread(lambda: self._compared(recording, run.params.baseline))
        topology = await in_thread(lambda: self._placed(recording, run.params.topology))
        run.transcript.ranks(result, recording.manifest.id, ranks, comparison, topology)
        id, symptom = recording.manifest.id, run.params.symptom
        found = rank_diagnosis(load_causes(), result, id, symptom, ranks, comparison, topology)
        slow = found.victim.rank if found.victim else None
        if slow is None:
            return run.without_host(found, "no_host")
        process = await in_thread(lambda: find_rank_process(recording, slow))
        if process.pid is None:
            return run.without_host(run.blind(found, process.why, process.detail), "no_host")
        if not live:
            unseen = run.blind(found, "rank_not_looked_at", "--from: nothing is observed")
            return run.without_host(unseen, "no_host")
        try:
            async with self._window:
                target = resolve(TargetParams(pid=process.pid))
                observer = LiveObserver(target, run.params.engine, run.step_progress)
                with raised_when_starved():
                    host = await self._investigate(observer, run, target.describe(), len(found.findings))
        except ToolError as error:
            unseen = run.blind(found, "rank_not_looked_at", f"{error.code.value}: {error.message}")
            return run.without_host(unseen, "look_failed")
        return run.blind(with_host(found, host), "looked_later", "")

    def _compared(self, recording: Recording, baseline: str | None) -> ToolResult[Any] | None:
        """Return what compare_runs finds beside the stored runs `baseline`; None without a name."""
        if baseline is None:
            return None
        tool = self._registry.get(BASELINE_TOOL)
        both = with_baseline(recording, self._kb.operator_baselines, baseline)
        return judged(tool, both, parse_params(tool.params, {"baseline": baseline}), "en")

    def _placed(self, recording: Recording, files: list[str] | None) -> ToolResult[Any] | None:
        """Return what cluster_topology finds where the ranks run, by `files`; None without any."""
        if not files:
            return None
        tool = self._registry.get(TOPOLOGY_TOOL)
        return judged(tool, topology_of(files, recording), tool.params(), "en")

    async def _diagnose_logs(self, logs: ReadLogs, run: _Run) -> Diagnosis:
        """Judge what logs state about crashes, and the messages of GPU drivers in them."""
        tool, id = self._registry.get(LOGS_TOOL), logs.crashes.manifest.id
        result = await in_thread(lambda: judged(tool, logs.crashes, tool.params(), "en"))
        devices = await in_thread(lambda: self._driver_messages(logs))
        found = crash_diagnosis(load_causes(), result, id, run.params.symptom, devices)
        return await in_thread(lambda: known_in_logs(found, logs))

    def _driver_messages(self, logs: ReadLogs) -> list[ToolResult[Any]]:
        """Return what gpu_health finds in each log that has messages of a GPU driver."""
        tool = self._registry.get(DEVICES_TOOL)
        return [judged(tool, one, tool.params(kernel_log=one.manifest.id), "en") for one in logs.devices]

    async def _investigate(self, observer: Observer, run: _Run, target: str, numbered: int = 0) -> Diagnosis:
        """Open a case for `target` and let the driver finish it. `numbered`: findings that have numbers already."""
        tools = {tool.name: tool for tool in self._registry.all()}
        case = Case(
            load_causes(),
            tools,
            observer,
            duration=run.params.duration,
            symptom=run.params.symptom,
            target=target,
            numbered=numbered,
            wanted=run.wanted,
            options=run.options,
            transcript=run.transcript,
            progress=run.step_progress,
            excluded=run.excluded,
        )
        record = CaseOpened(
            target=target,
            duration=case.duration,
            live=observer.live,
            profiled=observer.profiled,
            calibrate=run.params.calibrate,
            wanted=sorted(run.wanted),
            options=run.options,
            excluded=sorted(run.excluded),
            numbered=numbered,
        )
        if run.driver is None:
            run.transcript.case(record)
            await drive(case, None)
        else:
            nonce, limits = secrets.token_hex(8), run.driver.limits
            about = {
                "able": [tool.name for tool in await observer.able(list(tools.values()))],
                "model": run.driver.model.name,
                "settings": {"limits": limits.model_dump(), "lang": run.lang, "remembers": True, "extended": True},
                "nonce": nonce,
            }
            run.transcript.case(record.model_copy(update=about))
            model = TranscribedModel(run.driver.model, run.transcript)
            memory = KnownIncidents(self._kb, run.lang)
            await drive(case, model, limits, memory=memory, lang=run.lang, nonce=nonce)
        if run.params.calibrate:
            await case.calibrate()
            if DIRECT_IO_TOOL not in case.results:
                return with_blind_spot(case.diagnosis(), "not_calibrated", "nothing was looked for in the page cache")
        return case.diagnosis()

    async def _target(self, params: DiagnoseParams, progress: Progress | None) -> Target:
        """Return the requested target, of a launcher with its children; without one, the process that suffers most in a
        short window of the host."""
        target = resolve(params)
        if not target.everything:
            return await in_thread(lambda: with_children(target))
        tool = self._registry.get(FIRST_TOOL)
        seconds = min(2.0, params.duration / 4)
        needs = tool.needs(parse_params(tool.params, {"duration": seconds}))
        needs = [*needs, Need("switches", SwitchOptions(min_ns=100_000_000))]
        recording = await observe(needs, target, seconds, ENGINES, choice=params.engine, progress=progress)
        pid = await in_thread(lambda: choose_process(recording))
        return resolve(TargetParams(pid=pid)) if pid is not None else target

    async def verify(
        self,
        ticket: str,
        *,
        target: TargetParams | None = None,
        duration: float | None = None,
        source: Path | None = None,
        traces: str | None = None,
        progress: Progress | None = None,
    ) -> Ticket:
        """Run the ticket's tools again, on `target` or the ticket's process, and store before beside after.

        A ticket about the ranks of a job needs the `traces` of a later run.
        """
        before = self._kb.tickets.get(ticket).diagnosed()
        chosen = target or (TargetParams() if source or traces else _same_process(before))
        seconds = duration or max((s.window_s for s in before.steps), default=12.0)
        params = DiagnoseParams(
            pid=chosen.pid,
            comm=chosen.comm,
            cgroup=chosen.cgroup,
            children=chosen.children,
            traces=traces,
            duration=max(seconds, 1.0),
            symptom=before.symptom,  # selects the same causes
        )
        # The tools behind the ticket run again even if the first window shows no sign any more.
        kinds = {finding.kind for finding in evidence(before)}
        ran = {name for step in before.steps for name in step.tools}
        wanted = [t.name for t in self._registry.all() if t.name in ran and not t.kinds.isdisjoint(kinds)]
        after = await self.diagnose(params, source=source, progress=progress, wanted=wanted)
        return self._kb.tickets.verified(ticket, compare(before, after))


def _same_process(diagnosis: Diagnosis) -> TargetParams:
    """Return the process of `diagnosis`; if it was restarted, the processes of that name."""
    victim = diagnosis.victim
    if victim is None:
        raise ToolError(ErrorCode.NO_SUCH_PROCESS, "the ticket names no process", "give --pid, --comm or --cgroup")
    if victim.type != "thread":
        remedy = "trace them again and give --traces DIR"
        raise ToolError(ErrorCode.BAD_ARGUMENT, "the ticket is about the ranks of a job", remedy)
    try:
        comm = Path(f"/proc/{victim.pid}/task/{victim.tid}/comm").read_text(errors="replace").strip()
    except OSError:
        return TargetParams(comm=victim.comm)
    return TargetParams(pid=victim.pid) if comm == victim.comm else TargetParams(comm=victim.comm)
