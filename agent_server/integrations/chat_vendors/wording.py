"""What all vendors make of a message before its form: its blocks, and the few words that are added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from whystall.agent_server.integrations.chat_vendors.markup import Block, Span, blocks
from whystall.agent_server.integrations.messages import Outgoing
from whystall.prompts.render import words


def content(message: Outgoing) -> list[Block]:
    """The blocks of its text, without a first line that only repeats the title: that is shown above."""
    found = blocks(message.text)
    if len(found) < 2 or found[0].text != message.title:
        return found
    return [replace(found[1], gap=False), *found[2:]]


def rest(lang: str) -> Callable[[int], Block]:
    """Makes the line that says how many lines of a message were left out."""
    text = words(lang)["vendors"]["cut"]
    return lambda left: Block("line", (Span(text.format(n=left), italic=True),), gap=True)
