"""A format of accelerator profiles, as `whystall.tools.timeline.profiles` registers it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from whystall.tools.files.formats import Format, Head
from whystall.tools.timeline.profile import Profile

_RANK = re.compile(r"(?:rank[_-]?|_profiler_)([0-9]{1,6})(?![0-9])", re.IGNORECASE)


@dataclass(frozen=True)
class ProfileFormat(Format[Profile]):
    """`rank`: the rank known before the file is read, -1 unknown. `listed`: whether a file found below a directory may
    be a profile of its own; a file named by the user always may. `only_collectives`: it holds how ranks communicate,
    at most with sums of their work, not what they or their devices work on. `directory`: it is a directory, not a file.

    `read_ranks`: for files that may hold several ranks, the profile of each, in the order of their ranks; `read`
    returns all of them as one, or refuses several. `together`: names what those files of a directory have in common of
    which any one reads all; empty: it is read alone."""

    rank: Callable[[Head], int]
    listed: Callable[[Head], bool]
    only_collectives: bool = False
    directory: bool = False
    read_ranks: Callable[[Path], list[Profile]] | None = None
    together: Callable[[Head], str] = lambda head: ""


def rank_in_name(name: str) -> int:
    """Return the rank in a file's name (``rank3.json``, ``ascend_pytorch_profiler_3.db``), -1 if there is none."""
    found = _RANK.search(name)
    return int(found.group(1)) if found else -1
