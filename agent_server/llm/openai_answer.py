"""Assemble a reply from a completion or the chunks of a stream, in the variants of different servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from whystall.agent_server.llm.faults import Fault, fault_in_answer
from whystall.agent_server.llm.jsontext import NotJson, join_surrogates, parse_json
from whystall.agent_server.llm.protocol import (
    ARGUMENTS_LIMIT,
    CALLS_LIMIT,
    CONTENT_LIMIT,
    FINISH_LIMIT,
    NAME_LIMIT,
    REASONING_LIMIT,
    TOKENS_LIMIT,
)
from whystall.agent_server.llm.wire import Reply, ToolCall
from whystall.tools.contract.text import clean

# Finish reasons of a failure: DeepSeek's, and those of gateways whose server failed.
_FAILED = frozenset({"insufficient_system_resource", "error", "internal_error"})
# Names of the field of reasoning: DeepSeek, DashScope, llama.cpp and older vLLM; Ollama and newer vLLM.
REASONING = ("reasoning_content", "reasoning")


@dataclass
class _Call:
    """An incomplete call."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    size: int = 0

    def add(self, piece: Any) -> None:
        """Append a piece of the arguments as text, or all of them as a JSON value."""
        if piece is None:
            return
        text = piece if isinstance(piece, str) else json.dumps(piece, ensure_ascii=False)
        self.size += len(text)
        if self.size > ARGUMENTS_LIMIT:
            raise Fault("too_large", f"the arguments of a call are longer than {ARGUMENTS_LIMIT >> 10} KiB")
        self.arguments.append(text)

    def complete(self) -> bool:
        """Return whether the arguments are a JSON object."""
        try:
            return isinstance(parse_json("".join(self.arguments)), dict)
        except NotJson:
            return False


class ChatAnswer:
    """Assembles a reply. `reasoning_name`: the field with the reasoning. The rest as in `protocol.Answer`."""

    def __init__(self) -> None:
        self.reasoning_name: str | None = None
        self.finished = False
        self.ended = False
        self._content: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: list[str] = []
        self._sizes = {"content": 0, "refusal": 0, "reasoning": 0}
        self._calls: list[_Call] = []
        self._finish: str | None = None
        self._tokens: tuple[int, int] | None = None
        self._answered = False

    def add(self, chunk: Any) -> None:
        """Add a chunk of a stream, or a whole completion.

        A chunk: ``{"choices": [{"index": 0, "delta": {"content": "The "}, "finish_reason": null}]}``
        """
        if not isinstance(chunk, dict):
            raise Fault("bad_answer", "the answer is JSON, but no chat completion")
        fault = fault_in_answer(chunk)
        if fault is not None:
            raise fault
        self._count(chunk.get("usage"))
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:  # without choices: a count of tokens, a ping
            if isinstance(choice, dict) and choice.get("index") in (0, None):
                self._choice(choice)

    def end(self) -> None:
        self.finished = self.ended = True

    def reply(self, new_ids: Iterator[str]) -> Reply:
        if not self._answered:
            raise Fault("bad_answer", "the answer is JSON, but no chat completion: it holds no choice")
        finish = self._finish or ("tool_calls" if self._calls else "stop")
        if finish in _FAILED:
            raise Fault("server_error", f"the server gave up on its answer: {clean(finish, FINISH_LIMIT)}", again=True)
        tokens = self._tokens or (0, 0)
        return Reply(
            content=join_surrogates("".join(self._content)),
            calls=self._finished_calls(new_ids),
            finish=clean(finish, FINISH_LIMIT),
            refusal=join_surrogates("".join(self._refusal)),
            reasoning=join_surrogates("".join(self._reasoning)) if self.reasoning_name is not None else None,
            tokens_in=tokens[0],
            tokens_out=tokens[1],
            estimated=self._tokens is None,
        )

    def _choice(self, choice: dict[str, Any]) -> None:
        message = choice.get("delta")
        is_piece = isinstance(message, dict) and bool(message)
        if not is_piece:
            message = choice.get("message")
        if isinstance(message, dict):
            self._answered = True
            self._texts(message)
            for call in _calls_of(message):
                self._call(call, is_piece)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self._answered = True
            self._finish = finish
            self.finished = True

    def _texts(self, message: dict[str, Any]) -> None:
        self._text("content", self._content, message.get("content"), CONTENT_LIMIT)
        self._text("refusal", self._refusal, message.get("refusal"), CONTENT_LIMIT)
        for name in REASONING:
            if isinstance(message.get(name), str):
                self.reasoning_name = self.reasoning_name or name
                if name == self.reasoning_name:  # gateways send the same text under both names
                    self._text("reasoning", self._reasoning, message[name], REASONING_LIMIT)

    def _text(self, name: str, into: list[str], value: Any, limit: int) -> None:
        """Append a text, which is a string or a list of typed parts."""
        if isinstance(value, list):
            value = "".join(
                part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
        if not isinstance(value, str) or not value:
            return
        self._sizes[name] += len(value)
        if self._sizes[name] > limit:
            raise Fault("too_large", f"the {name} of the answer is longer than {limit >> 10} KiB")
        into.append(value)

    def _call(self, given: dict[str, Any], piece: bool) -> None:
        """Add a call, or a `piece` of one."""
        function = given.get("function")
        function = function if isinstance(function, dict) else {}
        index, call_id, name = given.get("index"), given.get("id"), function.get("name")
        index = index if isinstance(index, int) else None
        call_id = call_id if isinstance(call_id, str) else ""
        name = name if isinstance(name, str) else ""
        call = self._open_call(index, call_id, name) if piece else None
        if call is None:
            if len(self._calls) >= CALLS_LIMIT:
                raise Fault("too_large", f"the answer makes more than {CALLS_LIMIT} calls")
            call = _Call(index, call_id, name)
            self._calls.append(call)
        else:
            call.id = call.id or call_id
            if name != call.name:
                call.name += name
        if len(call.name) > NAME_LIMIT:
            raise Fault("too_large", f"the name of a function is longer than {NAME_LIMIT} characters")
        call.add(function.get("arguments"))

    def _open_call(self, index: int | None, call_id: str, name: str) -> _Call | None:
        """Return the call that a piece continues; None if it starts one.

        The protocol numbers calls by `index`, but some servers number all of them 0 or none, repeat the name in every
        piece, or change the id with every piece. A name with another id starts a new call, as does a name without an id
        after complete arguments.
        """
        calls = [call for call in self._calls if index is None or call.index == index]
        if not calls:
            return None
        last = calls[-1]
        if not name:
            return last
        if call_id and last.id:
            return last if call_id == last.id else None
        if index is None and not call_id and name != last.name:
            return None
        return None if last.arguments and last.complete() else last

    def _finished_calls(self, new_ids: Iterator[str]) -> list[ToolCall]:
        taken: set[str] = set()
        calls = []
        for call in self._calls:
            call_id = join_surrogates(call.id)
            if not call_id or len(call_id) > NAME_LIMIT or not call_id.isprintable() or call_id in taken:
                call_id = next(name for name in new_ids if name not in taken)
            taken.add(call_id)
            arguments = join_surrogates("".join(call.arguments)).strip() or "{}"
            calls.append(ToolCall(id=call_id, name=join_surrogates(call.name), arguments=arguments))
        return calls

    def _count(self, usage: Any) -> None:
        """Store the server's count of tokens; the last one holds, since some servers count while they write."""
        if not isinstance(usage, dict):
            return
        read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if type(read) is int and type(written) is int and 0 < read <= TOKENS_LIMIT and 0 <= written <= TOKENS_LIMIT:
            self._tokens = (read, written)


def _calls_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    if isinstance(calls, dict):
        calls = [calls]
    found = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    if not found and isinstance(message.get("function_call"), dict):  # the protocol of 2023
        found = [{"index": 0, "function": message["function_call"]}]
    return found
