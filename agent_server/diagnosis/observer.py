"""Run tools for a case: in one live window for all of them, or on a recording."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from whystall.agent_server.inputs.calibration import Calibration
from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.job_lookup.inventory import start_ticks
from whystall.tools.collect.engines import ENGINES
from whystall.tools.collect.proc_parse import ticks_ns
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import LiveParams, Params, TargetParams, parse_params
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import ToolResult
from whystall.tools.recording.assignment import can_serve
from whystall.tools.recording.collector import Engine, Need
from whystall.tools.recording.judging import judge
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target, renewed, resolve
from whystall.tools.recording.window import Progress, observe

Join = Callable[[Recording], Awaitable[Recording]]
Options = Mapping[str, Mapping[str, Any]]
"""Arguments by tool, besides target and duration."""
_Request = tuple[Tool[Any, Any], Params]

_UNPRIVILEGED = tuple(make for make in ENGINES if make().name == "procfs")
_REFUSED = frozenset(
    {ErrorCode.NO_PRIVILEGE, ErrorCode.NO_LIBBPF, ErrorCode.NO_BTF, ErrorCode.NO_ENGINE, ErrorCode.PROBE_FAILED}
)
_ANY_S = 10.0  # seconds, where no window is opened


class Observer(Protocol):
    """Runs tools. `recording`: the one judged last. `profiled`: an accelerator's profile is joined to it."""

    recording: Recording | None
    live: bool
    profiled: bool

    async def able(self, tools: Sequence[Tool[Any, Any]]) -> list[Tool[Any, Any]]:
        """Return those of `tools` that can be served here; one may still fail to start."""

    async def observe(self, tools: Sequence[Tool[Any, Any]], seconds: float, options: Options) -> list[ToolResult[Any]]:
        """Return the results of `tools`, in order, without tools that cannot be served."""

    async def observe_process(
        self, pid: int, named_in: str, tools: Sequence[Tool[Any, Any]], seconds: float
    ) -> list[ToolResult[Any]]:
        """Return the results of `tools` on the process `pid`, which the recording with the id `named_in` names.

        Raises `ToolError`: no_such_process if that process has ended, bad_argument if it is observed anyway.
        """

    async def calibrate(self, tool: Tool[Any, Any], options: Options) -> list[ToolResult[Any]]:
        """Try direct I/O where the files of the last window are, and return the result of `tool` on that window.

        Empty if there was no window, or it did not record the page cache.
        """


class LiveObserver:
    """Observes `target` on this host, with one window per call. Judging runs in threads, beside the event loop."""

    live = True

    def __init__(
        self,
        target: Target,
        engine: str,
        progress: Progress | None,
        join: Join | None = None,
        before: Recording | None = None,
    ) -> None:
        """`join` adds a profile to a recording that holds a trace. `before`: an earlier recording, to compare with."""
        self._target = target  # as it was at first
        self._engine = engine
        self._progress = progress
        self._join = join
        self._before = before
        self.profiled = join is not None
        self.recording: Recording | None = None
        self._ended_ns: dict[str, int] = {}  # CLOCK_MONOTONIC, by id of the recording

    async def able(self, tools: Sequence[Tool[Any, Any]]) -> list[Tool[Any, Any]]:
        """Return those of `tools` that observe a host and whose required collectors some engine serves here."""
        return [tool for tool, _ in await self._served(_requests(tools, _ANY_S, {}, live=True))]

    async def observe(self, tools: Sequence[Tool[Any, Any]], seconds: float, options: Options) -> list[ToolResult[Any]]:
        """Observe the union of what `tools` need, then judge with each, without those that no engine serves here."""
        requests = _requests(tools, seconds, options)
        able = await self._served(requests) or requests
        try:
            self.recording = await self._window(able, seconds)
        except ToolError as error:
            # Engines may find only at start that the kernel refuses them, for example root in a container.
            unprivileged = await self._served(able, _UNPRIVILEGED)
            if error.code not in _REFUSED or self._engine == "ebpf" or len(unprivileged) in (0, len(able)):
                raise
            able = unprivileged
            self.recording = await self._window(able, seconds, _UNPRIVILEGED)
        manifest = self.recording.manifest
        self._ended_ns[manifest.id] = manifest.start_ns + manifest.window_ns
        if self._join is not None and self.recording.has("ftrace"):
            self.recording = await self._join(self.recording)
        self.recording.before = self._before
        return await _judged(able, self.recording)

    async def observe_process(
        self, pid: int, named_in: str, tools: Sequence[Tool[Any, Any]], seconds: float
    ) -> list[ToolResult[Any]]:
        """Observe the process `pid` in a window of its own. See `Observer`."""
        ticks, target = await in_thread(lambda: self._other_process(pid, named_in))
        results = await LiveObserver(target, self._engine, self._progress).observe(tools, seconds, {})
        if start_ticks(pid) != ticks:  # ended meanwhile: another one may have been observed in its place
            raise _ended(pid)
        return results

    def _other_process(self, pid: int, named_in: str) -> tuple[int, Target]:
        """Return the start of the process `pid`, in ticks, and the process as a target."""
        target = resolve(TargetParams(pid=pid))
        ticks, named_ns = start_ticks(pid), self._ended_ns.get(named_in)
        if ticks is None or named_ns is None or _age_ns(ticks) < time.clock_gettime_ns(time.CLOCK_MONOTONIC) - named_ns:
            raise _ended(pid)  # a process that started later has only the same pid
        if pid == os.getpid() or pid in renewed(self._target).pids:
            message = f"process {pid} is whystall" if pid == os.getpid() else f"process {pid} is the observed target"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "call the functions that observe the target")
        return ticks, target

    async def calibrate(self, tool: Tool[Any, Any], options: Options) -> list[ToolResult[Any]]:
        """Run the trials, and judge the last window with them."""
        requests = _requests([tool], _ANY_S, options)
        if self.recording is None or not _recorded(requests, self.recording):
            return []
        self.recording = await Calibration(None).joined(self.recording, self._progress)
        return await _judged(requests, self.recording)

    async def _window(
        self, requests: Sequence[_Request], seconds: float, engines: Sequence[Callable[[], Engine]] | None = None
    ) -> Recording:
        """Observe once. `engines`: optional collectors that none of these serves are left out."""
        needs = [need for tool, params in requests for need in tool.needs(params)]
        if engines is not None:
            served = await in_thread(lambda: self._collectors({need.collector for need in needs}, engines))
            needs = [need for need in needs if not need.optional or need.collector in served]
        target = renewed(self._target)
        return await observe(needs, target, seconds, ENGINES, choice=self._engine, progress=self._progress)

    async def _served(
        self, requests: Sequence[_Request], engines: Sequence[Callable[[], Engine]] = ENGINES
    ) -> list[_Request]:
        """Return the requests whose required collectors `engines` can serve, which they may find out by loading
        libraries."""

        def able() -> list[_Request]:
            needs = [{need.collector for need in tool.needs(params) if not need.optional} for tool, params in requests]
            served = self._collectors(set().union(*needs), engines)
            return [request for request, required in zip(requests, needs, strict=True) if required <= served]

        return await in_thread(able)

    def _collectors(self, names: set[str], engines: Sequence[Callable[[], Engine]]) -> set[str]:
        """Return those of the collectors `names` that one of `engines` serves."""
        return {name for name in names if can_serve(name, engines, self._engine)}


class RecordedObserver:
    """Judges a recording; observing again gives the same results."""

    live = False

    def __init__(self, recording: Recording) -> None:
        self.recording: Recording | None = recording
        self._recording = recording
        self.profiled = recording.has("profile")

    async def able(self, tools: Sequence[Tool[Any, Any]]) -> list[Tool[Any, Any]]:
        """Return those of `tools` that judge a window and whose collectors the recording holds."""
        return [tool for tool, _ in _recorded(_requests(tools, _ANY_S, {}, live=True), self._recording)]

    async def observe(self, tools: Sequence[Tool[Any, Any]], seconds: float, options: Options) -> list[ToolResult[Any]]:
        """Judge the recording with those of `tools` whose required collectors it holds."""
        return await _judged(_recorded(_requests(tools, _ANY_S, options), self._recording), self._recording)

    async def observe_process(
        self, pid: int, named_in: str, tools: Sequence[Tool[Any, Any]], seconds: float
    ) -> list[ToolResult[Any]]:
        """Raise `ToolError` (no_such_process): the processes of a recording may be of another host."""
        raise ToolError(ErrorCode.NO_SUCH_PROCESS, "a recording observes no process", "judge its own findings")

    async def calibrate(self, tool: Tool[Any, Any], options: Options) -> list[ToolResult[Any]]:
        """Return nothing: the recording may be from another host's disk."""
        return []


def _age_ns(ticks: int) -> int:
    """Return how long ago the instant `ticks` after the boot was, ns."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks_ns(ticks)


def _ended(pid: int) -> ToolError:
    message = f"process {pid}, which the finding names, has ended"
    return ToolError(ErrorCode.NO_SUCH_PROCESS, message, "observe one that still runs")


def _requests(
    tools: Sequence[Tool[Any, Any]], seconds: float, options: Options, *, live: bool = False
) -> list[_Request]:
    """Return `tools` with their parameters, but those that read logs; with `live` only those that observe a host."""
    tools = [tool for tool in tools if tool.reads not in ("logs", "topology")]
    if live:
        tools = [tool for tool in tools if issubclass(tool.params, LiveParams) and tool.reads != "ranks"]
    return [(t, parse_params(t.params, {"duration": seconds, **options.get(t.name, {})})) for t in tools]


def _recorded(requests: Sequence[_Request], recording: Recording) -> list[_Request]:
    """Return the requests whose required collectors `recording` holds, with their essential options."""
    collectors = recording.manifest.collectors

    def holds(need: Need) -> bool:
        entry = collectors.get(need.collector)
        return need.optional or (entry is not None and all(entry.options.get(name) for name in need.essential))

    return [(tool, params) for tool, params in requests if all(map(holds, tool.needs(params)))]


async def _judged(requests: Sequence[_Request], recording: Recording) -> list[ToolResult[Any]]:
    return await in_thread(lambda: [judge(tool, recording, params) for tool, params in requests])
