"""Streams and answers as servers really write them, and any bytes at all."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable
from typing import Any

import model_server
import pytest
from byte_servers import bytes_server, events, http
from model_server import Turn, error

from whystall.agent_server.llm.client import ChatClient
from whystall.agent_server.llm.wire import Function, LlmError, Message, Reply

pytestmark = pytest.mark.anyio
Make = Callable[..., ChatClient]
ASK = [Message(role="user", content="why?")]
LOOK = Function(name="look", description="looks", parameters={"type": "object", "properties": {}})


async def _asked(client: ChatClient) -> Reply:
    async with client:
        return await client.complete(ASK, [LOOK])


def _delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def _call(
    index: int | None = 0, id: str | None = None, name: str | None = None, arguments: Any = None
) -> dict[str, Any]:
    """A delta with one piece of a call; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call = {"index": index, "id": id, "function": function}
    return _delta(tool_calls=[{key: value for key, value in call.items() if value is not None}])


_A, _B = ("look", '{"a": 1}'), ("wake", '{"b": 2}')


@pytest.mark.parametrize(
    ("chunks", "calls"),
    [
        pytest.param(
            [_call(0, "x", "look", ""), _call(0, None, None, '{"a"'), _call(0, None, None, ": 1}")],
            [_A],
            id="protocol",
        ),
        pytest.param(
            [
                _call(0, "x", "look", '{"a'),
                _call(1, "y", "wake", '{"b'),
                _call(0, None, None, '": 1}'),
                _call(1, None, None, '": 2}'),
            ],
            [_A, _B],
            id="interleaved",
        ),
        pytest.param(
            [_call(0, "x", "look", '{"a": 1}'), _call(0, "y", "wake", '{"b": 2}')], [_A, _B], id="ollama-all-index-0"
        ),
        pytest.param(
            [_call(0, "x", "look", '{"a": 1}'), _call(0, "y", "look", '{"a": 1}')], [_A, _A], id="same-call-twice"
        ),
        pytest.param(
            [_call(None, None, "look", {"a": 1}), _call(None, None, "wake", {"b": 2})],
            [_A, _B],
            id="objects-no-index-no-id",
        ),
        pytest.param(
            [_call(0, None, "look", '{"a": 1}'), _call(0, None, "look", '{"a": 1}')], [_A, _A], id="no-id-index-0"
        ),
        pytest.param(
            [_call(0, "x", "look", ""), _call(0, "", "", '{"a": '), _call(0, "", "", "1}")],
            [_A],
            id="dashscope-empty-id",
        ),
        pytest.param(
            [_call(0, "r1", "look", ""), _call(0, "r2", None, '{"a": '), _call(0, "r3", None, "1}")],
            [_A],
            id="another-id-each-piece",
        ),
        pytest.param([_call(0, "x", "look", '{"a": '), _call(0, "x", "look", "1}")], [_A], id="name-repeated-with-id"),
        pytest.param(
            [_call(0, None, "look", '{"a": '), _call(0, None, "look", "1}")], [_A], id="name-repeated-without-id"
        ),
        pytest.param(
            [_call(0, "x", "lo", ""), _call(0, None, "ok", ""), _call(0, None, None, '{"a": 1}')], [_A], id="name-cut"
        ),
        pytest.param(
            [_call(0, "x", "look", '{"a": 1}'), _call(1, "x", "wake", '{"b": 2}')], [_A, _B], id="same-id-twice"
        ),
        pytest.param([_call(0, "x", "look")], [("look", "{}")], id="no-arguments"),
        pytest.param([_delta(function_call={"name": "look", "arguments": '{"a": 1}'})], [_A], id="function_call"),
        pytest.param([_delta(tool_calls={"function": {"name": "look", "arguments": '{"a": 1}'}})], [_A], id="no-list"),
        pytest.param(
            [_delta(content=None, tool_calls=None), _call(3, "x", "look", '{"a": 1}'), _delta(tool_calls=[])],
            [_A],
            id="nulls-and-index-3",
        ),
    ],
)
async def test_calls_in_pieces(chunks: list[dict[str, Any]], calls: list[tuple[str, str]], client: Make) -> None:
    with bytes_server(events([*chunks, _delta("tool_calls")])) as url:
        reply = await _asked(client(url, stream=True))
    assert [(call.name, call.arguments) for call in reply.calls] == calls
    assert len({call.id for call in reply.calls}) == len(calls)
    assert all(call.id for call in reply.calls)


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        pytest.param(events([_delta(content="a"), _delta("stop", content="b")]), "ab", id="protocol"),
        pytest.param(events([_delta(content="a"), _delta("stop", content="b")], end=""), "ab", id="no-done"),
        pytest.param(events([_delta(content="a"), _delta(content="b")]), "ab", id="no-finish"),
        pytest.param(
            events([": keep-alive\n\n", "\n\n", _delta(content="a"), ": x\n", _delta("stop", content="b")]),
            "ab",
            id="comments",
        ),
        pytest.param(
            events(["event: message\nid: 1\nretry: 5\n", _delta("stop", content="ab"), "event: done\n"]),
            "ab",
            id="fields",
        ),
        pytest.param(
            events([f"data:{json.dumps(_delta('stop', content='ab'))}\r\n\r\n"], end="data:[DONE]\r\n\r\n"),
            "ab",
            id="crlf",
        ),
        pytest.param(
            events([f"data: {json.dumps(_delta(content=text))}\n" for text in "ab"], end="data: [DONE]\n"),
            "ab",
            id="no-empty-lines",
        ),
        pytest.param(
            events(["data: " + json.dumps(_delta("stop", content="ab"), indent=1).replace("\n", "\ndata: ") + "\n\n"]),
            "ab",
            id="event-of-many-lines",
        ),
        pytest.param(events(["\ufeff", _delta("stop", content="ab")], end=""), "ab", id="byte-order-mark"),
        pytest.param(
            events([{"choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}]}]),
            "ab",
            id="message",
        ),
        pytest.param(
            events(
                [
                    {"type": "ping"},
                    {"code": 0, "message": "Success"},
                    {"choices": []},
                    {"choices": None},
                    _delta("stop", content="ab"),
                ]
            ),
            "ab",
            id="pings",
        ),
        pytest.param(
            events([{"choices": [{"index": 1, "delta": {"content": "no"}}]}, _delta("stop", content="ab")]),
            "ab",
            id="second",
        ),
        pytest.param(
            events([_delta("stop", content=[{"type": "text", "text": "ab"}, {"type": "x"}])]), "ab", id="parts"
        ),
        pytest.param(
            events([r'data: {"choices":[{"delta":{"content":"\ud83d"}}]}' + "\n\n", _delta("stop")]).replace(
                b"data: [DONE]", b'data: {"choices":[{"delta":{"content":"\\ude00 \\ud800"}}]}\n\ndata: [DONE]'
            ),
            "😀 \ufffd",
            id="halves-of-characters",
        ),
        pytest.param(
            http("\n\n\n" + json.dumps({"choices": [{"message": {"content": "ab", "tool_calls": None}}]})),
            "ab",
            id="not-a-stream",
        ),
        pytest.param(http('\ufeff{"choices":[{"message":{"content":"ab"}}]}'), "ab", id="json-with-mark"),
        pytest.param(http(b'{"choices":[{"message":{"content":"a\xff"}}]}'), "a\ufffd", id="no-utf-8"),
        pytest.param(http('{"choices":[{"message":{"content":null,"refusal":"no"}}]}'), "", id="refusal"),
    ],
)
async def test_texts_in_any_dress(answer: bytes, content: str, client: Make) -> None:
    with bytes_server(answer) as url:
        reply = await _asked(client(url, stream=True))
    assert reply.content == content
    assert reply.calls == []


async def test_tokens_are_counted_where_servers_put_them(client: Make) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    last = {"choices": [], "usage": usage}
    for chunks in (
        [_delta("stop", content="x"), last],
        [{**_delta(content="x"), "usage": None}, {**_delta("stop"), "usage": usage}],
        [
            {**_delta(content="x"), "usage": {"prompt_tokens": 10, "completion_tokens": 1}},
            {**_delta("stop"), "usage": usage},
        ],
    ):
        with bytes_server(events(chunks)) as url:
            reply = await _asked(client(url, stream=True))
        assert (reply.tokens_in, reply.tokens_out, reply.estimated) == (10, 5, False)
    for wrong in (
        {},
        [],
        {"prompt_tokens": "10"},
        {"prompt_tokens": -1, "completion_tokens": 5},
        {"prompt_tokens": 1e999},
    ):
        with bytes_server(events([_delta("stop", content="x"), {"choices": [], "usage": wrong}])) as url:
            assert (await _asked(client(url, stream=True))).estimated


async def test_a_stream_left_open_after_its_end_is_not_waited_for(client: Make) -> None:
    began = time.monotonic()
    for end in ("data: [DONE]\n\n", ""):
        with bytes_server(events([_delta("stop", content="x")], end=end), hold=True) as url:
            assert (await _asked(client(url, stream=True, timeout=60.0))).content == "x"
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("chunks", "code", "words"),
    [
        ([{"error": {"message": "CUDA out of memory", "type": "server_error", "code": 500}}], "server_error", "CUDA"),
        ([{"error": {"message": "slow", "type": "rate_limit_error"}}], "rate_limited", "slow"),
        ([{"error": {"message": "context length exceeded", "code": "400"}}], "context_full", "context length"),
        ([{"error": "does not support tools"}], "server_error", "tools"),
        (['error: {"code":400,"message":"bad grammar","type":"invalid_request_error"}\n\n'], "rejected", "bad grammar"),
        ([_delta("insufficient_system_resource")], "server_error", "insufficient_system_resource"),
        (["data: <html>\n\n"], "bad_answer", "not JSON"),
        (["data: [1]\n\n"], "bad_answer", "no chat completion"),
        ([{"choices": []}], "bad_answer", "no choice"),
        ([_call(i, f"c{i}", "look", "{}") for i in range(65)], "too_large", "64 calls"),
        ([_call(0, "x", "look", "x" * 70_000)], "too_large", "arguments"),
        ([_call(0, "x", "n" * 300)], "too_large", "name"),
        ([_delta(content="x" * 300_000)], "too_large", "content"),
        ([_delta(reasoning_content="x" * 700_000)] * 2, "too_large", "reasoning"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_faults_within_a_stream(chunks: list[Any], code: str, words: str, client: Make) -> None:
    for before in ([], [_delta(content="I began. ")]):
        if code == "bad_answer" and before and "choice" in words:
            continue
        with bytes_server(events([*before, *chunks])) as url:
            with pytest.raises(LlmError, match=words) as caught:
                await _asked(client(url, stream=True, retries=0))
            assert caught.value.code == code


async def test_a_stream_that_ends_too_soon_is_cut_off(client: Make) -> None:
    with bytes_server(events([_delta(content="half")], end="")) as url, pytest.raises(LlmError, match="cut_off"):
        await _asked(client(url, stream=True, retries=0))


@pytest.mark.parametrize(
    ("refusal", "settings", "check"),
    [
        ("parameter.enable_thinking must be set to false for non-streaming calls", {}, {"stream": True}),
        ("This model only support stream mode, please enable the stream parameter", {}, {"stream": True}),
        ("tools are not supported in streaming mode", {"stream": True}, {"stream": False}),
        ("Unrecognized request argument supplied: stream_options", {"stream": True}, {"stream_options": None}),
        ("extra fields not permitted: parallel_tool_calls", {}, {"parallel_tool_calls": None}),
        ("Unsupported value: 'temperature' does not support 0.2", {"temperature": 0.2}, {"temperature": None}),
        (
            "Unsupported parameter: 'max_tokens' is not supported here. Use 'max_completion_tokens' instead.",
            {"reply_tokens": 99},
            {"max_tokens": None, "max_completion_tokens": 99},
        ),
    ],
    ids=["thinking", "stream-only", "no-stream", "stream_options", "parallel", "temperature", "max_tokens"],
)
async def test_what_a_server_refuses_is_left_out_from_then_on(
    refusal: str, settings: dict[str, Any], check: dict[str, Any], client: Make
) -> None:
    with model_server.serve([error(400, refusal), Turn("a"), Turn("b")]) as server:
        async with client(server.base_url, retries=0, **settings) as chat:
            assert (await chat.complete(ASK, [LOOK])).content == "a"
            assert (await chat.complete(ASK, [LOOK])).content == "b"
    assert len(server.chats) == 3
    for request in server.chats[1:]:
        assert {name: request.body.get(name) for name in check} == check


async def test_a_server_that_refuses_whatever_is_left_out_ends(client: Make) -> None:
    every = "stream temperature parallel_tool_calls stream_options max_tokens max_completion_tokens"
    with model_server.serve(lambda _: error(400, every)) as server:
        with pytest.raises(LlmError, match="rejected"):
            await _asked(client(server.base_url, retries=3, temperature=0.0, reply_tokens=50))
        assert len(server.chats) <= 7


_WHOLE = {
    "id": "x",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "text",
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4},
}
_JUNK: list[Any] = [
    *(None, True, 0, -1, 10**30, 1e300, "", "x", "\ud800", "\x00\x1b", [], {}, [[]], [None], {"": None}, "9" * 5000),
    {"message": {"message": 1}},
    "[DONE]",
    "tool_calls",
    {"error": {"message": ["x"], "code": True}},
]


def _mutated(value: Any, rng: random.Random) -> Any:
    """`value` with something of it replaced, dropped or doubled."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.15:
        return copy.deepcopy(rng.choice(_JUNK))
    value = copy.copy(value)
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    kind = rng.random()
    if kind < 0.1:
        del value[key]
    elif kind < 0.2 and isinstance(value, list):
        value.append(value[key])
    elif kind < 0.3 and isinstance(value, dict):
        value[rng.choice(["error", "delta", "index", "choices", "code", "object", "function_call"])] = rng.choice(_JUNK)
    else:
        value[key] = _mutated(value[key], rng)
    return value


def _torn(answer: bytes, rng: random.Random) -> bytes:
    """`answer` with bytes changed, put in, taken out or doubled."""
    torn = bytearray(answer)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(torn) + 1)
        what = rng.randrange(4)
        if what == 0:
            torn[at : at + 1] = rng.randbytes(1)
        elif what == 1:
            torn[at:at] = rng.choice(
                [b"\r\n", b"\n\n", b"data: ", b"\x00", b"\xff", b"{", b'"', b"HTTP/1.1 ", b"1" * 30]
            )
        elif what == 2:
            del torn[at : at + rng.randint(1, 30)]
        else:
            torn[at:at] = torn[at : at + rng.randint(1, 100)]
    return bytes(torn)


def _answers(rng: random.Random) -> bytes:
    kind = rng.random()
    body: Any = _WHOLE
    for _ in range(rng.randint(0, 2)):
        body = _mutated(body, rng)
    if kind < 0.1:
        return rng.randbytes(rng.randint(0, 300))
    if kind < 0.55:
        status = rng.choice(
            ["200 OK"] * 20 + ["204 No", "206 P", "301 M", "400 B", "429 T", "500 I", "999 X", "101 U", "100 C"]
        )
        answer = http(json.dumps(body), status=status)
    else:
        message = _WHOLE["choices"][0]["message"]  # type: ignore[index]
        chunks = [_mutated(_delta(**message), rng) for _ in range(rng.randint(1, 4))]
        lines: list[Any] = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        answer = events(lines, end=rng.choice(["", "data: [DONE]\n\n"]))
    return _torn(answer, rng) if rng.random() < 0.4 else answer


@pytest.mark.parametrize("stream", [False, True])
async def test_any_bytes_come_to_a_reply_or_an_error_of_ours(stream: bool, client: Make) -> None:
    rng = random.Random(f"any bytes {stream}")
    outcomes = {"reply": 0, "error": 0}
    sent = b""

    def answer() -> bytes:
        nonlocal sent
        sent = _answers(rng)
        return sent

    with bytes_server(answer) as url:
        async with client(url, stream=stream, retries=0, timeout=5.0) as chat:
            for _ in range(200):
                try:
                    reply = await chat.complete(ASK, [LOOK])
                except LlmError as fault:
                    outcomes["error"] += 1
                    said = str(fault)
                else:
                    outcomes["reply"] += 1
                    said = ""
                    reply.model_dump_json().encode()  # can be written: no halves of characters
                assert "\n" not in said, sent
                assert len(said) < 700, sent
    assert min(outcomes.values()) > 20, outcomes


@pytest.mark.parametrize("place", ["choices", "arguments", "code"])
async def test_deep_nesting_is_no_answer(place: str, client: Make) -> None:
    """Also where it is just shallow enough to be read: what is done with it later goes deeper."""
    whole = {
        "choices": '{"choices": %s}',
        "arguments": '{"choices": [{"message": {"tool_calls": [{"function": {"name": "x", "arguments": %s}}]}}]}',
        "code": '{"error": {"message": "x", "code": %s}}',
    }[place]
    nested = iter([*range(600, 1000, 20), 200_000])
    refused = 0
    with bytes_server(lambda: http(whole % ("[" * (depth := next(nested)) + "]" * depth))) as url:
        async with client(url, retries=0) as chat:
            for _ in range(21):
                try:
                    await chat.complete(ASK, [LOOK])
                except LlmError:
                    refused += 1
    assert refused > (0 if place == "arguments" else 20)


async def test_calls_keep_their_ids_and_get_plain_ones_where_they_have_none(client: Make) -> None:
    calls = [{"function": {"name": "look", "arguments": {"a": 1}}}, {"id": "call_x", "function": {"name": "look"}}]
    with bytes_server(http(json.dumps({"choices": [{"message": {"tool_calls": [*calls, *calls]}}]}))) as url:
        reply = await _asked(client(url))
    assert [call.id for call in reply.calls] == ["call00001", "call_x", "call00002", "call00003"]
    assert reply.calls[0].arguments == '{"a": 1}'
