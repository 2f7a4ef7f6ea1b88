"""``whystall`` without arguments on a terminal: list the jobs of this host, and offer to diagnose one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.job_lookup.find import jobs_by_kind
from whystall.agent_server.version import version
from whystall.prompts.render import render

if TYPE_CHECKING:
    from whystall.agent_server.interfaces.cli.options import Lang

_LISTED = 9


def language() -> Lang:
    """Return the language of the environment: Chinese or English."""
    wanted = next((os.environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if os.environ.get(name)), "")
    return "zh" if wanted.startswith("zh") else "en"


def choose() -> list[str]:
    """Print the jobs of this host, and return the command that diagnoses the chosen one; empty if none was chosen.

    Raises EOFError when the input ends.
    """
    lang = language()
    missed, likely, others = jobs_by_kind()
    found = [*likely, *others][:_LISTED]
    shown = {"version": version(), "likely": found[: len(likely)], "others": found[len(likely) :], "missed": missed}
    console.say(render("first_steps.txt", lang, left=len(likely) + len(others) - len(found), **shown))
    console.deliver()
    if not found:
        return []
    answer = input(render("first_steps_question.txt", lang, count=len(found)).rstrip("\n") + " ").strip()
    if not answer.isdecimal() or not 1 <= int(answer) <= len(found):
        return []
    return ["diagnose", "--pid", str(found[int(answer) - 1].pid), "--lang", lang]
