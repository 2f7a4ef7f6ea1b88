"""Takes the windows of a kernel's row: one load, observed as root, with capabilities only, and without kprobes.

usage: python -m kernels.inside.observing PLACE PRIVILEGE...    leaves in PLACE what `windows.read` reads
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path

import anyio
from cgroups import Cgroup
from kernels.inside import windows
from kernels.inside.windows import Load, Look
from running import Running, file_server

MIB = 1 << 20
SECONDS = 6.0
PATIENCE_S = 600  # an emulated machine beside others is slow to start
LIMIT_MIB, FILE_MIB = 16, 24  # small, since an emulated machine reads slowly
QUOTA_CPUS = 0.2
EVENTS = ("fsync", "nap", "direct", "used", "pass")
"""Of the load."""
FSYNC_S, NAP_S = 0.15, 0.2
REQUEST_KIB = 64
NOBODY = 65534
CAPABILITIES = ("bpf", "perfmon", "sys_ptrace", "dac_read_search", "syslog")
PARANOID, PERFMON_SUFFICES = Path("/proc/sys/kernel/perf_event_paranoid"), 2
_KEPT = ("PATH", "PYTHONPATH", "POLARS_FORCE_PKG")
KPROBES = Path("/sys/kernel/debug/kprobes/enabled")


class Working:
    """The load at work."""

    def __init__(self, program: Running, spinning: Cgroup, reading: Cgroup, device: str) -> None:
        self.program, self.spinning, self.reading, self.device = program, spinning, reading, device
        self.pids: dict[str, int] = program.start["children"]

    def wait_for_open_acts(self) -> None:
        """Wait until all that was in progress is logged: on a slow machine an act may take seconds."""
        wanted = {event: len(self.program.of(event)) + 2 for event in EVENTS}
        end = time.monotonic() + PATIENCE_S
        while any(len(self.program.of(event)) < count for event, count in wanted.items()):
            if time.monotonic() > end:
                raise TimeoutError("the load stands still")
            time.sleep(0.1)

    def log(self) -> Load:
        """What it logged; it is stopped."""
        lines = self.program.stop()
        waits: int = self.program.start["waits"]
        return Load(self.pids, waits, self.spinning.name, self.reading.name, self.device, lines)


@contextlib.contextmanager
def ext4(size_mib: int) -> Iterator[tuple[Path, str]]:
    """A file system of our own in memory, and the name of its loop device."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # else wherever temporary files are
    with tempfile.TemporaryDirectory(dir=memory) as folder, tempfile.TemporaryDirectory() as place:
        image = Path(folder, "disk.img")
        with image.open("wb") as file:
            file.truncate(size_mib * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image)], check=True)
        made = subprocess.run(["losetup", "-f", "--show", str(image)], check=True, capture_output=True, text=True)
        device = made.stdout.strip()
        try:
            subprocess.run(["mount", "-t", "ext4", device, place], check=True)
            try:
                yield Path(place), Path(device).name
            finally:
                subprocess.run(["umount", place], check=True)
        finally:
            subprocess.run(["losetup", "-d", device], check=True)


def _filled(path: Path, mib: int) -> Path:
    """A file of which nothing is in the page cache."""
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(bytes(MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


@contextlib.contextmanager
def load() -> Iterator[Working]:
    """The load, at work; the spinner has `QUOTA_CPUS` and the reader `LIMIT_MIB`, in cgroups of their own."""
    with contextlib.ExitStack() as stack:
        _, slow = stack.enter_context(file_server(f"fsync={FSYNC_S}"))
        disk, device = stack.enter_context(ext4(FILE_MIB + 16))
        spinning, reading = (stack.enter_context(Cgroup(controller)) for controller in ("cpu", "memory"))
        spinning.limit_cpus(QUOTA_CPUS)
        reading.limit_memory(LIMIT_MIB * MIB)
        options: dict[str, object] = {
            "--slow-directory": slow,
            "--direct": _filled(disk / "direct.bin", 1),
            "--read": _filled(disk / "shard.bin", FILE_MIB),
            "--request-kib": REQUEST_KIB,
            "--nap-s": NAP_S,
        }
        words = [word for pair in options.items() for word in pair]
        program = stack.enter_context(Running(Path(__file__).with_name("load.py"), *words, wait=True))
        made = Working(program, spinning, reading, device)
        spinning.enroll(made.pids["spinner"])
        reading.enroll(made.pids["reader"])
        program.go()
        for event in EVENTS:
            program.until(event, timeout_s=PATIENCE_S)
        yield made


def as_user(argv: list[str]) -> list[str]:
    """`argv` as a user without rights but the capabilities; before 5.11 maps count as locked memory."""
    capabilities = ",".join(f"+{name}" for name in CAPABILITIES)
    old = tuple(map(int, os.uname().release.split(".")[:2])) < (5, 11)
    return [
        *(("prlimit", "--memlock=unlimited:unlimited", "--") if old else ()),
        *("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"),
        *("--inh-caps", f"-all,{capabilities}", "--bounding-set", f"-all,{capabilities}"),
        *("--ambient-caps", f"-all,{capabilities}", "--no-new-privs", "--"),
        *argv,
    ]


@contextlib.contextmanager
def timers_for_users() -> Iterator[None]:
    """Debian's patched kernels keep sampling timers from everybody without CAP_SYS_ADMIN, unless they are told to: what
    `whystall doctor` says to do."""
    before = PARANOID.read_text()
    if int(before) > PERFMON_SUFFICES:
        PARANOID.write_text(str(PERFMON_SUFFICES))
    try:
        yield
    finally:
        if int(before) > PERFMON_SUFFICES:
            PARANOID.write_text(before)


def _ended(process: subprocess.Popen[str]) -> int:
    """Wait for `process` and return its exit status; reports that it runs, since a silent guest is taken to hang."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=60)
        print("it is being observed", flush=True)
    raise TimeoutError(f"no recording after {PATIENCE_S} s")


@contextlib.contextmanager
def recording_as_user(load: Working, place: Path) -> Iterator[Path]:
    """`whystall record` of the load, with capabilities only; it has ended when the block is left."""
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    out = place / "recording"
    words = ["--pid", load.program.pid, "--children", "--trace", "--samples", "--cache", "--duration", SECONDS]
    argv = [sys.executable, "-m", "whystall.agent_server", "record", *map(str, words), "--out", str(out)]
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {"HOME": str(place), "WHYSTALL_HOME": str(place / "home")}
    # its parents may be closed to others
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(as_user(argv), stdout=said, stderr=said, env=environment, cwd=place)
        try:
            yield out
            status = _ended(process)
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        assert status == 0, said.read()


def record_here(load: Working, out: Path, *, tracefs: bool) -> None:
    """The same window from this process, with the scheduler's events from tracefs if wanted."""
    # here, since an emulated machine takes half a minute to import them
    from whystall.agent_server.app import App
    from whystall.agent_server.inputs.record_params import RecordParams
    from whystall.tools.collect.ebpf_engine import EbpfEngine
    from whystall.tools.collect.ftrace.tracefs_engine import TracefsEngine
    from whystall.tools.collect.procfs_engine import ProcfsEngine
    from whystall.tools.recording.target import resolve
    from whystall.tools.recording.window import observe

    params = RecordParams(pid=load.program.pid, children=True, trace=True, samples=True, cache=True, duration=SECONDS)
    if not tracefs:
        anyio.run(lambda: App().record(params, out))
        return
    engines = (EbpfEngine, TracefsEngine, ProcfsEngine)
    anyio.run(lambda: observe(params.needs, resolve(params), SECONDS, engines)).save(out)


@contextlib.contextmanager
def disarmed() -> Iterator[bool]:
    """Kprobes of the kernel disarmed: those there are see nothing, and nobody says so. False where it has none."""
    if not KPROBES.exists():
        yield False
        return
    KPROBES.write_text("0")
    try:
        yield True
    finally:
        KPROBES.write_text("1")


def counts(load: Working) -> tuple[int, int]:
    """Periods in which the spinner was throttled and softirqs, by the kernel's own counts."""
    lines = Path("/proc/softirqs").read_text().splitlines()[1:]
    softirqs = sum(int(word) for line in lines for word in line.split()[1:])
    return load.spinning.stat("cpu.stat")["nr_throttled"], softirqs


def looks(load: Working, place: Path, wanted: Collection[str]) -> dict[str, Look]:
    """The windows with the names in `wanted`; their recordings lie in `place`."""
    armed = KPROBES.exists()
    counted = [counts(load)]
    as_user_out = place
    with timers_for_users(), contextlib.ExitStack() as stack:
        if "capabilities" in wanted:
            as_user_out = stack.enter_context(recording_as_user(load, place / "user"))
        if "root" in wanted:
            record_here(load, place / "root", tracefs=False)
    counted.append(counts(load))
    if "no_kprobes" in wanted:
        with disarmed():
            record_here(load, place / "tracefs", tracefs=True)
    counted.append(counts(load))
    load.wait_for_open_acts()
    first, second = ([late - early for early, late in zip(*two, strict=True)] for two in pairwise(counted))
    made = {
        "root": Look("root", armed, place / "root", "ebpf", *first),
        "capabilities": Look("capabilities", armed, as_user_out, "ebpf", *first),
        "no_kprobes": Look("root", False, place / "tracefs", "tracefs", *second),
    }
    return {name: made[name] for name in wanted}


def take(place: Path, wanted: Collection[str]) -> tuple[Load, dict[str, Look]]:
    """Run the load and take the windows in `wanted`; their recordings lie in `place`."""
    with load() as working:
        print("the load is at work", flush=True)
        taken = looks(working, place, wanted)
        return working.log(), taken


def main(place: Path, wanted: Collection[str]) -> None:
    # a user without rights cannot write everywhere
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        made.chmod(0o755)
        os.environ["WHYSTALL_HOME"] = str(made / "home")
        windows.write(made, *take(made, wanted))
        shutil.copytree(made, place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
