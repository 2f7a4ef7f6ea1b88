"""A conversation as the protocol writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from whystall.agent_server.llm.jsontext import NotJson, parsed, whole
from whystall.agent_server.llm.wire import Function, Message, ToolCall
from whystall.agent_server.settings.sections.llm import LlmSettings

_UNUSUAL = re.compile(r"[^a-zA-Z0-9_-]")


class Dialect:
    """What this server wants differently; learnt from what it refuses, and kept for the requests that follow."""

    def __init__(self, settings: LlmSettings) -> None:
        self._settings = settings
        self.stream = settings.stream
        self.reasoning_name = "reasoning_content"
        self._left_out: set[str] = set()
        self._turned = False
        self._limit_name = "max_tokens"

    def body(self, messages: Sequence[Message], functions: Sequence[Function]) -> dict[str, Any]:
        """The body of a request."""
        options: dict[str, Any] = {"stream": self.stream}
        if self.stream:
            options["stream_options"] = {"include_usage": True}
        if functions:
            options["parallel_tool_calls"] = True  # off by default in llama.cpp and DashScope
        if self._settings.temperature is not None:
            options["temperature"] = self._settings.temperature
        if self._settings.reply_tokens is not None:
            options[self._limit_name] = self._settings.reply_tokens
        tools = [{"type": "function", "function": function.model_dump()} for function in functions]
        return {
            "model": self._settings.model,
            "messages": [self._message(message) for message in messages],
            **({"tools": tools} if tools else {}),
            **{name: value for name, value in options.items() if name not in self._left_out},
        }

    def learn(self, refusal: str) -> bool:
        """Change what a server refuses, by what it says; False when there is nothing to change.

        Thinking models of DashScope and ModelScope answer in streams alone, other servers call functions only outside
        of them; some models take no temperature; strict servers refuse options that they do not know.
        """
        said = refusal.lower()
        if not self._turned and re.search(r"\bstream(?!_options)", said):
            self._turned = True
            self.stream = not self.stream
            return True
        if self._limit_name in said and "max_completion_tokens" in said and self._limit_name == "max_tokens":
            self._limit_name = "max_completion_tokens"
            return self._settings.reply_tokens is not None
        for name in ("stream_options", "parallel_tool_calls", "temperature"):
            if name in said and name not in self._left_out:
                self._left_out.add(name)
                return True
        return False

    def _message(self, message: Message) -> dict[str, Any]:
        if message.role == "tool":
            return {"role": "tool", "tool_call_id": message.call_id or "", "content": message.content}
        written: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.calls:
            written["tool_calls"] = [_call(call) for call in message.calls]
        if message.reasoning is not None:
            written[self.reasoning_name] = message.reasoning
        return written


def _call(call: ToolCall) -> dict[str, Any]:
    """A call as strict servers take it back: with a plain name, and an object as arguments (vLLM fails on others)."""
    try:
        arguments = call.arguments if isinstance(parsed(call.arguments), dict) else "{}"
    except NotJson:
        arguments = "{}"
    name = _UNUSUAL.sub("_", call.name)[:64] or "unnamed"
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": whole(arguments)}}
