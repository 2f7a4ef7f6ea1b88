"""Check that a language model is set up and answers to a request for its list of models, which costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.agent_server.doctor.report_model import Check
from whystall.agent_server.doctor.view import ENGLISH, View
from whystall.agent_server.llm.wire import LlmError
from whystall.agent_server.settings.load import load_llm
from whystall.agent_server.settings.sources import LLM_PREFIX as PREFIX
from whystall.agent_server.settings.sources import read_section
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.extras import extra
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.settings.sections.llm import LlmSettings

NAME = "model"
_WAIT_S = 5.0
_SHOWN = 5
_FIXES = ("unauthorised", "unreachable")


def model(view: View = ENGLISH) -> Check:
    """Check the model; imports and asks nothing if none is set up."""
    try:
        nothing = not read_section("llm").values["llm"]
    except ToolError as error:
        return view.limited(NAME, error.message, view.say("model.without"), error.remedy)
    if nothing:
        fix = view.say("model.nothing_fix", prefix=PREFIX)
        return view.limited(NAME, view.say("model.nothing"), view.say("model.without"), fix)
    import asyncio  # loads ssl

    try:
        settings = load_llm()
        return _compared(view, settings, asyncio.run(_listed(settings)))
    except ToolError as error:
        return view.limited(NAME, error.message, view.say("model.without"), error.remedy)
    except LlmError as error:
        return _refused(view, settings, error)


async def _listed(settings: LlmSettings) -> list[str] | None:
    with extra("llm"):
        from whystall.agent_server.llm.client import ChatClient

    async with ChatClient(settings) as client:
        return await client.models(_WAIT_S)


def _compared(view: View, settings: LlmSettings, listed: list[str] | None) -> Check:
    """Compare the model with those that the server lists. Ollama accepts ``name`` for ``name:latest``."""
    where = f"{settings.host}{view.say('model.unencrypted') if settings.unencrypted else ''}"
    if listed is None:
        return _unverified(view, where, settings, view.say("model.no_list"))
    if not {settings.model, f"{settings.model}:latest"} & set(listed):
        shown = ", ".join(clean(name, 80) for name in listed[:_SHOWN]) or view.say("none")
        shown += view.say("model.more", count=len(listed) - _SHOWN) if len(listed) > _SHOWN else ""
        found = view.say("model.unlisted", where=where, model=repr(clean(settings.model)), shown=shown)
        return view.limited(
            NAME, found, view.say("model.unlisted_means"), view.say("model.unlisted_fix", prefix=PREFIX)
        )
    return view.ok(NAME, view.say("model.answers", model=clean(settings.model), where=where))


def _refused(view: View, settings: LlmSettings, error: LlmError) -> Check:
    if error.code == "rejected":  # not every server has a list
        return _unverified(view, settings.host, settings, str(error))
    fix = view.say(f"model.{error.code if error.code in _FIXES else 'again'}", prefix=PREFIX)
    found = view.say("model.at", model=clean(settings.model), where=settings.host, error=error)
    return view.limited(NAME, found, view.say("model.without"), fix)


def _unverified(view: View, where: str, settings: LlmSettings, why: str) -> Check:
    means = view.say("model.untold_means", model=repr(clean(settings.model)))
    fix = view.say("model.untold_fix", prefix=PREFIX)
    return view.limited(NAME, view.say("model.untold", where=where, why=why), means, fix)
