"""The collector ``page_cache`` of the ``ebpf`` engine: its tables and its proof."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import polars as pl

from whystall.bpf import layout
from whystall.bpf.capture import Capture as BpfCapture
from whystall.bpf.capture import FileKey
from whystall.bpf.capture_pages import Pages
from whystall.bpf.collectors.page_cache import PageCache
from whystall.bpf.session import Session
from whystall.tools.collect.ebpf_collector import EbpfCollector, SessionResult, disk_name, losses
from whystall.tools.collect.ebpf_decode import Files
from whystall.tools.collect.proc_maps import mapped_file
from whystall.tools.collect.tables import PAGE_CACHE, filled
from whystall.tools.contract.text import clean
from whystall.tools.recording.collector import Capture, Options


class PageCacheCollector(EbpfCollector):
    """Proven by a page of our own that was added to the cache."""

    name = "page_cache"
    losses = frozenset({"page_uses_full", "page_files_full", "stalls_full", "sizes_full"})

    def __init__(self, wanted: Mapping[str, Options]) -> None:
        self.kernel = PageCache()

    def started(self, session: Session) -> None:
        """Add a page of our own to the cache."""
        cause_page_events(session)

    def capture(self, result: SessionResult) -> Capture:
        """Return the tables."""
        raw = result.raw
        return page_capture(raw.of(Pages), raw, Files(raw, mapped_file), disk_name, losses(raw, self.name))


def page_capture(pages: Pages, raw: BpfCapture, files: Files, disk: Callable[[int], str], lost: int) -> Capture:
    """Return the capture of `pages`; proven by a page of our own that was added to the cache."""
    return Capture(
        tables=page_tables(pages, raw, files, disk),
        hooks=list(raw.hooks),
        seen=raw.seen["pages"],
        kept=0,
        lost=lost,
        proven=raw.seen["self_added"] > 0,
        not_seen=[("event_absent", event) for event in pages.absent],
    )


def page_tables(pages: Pages, raw: BpfCapture, files: Files, disk: Callable[[int], str]) -> dict[str, pl.DataFrame]:
    """Return the tables of `page_cache`; `disk` names a kernel device number."""

    def number(key: FileKey | None) -> int:
        if key is not None and not key.ino:
            return files.block_device(key.dev, disk(key.dev))
        return files.of(key, regular=True)

    def comm(tid: int) -> str:
        thread = raw.threads.get(tid)
        return clean(thread.comm) if thread is not None else ""

    # Not every kernel reports what faults map; without it the use of a page is unknown.
    faults_known = all(use.mapped >= 0 for use in pages.uses)
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
        once = (found.one_pass, found.touched_once) if faults_known else (-1, -1)
        eviction_rows.append(
            (
                number(key), found.reclaimed, found.dropped, found.judged, *once, tracked, untracked,
                found.written_back,
            )
        )  # fmt: skip
    stall_rows = [
        (
            s.tgid, s.tid, comm(s.tid), s.what, number(s.file), s.count, s.total_ns, s.max_ns, s.pages, s.longest_at,
            s.in_flight,
        )
        for s in pages.stalls
    ]  # fmt: skip
    size_rows = [
        (number(z.file), z.tgid, "write" if z.write else "read", z.direct, 1 << z.log, 2 << z.log, z.count, z.bytes)
        for z in pages.sizes
    ]
    tables = filled(PAGE_CACHE, use=use_rows, evictions=eviction_rows, stalls=stall_rows, sizes=size_rows)
    return tables | {"files": files.table()}


def cause_page_events(session: Session) -> None:
    """Add a page of one of our files to the cache: drop it, then read it. Dropping is harmless, as the kernel keeps
    pages that are mapped, dirty or in use."""
    for path in (__file__, os.__file__, layout.__file__):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(file.fileno(), 1, 0)
        if any(session.counters()["self_added"]):
            return
