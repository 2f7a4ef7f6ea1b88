"""The client against a server that speaks the protocol: answers, history, retries, bounds, deadlines."""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import anyio
import model_server
import pytest
from byte_servers import bytes_server, http
from model_server import Call, Cut, Die, Raw, Turn, error

from whystall.agent_server.llm.client import ChatClient
from whystall.agent_server.llm.wire import Function, LlmError, Message, Reply
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = pytest.mark.anyio
Make = Callable[..., ChatClient]
KEY = "sk-0123456789abcdefghij"
ASK = [Message(role="user", content="why does it stall? 为什么卡住?")]
LOOK = Function(name="look", description="looks", parameters={"type": "object", "properties": {}})
MIB = 1 << 20
EVENTS: dict[str, Any] = {"content_type": "text/event-stream"}


async def _asked(client: ChatClient, messages: list[Message] | None = None) -> Reply:
    async with client:
        return await client.complete(messages or ASK, [LOOK])


async def _refused(client: ChatClient) -> LlmError:
    with pytest.raises(LlmError) as caught:
        await _asked(client)
    assert "\n" not in str(caught.value)
    assert KEY[4:] not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_the_same_whole_and_in_pieces(stream: bool, client: Make) -> None:
    said = Turn(
        "I look at the disk. 我看磁盘。" * 20,
        calls=[Call("look", {"why": "磁盘 " * 30}), Call("look", '{"broken": '), Call("look", "")],
        extra={"reasoning_content": "first the disk"},
        usage=(321, 45),
    )
    with model_server.serve([said], key=KEY) as server:
        reply = await _asked(client(server.base_url, stream=stream, api_key=KEY))
    assert reply.content == said.content
    assert [call.name for call in reply.calls] == ["look"] * 3
    assert json.loads(reply.calls[0].arguments) == {"why": "磁盘 " * 30}
    assert [call.arguments for call in reply.calls[1:]] == ['{"broken": '.strip(), "{}"]
    assert len({call.id for call in reply.calls}) == 3
    assert (reply.finish, reply.reasoning) == ("tool_calls", "first the disk")
    assert (reply.tokens_in, reply.tokens_out, reply.estimated) == (321, 45, False)
    assert reply.seconds > 0
    request = server.chats[0]
    assert request.stream is stream
    assert request.messages == [{"role": "user", "content": ASK[0].content}]
    assert request.functions["look"] == LOOK.model_dump()
    assert "temperature" not in request.body


async def test_settings_are_sent(client: Make) -> None:
    with model_server.serve([Turn("yes")]) as server:
        await _asked(client(server.base_url, temperature=0.5, reply_tokens=100))
    assert (server.chats[0].body["temperature"], server.chats[0].body["max_tokens"]) == (0.5, 100)
    assert "Authorization" not in server.chats[0].headers


async def test_effort_and_a_call_that_is_needed_are_asked_for_until_they_are_refused(client: Make) -> None:
    needed = [ASK[0].model_copy(update={"must_call": True})]
    refusals = [error(400, "tool_choice 'required' is not supported"), error(400, "unknown field reasoning_effort")]
    with model_server.serve([*refusals, Turn("yes")]) as server:
        await _asked(client(server.base_url, effort="high", retries=0), needed)
    bodies = [request.body for request in server.chats]
    assert [body.get("tool_choice") for body in bodies] == ["required", None, None]
    assert [body.get("reasoning_effort") for body in bodies] == ["high", "high", None]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_model_got_wrong_goes_back_as_strict_servers_take_it(stream: bool, client: Make) -> None:
    """The server refuses a history with calls unanswered, arguments that are no JSON, names that are not plain."""
    wrong = [Call("look", '{"a": '), Call("no such name!", "[1]"), Call("look", {"a": 1})]
    script = [Turn(calls=wrong, extra={"reasoning_content": ""}), Turn("I see")]
    with model_server.serve(script) as server:
        async with client(server.base_url, stream=stream) as chat:
            first = await chat.complete(ASK, [LOOK])
            answers = [Message(role="tool", call_id=call.id, content="{}") for call in first.calls]
            again = Message(role="assistant", content=first.content, calls=first.calls, reasoning=first.reasoning)
            assert (await chat.complete([*ASK, again, *answers], [LOOK])).content == "I see"
    back = server.chats[1].messages[1]
    assert [call["function"] for call in back["tool_calls"]] == [
        {"name": "look", "arguments": "{}"},
        {"name": "no_such_name_", "arguments": "{}"},
        {"name": "look", "arguments": '{"a": 1}'},
    ]
    assert back["reasoning_content"] == ""  # DeepSeek refuses a history of thoughts without it


async def test_thoughts_go_back_under_the_name_they_came_with(client: Make) -> None:
    with model_server.serve([Turn(calls=[Call("look")], extra={"reasoning": "hm"}), Turn("done")]) as server:
        async with client(server.base_url) as chat:
            first = await chat.complete(ASK, [LOOK])
            again = Message(role="assistant", calls=first.calls, reasoning=first.reasoning)
            await chat.complete([*ASK, again, Message(role="tool", call_id=first.calls[0].id, content="{}")], [LOOK])
    assert server.chats[1].messages[1]["reasoning"] == "hm"


async def test_tokens_that_are_not_counted_are_estimated(client: Make) -> None:
    with model_server.serve([Turn("word " * 300, usage=None)]) as server:
        reply = await _asked(client(server.base_url))
    assert reply.estimated
    assert reply.tokens_out == 500
    assert reply.tokens_in == math.ceil(len(server.chats[0].raw) / 3)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (error(429, "slow down", Retry_After="0"), "rate_limited"),
        (error(503, "overloaded", Retry_After=formatdate(time.time() - 5, usegmt=True)), "server_error"),
        (error(529, "overloaded", retry_after_ms="1"), "server_error"),
        (error(500, "oops", Retry_After="0"), "server_error"),
        (Raw(502, "<html><head><title>502 Bad Gateway</title></head></html>", {"Retry-After": "0"}), "server_error"),
        (Cut(Turn("half of it"), after=20), "cut_off"),
        (Cut(Turn("nothing"), after=0), "cut_off"),
    ],
    ids=["429", "503-date", "529-ms", "500", "502-page", "cut-within", "cut-before"],
)
async def test_what_passes_is_asked_again(failure: model_server.Answer, code: str, client: Make) -> None:
    with model_server.serve([failure, Turn("here")]) as server:
        assert (await _asked(client(server.base_url, retries=1))).content == "here"
        assert len(server.chats) == 2
    with model_server.serve([failure, Turn("too late")]) as server:
        assert (await _refused(client(server.base_url, retries=0))).code == code
        assert len(server.chats) == 1


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        (error(401, f"Incorrect API key provided: {KEY}"), "unauthorised", ("401", "API_KEY_FILE", "***")),
        (error(403, "forbidden"), "unauthorised", ("403",)),
        (Raw(400, '{"error":{"code":"Arrearage","message":"Access denied"}}'), "rejected", ("Access denied",)),
        (Raw(429, '{"error":{"code":"insufficient_quota","message":"no"}}'), "rejected", ("429: no",)),
        (error(402, "Insufficient Balance"), "rejected", ("402", "Insufficient Balance")),
        (error(429, "You exceeded your current quota", Retry_After="0"), "rejected", ("quota",)),
        (error(404, "The model `x` does not exist"), "rejected", ("404", "WHYSTALL_LLM_MODEL")),
        (Raw(404, '{"detail":"Not Found"}'), "rejected", ("404", "Not Found", "ends in /v1")),
        (Raw(404, "404 page not found", content_type="text/plain"), "rejected", ("page not found", "/v1")),
        (Raw(405, "", content_type="text/plain"), "rejected", ("405", "BASE_URL")),
        (error(400, "This model's maximum context length is 8192 tokens"), "context_full", ("8192",)),
        (
            Raw(400, '{"error":{"code":400,"message":"too long","type":"exceed_context_size_error"}}'),
            "context_full",
            ("too long",),
        ),
        (
            Raw(500, '{"error":{"message":"the request exceeds the available context size"}}'),
            "context_full",
            ("context size",),
        ),
        (error(400, "Range of input length should be [1, 30720]"), "context_full", ("30720",)),
        (error(400, "registry.ollama.ai/library/x does not support tools"), "rejected", ("can call functions",)),
        (
            error(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
            "rejected",
            ("start the server with function calls",),
        ),
        (Raw(500, '{"error":{"message":"tools param requires --jinja flag"}}'), "rejected", ("function calls",)),
        (Raw(422, '{"detail":[{"loc":["body"],"msg":"field required"}]}'), "rejected", ("field required",)),
        (Raw(200, "<!DOCTYPE html><title>Sign in</title>"), "bad_answer", ("web page",)),
        (Raw(200, "[1, 2]"), "bad_answer", ("no chat completion",)),
        (Raw(200, '{"choices": []}'), "bad_answer", ("no choice",)),
        (Raw(200, '{"code":"InvalidApiKey","message":"Invalid API-key provided."}'), "unauthorised", ("API-key",)),
        (Raw(200, '{"object":"error","message":"no","code":404}'), "rejected", ("no",)),
        (Raw(307, "", {"Location": f"https://elsewhere.example/{KEY}"}), "rejected", ("elsewhere.example", "redirect")),
        (Raw(400, '{"error":"bad\\n\\u001b[31mred\\u202e"}'), "rejected", ("bad \\x1b[31mred\\u202e",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_stays_is_told_at_once(failure: Raw, code: str, words: tuple[str, ...], client: Make) -> None:
    with model_server.serve([failure, Turn("never asked")]) as server:
        fault = await _refused(client(server.base_url, api_key=KEY, retries=5))
        assert len(server.chats) == 1
    assert fault.code == code
    for word in words:
        assert word in str(fault)


async def test_a_key_that_a_server_repeats_in_part_is_not_shown(client: Make) -> None:
    with model_server.serve([error(401, f"key {KEY[:-3]}... of user {KEY[3:]} is bad")]) as server:
        fault = await _refused(client(server.base_url, api_key=KEY))
    assert "key ***... of user *** is bad" in str(fault)


async def test_a_server_that_asks_to_wait_for_long_is_not_waited_for(client: Make) -> None:
    with model_server.serve([error(429, "slow down", Retry_After="3600")]) as server:
        fault = await _refused(client(server.base_url, retries=5))
    assert fault.code == "rate_limited"
    assert "3600 s" in str(fault)


@pytest.mark.parametrize(
    ("part", "packed", "options"),
    [
        (b" " * MIB, False, {}),
        (b" " * MIB, False, {"length": None}),
        (b": keep-alive\n\n" * 80_000, False, {"length": None, **EVENTS}),
        (b"data: " + b"x" * MIB, False, {"length": None, **EVENTS}),
        (b" " * MIB, True, {}),
        (b": keep-alive\n\n" * 80_000, True, EVENTS),
    ],
    ids=["claimed", "unclaimed", "comments", "one-event", "packed", "packed-events"],
)
@pytest.mark.thorough
async def test_a_hundred_megabytes_are_refused_after_a_few(
    part: bytes, packed: bool, options: dict[str, Any], client: Make
) -> None:
    huge = Raw(200, part, repeat=100, **options)
    if packed:
        huge = Raw(200, gzip.compress(part * 100, 1), {"Content-Encoding": "gzip"}, **options)
    with model_server.serve([huge, Turn("never asked")]) as server:
        fault = await _refused(client(server.base_url, stream="event" in huge.content_type))
        assert len(server.chats) == 1
    assert fault.code == "too_large"


async def test_a_packed_answer_within_bounds_is_read(client: Make) -> None:
    body = json.dumps({"choices": [{"message": {"content": "packed"}}]}).encode()
    with model_server.serve([Raw(200, gzip.compress(body), {"Content-Encoding": "gzip"})]) as server:
        assert (await _asked(client(server.base_url))).content == "packed"
        assert server.chats[0].headers["Accept-Encoding"] == "identity"
    for raw in (Raw(200, body, {"Content-Encoding": "gzip"}), Raw(200, body, {"Content-Encoding": "br"})):
        with model_server.serve([raw]) as server:
            assert (await _refused(client(server.base_url))).code == "bad_answer"


@pytest.mark.parametrize(
    "slow",
    [
        Turn("late", delay=60),
        Raw(200, b"\n" * 1000, drip=0.05),
        Raw(200, b": keep-alive\n\n" * 1000, drip=0.05, content_type="text/event-stream", length=None),
        Raw(200, b"data: {}\n\n" * 1000, drip=0.05, content_type="text/event-stream", length=None),
        error(503, "later", Retry_After="0.3"),
    ],
    ids=["silent", "drips", "keeps-alive", "drips-events", "busy"],
)
async def test_nothing_holds_us_beyond_the_deadline(slow: model_server.Answer, client: Make) -> None:
    with model_server.serve(lambda _: slow) as server, anyio.fail_after(15):
        fault = await _refused(client(server.base_url, timeout=1.0, retries=10))
    assert fault.code in ("timeout", "server_error")
    assert "1 s" in str(fault) or "later" in str(fault)


async def test_it_can_be_cancelled_and_asked_again(client: Make) -> None:
    script = [Turn("late", delay=60), Raw(200, b"\n" * 5000, drip=0.05), error(503, "x", Retry_After="15"), Turn("now")]
    with model_server.serve(script) as server:
        async with client(server.base_url) as chat:
            for asked in (1, 2, 3):
                with anyio.move_on_after(60) as scope:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(chat.complete, ASK, [LOOK])
                        while len(server.chats) < asked:
                            await anyio.sleep(0.01)
                        await anyio.sleep(0.1)
                        scope.cancel()
                assert scope.cancelled_caught
            assert (await chat.complete(ASK, [LOOK])).content == "now"


async def test_a_server_that_dies_is_unreachable_from_then_on(client: Make) -> None:
    with model_server.serve([Die()]) as server:
        async with client(server.base_url, retries=1) as chat:
            for _ in range(2):
                with pytest.raises(LlmError) as caught:
                    await chat.complete(ASK, [LOOK])
    assert caught.value.code == "unreachable"
    assert "nothing listens there" in str(caught.value)


async def test_a_name_that_nobody_knows(client: Make) -> None:
    fault = await _refused(client("http://no-such-host.invalid/v1", retries=0))
    assert fault.code == "unreachable"
    assert "DNS" in str(fault)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "ended the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "within its answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "within its answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000 + b"\r\n\r\n{}", "ended the connection"),
        (http('{"choices": [{"message": {"content": "cut', headers={"Content-Length": ""}), "is incomplete"),
    ],
    ids=["nothing", "ssh", "short", "bad-chunk", "long-header", "no-length"],
)
async def test_faults_of_the_protocol(answer: bytes, words: str, client: Make) -> None:
    with bytes_server(answer) as url:
        fault = await _refused(client(url, retries=0))
    assert fault.code == "cut_off"
    assert words in str(fault)


async def test_models_are_listed(client: Make) -> None:
    with model_server.serve([], key=KEY) as server:
        async with client(server.base_url, api_key=KEY) as chat:
            assert await chat.models(5) == ["example"]
        async with client(server.base_url) as chat:
            with pytest.raises(LlmError, match="unauthorised"):
                await chat.models(5)
    for body, listed in (("{}", None), ('{"data": 1}', None), ('{"data": [{"id": "a"}, 1, {"id": 2}]}', ["a"])):
        with bytes_server(http(body)) as url:
            async with client(url) as chat:
                assert await chat.models(5) == listed
    with bytes_server(b"HTTP/1.1 200 OK\r\n", hold=True) as url:
        async with client(url) as chat:
            with pytest.raises(LlmError, match="timeout"):
                await chat.models(0.2)


async def test_proxies_are_those_of_the_environment_but_not_for_this_machine(
    client: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model_server.serve([Turn("direct")]) as server, bytes_server(http("", status="403 Forbidden")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.removesuffix("/v1"))
        assert (await _asked(client(server.base_url))).content == "direct"
        fault = await _refused(client("http://models.invalid/v1"))
    assert fault.code == "unauthorised"  # the proxy's answer, not a name that is not known


def test_an_environment_that_cannot_be_used_is_told_before_anything_is_asked(
    client: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "authorities.pem"
    file.write_text("no certificate")
    for name, value in {"HTTPS_PROXY": "nonsense://proxy", "SSL_CERT_FILE": str(file)}.items():
        with monkeypatch.context() as only:
            only.setenv(name, value)
            with pytest.raises(ToolError) as caught:
                client("https://models.example/v1")
        assert caught.value.code is ErrorCode.NO_MODEL
        assert name in caught.value.remedy
