"""What to do first about alerts, by the texts that they carry."""

from __future__ import annotations

from whystall.agent_server.presentation.xid_lines import xid_lines
from whystall.knowledge_base.models import Lang
from whystall.prompts.topics import topics_of

_OF_STEPS = "step_time"


def advice_lines(text: str, lang: Lang) -> list[str]:
    """Return what NVIDIA's catalogue asks for after an Xid in `text`, and the commands for steps that take longer."""
    found = [str(one.first[lang]) for one in topics_of(text) if one.id == _OF_STEPS]
    return [*xid_lines(text, lang), *found]
