"""A diagnosis, from what is asked to what is remembered: targets, recordings, the ranks of a job, verification."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from pydantic import Field

from whystall.agent_server.engines import Engine
from whystall.agent_server.investigation.causes import CHECK
from whystall.agent_server.pages import judged
from whystall.agent_server.rank_sources import gathered, runs_named
from whystall.agent_server.sources import check_profile_place, in_thread, joining, opened
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
    from whystall.agent_server.investigation.observer import Observer
    from whystall.knowledge_base.models import Diagnosis, Ticket
    from whystall.knowledge_base.store import KnowledgeBase


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
    engine: Annotated[Engine, Field(description="how to observe")] = "auto"


class Diagnosing:
    """Diagnoses with the tools of `registry`, and stores what it finds in `kb`. `window`: held while one is open."""

    def __init__(self, registry: Registry, kb: KnowledgeBase, window: anyio.Lock) -> None:
        self._registry = registry
        self._kb = kb
        self._window = window

    async def diagnose(
        self, params: DiagnoseParams, *, source: Path | None = None, progress: Progress | None = None
    ) -> Diagnosis:
        """Find out why the target stalls; match past incidents; draft a ticket when asked and not healthy.

        A profile joins each look that traces the scheduler, and what a recording holds of that. The ranks of a job are
        judged first where their traces are given; then the process of the slow one, where it is on this host.
        """
        from whystall.agent_server.investigation.observer import LiveObserver, RecordedObserver
        from whystall.agent_server.remembering import remember

        profile = Path(params.profile) if params.profile else None
        _check_given(params, source)
        if params.traces is not None:
            runs = runs_named(params)
            recording = await in_thread(lambda: gathered(runs))
            diagnosis = await self._diagnose_ranks(recording, params, progress, live=True)
        elif source is not None:
            recording = await opened(source, profile)
            if recording.has("ranks"):
                diagnosis = await self._diagnose_ranks(recording, params, progress, live=False)
            else:
                observer: Observer = RecordedObserver(recording)
                diagnosis = await self._investigate(observer, params, recording.manifest.target.describe())
        else:
            if profile is not None:
                check_profile_place(profile)
            async with self._window:
                target = await self._target(params, progress)
                observer = LiveObserver(target, params.engine, progress, joining(profile))
                diagnosis = await self._investigate(observer, params, target.describe())
        return remember(self._kb, diagnosis, params.ticket)

    async def _diagnose_ranks(
        self, recording: Recording, params: DiagnoseParams, progress: Progress | None, *, live: bool
    ) -> Diagnosis:
        """What the traces say; `live`: and what the host of the slow rank says, where it is this one."""
        from whystall.agent_server.investigation.observer import LiveObserver
        from whystall.agent_server.investigation.ranks import rank_diagnosis, with_blind_spot, with_host
        from whystall.agent_server.investigation.whereabouts import whereabouts
        from whystall.knowledge_base.causes import load_causes

        tool = self._registry.get(CHECK)
        result = await in_thread(lambda: judged(tool, recording, tool.params(), "en"))
        ranks = recording.table("ranks.ranks").height
        found = rank_diagnosis(load_causes(), result, recording.manifest, params.symptom, ranks)
        if found.victim is None or found.victim.rank is None:
            return found
        place = whereabouts(recording, found.victim.rank)
        if place.pid is None:
            return with_blind_spot(found, place.why, place.detail)
        if not live:
            return with_blind_spot(found, "rank_not_looked_at", "--from: nothing is observed")
        try:
            async with self._window:
                target = resolve(TargetParams(pid=place.pid))
                observer = LiveObserver(target, params.engine, progress)
                numbered = len(found.findings)
                host = await self._investigate(observer, params, target.describe(), numbered)
        except ToolError as error:
            return with_blind_spot(found, "rank_not_looked_at", f"{error.code.value}: {error.message}")
        return with_blind_spot(with_host(found, host), "looked_later", "")

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
        from whystall.knowledge_base.verify import compare

        stored = self._kb.get_ticket(ticket)
        before = stored.diagnosis
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
        after = await self.diagnose(params, source=source, progress=progress)
        return self._kb.add_verification(ticket, compare(before, after))

    async def _investigate(
        self, observer: Observer, params: DiagnoseParams, target: str, numbered: int = 0
    ) -> Diagnosis:
        from whystall.agent_server.investigation import rules
        from whystall.agent_server.investigation.case import Case
        from whystall.knowledge_base.causes import load_causes

        tools = {tool.name: tool for tool in self._registry.all()}
        case = Case(
            load_causes(),
            tools,
            observer,
            duration=params.duration,
            symptom=params.symptom,
            target=target,
            numbered=numbered,
        )
        await rules.finish(case)
        return case.diagnosis()

    async def _target(self, params: DiagnoseParams, progress: Progress | None) -> Target:
        """The target asked for; without one, the process of this host that suffers most in a first look."""
        target = resolve(params)
        if not target.everything:
            return target
        from whystall.agent_server.investigation.suspect import suspect

        tool = self._registry.get("host_snapshot")
        seconds = min(2.0, params.duration / 4)
        look = parse_params(tool.params, {"duration": seconds})
        needs = [*tool.needs(look), Need("switches", {"min_ns": 100_000_000})]
        recording = await observe(needs, target, seconds, ENGINES, choice=params.engine, progress=progress)
        pid = suspect(recording)
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
    elif source is not None and named:
        message = f"{named[0]} chooses nothing in a recording, which is of what was recorded"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"leave it out, or record again with --{named[0]}")
    elif params.scheduler or params.jobs:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "scheduler and jobs read traces", "give them together with traces")


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
