"""Process groups of torch.distributed in a process's memory: NCCL's, by a stub with torch's classes and no torch.

gloo's are read from real jobs in tests/live/test_hang.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from whystall.bpf.process_groups import counter_offset, process_groups
from whystall.bpf.python_walk import Memory

SOURCE = Path(__file__).with_name("process_group_stub.cpp")
GROUPS = [
    ("nccl", "0", "default_pg", 3, 8, 41),
    ("nccl", "7", "a description that does not fit into the string itself", 1, 2, 5),
]


def built(directory: Path, *options: str) -> Path:
    """The program, beside the library that it needs."""
    # position independent, so that the program has no copy of the virtual tables
    compiler = ["g++", "-O2", "-fPIC", "-pthread", *options, str(SOURCE)]
    library = directory / "libtorch_cuda.so"
    subprocess.run([*compiler, "-shared", "-Wl,--hash-style=gnu", "-o", library], check=True)
    program = directory / "rank"
    subprocess.run([*compiler, "-DPROGRAM", "-o", program, library, f"-Wl,-rpath,{directory}"], check=True)
    return program


def waits(pid: int, tid: int) -> bool:
    """Return whether the thread is in a system call, which shows where its stack is."""
    return len(Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()) > 3


@pytest.mark.skipif(shutil.which("g++") is None, reason="builds a program with g++")
@pytest.mark.parametrize("options", [(), ("-DREFERENCES=16",), ("-DWATCHDOG",)])
def test_groups_of_nccl_are_read_with_their_numbers(tmp_path: Path, options: tuple[str, ...]) -> None:
    program = subprocess.Popen([built(tmp_path, *options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdin is not None
    try:
        assert program.stdout.readline() == b"ready\n"
        tids = [int(name) for name in os.listdir(f"/proc/{program.pid}/task")]
        while not all(waits(program.pid, tid) for tid in tids):
            time.sleep(0.05)
        with Memory(program.pid) as memory:
            found = process_groups(program.pid, memory, tids)
    finally:
        program.stdin.close()
        program.wait()
        program.stdout.close()
    read = sorted((one.backend, one.name, one.description, one.rank, one.size, one.started) for one in found)
    assert read == GROUPS


@pytest.mark.parametrize(
    ("code", "machine", "offset"),
    [
        ("488b87c8010000c3", "EM_X86_64", 0x1C8),
        ("f30f1efa488b4778c3", "EM_X86_64", 0x78),
        ("488b4778c3", "EM_AARCH64", None),
        ("488b87c8010000cc", "EM_X86_64", None),  # does more than return it
        ("488b4780c3", "EM_X86_64", None),  # before the object
        ("00e440f9c0035fd6" + "00" * 8, "EM_AARCH64", 0x1C8),
        ("5f2403d500e440f9c0035fd6", "EM_AARCH64", 0x1C8),
        ("", "EM_X86_64", None),
    ],
)
def test_the_offset_of_a_counter_is_in_the_code_of_its_function(code: str, machine: str, offset: int | None) -> None:
    assert counter_offset(bytes.fromhex(code), machine) == offset
