"""Whether two recordings can be compared by their critical paths, and what limits the comparison. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystall.tools.contract.result import BlindSpot
from whystall.tools.history.path_changes import Account
from whystall.tools.recording.store import Recording

_GAP = 0.01
_LOST = 0.001
_COMMON = 0.5


def refusal(before: Recording, after: Recording) -> BlindSpot | None:
    """Return why the critical paths of two recordings cannot be compared; None if they can."""
    both = before, after
    if any(_missing(one) > _GAP for one in both):
        return BlindSpot(code="path_gap")
    if any(one.manifest.redacted for one in both):
        return BlindSpot(code="path_redacted")
    entries = [one.manifest.collectors["switches"] for one in both]
    sampled = any(note.code == "sampled" for entry in entries for note in entry.not_seen)
    engines = [entry.engine for entry in entries]
    if sampled or engines[0] != engines[1]:
        return BlindSpot(code="path_other_engine", detail=_pair(engines))
    return None


def differences(before: Recording, after: Recording) -> list[BlindSpot]:
    """Return what else than the job may make two recordings differ: kernel, host, lost records."""
    both = before, after
    manifests = [one.manifest for one in both]
    found = []
    kernels = [" ".join(filter(None, (one.kernel, one.machine))) for one in manifests]
    if kernels[0] != kernels[1]:
        found.append(BlindSpot(code="path_other_kernel", detail=_pair(kernels)))
    if (manifests[0].host, manifests[0].cpus) != (manifests[1].host, manifests[1].cpus):
        hosts = [f"{one.host} ({one.cpus} CPUs)" for one in manifests]
        found.append(BlindSpot(code="path_other_host", detail=_pair(hosts)))
    lost = [_lost(one) for one in both]
    if max(lost) > _LOST:
        found.append(BlindSpot(code="path_lost", detail=_pair([f"{100 * share:.2g} %" for share in lost])))
    return found


def little_in_common(before: Account, after: Account) -> BlindSpot | None:
    """Return a blind spot if neither account has half of its time in rows of the other: the programs may differ."""
    shares = list(_common(before, after))
    if max(shares) >= _COMMON:
        return None
    return BlindSpot(code="path_little_in_common", detail=_pair([f"{100 * share:.0f} %" for share in shares]))


def _common(before: Account, after: Account) -> Iterator[float]:
    """Yield the share of each account in rows that the other one has."""
    common = set(before.keys) & set(after.keys)
    for account in (before, after):
        sums = account.parts.sum(axis=1)
        inside = sum(float(took) for key, took in zip(account.keys, sums, strict=True) if key in common)
        yield inside / max(float(sums.sum()), 1e-9)


def _missing(recording: Recording) -> float:
    """Return the share of the window in which nothing was recorded."""
    notes = recording.manifest.collectors["switches"].not_seen
    gaps = [re.match(r"(\d+) ms", note.detail) for note in notes if note.code == "cut_short"]
    return 1e6 * sum(int(gap[1]) for gap in gaps if gap) / max(recording.manifest.window_ns, 1)


def _lost(recording: Recording) -> float:
    entry = recording.manifest.collectors["switches"]
    return entry.lost / max(entry.seen + entry.lost, 1)


def _pair(texts: Sequence[str]) -> str:
    return " / ".join(texts)
