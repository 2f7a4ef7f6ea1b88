"""The registry of tools, from which the MCP tools, commands and functions for models are generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from pydantic import BaseModel

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.params import Params

if TYPE_CHECKING:
    from whystall.tools.recording.collector import Need
    from whystall.tools.recording.store import Recording

ParamsT = TypeVar("ParamsT", bound=Params)
DataT = TypeVar("DataT", bound=BaseModel)
Reads = Literal["host", "ranks", "stacks"]


@dataclass(frozen=True)
class ArtifactContent:
    """The content of an artifact; `name` is a plain file name."""

    name: str
    title: str
    media_type: str
    text: str


@dataclass(frozen=True)
class Judgement(Generic[DataT]):
    """What a tool's `judge` returns. `seen` counts the events it judged: zero with a proven collector is `no_data`.

    `basis`: the intermediate result, from which pages are drawn.
    """

    findings: list[Finding]
    data: DataT
    seen: int
    totals: dict[str, int] = field(default_factory=dict)
    artifacts: Sequence[ArtifactContent] = ()
    not_seen: Sequence[tuple[str, str]] = ()
    basis: object = None


@dataclass(frozen=True)
class Tool(Generic[ParamsT, DataT]):
    """A diagnostic tool.

    `needs` returns the collectors, with options, for given parameters; `judge` is a pure function of a recording and
    parameters. `kinds`: the finding kinds it can produce. `cost`: relative cost of observing (1 = reading counters), to
    choose the next tool. `reads`: kind of a file given instead of observing: a recording or trace of a host (``host``),
    the traces of a job's ranks (``ranks``), or stack samples in any format (``stacks``).
    """

    name: str
    title: str
    description: str
    params: type[ParamsT]
    data: type[DataT]
    needs: Callable[[ParamsT], list[Need]]
    judge: Callable[[Recording, ParamsT], Judgement[DataT]]
    kinds: frozenset[str]
    cost: float = 1.0
    reads: Reads = "host"


class Registry:
    """All tools, by name."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool[Any, Any]] = {}

    def add(self, tool: Tool[Any, Any]) -> None:
        """Register `tool`. Raises ValueError if its name is taken."""
        if tool.name in self._tools:
            raise ValueError(f"tool {tool.name} is registered twice")
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool[Any, Any]:
        """Return the tool `name`. Raises `ToolError` (not_found), which lists the valid names."""
        try:
            return self._tools[name]
        except KeyError:
            raise ToolError(
                ErrorCode.NOT_FOUND, f"no tool is called {name!r}", f"valid: {', '.join(sorted(self._tools))}"
            ) from None

    def all(self) -> list[Tool[Any, Any]]:
        """All tools, by name."""
        return [self._tools[name] for name in sorted(self._tools)]
