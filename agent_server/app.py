"""The functions of whystall, independent of the interface: command line, MCP and web are thin layers over this."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from whystall.agent_server.inputs.ranks import Runs, gathered, open_job, with_baseline
from whystall.agent_server.inputs.record_params import GatherParams, RecordParams, RecordSummary
from whystall.agent_server.inputs.recordings import (
    check_profile_place,
    in_thread,
    joining,
    open_cards,
    open_earlier,
    open_log,
    open_source,
    opened,
)
from whystall.agent_server.inputs.stacks import observes, open_samples
from whystall.agent_server.presentation.pages import judged
from whystall.agent_server.settings.engines import Engine
from whystall.tools.collect.own_priority import raised_when_starved
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.extras import extra
from whystall.tools.contract.params import JobParams, Params, TargetParams, parse_params
from whystall.tools.contract.registry import Registry, Tool
from whystall.tools.contract.result import ToolResult
from whystall.tools.ranks.job import job_of
from whystall.tools.recording.judging import artifact_path
from whystall.tools.recording.redact import redact as redact_recording
from whystall.tools.recording.store import Recording, check_place
from whystall.tools.recording.target import resolve
from whystall.tools.recording.window import Progress, observe
from whystall.tools.toolbox import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from whystall.agent_server.diagnosis.diagnose import DiagnosisRunner
    from whystall.agent_server.diagnosis.params import DiagnoseParams
    from whystall.agent_server.fleet.ask import FleetParams
    from whystall.agent_server.fleet.merge import FleetResult
    from whystall.agent_server.llm.wire import LlmError
    from whystall.agent_server.stores import Stores
    from whystall.knowledge_base.models import Diagnosis, Lang
    from whystall.knowledge_base.operator_baselines import Stored
    from whystall.knowledge_base.ticket_models import Ticket


class App:
    """One per process. Windows run one after another. Heavy parts (database, diagnosis, engines, each tool) are
    imported on first use, so that a command that judges traces starts quickly."""

    def __init__(self, database: Path | None = None) -> None:
        self._database = database

    @cached_property
    def _registry(self) -> Registry:
        return registry()

    @cached_property
    def _window(self) -> anyio.Lock:
        return anyio.Lock()

    @cached_property
    def _kb(self) -> Stores:
        from whystall.agent_server.stores import Stores
        from whystall.knowledge_base.store import default_path

        return Stores(self._database or default_path())

    def tools(self) -> list[Tool[Any, Any]]:
        """Return all tools, by name."""
        return self._registry.all()

    def tool_names(self) -> list[str]:
        """Return the names of all tools, without importing them."""
        return self._registry.names()

    def tool(self, name: str) -> Tool[Any, Any]:
        """Return the tool `name`. Raises `ToolError` (not_found)."""
        return self._registry.get(name)

    def kb(self) -> Stores:
        """Return the database, opened on first use. Raises `ToolError` (database)."""
        return self._kb

    def artifact(self, uri: str) -> Path:
        """Return the file of an artifact's uri. Raises `ToolError` (not_found)."""
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

        The parameter `profile` names a profile to align with the trace; live it is read after the window. The parameter
        `kernel_log` names a kernel log, `cards` the output of vendors' programs, and `metrics` saved metrics of a
        server, which are judged instead of observing. The parameter `before` of a tool of hosts names an earlier
        recording. Tools that judge the ranks of a job read the directories among their arguments, or observe the job;
        tools that judge stack samples read them from any file that holds some.
        `lang`: of the pages among the artifacts.
        """
        called_ns = time.monotonic_ns()
        tool = self._registry.get(name)
        params = parse_params(tool.params, arguments)
        if (cause := getattr(params, "cause", None)) is not None:
            from whystall.knowledge_base.causes import check_cause

            check_cause(cause)
        profile = Path(params.profile) if getattr(params, "profile", None) else None
        earlier = getattr(params, "before", None) if tool.reads == "host" else None
        before = await in_thread(lambda: open_earlier(earlier))
        if tool.reads == "ranks" and (source is not None or params.observed() is None):
            recording = await in_thread(lambda: self._job(tool, params, source))
        elif tool.reads == "logs":
            from whystall.agent_server.inputs.logs import open_logs

            recording = await in_thread(lambda: open_logs(tool, params, source))
        elif tool.reads == "topology":
            from whystall.agent_server.inputs.topology import open_topology

            recording = await in_thread(lambda: open_topology(params, source))
        elif tool.reads == "stacks" and (source is not None or not observes(tool)):
            recording = await in_thread(lambda: open_samples(tool, params, source))
        elif (cards := getattr(params, "cards", None)) is not None:
            recording = await in_thread(lambda: open_cards(Path(cards), source))
        elif (log := getattr(params, "kernel_log", None)) is not None:
            recording = await in_thread(lambda: open_log(Path(log), source))
        elif (files := getattr(params, "metrics", None)) is not None:
            from whystall.agent_server.inputs.serving import open_metrics

            recording = await in_thread(lambda: open_metrics(files, source))
        elif source is not None:
            from whystall.agent_server.inputs.calibration import check_source

            check_source(params)
            recording = await self._with_logs(params, await opened(source, profile))
            recording.before = before
        else:
            with raised_when_starved():
                recording = await self._observed(tool, params, engine, profile, progress)
                recording = await self._with_logs(params, recording)
                recording.before = before
                return _timed(await in_thread(lambda: judged(tool, recording, params, lang)), recording, called_ns)
        return await in_thread(lambda: judged(tool, recording, params, lang))

    def _job(self, tool: Tool[Any, Any], params: Params, source: Path | None) -> Recording:
        """Return the ranks for `tool`, with the stored runs that `params` names."""
        recording, name = open_job(tool, params, source), getattr(params, "baseline", None)
        return recording if name is None else with_baseline(recording, self.kb().operator_baselines, name)

    def store_baseline(self, name: str, traces: Path) -> Stored:
        """Store the run whose traces, or recording of `gather`, are at `traces` in the baseline `name`. Raises
        `ToolError`: what reading raises; bad_argument, database."""
        from whystall.knowledge_base.times import now

        gathered_before = (traces / "manifest.json").is_file()
        job = job_of(open_source(traces) if gathered_before else gathered(Runs(str(traces))))
        return self.kb().operator_baselines.add(name, job.tables, now())

    @staticmethod
    async def _with_logs(params: Params, recording: Recording) -> Recording:
        """Return `recording` with what the logs in the parameter `log` state, if there are any."""
        named = list(getattr(params, "log", None) or [])
        if not named:
            return recording
        from whystall.agent_server.inputs.software import with_logs

        return await in_thread(lambda: with_logs(recording, named))

    async def _observed(
        self, tool: Tool[Any, Any], params: Params, engine: Engine, profile: Path | None, progress: Progress | None
    ) -> Recording:
        from whystall.agent_server.inputs.calibration import JOINED, Calibration
        from whystall.agent_server.job_lookup.whole_job import whole_job
        from whystall.tools.collect.engines import ENGINES

        observed = params.observed()
        if observed is None:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{tool.name} judges recordings only", "give one")
        if isinstance(observed, JobParams):
            target = await in_thread(lambda: whole_job(observed))
        else:
            target = resolve(observed)
        if profile is not None:
            check_profile_place(profile)
        asked = Calibration.asked(params)  # refused before a window runs for nothing
        needs = [need for need in tool.needs(params) if need.collector not in JOINED]
        seconds = observed.duration if needs else 0.0
        async with self._window:
            recording = await observe(needs, target, seconds, ENGINES, choice=engine, progress=progress)
            if asked is not None:
                recording = await asked.joined(recording, progress)
        join = joining(profile)
        return await join(recording) if join else recording

    async def record(
        self, params: RecordParams, out: Path, *, redact: bool = False, progress: Progress | None = None
    ) -> RecordSummary:
        """Record what every tool can judge into the new directory `out`."""
        from whystall.tools.collect.continuous import recording_of_past
        from whystall.tools.collect.engines import ENGINES

        if params.past is not None:
            check_place(out)
            span, pids = (int(params.past * 1e9), int(params.past_end * 1e9)), _processes_of_past(params)
            return await in_thread(lambda: _saved(recording_of_past(*span, pids), out, redact))
        target = resolve(params)
        check_place(out)
        async with self._window:
            recording = await observe(
                params.needs, target, params.duration, ENGINES, choice=params.engine, progress=progress
            )
        return _saved(recording, out, redact)

    async def gather(self, params: GatherParams, out: Path, *, redact: bool = False) -> RecordSummary:
        """Read the traces of a job's ranks into the new directory `out`: small, and sufficient to judge them."""
        check_place(out)
        runs = Runs(params.traces, params.before, params.scheduler, params.jobs)
        return await in_thread(lambda: _saved(gathered(runs), out, redact))

    async def ranks(self, traces: str) -> Recording:
        """Read the traces of a job's ranks in the directory `traces`: what `gather` writes."""
        return await in_thread(lambda: gathered(Runs(traces)))

    async def window(self, name: str, pid: int, seconds: float) -> Recording:
        """Observe the job of the process `pid` for the tool `name`, and return what the centre of a fleet needs to
        judge it together with other hosts. Raises `ToolError` (not_found) for a tool that is not judged so."""
        from whystall.tools.ranks.traces.hosts import calls_of, ranks_of

        parts = {"collective_live": calls_of, "slow_node_check": ranks_of}
        if name not in parts:
            raise ToolError(ErrorCode.NOT_FOUND, f"hosts are not observed together for {name!r}", "call the tool")
        tool, given = self.tool(name), {"pid": pid, "duration": seconds}
        params = parse_params(tool.params, given | ({"live": True} if "live" in tool.params.model_fields else {}))
        with raised_when_starved():
            recording = await self._observed(tool, params, "auto", None, None)
            return await in_thread(lambda: parts[name](recording))

    async def diagnose(
        self,
        params: DiagnoseParams,
        *,
        source: Path | None = None,
        progress: Progress | None = None,
        lang: Lang = "en",
        failed: Callable[[LlmError], None] | None = None,
        then: Callable[[Diagnosis], None] | None = None,
        excluded: Collection[str] = (),
    ) -> Diagnosis:
        """Find out why the target stalls; see `DiagnosisRunner.diagnose`, also for `then` and `excluded`.

        With `DiagnoseParams.llm` a language model drives; `ToolError` (no_model) if none is configured. If it does not
        answer the rules finish, and `failed` is called with its error, which is more detailed than the diagnosis.
        """
        diagnosing = self._diagnosing()
        if not params.llm:
            return await diagnosing.diagnose(
                params, source=source, progress=progress, lang=lang, then=then, excluded=excluded
            )

        from whystall.agent_server.diagnosis.budget import Limits
        from whystall.agent_server.diagnosis.diagnose import Driver
        from whystall.agent_server.settings.load import load_llm

        with extra("llm"):
            from whystall.agent_server.llm.client import ChatClient

        settings = load_llm()
        limits = Limits(
            steps=settings.max_steps,
            seconds=settings.max_seconds,
            tokens=settings.max_tokens,
            money=settings.max_money,
            price_in=settings.price_in,
            price_out=settings.price_out,
        )
        async with ChatClient(settings, failed) as model:
            driver = Driver(model, limits)
            return await diagnosing.diagnose(
                params, source=source, progress=progress, driver=driver, lang=lang, then=then, excluded=excluded
            )

    async def fleet(
        self,
        params: FleetParams,
        progress: Progress | None = None,
        *,
        collect: str | None = None,
        source: str | None = None,
        scheduler: str | None = None,
    ) -> FleetResult:
        """Run a tool on many hosts, or judge the answers stored at `source`, and merge them; see `fleet.ask`."""
        from whystall.agent_server.settings.load import load

        with extra("fleet"):
            from whystall.agent_server.fleet.ask import ask, judge

        if source is not None:
            return await in_thread(lambda: judge(params, source, scheduler))
        return await ask(params, load().fleet, progress, collect)

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
        """Run a ticket's tools again and store before and after; see `DiagnosisRunner.verify`."""
        return await self._diagnosing().verify(
            ticket, target=target, duration=duration, source=source, traces=traces, progress=progress
        )

    def _diagnosing(self) -> DiagnosisRunner:
        from whystall.agent_server.diagnosis.diagnose import DiagnosisRunner

        return DiagnosisRunner(self._registry, self.kb(), self._window)

    @contextmanager
    def closing(self) -> Iterator[App]:
        """Close what was opened at the end of the block."""
        try:
            yield self
        finally:
            if "_kb" in self.__dict__:
                self._kb.close()
                del self.__dict__["_kb"]


def _timed(result: ToolResult[Any], recording: Recording, called_ns: int) -> ToolResult[Any]:
    """Return `result` with the times around the window of `recording`, which was made for this call."""
    made = recording.manifest
    if made.clock != "CLOCK_MONOTONIC":
        return result
    before_s, after_s = (made.start_ns - called_ns) / 1e9, (time.monotonic_ns() - made.start_ns - made.window_ns) / 1e9
    times = {"before_s": round(before_s, 6), "after_s": round(after_s, 6)}
    return result.model_copy(update={"coverage": result.coverage.model_copy(update=times)})


def _processes_of_past(params: RecordParams) -> frozenset[int] | None:
    """Return the processes that a recording of the past is about, which may have ended; None: all. Raises `ToolError`
    as `resolve`."""
    if params.pid is not None:
        return frozenset({params.pid})
    target = resolve(params)
    return None if target.everything else frozenset(target.pids)


def _saved(recording: Recording, out: Path, redact: bool) -> RecordSummary:
    """Write `recording` to `out`, with hashed names on request, and summarise it."""
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
