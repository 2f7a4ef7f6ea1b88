"""Whether a language model is set up, and answers: its server is asked for its list of models, which costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.agent_server.health import Check, State
from whystall.agent_server.llm.environment import PREFIX, variables, written
from whystall.agent_server.llm.wire import LlmError
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.llm.settings import LlmSettings

_WAIT_S = 5.0
_SHOWN = 5
_WITHOUT = "diagnose --llm has no model; everything else works without one"
_FIXES = {
    "unauthorised": f"correct the key ({PREFIX}API_KEY_FILE)",
    "unreachable": f"start the server, or correct {PREFIX}BASE_URL",
}


def model() -> Check:
    """Nobody is asked, and nothing imported for it, unless a setting is there."""
    try:
        nothing = not variables() and not written()
    except ToolError as error:
        return _limited(error.message, _WITHOUT, error.remedy)
    if nothing:
        fix = f"set {PREFIX}BASE_URL and {PREFIX}MODEL; any OpenAI-compatible server will do (vLLM, Ollama, llama.cpp)"
        return _limited("none is set up", _WITHOUT, fix)
    import asyncio

    from whystall.agent_server.llm.settings import load_settings

    try:
        settings = load_settings()
        return _judged(settings, asyncio.run(_listed(settings)))
    except ToolError as error:
        return _limited(error.message, _WITHOUT, error.remedy)
    except LlmError as error:
        return _refused(settings, error)


async def _listed(settings: LlmSettings) -> list[str] | None:
    from whystall.agent_server.llm.client import ChatClient

    async with ChatClient(settings) as client:
        return await client.models(_WAIT_S)


def _judged(settings: LlmSettings, listed: list[str] | None) -> Check:
    """What the list says. Ollama knows ``name:latest`` as ``name`` too."""
    where = f"{settings.host}{' (unencrypted)' if settings.reads_along else ''}"
    if listed is None:
        return _untold(where, settings, "what it answers is no list of models")
    if not {settings.model, f"{settings.model}:latest"} & set(listed):
        shown = ", ".join(clean(name, 80) for name in listed[:_SHOWN]) or "none"
        more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        means = "diagnose --llm may be refused (llama.cpp answers to any name)"
        found = f"{where} does not list {clean(settings.model)!r}, but {shown}{more}"
        return _limited(found, means, f"set {PREFIX}MODEL to one that is listed")
    return Check(name="model", state=State.OK, found=f"{clean(settings.model)} at {where} answers")


def _refused(settings: LlmSettings, error: LlmError) -> Check:
    if error.code == "rejected":  # not every server has a list
        return _untold(settings.host, settings, str(error))
    fix = _FIXES.get(error.code, f"try again, or correct {PREFIX}BASE_URL")
    return _limited(f"{clean(settings.model)} at {settings.host}: {error}", _WITHOUT, fix)


def _untold(where: str, settings: LlmSettings, why: str) -> Check:
    means = f"whether it knows {clean(settings.model)!r} shows when it is asked"
    fix = f"if diagnose --llm fails, correct {PREFIX}BASE_URL: it usually ends in /v1"
    return _limited(f"{where} tells no models: {why}", means, fix)


def _limited(found: str, means: str, fix: str) -> Check:
    return Check(name="model", state=State.LIMITED, found=found, means=means, fix=fix)
