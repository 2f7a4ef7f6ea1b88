"""The registry of tools, from which the MCP tools, commands and functions for models are generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
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
Reads = Literal["host", "ranks", "stacks", "logs", "topology"]


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
    the traces of a job's ranks (``ranks``), stack samples in any format (``stacks``), logs (``logs``), or what a
    cluster consists of (``topology``; without a file, this host is read).
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
    """All tools, by name. A tool's module is imported when the tool is first used: a command needs one of them."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        """`modules`: the module of each tool, which has it as ``TOOL``."""
        self._modules = dict(sorted(modules.items()))
        self._tools: dict[str, Tool[Any, Any]] = {}

    def names(self) -> list[str]:
        """Return the names of all tools, sorted."""
        return list(self._modules)

    def get(self, name: str) -> Tool[Any, Any]:
        """Return the tool `name`. Raises `ToolError` (not_found), which lists the valid names."""
        if name not in self._modules:
            raise ToolError(ErrorCode.NOT_FOUND, f"no tool is called {name!r}", f"valid: {', '.join(self._modules)}")
        if name not in self._tools:
            self._tools[name] = import_module(self._modules[name]).TOOL
        return self._tools[name]

    def all(self) -> list[Tool[Any, Any]]:
        """Return all tools, by name."""
        return [self.get(name) for name in self._modules]
