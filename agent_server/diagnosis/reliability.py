"""Whether the result of a tool is whole enough to rule a cause out, or to state it as certain. Pure."""

from __future__ import annotations

from typing import Any

from whystall.tools.contract.result import Status, ToolResult

_LOST_SHARE = 0.001


def lost_much(result: ToolResult[Any]) -> bool:
    """Return whether a collector lost so many events that its findings may differ: more than one in a thousand."""
    return any(c.lost > _LOST_SHARE * (c.seen + c.lost) for c in result.coverage.collectors)


def reliable(result: ToolResult[Any]) -> bool:
    """Return whether all collectors of `result` were verified to work."""
    return result.status is not Status.PARTIAL or all(c.proven for c in result.coverage.collectors)
