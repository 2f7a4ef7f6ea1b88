"""Our own programs, compiled by BCC against the running kernel's headers: they need neither BTF nor kprobes, and fill
the same columns as the ``ebpf`` engine.

One child serves all collectors of a window, so that it compiles once and hooks ``sched_switch`` once.
"""

from __future__ import annotations

import base64
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from whystall.bpf import syscalls
from whystall.bpf.capture import Capture as BpfCapture
from whystall.bpf.capture import Thread
from whystall.bpf.capture_pages import Pages
from whystall.bpf.collectors.block import BlockRows
from whystall.bpf.collectors.run_queue import QueueSlot, RunQueue
from whystall.bpf.collectors.switches import SwitchRows
from whystall.bpf.collectors.syscalls import SyscallRows
from whystall.bpf.symbols import kernel as kernel_symbols
from whystall.tools.collect.bcc import own_decode, own_open
from whystall.tools.collect.bcc.own_link import OwnLink, failed
from whystall.tools.collect.bcc.own_source import MAX_TARGETS, SERVES, plan
from whystall.tools.collect.ebpf_calls import completed_requests
from whystall.tools.collect.ebpf_collector import SessionResult, add_files_and_stacks, capture_of, disk_name, losses
from whystall.tools.collect.ebpf_decode import Files, Stacks, block_tables, switch_tables, syscall_tables
from whystall.tools.collect.ebpf_interrupts import interrupt_capture, run_queue_capture
from whystall.tools.collect.ebpf_page_cache import page_capture
from whystall.tools.collect.ebpf_symbols import Processes, SampleCalls, prepare_kernel_symbols
from whystall.tools.collect.mounted import Table, tables, whole_paths
from whystall.tools.collect.options import SwitchOptions, SyscallOptions
from whystall.tools.collect.proc_interrupts import InterruptCounts
from whystall.tools.collect.proc_maps import mapped_file
from whystall.tools.collect.python_merge import label
from whystall.tools.contract.commands import argv, program
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.collector import Capture, Options
from whystall.tools.recording.target import Target

_CHILD = str(Path(__file__).with_name("own_child.py"))
_END_S = 120.0
"""Time the child may take to send its maps: seconds on a busy host, a minute in an emulated machine."""
_START_S = 30.0
# Where BCC is installed for the system's Python: by Debian, by Fedora and openEuler, and built by hand.
_MODULES = (
    "usr/lib/python3/dist-packages/bcc",
    "usr/lib/python3.*/site-packages/bcc",
    "usr/lib64/python3.*/site-packages/bcc",
    "usr/local/lib/python3*/dist-packages/bcc",
    "usr/local/lib/python3.*/site-packages/bcc",
)


def python_bcc(root: Path = Path("/")) -> Path | None:
    """Return the directory of BCC's module for the system's Python; None if it is not installed for this version."""
    version = _python(root)
    for place in _MODULES:
        for path in sorted(root.glob(place)):
            of = next((part for part in path.parts if re.fullmatch(r"python3\.[0-9]+", part)), version)
            if version in ("", of):
                return path
    return None


def _python(root: Path) -> str:
    """Follow /usr/bin/python3 to a name such as ``python3.11``; return "" if no link states a version."""
    place = Path("/usr/bin/python3")
    for _ in range(8):
        if re.fullmatch(r"python3\.[0-9]+", place.name):
            return place.name
        try:
            place = place.parent / os.readlink(root / str(place).lstrip("/"))
        except OSError:
            break
    return ""


class OwnProgram:
    """A `methods.Method`: see the module."""

    name = "own program"
    serves = SERVES
    loads_last = False

    def __init__(self) -> None:
        self._link: OwnLink | None = None
        self._wanted: dict[str, Options] = {}
        self._target = Target(everything=True)
        self._seeds: list[own_open.Seed] = []
        self._seeded_all = True
        self._selves: frozenset[int] = frozenset()
        self._processes = Processes()
        self._disks_before: dict[str, int] = {}
        self._disk_requests = 0
        self._mounts: list[Table] = []
        self._stopped = False
        self._interrupts: InterruptCounts | None = None

    def unavailable(self, collector: str) -> str | None:
        """Return that BCC is not installed for the system's Python, or that this machine's system calls are unknown."""
        if collector not in self.serves:
            return "no program of our own"
        if os.uname().machine not in ("x86_64", "aarch64"):
            return f"not for {os.uname().machine}"
        if program("bcc.own") is None:
            return "no /usr/bin/python3"
        return None if python_bcc() else "the system's python has no module bcc"

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Start the child, which compiles and attaches."""
        if len(target.pids) > MAX_TARGETS:
            raise ToolError(
                ErrorCode.BAD_ARGUMENT,
                f"{len(target.pids)} processes are too many for one window (at most {MAX_TARGETS})",
                "observe the whole host, or a smaller cgroup",
            )
        self._wanted = dict(wanted)
        self._target = target
        own = 0 if os.getpid() in target.pids else os.getpid()
        self._mounts = tables(target.pids)
        self._link = OwnLink(argv("bcc.own", program=_CHILD), plan(self._wanted, target, own))

    def wait_loaded(self, deadline: float) -> None:
        """Wait until all is attached."""
        self._child().wait("hooks", deadline)

    def start(self) -> int:
        """Begin to count; the child causes events of its own."""
        link = self._child()
        if self._wanted.keys() & {"syscalls", "switches", "run_queue"}:
            self._selves = frozenset({link.pid} | ({os.getpid()} - set(self._target.pids)))
            self._seeds, self._seeded_all = own_open.seeds(self._target, self._selves)
        states = [
            (base64.b64encode(key).decode(), base64.b64encode(value).decode())
            for key, value in own_open.state_rows(self._seeds, self._target.everything)
        ]
        link.send({"do": "start", "states": states})
        link.wait("started", time.monotonic() + _START_S)
        self._disks_before = completed_requests()
        self._interrupts = InterruptCounts() if "interrupts" in self._wanted else None
        for pid in self._target.pids:
            self._processes.of(pid)  # its symbols are read while it lives
        return link.started

    def stop(self) -> None:
        """Tell the child to detach; it sends its maps until `read` is called."""
        if self._stopped or self._link is None:
            return
        self._stopped = True
        self._disk_requests = sum(completed_requests().values()) - sum(self._disks_before.values())
        if self._interrupts is not None:
            self._interrupts.stop()
        self._link.send({"do": "stop"})

    def fileno(self) -> int | None:
        """Return the child's output pipe."""
        return self._link.fileno() if self._link is not None else None

    def poll(self) -> None:
        """Read records."""
        if self._link is not None and not self._link.poll() and not self._link.end:
            raise failed("the child ended by itself")

    def read(self) -> dict[str, Capture]:
        """Detach; return the captures of the wanted collectors."""
        link = self._child()
        try:
            self.stop()
            self._processes.refresh()
            link.wait("end", time.monotonic() + _END_S)
            return self._captures(*self._decode(link))
        except (ValueError, struct.error) as error:
            raise failed(f"invalid output: {error}") from None
        finally:
            self.close()

    def close(self) -> None:
        """Kill the child; idempotent."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._processes.close()

    def _child(self) -> OwnLink:
        if self._link is None:
            raise failed("not started")
        return self._link

    def _decode(self, link: OwnLink) -> tuple[BpfCapture, own_open.Open]:
        lost = {"reader_full": link.dropped, "ring_full": link.lost}
        raw = own_decode.decode(link.rows, link.records, link.started, link.end, link.hooks or (), lost)
        threads = {s.tid: Thread(s.tid, s.tgid, s.comm, False) for s in self._seeds} | raw.threads
        threads |= _renamed(threads.values())
        wanted = own_open.Wanted(
            SyscallOptions.of(self._wanted, "syscalls").min_ns if "syscalls" in self._wanted else None,
            SwitchOptions.of(self._wanted, "switches").min_ns if "switches" in self._wanted else None,
            "run_queue" in self._wanted,
            self._target.everything,
            self._selves,
        )
        still = own_open.still_open(
            link.rows.get("states", []),
            link.threads,
            {s.tid: s.ran_ns for s in self._seeds},
            link.started,
            link.end,
            wanted,
            lambda tid: threads[tid].comm if tid in threads else b"",
        )
        calls, switches = raw.of(SyscallRows), raw.of(SwitchRows)
        return (
            raw.with_results(
                replace(calls, calls=calls.calls + still.calls, call_totals=calls.call_totals + still.call_totals),
                replace(
                    switches,
                    segments=switches.segments + still.segments,
                    off_totals=switches.off_totals + still.off_totals,
                ),
                _with_open(raw.of(RunQueue), still),
            )._replace(files={**still.files, **raw.files}, threads=threads),
            still,
        )

    def _captures(self, raw: BpfCapture, still: own_open.Open) -> dict[str, Capture]:
        raw = raw._replace(files=whole_paths(raw.files, self._mounts))
        own = os.getpid()
        calls, files = SampleCalls(raw, self._processes), Files(raw, mapped_file)

        def kernel_frames(number: int) -> list[str]:
            known = raw.stacks.get(number)
            return kernel_symbols().stack(known.addresses) if known is not None else still.stacks.get(number, [])

        stacks = Stacks(
            kernel_frames,
            lambda native, python, pid: [label(call) for call in reversed(calls.user(pid, native, python))],
        )
        prepare_kernel_symbols(raw)
        captures: dict[str, Capture] = {}
        if "syscalls" in self._wanted:
            tables = syscall_tables(raw, files, stacks, syscalls.name, own)
            captures["syscalls"] = capture_of(
                raw, "syscalls", tables, raw.seen["calls"], raw.seen["self_calls"] > 0, "calls"
            )
            captures["syscalls"].not_seen.append(("failures_unseen", ""))
        if "switches" in self._wanted:
            tables = switch_tables(raw, files, stacks, syscalls.name, own)
            captures["switches"] = capture_of(
                raw, "switches", tables, raw.seen["switches"], raw.seen["self_switches"] > 0, "segments"
            )
        if "block" in self._wanted:
            # Not every host lets us cause a request, so compare with the disks' counts: both zero, or both not.
            agrees = raw.seen["block"] > 0 or self._disk_requests == 0
            tables = block_tables(raw.of(BlockRows), disk_name)
            captures["block"] = capture_of(raw, "block", tables, raw.seen["block"], agrees, "slow")
        if self._interrupts is not None:
            lost = losses(raw, "interrupts")
            captures["interrupts"] = interrupt_capture(raw, self._interrupts, lost)
        if "run_queue" in self._wanted:
            captures["run_queue"] = run_queue_capture(raw, losses(raw, "run_queue"))
            if not self._seeded_all:
                captures["run_queue"].not_seen.append(("blocked_before", f"more than {own_open.MAX_SEEDS} threads"))
        if Pages in raw.results:
            lost = losses(raw, "page_cache")
            pages = page_capture(raw.of(Pages), raw, Files(raw, mapped_file), disk_name, lost)
            pages.not_seen.append(("pages_in_part", ""))
            captures["page_cache"] = pages
        for name in captures.keys() & {"switches", "run_queue"}:
            if unreported := raw.seen["unreported"]:
                captures[name].not_seen.append(("untold_switches", str(unreported)))
        if SwitchOptions.of(self._wanted, "switches").python:
            captures["switches"].not_seen.append(("python_frames", "not walked by programs of BCC"))
        for name in ("syscalls", "switches"):
            if name in captures:
                add_files_and_stacks(captures[name], SessionResult(raw, files, stacks, calls))
                if not self._seeded_all:
                    captures[name].not_seen.append(("blocked_before", f"more than {own_open.MAX_SEEDS} threads"))
        return captures


def _with_open(ended: RunQueue, still: own_open.Open) -> RunQueue:
    """Add the waits for a CPU that had not ended."""
    totals = {(total.tgid, total.tid): total for total in ended.totals}
    for last in still.queue_totals:
        one = totals.get((last.tgid, last.tid))
        if one is not None:
            last = replace(
                last,
                count=one.count + last.count,
                total_ns=one.total_ns + last.total_ns,
                max_ns=max(one.max_ns, last.max_ns),
            )
        totals[last.tgid, last.tid] = last
    slots = Counter({(slot.tgid, slot.slot): slot.count for slot in ended.slots})
    slots.update((slot.tgid, slot.slot) for slot in still.queue_slots)
    return RunQueue([*totals.values()], [QueueSlot(*place, count) for place, count in slots.items()])


def _renamed(threads: Iterable[Thread]) -> dict[int, Thread]:
    """Return the threads that still live with their current names, since threads may rename themselves."""
    found = {}
    for thread in threads:
        with suppress(OSError):
            comm = Path(f"/proc/{thread.tgid}/task/{thread.tid}/comm").read_bytes().removesuffix(b"\n")
            found[thread.tid] = thread._replace(comm=comm)
    return found
