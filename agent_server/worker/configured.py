"""Whether there is anything to serve besides MCP: asked before anything of it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings


def configured(settings: Settings) -> bool:
    """Whether `settings` turn anything on."""
    return bool(settings.alerts.token or settings.chat or settings.sinks or settings.oncall.schedules)
