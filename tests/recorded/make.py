"""Record the fixtures of this directory anew, as root on a quiet machine: ``python tests/recorded/make.py [CASE]``.

Each is a real run of a program that stalls or does not, recorded by the ebpf engine. `test_recorded.py` says what must
be found in it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "examples"), str(HERE.parent / "live" / "workloads")]

from cgroups import Cgroup  # noqa: E402  (the workloads are found through the path above)
from running import SIMULATOR, Running, file_server  # noqa: E402
from slow_disk import SlowDisk  # noqa: E402

from whystall.agent_server.app import App  # noqa: E402
from whystall.agent_server.inputs.record_params import RecordParams  # noqa: E402

SECONDS = 8.0
NEVER = ["--every", 100_000]


@contextmanager
def memory() -> Iterator[Path]:
    """A directory in memory."""
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="whystall-record-"))
    yield path
    shutil.rmtree(path)


@contextmanager
def checkpoint(*more: object) -> Iterator[Running]:
    """The simulator on a slow disk."""
    with (
        SlowDisk(write_mib_s=60) as disk,
        Running(SIMULATOR, "--directory", disk.path, *more, wrap=disk.command) as program,
    ):
        program.until("checkpoint")
        yield program


@contextmanager
def quick(*more: object) -> Iterator[Running]:
    """The simulator on memory."""
    with memory() as path, Running(SIMULATOR, "--directory", path, *more) as program:
        program.until("step")
        yield program


@contextmanager
def quota() -> Iterator[Running]:
    """The simulator under a CPU quota."""
    with memory() as path, Cgroup("cpu") as group:
        group.limit_cpus(0.4)
        with Running(SIMULATOR, "--directory", path, *NEVER, wrap=group.command) as program:
            program.until("step")
            yield program


@contextmanager
def neighbour() -> Iterator[Running]:
    """The simulator beside a spinner on the same CPU."""

    def pinned(argv: list[str]) -> list[str]:
        return ["taskset", "-c", "0", *argv]

    with (
        memory() as path,
        Running("spinner.py", wrap=pinned),
        Running(SIMULATOR, "--directory", path, *NEVER, wrap=pinned) as program,
    ):
        program.until("step")
        yield program


@contextmanager
def hang() -> Iterator[Running]:
    """A loop whose first fsync does not return."""
    with (
        file_server("fsync=30") as (_, mount),
        Running("trainer.py", "--fault", "sync", "--directory", mount, "--pool", 3) as program,
    ):
        program.until("step")
        yield program
        program.process.kill()


@contextmanager
def thrash() -> Iterator[Running]:
    """Reading again and again what a memory limit has evicted."""
    with Running("reclaimer.py", "--count", 10**6) as program:
        program.until("pass")
        yield program


CASES: dict[str, Callable[[], contextmanager[Running]]] = {  # type: ignore[type-arg]
    "checkpoint": checkpoint,
    "background": lambda: checkpoint("--background"),
    "random": lambda: quick("--random-in-line"),
    "healthy": lambda: quick(*NEVER),
    "quota": quota,
    "neighbour": neighbour,
    "hang": hang,
    "thrash": thrash,
}


def main() -> None:
    """Record the named cases, or all."""
    for name in sys.argv[1:] or CASES:
        out = HERE / name
        shutil.rmtree(out, ignore_errors=True)
        with CASES[name]() as program, App().closing() as app:
            params = RecordParams(pid=program.pid, duration=SECONDS)
            summary = anyio.run(app.record, params, out)
        print(name, summary.model_dump_json())


if __name__ == "__main__":
    main()
