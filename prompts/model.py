"""Prompts of a model that drives a diagnosis. They contain our own texts only; data is in fences."""

from __future__ import annotations

from typing import Any

from whystall.prompts.render import render, words


def system_prompt(lang: str, *, opening: str, closing: str) -> str:
    """Return the system prompt. `opening`, `closing`: the markers of the fences."""
    return render("model/system.txt", lang, opening=opening, closing=closing)


def briefing(lang: str, *, data: str, live: bool, steps: int, duration: float) -> str:
    """Return the case. `data`: a fence; `live`: whether it can observe; `steps`: the number of answers it has."""
    return render("model/briefing.txt", lang, data=data, live=live, steps=steps, duration=duration)


def function_text(name: str, lang: str) -> str:
    """Return the description of the function `name`."""
    text: str = words(lang)["model"]["functions"][name]
    return text


def reply_text(lang: str, code: str, *values: Any) -> str:
    """Return the reply to the model in the situation `code`."""
    text: str = words(lang)["model"]["replies"][code]
    return text.format(*values)
