"""Requests to real servers on loopback that answer, refuse, fall silent and send too much."""

from __future__ import annotations

import gzip
import json
import os
import socket
from urllib.parse import quote

import pytest
from byte_servers import bytes_server, http

from whystall.agent_server.outbound.client import Client, Undelivered
from whystall.agent_server.outbound.redact import redact, request_text
from whystall.agent_server.outbound.request import Request, Response, as_json

pytestmark = pytest.mark.anyio
SECRET = "glpat-0123456789abcdef"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.lower().endswith("_proxy") or name.startswith("SSL_CERT"):
            monkeypatch.delenv(name)


async def sent(url: str, timeout: float = 20.0, limit: int = 1 << 20) -> Response:
    async with Client(timeout, limit) as client:
        return await client.send(Request("POST", url, {"PRIVATE-TOKEN": SECRET}, as_json({"a": "ü"}), (SECRET,)))


async def refused(url: str, timeout: float = 20.0, limit: int = 1 << 20) -> Undelivered:
    with pytest.raises(Undelivered) as error:
        await sent(url, timeout, limit)
    return error.value


async def test_an_answer_comes_back_with_its_headers() -> None:
    with bytes_server(http('{"iid": 3}', status="201 Created", headers={"X-Next-Page": "2"})) as url:
        response = await sent(url)
    assert (response.status, response.json(), response.headers["x-next-page"]) == (201, {"iid": 3}, "2")


async def test_a_packed_answer_is_unpacked() -> None:
    body = gzip.compress(b'{"a": 1}')
    with bytes_server(http(body, headers={"Content-Encoding": "gzip"})) as url:
        assert (await sent(url)).json() == {"a": 1}


@pytest.mark.parametrize(
    ("status", "code", "again", "unknown"),
    [
        ("302 Found", "rejected", False, False),
        ("400 Bad Request", "rejected", False, False),
        ("401 Unauthorized", "unauthorised", False, False),
        ("403 Forbidden", "unauthorised", False, False),
        ("404 Not Found", "rejected", False, False),
        ("408 Request Timeout", "timeout", True, True),
        ("409 Conflict", "rejected", True, False),
        ("422 Unprocessable", "rejected", False, False),
        ("429 Too Many", "rate_limited", True, False),
        ("500 Error", "server_error", True, True),
        ("501 Not Implemented", "server_error", False, False),
        ("503 Unavailable", "server_error", True, True),
    ],
)
async def test_what_a_status_means(status: str, code: str, again: bool, unknown: bool) -> None:
    with bytes_server(http('{"message": "no"}', status=status, headers={"Location": "http://127.0.0.1:1/"})) as url:
        error = await refused(url)
    assert (error.code, error.again, error.unknown) == (code, again, unknown)
    assert error.status == int(status[:3])
    assert "no" in error.message


async def test_a_status_that_is_allowed_is_an_answer() -> None:
    with bytes_server(http("{}", status="404 Not Found")) as url:
        async with Client() as client:
            assert (await client.send(Request("GET", url), allowed={404})).status == 404


async def test_the_wait_that_a_server_asks_for_is_told() -> None:
    with bytes_server(http("", status="429 Too Many", headers={"Retry-After": "7"})) as url:
        assert (await refused(url)).wait == 7.0
    limited = {"X-RateLimit-Remaining": "0", "Retry-After": "9"}  # GitHub's secondary limit comes as 403
    with bytes_server(http("", status="403 Forbidden", headers=limited)) as url:
        error = await refused(url)
    assert (error.code, error.wait, error.again) == ("rate_limited", 9.0, True)
    used_up = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "32503679999"}
    with bytes_server(http("", status="403 Forbidden", headers=used_up)) as url:
        error = await refused(url)
    assert error.code == "rate_limited"
    assert error.wait is not None
    assert error.wait > 1e9


async def test_silence_ends_and_leaves_open_what_was_done() -> None:
    with bytes_server(b"", hold=True) as url:
        error = await refused(url, timeout=0.3)
    assert (error.code, error.again, error.unknown) == ("timeout", True, True)


async def test_a_connection_that_breaks_leaves_open_what_was_done() -> None:
    for answer in (b"", b"HTTP/1.1 201 Created\r\nContent-Length: 50\r\n\r\n{"):
        with bytes_server(answer) as url:
            error = await refused(url)
        assert (error.code, error.again, error.unknown) == ("cut_off", True, True)


async def test_where_nothing_listens_nothing_was_done() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    error = await refused(f"http://127.0.0.1:{port}/")
    assert (error.code, error.again, error.unknown) == ("unreachable", True, False)


async def test_garbage_is_no_answer() -> None:
    with bytes_server(b"\x00\xff garbage\r\n\r\n") as url:
        error = await refused(url)
    assert (error.code, error.unknown) == ("cut_off", True)


async def test_a_large_body_is_not_read() -> None:
    def flood() -> bytes:
        return http(b"x" * (3 << 20), headers={"Content-Length": str(100 << 20)})

    with bytes_server(flood) as url:
        error = await refused(url)
    assert (error.code, error.unknown, error.again) == ("too_large", True, False)
    with bytes_server(http(gzip.compress(b"0" * (3 << 20)), headers={"Content-Encoding": "gzip"})) as url:
        assert (await refused(url)).code == "too_large"
    with bytes_server(http(b"y" * (3 << 20), status="500 Error")) as url:
        assert (await refused(url)).code == "server_error"


async def test_no_error_holds_the_secret() -> None:
    said = json.dumps({"message": f"token {SECRET} and {SECRET[:14]} are unknown"})
    with bytes_server(http(said, status="401 Unauthorized")) as url:
        error = await refused(url)
    assert "0123" not in str(error)
    assert "unknown" in error.message


@pytest.mark.parametrize("url", ["http://", "ftp://127.0.0.1/", "http://[::1", "nonsense"])
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    error = await refused(url)
    assert (error.unknown, error.status) == (False, 0)


async def test_a_proxy_does_not_stand_before_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with bytes_server(http("{}")) as url:
        assert (await sent(url)).status == 200


def test_a_dry_run_shows_all_but_the_secrets() -> None:
    secret = "k/ey=with+signs"
    request = Request(
        "POST", "https://x.test/h?key=k%2Fey%3Dwith%2Bsigns", {"A": secret}, b'{"k":"k/ey=with+signs"}', (secret,)
    )
    text = request_text(request)
    assert text == 'POST https://x.test/h?key=***\nA: ***\n\n{\n  "k": "***"\n}'
    assert secret not in repr(request).replace(str(request.headers), "").replace(str(request.body), "")
    assert request_text(Request("GET", "https://x.test/\x1b[2J")) == "GET https://x.test/\\x1b[2J"
    assert redact("nothing", ("",)) == "nothing"


@pytest.mark.parametrize("secret", ["n+uTbRThYtJBrfpMFTA4NHOCp3hFV42/Jhnl12rWhAg=", "a/b+c=d/e+f=g/h+i=j/k+l=m/n"])
def test_a_secret_that_addresses_write_otherwise_is_struck_as_one(secret: str) -> None:
    for text in (f"key {secret}.", f"key {quote(secret, safe='')}."):
        assert redact(text, (secret, f"v1,{secret}")) == "key ***."
