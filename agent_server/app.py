"""What whystall can do, independent of who asks: the doors (command line, MCP) are thin over this."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
from pydantic import BaseModel, ConfigDict, Field, model_validator

from whystall.agent_server.engines import Engine
from whystall.agent_server.investigation.causes import CHECK
from whystall.agent_server.pages import page_for
from whystall.agent_server.rank_sources import Runs, gathered, open_job, runs_named
from whystall.agent_server.sources import check_profile_place, in_thread, join_after_window, join_profile, open_source
from whystall.agent_server.stack_sources import observes, open_samples
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import LiveParams, Params, TargetParams, parse_params
from whystall.tools.contract.registry import Registry, Tool
from whystall.tools.contract.result import ToolResult
from whystall.tools.ranks.params import RankParams
from whystall.tools.recording.collector import Need
from whystall.tools.recording.judging import artifact_path, judge
from whystall.tools.recording.redact import redact as redact_recording
from whystall.tools.recording.store import Recording, check_place
from whystall.tools.recording.target import Target, resolve
from whystall.tools.recording.window import Progress, observe
from whystall.tools.toolbox import ENGINES, registry

if TYPE_CHECKING:
    from whystall.agent_server.investigation.observer import Observer
    from whystall.knowledge_base.models import Diagnosis, Lang, Ticket
    from whystall.knowledge_base.store import KnowledgeBase

# A recording is judged later with thresholds nobody knows yet: keep what is slower than a millisecond.
_RECORD_NEEDS = [
    Need("proc"),
    Need("syscalls", {"min_ns": 1_000_000}),
    Need("switches", {"min_ns": 1_000_000, "wakers": 1, "python": 1}),
    Need("block", {"min_ns": 10_000_000}),
]
_TRACE_NEED = Need("ftrace", {"irq": 1, "softirq": 1})


class RecordParams(TargetParams):
    """What to record."""

    duration: Annotated[float, Field(ge=0.1, le=600, description="seconds to observe")] = 10.0
    trace: Annotated[bool, Field(description="also every event of the scheduler, for host_bound")] = False
    samples: Annotated[bool, Field(description="also stacks of what runs, for cpu_profile and heat_map")] = False
    hz: Annotated[int | None, Field(ge=1, le=999, description="with samples: how often per second")] = None
    engine: Engine = "auto"

    @model_validator(mode="after")
    def _rate_of_samples(self) -> RecordParams:
        if self.hz is not None and not self.samples:
            raise ValueError("hz needs samples: it says how often they are taken")
        return self

    @property
    def needs(self) -> list[Need]:
        """What every tool can judge, and what is taken only when it is asked for."""
        rate = {"period_ns": 1_000_000_000 // self.hz} if self.hz else {}
        samples = [Need("samples", {**rate, "python": 1})] if self.samples else []
        return [*_RECORD_NEEDS, *([_TRACE_NEED] if self.trace else []), *samples]


class GatherParams(RankParams):
    """Whose traces to read."""

    traces: Annotated[str, Field(min_length=1, max_length=4096, description="directory with the traces of the ranks")]
    before: Annotated[
        str | None, Field(min_length=1, max_length=4096, description="that of an earlier run, for compare_runs")
    ] = None


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


class RecordSummary(BaseModel):
    """A recording that was written: where, and how many rows each table has."""

    model_config = ConfigDict(extra="forbid")

    id: str
    path: str
    window_s: float
    engines: dict[str, str]
    rows: dict[str, int]
    redacted: bool


class App:
    """One per process. Windows run one after another; everything heavy is loaded when first used."""

    def __init__(self, database: Path | None = None) -> None:
        self._database = database

    @cached_property
    def _registry(self) -> Registry:
        return registry()

    @cached_property
    def _window(self) -> anyio.Lock:
        return anyio.Lock()

    @cached_property
    def _kb(self) -> KnowledgeBase:
        from whystall.knowledge_base.store import KnowledgeBase, default_path

        return KnowledgeBase(self._database or default_path())

    def tools(self) -> list[Tool[Any, Any]]:
        """All tools, by name."""
        return self._registry.all()

    def kb(self) -> KnowledgeBase:
        """The knowledge base, opened on first use; `ToolError` (database) when it cannot be."""
        return self._kb

    def artifact(self, uri: str) -> Path:
        """The file behind an artifact's uri; `ToolError` (not_found) otherwise."""
        return artifact_path(uri)

    async def run_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        source: Path | None = None,
        engine: Engine = "auto",
        progress: Progress | None = None,
        lang: Lang = "en",
    ) -> ToolResult[Any]:
        """Run the tool `name` live, or judge `source`, a recording or a trace. Arguments are those of its `Params`.

        A parameter `profile` names a profile that is laid beside the trace; live it is read after the window. A tool
        that judges the ranks of a job reads them from the directories among its arguments, one that judges stack
        samples reads these from any file that holds some. `lang`: of the pages among the artifacts.
        """
        tool = self._registry.get(name)
        params = parse_params(tool.params, arguments)
        profile = Path(params.profile) if getattr(params, "profile", None) else None
        if tool.reads == "ranks":
            recording = await in_thread(lambda: open_job(tool, params, source))
        elif tool.reads == "stacks" and (source is not None or not observes(tool)):
            recording = await in_thread(lambda: open_samples(tool, params, source))
        elif source is not None:
            recording = await _opened(source, profile)
        else:
            recording = await self._observed(tool, params, engine, profile, progress)
        return await in_thread(lambda: _judged(tool, recording, params, lang))

    async def _observed(
        self, tool: Tool[Any, Any], params: Params, engine: Engine, profile: Path | None, progress: Progress | None
    ) -> Recording:
        if not isinstance(params, LiveParams):
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{tool.name} judges recordings only", "give one")
        target = resolve(params)
        if profile is not None:
            check_profile_place(profile)
        needs = [need for need in tool.needs(params) if need.collector != "profile"]  # no engine observes one
        async with self._window:
            recording = await observe(needs, target, params.duration, ENGINES, choice=engine, progress=progress)
        join = _joining(profile)
        return await join(recording) if join else recording

    async def record(
        self, params: RecordParams, out: Path, *, redact: bool = False, progress: Progress | None = None
    ) -> RecordSummary:
        """Record everything every tool can judge into the new directory `out`."""
        target = resolve(params)
        check_place(out)
        async with self._window:
            recording = await observe(
                params.needs, target, params.duration, ENGINES, choice=params.engine, progress=progress
            )
        return _saved(recording, out, redact)

    async def gather(self, params: GatherParams, out: Path, *, redact: bool = False) -> RecordSummary:
        """Read the traces of a job's ranks into the new directory `out`: what is small and enough to judge them by."""
        check_place(out)
        runs = Runs(params.traces, params.before, params.scheduler, params.jobs)
        return await in_thread(lambda: _saved(gathered(runs), out, redact))

    async def diagnose(
        self, params: DiagnoseParams, *, source: Path | None = None, progress: Progress | None = None
    ) -> Diagnosis:
        """Find out why the target stalls; match past incidents; draft a ticket when asked and not healthy.

        A profile joins each look that traces the scheduler, and what a recording holds of that. The ranks of a job are
        judged first where their traces are given; then the process of the slow one, where it is on this host.
        """
        self.kb()  # what cannot be stored is not to be observed first
        from whystall.agent_server.investigation.observer import LiveObserver, RecordedObserver

        profile = Path(params.profile) if params.profile else None
        _check_given(params, source)
        if params.traces is not None:
            runs = runs_named(params)
            recording = await in_thread(lambda: gathered(runs))
            diagnosis = await self._diagnose_ranks(recording, params, progress, live=True)
        elif source is not None:
            recording = await _opened(source, profile)
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
                observer = LiveObserver(target, params.engine, progress, _joining(profile))
                diagnosis = await self._investigate(observer, params, target.describe())
        return self._remember(diagnosis, params.ticket)

    async def _diagnose_ranks(
        self, recording: Recording, params: DiagnoseParams, progress: Progress | None, *, live: bool
    ) -> Diagnosis:
        """What the traces say; `live`: and what the host of the slow rank says, where it is this one."""
        from whystall.agent_server.investigation.observer import LiveObserver
        from whystall.agent_server.investigation.ranks import rank_diagnosis, with_blind_spot, with_host
        from whystall.agent_server.investigation.whereabouts import whereabouts
        from whystall.knowledge_base.causes import load_causes

        tool = self._registry.get(CHECK)
        result = await in_thread(lambda: _judged(tool, recording, tool.params(), "en"))
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

        stored = self.kb().get_ticket(ticket)
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
        return self.kb().add_verification(ticket, compare(before, after))

    async def _investigate(
        self, observer: Observer, params: DiagnoseParams, target: str, numbered: int = 0
    ) -> Diagnosis:
        from whystall.agent_server.investigation import rules
        from whystall.agent_server.investigation.case import Case
        from whystall.knowledge_base.causes import load_causes

        tools = {tool.name: tool for tool in self.tools()}
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

    def _remember(self, diagnosis: Diagnosis, ticket: bool) -> Diagnosis:
        from whystall.knowledge_base.models import Verdict

        kb = self.kb()
        if diagnosis.verdict is not Verdict.HEALTHY:
            diagnosis = diagnosis.model_copy(update={"matches": kb.match(diagnosis)})
            if ticket:
                diagnosis = diagnosis.model_copy(update={"ticket": kb.draft_ticket(diagnosis).id})
        kb.save_diagnosis(diagnosis)
        return diagnosis

    @contextmanager
    def closing(self) -> Iterator[App]:
        """Close what was opened when the block ends."""
        try:
            yield self
        finally:
            if "_kb" in self.__dict__:
                self._kb.close()
                del self.__dict__["_kb"]


def _judged(tool: Tool[Any, Any], recording: Recording, params: Params, lang: Lang) -> ToolResult[Any]:
    """The tool's answer, with its page where it has one."""
    page = page_for(tool.name)
    return judge(tool, recording, params, (lambda seen, judged: page(seen, judged, lang)) if page else None)


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


def _saved(recording: Recording, out: Path, redact: bool) -> RecordSummary:
    """`recording` written to `out`, with its names hashed where that is asked for."""
    if redact:
        recording = redact_recording(recording)
    recording.save(out)
    manifest = recording.manifest
    return RecordSummary(
        id=manifest.id,
        path=str(out),
        window_s=manifest.window_ns / 1e9,
        engines={name: c.engine for name, c in manifest.collectors.items()},
        rows={f"{name}.{t}": n for name, c in manifest.collectors.items() for t, n in c.rows.items()},
        redacted=manifest.redacted,
    )


async def _opened(source: Path, profile: Path | None) -> Recording:
    recording = await in_thread(lambda: open_source(source))
    return recording if profile is None else await in_thread(lambda: join_profile(recording, profile))


def _joining(profile: Path | None) -> Callable[[Recording], Awaitable[Recording]] | None:
    if profile is None:
        return None

    async def join(recording: Recording) -> Recording:
        return await in_thread(lambda: join_after_window(recording, profile))

    return join


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
