"""Process groups of Ascend profiles: names, their hashes, and the ranks if the profiler's metadata has them.

``parallel_group_info`` maps the communicator's name to ``{"group_name", "group_rank", "global_ranks"}``, as in
``{"10.0.0.1%enp_60000_0_1": {"group_name": "default_group", "group_rank": 0, "global_ranks": [0, 1]}}``. The database
refers to a group by that name, ``communication.json`` by a hash of it, and the operation's own name by the last three
digits of the hash: ``hcom_allReduce__586_0_1`` is number 0 in a group that ends in 586.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import polars as pl

from whystall.tools.timeline.collectives import GROUPS, group_key
from whystall.tools.timeline.profile_reading.groups import Group, ranks_of, text

_OPERATION = re.compile(r".*__([0-9]{1,3})_([0-9]{1,18})(?:_[0-9]{1,18})*")
_WORLD = frozenset({"default_group", "hccl_world_group"})
_PRIMES = (29, 131)
_LIMIT = 1 << 16


class Communicators:
    """The groups of one rank. `odd` counts entries of the metadata that could not be read."""

    def __init__(self, info: object) -> None:
        """Args: `info`: ``parallel_group_info``, decoded or as text, of any type."""
        self.odd = 0
        self._known: dict[str, Group] = {}
        self._short: dict[str, set[str]] = {}
        self.world_size = -1
        if isinstance(info, str):
            try:
                info = msgspec.json.decode(info) if info else None
            except (msgspec.DecodeError, RecursionError):
                info = []
        entries = info if isinstance(info, dict) else {}
        self.odd += info is not None and not isinstance(info, dict)
        for name, entry in entries.items():
            ranks = ranks_of(entry.get("global_ranks")) if isinstance(entry, dict) else None
            self.odd += ranks is None
            self._add(str(name), text(entry.get("group_name")) if isinstance(entry, dict) else "", ranks or ())

    def of(self, name: str, operation: str = "") -> str:
        """Return the key of a group by name, hash, or else by the last digits of its hash in an operation's name."""
        if not name:
            match = _OPERATION.fullmatch(operation)
            if match is None:
                return ""
            names = self._short.get(match.group(1), set())
            # digits alone are ambiguous, but the same on every rank
            name = next(iter(names)) if len(names) == 1 else match.group(1)
        if name not in self._known:
            self._add(name, "", ())
        return self._known[name].key

    def group(self, key: str) -> Group | None:
        """Return what is known of a group."""
        return next((group for group in self._known.values() if group.key == key), None)

    def frame(self, used: Iterable[str]) -> pl.DataFrame:
        """Return the table `GROUPS`: those of the metadata and those in `used`."""
        wanted = set(used)
        rows = {
            group.key: (group.key, group.name, group.description, list(group.ranks), group.size)
            for group in self._known.values()
            if group.ranks or group.key in wanted
        }
        return pl.DataFrame(list(rows.values()), schema=GROUPS, orient="row")

    def _add(self, name: str, description: str, ranks: tuple[int, ...]) -> None:
        shown = text(name)
        group = Group(group_key(shown, ranks), shown, description, ranks, len(ranks) or -1, "hccl")
        # A numeric name is a hash already.
        for alias in {name} if name.isdigit() else {name, hashed(name)}:
            self._known.setdefault(alias, group)
            if alias.isdigit():
                self._short.setdefault(alias[-3:], set()).add(alias)
        if description in _WORLD:
            self.world_size = max(self.world_size, len(ranks) or -1)


def hashed(name: str) -> str:
    """Hash a communicator's name as msprof does in ``communication.json`` and ``analysis.db``."""
    high = low = 0
    for char in name[:_LIMIT]:
        high = (high * _PRIMES[0] + ord(char)) & 0xFFFFFFFF
        low = (low * _PRIMES[1] + ord(char)) & 0xFFFFFFFF
    return str(high << 32 | low)


def number_of(operation: str) -> int:
    """Return an operation's number in its group (586 in ``hcom_allReduce__586_0_1`` is the group, 0 the number), equal
    on all ranks of it, sends and receives counted with the rest; -1 without one."""
    match = _OPERATION.fullmatch(operation)
    return int(match.group(2)) if match else -1
