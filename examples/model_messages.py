"""The protocol of Anthropic's Messages API for the example server: requests in, answers and events out.

Requests become those of chat completions, so that every policy answers over both protocols.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model_http import Turn

Json = dict[str, Any]
PATH = "/v1/messages"
VERSION = "2023-06-01"
PIECE = 24
"""Characters of text per event."""
_FINISH = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


def fault_of(body: Json, headers: Mapping[str, str]) -> str | None:
    """Return why a strict server would refuse a request; None if it would not."""
    if {name.lower(): value for name, value in headers.items()}.get("anthropic-version") != VERSION:
        return "anthropic-version: header is required"
    if type(body.get("max_tokens")) is not int:
        return "max_tokens: Field required"
    for tool in body.get("tools") or []:
        if (tool.get("input_schema") or {}).get("type") != "object":
            return f"tools: {tool.get('name')}: input_schema is not a schema of an object"
    if (body.get("thinking") or {}).get("type") == "adaptive" and (body.get("tool_choice") or {}).get("type") == "any":
        return "Thinking may not be enabled when tool_choice forces tool use."
    marks = 0
    role = "assistant"
    waiting: set[Any] = set()
    for at, message in enumerate(body.get("messages") or []):
        if message.get("role") == role:
            return f"messages.{at}: roles must alternate"
        role = message.get("role")
        answered = set()
        for block in _blocks(message):
            marks += "cache_control" in block
            if block.get("type") == "text" and not str(block.get("text")).strip():
                return f"messages.{at}: text content blocks must be non-empty"
            if block.get("type") == "tool_result":
                answered.add(block.get("tool_use_id"))
            if block.get("type") == "tool_use" and not isinstance(block.get("input"), dict):
                return f"messages.{at}: tool_use.input: Input should be a valid dictionary"
        if answered != waiting:
            return (
                f"messages.{at}: tool_use without tool_result, or the reverse: {sorted(map(str, answered ^ waiting))}"
            )
        waiting = {b.get("id") for b in _blocks(message) if b.get("type") == "tool_use"}
    marks += sum("cache_control" in block for block in _blocks({"content": body.get("system")}))
    if marks > 4:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."
    return "messages: the last message must be of the user" if role != "user" else None


def as_chat(body: Json) -> Json:
    """Return a request in the form of chat completions."""
    system = "".join(block["text"] for block in _blocks({"content": body.get("system")}))
    messages: list[Json] = [{"role": "system", "content": system}]
    for message in body.get("messages") or []:
        blocks = _blocks(message)
        text = "".join(block["text"] for block in blocks if block.get("type") == "text")
        results = [block for block in blocks if block.get("type") == "tool_result"]
        messages += [{"role": "tool", "tool_call_id": b["tool_use_id"], "content": b["content"]} for b in results]
        uses = [
            {"id": b["id"], "function": {"name": b["name"], "arguments": json.dumps(b["input"], ensure_ascii=False)}}
            for b in blocks
            if b.get("type") == "tool_use"
        ]
        if text or uses or not results:
            calls = {"tool_calls": uses} if uses else {}
            messages.append({"role": message["role"], "content": text, **calls})
    tools = [
        {"function": {"name": t["name"], "description": t.get("description", ""), "parameters": t["input_schema"]}}
        for t in body.get("tools") or []
    ]
    return {"model": body.get("model"), "stream": body.get("stream", False), "messages": messages, "tools": tools}


def message(turn: Turn, calls: Sequence[tuple[str, str, str]], head: Json) -> Json:
    """Return an answer. `calls`: id, name and arguments; `head`: id and model."""
    content = list(turn.extra.get("blocks", []))
    content += [{"type": "text", "text": turn.content}] if turn.content else []
    for id, name, arguments in calls:
        content.append({"type": "tool_use", "id": id, "name": name, "input": _input(arguments)})
    return {**_started(head, turn), "content": content, **_stopped(turn)}


def events(turn: Turn, calls: Sequence[tuple[str, str, str]], head: Json) -> Iterator[Json]:
    """Yield the same answer as the events of a stream."""
    yield {"type": "message_start", "message": _started(head, turn)}
    yield {"type": "ping"}
    parts: list[tuple[Json, list[Json]]] = []
    for block in turn.extra.get("blocks", []):
        thought = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block.get("thinking", ""))]
        sign = [{"type": "signature_delta", "signature": block["signature"]}] if "signature" in block else []
        empty = {"thinking": "", "signature": ""} if block["type"] == "thinking" else {}
        parts.append(({**block, **empty}, thought + sign))
    if turn.content:
        text = [{"type": "text_delta", "text": piece} for piece in _pieces(turn.content)]
        parts.append(({"type": "text", "text": ""}, text))
    for id, name, arguments in calls:
        pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *_pieces(arguments))]
        parts.append(({"type": "tool_use", "id": id, "name": name, "input": {}}, pieces))
    for index, (block, deltas) in enumerate(parts):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stopped = _stopped(turn)
    usage = {"output_tokens": stopped.pop("usage", {}).get("output_tokens", 0)}
    yield {"type": "message_delta", "delta": stopped, **({"usage": usage} if turn.usage is not None else {})}
    yield {"type": "message_stop"}


def _started(head: Json, turn: Turn) -> Json:
    usage = {"usage": {**_usage(turn), "output_tokens": 1}} if turn.usage is not None else {}
    return {
        "id": f"msg_{head['id']}",
        "type": "message",
        "role": "assistant",
        "model": head["model"],
        "content": [],
        **usage,
    }


def _stopped(turn: Turn) -> Json:
    finish = turn.finish or ("tool_calls" if turn.calls else "stop")
    refused = (
        {"stop_details": {"type": "refusal", "category": None, "explanation": turn.refusal}} if turn.refusal else {}
    )
    usage = {} if turn.usage is None else {"usage": {**_usage(turn), "output_tokens": turn.usage[1]}}
    return {
        "stop_reason": "refusal" if turn.refusal else _FINISH.get(finish, finish),
        "stop_sequence": None,
        **refused,
        **usage,
    }


def _usage(turn: Turn) -> Json:
    """Return the tokens that were read: half of them from the cache."""
    read = turn.usage[0] if turn.usage else 0
    return {"input_tokens": read - read // 2, "cache_creation_input_tokens": 0, "cache_read_input_tokens": read // 2}


def _input(arguments: str) -> Json:
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _blocks(message: Json) -> list[Json]:
    content = message.get("content") or []
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))
