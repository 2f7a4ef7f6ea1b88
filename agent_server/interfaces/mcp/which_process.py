"""Asks which process is meant, where words match several jobs. Without an answer a tool does what it does anyway."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.mcp.asking import Answers, Arguments, Prepare, Questions
from whystall.agent_server.job_lookup import inventory
from whystall.agent_server.job_lookup.find import process_of
from whystall.agent_server.job_lookup.models import Job, Resolution, Wanted
from whystall.agent_server.job_lookup.resolve import resolve
from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import printable, short
from whystall.prompts.quantities import quantity
from whystall.prompts.render import words
from whystall.tools.contract.errors import ErrorCode, ToolError

KEY = "process"
"""The key of the question, and the name of its only field."""
_NAME = 60  # characters of a name in a label
_LABEL = 200


def ask_which(
    text_of: Callable[[Arguments], str | None],
    with_pid: Callable[[Arguments, int], Arguments],
    lang: Lang,
    named_only: bool = False,
) -> Prepare:
    """Return the preparation of a tool that gets the words `text_of` its arguments; None: nothing to look up.

    `with_pid`: returns its arguments for a process. `named_only`: do not ask unless a name in the words matches, as
    words that describe a problem need not name a job.
    """

    async def prepare(given: Arguments, answers: Answers | None) -> Arguments | Questions:
        wanted = text_of(given)
        if wanted is None:
            return given
        if answers is None or answers.state is None:
            found = await in_thread(lambda: resolve(Wanted(text=wanted), inventory.read()))
            options = _options(found, lang) if _ambiguous(found, named_only) else {}
            listed = {"options": options, "matching": len(found.jobs) + found.left_out}
            return _question(listed, lang) if len(options) > 1 else given
        result, listed = answers.results.get(KEY), json.loads(answers.state)
        if result is None:
            return _question(listed, lang)
        if result.action != "accept":
            return given
        chosen = listed["options"].get(str((result.content or {}).get(KEY)))
        if chosen is None:
            return _question(listed, lang)
        return with_pid(given, await process_of(_living(chosen), wanted))

    return prepare


def _ambiguous(found: Resolution, named_only: bool) -> bool:
    named = any(code.startswith("name:") for code in found.how)
    return found.status == "several" and (named or not named_only)


def _living(chosen: Mapping[str, Any]) -> int:
    """Return the pid of a listed process, if it still is the same process."""
    pid = int(chosen["pid"])
    if inventory.start_ticks(pid) != chosen["ticks"]:
        message = f"process {pid} has ended since it was listed"
        raise ToolError(ErrorCode.NO_SUCH_PROCESS, message, "call again: what runs then is listed")
    return pid


def _options(found: Resolution, lang: Lang) -> dict[str, dict[str, Any]]:
    """Return the process of each listed job, at most `LISTED`, by the value that stands for it, without those that have
    ended.
    """
    started = [(job, inventory.start_ticks(job.pid)) for job in found.jobs]
    return {
        str(job.pid): {"pid": job.pid, "ticks": ticks, "label": _label(job, lang)}
        for job, ticks in started
        if ticks is not None
    }


def _question(listed: Mapping[str, Any], lang: Lang) -> Questions:
    texts, options = words(lang)["asking"], listed["options"]
    message = texts["several"].format(listed["matching"])
    if left_out := listed["matching"] - len(options):
        message = f"{message} {texts['more'].format(left_out)}"
    titled = [{"const": value, "title": option["label"]} for value, option in options.items()]
    field = {"type": "string", "title": texts["title"], "oneOf": titled}
    schema = {"type": "object", "properties": {KEY: field}, "required": [KEY]}
    return Questions({KEY: (message, schema)}, json.dumps(listed))


def _label(job: Job, lang: Lang) -> str:
    """Return a line about a job, with names of the observed host shortened and their control characters escaped."""
    parts = {"name": printable(short(job.name, _NAME)), "program": printable(short(job.program, _NAME))}
    age = quantity(job.age_s, "s")
    text = words(lang)["asking"]["option"].format(pid=job.pid, processes=job.processes, age=age, **parts)
    return short(text, _LABEL)
