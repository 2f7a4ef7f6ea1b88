"""Run the steps of ``src/page_cache_load.c`` with Python's file object or ``hybrid_open``.

    python -m benchmarks.hybrid_io_load plain|hybrid STEP...

Steps and output are those of the C program (see its head). ``plain`` is ``open(path, buffering=0)``: one system call
per request. The difference is the cost of our object.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

_PAGE = 4096
# The generator of the C program: xorshift.
_SEED = 88172645463325252
_MASK = (1 << 64) - 1


def _taken() -> dict[str, int]:
    with open("/proc/self/io") as lines:
        io = {name.strip(): int(value) for name, _, value in (line.partition(":") for line in lines)}
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "wall_ns": time.monotonic_ns(),
        "cpu_ns": time.process_time_ns(),
        "user_ns": int(used.ru_utime * 1e9),
        "system_ns": int(used.ru_stime * 1e9),
        **{name: io[name] for name in ("rchar", "wchar", "read_bytes", "write_bytes")},
    }


def _plain(path: str, mode: str) -> Any:
    if mode == "r+b":  # with O_CREAT
        return open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), mode, buffering=0)
    return open(path, mode, buffering=0)


def _hybrid() -> Callable[[str, str], Any]:
    from whystall.tools.hybrid_io import library
    from whystall.tools.hybrid_io.hybrid_file import hybrid_open

    library.load()  # once per process, outside of the steps
    return hybrid_open


def _sync(file: Any) -> None:
    if isinstance(file, io.FileIO):
        os.fsync(file.fileno())
    else:
        file.fsync()


def _offsets(size: int, block: int, count: int) -> list[int]:
    state, offsets = _SEED, []
    for _ in range(count):
        state ^= state << 13 & _MASK
        state ^= state >> 7
        state ^= state << 17 & _MASK
        offsets.append(state % (size // block) * block)
    return offsets


def _step(step: str, opener: Callable[[str, str], Any]) -> dict[str, Any]:
    op, path, *numbers = step.split(":")
    size, block, count, first = [int(number) for number in numbers] + [0] * (4 - len(numbers))
    buffer = memoryview(mmap.mmap(-1, max(block, first)))  # page-aligned, and touched before the measurement
    buffer[:] = b"\x5a" * len(buffer)
    data = buffer[:block]
    offsets = _offsets(size, block, count) if op == "random" else []
    calls = 0
    begin = _taken()
    with opener(path, {"write": "wb", "over": "r+b"}.get(op, "rb")) as file:
        if op == "random":
            if first:
                file.readinto(buffer[:first])
                begin = _taken()
            for offset in offsets:
                file.seek(offset)
                if file.readinto(data) != block:
                    raise OSError("short read")
            calls = count
        else:
            transfer = file.readinto if op == "read" else file.write
            at = 0
            while at < size:
                done = transfer(data[: min(block, size - at)])
                if not done:
                    raise OSError("nothing moved")
                at += done
                calls += 1
            if op != "read":
                _sync(file)
    end = _taken()
    return {"step": op, "calls": calls, **{name: end[name] - begin[name] for name in end}}


def main(words: list[str]) -> int:
    """Run the steps; return 2 for an unknown method."""
    if len(words) < 2 or words[0] not in ("plain", "hybrid"):
        print(__doc__, file=sys.stderr)
        return 2
    opener = _hybrid() if words[0] == "hybrid" else _plain
    for step in words[1:]:
        print(json.dumps(_step(step, opener)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
