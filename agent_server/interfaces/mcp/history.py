"""The MCP tool ``history``: what watched jobs waited for over time."""

from __future__ import annotations

from typing import Any

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.mcp import apps
from whystall.agent_server.interfaces.mcp.calls import Progress
from whystall.agent_server.interfaces.mcp.entry import TEXT_LIMITS, Answer, Entry
from whystall.agent_server.presentation.history_lines import history_text
from whystall.agent_server.presentation.history_pages import history_pages
from whystall.agent_server.watch.history import HistoryParams, history
from whystall.knowledge_base.models import Lang
from whystall.tools.recording.judging import write_artifact


def history_entry(lang: Lang) -> Entry:
    """Return the tool."""

    async def call(given: dict[str, Any], _progress: Progress) -> Answer:
        judged = await in_thread(lambda: history(HistoryParams.model_validate(given)))
        pages = [write_artifact(page) for page in history_pages(judged.result, judged.spans, lang)]
        result = judged.result.model_copy(update={"artifacts": pages})
        return result, history_text(result, lang, TEXT_LIMITS[lang])

    text = (
        "What watched jobs waited for in the last hours or days (needs a running `whystall watch`): seconds by thread, "
        "line, file, lock and peer; CPU time by line; what changed, or against a baseline (also by critical path)."
    )
    return Entry("history", "Waits over time", text, HistoryParams, call, view=apps.PAGES)
