"""The ``bcc`` engine: stock BCC tools, and programs of our own that BCC compiles here, where ``ebpf`` cannot work.

For each collector the methods are tried in this order: a stock tool that is installed, not known to be broken on this
kernel, and reports all that our own program reports; our own program; a stock tool that reports less.
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
_NO_METHOD = "no way to fill it"


class BccEngine(Engine):
    """See the module."""

    name = "bcc"
    serves = COLLECTORS
    period_s = 0.5

    def __init__(
        self, stock: Sequence[Callable[[], StockMethod]] = STOCK, own: Callable[[], Method] | None = OwnProgram
    ) -> None:
        """`stock` and `own`: the methods to choose from; others for tests."""
        self._stock, self._own = stock, own
        self._running: dict[Method, dict[str, Options]] = {}
        self._failures: dict[str, list[str]] = {}
        self._unshared: set[str] = set()
        self._epoll: select.epoll | None = None
        self._stopped_ns = 0

    def unavailable(self) -> str | None:
        """Return why BCC cannot be trusted here, without running it."""
        if not pids_are_the_hosts():
            return FOREIGN_PIDS
        if not proc_is_whole():
            return PARTIAL_PROC
        wrong = headers.problem()
        if wrong is not None:
            return f"{wrong.found} (fix: {wrong.remedy})"
        refused = refusal()
        # BCC has a library of its own and needs no BTF
        if refused is not None and refused.code not in ("no_libbpf", "no_btf"):
            return f"{refused.message} (fix: {refused.remedy})"
        reasons = [why for name in sorted(COLLECTORS) if (why := self.cannot(name))]
        return reasons[0] if len(reasons) == len(COLLECTORS) else None

    def cannot(self, collector: str) -> str | None:
        """Return why no method can fill `collector` here. Starts nothing."""
        if collector in self._failures:
            return "; ".join(self._failures[collector]) or None
        reasons = []
        for method in self._methods(collector):
            why = method.unavailable(collector)
            if why is None:
                return None
            reasons.append(why)
        return "; ".join(reasons) or _NO_METHOD

    def first_method(self, collector: str) -> str | None:
        """Return the name of the method that would be tried first for `collector`; None if there is none."""
        return next((one.name for one in self._methods(collector) if one.unavailable(collector) is None), None)

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Load the first method of each that works, all at once; raise `ToolError` when a collector has none, or the
        headers are of another kernel."""
        wrong = headers.problem()
        if wrong is not None:
            raise ToolError(ErrorCode.PROBE_FAILED, wrong.found, wrong.remedy)
        deadline = time.monotonic() + READY_S
        left = {name: self._methods(name) for name in wanted}
        reasons: dict[str, list[str]] = {name: [] for name in wanted}
        missing = set(wanted)
        try:
            while missing:
                missing = self._attempt(
                    {name: wanted[name] for name in sorted(missing)}, left, reasons, target, deadline
                )
            self._epoll = select.epoll()
            for method in self._running:
                if (fd := method.fileno()) is not None:
                    self._epoll.register(fd, select.EPOLLIN)
        except BaseException:
            self._failures = {name: why for name, why in reasons.items() if why and not left[name]}
            self.close()
            raise

    def start(self) -> int:
        """Drop all output so far; return the time since when the first method counts."""
        return min([method.start() for method in self._running])

    def stop(self) -> int:
        """Ask all children to end, without waiting."""
        for method in self._running:
            method.stop()
        self._stopped_ns = self._stopped_ns or time.monotonic_ns()
        return self._stopped_ns

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when a child has written something."""
        return self._epoll.fileno() if self._epoll is not None else None

    def poll(self) -> None:
        """Read the children's output."""
        for method in self._running:
            method.poll()

    def read(self) -> dict[str, Capture]:
        """End all children; return the captures of the wanted collectors."""
        captures: dict[str, Capture] = {}
        try:
            for method in self._running:
                captures |= method.read()
        finally:
            self.close()
        return captures

    def close(self) -> None:
        """Kill all children."""
        running, self._running = self._running, {}
        with ExitStack() as stack:
            for method in running:
                stack.callback(method.close)
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    def _methods(self, collector: str) -> list[Method]:
        """Return the methods for `collector` in the order they are tried."""
        stock = [method for make in self._stock if collector in (method := make()).serves]
        methods: list[Method] = [method for method in stock if not method.limited]
        if self._own is not None and collector in (program := self._own()).serves:
            methods.append(program)
        methods += [method for method in stock if method.limited]
        return methods

    def _attempt(
        self,
        wanted: Mapping[str, Options],
        left: dict[str, list[Method]],
        reasons: dict[str, list[str]],
        target: Target,
        deadline: float,
    ) -> set[str]:
        """Load the next method of each of `wanted`, one for all those that share it; return the collectors for which it
        failed."""
        chosen: dict[str, tuple[Method, dict[str, Options]]] = {}
        for name, options in wanted.items():
            method = self._next(name, left, reasons)
            group = f"{method.name} {name}" if name in self._unshared else method.name
            chosen.setdefault(group, (method, {}))[1][name] = options
        again: set[str] = set()
        for last in (False, True):
            loading = []
            for method, options_by_name in chosen.values():
                if method.loads_last is not last:
                    continue
                try:
                    self._running[method] = options_by_name
                    method.load(options_by_name, target)
                    loading.append(method)
                except ToolError as error:
                    again |= self._give_up(method, error, left, reasons)
            for method in loading:
                try:
                    has_next = any(left[name] for name in self._running[method])
                    method.wait_loaded(_half(deadline) if has_next else deadline)
                except ToolError as error:
                    again |= self._give_up(method, error, left, reasons)
        return again

    def _next(self, name: str, left: dict[str, list[Method]], reasons: dict[str, list[str]]) -> Method:
        while left[name]:
            method = left[name].pop(0)
            why = method.unavailable(name)
            if why is None:
                return method
            reasons[name].append(why)
        raise failed(f"BCC cannot observe {name}: {'; '.join(reasons[name]) or _NO_METHOD}")

    def _give_up(
        self, method: Method, error: ToolError, left: dict[str, list[Method]], reasons: dict[str, list[str]]
    ) -> set[str]:
        """Close `method` and return its collectors. If it had several, each gets an instance of its own to try next,
        since a single one may have caused the failure."""
        names = set(self._running.pop(method))
        method.close()
        for name in names:
            if len(names) == 1:
                reasons[name].append(error.message)
                continue
            self._unshared.add(name)
            left[name].insert(0, next(one for one in self._methods(name) if one.name == method.name))
        return names


def _half(deadline: float) -> float:
    """Return the deadline of a method that is not the last: if it hangs, half of the time is left for the next."""
    now = time.monotonic()
    return now + (deadline - now) / 2
