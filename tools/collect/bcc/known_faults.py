"""Faults of stock BCC tools on some kernels, each with its source.

A tool is a Python script: the host's copy is fixed if it contains a name that the fix added.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_MOST = 1 << 20


@dataclass(frozen=True)
class KnownFault:
    """A fault of `tool` on kernels from `since` to before `until`, unless its text contains `fixed_by`.

    `limited`: its results are right, but our own program reports more; the tool is used only if that fails.
    """

    tool: str
    reason: str
    source: str
    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = (1000, 0)
    fixed_by: str = ""
    limited: bool = False


KNOWN_FAULTS: tuple[KnownFault, ...] = (
    KnownFault(
        "biolatency",
        "attaches to blk_account_io_done, which the compiler inlines",
        "iovisor/bcc#3744, #4261, #4950; kernel be6bfe36db17 (5.16), 450b7879e345 (5.17); fails on Debian's 6.1",
        since=(5, 16),
        fixed_by="block_io_done",
    ),
    KnownFault(
        "hardirqs",
        "keys start times by thread: idle CPUs, all thread 0, overwrite each other's, and time is lost",
        "iovisor/bcc#3740 of December 2021",
        fixed_by="entry_key",
    ),
    KnownFault(
        "softirqs",
        "keys start times by thread: idle CPUs, all thread 0, overwrite each other's, and time is lost",
        "iovisor/bcc#2786, #2804 of March 2020",
        fixed_by="entry_key",
    ),
    KnownFault(
        "cachestat",
        "counts add_to_page_cache_lru and mark_page_accessed, which reads no longer call: misses are always 0",
        "iovisor/bcc#5144; kernels 76580b65e7b8 and 9dd3d069406c of 5.16",
        since=(5, 16),
        fixed_by="filemap_add_folio",
    ),
    KnownFault(
        "cachestat",
        "counts calls of the whole host: no file, no process, and a large folio as one page",
        "tools/cachestat.py",
        limited=True,
    ),
    KnownFault(
        "fileslower",
        "sees reads and writes only, no fsync, and the last part of a path",
        "tools/fileslower.py; its man page",
        limited=True,
    ),
    KnownFault(
        "offcputime",
        "reports sums per stack: no state, no file, no single wait, nothing of a thread that does not run again",
        "tools/offcputime.py",
        limited=True,
    ),
)


def broken(tool: str, path: str, kernel: tuple[int, int]) -> str | None:
    """Return why `tool`, installed at `path`, gives wrong results on `kernel`; None if no fault is known."""
    return _reason(tool, path, kernel, limited=False)


def limited(tool: str, path: str, kernel: tuple[int, int]) -> str | None:
    """Return what our own program reports and `tool` does not; None if it reports as much."""
    return _reason(tool, path, kernel, limited=True)


def kernel_of(release: str) -> tuple[int, int]:
    """Return (6, 1) of ``6.1.0-50-amd64``; (0, 0) if it is no release."""
    major, _, rest = release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


def _reason(tool: str, path: str, kernel: tuple[int, int], *, limited: bool) -> str | None:
    for known in KNOWN_FAULTS:
        if known.tool != tool or known.limited is not limited or not known.since <= kernel < known.until:
            continue
        if not known.fixed_by or known.fixed_by not in _text(path):
            return known.reason
    return None


@lru_cache(maxsize=16)
def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return ""
