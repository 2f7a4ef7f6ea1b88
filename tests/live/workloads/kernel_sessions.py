"""Sessions of the kernel side by keywords, with all that they saw as attributes of one object, for tests."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from whystall.bpf import libbpf
from whystall.bpf.capture import Capture
from whystall.bpf.capture_pages import Pages
from whystall.bpf.collector import Collector
from whystall.bpf.collectors.block import Block
from whystall.bpf.collectors.interrupts import Interrupts, InterruptTimes
from whystall.bpf.collectors.page_cache import PageCache
from whystall.bpf.collectors.python_frames import PythonFrames
from whystall.bpf.collectors.run_queue import RunQueue, RunQueueWaits
from whystall.bpf.collectors.samples import CpuSamples
from whystall.bpf.collectors.switches import Switches
from whystall.bpf.collectors.syscalls import Syscalls
from whystall.bpf.python_code import PythonResult
from whystall.bpf.samples import Samples
from whystall.bpf.session import Session, SessionConfig

_WHOLE = {"pages": Pages, "interrupts": Interrupts, "run_queue": RunQueue, "python": PythonResult, "samples": Samples}


class Seen:
    """A capture whose results can be asked for by the names of their members, or by their own (`_WHOLE`)."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture

    def __getattr__(self, name: str) -> Any:
        if name in _WHOLE:
            return self.capture.results.get(_WHOLE[name])
        sources = (self.capture, *self.capture.results.values())
        return next(getattr(source, name) for source in sources if hasattr(source, name))


class KernelSession(Session):
    """A session whose `read` returns a `Seen`."""

    def read(self) -> Any:
        return Seen(super().read())


def kernel_session(
    *,
    syscalls: bool = True,
    call_min_ns: int = 10_000_000,
    switches: bool = True,
    switch_min_ns: int = 1_000_000,
    user_stacks: bool = False,
    wakers: bool = False,
    follow_wakers: bool = False,
    block: bool = False,
    block_min_ns: int = 10_000_000,
    interrupts: bool = False,
    run_queue: bool = False,
    page_cache: bool = False,
    sample_ns: int = 0,
    python: bool = False,
    **config: Any,
) -> KernelSession:
    """A session with the collectors that are wanted; others (`config`): members of `SessionConfig`."""
    collectors: list[Collector] = []
    if syscalls:
        collectors.append(Syscalls(call_min_ns))
    if switches:
        collectors.append(Switches(switch_min_ns, wakers=wakers, user_stacks=user_stacks, follow_wakers=follow_wakers))
    if sample_ns:
        collectors.append(CpuSamples(sample_ns))
    wanted = ((block, lambda: Block(block_min_ns)), (interrupts, InterruptTimes), (run_queue, RunQueueWaits))
    collectors += [make() for want, make in (*wanted, (page_cache, PageCache), (python, PythonFrames)) if want]
    return KernelSession(SessionConfig(**config), collectors)


# The kernel frees programs a moment after their last descriptor is closed.
GONE_WITHIN = 5.0


def programs_of(pid: int) -> frozenset[int]:
    """Programs that a process holds, itself or through their attachments; others may be tracing too."""
    found = set()
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            found |= {int(line.split()[1]) for line in info.read_text().splitlines() if line.startswith("prog_id:")}
    return frozenset(found)


def wait_until_gone(programs: frozenset[int]) -> frozenset[int]:
    """Those of the programs that are still there after a while."""
    until = time.monotonic() + GONE_WITHIN
    while left := programs & libbpf.program_ids():
        if time.monotonic() > until:
            return left
        time.sleep(0.02)
    return frozenset()
