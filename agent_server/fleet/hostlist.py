"""Hostlists, the syntax of Slurm and pdsh: ``node[001-128,200]``, ``rack[0-3]-node[1-4]``.

Expanded and folded by ClusterShell (https://clustershell.readthedocs.io), an extra: lists of plain names need no
library. The size of an expression is bounded before it is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.extras import extra

LIMIT = 20_000
"""Maximum hosts of an expression."""
_TEXT = 1 << 20
_NAME = r"[A-Za-z0-9_.-]"
_PART = re.compile(rf"{_NAME}*(?:\[[0-9,-]+\]{_NAME}*)*")
# Separated by commas, blanks and line ends outside of brackets.
_PARTS = re.compile(r"(?:[^,\s\[]|\[[^\]]*\]?)+")
_BRACKETS = re.compile(r"\[([0-9,-]+)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_SHOWN = 8
_SEVERAL = 500


def expand(text: str) -> list[str]:
    """Return the hosts of `text`, each once, in natural order within a pattern.

    Raises `ToolError` (bad_argument): no hostlist, too many hosts, or ClusterShell is missing and needed.
    """
    if len(text) > _TEXT:
        raise _wrong(text, f"longer than {_TEXT} characters")
    names: dict[str, None] = {}
    for part in _PARTS.findall(text):
        if not _PART.fullmatch(part) or part.startswith("-"):
            raise _wrong(part, "not a host or hostlist")
        if _size(part) > LIMIT - len(names):
            raise _wrong(part, f"more than {LIMIT} hosts")
        names.update(dict.fromkeys(_expanded(part) if "[" in part else [part]))
    return list(names)


def fold(names: Iterable[str]) -> str:
    """Return `names` as one hostlist: ``node[003-017]``; what cannot be folded as the first names and a count."""
    hosts = sorted(set(names))
    # Folding names with several numbers, such as addresses, takes quadratic time.
    slow = len(hosts) > _SEVERAL and any(re.search(r"[0-9][^0-9]+[0-9]", host) for host in hosts)
    if len(hosts) < 2 or slow or not all(re.fullmatch(f"{_NAME}+", host) for host in hosts):
        return _listed(hosts)
    try:
        from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
    except ModuleNotFoundError:
        return _listed(hosts)
    try:
        return str(NodeSet.fromlist(hosts, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return _listed(hosts)


def _listed(hosts: list[str]) -> str:
    more = f" (+{len(hosts) - _SHOWN})" if len(hosts) > _SHOWN else ""
    return ",".join(hosts[:_SHOWN]) + more


def _size(part: str) -> int:
    """Return the number of hosts of one part."""
    total = 1
    for group in _BRACKETS.findall(part):
        count = 0
        for item in group.split(","):
            found = _RANGE.fullmatch(item)
            low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
            if high < low:
                raise _wrong(part, f"{item!r} is no range")
            count += high - low + 1
        total = min(total * count, 10**12)
    return total


def _expanded(part: str) -> list[str]:
    with extra("fleet"):
        from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
    try:
        return [str(name) for name in NodeSet(part, resolver=RESOLVER_NOGROUP)]
    except NodeSetException:
        raise _wrong(part, "not a hostlist") from None


def _wrong(part: str, why: str) -> ToolError:
    return ToolError(ErrorCode.BAD_ARGUMENT, f"hosts: {part[:100]!r}: {why}", "write node1,node2 or node[001-128,200]")
