"""The example model server: the protocol as servers speak it, and every way of breaking it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import model_server
import pytest
from model_server import Call, Cut, Die, Raw, Server, Turn

LOOK = {
    "type": "function",
    "function": {"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def ask(server: Server, messages: Sequence[Any] = (), **body: Any) -> httpx.Response:
    given = list(messages) or [{"role": "user", "content": "why?"}]
    asked = {"model": model_server.MODEL, "messages": given, "tools": [LOOK], **body}
    return httpx.post(f"{server.base_url}/chat/completions", json=asked, timeout=20)


def events(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_answers_come_in_order_and_requests_are_kept() -> None:
    with model_server.serve([Turn("first"), Turn(calls=(Call("look", {"top": 3}), Call("look", {})))]) as server:
        first, second = (ask(server).json()["choices"][0] for _ in range(2))
        assert ask(server).status_code == 500  # the script is over
    assert (first["message"]["content"], first["finish_reason"]) == ("first", "stop")
    calls = second["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"top": 3}, {}]
    assert len({call["id"] for call in calls}) == 2
    assert second["finish_reason"] == "tool_calls"
    assert [list(request.functions) for request in server.chats] == [["look"]] * 3


def test_a_stream_carries_the_same_answer_in_pieces() -> None:
    said = Turn("停在检查点上 " * 20, (Call("look", {"min_ms": 10}), Call("look", {"text": "x" * 100})), usage=(7, 9))
    with model_server.serve(lambda _: said) as server:
        chunks = events(ask(server, stream=True, stream_options={"include_usage": True}))
        silent = events(ask(server, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == said.content
    arguments: dict[int, str] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", [])):
        arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
    assert [json.loads(text) for _, text in sorted(arguments.items())] == [call.arguments for call in said.calls]
    assert len(deltas) > 10
    assert chunks[-1]["usage"]["total_tokens"] == 16
    assert all("usage" not in chunk for chunk in silent)


def test_models_are_listed_and_a_key_is_asked_for() -> None:
    with model_server.serve([Turn("yes")], key="sesame") as server:
        listed = f"{server.base_url}/models"
        assert httpx.get(listed).status_code == 401
        assert ask(server).status_code == 401
        right = {"Authorization": "Bearer sesame"}
        assert [m["id"] for m in httpx.get(listed, headers=right).json()["data"]] == [model_server.MODEL]


def assistant(arguments: str = "{}", id: str = "c1") -> dict[str, Any]:
    call = {"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def answer(id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": "{}"}


USER = {"role": "user", "content": "why?"}


@pytest.mark.parametrize(
    ("messages", "word"),
    [
        ([USER, assistant()], "without an answer"),
        ([USER, assistant(), USER], "without an answer"),
        ([USER, assistant(), answer("c2")], "not made"),
        ([USER, answer()], "not made"),
        ([USER, assistant("{broken"), answer()], "not JSON"),
        ([{"role": "robot", "content": ""}], "unknown role"),
        ([{"role": "user", "content": None}], "not text"),
    ],
)
def test_a_conversation_that_strict_servers_refuse_is_refused(messages: list[Any], word: str) -> None:
    with model_server.serve([Turn("yes")]) as server:
        assert ask(server, [USER, assistant(), answer()]).status_code == 200
        refused = ask(server, messages)
    assert refused.status_code == 400
    assert word in refused.json()["error"]["message"]


def test_other_requests_are_refused() -> None:
    with model_server.serve([]) as server:
        assert ask(server, model="other").status_code == 404
        assert httpx.get(f"{server.base_url}/nothing").status_code == 404
        assert httpx.post(f"{server.base_url}/chat/completions", content=b"no json").status_code == 400
        assert ask(server, tools=[{"type": "function", "function": {"name": "a b"}}]).status_code == 400


def test_errors_carry_their_headers() -> None:
    with model_server.serve([model_server.error(429, "slow down", Retry_After="2")]) as server:
        response = ask(server)
    assert (response.status_code, response.headers["Retry-After"]) == (429, "2")
    assert response.json()["error"]["message"] == "slow down"


def test_an_answer_can_be_cut_anywhere() -> None:
    cuts = [Cut(Turn("long enough"), 0), Cut(Turn("long enough"), 30), Cut(Raw(body="{}" * 50), 7)]
    with model_server.serve(cuts) as server:
        for stream in (False, True, False):
            with pytest.raises(httpx.RemoteProtocolError):
                ask(server, stream=stream)
    assert len(server.requests) == 3


def test_a_huge_body_and_one_without_length() -> None:
    with model_server.serve([Raw(body=b"x" * 65536, repeat=64), Raw(body="no json", length=None)]) as server:
        assert len(ask(server).content) == 4 << 20
        assert ask(server).text == "no json"


def test_a_slow_answer_does_not_hold_up_the_end() -> None:
    with model_server.serve([Raw(body="x" * 1000, drip=1.0), Turn("late", delay=600.0)]) as server:
        url = f"{server.base_url}/chat/completions"
        body = {"model": model_server.MODEL, "messages": [USER]}
        with httpx.stream("POST", url, json=body) as dripping:
            assert next(dripping.iter_raw()) == b"x"
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(url, json=body, timeout=0.2)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("model-server")]


def test_a_server_that_dies_is_gone() -> None:
    with model_server.serve([Turn("alive"), Die()]) as server:
        with httpx.Client() as client:
            body = {"model": model_server.MODEL, "messages": [USER]}
            assert client.post(f"{server.base_url}/chat/completions", json=body).status_code == 200
            with pytest.raises(httpx.TransportError):
                client.post(f"{server.base_url}/chat/completions", json=body)
        with pytest.raises(httpx.ConnectError):
            ask(server)
