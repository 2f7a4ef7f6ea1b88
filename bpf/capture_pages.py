"""The page cache in one window, decoded from the maps of ``src/page*.bpf.h``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from whystall.bpf import layout as lay
from whystall.bpf.capture import FileKey


class PageUse(NamedTuple):
    """Use of one file by one process, in pages; -1: unknown on this kernel."""

    file: FileKey | None
    """None: several files that did not fit. Inode 0: the block device ``dev`` itself."""
    tgid: int
    """0: kernel threads."""
    comm: bytes
    accessed: int
    mapped: int
    again: int
    added: int
    refaulted: int
    dirtied: int
    tracked: int
    untracked: int
    direct_bytes: int
    read_bytes: int
    write_bytes: int


class PageFile(NamedTuple):
    """Pages of one file that left the cache, and pages added in the window, still there and used at most once
    (``touched_once``); -1: unknown."""

    file: FileKey
    reclaimed: int
    dropped: int
    judged: int
    one_pass: int
    touched_once: int
    written_back: int


@dataclass(frozen=True)
class Stall:
    """All stalls of one kind of one thread, on one file where that is known."""

    file: FileKey | None
    tgid: int
    tid: int
    what: str
    count: int
    total_ns: int
    max_ns: int
    longest_at: int
    pages: int
    in_flight: bool


@dataclass(frozen=True)
class SizeSlot:
    """Reads or writes of one process on one file that moved 2^log bytes or more, and less than twice that."""

    file: FileKey
    tgid: int
    write: bool
    direct: bool
    log: int
    count: int
    bytes: int


@dataclass(frozen=True)
class Pages:
    """The page cache in one window."""

    uses: list[PageUse]
    files: list[PageFile]
    stalls: list[Stall]
    sizes: list[SizeSlot]
    absent: list[str]
    reads_reported: bool


def _key(ino: int, dev: int, gen: int) -> FileKey | None:
    return FileKey(dev, ino, gen) if dev else None


def touched_once(items: lay.Items) -> dict[FileKey, int]:
    """Count, from map page_chunks, the pages added in the window, still there and used at most once."""
    key, words = lay.unpacker(lay.ChunkKey), 8 * lay.CHUNK_WORDS
    added, more = lay.PageChunk.added.offset, lay.PageChunk.more.offset
    counts: dict[FileKey, int] = {}
    for k, v in items:
        there = int.from_bytes(v[added : added + words], "little")
        there &= ~int.from_bytes(v[more : more + words], "little")
        ino, dev, gen, _ = key.unpack(k)
        file = FileKey(dev, ino, gen)
        counts[file] = counts.get(file, 0) + bin(there).count("1")
    return counts


def uses(items: lay.Items, maps_reported: bool) -> list[PageUse]:
    """Return the rows of the maps page_uses; `maps_reported`: whether the kernel reports pages that faults map."""
    rows = []
    for (ino, dev, gen, tgid, _), value in lay.decode(items, lay.UseKey, lay.PageUse):
        (
            accessed, mapped, again, added, refaulted, dirtied, tracked, untracked, direct, read, written, comm,
        ) = value  # fmt: skip
        rows.append(
            PageUse(
                _key(ino, dev, gen), tgid, comm.split(b"\0", 1)[0], accessed, mapped if maps_reported else -1,
                again, added, refaulted, dirtied, tracked, untracked, direct, read, written,
            )
        )  # fmt: skip
    return rows


def files(items: lay.Items, once: dict[FileKey, int], writes_reported: bool) -> list[PageFile]:
    """Return the rows of map page_files with the counts `once`; `writes_reported`: whether the kernel reports bios."""
    rows = []
    for (ino, dev, gen), value in lay.decode(items, lay.FileKey, lay.PageFile):
        reclaimed, dropped, judged, one_pass, written, flags = value
        file = FileKey(dev, ino, gen)
        if not writes_reported or flags & lay.PAGE_FILE_NO_DISK or not ino:
            written = -1
        rows.append(PageFile(file, reclaimed, dropped, judged, one_pass, once.pop(file, 0), written))
    left = (PageFile(file, 0, 0, 0, 0, count, 0 if writes_reported else -1) for file, count in once.items())
    return rows + list(left)


def stalls(items: lay.Items) -> list[Stall]:
    """Return the rows of map stall_totals."""
    rows = []
    for (ino, dev, gen, tgid, tid, what, _), value in lay.decode(items, lay.StallKey, lay.StallTotal):
        count, total, longest, at, pages, open_ = value
        file, kind = _key(ino, dev, gen), lay.STALLS[what]
        rows.append(Stall(file, tgid, tid, kind, count, total, longest, at, pages, bool(open_)))
    return rows


def sizes(items: lay.Items) -> list[SizeSlot]:
    """Return the rows of the maps size_totals."""
    return [
        SizeSlot(FileKey(dev, ino, gen), tgid, bool(write), bool(direct), log, *value)
        for (ino, dev, gen, tgid, write, direct, log, _), value in lay.decode(items, lay.SizeKey, lay.SizeTotal)
    ]
