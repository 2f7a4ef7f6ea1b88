"""Assemble a reply from a message of Anthropic's Messages API, or from the events of a stream.

A stream has the events ``message_start``, for each block of content ``content_block_start``, ``content_block_delta``,
``content_block_stop``, then ``message_delta`` and ``message_stop``; ``ping`` and ``error`` may come between. Source:
https://platform.claude.com/docs/en/build-with-claude/streaming
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from whystall.agent_server.llm.faults import Fault, fault_in_answer
from whystall.agent_server.llm.jsontext import join_surrogates
from whystall.agent_server.llm.protocol import (
    ARGUMENTS_LIMIT,
    CALLS_LIMIT,
    CONTENT_LIMIT,
    FINISH_LIMIT,
    NAME_LIMIT,
    REASONING_LIMIT,
    TOKENS_LIMIT,
    object_of,
)
from whystall.agent_server.llm.wire import Reply, ToolCall
from whystall.tools.contract.text import clean

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_THOUGHTS = ("thinking", "redacted_thinking")
_BLOCKS_LIMIT = 4 * CALLS_LIMIT
# Which field of a block the pieces of a stream extend, and its bound in characters, by type of the piece.
_PIECES = {
    "text_delta": ("text", CONTENT_LIMIT),
    "thinking_delta": ("thinking", REASONING_LIMIT),
    "signature_delta": ("signature", REASONING_LIMIT),
    "input_json_delta": ("partial_json", ARGUMENTS_LIMIT),
}
_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class MessagesAnswer:
    """Assembles a reply. See `protocol.Answer`."""

    def __init__(self) -> None:
        self.finished = False
        self.ended = False
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}  # by index of the block, and field
        self._sizes: dict[tuple[int, str], int] = {}
        self._finish: str | None = None
        self._refusal = ""
        self._usage: dict[str, int] = {}
        self._answered = False

    def add(self, chunk: Any) -> None:
        """Add an event of a stream, or a whole message.

        An event: ``{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "The "}}``
        """
        if not isinstance(chunk, dict):
            raise Fault("bad_answer", "the answer is JSON, but no message")
        fault = fault_in_answer(chunk)
        if fault is not None:
            raise fault
        kind, index = chunk.get("type"), chunk.get("index")
        if kind == "message":
            self._message(chunk)
            self.end()
        elif kind == "message_start":
            self._message(_dict(chunk.get("message")))
        elif kind == "content_block_start" and isinstance(index, int):
            self._block(index, _dict(chunk.get("content_block")))
        elif kind == "content_block_delta" and isinstance(index, int):
            self._piece(index, _dict(chunk.get("delta")))
        elif kind == "message_delta":
            self._stop(_dict(chunk.get("delta")))
            self._count(chunk.get("usage"))
        elif kind == "message_stop":
            self.end()

    def end(self) -> None:
        self.finished = self.ended = True

    def reply(self, new_ids: Iterator[str]) -> Reply:
        if not self._answered:
            raise Fault("bad_answer", "the answer is JSON, but no message")
        for (index, name), pieces in self._pieces.items():
            self._blocks[index][name] = _str(self._blocks[index].get(name)) + "".join(pieces)
        self._pieces.clear()
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        uses = [block for block in blocks if block.get("type") == "tool_use"]
        if len(uses) > CALLS_LIMIT:
            raise Fault("too_large", f"the answer makes more than {CALLS_LIMIT} calls")
        calls = _calls(uses, new_ids)
        read, written = sum(self._usage.get(name, 0) for name in _INPUT), self._usage.get("output_tokens", 0)
        finish = self._finish or ("tool_use" if calls else "end_turn")
        return Reply(
            content=join_surrogates("".join(_str(b.get("text")) for b in blocks if b.get("type") == "text")),
            calls=calls,
            finish=_FINISH.get(finish, clean(finish, FINISH_LIMIT)),
            refusal=join_surrogates(self._refusal),
            reasoning=_reasoning(blocks),
            tokens_in=read,
            tokens_out=written,
            estimated=read == 0,
        )

    def _message(self, message: dict[str, Any]) -> None:
        self._answered = self._answered or isinstance(message.get("content"), list)
        content = message.get("content")
        for index, block in enumerate(content if isinstance(content, list) else []):
            self._block(index, _dict(block))
        self._stop(message)
        self._count(message.get("usage"))

    def _block(self, index: int, block: dict[str, Any]) -> None:
        if len(self._blocks) >= _BLOCKS_LIMIT:
            raise Fault("too_large", f"the answer has more than {_BLOCKS_LIMIT} blocks")
        self._blocks[index] = {name: value for name, value in block.items() if name != "partial_json"}
        for name, limit in _PIECES.values():
            if len(_str(block.get(name))) > limit:
                raise _too_long(name, limit)
        if len(json.dumps(block.get("input", {}), ensure_ascii=False)) > ARGUMENTS_LIMIT:
            raise _too_long("input", ARGUMENTS_LIMIT)

    def _piece(self, index: int, delta: dict[str, Any]) -> None:
        name, limit = _PIECES.get(_str(delta.get("type")), ("", 0))
        piece = _str(delta.get(name))
        if index not in self._blocks or not piece:
            return
        key = index, name
        self._sizes[key] = self._sizes.get(key, 0) + len(piece)
        if self._sizes[key] > limit:
            raise _too_long(name, limit)
        self._pieces.setdefault(key, []).append(piece)

    def _stop(self, given: dict[str, Any]) -> None:
        reason = given.get("stop_reason")
        if not isinstance(reason, str) or not reason:
            return
        self._finish, self.finished = reason, True
        if reason == "refusal":
            details = _dict(given.get("stop_details"))
            self._refusal = (_str(details.get("explanation")) or _str(details.get("category")) or reason)[
                :CONTENT_LIMIT
            ]

    def _count(self, usage: Any) -> None:
        """Store the server's counts of tokens, which are cumulative."""
        for name in (*_INPUT, "output_tokens"):
            number = _dict(usage).get(name)
            if type(number) is int and 0 <= number <= TOKENS_LIMIT:
                self._usage[name] = number


def _calls(uses: list[dict[str, Any]], new_ids: Iterator[str]) -> list[ToolCall]:
    """Return the calls of blocks such as ``{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}``.

    The pieces of a stream are the text of the input. It stays in the block as an object, as it must be sent back.
    """
    calls: list[ToolCall] = []
    taken: set[str] = set()
    for block in uses:
        text = _str(block.pop("partial_json", "")).strip()
        arguments = text or json.dumps(_dict(block.get("input")), ensure_ascii=False)
        block["input"] = object_of(arguments)
        id = _str(block.get("id"))
        if not id or len(id) > NAME_LIMIT or not id.isprintable() or id in taken:
            id = block["id"] = next(name for name in new_ids if name not in taken)
        taken.add(id)
        name = _str(block.get("name"))
        if len(name) > NAME_LIMIT:
            raise Fault("too_large", f"the name of a function is longer than {NAME_LIMIT} characters")
        calls.append(ToolCall(id=id, name=join_surrogates(name), arguments=join_surrogates(arguments)))
    return calls


def _reasoning(blocks: list[dict[str, Any]]) -> str | None:
    """Return all blocks as JSON if there are thoughts among them: they must be sent back unchanged, in their order."""
    if not any(block.get("type") in _THOUGHTS for block in blocks):
        return None
    kept = [b for b in blocks if b.get("type") in (*_THOUGHTS, "tool_use") or _str(b.get("text")).strip()]
    return json.dumps(kept)


def _too_long(name: str, limit: int) -> Fault:
    return Fault("too_large", f"the {name} of the answer is longer than {limit >> 10} KiB")


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _str(value: Any) -> str:
    return value if isinstance(value, str) else ""
