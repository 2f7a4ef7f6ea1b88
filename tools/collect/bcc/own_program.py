"""Our own programs, compiled by BCC against the running kernel's headers: a way to fill collectors without BTF and
without kprobes, with the same columns as the ``ebpf`` engine.

One child serves all collectors of a window, so that it is compiled once and ``sched_switch`` is hooked once.
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

import polars as pl

from whystall.bpf import layout as lay
from whystall.bpf import syscalls
from whystall.bpf.capture import Capture as Seen
from whystall.bpf.capture import Thread
from whystall.bpf.capture_pages import Pages
from whystall.bpf.collectors.block import BlockRows
from whystall.bpf.collectors.interrupts import Interrupts
from whystall.bpf.collectors.run_queue import QueueSlot, RunQueue
from whystall.bpf.collectors.switches import SwitchRows
from whystall.bpf.collectors.syscalls import SyscallRows
from whystall.bpf.symbols import kernel as kernel_symbols
from whystall.tools.collect.bcc import own_decode, own_open
from whystall.tools.collect.bcc.own_link import OwnLink, failed
from whystall.tools.collect.bcc.own_source import MAX_TARGETS, SERVES, plan
from whystall.tools.collect.ebpf_calls import completed_requests
from whystall.tools.collect.ebpf_collector import disk_name, losses
from whystall.tools.collect.ebpf_decode import Files, Stacks, block_tables, switch_tables, syscall_tables
from whystall.tools.collect.ebpf_interrupts import InterruptLook, run_queue_capture
from whystall.tools.collect.ebpf_page_cache import page_capture
from whystall.tools.collect.ebpf_symbols import Processes, SampleCalls
from whystall.tools.collect.mounted import Table, tables, whole_paths
from whystall.tools.collect.options import SwitchOptions, SyscallOptions
from whystall.tools.collect.proc_maps import mapped_file
from whystall.tools.collect.python_merge import label
from whystall.tools.contract.commands import argv, program
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.collector import Capture, Options
from whystall.tools.recording.target import Target

_CHILD = str(Path(__file__).with_name("own_child.py"))
_END_S = 120.0
"""How long the child may take to hand over its maps: seconds on a busy host, a minute in an emulated machine."""
_BEGIN_S = 30.0
# Where distributions install BCC for their own python: Debian's, Fedora's and openEuler's, and what was built by hand.
_MODULES = (
    "usr/lib/python3/dist-packages/bcc",
    "usr/lib/python3.*/site-packages/bcc",
    "usr/lib64/python3.*/site-packages/bcc",
    "usr/local/lib/python3*/dist-packages/bcc",
    "usr/local/lib/python3.*/site-packages/bcc",
)


def python_bcc(root: Path = Path("/")) -> Path | None:
    """Where BCC's module for the system's python is; None where it is not installed, or only for another version."""
    version = _python(root)
    for place in _MODULES:
        for path in sorted(root.glob(place)):
            of = next((part for part in path.parts if re.fullmatch(r"python3\.[0-9]+", part)), version)
            if version in ("", of):
                return path
    return None


def _python(root: Path) -> str:
    """``python3.11`` where the links of /usr/bin/python3 lead there; empty where its name does not tell a version."""
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
    """See the module; a `whystall.tools.collect.bcc.methods.Method`."""

    name = "own program"
    serves = SERVES
    late = False

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
        self._ceased = False
        self._interrupts: InterruptLook | None = None

    def unavailable(self, collector: str) -> str | None:
        """Whether BCC is there for the system's python, and this is a machine whose system calls are known."""
        if collector not in self.serves:
            return "no program of our own"
        if os.uname().machine not in ("x86_64", "aarch64"):
            return f"not for {os.uname().machine}"
        if program("bcc.own") is None:
            return "no /usr/bin/python3"
        return None if python_bcc() else "the system's python has no module bcc"

    def start(self, wanted: Mapping[str, Options], target: Target) -> None:
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

    def ready(self, deadline: float) -> None:
        """Wait until all is attached."""
        self._child().wait("hooks", deadline)

    def begin(self) -> int:
        """The window begins; the child causes events of its own."""
        link = self._child()
        if self._wanted.keys() & {"syscalls", "switches", "run_queue"}:
            self._selves = frozenset({link.pid} | ({os.getpid()} - set(self._target.pids)))
            self._seeds, self._seeded_all = own_open.seeds(self._target, self._selves)
        states = [
            (base64.b64encode(key).decode(), base64.b64encode(value).decode())
            for key, value in own_open.state_rows(self._seeds, self._target.everything)
        ]
        link.say({"do": "begin", "states": states})
        link.wait("begun", time.monotonic() + _BEGIN_S)
        self._disks_before = completed_requests()
        self._interrupts = InterruptLook() if "interrupts" in self._wanted else None
        for pid in self._target.pids:
            self._processes.of(pid)  # its code is named while it lives
        return link.begun

    def cease(self) -> None:
        """The window is over: the child detaches, and hands over what it has while we do something else."""
        if self._ceased or self._link is None:
            return
        self._ceased = True
        self._disk_requests = sum(completed_requests().values()) - sum(self._disks_before.values())
        if self._interrupts is not None:
            self._interrupts.finish()
        self._link.say({"do": "stop"})

    def fileno(self) -> int | None:
        """The child's output."""
        return self._link.fileno() if self._link is not None else None

    def poll(self) -> None:
        """Take in records."""
        if self._link is not None and not self._link.take() and not self._link.end:
            raise failed("ended by itself")

    def stop(self) -> dict[str, Capture]:
        """Detach; captures of the wanted collectors."""
        link = self._child()
        try:
            self.cease()
            self._processes.look_again()
            link.wait("end", time.monotonic() + _END_S)
            return self._captures(self._seen(link))
        except (ValueError, struct.error) as error:
            raise failed(f"said what nobody understands: {error}") from None
        finally:
            self.close()

    def close(self) -> None:
        """End the child; idempotent."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._processes.close()

    def _child(self) -> OwnLink:
        if self._link is None:
            raise failed("not started")
        return self._link

    def _seen(self, link: OwnLink) -> tuple[Seen, own_open.Open]:
        lost = {"reader_full": link.dropped, "ring_full": link.lost}
        seen = own_decode.seen(link.rows, link.records, link.begun, link.end, link.hooks or (), lost)
        threads = {s.tid: Thread(s.tid, s.tgid, s.comm, False) for s in self._seeds} | seen.threads
        threads |= _named_now(threads.values())
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
            link.begun,
            link.end,
            wanted,
            lambda tid: threads[tid].comm if tid in threads else b"",
        )
        calls, switches = seen.of(SyscallRows), seen.of(SwitchRows)
        return (
            seen.with_results(
                replace(calls, calls=calls.calls + still.calls, call_totals=calls.call_totals + still.call_totals),
                replace(
                    switches,
                    segments=switches.segments + still.segments,
                    off_totals=switches.off_totals + still.off_totals,
                ),
                _with(seen.of(RunQueue), still),
            )._replace(files={**still.files, **seen.files}, threads=threads),
            still,
        )

    def _captures(self, found: tuple[Seen, own_open.Open]) -> dict[str, Capture]:
        seen, still = found
        seen = seen._replace(files=whole_paths(seen.files, self._mounts))
        own = os.getpid()
        calls, files = SampleCalls(seen, self._processes), Files(seen, mapped_file)

        def kernel_frames(number: int) -> list[str]:
            known = seen.stacks.get(number)
            return kernel_symbols().stack(known.addresses) if known is not None else still.stacks.get(number, [])

        stacks = Stacks(
            kernel_frames,
            lambda native, python, pid: [label(call) for call in reversed(calls.user(pid, native, python))],
        )
        kernel_symbols().refresh()
        kernel_symbols().prepare(a - 1 for s in seen.stacks.values() if s.kind == lay.STACK_KERNEL for a in s.addresses)
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
            captures["block"] = _capture(seen, "block", block_tables(seen.of(BlockRows), disk_name), "block", agrees)
        if self._interrupts is not None:
            captures["interrupts"] = self._interrupts.capture(seen.of(Interrupts), seen, losses(seen, "interrupts"))
        if "run_queue" in self._wanted:
            captures["run_queue"] = run_queue_capture(seen.of(RunQueue), seen, losses(seen, "run_queue"))
            if not self._seeded_all:
                captures["run_queue"].not_seen.append(("blocked_before", f"more than {own_open.MAX_SEEDS} threads"))
        if Pages in seen.results:
            lost = losses(seen, "page_cache")
            pages = page_capture(seen.of(Pages), seen, Files(seen, mapped_file), disk_name, lost)
            pages.not_seen.append(("pages_in_part", ""))
            captures["page_cache"] = pages
        for name in captures.keys() & {"switches", "run_queue"}:
            if untold := seen.seen["untold"]:
                captures[name].not_seen.append(("untold_switches", str(untold)))
        if SwitchOptions.of(self._wanted, "switches").python:
            captures["switches"].not_seen.append(("python_frames", "not walked by programs of BCC"))
        for name in ("syscalls", "switches"):
            if name in captures:
                named = stacks.table()
                captures[name].tables |= {"files": files.table(), "stacks": named}
                if named["kernel"].any() and kernel_symbols().hidden:  # symbols are read only when they are needed
                    captures[name].not_seen.append(("kernel_symbols", ""))
                if not self._seeded_all:
                    captures[name].not_seen.append(("blocked_before", f"more than {own_open.MAX_SEEDS} threads"))
        return captures


def _capture(seen: Seen, name: str, tables: dict[str, pl.DataFrame], measure: str, proven: bool) -> Capture:
    kept = sum(frame.height for table, frame in tables.items() if table in ("calls", "segments", "slow"))
    return Capture(
        tables=tables,
        hooks=list(seen.hooks),
        seen=seen.seen[measure],
        kept=kept,
        lost=losses(seen, name),
        proven=proven,
    )


def _with(told: RunQueue, still: own_open.Open) -> RunQueue:
    """Return the waits for a CPU with those that still last."""
    totals = {(total.tgid, total.tid): total for total in told.totals}
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
    slots = Counter({(slot.tgid, slot.slot): slot.count for slot in told.slots})
    slots.update((slot.tgid, slot.slot) for slot in still.queue_slots)
    return RunQueue([*totals.values()], [QueueSlot(*place, count) for place, count in slots.items()])


def _named_now(threads: Iterable[Thread]) -> dict[int, Thread]:
    """Threads may rename themselves; those that live say what they are called."""
    found = {}
    for thread in threads:
        with suppress(OSError):
            comm = Path(f"/proc/{thread.tgid}/task/{thread.tid}/comm").read_bytes().removesuffix(b"\n")
            found[thread.tid] = thread._replace(comm=comm)
    return found
