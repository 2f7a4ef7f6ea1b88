"""The ``ebpf`` engine: one BPF session fills ``syscalls``, ``switches``, ``block``, ``samples``, ``page_cache``,
``interrupts`` and ``run_queue`` at once."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from whystall.bpf import syscalls
from whystall.bpf.build import object_path
from whystall.bpf.capture import Capture as Seen
from whystall.bpf.capture import device
from whystall.bpf.errors import BpfError
from whystall.bpf.layout import STACK_KERNEL
from whystall.bpf.perf_events import cpu_clock, online_cpus
from whystall.bpf.probe import refusal
from whystall.bpf.session import MAX_TARGETS, Session, SessionConfig
from whystall.bpf.symbols import kernel as kernel_symbols
from whystall.tools.collect.ebpf_decode import Files, Stacks, block_tables, switch_tables, syscall_tables
from whystall.tools.collect.ebpf_interrupts import InterruptLook, run_queue_capture
from whystall.tools.collect.ebpf_page_cache import cause_page_events, page_capture
from whystall.tools.collect.ebpf_samples import Processes, SampleCalls, Ticking, sample_capture
from whystall.tools.collect.mounted import Table, tables, whole_paths
from whystall.tools.collect.options import SAMPLE_NS, BlockOptions, SampleOptions, SwitchOptions, SyscallOptions
from whystall.tools.collect.proc_maps import mapped_file
from whystall.tools.collect.py_spy import Beside, PySpy, installed
from whystall.tools.collect.python_merge import label
from whystall.tools.collect.python_notes import python_notes
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.node.vantage import FOREIGN_PIDS, PARTIAL_PROC, pids_are_the_hosts, proc_is_whole
from whystall.tools.recording.collector import Capture, Engine, Options
from whystall.tools.recording.target import Target

_CODES = {"no_libbpf": ErrorCode.NO_LIBBPF, "no_btf": ErrorCode.NO_BTF, "no_privilege": ErrorCode.NO_PRIVILEGE}
_LOSSES = {
    # reasons of loss by the collector they thin out; every other reason concerns all
    "call_totals_full": "syscalls",
    "file_slots_full": "syscalls",
    "off_totals_full": "switches",
    "requests_full": "block",
    "block_maps_full": "block",
    "page_uses_full": "page_cache",
    "page_files_full": "page_cache",
    "stalls_full": "page_cache",
    "sizes_full": "page_cache",
    "interrupts_full": "interrupts",
    "waits_lost": "run_queue",
}
# Rings: a whole host tells more than one job.
_RING_TARGET, _RING_HOST = 1 << 21, 1 << 23


class EbpfEngine(Engine):
    """See the module; one instance serves one window."""

    name = "ebpf"
    serves = frozenset({"syscalls", "switches", "block", "samples", "page_cache", "interrupts", "run_queue"})
    period_s = 0.5

    def __init__(self) -> None:
        self._session: Session | None = None
        self._wanted: dict[str, Options] = {}
        self._disks_before: dict[str, int] = {}
        self._disk_requests = 0
        self._until = 0
        self._sample_ns = 0
        self._processes = Processes()
        self._ticking: Ticking | None = None
        self._spy: PySpy | None = None
        self._mounts: list[Table] = []
        self._interrupts: InterruptLook | None = None

    def unavailable(self) -> str | None:
        """Why BPF cannot work here, without trying."""
        return why_unavailable("host")

    def cannot(self, collector: str) -> str | None:
        """Why this collector cannot be served where others can be: a kernel may keep sampling timers from those whom it
        lets load programs (Debian's 5.10 asks for CAP_SYS_ADMIN while ``kernel.perf_event_paranoid`` is 3)."""
        if collector != "samples":
            return None
        try:
            timer = cpu_clock(online_cpus()[0], SAMPLE_NS)
        except BpfError as error:
            # where no program is loaded either, starting says so, with what to do about it
            return error.message if refusal() is None else None
        if timer is not None:
            os.close(timer)
        return None

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Attach what `wanted` needs."""
        if len(target.pids) > MAX_TARGETS:
            raise ToolError(
                ErrorCode.BAD_ARGUMENT,
                f"{len(target.pids)} processes are too many for one window (at most {MAX_TARGETS})",
                "observe the whole host, or a smaller cgroup",
            )
        self._wanted = dict(wanted)
        self._mounts = tables(target.pids)
        calls, switches = SyscallOptions.of(wanted, "syscalls"), SwitchOptions.of(wanted, "switches")
        samples = SampleOptions.of(wanted, "samples")
        sample_ns = samples.period_ns if "samples" in wanted else 0
        config = SessionConfig(
            targets=None if target.everything else frozenset(target.pids),
            follow=target.follow,
            syscalls="syscalls" in wanted,
            call_min_ns=calls.min_ns,
            switches="switches" in wanted,
            switch_min_ns=switches.min_ns,
            user_stacks="switches" in wanted,
            wakers=switches.wakers,
            block="block" in wanted,
            block_min_ns=BlockOptions.of(wanted, "block").min_ns,
            page_cache="page_cache" in self._wanted,
            interrupts="interrupts" in self._wanted,
            run_queue="run_queue" in self._wanted,
            sample_ns=sample_ns,
            python=switches.python or samples.python,
            ring_bytes=_RING_HOST if target.everything else _RING_TARGET,
        )
        self._session = Session(config)
        try:
            self._session.load()
        except BpfError as error:
            self._session = None
            raise translated(error) from error
        self._sample_ns = sample_ns
        self._spy = _beside(self._session, target, sample_ns)

    def start(self) -> int:
        """Count from now on; then cause events of our own that prove the hooks alive."""
        session = self._session
        if session is None:
            raise ValueError("not loaded")
        try:
            since = session.begin()
        except BpfError as error:
            self._session = None
            raise translated(error) from error
        self._disks_before = completed_requests()
        self._interrupts = InterruptLook() if "interrupts" in self._wanted else None
        self._ticking = Ticking(self._sample_ns) if "samples" in self._wanted else None
        _cause_events()
        if "page_cache" in self._wanted:
            cause_page_events(session)
        return since

    def stop(self) -> int:
        """Count no longer; the last events of our own are caused before."""
        session = self._session
        if session is None:
            raise ValueError("not loaded")
        if self._until:
            return self._until
        if self._interrupts is not None:
            self._interrupts.finish()
        if self._ticking is not None:
            self._ticking.prove(session)
        self._disk_requests = sum(completed_requests().values()) - sum(self._disks_before.values())
        try:
            self._until = session.cease()
        except BpfError as error:
            raise translated(error) from error
        return self._until

    def fileno(self) -> int | None:
        """The ring buffer's epoll descriptor."""
        return self._session.fileno() if self._session is not None else None

    def poll(self) -> None:
        """Take in records."""
        if self._session is not None:
            self._session.poll()
            self._processes.look(self._session.new_places())

    def read(self) -> dict[str, Capture]:
        """Detach; captures of the wanted collectors."""
        if self._session is None:
            return {}
        self.stop()
        session, self._session = self._session, None
        try:
            beside = self._spy.stop() if self._spy is not None else []
            seen = session.finish()
            self._processes.look(session.new_places())
            self._processes.look_again()
            return self._captures(seen, beside)
        except BpfError as error:
            raise translated(error) from error
        finally:
            session.close()
            self._processes.close()

    def close(self) -> None:
        """Detach; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
        if self._spy is not None:
            self._spy.close()
        self._processes.close()

    def _captures(self, seen: Seen, beside: list[Beside]) -> dict[str, Capture]:
        own = os.getpid()
        seen = seen._replace(files=whole_paths(seen.files, self._mounts))
        calls = SampleCalls(seen, self._processes)
        files = Files(seen, mapped_file)
        stacks = Stacks(
            lambda stack: _kernel_frames(seen, stack),
            lambda native, python, pid: [label(call) for call in reversed(calls.user(pid, native, python))],
        )
        kernel_symbols().refresh()
        kernel_symbols().prepare(a - 1 for s in seen.stacks.values() if s.kind == STACK_KERNEL for a in s.addresses)
        captures: dict[str, Capture] = {}
        if "syscalls" in self._wanted:
            tables = syscall_tables(seen, files, stacks, syscalls.name, own)
            captures["syscalls"] = _capture(seen, "syscalls", tables, "calls", seen.seen["self_calls"] > 0)
        if "switches" in self._wanted:
            tables = switch_tables(seen, files, stacks, syscalls.name, own)
            captures["switches"] = _capture(seen, "switches", tables, "switches", seen.seen["self_switches"] > 0)
        if "block" in self._wanted:
            # We cannot cause a request on every host, but the disks count theirs: both silent, or both not.
            agrees = seen.seen["block"] > 0 or self._disk_requests == 0
            captures["block"] = _capture(seen, "block", block_tables(seen, disk_name), "block", agrees)
        if self._ticking is not None:
            options = SampleOptions.of(self._wanted, "samples")
            captures["samples"] = sample_capture(seen, calls, options, losses(seen, "samples"), self._ticking, beside)
        if seen.interrupts is not None and self._interrupts is not None:
            captures["interrupts"] = self._interrupts.capture(seen.interrupts, seen, losses(seen, "interrupts"))
        if seen.run_queue is not None:
            captures["run_queue"] = run_queue_capture(seen.run_queue, seen, losses(seen, "run_queue"))
        if seen.pages is not None:
            lost = losses(seen, "page_cache")
            captures["page_cache"] = page_capture(seen.pages, seen, Files(seen, mapped_file), disk_name, lost)
        for name in ("syscalls", "switches"):
            if name in captures:
                named = stacks.table()
                captures[name].tables |= {"files": files.table(), "stacks": named}
                if named["kernel"].any() and kernel_symbols().hidden:  # symbols are read only when they are needed
                    captures[name].not_seen.append(("kernel_symbols", ""))
        for name in ("switches", "samples"):
            if name in captures and getattr(self._wanted[name], "python", False):
                captures[name].not_seen += python_notes(seen, switches=name == "switches")
        if beside:
            pids = sorted({one.pid for one in beside})
            captures["samples"].not_seen.append(("python_beside", f"pid {', '.join(map(str, pids))}"))
        return captures


def _beside(session: Session, target: Target, sample_ns: int) -> PySpy | None:
    """py-spy for those Python processes of a target whose frames cannot be walked, where it is installed."""
    refused = session.python_refused
    program = installed() if sample_ns and refused and not target.everything else None
    return PySpy(program, refused, max(1, 1_000_000_000 // sample_ns)) if program else None


def _kernel_frames(seen: Seen, stack: int) -> list[str]:
    """Names, innermost first; none when the stack was lost, which is counted."""
    known = seen.stacks.get(stack)
    return kernel_symbols().stack(known.addresses) if known is not None else []


def _capture(seen: Seen, name: str, tables: dict[str, pl.DataFrame], measure: str, proven: bool) -> Capture:
    lost = losses(seen, name)
    hooks = list(seen.hooks) + [f"{variant}={way}" for variant, way in sorted(seen.variants.items())]
    kept = sum(frame.height for table, frame in tables.items() if table in ("calls", "segments", "slow"))
    return Capture(tables=tables, hooks=hooks, seen=seen.seen[measure], kept=kept, lost=lost, proven=proven)


def losses(seen: Seen, name: str) -> int:
    """How much of what the collector `name` tells was lost."""
    return sum(sum(counts) for reason, counts in seen.lost.items() if _LOSSES.get(reason, name) == name)


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


def translated(error: BpfError) -> ToolError:
    # of a refusal libbpf's last words name no reason but the object, by an address
    told = error.log.strip() if error.code != "no_privilege" else ""
    detail = f" ({told.splitlines()[-1]})" if told else ""
    return ToolError(_CODES.get(error.code, ErrorCode.PROBE_FAILED), error.message + detail, error.remedy)


def _cause_events() -> None:
    """A system call on a file and a sleep of our own; seeing them proves the hooks alive."""
    with open(__file__, "rb") as file:
        os.pread(file.fileno(), 1, 0)
    time.sleep(0.002)


def completed_requests() -> dict[str, int]:
    """Requests completed per whole disk, by the kernel's own count."""
    counts = {}
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if Path("/sys/block", fields[2]).exists():
            counts[fields[2]] = int(fields[3]) + int(fields[7])
    return counts


def disk_name(dev: int) -> str:
    major, minor = device(dev)
    try:
        return clean(os.path.basename(os.readlink(f"/sys/dev/block/{major}:{minor}")))
    except OSError:
        return f"{major}:{minor}"
