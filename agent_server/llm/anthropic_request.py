"""Encode requests for Anthropic's Messages API, and adapt them to what a server refuses.

Source of the format: https://platform.claude.com/docs/en/api/messages, and the pages on prompt caching, thinking,
effort and tool use there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whystall.agent_server.llm.anthropic_answer import MessagesAnswer
from whystall.agent_server.llm.jsontext import NotJson, parse_json
from whystall.agent_server.llm.protocol import object_of, plain_name
from whystall.agent_server.llm.wire import Function, Message, ToolCall
from whystall.agent_server.settings.sections.llm import LlmSettings

_VERSION = "2023-06-01"
_REPLY_TOKENS = 16_000
"""`max_tokens`, which the protocol requires, if the settings do not name it; thoughts count."""
_CACHE = {"type": "ephemeral"}
_OPTIONS = ("cache_control", "tool_choice", "output_config", "temperature", "thinking")


class MessagesDialect:
    """The Messages API."""

    path = "messages"
    models_path = "models?limit=1000"  # 20 by default

    def __init__(self, settings: LlmSettings) -> None:
        self._settings = settings
        self._left_out: set[str] = set()

    def headers(self, key: str) -> Mapping[str, str]:
        return {"anthropic-version": _VERSION, **({"x-api-key": key} if key else {})}

    def body(self, messages: Sequence[Message], functions: Sequence[Function]) -> dict[str, Any]:
        """Return the body of a request.

        What precedes a block with `cache_control` is cached: functions and system prompt, which stay the same, and the
        conversation so far, which the next request begins with.
        """
        settings = self._settings
        system = "\n\n".join(message.content for message in messages if message.role == "system")
        tools = [
            {"name": plain_name(f.name), "description": f.description, "input_schema": f.parameters} for f in functions
        ]
        turns = _turns([message for message in messages if message.role != "system"])
        instructions: list[dict[str, Any]] = [{"type": "text", "text": system}] if system else []
        if "cache_control" not in self._left_out:
            for blocks in (instructions, turns[-1]["content"] if turns else []):
                if blocks:
                    blocks[-1] = {**blocks[-1], "cache_control": _CACHE}
        options: dict[str, Any] = {}
        if settings.temperature is not None:
            options["temperature"] = settings.temperature
        if settings.effort is not None:
            options |= {"output_config": {"effort": settings.effort}, "thinking": {"type": "adaptive"}}
        elif tools and messages[-1].must_call:  # an error while the model thinks
            options["tool_choice"] = {"type": "any"}
        return {
            "model": settings.model,
            "max_tokens": settings.reply_tokens or _REPLY_TOKENS,
            "stream": settings.stream,
            **({"system": instructions} if instructions else {}),
            **({"tools": tools} if tools else {}),
            "messages": turns,
            **{name: value for name, value in options.items() if name not in self._left_out},
        }

    def answer(self) -> MessagesAnswer:
        return MessagesAnswer()

    def learn(self, refusal: str) -> bool:
        """Adapt to the error message `refusal`; return whether anything changed.

        Models that think by default refuse a forced call, older ones refuse adaptive thinking or effort, and newer ones
        a temperature; other servers of the protocol may not know its later options.
        """
        refusal = refusal.lower()
        if "effort" in refusal and "output_config" not in refusal:
            refusal += " output_config"
        for name in _OPTIONS:
            if name in refusal and name not in self._left_out:
                self._left_out.add(name)
                return True
        return False


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return `messages` as turns of alternating roles: the results of all calls of a message are one turn."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _of_model(message) if role == "assistant" else [_of_others(message)]
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _of_others(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"type": "tool_result", "tool_use_id": message.call_id or "", "content": message.content or "-"}
    return _text(message.content)


def _of_model(message: Message) -> list[dict[str, Any]]:
    """Return the blocks of a message of the model. With thoughts it must be sent back as it came, but for calls that
    were not answered."""
    answered = {call.id for call in message.calls}
    thought = [b for b in _blocks(message.reasoning) if b.get("type") != "tool_use" or b.get("id") in answered]
    if thought and {b.get("id") for b in thought if b.get("type") == "tool_use"} == answered:
        return thought
    blocks = [_text(message.content)] if message.content.strip() or not message.calls else []
    return blocks + [_use(call) for call in message.calls]


def _blocks(reasoning: str | None) -> list[dict[str, Any]]:
    """Return the blocks that `MessagesAnswer` put into a reply's `reasoning`; empty if another protocol wrote it."""
    try:
        blocks = parse_json(reasoning or "")
    except NotJson:
        return []
    return [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text if text.strip() else "-"}  # an empty block is refused


def _use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": plain_name(call.name), "input": object_of(call.arguments)}
