"""Whether to serve anything besides MCP, decided before loading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings


def configured(settings: Settings) -> bool:
    """Return whether `settings` enable alerts, chats, trackers or on-call."""
    return bool(
        settings.alerts.token or settings.reports.on or settings.chat or settings.sinks or settings.oncall.schedules
    )
