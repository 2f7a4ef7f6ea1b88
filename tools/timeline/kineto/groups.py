"""Process groups in a Kineto trace: ``distributedInfo.pg_config``, and what collectives state about their group.

    "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 8,
                   "ranks": [0, 1, 2, 3, 4, 5, 6, 7]}]

``ranks`` may be a list, a text of one, cut short (``[0, 1, ...]``: PyTorch prints at most 30), or missing. A name is
not unique in a job (``split_group``), so a group is its name with its ranks (`collectives.group_key`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

from whystall.tools.timeline.collectives import GROUPS, group_key
from whystall.tools.timeline.profile_reading.groups import RANK_LIMIT, Group, number, ranks_of, text

_CUT = re.compile(r"\[[0-9,\s]*\.\.\.\s*\]")


class Mentioned(NamedTuple):
    """A collective's statement about its group. `ranks` as in the trace; `first`, `stride`: of its global ranks."""

    name: str = ""
    description: str = ""
    ranks: str = ""
    size: int = -1
    first: int = -1
    stride: int = -1


class Groups:
    """The groups of one rank's trace: the configured ones, then those its collectives mention.

    `odd` counts entries of the configuration that could not be read.
    """

    def __init__(self, info: object) -> None:
        """Args: `info`: the file's ``distributedInfo``, of any type."""
        self.odd = 0
        self._found: dict[str, Group] = {}
        self._named: dict[str, list[Group]] = {}
        self._known: dict[Mentioned, Group | None] = {}
        content = info if isinstance(info, dict) else {}
        self.world_size = number(content.get("world_size"), RANK_LIMIT)
        self.rank = number(content.get("rank"), RANK_LIMIT)
        self.backend = text(content.get("backend"))
        entries = content.get("pg_config")
        if isinstance(entries, dict):
            entries = list(entries.values())
        if not isinstance(entries, list):
            self.odd += entries is not None
            entries = []
        for entry in entries:
            self._configured(entry)
        self.configured = tuple(self._found.values())
        """In the order they were created."""

    def of(self, mentioned: Mentioned) -> str:
        """Return the key of the group a collective ran in, empty if the collective does not state it."""
        if mentioned not in self._known:
            self._known[mentioned] = self._resolved(mentioned)
        group = self._known[mentioned]
        return "" if group is None else group.key

    def frame(self, used: Iterable[str] = ()) -> pl.DataFrame:
        """Return the table `GROUPS`: the configured ones, and of those mentioned the ones in `used`."""
        keys = dict.fromkeys([*(group.key for group in self.configured), *used])
        rows = [
            (group.key, group.name, group.description, list(group.ranks), group.size)
            for key in keys
            if (group := self._found.get(key)) is not None
        ]
        return pl.DataFrame(rows, schema=GROUPS, orient="row")

    def _configured(self, entry: object) -> None:
        if not isinstance(entry, dict) or not isinstance(entry.get("pg_name"), (str, int)):
            self.odd += 1
            return
        ranks = ranks_of(entry.get("ranks"))
        if ranks is None:
            self.odd += not _cut(entry.get("ranks")) and entry.get("ranks") is not None
            ranks = ()
        size = number(entry.get("pg_size"), RANK_LIMIT)
        if not ranks and size > 0 and size == self.world_size:
            ranks = tuple(range(size))
        self._add(
            text(entry["pg_name"]),
            text(entry.get("pg_desc")),
            ranks,
            len(ranks) or size,
            text(entry.get("backend_config")) or self.backend,
        )

    def _add(self, name: str, description: str, ranks: tuple[int, ...], size: int, backend: str = "") -> Group:
        group = Group(group_key(name, ranks), name, description, ranks, size, backend)
        if group.key not in self._found:
            self._named.setdefault(name, []).append(group)
        return self._found.setdefault(group.key, group)

    def _resolved(self, stated: Mentioned) -> Group | None:
        ranks = ranks_of(stated.ranks) or ()
        if not ranks and stated.first >= 0 and stated.stride > 0 and 0 < stated.size <= RANK_LIMIT:
            ranks = tuple(range(stated.first, stated.first + stated.size * stated.stride, stated.stride))
        if not stated.name and not ranks:
            return None
        named = self._named.get(stated.name, [])
        # The configuration has all ranks where the text is cut short.
        fitting = [group for group in named if group.ranks == ranks] if ranks else named
        if not ranks and len(fitting) != 1:
            fitting = [group for group in named if stated.size in (-1, group.size)]
        if len(fitting) == 1:
            return fitting[0]
        if not ranks and 0 < stated.size == self.world_size:
            ranks = tuple(range(stated.size))
        return self._add(stated.name, stated.description, ranks, len(ranks) or stated.size)


def _cut(value: object) -> bool:
    return isinstance(value, str) and _CUT.fullmatch(value.strip()) is not None
