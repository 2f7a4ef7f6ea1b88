"""Our side: the sessions that the tools open, and the floor, programs that do nothing on the same hooks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import kernel
from benchmarks.common import SOURCES
from whystall.bpf import build
from whystall.bpf.libbpf import Object
from whystall.bpf.session import Session, SessionConfig

# as tools.collect.ebpf_engine asks for them
KINDS: dict[str, dict[str, Any]] = {
    "fileslower": {"syscalls": True, "switches": False},
    "offcputime": {"syscalls": False, "switches": True, "user_stacks": True},
    "everything": {
        "syscalls": True,
        "switches": True,
        "user_stacks": True,
        "wakers": True,
        "block": True,
        "call_min_ns": 1_000_000,
    },
}


def config(kind: str, targets: Iterable[int] | None, **changes: Any) -> SessionConfig:
    """The session of a tool; `targets` None: the whole host."""
    return SessionConfig(targets=None if targets is None else frozenset(targets), **{**KINDS[kind], **changes})


@contextmanager
def nothing() -> Iterator[list[int]]:
    """No tracer."""
    yield []


@contextmanager
def session(kind: str, targets: Iterable[int] | None) -> Iterator[list[int]]:
    """A session at work in this process."""
    with Session(config(kind, targets)):
        yield []


def compiled(source: str, directory: Path) -> Path:
    """A BPF source of this directory, built as ours are."""
    made = directory / Path(source).with_suffix(".o").name
    machine = f"-D__TARGET_ARCH_{build.MACHINES[os.uname().machine]}"
    command = ["clang", *build._FLAGS, machine, "-I", str(build.SOURCES), "-c", str(SOURCES / source)]
    subprocess.run([*command, "-o", str(made)], check=True)
    return made


@contextmanager
def attached(data: bytes) -> Iterator[list[int]]:
    """All programs of an object on their hooks."""
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
    """Ids of the programs that this process has loaded."""
    return kernel.programs_of(os.getpid())
