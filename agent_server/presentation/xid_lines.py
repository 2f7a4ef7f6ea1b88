"""What NVIDIA's catalogue asks for, for the Xid codes that a text of people or programs names."""

from __future__ import annotations

from whystall.knowledge_base.classify.severities import xid_action, xids
from whystall.knowledge_base.models import Lang
from whystall.prompts.chat import say
from whystall.prompts.escape import Safe
from whystall.prompts.render import words

_CODES = 3


def xid_lines(text: str, lang: Lang) -> list[str]:
    """Return a sentence for each of the first `_CODES` codes in `text` that the catalogue has an action for."""
    actions = words(lang)["xid_actions"]
    lines: list[str] = []
    for code in list(dict.fromkeys(xids(text.lower())))[:_CODES]:
        if (found := xid_action(code)) is not None:
            action, severity = found
            shown = words(lang)["severities"][severity.value]
            lines.append(say(lang, "look_up.xid", n=code, severity=shown, action=Safe(actions[action])))
    return lines
