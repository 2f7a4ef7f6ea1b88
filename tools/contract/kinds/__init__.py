"""The closed vocabulary of findings: every kind by name."""

from __future__ import annotations

from types import MappingProxyType

from whystall.tools.contract.kinds import (
    crashes,
    hardware,
    host,
    network,
    profiles,
    ranks,
    serving,
    software,
    storage,
    threads,
    topology,
)
from whystall.tools.contract.kinds.spec import KindSpec, Mechanism

__all__ = ["KINDS", "KindSpec", "Mechanism"]

KINDS: MappingProxyType[str, KindSpec] = MappingProxyType(
    {
        **host.KINDS,
        **storage.KINDS,
        **threads.KINDS,
        **network.KINDS,
        **ranks.KINDS,
        **profiles.KINDS,
        **hardware.KINDS,
        **crashes.KINDS,
        **software.KINDS,
        **topology.KINDS,
        **serving.KINDS,
    }
)
