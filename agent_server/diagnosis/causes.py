"""Which causes can be told by looking at what: the ranks of a job, or a host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whystall.knowledge_base.models import Cause

CHECK = "slow_node_check"
"""The tool that looks at ranks."""


def of_ranks(causes: Mapping[str, Cause]) -> dict[str, Cause]:
    """Those of `causes` that the traces of ranks can tell."""
    return {id: cause for id, cause in causes.items() if CHECK in cause.examined_by}


def of_hosts(causes: Mapping[str, Cause]) -> dict[str, Cause]:
    """Those of `causes` that a look at a host can tell; the others would stay open for ever."""
    return {id: cause for id, cause in causes.items() if set(cause.examined_by) != {CHECK}}
