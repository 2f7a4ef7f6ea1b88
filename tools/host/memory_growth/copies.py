"""Estimate how much memory was copied after a fork.

A page that a process and its children share is copied when one of them writes to it; in Python, updating an object's
reference count is a write. RSS does not change: it counts a shared page in each process, before and after. The
proportional set size (PSS) counts each page once over all that share it, so the sum of the PSS of a process and its
descendants grows by each copy. Growth of that sum beyond the growth of the sum of RSS was copied.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import polars as pl


class Copies(NamedTuple):
    """Copies within a family (a process and its descendants); see `CopyRow`. `grown_bytes`: total growth of its
    memory."""

    pid: int
    comm: str
    cgroup: str
    processes: int
    copied_bytes: float
    grown_bytes: float
    span_s: float
    remaining_bytes: float


def copies(processes: pl.DataFrame) -> list[Copies]:
    """Return the families of `processes` (``memory_use.processes``) in which memory was copied, most first. A family in
    which a process ended is left out: the PSS of the others grows then, as it does with a copy.
    """
    frame = processes.sort("at_ns", maintain_order=True)
    rolled = frame.filter(pl.col("pss_bytes") >= 0).group_by("pid", "start_ticks", maintain_order=True)
    ends = [(rows.row(0, named=True), rows.row(-1, named=True)) for _, rows in rolled if rows.height > 1]
    known = {last["pid"]: (first, last) for first, last in ends if last["at_ns"] > first["at_ns"]}
    parents = dict(frame.select("pid", "ppid").unique("pid", keep="last").iter_rows())
    incomplete = {_root(pid, parents) for pid in parents if pid not in known}
    families: dict[int, list[int]] = {}
    for pid in known:
        families.setdefault(_root(pid, parents), []).append(pid)
    found = [
        _family(root, [known[pid] for pid in members])
        for root, members in families.items()
        if len(members) > 1 and root in known and root not in incomplete
    ]
    return sorted((one for one in found if one.copied_bytes > 0), key=lambda one: -one.copied_bytes)


def _root(pid: int, parents: dict[int, int]) -> int:
    seen = {pid}
    while (parent := parents.get(pid, 0)) in parents and parent not in seen:
        seen.add(parent)
        pid = parent
    return pid


def _family(root: int, members: list[tuple[dict[str, Any], dict[str, Any]]]) -> Copies:
    def growth(name: str) -> int:
        return sum(int(last[name]) - int(first[name]) for first, last in members)

    main = next(last for _, last in members if last["pid"] == root)
    grown = growth("pss_bytes")
    shared = [max(0, last["anon_bytes"] - last["private_dirty_bytes"]) for _, last in members if last["pid"] != root]
    return Copies(
        pid=root,
        comm=main["comm"],
        cgroup=main["cgroup"],
        processes=len(members),
        copied_bytes=max(0, grown - max(0, growth("rss_bytes"))),
        grown_bytes=grown,
        span_s=max(last["at_ns"] - first["at_ns"] for first, last in members) / 1e9,
        remaining_bytes=sum(shared),
    )
