"""The MCP tool ``fleet``: run a tool on many hosts. Offered where the settings name a fleet."""

from __future__ import annotations

from typing import Any

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.calls import Progress
from whystall.agent_server.interfaces.mcp.entry import TEXT_LIMITS, Answer, Entry
from whystall.agent_server.settings.sources import read_section
from whystall.knowledge_base.models import Lang
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.extras import extra


def fleet_entries(app: App, lang: Lang) -> list[Entry]:
    """Return the tool; nothing without the section ``[fleet]``. Raises `ToolError` if a library is missing."""
    if not configured():
        return []
    with extra("fleet"):
        from whystall.agent_server.fleet.ask import FleetParams
        from whystall.agent_server.fleet.text import fleet_text

    async def call(given: dict[str, Any], progress: Progress) -> Answer:
        result = await app.fleet(FleetParams.model_validate(given), progress)
        return result, fleet_text(result, lang, TEXT_LIMITS[lang])

    text = "Runs a tool on many hosts and merges the answers; says which hosts gave none."
    return [Entry("fleet", "Ask many hosts", text, FleetParams, call, read_only=False, scope="admin")]


def configured() -> bool:
    """Return whether the settings have a section ``[fleet]``; an unreadable file is reported by what needs it."""
    try:
        return bool(read_section("fleet").values["fleet"])
    except ToolError:
        return False
