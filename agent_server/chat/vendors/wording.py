"""The few words that vendors' forms add to a message."""

from __future__ import annotations

from collections.abc import Callable

from whystall.agent_server.chat.vendors.markup import Block, Span
from whystall.prompts.render import words


def rest(lang: str) -> Callable[[int], Block]:
    """Makes the line that says how many lines of a message were left out."""
    text = words(lang)["vendors"]["cut"]
    return lambda left: Block("line", (Span(text.format(n=left), italic=True),), gap=True)
