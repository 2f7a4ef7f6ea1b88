"""Where a calibration is made, where it is refused, and that it leaves nothing. The trials are in tests/live."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import anyio
import polars as pl
import pytest
from page_cache_scenes import OTHER, Cache
from recordings import PID

from whystall.tools.collect import calibration, calibration_child
from whystall.tools.collect.calibration import (
    Place,
    Refusal,
    Request,
    calibrate,
    for_recording,
    in_directory,
    joined,
    refused,
)
from whystall.tools.collect.calibration_child import Refused, Unnamed, refusal
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.redact import redact
from whystall.tools.recording.store import Recording

MIB = 1 << 20


def sized(cache: Cache, path: str, mib: int, *, operation: str = "read", pid: int = PID) -> Cache:
    row = {"file": cache.file(path), "pid": pid, "operation": operation, "direct": False}
    size = {"low_bytes": MIB, "high_bytes": 2 * MIB, "count": mib, "bytes": mib * MIB}
    cache.scene._add("page_cache.sizes", **row, **size)
    return cache.use(path, pid=pid)


def elsewhere(cache: Cache, path: str, dev: str, fstype: str = "xfs") -> Cache:
    """`path` is on another file system."""
    number = cache.file(path)
    for row in cache.scene.tables["page_cache.files"]:
        if row["file"] == number:
            row |= {"dev": dev, "fstype": fstype}
    return cache


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> dict[str, Place]:
    """The directories that can be reached, with their file systems."""
    known = {
        "/data": Place("/data", "7:0", "ext4"),
        "/scratch": Place("/scratch", "8:1", "xfs"),
        "/archive": Place("/archive", "9:1", "xfs"),
    }

    def place_of(directory: str) -> Place:
        if directory not in known:
            raise FileNotFoundError(errno.ENOENT, "gone", directory)
        return known[directory]

    monkeypatch.setattr(calibration, "place_of", place_of)
    return known


def recorded(cache: Cache) -> Recording:
    return cache.build(without=("calibration",))


def test_it_is_tried_beside_the_files_that_most_was_moved_of(places: dict[str, Place]) -> None:
    cache = Cache()
    sized(cache, "/data/a.bin", 10)
    sized(cache, "/data/b.bin", 10, operation="write")
    elsewhere(sized(cache, "/scratch/c.bin", 900), "/scratch/c.bin", "8:1")
    elsewhere(sized(cache, "/archive/d.bin", 5), "/archive/d.bin", "9:1")
    asked = for_recording(recorded(cache))
    expected = [(places["/scratch"], ["read"]), (places["/data"], ["read", "write"]), (places["/archive"], ["read"])]
    assert list(asked.places) == expected
    assert list(asked.refusals) == []


def test_what_is_to_be_changed_comes_before_what_most_was_moved_of(places: dict[str, Place]) -> None:
    cache = sized(Cache(), "/data/hot.bin", 900)
    for number in range(2):
        path = f"/scratch/stream_{number}.bin"
        elsewhere(sized(cache, path, 10, pid=OTHER), path, "8:1")
    found = for_recording(recorded(cache), [cache.file("/scratch/stream_1.bin")])
    assert [place for place, _ in found.places] == [places["/scratch"], places["/data"]]
    assert found.most == 1  # the other one only where that refuses


def test_where_one_place_refuses_the_next_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are made on two file systems at most, and those without room, or in memory, are none of them."""
    names = ["memory", "full", "one", "two", "three"]
    asked = [(Place(str(tmp_path / name), name, "tmpfs" if name == "memory" else "ext4"), ["read"]) for name in names]
    monkeypatch.setattr(calibration, "_free", lambda place: (3 if place.dev == "full" else 3000) * MIB)
    plans = []

    async def run(plan: calibration_child.Plan) -> tuple[list[dict[str, object]], None, dict[str, bool | None]]:
        plans.append(plan)
        row = {"operation": "read", "way": "direct", "request_bytes": MIB, "bytes": MIB, "wall_ns": 1, "cpu_ns": 1}
        return [{**row, "trial": 0}], None, {}

    monkeypatch.setattr(calibration, "_run", run)
    capture = anyio.run(calibrate, Request(asked))
    assert [Path(plan.directory).name for plan in plans] == ["one", "two"]
    assert sum(plan.written for plan in plans) <= calibration.WRITTEN
    assert capture.tables["refusals"]["code"].to_list() == ["in_memory", "no_room"]


@pytest.mark.parametrize(
    ("free_mib", "file_mib"), [(10_000, 16), (256, 16), (255, 8), (100, 4), (32, 2), (31, None), (0, None)]
)
def test_our_files_are_a_small_part_of_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, file_mib: int | None
) -> None:
    monkeypatch.setattr(calibration, "_free", lambda _: free_mib * MIB)
    monkeypatch.setattr(calibration, "_own_limit", lambda: -1)
    plans = []

    async def run(plan: calibration_child.Plan) -> tuple[list[dict[str, object]], None, dict[str, bool | None]]:
        plans.append(plan)
        return [], None, {}

    monkeypatch.setattr(calibration, "_run", run)
    anyio.run(calibrate, Request([(Place(str(tmp_path), "8:1", "ext4"), ["read"])]))
    assert [plan.file for plan in plans] == ([] if file_mib is None else [file_mib * MIB])
    assert all(max(plan.sizes) <= plan.file for plan in plans)


def test_the_targets_own_files_come_first(places: dict[str, Place]) -> None:
    cache = sized(Cache(), "/data/a.bin", 10)
    elsewhere(sized(cache, "/scratch/c.bin", 900, pid=OTHER), "/scratch/c.bin", "8:1")
    assert [place for place, _ in for_recording(recorded(cache)).places] == [places["/data"]]


def test_where_its_directory_is_gone_or_has_no_plain_name_the_one_above_will_do(places: dict[str, Place]) -> None:
    asked = for_recording(recorded(sized(Cache(), "/data/a\\x1bb\\x0ac/gone/a.bin", 10)))
    assert [place for place, _ in asked.places] == [places["/data"]]


def test_what_is_above_on_another_file_system_will_not(places: dict[str, Place]) -> None:
    places["/data"] = Place("/data", "0:99", "btrfs")
    cache = elsewhere(sized(Cache(), "/data/gone/a.bin", 10), "/data/gone/a.bin", "0:42", "btrfs")
    assert for_recording(recorded(cache)).places == []


def test_a_directory_of_the_same_name_on_another_disk_is_not_taken(places: dict[str, Place]) -> None:
    """The process was in another mount namespace, or something was mounted over it since."""
    places["/data"] = Place("/data", "99:9", "ext4")
    asked = for_recording(recorded(sized(Cache(), "/data/a.bin", 10)))
    assert list(asked.places) == []
    assert [(r.code, r.place.dev) for r in asked.refusals] == [("not_reachable", "7:0")]


def test_what_a_process_sees_is_reached_through_it(places: dict[str, Place]) -> None:
    del places["/data"]
    places[f"/proc/{PID}/root/data"] = Place(f"/proc/{PID}/root/data", "7:0", "ext4")
    asked = for_recording(recorded(sized(Cache(), "/data/a.bin", 10)))
    assert [place.directory for place, _ in asked.places] == [f"/proc/{PID}/root/data"]


def test_file_systems_whose_numbers_differ_are_known_by_their_type(places: dict[str, Place]) -> None:
    """stat(2) on btrfs and overlayfs gives another device than the kernel's own for the same file."""
    places["/data"] = Place("/data", "0:99", "btrfs")
    cache = elsewhere(sized(Cache(), "/data/a.bin", 10), "/data/a.bin", "0:42", "btrfs")
    assert [place.dev for place, _ in for_recording(recorded(cache)).places] == ["0:42"]


def test_nothing_read_or_written_is_nothing_to_try(places: dict[str, Place]) -> None:
    assert for_recording(recorded(Cache())) == Request([], [])


@pytest.mark.parametrize("path", ["/no/such/place", "/dev/null", "a\0b", ""])
def test_what_is_no_directory_is_refused_before_anything_else(path: str) -> None:
    with pytest.raises(ToolError) as error:
        in_directory(path, ["read"])
    assert error.value.code is ErrorCode.BAD_ARGUMENT


def test_a_link_leads_to_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    ((place, operations),) = in_directory(str(tmp_path / "link"), ["write"]).places
    assert place.directory == str(tmp_path / "real")
    assert operations == ["write"]
    status = os.stat(tmp_path)
    assert place.dev == f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"


@pytest.mark.parametrize(
    ("fstype", "code"),
    [("tmpfs", "in_memory"), ("ramfs", "in_memory"), ("fuse", "fuse"), ("fuse.sshfs", "fuse"), ("fuseblk", "fuse")],
)
def test_where_it_would_say_nothing_it_is_not_tried(tmp_path: Path, fstype: str, code: str) -> None:
    place = Place(str(tmp_path), "0:9", fstype)
    why = refused(place)
    assert why is not None
    assert (why.place, why.code, why.detail) == (place, code, fstype)


def test_a_disk_with_little_room_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*real[:4], 100, *real[5:])))
    why = refused(Place(str(tmp_path), "8:1", "ext4"))
    assert why is not None
    assert why.code == "no_room"


def test_a_memory_cgroup_that_would_evict_the_trials_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_own_limit", lambda: 64 * MIB)
    why = refused(Place(str(tmp_path), "8:1", "ext4"))
    assert why is not None
    assert (why.code, why.detail) == ("cgroup_small", "64 MiB")


def test_what_is_refused_is_told_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_run", None)
    place = Place(str(tmp_path), "0:9", "tmpfs")
    capture = anyio.run(lambda: calibrate(Request([(place, ["read"])], [Refusal(place, "not_reachable", "x\x1b[0m")])))
    assert capture.seen == 0
    assert capture.tables["refusals"]["code"].to_list() == ["not_reachable", "in_memory"]
    assert "\x1b" not in capture.tables["refusals"]["detail"][0]
    assert [code for code, _ in capture.not_seen] == ["not_calibrated", "not_calibrated"]
    recording = joined(recorded(Cache()), capture)
    assert recording.has("calibration")
    assert recording.table("calibration.trials").is_empty()
    hidden = redact(recording).table("calibration.refusals")
    assert str(tmp_path) not in hidden["directory"].to_list()


def test_a_recording_with_trials_is_stored_and_read(tmp_path: Path) -> None:
    from whystall.agent_server.inputs.recordings import open_source

    capture = anyio.run(lambda: calibrate(Request([])))
    row = {"directory": "/d", "dev": "8:1", "fstype": "ext4", "operation": "read", "way": "direct"}
    numbers = {"request_bytes": 4096, "bytes": 4096, "wall_ns": 5, "cpu_ns": 3, "trial": 0}
    schema = capture.tables["trials"].schema
    capture.tables["trials"] = pl.DataFrame([row | numbers], schema=schema, orient="row")
    joined(recorded(Cache()), capture).save(tmp_path / "rec")
    assert open_source(tmp_path / "rec").table("calibration.trials").row(0, named=True) == row | numbers


# --- the file -------------------------------------------------------------------------------------------------


def test_the_file_has_no_name_and_is_gone_when_closed(tmp_path: Path) -> None:
    with suppress(Refused), Unnamed(str(tmp_path)) as file:  # where temporary files are, direct I/O may not be had
        os.pwrite(file.fd, b"x" * 8192, 0)
        assert list(tmp_path.iterdir()) == []
        assert os.fstat(file.fd).st_nlink == 0
        assert os.fstat(file.direct).st_ino == os.fstat(file.fd).st_ino
        kept = file.fd
        file.__exit__()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(kept)
        file.fd, file.direct = os.dup(1), os.dup(1)  # to be closed once more
    assert list(tmp_path.iterdir()) == []


def test_without_unnamed_files_the_name_goes_while_it_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.open

    def old_kernel(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EISDIR, "Is a directory", path)
        return plain(path, flags, mode)

    monkeypatch.setattr(calibration_child.os, "open", old_kernel)
    descriptor = calibration_child._create(str(tmp_path))
    try:
        assert list(tmp_path.iterdir()) == []
        assert (os.fstat(descriptor).st_nlink, os.fstat(descriptor).st_size) == (0, 0)
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EACCES, "not_permitted"),
        (errno.EROFS, "read_only"),
        (errno.ENOSPC, "no_room"),
        (errno.EDQUOT, "no_room"),
        (errno.EFBIG, "no_room"),
        (errno.ENOENT, "no_directory"),
        (errno.EIO, "io_error"),
        (errno.ESTALE, "io_error"),
    ],
)
def test_every_failure_has_a_code(number: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(OSError(number, os.strerror(number))).code == code

    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(calibration_child.os, "open", fails)
    with pytest.raises(Refused) as why:
        Unnamed(str(tmp_path))
    assert (why.value.code, why.value.detail) == (code, os.strerror(number))
