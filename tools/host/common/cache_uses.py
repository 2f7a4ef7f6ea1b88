"""Count what each process did with which files in the page cache, in base pages.

A *series* is the files of one process whose paths differ only in numbers (shards, checkpoints); it is one row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from whystall.tools.contract.text import path_pattern, path_series
from whystall.tools.recording.store import Recording

RESIDENCY = "residency"
UNKNOWN_FILE = "[file]"
_Row = dict[str, Any]


@dataclass
class Use:
    """What a process did with a series of files, and what happened to the pages of those files.

    Not every kernel reports everything (see `tables.PAGE_CACHE`): `known`: requested pages; `mapped_known`: pages
    touched through mappings (6.12 and later); `once_known`: how often pages were used. `faulted`: had page faults that
    read from storage, or unknown. `recent`: added pages that the kernel reports as evicted shortly before the window.
    `parts`: the uses that a merged use consists of.
    """

    pid: int
    comm: str
    path: str = ""
    example: str = ""
    filesystem: str = ""
    files: set[int] = field(default_factory=set)
    known: bool = True
    mapped_known: bool = True
    once_known: bool = True
    faulted: bool = True
    accessed: int = 0
    mapped: int = 0
    again: int = 0
    added: int = 0
    refaulted: int = 0
    dirtied: int = 0
    direct_bytes: int = 0
    reclaimed: int = 0
    dropped: int = 0
    judged: int = 0
    one_pass: int = 0
    touched_once: int = 0
    tracked: int = 0
    untracked: int = 0
    written_back: int | None = 0
    recent: int = 0
    cached_bytes: int | None = None
    parts: list[Use] = field(default_factory=list)

    @property
    def touched(self) -> int:
        """Return pages requested by calls plus pages touched through mappings."""
        return self.accessed + self.mapped

    @property
    def distinct(self) -> int | None:
        """Return the number of different pages touched; None if unknown."""
        return max(0, self.touched - self.again) if self.known and self.mapped_known else None

    @property
    def hit_pct(self) -> float | None:
        """Return the share of touched pages that were cached, percent.

        None if the process also wrote (added pages cannot be attributed to reads or writes), or if mappings may have
        added pages that are not reported. Readahead may add more than is requested. For a merged use: over the parts
        for which it is known, if these are most of it.
        """
        if self.parts:
            known = [(part.touched, hit) for part in self.parts if (hit := part.hit_pct) is not None]
            touched = sum(pages for pages, _ in known)
            if not touched or 2 * touched < self.touched:
                return None
            return sum(pages * hit for pages, hit in known) / touched
        if not self.known or not self.touched or (self.dirtied and self.added):
            return None
        if not self.mapped_known and self.faulted and self.added:
            return None
        return 100 * (1 - min(self.added, self.touched) / self.touched)

    @property
    def judged_pct(self) -> float | None:
        """Return the share of the pages added to these files whose touches were tracked, percent."""
        followed = self.tracked + self.untracked
        return 100 * self.tracked / followed if self.once_known and followed else None

    @property
    def one_pass_pct(self) -> float | None:
        """Return the share of the tracked pages that were touched at most once before eviction, or so far, percent.

        Repeated use through an existing mapping causes no event. Mapped files are therefore judged by the pages that
        reclaim took, if these are most: reclaim had not seen them used either.
        """
        if not self.once_known or not self.tracked:
            return None
        if self.mapped:
            mostly = self.reclaimed > 0 and 2 * self.reclaimed >= self.added
            return min(100.0, 100 * self.one_pass / max(self.judged, 1)) if mostly else None
        return min(100.0, 100 * (self.one_pass + self.touched_once) / self.tracked)

    @property
    def back(self) -> int:
        """Return the number of added pages that were certainly evicted shortly before, in the window or before it."""
        return min(self.added, max(self.refaulted, self.recent))

    @property
    def refault_pct(self) -> float | None:
        """Return `back` in percent of the added pages."""
        return 100 * self.back / self.added if self.added else None

    @property
    def operations(self) -> str:
        """Return how it used the cache: read, write, mapped, joined by ``+``."""
        parts = [("read", self.accessed), ("write", self.dirtied), ("mapped", self.mapped)]
        return "+".join(name for name, pages in parts if pages > 0) or ("read" if self.added else "")


def uses_of(
    uses: pl.DataFrame,
    evictions: pl.DataFrame,
    files: dict[int, _Row],
    cached: dict[tuple[str, int], _Row],
    faults: dict[int, int],
    page: int,
) -> list[Use]:
    """Return the uses per process and series, most pages added first."""
    left = {r["file"]: r for r in evictions.iter_rows(named=True)}
    found: dict[tuple[int, str], Use] = {}
    most: dict[tuple[int, str], tuple[int, str]] = {}
    paths: dict[tuple[int, str], set[str]] = {}
    for row in uses.iter_rows(named=True):
        file = files.get(row["file"])
        path = file["path"] if file else UNKNOWN_FILE
        key = (row["pid"], path_pattern(path))
        use = found.setdefault(key, Use(row["pid"], row["comm"], filesystem=file["fstype"] if file else ""))
        first_seen = row["file"] not in use.files
        use.files.add(row["file"])
        paths.setdefault(key, set()).add(path)
        use.known &= row["accessed"] >= 0
        use.mapped_known &= row["mapped"] >= 0
        use.faulted = faults.get(row["pid"], 1) > 0
        for name in ("accessed", "mapped", "again", "added", "refaulted", "dirtied", "direct_bytes"):
            setattr(use, name, getattr(use, name) + max(0, row[name]))
        gone = left.get(row["file"])
        if gone and first_seen:
            use.once_known &= min(gone["one_pass"], gone["touched_once"], gone["tracked"]) >= 0
            for name in ("reclaimed", "dropped", "judged", "one_pass", "touched_once", "tracked", "untracked"):
                setattr(use, name, getattr(use, name) + max(0, gone[name]))
            reported = gone["written_back"] >= 0 and use.written_back is not None
            use.written_back = (use.written_back or 0) + gone["written_back"] if reported else None
        resident = cached.get((file["dev"], file["ino"])) if file else None
        if resident and first_seen:
            if resident["end"] is not None:
                use.cached_bytes = (use.cached_bytes or 0) + resident["end"]
            # Pages newly written, or dropped and read again, were not evicted.
            other = max(0, row["dirtied"]) + (max(0, gone["dropped"]) if gone else 0)
            use.recent += max(0, row["added"] - other - resident["fresh"] // page)
        size = max(row["added"], row["accessed"], row["dirtied"], row["direct_bytes"] // page)
        most[key] = max(most.get(key, (-1, "")), (size, path))
    for key, use in found.items():
        use.path, use.example = path_series(paths[key]), most[key][1]
    return sorted(found.values(), key=lambda u: (-max(u.added, u.touched, u.dirtied), u.pid, u.path))


def faults_of(processes: pl.DataFrame) -> dict[int, int]:
    """Return major page faults per process that was counted twice."""
    counts: dict[int, list[int]] = {}
    for row in processes.iter_rows(named=True):
        counts.setdefault(row["pid"], []).append(row["major_faults"])
    return {pid: max(faults) - min(faults) for pid, faults in counts.items() if len(faults) > 1}


def residency_of(recording: Recording) -> dict[tuple[str, int], _Row]:
    """Return by (device, inode): `end`, bytes cached at the end, and `fresh`, the bytes not cached at the start (or
    added since) that were not recently evicted. Reading more than `fresh` means reading evicted pages again."""
    tables = recording.tables()
    rows, files = tables.get(f"{RESIDENCY}.open_files"), tables.get(f"{RESIDENCY}.files")
    if rows is None or files is None or rows.is_empty():
        return {}
    inodes = {r["file"]: (r["dev"], r["ino"]) for r in files.iter_rows(named=True)}
    half = recording.manifest.window_ns // 2  # one reading at the start, one at the end; a file may be open at only one
    found: dict[tuple[str, int], _Row] = {}
    begun: dict[tuple[str, int], tuple[int, int]] = {}
    for row in rows.sort("at_ns").iter_rows(named=True):
        inode = inodes.get(row["file"])
        if inode is None or row["cached_bytes"] < 0:
            continue
        known = found.setdefault(inode, {"end": None, "fresh": 1 << 62})
        if row["at_ns"] <= half and row["recently_evicted_bytes"] >= 0:
            fresh = max(0, row["size_bytes"] - row["cached_bytes"] - row["recently_evicted_bytes"])
            begun[inode] = (row["size_bytes"], fresh)
        if row["at_ns"] > half:
            known["end"] = row["cached_bytes"]
            if inode in begun:  # otherwise its growth is unknown
                size, fresh = begun[inode]
                known["fresh"] = fresh + max(0, row["size_bytes"] - size)
    return found
