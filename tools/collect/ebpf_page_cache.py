"""The collector ``page_cache``: from what the kernel side saw of the page cache to columns, and its proof of life."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import polars as pl

from whystall.bpf import layout
from whystall.bpf.capture import Capture as Seen
from whystall.bpf.capture import FileKey
from whystall.bpf.capture_pages import Pages
from whystall.bpf.collectors.page_cache import PageCache
from whystall.bpf.session import Session
from whystall.tools.collect.ebpf_collector import EbpfCollector, Found, disk_name, losses
from whystall.tools.collect.ebpf_decode import Files
from whystall.tools.collect.proc_maps import mapped_file
from whystall.tools.collect.tables import PAGE_CACHE
from whystall.tools.contract.text import clean
from whystall.tools.recording.collector import Capture, Options


class PageCacheCollector(EbpfCollector):
    """Proven by a page of our own that came into the cache."""

    name = "page_cache"
    losses = frozenset({"page_uses_full", "page_files_full", "stalls_full", "sizes_full"})

    def __init__(self, wanted: Mapping[str, Options]) -> None:
        self.kernel = PageCache()

    def started(self, session: Session) -> None:
        """Put a page of our own into the cache."""
        cause_page_events(session)

    def capture(self, found: Found) -> Capture:
        """Return the tables."""
        seen = found.seen
        return page_capture(seen.of(Pages), seen, Files(seen, mapped_file), disk_name, losses(seen, self.name))


def page_capture(pages: Pages, seen: Seen, files: Files, disk: Callable[[int], str], lost: int) -> Capture:
    """Columns of what the session saw of the page cache. Proven by a page of our own that came into the cache."""
    return Capture(
        tables=page_tables(pages, seen, files, disk),
        hooks=list(seen.hooks),
        seen=seen.seen["pages"],
        kept=0,
        lost=lost,
        proven=seen.seen["self_added"] > 0,
        not_seen=[("event_absent", event) for event in pages.absent],
    )


def page_tables(pages: Pages, seen: Seen, files: Files, disk: Callable[[int], str]) -> dict[str, pl.DataFrame]:
    """Tables of the collector; `disk` names a kernel device number. Pure."""

    def number(key: FileKey | None) -> int:
        if key is not None and not key.ino:
            return files.block_device(key.dev, disk(key.dev))
        return files.of(key, regular=True)

    def called(tid: int) -> str:
        thread = seen.threads.get(tid)
        return clean(thread.comm) if thread is not None else ""

    # What faults map is not told on every kernel; there, whether a page was used once is not known.
    whole = all(use.mapped >= 0 for use in pages.uses)
    use_rows = [
        (
            number(u.file), u.tgid, clean(u.comm), u.accessed, u.mapped, u.again, u.added, u.refaulted, u.dirtied,
            u.direct_bytes, u.read_bytes, u.write_bytes,
        )
        for u in pages.uses
    ]  # fmt: skip
    followed: dict[FileKey, tuple[int, int]] = {}
    for u in pages.uses:
        if u.file is not None:
            tracked, untracked = followed.get(u.file, (0, 0))
            followed[u.file] = (tracked + u.tracked, untracked + u.untracked)
    rows = {f.file: f for f in pages.files}
    eviction_rows = []
    for key in {**dict.fromkeys(rows), **dict.fromkeys(followed)}:
        tracked, untracked = followed.get(key, (0, 0))
        found = rows.get(key)
        if found is None:
            eviction_rows.append((number(key), 0, 0, 0, 0, 0, tracked, untracked, -1 if not key.ino else 0))
            continue
        once = (found.one_pass, found.touched_once) if whole else (-1, -1)
        eviction_rows.append(
            (
                number(key), found.reclaimed, found.dropped, found.judged, *once, tracked, untracked,
                found.written_back,
            )
        )  # fmt: skip
    stall_rows = [
        (
            s.tgid, s.tid, called(s.tid), s.what, number(s.file), s.count, s.total_ns, s.max_ns, s.pages, s.longest_at,
            s.in_flight,
        )
        for s in pages.stalls
    ]  # fmt: skip
    size_rows = [
        (number(z.file), z.tgid, "write" if z.write else "read", z.direct, 1 << z.log, 2 << z.log, z.count, z.bytes)
        for z in pages.sizes
    ]
    return {
        "use": pl.DataFrame(use_rows, schema=PAGE_CACHE["use"], orient="row"),
        "evictions": pl.DataFrame(eviction_rows, schema=PAGE_CACHE["evictions"], orient="row"),
        "stalls": pl.DataFrame(stall_rows, schema=PAGE_CACHE["stalls"], orient="row"),
        "sizes": pl.DataFrame(size_rows, schema=PAGE_CACHE["sizes"], orient="row"),
        "files": files.table(),
    }


def cause_page_events(session: Session) -> None:
    """Put a page of a file of our own into the cache: it is first given back (which harms nobody, since the kernel
    keeps what is mapped, dirty or in use), then read. Nothing is written.
    """
    for path in (__file__, os.__file__, layout.__file__):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(file.fileno(), 1, 0)
        if any(session.counters()["self_added"]):
            return
