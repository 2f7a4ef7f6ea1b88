"""The client against a server that speaks Anthropic's Messages API: answers, history, caching, thoughts, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import model_server
import pytest
from model_server import Call, Cut, Raw, Turn, error

from whystall.agent_server.llm.anthropic_answer import MessagesAnswer
from whystall.agent_server.llm.client import ChatClient
from whystall.agent_server.llm.faults import Fault
from whystall.agent_server.llm.protocol import ARGUMENTS_LIMIT, ids
from whystall.agent_server.llm.wire import Function, LlmError, Message, Reply
from whystall.agent_server.settings.sections.llm import LlmSettings

pytestmark = pytest.mark.anyio
Make = Callable[..., ChatClient]
KEY = "sk-ant-0123456789abcdef"
ASK = [Message(role="system", content="diagnose"), Message(role="user", content="why does it stall? 为什么卡住?")]
LOOK = Function(name="look", description="looks", parameters={"type": "object", "properties": {}})
THOUGHTS = [
    {"type": "thinking", "thinking": "first the disk " * 5, "signature": "c2lnbmVk" * 9},
    {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"},
]
MARK = {"type": "ephemeral"}


@pytest.fixture
def claude(client: Make) -> Make:
    """Makes a client that speaks the Messages API."""
    return lambda base_url, **settings: client(base_url, **{"protocol": "anthropic", **settings})


def sent(server: model_server.Server, number: int = 0) -> dict[str, Any]:
    """What was sent to the server, as it was."""
    return dict(json.loads(server.chats[number].raw))


async def asked(client: ChatClient, messages: list[Message] | None = None) -> Reply:
    async with client:
        return await client.complete(messages or ASK, [LOOK])


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_the_same_whole_and_in_pieces(stream: bool, claude: Make) -> None:
    said = Turn(
        "I look at the disk. 我看磁盘。" * 20,
        calls=[Call("look", {"why": "磁盘 " * 30}), Call("look", "")],
        extra={"blocks": THOUGHTS},
        usage=(321, 45),
    )
    with model_server.serve([said], key=KEY) as server:
        reply = await asked(claude(server.base_url, stream=stream, api_key=KEY))
    assert reply.content == said.content
    assert [json.loads(call.arguments) for call in reply.calls] == [{"why": "磁盘 " * 30}, {}]
    assert len({call.id for call in reply.calls}) == 2
    assert reply.finish == "tool_calls"
    assert (reply.tokens_in, reply.tokens_out, reply.estimated) == (321, 45, False), "tokens from the cache count"
    blocks = json.loads(reply.reasoning or "")
    assert blocks[:2] == THOUGHTS
    assert [block["type"] for block in blocks[2:]] == ["text", "tool_use", "tool_use"]


async def test_a_request_is_in_the_form_of_the_protocol(claude: Make) -> None:
    with model_server.serve([Turn("yes")], key=KEY) as server:
        reply = await asked(claude(server.base_url, api_key=KEY, temperature=0.5))
    assert (reply.content, reply.finish, reply.reasoning) == ("yes", "stop", None)
    request, body = server.chats[0], sent(server)
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert request.path == "/v1/messages"
    assert (headers["x-api-key"], headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert "authorization" not in headers
    assert body["tools"] == [{"name": "look", "description": "looks", "input_schema": LOOK.parameters}]
    assert body["system"] == [{"type": "text", "text": "diagnose", "cache_control": MARK}]
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": ASK[1].content, "cache_control": MARK}]}
    ]
    assert (body["max_tokens"], body["temperature"], body["stream"]) == (16_000, 0.5, False)
    assert not body.keys() & {"thinking", "output_config", "tool_choice"}, "the server's own"


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_and_results_go_back_as_the_protocol_wants_them(stream: bool, claude: Make) -> None:
    """All results are one turn, thoughts return unchanged with the calls; a call that was dropped does not."""
    calls = [Call("look", {"a": 1}), Call("no such name!", {}), Call("look", {"a": 2})]
    with model_server.serve([Turn(calls=calls, extra={"blocks": THOUGHTS}), Turn("I see")]) as server:
        async with claude(server.base_url, stream=stream) as chat:
            first = await chat.complete(ASK, [LOOK])
            kept = first.calls[:2]
            results = [Message(role="tool", call_id=call.id, content="{}") for call in kept]
            again = Message(role="assistant", content=first.content, calls=kept, reasoning=first.reasoning)
            assert (await chat.complete([*ASK, again, *results], [LOOK])).content == "I see"
    said, given = sent(server, 1)["messages"][1:]
    assert said["content"][:2] == THOUGHTS
    assert [block["input"] for block in said["content"][2:]] == [{"a": 1}, {}]
    assert [block["tool_use_id"] for block in given["content"]] == [call.id for call in kept]
    marked = [block for turn in (said, given) for block in turn["content"] if "cache_control" in block]
    assert marked == given["content"][-1:], "the conversation so far is cached for the next request"


async def test_what_another_protocol_or_a_wrong_call_left_is_sent_as_text_and_calls(claude: Make) -> None:
    """A call whose arguments are no JSON, and thoughts that are prose, as another server gives them."""
    with model_server.serve([Turn(calls=[Call("look", {})]), Turn("I see")]) as server:
        async with claude(server.base_url) as chat:
            call = (await chat.complete(ASK, [LOOK])).calls[0].model_copy(update={"arguments": '{"a": '})
            said = Message(role="assistant", content=" ", calls=[call], reasoning="first the disk")
            await chat.complete([*ASK, said, Message(role="tool", call_id=call.id, content="")], [LOOK])
    assert sent(server, 1)["messages"][1]["content"] == [
        {"type": "tool_use", "id": call.id, "name": "look", "input": {}}
    ]


async def test_effort_asks_for_adaptive_thinking_and_then_no_call_is_forced(claude: Make) -> None:
    forced = [*ASK[:1], ASK[1].model_copy(update={"must_call": True})]
    with model_server.serve([Turn("yes"), Turn("yes")]) as server:
        await asked(claude(server.base_url, effort="high"), forced)
        await asked(claude(server.base_url), forced)
    assert (sent(server)["output_config"], sent(server)["thinking"]) == ({"effort": "high"}, {"type": "adaptive"})
    assert "tool_choice" not in sent(server)
    assert sent(server, 1)["tool_choice"] == {"type": "any"}


@pytest.mark.parametrize(
    ("refusal", "left_out"),
    [
        ("adaptive thinking is not supported on this model", "thinking"),
        ("This model does not support the effort parameter.", "output_config"),
        ("`temperature` is deprecated for this model.", "temperature"),
    ],
)
async def test_what_a_model_does_not_take_is_left_out(refusal: str, left_out: str, claude: Make) -> None:
    with model_server.serve([error(400, refusal), Turn("yes"), Turn("yes")]) as server:
        async with claude(server.base_url, effort="low", temperature=0.1, retries=0) as chat:
            await chat.complete(ASK, [LOOK])
            await chat.complete(ASK, [LOOK])
    assert [left_out in sent(server, number) for number in range(3)] == [True, False, False]
    rest = {"thinking", "output_config", "temperature"} - {left_out}
    assert rest <= sent(server, 2).keys()


async def test_a_server_without_caching_is_asked_without(claude: Make) -> None:
    refusal = "system.0.cache_control: Extra inputs are not permitted"
    with model_server.serve([error(400, refusal), Turn("yes")]) as server:
        await asked(claude(server.base_url, retries=0))
    assert [request.raw.count(b"cache_control") for request in server.chats] == [2, 0]


async def test_a_thinking_model_that_refuses_a_forced_call_is_asked_without(claude: Make) -> None:
    forced = [*ASK[:1], ASK[1].model_copy(update={"must_call": True})]
    refusal = "Thinking may not be enabled when tool_choice forces tool use."
    with model_server.serve([error(400, refusal), Turn("yes")]) as server:
        await asked(claude(server.base_url, retries=0), forced)
    assert "tool_choice" not in sent(server, 1)


OVERLOADED = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


@pytest.mark.parametrize(
    "busy",
    [
        Raw(529, OVERLOADED, {"Retry-After": "0"}),
        error(429, "too fast", "rate_limit_error", Retry_After="0"),
        Raw(200, f"event: error\ndata: {OVERLOADED}\n\n", content_type="text/event-stream"),
        Cut(Turn("half of an answer"), 500),
    ],
    ids=["overloaded", "rate_limit", "overloaded_in_stream", "cut"],
)
async def test_a_busy_server_is_asked_again(busy: Any, claude: Make) -> None:
    with model_server.serve([busy, Turn("yes")]) as server:
        reply = await asked(claude(server.base_url, stream=True, retries=1))
    assert reply.content == "yes"
    assert len(server.chats) == 2


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (error(401, "invalid x-api-key", "authentication_error"), "unauthorised"),
        (error(400, "prompt is too long: 208310 tokens > 200000 maximum"), "context_full"),
        (error(413, "Request exceeds the maximum size", "request_too_large"), "context_full"),
        (error(529, "Overloaded", "overloaded_error"), "server_error"),
        (Raw(200, '{"object": "list"}'), "bad_answer"),
        (Raw(200, "[]"), "bad_answer"),
        (Turn(calls=[Call("look", {"a": "x" * ARGUMENTS_LIMIT})]), "too_large"),
    ],
)
async def test_an_error_has_a_code(answer: Any, code: str, claude: Make) -> None:
    with model_server.serve([answer]) as server, pytest.raises(LlmError) as caught:
        await asked(claude(server.base_url, retries=0))
    assert caught.value.code == code


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("turn", "finish", "refusal"),
    [
        (Turn("cut off", finish="length"), "length", ""),
        (Turn("", finish="model_context_window_exceeded"), "length", ""),
        (Turn(refusal="I will not"), "content_filter", "I will not"),
        (Turn("", calls=[Call("look", {})], finish="content_filter"), "content_filter", "refusal"),
    ],
)
async def test_why_it_stopped_has_the_words_of_the_driver(
    turn: Turn, finish: str, refusal: str, stream: bool, claude: Make
) -> None:
    with model_server.serve([turn]) as server:
        reply = await asked(claude(server.base_url, stream=stream))
    assert (reply.finish, reply.refusal) == (finish, refusal)


async def test_tokens_that_were_not_counted_are_estimated(claude: Make) -> None:
    with model_server.serve([Turn("yes", usage=None)]) as server:
        reply = await asked(claude(server.base_url))
    assert reply.estimated
    assert reply.tokens_in > 100


def test_pieces_beyond_the_bounds_and_of_no_block_are_not_kept() -> None:
    answer = MessagesAnswer()
    answer.add({"type": "message_start", "message": {"content": []}})
    answer.add({"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": "lost"}})
    answer.add({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "look"}})
    piece = {"type": "input_json_delta", "partial_json": "x" * (ARGUMENTS_LIMIT // 2)}
    for _ in range(2):
        answer.add({"type": "content_block_delta", "index": 0, "delta": piece})
    with pytest.raises(Fault) as caught:
        answer.add({"type": "content_block_delta", "index": 0, "delta": piece})
    assert caught.value.code == "too_large"
    assert answer.reply(ids()).content == ""


@pytest.mark.parametrize("given", ["", "/v1", "/v1/messages", "/v1/messages/"])
def test_the_address_of_the_endpoint_is_accepted(given: str) -> None:
    settings = LlmSettings(base_url=f"https://api.anthropic.com{given}", model="m", protocol="anthropic")
    assert settings.base_url == "https://api.anthropic.com/v1"


async def test_the_models_of_the_server_are_listed(claude: Make) -> None:
    with model_server.serve([], key=KEY) as server:
        async with claude(server.base_url, api_key=KEY) as chat:
            assert await chat.models(5.0) == [model_server.MODEL]
    assert server.requests[0].path == "/v1/models?limit=1000"
