"""Slow and small file systems."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

from benchmarks.faults.case import Case, CaseError
from benchmarks.faults.injectors.cgroups import enter, group
from benchmarks.faults.scenario import HERE, Process

_SECTOR = 512
_NO_UDEV = ("--noudevrules", "--noudevsync")  # guests have none; the kernel itself makes /dev/dm-N
_FILL_ROUNDS = 150
_FUSE = HERE.parents[1] / "tests/live/workloads/slow_fuse.py"


def call(*argv: str) -> str:
    """Run a command and return what it prints; raise CaseError if it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise CaseError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _mount_point(case: Case, suffix: str = "") -> Path:
    place = Path("/mnt") / f"{case.name}{suffix}"
    case.journal.add("remove_tree", str(place))
    place.mkdir()
    return place


def loop_ext4(
    case: Case, mib: int, backing: str = "/dev/shm", suffix: str = "", full: bool = False
) -> tuple[Path, str]:
    """Make an ext4 on a loop device whose file is in `backing`; return its directory and device number.

    `full`: write the file first. Where the host must find blocks for it, each sync of the baseline waits for that too.
    """
    return _mounted_ext4(case, _image(case, mib, backing, full), "loop,noatime", suffix)


def _image(case: Case, mib: int, backing: str = "/dev/shm", full: bool = False) -> Path:
    image = Path(backing) / f"{case.name}.img"
    case.journal.add("remove_tree", str(image))
    with image.open("wb") as file:
        file.truncate(mib << 20)
        for _ in range(mib if full else 0):
            file.write(bytes(1 << 20))
        os.fsync(file.fileno())
    return image


def _mounted_ext4(case: Case, source: Path, options: str, suffix: str = "") -> tuple[Path, str]:
    """Make an ext4 and mount it as the case's directory; return that and its device number."""
    call("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", str(source))
    place = _mount_point(case, suffix)
    case.journal.add("unmount", str(place))
    call("mount", "-t", "ext4", "-o", options, str(source), str(place))
    device = os.stat(place).st_dev
    case.facts["directory"] = str(place)
    case.facts["device"] = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
    return place, f"{os.major(device)}:{os.minor(device)}"


def loop_disk(
    case: Case,
    mib: int = 512,
    write_mib_s: float = 0,
    read_mib_s: float = 0,
    role: str = "job",
    backing: str = "/dev/shm",
) -> Generator[None, None, None]:
    """Put the case's data on a loop device, in memory or on a disk, and limit a process there (blkio.throttle)."""
    _, number = loop_ext4(case, mib, backing, full=backing != "/dev/shm")
    place = group(case, "blkio")
    case.wrap(role, enter(place))
    yield
    for name, rate in (("write", write_mib_s), ("read", read_mib_s)):
        if rate:
            (place / f"blkio.throttle.{name}_bps_device").write_text(f"{number} {int(rate * (1 << 20))}")


def delayed_disk(case: Case, mib: int = 128, read_ms: int = 0, write_ms: int = 0) -> Generator[None, None, None]:
    """Put the case's data on a disk that later completes each request after a delay (dm-delay)."""
    loop = call("losetup", "--find", "--show", str(_image(case, mib)))
    case.journal.add("run", ["losetup", "--detach", loop])
    case.journal.add("run", ["dmsetup", "remove", *_NO_UDEV, "--retry", case.name])
    sectors = (mib << 20) // _SECTOR
    call("dmsetup", "create", *_NO_UDEV, case.name, "--table", f"0 {sectors} delay {loop} 0 0 {loop} 0 0")
    node = call("dmsetup", "info", "--columns", "--noheadings", "--options", "blkdevname", case.name)
    _mounted_ext4(case, Path("/dev") / node, "noatime")
    yield
    table = f"0 {sectors} delay {loop} 0 {read_ms} {loop} 0 {write_ms}"
    call("dmsetup", "reload", *_NO_UDEV, case.name, "--table", table)
    call("dmsetup", "resume", *_NO_UDEV, case.name)


def disk_of_image(case: Case, write_mib_s: float, mib: int = 320, role: str = "job") -> Generator[None, None, None]:
    """Put the case's data on the image of a disk, whose host writes slowly: while a flush lasts, reads wait.

    The limit is that of the root cgroup for the host's device, so that it does not depend on who writes.
    """
    host, number = loop_ext4(case, 2 * mib)
    limit = _limit_of_all_writers()
    loop_ext4(case, mib, str(host), "-data")
    case.wrap(role, enter(limit.parent))  # the loop driver serves one cgroup's requests in their order
    case.journal.add("write", str(limit), f"{number} 0")
    yield
    limit.write_text(f"{number} {int(write_mib_s * (1 << 20))}")


def _limit_of_all_writers() -> Path:
    """Return the file that limits the writes of the root cgroup, of which the kernel's flusher threads are part."""
    limit = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
    if not limit.exists():
        raise CaseError("no cgroup controller blkio (v1)")
    return limit


def dirty_disk(case: Case, write_mib_s: float, dirty_mib: int, mib: int = 512) -> Generator[None, None, None]:
    """Put the case's data on a loop device; later it writes slowly, and little of its data may be dirty.

    `strict_limit` and `max_bytes` of the device's backing_dev_info (Linux 6.2) hold its writers back.
    """
    _, number = loop_ext4(case, mib)
    limit = _limit_of_all_writers()
    backing = Path("/sys/class/bdi") / number
    if not (backing / "max_bytes").exists():
        raise CaseError("this kernel cannot bound the dirty data of a disk")
    case.journal.add("write", str(limit), f"{number} 0")
    # The settings outlive the file system, for whatever the loop device is used next.
    for name in ("strict_limit", "max_ratio"):
        case.journal.add("write", str(backing / name), (backing / name).read_text().strip())
    yield
    (backing / "strict_limit").write_text("1")
    (backing / "max_bytes").write_text(str(dirty_mib << 20))
    limit.write_text(f"{number} {int(write_mib_s * (1 << 20))}")


def small_shared_memory(case: Case, mib: int, role: str = "job") -> Generator[None, None, None]:
    """Give a process a /dev/shm of its own, as containers have; later another file fills it."""
    place = _mount_point(case)
    case.log_path.touch()
    script = """
    log=$1 && shift && mount --bind /dev/shm "$0" && mount -t tmpfs -o size=SIZEm shm /dev/shm &&
    touch "$log" && mount --bind "$0/${log##*/}" "$log" && umount "$0" && exec "$@"
    """.replace("SIZE", str(mib))
    start = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script, str(place), str(case.log_path)]
    case.wrap(role, start)
    yield
    # What the job still has there is freed and used again, until its last piece is taken.
    with Path(f"/proc/{case.pids[role]}/root/dev/shm/features.bin").open("wb", buffering=0) as file:
        for _ in range(_FILL_ROUNDS):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            time.sleep(0.02)


def small_disk(case: Case, mib: int, keep_kib: int = 512) -> Generator[None, None, None]:
    """Put the case's data on a small tmpfs, and fill it up to the last `keep_kib`."""
    place = _mount_point(case)
    case.journal.add("unmount", str(place))
    call("mount", "-t", "tmpfs", "-o", f"size={mib}m", "scratch", str(place))
    case.facts["directory"] = str(place)
    yield
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_bsize
    (place / "archive.bin").write_bytes(bytes(max(0, free - (keep_kib << 10))))


def file_server(case: Case, delays: dict[str, float], role: str = "filed") -> Generator[None, None, None]:
    """Put the case's data on a FUSE file system whose server is local; `delays`: seconds per operation, later."""
    backing = case.directory / "backing"
    backing.mkdir()
    place = _mount_point(case)
    case.journal.add("unmount", str(place))
    settings = {"backing": str(backing), "mount": str(place)}
    case.start_process(Process(role=role, program="filed.py", settings=settings), {"fuse_server.py": _FUSE})
    case.facts["directory"] = str(place)
    connection = os.minor(os.stat(place).st_dev)
    case.journal.add("abort_fuse", str(connection))
    yield
    if delays:
        case.change(role, {"delays": delays})
