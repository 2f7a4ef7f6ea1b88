"""Pages counted by the page cache's hooks, against files of known size and a child that says what it did with them."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernel_sessions import kernel_session
from scripted import Child, child

from whystall.bpf.capture import Capture, FileKey, device
from whystall.bpf.capture_pages import PageFile, Pages, PageUse, SizeSlot
from whystall.tools.collect.ebpf_engine import EbpfEngine
from whystall.tools.recording.collector import Options
from whystall.tools.recording.target import Target

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="tracing and mounting need root")

SIZE = (8 << 20) + 1000
PAGES = -(-SIZE // mmap.PAGESIZE)
NEWER_EVENTS = ("mm_filemap_get_pages", "mm_filemap_map_pages", "mm_filemap_fault")
OLDEST = {f"filemap:{name}": False for name in NEWER_EVENTS} | dict.fromkeys(
    ("task_storage", "pt_regs_helper", "current_btf", "loop_helper", "plain_loads", "switch_has_state", "atomics"),
    False,
)


@pytest.fixture(scope="module")
def disk(ext4: Callable[[int], Path]) -> Path:
    """A file system of our own."""
    return ext4(512)


class Seen:
    """What one window saw of the files of one child."""

    def __init__(self, capture: Capture, subject: Child, disk: Path) -> None:
        assert capture.pages is not None
        assert not capture.lost
        self.capture = capture
        self.pages: Pages = capture.pages
        self.pid = subject.pid
        number = disk.stat().st_dev
        self.dev = (os.major(number), os.minor(number))

    def is_file(self, key: FileKey | None, ino: int) -> bool:
        return key is not None and device(key.dev) == self.dev and key.ino == ino

    def use(self, path: Path) -> PageUse:
        ino = path.stat().st_ino
        (found,) = [use for use in self.pages.uses if self.is_file(use.file, ino) and use.tgid == self.pid]
        return found

    def file(self, ino: int) -> PageFile:
        (found,) = [file for file in self.pages.files if self.is_file(file.file, ino)]
        return found

    def sizes(self, path: Path) -> list[SizeSlot]:
        ino = path.stat().st_ino
        return [slot for slot in self.pages.sizes if self.is_file(slot.file, ino) and slot.tgid == self.pid]


def observe(subject: Child, disk: Path, **config: Any) -> tuple[Seen, list[dict[str, Any]]]:
    """The page cache from the child's ``go`` until it says ``done``."""
    config.setdefault("targets", frozenset({subject.pid}))
    with kernel_session(syscalls=False, switches=False, page_cache=True, **config) as session:
        subject.go()
        lines = subject.until("done")
        return Seen(session.read(), subject, disk), lines


COMMON = """
import ctypes, mmap, random
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
place, size = sys.argv[1], int(sys.argv[2])
def path(name): return os.path.join(place, name)
def forget(name):
    fd = os.open(path(name), os.O_RDONLY); os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); os.close(fd)
def make(name):
    with open(path(name), "wb") as file: file.write(b"x" * size)
    forget(name)
def read(name, step, flags=0):
    fd = os.open(path(name), os.O_RDONLY | flags)
    while os.read(fd, step): pass
    os.close(fd)
def keep(name):  # whatever others do to the memory of this host
    read(name, 1 << 17)
    fd = os.open(path(name), os.O_RDONLY)
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    assert libc.mlock(address, size) == 0
def mapped(name):
    fd = os.open(path(name), os.O_RDONLY)
    view = mmap.mmap(fd, 0, prot=mmap.PROT_READ); view.madvise(mmap.MADV_NOHUGEPAGE)
    total = sum(view[at] for at in range(0, size, mmap.PAGESIZE))
    view.close(); os.close(fd)
def write(name, step=131072):
    fd = os.open(path(name), os.O_RDWR | os.O_CREAT, 0o600)
    for at in range(0, size, step): os.write(fd, b"y" * min(step, size - at))
    os.fsync(fd); os.close(fd)
"""

READS = (
    COMMON
    + """
names = ["cold", "warm", "twice", "small", "whole", "random", "sent", "tail", "one"]
for name in names: make(name)
make("other")
keep("warm")
go()
read("cold", 1 << 17); forget("cold")
read("warm", 1 << 17)
read("twice", 1 << 17); read("twice", 1 << 17); forget("twice")
read("small", 1000); forget("small")
read("whole", size)
fd = os.open(path("random"), os.O_RDONLY)
places = list(range(0, size, mmap.PAGESIZE)); random.Random(1).shuffle(places)
for at in places: os.pread(fd, mmap.PAGESIZE, at)
out = os.open("/dev/null", os.O_WRONLY); fd = os.open(path("sent"), os.O_RDONLY); done = 0
while done < size: done += os.sendfile(out, fd, done, size - done)
fd = os.open(path("tail"), os.O_RDONLY)
os.pread(fd, size, 0); os.pread(fd, size, size // 2 // mmap.PAGESIZE * mmap.PAGESIZE)
fd = os.open(path("one"), os.O_RDONLY)
for i in range(50): os.pread(fd, 100, 0)
log(what="done"); sys.stdin.readline()
"""
)


@pytest.mark.parametrize("variants", [{}, OLDEST], ids=["newest", "oldest"])
def test_pages_read_are_counted_exactly(disk: Path, variants: dict[str, bool]) -> None:
    with child(READS, str(disk), str(SIZE)) as subject:
        seen, _ = observe(subject, disk, variants=variants)
        for name, accessed, again, added in (
            ("cold", PAGES, 0, PAGES),
            ("warm", PAGES, 0, 0),
            ("twice", 2 * PAGES, PAGES, PAGES),
            ("small", PAGES, 0, PAGES),
            ("whole", PAGES, 0, PAGES),
            ("random", PAGES, 0, PAGES),
            ("sent", PAGES, 0, PAGES),
            ("tail", PAGES + PAGES - SIZE // 2 // mmap.PAGESIZE, PAGES - SIZE // 2 // mmap.PAGESIZE, PAGES),
        ):
            use = seen.use(disk / name)
            assert (use.accessed, use.again) == (accessed, again), name
            assert use.added - use.refaulted == added, name  # memory may be short on this host
            assert (use.dirtied, use.untracked) == (0, 0), name
            assert use.tracked == use.added, name
            assert use.mapped in (0, -1), name
        assert (seen.use(disk / "one").accessed, seen.use(disk / "one").again) == (50, 49)
        for name, one_pass in (("cold", PAGES), ("twice", 0), ("small", PAGES)):
            gone = seen.file((disk / name).stat().st_ino)
            added, refaulted = seen.use(disk / name).added, seen.use(disk / name).refaulted
            assert (gone.reclaimed + gone.dropped, gone.judged, gone.touched_once) == (added, added, 0), name
            assert one_pass <= gone.one_pass <= one_pass + 2 * refaulted, name
        assert seen.file((disk / "whole").stat().st_ino).touched_once == PAGES
        assert seen.file((disk / "tail").stat().st_ino).touched_once == SIZE // 2 // mmap.PAGESIZE
        assert not [use for use in seen.pages.uses if seen.is_file(use.file, (disk / "other").stat().st_ino)]
        named = {file.path for file in seen.capture.files.values()}
        assert {os.fsencode(disk / name) for name in ("cold", "sent", "one")} <= named
        (slot,) = seen.sizes(disk / "whole")
        assert (slot.write, slot.direct, slot.log, slot.count, slot.bytes) == (False, False, 23, 1, SIZE)
        assert sum(slot.bytes for slot in seen.sizes(disk / "small")) == SIZE == seen.use(disk / "small").read_bytes
        assert {slot.log for slot in seen.sizes(disk / "small")} <= {9, 7}


MAPS = (
    COMMON
    + """
for name in ("cold", "warm", "both"): make(name)
keep("warm")
go()
mapped("cold"); forget("cold")
mapped("warm")
mapped("both"); read("both", 1 << 17); forget("both")
log(what="done"); sys.stdin.readline()
"""
)


def test_mapped_pages_are_counted(disk: Path) -> None:
    with child(MAPS, str(disk), str(SIZE)) as subject:
        seen, _ = observe(subject, disk)
        if "filemap:mm_filemap_map_pages" in seen.pages.absent:
            pytest.skip("the kernel does not tell what faults map")
        for name, added in (("cold", PAGES), ("warm", 0), ("both", PAGES)):
            use = seen.use(disk / name)
            assert use.mapped == pytest.approx(PAGES, rel=0.02), name
            assert use.added == added, name
        assert seen.use(disk / "cold").again <= 0.02 * PAGES
        assert seen.use(disk / "both").again == pytest.approx(PAGES, rel=0.02)
        assert seen.file((disk / "cold").stat().st_ino).one_pass == pytest.approx(PAGES, rel=0.02)
        assert seen.file((disk / "both").stat().st_ino).one_pass <= 0.02 * PAGES


WRITES = (
    COMMON
    + """
make("cut"); make("overwritten"); make("direct")
keep("cut")
keep("overwritten")
gone = os.stat(path("cut")).st_ino
go()
write("new"); forget("new")
write("unaligned", 1000); forget("unaligned")
write("read_back"); read("read_back", 1 << 17); forget("read_back")
write("overwritten")
os.truncate(path("cut"), size // 2 // mmap.PAGESIZE * mmap.PAGESIZE)
write("deleted"); log(what="deleted", ino=os.stat(path("deleted")).st_ino); os.unlink(path("deleted"))
buffer = mmap.mmap(-1, 1 << 20)
fd = os.open(path("direct"), os.O_RDWR | os.O_DIRECT)
for at in range(0, 8 << 20, 1 << 20): os.preadv(fd, [buffer], at)
for at in range(0, 4 << 20, 1 << 20): os.pwritev(fd, [buffer], at)
log(what="done"); sys.stdin.readline()
"""
)


@pytest.mark.parametrize("variants", [{}, OLDEST], ids=["newest", "oldest"])
def test_pages_written_dropped_and_passed_by_are_counted_exactly(disk: Path, variants: dict[str, bool]) -> None:
    for name in ("new", "unaligned", "read_back"):
        (disk / name).unlink(missing_ok=True)
    with child(WRITES, str(disk), str(SIZE)) as subject:
        seen, lines = observe(subject, disk, variants=variants)
        for name, accessed, again, added in (
            ("new", 0, 0, PAGES),
            ("unaligned", 0, 0, PAGES),
            ("read_back", PAGES, PAGES, PAGES),
            ("overwritten", 0, 0, 0),
        ):
            use = seen.use(disk / name)
            assert (use.accessed, use.again, use.added) == (accessed, again, added), name
            assert use.dirtied == pytest.approx(PAGES, rel=0.02), name
            assert use.write_bytes == SIZE, name
            assert seen.file((disk / name).stat().st_ino).written_back in (-1, PAGES), name
        for name, one_pass in (("new", PAGES), ("unaligned", PAGES), ("read_back", 0)):
            gone = seen.file((disk / name).stat().st_ino)
            assert (gone.reclaimed + gone.dropped, gone.judged, gone.one_pass) == (PAGES, PAGES, one_pass), name
        cut = seen.file((disk / "cut").stat().st_ino)
        assert (cut.reclaimed + cut.dropped, cut.judged) == (PAGES - SIZE // 2 // mmap.PAGESIZE, 0)
        deleted = seen.file(next(line["ino"] for line in lines if line["what"] == "deleted"))
        assert deleted.reclaimed + deleted.dropped == PAGES
        direct = seen.use(disk / "direct")
        assert (direct.accessed, direct.added, direct.dirtied) == (0, 0, 0)
        assert (direct.read_bytes, direct.write_bytes, direct.direct_bytes) == (8 << 20, 4 << 20, 12 << 20)
        told = {(slot.write, slot.direct, slot.log, slot.count) for slot in seen.sizes(disk / "direct")}
        assert told == {(False, True, 20, 8), (True, True, 20, 4)}


LAYERED = (
    COMMON
    + """
make("seen"); os.stat(path("seen"))
go()
read("seen", 1 << 17)
write("made")
log(what="done"); sys.stdin.readline()
"""
)


def test_a_file_of_a_layered_file_system_is_one_file(disk: Path, tmp_path: Path) -> None:
    """A container's root: the pages are of a file below, the calls of the one that the process sees."""
    layers = [disk / name for name in ("lower", "upper", "work")]
    for layer in layers:
        layer.mkdir()
    lower, upper, work = layers
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    try:
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(tmp_path)], check=True)
    except subprocess.CalledProcessError:
        pytest.skip("overlayfs cannot be mounted here")
    try:
        with child(LAYERED, str(tmp_path), str(SIZE)) as subject:
            seen, _ = observe(subject, disk)
        for name, accessed, dirtied in (("seen", PAGES, 0), ("made", 0, PAGES)):
            (use,) = [use for use in seen.pages.uses if seen.is_file(use.file, (upper / name).stat().st_ino)]
            assert (use.tgid, use.added, use.accessed, use.dirtied) == (seen.pid, PAGES, accessed, dirtied)
            assert (use.read_bytes, use.write_bytes) == ((SIZE, 0) if accessed else (0, SIZE))
            assert use.file is not None
            assert seen.capture.files[use.file].path == os.fsencode(tmp_path / name)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


NEIGHBOUR = (
    COMMON
    + """
make(sys.argv[3])
go()
read(sys.argv[3], 1 << 17)
log(what="done"); sys.stdin.readline()
"""
)


def test_what_a_neighbour_does_is_told_beside_a_target(disk: Path) -> None:
    """Through the engine, as a tool gets it; whoever fills the cache is often not the one who suffers."""
    arguments = (str(disk), str(SIZE))
    with child(NEIGHBOUR, *arguments, "mine") as subject, child(NEIGHBOUR, *arguments, "theirs") as other:
        engine = EbpfEngine()
        try:
            engine.load({"page_cache": Options()}, Target(everything=False, pid=subject.pid, pids=[subject.pid]))
            engine.start()
            for one in (subject, other):
                one.go()
                one.until("done")
            capture = engine.read()["page_cache"]
        finally:
            engine.close()
    assert capture.proven
    assert capture.lost == 0
    paths = {row["file"]: row["path"] for row in capture.tables["files"].to_dicts()}
    found = {
        (row["pid"], paths[row["file"]]): (row["accessed"], row["added"], row["read_bytes"])
        for row in capture.tables["use"].to_dicts()
        if row["file"] >= 0
    }
    assert found[subject.pid, str(disk / "mine")] == (PAGES, PAGES, SIZE)
    assert found[other.pid, str(disk / "theirs")] == (PAGES, PAGES, SIZE)
    assert not [pid for pid, _ in found if pid == os.getpid()]
    kept = {paths[row["file"]]: row for row in capture.tables["evictions"].to_dicts()}
    assert kept[str(disk / "theirs")]["tracked"] == PAGES
    sizes = capture.tables["sizes"]
    assert sizes.filter(pid=other.pid)["bytes"].sum() >= SIZE
