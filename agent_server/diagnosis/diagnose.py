"""A diagnosis, from what is asked to what is remembered: targets, recordings, the ranks of a job, verification."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from pydantic import Field

from whystall.agent_server.diagnosis.causes import RANKS_TOOL
from whystall.agent_server.inputs.calibration import check_source
from whystall.agent_server.inputs.ranks import gathered, runs_named
from whystall.agent_server.inputs.recordings import check_profile_place, in_thread, joining, opened
from whystall.agent_server.presentation.pages import judged
from whystall.agent_server.settings.engines import Engine
from whystall.tools.collect.options import SwitchOptions
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import TargetParams, parse_params
from whystall.tools.contract.registry import Registry
from whystall.tools.ranks.params import RankParams
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target, resolve
from whystall.tools.recording.window import Progress, observe
from whystall.tools.toolbox import ENGINES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from whystall.agent_server.diagnosis.budget import Limits
    from whystall.agent_server.diagnosis.case import Case
    from whystall.agent_server.diagnosis.observer import Observer
    from whystall.agent_server.diagnosis.step_progress import StepProgress
    from whystall.agent_server.diagnosis.transcript import Transcript
    from whystall.agent_server.llm.wire import LanguageModel
    from whystall.agent_server.stores import Stores
    from whystall.agent_server.ticketing.ticket_service import TicketService
    from whystall.knowledge_base.models import Diagnosis, Lang
    from whystall.knowledge_base.tickets.models import Ticket


class DiagnoseParams(TargetParams):
    """What to diagnose: a process, a cgroup or the host; or, with `traces`, the ranks of a job."""

    traces: Annotated[
        str | None, Field(min_length=1, max_length=4096, description="directory with the traces of a job's ranks")
    ] = None
    scheduler: Annotated[str | None, RankParams.model_fields["scheduler"]] = None
    jobs: Annotated[int | None, RankParams.model_fields["jobs"]] = None

    duration: Annotated[float, Field(ge=1, le=600, description="seconds to observe in all")] = 12.0
    symptom: Annotated[str, Field(max_length=2000, description="what was noticed, in any words")] = ""
    ticket: Annotated[bool, Field(description="draft a ticket unless healthy")] = False
    profile: Annotated[
        str | None, Field(min_length=1, max_length=4096, description="accelerator profile of the same time: its path")
    ] = None
    llm: Annotated[bool, Field(description="let the language model of WHYSTALL_LLM_* drive; the rules finish")] = False
    calibrate: Annotated[
        bool, Field(description="also try direct I/O beside buffered: writes a temporary file, 256 MiB in all")
    ] = False
    engine: Annotated[Engine, Field(description="how to observe")] = "auto"


@dataclass(frozen=True)
class Driver:
    """A model that drives a diagnosis, within `limits`."""

    model: LanguageModel
    limits: Limits


@dataclass
class _Run:
    """One diagnosis while it is made. `driver`: None for the rules. `wanted`: tools that look in any case."""

    params: DiagnoseParams
    registry: Registry
    progress: Progress | None
    driver: Driver | None
    lang: Lang
    wanted: frozenset[str] = frozenset()

    @cached_property
    def transcript(self) -> Transcript:
        """What follows the diagnosis; begun when first something is there to be told."""
        from whystall.agent_server.diagnosis import transcript_files
        from whystall.knowledge_base.causes import load_causes

        return transcript_files.begin(self.params.symptom, load_causes(), self.registry.all())

    @cached_property
    def step_progress(self) -> StepProgress:
        """What names the step in the progress that is reported."""
        from whystall.agent_server.diagnosis.step_progress import StepProgress

        return StepProgress(self.progress, self.lang)

    def without_host(self, diagnosis: Diagnosis, code: str) -> Diagnosis:
        """`diagnosis`, of ranks alone: where a model was asked for, it had no host to look at, and `code` says why."""
        from whystall.knowledge_base.models import Reasoning
        from whystall.tools.contract.text import clean

        if self.driver is None:
            return diagnosis
        self.transcript.stopped(code)
        reasoning = Reasoning(model=clean(self.driver.model.name), stopped=code, transcript=self.transcript.uri)
        return diagnosis.model_copy(update={"reasoning": reasoning})

    def blind(self, diagnosis: Diagnosis, code: str, detail: str) -> Diagnosis:
        """`diagnosis` with one thing more that it could not see."""
        from whystall.agent_server.diagnosis.ranks import with_blind_spot

        self.transcript.blind_spot(code, detail)
        return with_blind_spot(diagnosis, code, detail)

    def close(self) -> None:
        """Close the transcript, if there is one."""
        if "transcript" in self.__dict__:
            self.transcript.close()


class DiagnosisRunner:
    """Diagnoses with the tools of `registry`, and stores what it finds in `kb`. `window`: held while one is open."""

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
    ) -> Diagnosis:
        """Find out why the target stalls; match past incidents; draft a ticket when asked and not healthy. What `then`
        stores of the diagnosis is stored in the same transaction. `wanted`: tools that look whatever is seen first.

        A profile joins each look that traces the scheduler, and what a recording holds of that. The ranks of a job are
        judged first where their traces are given; then the process of the slow one, where it is on this host. `driver`:
        who chooses what to look at instead of the rules. `lang`: of progress, and of what a model is told. Where there
        is no room to store it, the answer says so (`not_stored`), and has no ticket.
        """
        from whystall.agent_server.diagnosis.store_diagnosis import remember

        _check_given(params, source)
        ticket_service = self._ticket_service() if params.ticket else None  # reads the settings: fails early
        run = _Run(params, self._registry, progress, driver, lang, frozenset(wanted))
        try:
            found = await self._found(run, source)
            found = found.model_copy(update={"id": run.transcript.id})
            # Not abandoned: what was observed is kept, however long the file is in use.
            diagnosis = await anyio.to_thread.run_sync(lambda: remember(self._kb, found, ticket_service, then))
            run.transcript.end(diagnosis)
        finally:
            run.close()
        return diagnosis

    def _ticket_service(self) -> TicketService:
        from whystall.agent_server.settings.load import load
        from whystall.agent_server.ticketing.ticket_service import TicketService

        return TicketService(self._kb, load())

    async def _found(self, run: _Run, source: Path | None) -> Diagnosis:
        """What is found out, before it is compared with past incidents and stored."""
        from whystall.agent_server.diagnosis.observer import LiveObserver, RecordedObserver

        params = run.params
        profile = Path(params.profile) if params.profile else None
        if params.traces is not None:
            runs = runs_named(params)
            return await self._diagnose_ranks(await in_thread(lambda: gathered(runs)), run, live=True)
        if source is not None:
            recording = await opened(source, profile)
            if recording.has("ranks"):
                return await self._diagnose_ranks(recording, run, live=False)
            observer: Observer = RecordedObserver(recording)
            return await self._investigate(observer, run, recording.manifest.target.describe())
        if profile is not None:
            check_profile_place(profile)
        async with self._window:
            target = await self._target(params, run.progress)
            observer = LiveObserver(target, params.engine, run.step_progress, joining(profile))
            return await self._investigate(observer, run, target.describe())

    async def _diagnose_ranks(self, recording: Recording, run: _Run, *, live: bool) -> Diagnosis:
        """What the traces say; `live`: and what the host of the slow rank says, where it is this one."""
        from whystall.agent_server.diagnosis.observer import LiveObserver
        from whystall.agent_server.diagnosis.rank_process import find_rank_process
        from whystall.agent_server.diagnosis.ranks import rank_diagnosis, with_host
        from whystall.knowledge_base.causes import load_causes

        tool = self._registry.get(RANKS_TOOL)
        result = await in_thread(lambda: judged(tool, recording, tool.params(), "en"))
        ranks = recording.table("ranks.ranks").height
        run.transcript.ranks(result, recording.manifest.id, ranks)
        found = rank_diagnosis(load_causes(), result, recording.manifest.id, run.params.symptom, ranks)
        if found.victim is None or found.victim.rank is None:
            return run.without_host(found, "no_host")
        place = find_rank_process(recording, found.victim.rank)
        if place.pid is None:
            return run.without_host(run.blind(found, place.why, place.detail), "no_host")
        if not live:
            unseen = run.blind(found, "rank_not_looked_at", "--from: nothing is observed")
            return run.without_host(unseen, "no_host")
        try:
            async with self._window:
                target = resolve(TargetParams(pid=place.pid))
                observer = LiveObserver(target, run.params.engine, run.step_progress)
                host = await self._investigate(observer, run, target.describe(), len(found.findings))
        except ToolError as error:
            unseen = run.blind(found, "rank_not_looked_at", f"{error.code.value}: {error.message}")
            return run.without_host(unseen, "look_failed")
        return run.blind(with_host(found, host), "looked_later", "")

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
        """Run the ticket's tools again, on `target` or the process it was about, and store before beside after. A
        ticket about the ranks of a job wants the `traces` of a later run.
        """
        from whystall.knowledge_base.signatures import evidence
        from whystall.knowledge_base.verify import compare

        stored = self._kb.tickets.get(ticket)
        before = stored.diagnosed()
        chosen = target or (TargetParams() if source or traces else _same_process(before))
        seconds = duration or max((s.window_s for s in before.steps), default=12.0)
        params = DiagnoseParams(
            pid=chosen.pid,
            comm=chosen.comm,
            cgroup=chosen.cgroup,
            children=chosen.children,
            traces=traces,
            duration=max(seconds, 1.0),
            symptom=before.symptom,  # it says which causes are worth examining
        )
        # What the ticket rests on is looked at again also where the first look shows no sign of it any more.
        kinds = {finding.kind for finding in evidence(before)}
        wanted = [tool.name for tool in self._registry.all() if not tool.kinds.isdisjoint(kinds)]
        after = await self.diagnose(params, source=source, progress=progress, wanted=_ran(before, wanted))
        return self._kb.tickets.verified(ticket, compare(before, after))

    async def _investigate(self, observer: Observer, run: _Run, target: str, numbered: int = 0) -> Diagnosis:
        from whystall.agent_server.diagnosis.case import Case
        from whystall.agent_server.diagnosis.model_driver import drive
        from whystall.agent_server.diagnosis.past_incidents import KnownIncidents
        from whystall.agent_server.diagnosis.transcript import CaseOpened, TranscribedModel
        from whystall.knowledge_base.causes import load_causes

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
            transcript=run.transcript,
            progress=run.step_progress,
        )
        opened_as = CaseOpened(
            target=target,
            duration=case.duration,
            live=observer.live,
            profiled=observer.profiled,
            calibrate=run.params.calibrate,
            wanted=sorted(run.wanted),
            numbered=numbered,
        )
        if run.driver is None:
            run.transcript.case(opened_as)
            await drive(case, None)
            return await self._tried(case, run)
        nonce, limits = secrets.token_hex(8), run.driver.limits
        about = {
            "able": [tool.name for tool in await observer.able(list(tools.values()))],
            "model": run.driver.model.name,
            "settings": {"limits": limits.model_dump(), "lang": run.lang, "remembers": True},
            "nonce": nonce,
        }
        run.transcript.case(opened_as.model_copy(update=about))
        model = TranscribedModel(run.driver.model, run.transcript)
        memory = KnownIncidents(self._kb, run.lang)
        await drive(case, model, limits, memory=memory, lang=run.lang, nonce=nonce)
        return await self._tried(case, run)

    async def _tried(self, case: Case, run: _Run) -> Diagnosis:
        """The diagnosis of a case that has come to its end, with what trials of direct I/O say, if they are wanted."""
        from whystall.agent_server.diagnosis.case import DIRECT_IO_TOOL
        from whystall.agent_server.diagnosis.ranks import with_blind_spot

        if run.params.calibrate:
            await case.calibrate()
            if DIRECT_IO_TOOL not in case.results:
                return with_blind_spot(case.diagnosis(), "not_calibrated", "nothing was looked for in the page cache")
        return case.diagnosis()

    async def _target(self, params: DiagnoseParams, progress: Progress | None) -> Target:
        """The target asked for; without one, the process of this host that suffers most in a first look."""
        target = resolve(params)
        if not target.everything:
            return target
        from whystall.agent_server.diagnosis.target_choice import choose_process

        tool = self._registry.get("host_snapshot")
        seconds = min(2.0, params.duration / 4)
        look = parse_params(tool.params, {"duration": seconds})
        needs = [*tool.needs(look), Need("switches", SwitchOptions(min_ns=100_000_000))]
        recording = await observe(needs, target, seconds, ENGINES, choice=params.engine, progress=progress)
        pid = choose_process(recording)
        return resolve(TargetParams(pid=pid)) if pid is not None else target


def _check_given(params: DiagnoseParams, source: Path | None) -> None:
    """Whether what is asked for can be looked at; `ToolError` (bad_argument): nothing that was asked for is ignored."""
    named = [name for name in ("pid", "comm", "cgroup") if getattr(params, name) is not None]
    if params.traces is not None:
        if source is not None:
            raise ToolError(ErrorCode.BAD_ARGUMENT, "traces and a recording exclude each other", "give one of them")
        if named or params.profile:
            message = f"traces name the job: {', '.join([*named, *(['profile'] if params.profile else [])])} cannot"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "leave it out; the slow rank's process is found by itself")
    elif source is not None and params.calibrate:
        check_source(params)
    elif source is not None and named:
        message = f"{named[0]} chooses nothing in a recording, which is of what was recorded"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"leave it out, or record again with --{named[0]}")
    elif params.scheduler or params.jobs:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "scheduler and jobs read traces", "give them together with traces")


def _ran(diagnosis: Diagnosis, tools: list[str]) -> list[str]:
    """Those of `tools` that looked."""
    ran = {name for step in diagnosis.steps for name in step.tools}
    return [name for name in tools if name in ran]


def _same_process(diagnosis: Diagnosis) -> TargetParams:
    """The process a diagnosis was about, or, when it has been restarted, the processes of that name."""
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
