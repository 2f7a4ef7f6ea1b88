"""Trials of direct I/O on real file systems, against the disk's own count of what it did; and nothing is left."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import polars as pl
import pytest

from whystall.tools.collect import calibration
from whystall.tools.collect.calibration import WRITTEN, calibrate, in_directory, place_of, refused
from whystall.tools.collect.calibration_child import READ_ROUNDS, SIZES, Plan, Refused, Trials
from whystall.tools.host.hybrid_io_advise.trials import compare
from whystall.tools.recording.collector import Capture

MIB = 1 << 20
SECTOR = 512
# Long enough for any disk: how fast it is must not decide what a test sees.
PATIENT_S = 60.0
SUPPORTED = Path("/proc/filesystems").read_text().split()
_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
DISKS = ["ext4", *(["xfs"] if "xfs" in SUPPORTED and shutil.which("mkfs.xfs", path=_PATH) else [])]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disks]:
    with ExitStack() as undo:
        yield Disks(tmp_path, undo)


class Disks:
    """Makes file systems on loop devices."""

    def __init__(self, base: Path, undo: ExitStack) -> None:
        self._base = base
        self._undo = undo

    def make(self, fstype: str, mib: int) -> Path:
        """A mounted file system of a size; its image is sparse."""
        image, place = self._base / f"{fstype}.img", self._base / fstype
        place.mkdir()
        with image.open("wb") as file:
            file.truncate(mib * MIB)
        quiet = ["-q", "-F"] if fstype == "ext4" else ["-q", "-f"]
        subprocess.run([f"mkfs.{fstype}", *quiet, str(image)], check=True, env={**os.environ, "PATH": _PATH})
        subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
        self._undo.callback(subprocess.run, ["umount", str(place)], check=True)
        (_block(place) / "queue/read_ahead_kb").write_text("128")  # the kernel's default; some machines have others
        return place


def used(place: Path) -> int:
    """Bytes in use, when everything is on the disk."""
    subprocess.run(["sync", "-f", str(place)], check=True)
    free = os.statvfs(place)
    return (free.f_blocks - free.f_bfree) * free.f_frsize


def device_read(place: Path) -> int:
    """Bytes that the disk beneath `place` has been read so far, by its own count."""
    return int((_block(place) / "stat").read_text().split()[2]) * SECTOR


def _block(place: Path) -> Path:
    status = os.stat(place)
    return Path(f"/sys/dev/block/{os.major(status.st_dev)}:{os.minor(status.st_dev)}")


def tried(place: Path, operations: list[str], seconds: float = PATIENT_S) -> Capture:
    return anyio.run(lambda: calibrate(in_directory(str(place), operations), seconds=seconds))


@pytest.mark.parametrize("fstype", DISKS)
def test_reads_are_what_they_are_called_by_the_disks_own_count(disk: Disks, fstype: str) -> None:
    place = disk.make(fstype, 512)
    before, room = device_read(place), used(place)
    capture = tried(place, ["read"])
    read = device_read(place) - before
    trials = capture.tables["trials"]
    assert capture.proven
    assert capture.not_seen == []
    assert set(trials["fstype"].to_list()) == {fstype}
    assert {"buffered", "warm", "direct"} <= set(trials["way"].to_list())
    assert set(trials["request_bytes"].to_list()) == set(SIZES)
    counts = trials.group_by("request_bytes", "way").len()
    assert set(counts["len"].to_list()) == {READ_ROUNDS}
    moved = {way: rows["bytes"].sum() for (way,), rows in trials.group_by("way")}
    cold = sum(size for way, size in moved.items() if way != "warm")
    # What is called cold came from the disk, all of it; had what is called warm come from there too, it would have read
    # as much more. Readahead beyond a region is less.
    assert read >= 0.99 * cold
    assert read < cold + 0.5 * moved["warm"]
    warm = [row for row in compare(trials) if row.way == "warm"]
    assert all(row.clear == "faster" for row in warm)
    small = next(row for row in compare(trials) if row.way == "direct" and row.request_bytes == SIZES[0])
    assert small.clear != "faster"  # page by page against readahead
    assert used(place) == room
    assert list(place.iterdir()) == ([place / "lost+found"] if fstype == "ext4" else [])


def test_what_it_costs_is_what_a_program_pays_that_does_the_same(disk: Disks) -> None:
    """CPU time of reads of 4 MiB, as this process pays for them, both ways in turn."""
    place, size, request = disk.make("ext4", 512), 64 * MIB, 4 * MIB
    (place / "data").write_bytes(os.urandom(size))
    buffered, direct = (os.open(place / "data", os.O_RDONLY | flag) for flag in (0, os.O_DIRECT))
    os.fsync(buffered)
    memory = mmap.mmap(-1, request)
    memory.write(bytes(request))
    paid: dict[int, list[float]] = {buffered: [], direct: []}
    for _ in range(5):
        for descriptor, costs in paid.items():
            os.posix_fadvise(buffered, 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.thread_time()
            for at in range(0, size, request):
                assert os.preadv(descriptor, [memory], at) == request
            costs.append(time.thread_time() - began)
    os.close(buffered)
    os.close(direct)
    own = statistics.median(paid[direct]) / statistics.median(paid[buffered])
    (place / "data").unlink()
    rows = compare(tried(place, ["read"]).tables["trials"])
    (row,) = [row for row in rows if (row.way, row.request_bytes) == ("direct", request)]
    assert row.cpu_ratio is not None
    assert own / 4 < row.cpu_ratio < own * 4
    assert (row.less_cpu and own < 1) or max(row.cpu_ratio, own) > 0.5  # where it is clear, both say so


def test_writes_stay_within_their_bounds_and_are_gone(disk: Disks) -> None:
    place = disk.make("ext4", 512)
    room = used(place)
    capture = tried(place, ["write"])
    trials = capture.tables["trials"]
    assert capture.not_seen == []
    assert set(trials["way"].to_list()) == {"buffered", "synced", "direct"}
    assert trials.filter(pl.col("way") != "buffered")["bytes"].sum() <= WRITTEN
    rounds = trials.filter(pl.col("way") == "direct").group_by("request_bytes").len()
    assert set(rounds["request_bytes"].to_list()) == set(SIZES)
    assert min(rounds["len"].to_list()) >= 5
    # the same calls, looked at twice: when they returned, and when the data was on the disk
    both = trials.filter(pl.col("way") == "synced").join(
        trials.filter(pl.col("way") == "buffered"), on=["request_bytes", "trial"]
    )
    assert (both["wall_ns"] >= both["wall_ns_right"]).all()
    assert (both["bytes"] == both["bytes_right"]).all()
    assert used(place) == room


def test_little_time_is_kept_to_and_says_less(disk: Disks) -> None:
    """What was tried before the time was up is told; too few trials then carry no statement."""
    place = disk.make("ext4", 512)
    capture = tried(place, ["read", "write"], seconds=0.05)
    rows = capture.tables["trials"].filter(pl.col("way") == "direct").group_by("operation", "request_bytes").len()
    assert rows.is_empty() or rows["len"].min() < READ_ROUNDS  # type: ignore[operator]
    codes = set(capture.tables["refusals"]["code"].to_list())
    assert codes <= {"too_slow"}


@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_disk_that_is_full_is_said_and_left_as_it_was(disk: Disks, operation: str) -> None:
    place = disk.make("ext4", 16)
    room = used(place)
    why = refused(place_of(str(place)))
    assert why is not None
    assert why.code == "no_room"
    with pytest.raises(Refused) as stopped:  # and where another takes the room while it runs
        list(Trials(Plan(str(place), [operation], PATIENT_S, WRITTEN)).run())
    assert stopped.value.code == "no_room"
    assert used(place) == room


def test_a_disk_that_may_not_be_written_is_said(disk: Disks) -> None:
    place = disk.make("ext4", 512)
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    capture = tried(place, ["read"])
    assert capture.tables["refusals"]["code"].to_list() == ["read_only"]
    assert not capture.proven
    assert capture.seen == 0


def test_memory_is_no_disk(tmp_path: Path) -> None:
    """tmpfs takes O_DIRECT since Linux 6.6, and does nothing else with it."""
    place = tmp_path / "memory"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512m", "whystall-test", str(place)], check=True)
    try:
        capture = tried(place, ["read", "write"])
        assert capture.tables["refusals"].select("code", "detail").row(0) == ("in_memory", "tmpfs")
        with pytest.raises(Refused) as found:  # were it not known by its name, it would be found out
            list(Trials(Plan(str(place), ["read"], PATIENT_S, WRITTEN)).run())
        assert found.value.code in ("not_cold", "no_direct")
    finally:
        subprocess.run(["umount", str(place)], check=True)


_CALIBRATES = """
import anyio, sys
from whystall.tools.collect.calibration import calibrate, in_directory
print("ready", flush=True)
anyio.run(lambda: calibrate(in_directory(sys.argv[1], ["read", "write"]), seconds=600.0))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_meanwhile_nothing_is_left(disk: Disks, how: signal.Signals) -> None:
    place = disk.make("ext4", 512)
    room = used(place)
    # a small request of a slow kind: the trials would go on for long
    running = subprocess.Popen(
        [sys.executable, "-c", _CALIBRATES, str(place)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    _until(lambda: bool(_holders(place)) or running.poll() is not None)
    running.send_signal(how)
    running.wait(timeout=60)
    _until(lambda: not _holders(place))  # who is killed is followed by what it started
    assert used(place) == room


def test_cancelled_it_stops_at_once(disk: Disks) -> None:
    place = disk.make("ext4", 512)

    async def cancelled() -> None:
        async with anyio.create_task_group() as tasks:

            async def go() -> None:
                await calibrate(in_directory(str(place), ["read", "write"]), seconds=600.0)

            tasks.start_soon(go)
            while not _holders(place):
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

    anyio.run(cancelled)
    assert not _holders(place)


def test_a_child_that_ends_without_a_word_is_said(disk: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    place = disk.make("ext4", 512)
    monkeypatch.setattr(calibration, "_START", "raise SystemExit(7)")
    capture = tried(place, ["read"])
    assert capture.tables["refusals"].select("code", "detail").row(0) == ("ended", "status 7")


def test_a_child_that_never_answers_is_left_behind(disk: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    place = disk.make("ext4", 512)
    monkeypatch.setattr(calibration, "_START", "import time; time.sleep(600)")
    monkeypatch.setattr(calibration, "_GRACE_S", 0.2)
    capture = tried(place, ["read"], seconds=0.1)
    assert capture.tables["refusals"]["code"].to_list() == ["stuck"]


def test_the_command_tries_and_says_what_came_out(disk: Disks, tmp_path: Path) -> None:
    place = disk.make("ext4", 512)
    command = [
        str(Path(sys.executable).with_name("whystall")),
        "run",
        "hybrid_io_advise",
        "--request-bytes",
        str(4 * MIB),
    ]
    command += ["--operation", "read", "--calibrate", "--directory", str(place), "--json"]
    env = {**os.environ, "WHYSTALL_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True, timeout=300)
    answer = json.loads(done.stdout)
    (finding,) = answer["findings"]
    assert finding["attributes"]["filesystem"] == "ext4"
    assert [c["name"] for c in answer["coverage"]["collectors"]] == ["calibration"]
    (row,) = answer["data"]["rows"]
    assert row["basis"] == ("tried" if row["ratio"] is not None else "rule")
    assert {t["operation"] for t in answer["data"]["trials"]} == {"read"}
    if finding["polarity"] == "abnormal" and row["advice"] == "direct" and row["reason"] == "faster_here":
        assert finding["metrics"]["low_ratio"] > 1


def _holders(place: Path) -> list[int]:
    """Processes that have files below `place` open."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                links = [os.readlink(link) for link in (entry / "fd").iterdir()]
            except OSError:
                continue  # it has ended
            if any(link.startswith(f"{place}/") for link in links):
                found.append(int(entry.name))
    return found


def _until(true: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)
