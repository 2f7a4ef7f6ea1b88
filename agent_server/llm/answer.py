"""One reply out of a completion, whole or in pieces, whoever's server wrote it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from whystall.agent_server.llm.faults import Fault, of_object
from whystall.agent_server.llm.jsontext import NotJson, parsed, whole
from whystall.agent_server.llm.wire import Reply, ToolCall
from whystall.tools.contract.text import clean

# Characters. A conversation holds the text and the calls of every reply, and is sent again with each request.
CONTENT_LIMIT = 256 << 10
REASONING_LIMIT = 1 << 20
ARGUMENTS_LIMIT = 64 << 10
CALLS_LIMIT = 64
_NAME_LIMIT = 256
_FINISH_LIMIT = 64
_TOKENS_LIMIT = 1_000_000_000
# Reasons to end that are no answer: DeepSeek's, and what gateways write when the server behind them fails.
_FAILED = frozenset({"insufficient_system_resource", "error", "internal_error"})
# Names of the field of thoughts: DeepSeek, DashScope, llama.cpp and older vLLM; Ollama and newer vLLM.
REASONING = ("reasoning_content", "reasoning")


@dataclass
class _Call:
    """A call that is being written."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    size: int = 0

    def add(self, piece: Any) -> None:
        """More of the arguments: text, or all of them as a value."""
        if piece is None:
            return
        text = piece if isinstance(piece, str) else json.dumps(piece, ensure_ascii=False)
        self.size += len(text)
        if self.size > ARGUMENTS_LIMIT:
            raise Fault("too_large", f"the arguments of a call are longer than {ARGUMENTS_LIMIT >> 10} KiB")
        self.arguments.append(text)

    def complete(self) -> bool:
        """Whether the arguments are JSON by now."""
        try:
            return isinstance(parsed("".join(self.arguments)), dict)
        except NotJson:
            return False


class Assembly:
    """Gathers a reply. `reasoning_name`: the field that thoughts came in. `finished`: the model has ended, though
    counts of tokens may follow.
    """

    def __init__(self) -> None:
        self.reasoning_name: str | None = None
        self.finished = False
        self._content: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: list[str] = []
        self._sizes = {"content": 0, "refusal": 0, "reasoning": 0}
        self._calls: list[_Call] = []
        self._finish: str | None = None
        self._tokens: tuple[int, int] | None = None
        self._answered = False

    def add(self, chunk: Any) -> None:
        """Take in a piece of a stream, or a whole completion.

        Raises `Fault`: bad_answer when it is neither, too_large, or whatever error it holds.
        """
        if not isinstance(chunk, dict):
            raise Fault("bad_answer", "the answer is JSON, but no chat completion")
        fault = of_object(chunk)
        if fault is not None:
            raise fault
        self._count(chunk.get("usage"))
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:  # without: a count of tokens, a ping of a gateway
            if isinstance(choice, dict) and choice.get("index") in (0, None):
                self._choice(choice)

    def end(self) -> None:
        """The server says that nothing follows."""
        self.finished = True

    def reply(self, new_ids: Iterator[str]) -> Reply:
        """What was gathered; tokens are 0 and `estimated` where the server did not count. `new_ids` for calls without
        an id of their own. Raises `Fault` (bad_answer) when there was no choice at all.
        """
        if not self._answered:
            raise Fault("bad_answer", "the answer is JSON, but no chat completion: it holds no choice")
        finish = self._finish or ("tool_calls" if self._calls else "stop")
        if finish in _FAILED:
            raise Fault("server_error", f"the server gave up on its answer: {clean(finish, _FINISH_LIMIT)}", again=True)
        tokens = self._tokens or (0, 0)
        return Reply(
            content=whole("".join(self._content)),
            calls=self._finished_calls(new_ids),
            finish=clean(finish, _FINISH_LIMIT),
            refusal=whole("".join(self._refusal)),
            reasoning=whole("".join(self._reasoning)) if self.reasoning_name is not None else None,
            tokens_in=tokens[0],
            tokens_out=tokens[1],
            estimated=self._tokens is None,
        )

    def _choice(self, choice: dict[str, Any]) -> None:
        said = choice.get("delta")
        pieces = isinstance(said, dict) and bool(said)
        if not pieces:
            said = choice.get("message")
        if isinstance(said, dict):
            self._answered = True
            self._texts(said)
            for call in _calls_in(said):
                self._call(call, pieces)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self._answered = True
            self._finish = finish
            self.finished = True

    def _texts(self, said: dict[str, Any]) -> None:
        self._text("content", self._content, said.get("content"), CONTENT_LIMIT)
        self._text("refusal", self._refusal, said.get("refusal"), CONTENT_LIMIT)
        for name in REASONING:
            if isinstance(said.get(name), str):
                self.reasoning_name = self.reasoning_name or name
                if name == self.reasoning_name:  # gateways send the same thoughts under both names
                    self._text("reasoning", self._reasoning, said[name], REASONING_LIMIT)

    def _text(self, name: str, into: list[str], value: Any, limit: int) -> None:
        """Text as it is, or as parts with a type."""
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
        """A call, or a `piece` of one."""
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
        if len(call.name) > _NAME_LIMIT:
            raise Fault("too_large", f"the name of a function is longer than {_NAME_LIMIT} characters")
        call.add(function.get("arguments"))

    def _open_call(self, index: int | None, call_id: str, name: str) -> _Call | None:
        """The call that a piece goes on with; None when it begins one.

        The protocol numbers calls by `index`. Some servers number all of them 0, some not at all, some repeat the name
        in every piece, and some make up another id for every piece: it is a new call where a name comes with another
        id, or with none after arguments that are complete.
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
            call_id = whole(call.id)
            if not call_id or len(call_id) > _NAME_LIMIT or not call_id.isprintable() or call_id in taken:
                call_id = next(name for name in new_ids if name not in taken)
            taken.add(call_id)
            arguments = whole("".join(call.arguments)).strip() or "{}"
            calls.append(ToolCall(id=call_id, name=whole(call.name), arguments=arguments))
        return calls

    def _count(self, usage: Any) -> None:
        """Tokens as counted; the last count holds, since some servers count along."""
        if not isinstance(usage, dict):
            return
        read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if type(read) is int and type(written) is int and 0 < read <= _TOKENS_LIMIT and 0 <= written <= _TOKENS_LIMIT:
            self._tokens = (read, written)


def ids() -> Iterator[str]:
    """Ids for calls that came without one: nine letters and digits, since templates of Mistral take no other."""
    return (f"call{number:05d}" for number in itertools.count(1))


def _calls_in(said: dict[str, Any]) -> list[dict[str, Any]]:
    calls = said.get("tool_calls")
    if isinstance(calls, dict):
        calls = [calls]
    found = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    if not found and isinstance(said.get("function_call"), dict):  # the protocol of 2023
        found = [{"index": 0, "function": said["function_call"]}]
    return found
