"""Faults of stock BCC tools on some kernels, each with its source.

A tool is a Python script: the host's copy is fixed if it contains a word that the fix added.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_MOST = 1 << 20


@dataclass(frozen=True)
class KnownFault:
    """`tool` on kernels from `since` (inclusive) to `until` (exclusive), unless its text holds `mended`.

    `poor`: it is right as far as it goes, and our own program tells more; it is taken only where that fails.
    """

    tool: str
    reason: str
    source: str
    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = (1000, 0)
    mended: str = ""
    poor: bool = False


KNOWN_FAULTS: tuple[KnownFault, ...] = (
    KnownFault(
        "biolatency",
        "attaches to blk_account_io_done, which the compiler inlines",
        "iovisor/bcc#3744, #4261, #4950; kernel be6bfe36db17 (5.16), 450b7879e345 (5.17); fails on Debian's 6.1",
        since=(5, 16),
        mended="block_io_done",
    ),
    KnownFault(
        "hardirqs",
        "keeps beginnings by thread: idle CPUs, all thread 0, take each other's, and time is lost",
        "iovisor/bcc#3740 of December 2021",
        mended="entry_key",
    ),
    KnownFault(
        "softirqs",
        "keeps beginnings by thread: idle CPUs, all thread 0, take each other's, and time is lost",
        "iovisor/bcc#2786, #2804 of March 2020",
        mended="entry_key",
    ),
    KnownFault(
        "cachestat",
        "counts add_to_page_cache_lru and mark_page_accessed, which reads no longer call: misses are always 0",
        "iovisor/bcc#5144; kernels 76580b65e7b8 and 9dd3d069406c of 5.16",
        since=(5, 16),
        mended="filemap_add_folio",
    ),
    KnownFault(
        "cachestat",
        "counts calls of the whole host: no file, no process, and a large folio as one page",
        "tools/cachestat.py",
        poor=True,
    ),
    KnownFault(
        "fileslower",
        "sees reads and writes only, no fsync, and the last part of a path",
        "tools/fileslower.py; its man page",
        poor=True,
    ),
    KnownFault(
        "offcputime",
        "tells stacks and their sums: no state, no file, no single wait, nothing of a thread that does not run again",
        "tools/offcputime.py",
        poor=True,
    ),
)


def broken(tool: str, path: str, kernel: tuple[int, int]) -> str | None:
    """Return why `tool`, installed at `path`, gives wrong results on `kernel`; None if no fault is known."""
    return _reason(tool, path, kernel, poor=False)


def poor(tool: str, path: str, kernel: tuple[int, int]) -> str | None:
    """What `tool` cannot tell that our own program does; None where it tells as much."""
    return _reason(tool, path, kernel, poor=True)


def kernel_of(release: str) -> tuple[int, int]:
    """(6, 1) of ``6.1.0-50-amd64``; (0, 0) of what is no release."""
    major, _, rest = release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


def _reason(tool: str, path: str, kernel: tuple[int, int], *, poor: bool) -> str | None:
    for known in KNOWN_FAULTS:
        if known.tool != tool or known.poor is not poor or not known.since <= kernel < known.until:
            continue
        if not known.mended or known.mended not in _text(path):
            return known.reason
    return None


@lru_cache(maxsize=16)
def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return ""
