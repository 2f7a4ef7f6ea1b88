"""Encode requests for the chat protocol, and adapt them to what a server refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from whystall.agent_server.llm.jsontext import NotJson, join_surrogates, parse_json
from whystall.agent_server.llm.openai_answer import ChatAnswer
from whystall.agent_server.llm.protocol import plain_name
from whystall.agent_server.llm.wire import Function, Message, ToolCall
from whystall.agent_server.settings.sections.llm import LlmSettings


class ChatDialect:
    """OpenAI's chat completions."""

    path = "chat/completions"
    models_path = "models"

    def __init__(self, settings: LlmSettings) -> None:
        self._settings = settings
        self.stream = settings.stream
        self._latest = ChatAnswer()
        self._reasoning_name = "reasoning_content"
        self._left_out: set[str] = set()
        self._stream_toggled = False
        self._limit_name = "max_tokens"

    def headers(self, key: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def answer(self) -> ChatAnswer:
        self._latest = ChatAnswer()
        return self._latest

    def body(self, messages: Sequence[Message], functions: Sequence[Function]) -> dict[str, Any]:
        """Return the body of a request; thoughts go back under the name that the latest ones came with."""
        self._reasoning_name = self._latest.reasoning_name or self._reasoning_name
        options: dict[str, Any] = {"stream": self.stream}
        if self.stream:
            options["stream_options"] = {"include_usage": True}
        if functions:
            options["parallel_tool_calls"] = True  # off by default in llama.cpp and DashScope
            if messages[-1].must_call:
                options["tool_choice"] = "required"
        if self._settings.effort is not None:
            options["reasoning_effort"] = self._settings.effort
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
        """Adapt to the error message `refusal`; return whether anything changed.

        Thinking models of DashScope and ModelScope only stream, other servers call functions only without streaming;
        some models accept no temperature; strict servers refuse unknown options.
        """
        refusal = refusal.lower()
        if not self._stream_toggled and re.search(r"\bstream(?!_options)", refusal):
            self._stream_toggled = True
            self.stream = not self.stream
            return True
        if self._limit_name in refusal and "max_completion_tokens" in refusal and self._limit_name == "max_tokens":
            self._limit_name = "max_completion_tokens"
            return self._settings.reply_tokens is not None
        for name in ("stream_options", "parallel_tool_calls", "tool_choice", "reasoning_effort", "temperature"):
            if name in refusal and name not in self._left_out:
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
            written[self._reasoning_name] = message.reasoning
        return written


def _call(call: ToolCall) -> dict[str, Any]:
    """Encode a call for strict servers: a plain name, and an object as arguments (vLLM fails on others)."""
    arguments = join_surrogates(call.arguments) if _is_object(call.arguments) else "{}"
    return {"id": call.id, "type": "function", "function": {"name": plain_name(call.name), "arguments": arguments}}


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except NotJson:
        return False
