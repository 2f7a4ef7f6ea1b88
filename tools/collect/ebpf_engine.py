"""The ``ebpf`` engine: one BPF session fills all of its collectors at once."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from whystall.bpf.attached import MAX_TARGETS
from whystall.bpf.build import object_path
from whystall.bpf.capture import Capture as BpfCapture
from whystall.bpf.collectors.python_frames import PythonFrames
from whystall.bpf.errors import BpfError
from whystall.bpf.perf_events import cpu_clock, online_cpus
from whystall.bpf.probe import refusal
from whystall.bpf.session import Session, SessionConfig
from whystall.bpf.symbols import kernel as kernel_symbols
from whystall.tools.collect.ebpf_calls import BlockCollector, SwitchCollector, SyscallCollector
from whystall.tools.collect.ebpf_collector import EbpfCollector, SessionResult
from whystall.tools.collect.ebpf_decode import Files, Stacks
from whystall.tools.collect.ebpf_interrupts import InterruptCollector, RunQueueCollector
from whystall.tools.collect.ebpf_page_cache import PageCacheCollector
from whystall.tools.collect.ebpf_samples import SampleCollector
from whystall.tools.collect.ebpf_symbols import Processes, SampleCalls, prepare_kernel_symbols
from whystall.tools.collect.mounted import Table, tables, whole_paths
from whystall.tools.collect.options import SAMPLE_NS
from whystall.tools.collect.proc_maps import mapped_file
from whystall.tools.collect.python_merge import label
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.node.vantage import FOREIGN_PIDS, PARTIAL_PROC, pids_are_the_hosts, proc_is_whole
from whystall.tools.recording.collector import Capture, Engine, Options
from whystall.tools.recording.target import Target

_CODES = {"no_libbpf": ErrorCode.NO_LIBBPF, "no_btf": ErrorCode.NO_BTF, "no_privilege": ErrorCode.NO_PRIVILEGE}
_COLLECTORS: tuple[type[EbpfCollector], ...] = (
    SyscallCollector,
    SwitchCollector,
    SampleCollector,
    BlockCollector,
    InterruptCollector,
    RunQueueCollector,
    PageCacheCollector,
)
# Bytes of the ring buffer: a whole host has more events than one job.
_RING_TARGET, _RING_HOST = 1 << 21, 1 << 23


class EbpfEngine(Engine):
    """See the module."""

    name = "ebpf"
    serves = frozenset(kind.name for kind in _COLLECTORS)
    period_s = 0.5

    def __init__(self) -> None:
        self._session: Session | None = None
        self._collectors: list[EbpfCollector] = []
        self._processes = Processes()
        self._mounts: list[Table] = []
        self._stopped_ns = 0

    def unavailable(self) -> str | None:
        """Return why BPF cannot work here, without trying."""
        return why_unavailable("host")

    def cannot(self, collector: str) -> str | None:
        """Return why the collector ``samples`` has no timers here: a kernel may refuse them although it loads programs
        (Debian's 5.10 requires CAP_SYS_ADMIN while ``kernel.perf_event_paranoid`` is 3)."""
        if collector != "samples":
            return None
        try:
            timer = cpu_clock(online_cpus()[0], SAMPLE_NS)
        except BpfError as error:
            # if no program can be loaded either, `load` reports it with a remedy
            return error.message if refusal() is None else None
        if timer is not None:
            os.close(timer)
        return None

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Attach the programs of the `wanted` collectors."""
        if len(target.pids) > MAX_TARGETS:
            raise ToolError(
                ErrorCode.BAD_ARGUMENT,
                f"{len(target.pids)} processes are too many for one window (at most {MAX_TARGETS})",
                "observe the whole host, or a smaller cgroup",
            )
        self._mounts = tables(target.pids)
        self._collectors = [kind(wanted) for kind in _COLLECTORS if kind.name in wanted]
        frames = PythonFrames() if any(one.python for one in self._collectors) else None
        config = SessionConfig(
            targets=None if target.everything else frozenset(target.pids),
            follow=target.follow,
            ring_bytes=_RING_HOST if target.everything else _RING_TARGET,
        )
        kernel = [one.kernel for one in self._collectors] + ([frames] if frames is not None else [])
        session = Session(config, kernel)
        try:
            session.load()
        except BpfError as error:
            raise tool_error(error) from error
        self._session = session
        for collector in self._collectors:
            collector.loaded(target, self._processes, frames)

    def start(self) -> int:
        """Begin to count, and cause events of our own, which prove that the hooks work."""
        session = self._loaded()
        try:
            since = session.start()
        except BpfError as error:
            self._session = None
            raise tool_error(error) from error
        for collector in self._collectors:
            collector.started(session)
        _cause_events()
        return since

    def stop(self) -> int:
        """End counting after the last events of our own."""
        session = self._loaded()
        if self._stopped_ns:
            return self._stopped_ns
        for collector in self._collectors:
            collector.stopping(session)
        try:
            self._stopped_ns = session.stop()
        except BpfError as error:
            raise tool_error(error) from error
        return self._stopped_ns

    def _loaded(self) -> Session:
        if self._session is None:
            raise ValueError("not loaded")
        return self._session

    def fileno(self) -> int | None:
        """Return the ring buffer's epoll descriptor."""
        return self._session.fileno() if self._session is not None else None

    def poll(self) -> None:
        """Read records."""
        if self._session is not None:
            self._session.poll()
            for collector in self._collectors:
                collector.poll()

    def read(self) -> dict[str, Capture]:
        """Detach; return the captures of the wanted collectors."""
        if self._session is None:
            return {}
        self.stop()
        session = self._session
        try:
            for collector in self._collectors:
                collector.stopped()
            raw = session.read()
            for collector in self._collectors:
                collector.poll()
            self._processes.refresh()
            return self._captures(raw)
        except BpfError as error:
            raise tool_error(error) from error
        finally:
            self.close()

    def close(self) -> None:
        """Detach; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
        for collector in self._collectors:
            collector.close()
        self._processes.close()

    def _captures(self, raw: BpfCapture) -> dict[str, Capture]:
        result = session_result(raw, self._processes, self._mounts)
        return {one.name: one.capture(result) for one in self._collectors}


def session_result(raw: BpfCapture, processes: Processes, mounts: Sequence[Table]) -> SessionResult:
    """Return `raw` with the names of its files (by the mount tables `mounts`), stacks and frames."""
    raw = raw._replace(files=whole_paths(raw.files, mounts))
    calls = SampleCalls(raw, processes)
    stacks = Stacks(
        lambda stack: _kernel_frames(raw, stack),
        lambda native, python, pid: [label(call) for call in reversed(calls.user(pid, native, python))],
    )
    prepare_kernel_symbols(raw)
    return SessionResult(raw, Files(raw, mapped_file), stacks, calls)


def _kernel_frames(raw: BpfCapture, stack: int) -> list[str]:
    """Return names, innermost first; none if the stack was lost, which is counted."""
    known = raw.stacks.get(stack)
    return kernel_symbols().stack(known.addresses) if known is not None else []


def why_unavailable(kind: str) -> str | None:
    """Return why a BPF object (of `build.KINDS`) cannot work here, without loading it; None where it may."""
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "the kernel has no type information (BTF)"
    if not pids_are_the_hosts():
        return FOREIGN_PIDS
    if not proc_is_whole():
        return PARTIAL_PROC
    if not object_path(os.uname().machine, kind).exists():
        return "the BPF objects are not built (run `make build`)"
    return None


def tool_error(error: BpfError) -> ToolError:
    """Return `error` with the last line of libbpf's log, which without privileges names no reason."""
    log = error.log.strip() if error.code != "no_privilege" else ""
    detail = f" ({log.splitlines()[-1]})" if log else ""
    return ToolError(_CODES.get(error.code, ErrorCode.PROBE_FAILED), error.message + detail, error.remedy)


def _cause_events() -> None:
    """Read a file and sleep once; observing both proves that the hooks work."""
    with open(__file__, "rb") as file:
        os.pread(file.fileno(), 1, 0)
    time.sleep(0.002)
