"""What a model that drives a diagnosis is told, in its language. All words of our own: data goes into fences."""

from __future__ import annotations

from typing import Any

from whystall.prompts.render import render, words


def system_prompt(lang: str, *, opening: str, closing: str) -> str:
    """Its task and its rules. `opening`, `closing`: the markers of the fences."""
    return render("model/system.txt", lang, opening=opening, closing=closing)


def briefing(lang: str, *, data: str, live: bool, steps: int, duration: float) -> str:
    """The case as it stands. `data`: a fence; `live`: whether there are windows; `steps`: answers that it has."""
    return render("model/briefing.txt", lang, data=data, live=live, steps=steps, duration=duration)


def function_text(name: str, lang: str) -> str:
    """What the function `name` is for."""
    text: str = words(lang)["model"]["functions"][name]
    return text


def said(lang: str, code: str, *values: Any) -> str:
    """What it is told in the situation `code`."""
    text: str = words(lang)["model"]["said"][code]
    return text.format(*values)
