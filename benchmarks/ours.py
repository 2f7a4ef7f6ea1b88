"""Our tracers: the sessions that the tools open, and as the floor, programs that do nothing on the same hooks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import kernel
from benchmarks.common import SOURCES, Condition
from whystall.bpf import build
from whystall.bpf.collector import Collector
from whystall.bpf.collectors.block import Block
from whystall.bpf.collectors.switches import Switches
from whystall.bpf.collectors.syscalls import Syscalls
from whystall.bpf.libbpf import Object
from whystall.bpf.session import Session, SessionConfig

# as tools.collect.ebpf_engine opens them
KINDS: dict[str, Callable[[int], list[Collector]]] = {
    "fileslower": lambda call_min_ns: [Syscalls(call_min_ns)],
    "offcputime": lambda call_min_ns: [Switches(user_stacks=True)],
    "everything": lambda call_min_ns: [Syscalls(call_min_ns), Switches(wakers=True, user_stacks=True), Block()],
}


def session_of(kind: str, targets: Iterable[int] | None, call_min_ns: int | None = None) -> Session:
    """Return the session of a tool; `targets` None: the whole host."""
    default = 1_000_000 if kind == "everything" else 10_000_000
    config = SessionConfig(targets=None if targets is None else frozenset(targets))
    return Session(config, KINDS[kind](default if call_min_ns is None else call_min_ns))


@contextmanager
def session(kind: str, targets: Iterable[int] | None) -> Iterator[list[int]]:
    """Run a session in this process."""
    with session_of(kind, targets):
        yield []


def compiled(source: str, directory: Path) -> Path:
    """Compile a BPF source of this directory as ours are; return the object file."""
    made = directory / Path(source).with_suffix(".o").name
    machine = f"-D__TARGET_ARCH_{build.MACHINES[os.uname().machine]}"
    command = ["clang", *build._FLAGS, machine, "-I", str(build.SOURCES), "-c", str(SOURCES / source)]
    subprocess.run([*command, "-o", str(made)], check=True)
    return made


@contextmanager
def attached(data: bytes) -> Iterator[list[int]]:
    """Attach all programs of an object."""
    made, links = Object(data, "benchmark"), []
    try:
        made.load()
        for name in made.program_names():
            links.append(made.program(name).attach())
        yield []
    finally:
        for link in links:
            link.close()
        made.close()


def programs() -> frozenset[int]:
    """Return the ids of the programs that this process has loaded."""
    return kernel.programs_of(os.getpid())


def run_times(condition: Condition, work: Callable[[], object], least: int) -> str:
    """Return ns per run of our programs that ran at least `least` times during `work`, by the kernel's statistics."""
    with kernel.run_statistics(), condition():
        loaded = programs()
        before = kernel.runs(loaded)
        work()
        after = kernel.runs(loaded)
    counts = {number: run.count - before[number].count for number, run in after.items()}
    times = ((after[i].name, (after[i].ns - before[i].ns) / counts[i]) for i in sorted(after) if counts[i] >= least)
    return ", ".join(f"{name} {ns:.0f}" for name, ns in times)
