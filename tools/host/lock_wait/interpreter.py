"""Compute who holds the interpreter lock of a process, for how long, and who waits for it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from whystall.tools.host.common.lock_groups import Activity, Group, main_activity
from whystall.tools.host.common.timelines import Timeline


@dataclass(frozen=True)
class Share:
    """One thread's share of the interpreter lock, in percent of the window. `held_pct`: while others waited, by the
    wakers of these waits; `samples_pct`: the same by CPU samples of running Python code; None: no samples."""

    line: Timeline
    held_pct: float
    samples_pct: float | None
    waited_pct: float
    code: str


def shares(group: Group, lines: Mapping[int, Timeline], window_ns: int, sample_ns: float) -> list[Share]:
    """Return the share of each thread that held or awaited the interpreter lock of `group`, largest first."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for part in group.ended:
        spans.setdefault(part.tid, []).append((part.start_ns, part.end_ns))
    held = {tid: union(own) for tid, own in spans.items()}
    waited = union((p.start_ns, p.end_ns) for p in group.ended)
    sampled = _sampled(group, lines, waited)
    whole = sum(sampled.values())
    contended = length(waited)
    found = []
    for tid in {*held, *group.waiters, *sampled}:
        line = lines.get(tid)
        if line is None or line.pid != group.pid:
            continue
        did = main_activity(line, held.get(tid, ()), {group.word}, sample_ns)
        waiter = group.waiters.get(tid)
        found.append(
            Share(
                line=line,
                held_pct=100 * length(held.get(tid, [])) / window_ns,
                samples_pct=100 * contended * sampled[tid] / whole / window_ns if whole else None,
                waited_pct=100 * waiter.total_ns / window_ns if waiter is not None else 0.0,
                code=_code(did, waiter.code if waiter is not None else ""),
            )
        )
    return sorted(found, key=lambda s: (-s.held_pct, -s.waited_pct, s.line.tid))


def _sampled(group: Group, lines: Mapping[int, Timeline], waited: Iterable[tuple[int, int]]) -> Counter[int]:
    """Count the samples of each thread that ran Python while another one waited for the interpreter lock."""
    spans = list(waited)
    found: Counter[int] = Counter()
    for line in lines.values():
        if line.pid != group.pid or not line.samples:
            continue
        for start, end in spans:
            count = sum(1 for s in line.samples_within(start, end) if s.place.python and not s.place.extension)
            if count:
                found[line.tid] += count
    return found


def _code(did: Activity | None, otherwise: str) -> str:
    return did.code if did is not None and did.code else otherwise


def union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans in order, with overlapping ones merged."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def length(spans: Iterable[tuple[int, int]]) -> int:
    """Return the length of spans that do not overlap."""
    return sum(end - start for start, end in spans)
