"""Determine which engine serves what, and why no better one does, by asking the engines in the window's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from whystall.agent_server.app import App
from whystall.agent_server.inputs.calibration import JOINED
from whystall.agent_server.inputs.stacks import observes
from whystall.bpf import probe
from whystall.bpf.errors import BpfError
from whystall.tools.collect.engines import ENGINES
from whystall.tools.contract.text import clean
from whystall.tools.recording.collector import Engine

NONE, FILES = "none", "traces"


@dataclass
class Serving:
    """`engines` that run here, best first, of those in `order`, and why the others do not (`refused`); the engine of
    each collector and tool (``none``: nothing can; ``traces``: it reads files); per tool, why no better engine (`why`).
    """

    engines: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    collectors: dict[str, str] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    why: dict[str, dict[str, str]] = field(default_factory=dict)


def serving(makes: Sequence[Callable[[], Engine]] | None = None) -> Serving:
    """Ask every engine; attaches nothing."""
    asked = [_Asked(make()) for make in makes or ENGINES]
    found = Serving(order=list(dict.fromkeys(one.name for one in asked)))
    for one in asked:
        reason = one.refusal()
        if reason is not None:
            found.refused.setdefault(one.name, reason)
    for one in asked:
        if one.refusal() is None and one.name not in found.engines:
            found.engines.append(one.name)
            found.refused.pop(one.name, None)
    for collector in sorted({name for one in asked for name in one.engine.serves}):
        found.collectors[collector] = _assigned([collector], asked)[0].get(collector, NONE)
    for tool in App().tools():
        wanted = [need.collector for need in tool.needs(tool.params()) if need.collector not in JOINED]
        if not observes(tool) or not wanted:
            found.tools[tool.name] = FILES
            continue
        needed = {need.collector for need in tool.needs(tool.params()) if not need.optional}
        served, reasons = _assigned(wanted, asked)
        judged = next((name for name in wanted if name != "proc"), "proc")
        lacking = next((name for name in wanted if name not in served and name in needed), judged)
        engine = served.get(lacking, NONE)
        found.tools[tool.name] = engine
        found.why[tool.name] = reasons.get(lacking, {})
    return found


class _Asked:
    """An engine and its answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = engine.name
        self._unavailable = engine.unavailable()

    def refusal(self, collectors: Iterable[str] = ()) -> str | None:
        """Return why the engine would not start for `collectors`, which it serves; None if it would."""
        if self._unavailable is not None:
            return clean(self._unavailable.partition(" (fix: ")[0], 500)  # the fix is that of a check
        refused = _bpf("samples" in collectors) if self.name == "ebpf" else None
        return None if refused is None else clean(refused.message, 500)

    def cannot(self, collector: str) -> str | None:
        """Return why it would start without `collector`, which it serves elsewhere; None if it has it."""
        reason = self.engine.cannot(collector)
        return None if reason is None else clean(reason, 500)


@lru_cache(maxsize=2)
def _bpf(timers: bool) -> BpfError | None:
    return probe.refusal(timers=timers)


def _assigned(wanted: Sequence[str], asked: Sequence[_Asked]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Assign collectors as a window does: each engine takes what it can serve of the rest, or nothing if it does not
    start.

    Return the engine per collector, and per collector why not the engines before it.
    """
    served: dict[str, str] = {}
    reasons: dict[str, dict[str, str]] = {name: {} for name in wanted}
    for one in asked:
        own = [name for name in reasons if name not in served and name in one.engine.serves]
        refused = one.refusal(own)
        for name in own:
            reason = refused or one.cannot(name)
            if reason is None:
                served[name] = one.name
            else:
                reasons[name].setdefault(one.name, reason)
    return served, reasons
