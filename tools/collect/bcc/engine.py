"""The ``bcc`` engine: stock BCC tools, and programs of our own that BCC compiles here, where ``ebpf`` cannot work.

For each collector there is an order of ways. A stock tool is taken where it is installed, not known to be broken on
this kernel, and tells what our own program tells; else our own program; a stock tool that tells less comes last.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from whystall.bpf.probe import refusal
from whystall.tools.collect.bcc import headers
from whystall.tools.collect.bcc.child import failed
from whystall.tools.collect.bcc.methods import READY_S, Method
from whystall.tools.collect.bcc.own_program import OwnProgram
from whystall.tools.collect.bcc.stock import StockMethod
from whystall.tools.collect.bcc.stock_files import Biolatency, Cachestat, Fileslower
from whystall.tools.collect.bcc.stock_scheduler import Interrupts, Offcputime, Runqlat
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.node.vantage import FOREIGN_PIDS, PARTIAL_PROC, pids_are_the_hosts, proc_is_whole
from whystall.tools.recording.collector import Capture, Engine, Options
from whystall.tools.recording.target import Target

STOCK: Sequence[Callable[[], StockMethod]] = (Fileslower, Offcputime, Biolatency, Interrupts, Runqlat, Cachestat)
COLLECTORS = frozenset({"syscalls", "switches", "block", "page_cache", "interrupts", "run_queue"})


class BccEngine(Engine):
    """See the module; one instance serves one window."""

    name = "bcc"
    serves = COLLECTORS
    period_s = 0.5

    def __init__(
        self, stock: Sequence[Callable[[], StockMethod]] = STOCK, own: Callable[[], Method] | None = OwnProgram
    ) -> None:
        """`stock` and `own`: the ways there are; others for tests."""
        self._stock, self._own = stock, own
        self._running: dict[Method, dict[str, Options]] = {}
        self._why: dict[str, list[str]] = {}
        self._alone: set[str] = set()
        self._epoll: select.epoll | None = None
        self._until = 0

    def unavailable(self) -> str | None:
        """Why BCC cannot be trusted here, without running it."""
        if not pids_are_the_hosts():
            return FOREIGN_PIDS
        if not proc_is_whole():
            return PARTIAL_PROC
        wrong = headers.problem()
        if wrong is not None:
            return f"{wrong.found} (fix: {wrong.remedy})"
        refused = refusal()
        # BCC brings a library of its own, and asks for no type information
        if refused is not None and refused.code not in ("no_libbpf", "no_btf"):
            return f"{refused.message} (fix: {refused.remedy})"
        reasons = [why for name in sorted(COLLECTORS) if (why := self.cannot(name))]
        return reasons[0] if len(reasons) == len(COLLECTORS) else None

    def cannot(self, collector: str) -> str | None:
        """Why this engine cannot fill `collector` here, in a few words; None if it can. Starts nothing.

        After a `load` that failed, why it failed for this one.
        """
        if collector in self._why:
            return "; ".join(self._why[collector]) or None
        reasons = []
        for way in self._ways(collector):
            why = way.unavailable(collector)
            if why is None:
                return None
            reasons.append(why)
        return "; ".join(reasons) or "no way to fill it"

    def way(self, collector: str) -> str | None:
        """The way that would be tried first for `collector`, by name; None if there is none."""
        return next((way.name for way in self._ways(collector) if way.unavailable(collector) is None), None)

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Start the first way of each that works, all at once; `ToolError` when a collector has none, or the headers
        are not this kernel's."""
        wrong = headers.problem()
        if wrong is not None:
            raise ToolError(ErrorCode.PROBE_FAILED, wrong.found, wrong.remedy)
        deadline = time.monotonic() + READY_S
        left = {name: self._ways(name) for name in wanted}
        reasons: dict[str, list[str]] = {name: [] for name in wanted}
        waiting = set(wanted)
        try:
            while waiting:
                waiting = self._attempt(
                    {name: wanted[name] for name in sorted(waiting)}, left, reasons, target, deadline
                )
            self._epoll = select.epoll()
            for way in self._running:
                if (fd := way.fileno()) is not None:
                    self._epoll.register(fd, select.EPOLLIN)
        except BaseException:
            self._why = {name: why for name, why in reasons.items() if why and not left[name]}
            self.close()
            raise

    def start(self) -> int:
        """Forget what was before; the instant since when the first way counts."""
        return min([way.begin() for way in self._running])

    def stop(self) -> int:
        """What happens from now on is not of the window any more: have all children end, without waiting for it."""
        for way in self._running:
            way.cease()
        self._until = self._until or time.monotonic_ns()
        return self._until

    def fileno(self) -> int | None:
        """Readable when a child has said something."""
        return self._epoll.fileno() if self._epoll is not None else None

    def poll(self) -> None:
        """Take in what was said."""
        for way in self._running:
            way.poll()

    def read(self) -> dict[str, Capture]:
        """End all; captures of the wanted collectors."""
        captures: dict[str, Capture] = {}
        try:
            for way in self._running:
                captures |= way.stop()
        finally:
            self.close()
        return captures

    def close(self) -> None:
        """Nothing runs afterwards; idempotent."""
        running, self._running = self._running, {}
        with ExitStack() as stack:
            for way in running:
                stack.callback(way.close)
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    def _ways(self, collector: str) -> list[Method]:
        """In the order they are tried."""
        stock = [way for make in self._stock if collector in (way := make()).serves]
        ways: list[Method] = []
        ways += [way for way in stock if not way.poor]
        if self._own is not None and collector in (program := self._own()).serves:
            ways.append(program)
        ways += [way for way in stock if way.poor]
        return ways

    def _attempt(
        self,
        wanted: Mapping[str, Options],
        left: dict[str, list[Method]],
        reasons: dict[str, list[str]],
        target: Target,
        deadline: float,
    ) -> set[str]:
        """Start the next way of each of `wanted`, one for all those that share it; what still has none is returned."""
        chosen: dict[str, tuple[Method, dict[str, Options]]] = {}
        for name, options in wanted.items():
            way = self._next(name, left, reasons)
            group = f"{way.name} {name}" if name in self._alone else way.name
            chosen.setdefault(group, (way, {}))[1][name] = options
        again: set[str] = set()
        for late in (False, True):
            begun = []
            for way, mine in chosen.values():
                if way.late is not late:
                    continue
                try:
                    self._running[way] = mine
                    way.start(mine, target)
                    begun.append((way, mine))
                except ToolError as error:
                    again |= self._give_up(way, error, left, reasons)
            for way, mine in begun:
                try:
                    way.ready(_share(deadline) if any(left[name] for name in mine) else deadline)
                except ToolError as error:
                    again |= self._give_up(way, error, left, reasons)
        return again

    def _next(self, name: str, left: dict[str, list[Method]], reasons: dict[str, list[str]]) -> Method:
        while left[name]:
            way = left[name].pop(0)
            why = way.unavailable(name)
            if why is None:
                return way
            reasons[name].append(why)
        raise failed(f"BCC cannot observe {name}: {'; '.join(reasons[name]) or 'no way to fill it'}")

    def _give_up(
        self, way: Method, error: ToolError, left: dict[str, list[Method]], reasons: dict[str, list[str]]
    ) -> set[str]:
        """Of what shared the way each is tried by itself, since one alone may be what does not work."""
        mine = self._running.pop(way)
        way.close()
        for name in mine:
            if len(mine) == 1:
                reasons[name].append(error.message)
                continue
            self._alone.add(name)
            again = next(one for one in self._ways(name) if one.name == way.name)
            left[name].insert(0, again)
        return set(mine)


def _share(deadline: float) -> float:
    """Until when a way may take that is not the last: who hangs leaves the next one as much time again."""
    now = time.monotonic()
    return now + (deadline - now) / 2
