"""How an investigation looks: live, in one window for several tools, or into a recording."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from whystall.agent_server.inputs.calibration import Calibration
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import LiveParams, Params, parse_params
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import ToolResult
from whystall.tools.recording.assignment import can_serve
from whystall.tools.recording.collector import Engine, Need
from whystall.tools.recording.judging import judge
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.recording.window import Progress, observe
from whystall.tools.toolbox import ENGINES

_UNPRIVILEGED = tuple(make for make in ENGINES if make().name == "procfs")
_REFUSED = frozenset(
    {ErrorCode.NO_PRIVILEGE, ErrorCode.NO_LIBBPF, ErrorCode.NO_BTF, ErrorCode.NO_ENGINE, ErrorCode.PROBE_FAILED}
)
_ANY_S = 10.0  # seconds, where no window is opened


class Observer(Protocol):
    """Answers "run these tools"; `recording` is the last one looked at. `profiled`: with an accelerator's profile."""

    recording: Recording | None
    live: bool
    profiled: bool

    def able(self, tools: Sequence[Tool[Any, Any]]) -> list[Tool[Any, Any]]:
        """Those of `tools` that can be served here, as far as can be told before they look."""

    async def observe(self, tools: Sequence[Tool[Any, Any]], seconds: float, options: Options) -> list[ToolResult[Any]]:
        """Results of `tools`, in order; a tool that cannot be served at all is left out."""

    async def calibrate(self, tool: Tool[Any, Any], options: Options) -> list[ToolResult[Any]]:
        """The result of `tool` on what was looked at last, once direct I/O was tried beside buffered where its files
        are; none where nothing was looked at, or it did not see the page cache."""


Join = Callable[[Recording], Awaitable[Recording]]
Options = Mapping[str, Mapping[str, Any]]
"""Arguments by tool, beyond target and duration."""


class LiveObserver:
    """Looks at `target` on this host with one window per look."""

    live = True

    def __init__(self, target: Target, engine: str, progress: Progress | None, join: Join | None = None) -> None:
        """`join` adds a profile to a recording that holds a trace."""
        self._target = target
        self._engine = engine
        self._progress = progress
        self._join = join
        self.profiled = join is not None
        self.recording: Recording | None = None

    def able(self, tools: Sequence[Tool[Any, Any]]) -> list[Tool[Any, Any]]:
        """Those of `tools` that observe a host and whose collectors some engine serves here."""
        seeing = [tool for tool in tools if issubclass(tool.params, LiveParams) and tool.reads != "ranks"]
        return [tool for tool in seeing if self._served(tool.needs(_params(tool, _ANY_S, {})))]

    async def observe(self, tools: Sequence[Tool[Any, Any]], seconds: float, options: Options) -> list[ToolResult[Any]]:
        """Observe the union of what `tools` need, then judge with each; without those that no engine can serve here."""
        asked = [(tool, _params(tool, seconds, options)) for tool in tools]
        able = [(tool, p) for tool, p in asked if self._served(tool.needs(p))] or asked
        try:
            self.recording = await self._observed(able, seconds)
        except ToolError as error:
            # An engine may say that it could, and find only when it starts that it may not: root's kernel, not ours.
            without = [(tool, p) for tool, p in able if self._served(tool.needs(p), _UNPRIVILEGED)]
            if error.code not in _REFUSED or self._engine == "ebpf" or len(without) in (0, len(able)):
                raise
            able = without
            self.recording = await self._observed(able, seconds)
        if self._join is not None and self.recording.has("ftrace"):
            self.recording = await self._join(self.recording)
        return [judge(tool, self.recording, p) for tool, p in able]

    async def calibrate(self, tool: Tool[Any, Any], options: Options) -> list[ToolResult[Any]]:
        """Try it, and judge the last window with what came out: that window, of which the other findings are."""
        if self.recording is None or not self._holds(self.recording, tool, options):
            return []
        self.recording = await Calibration(None).joined(self.recording, self._progress)
        return [judge(tool, self.recording, _params(tool, _ANY_S, options))]

    @staticmethod
    def _holds(recording: Recording, tool: Tool[Any, Any], options: Options) -> bool:
        needs = tool.needs(_params(tool, _ANY_S, options))
        return all(need.optional or recording.has(need.collector) for need in needs)

    async def _observed(self, able: Sequence[tuple[Tool[Any, Any], Params]], duration: float) -> Recording:
        needs = [need for tool, params in able for need in tool.needs(params)]
        return await observe(needs, self._target, duration, ENGINES, choice=self._engine, progress=self._progress)

    def _served(self, needs: Sequence[Need], engines: Sequence[Callable[[], Engine]] = ENGINES) -> bool:
        return all(can_serve(need.collector, engines, self._engine) for need in needs)


class RecordedObserver:
    """Looks into a recording; looking again shows the same."""

    live = False

    def __init__(self, recording: Recording) -> None:
        self.recording: Recording | None = recording
        self._recording = recording
        self.profiled = recording.has("profile")

    def able(self, tools: Sequence[Tool[Any, Any]]) -> list[Tool[Any, Any]]:
        """Those of `tools` that judge what a window records and whose collectors the recording holds."""
        seeing = [tool for tool in tools if issubclass(tool.params, LiveParams) and tool.reads != "ranks"]
        return [tool for tool in seeing if self._holds(tool.needs(_params(tool, _ANY_S, {})))]

    async def observe(self, tools: Sequence[Tool[Any, Any]], seconds: float, options: Options) -> list[ToolResult[Any]]:
        """Judge the recording with those of `tools` whose collectors it holds, as far as they cannot do without."""
        results = []
        for tool in tools:
            params = _params(tool, _ANY_S, options)
            if self._holds(tool.needs(params)):
                results.append(judge(tool, self._recording, params))
        return results

    async def calibrate(self, tool: Tool[Any, Any], options: Options) -> list[ToolResult[Any]]:
        """Nothing: where a recording was made may be another disk than this host's."""
        return []

    def _holds(self, needs: Sequence[Need]) -> bool:
        return all(need.optional or self._recording.has(need.collector) for need in needs)


def _params(tool: Tool[Any, Any], duration: float, options: Options) -> Params:
    params: Params = parse_params(tool.params, {"duration": duration, **options.get(tool.name, {})})
    return params
