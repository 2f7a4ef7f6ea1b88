"""TLS: who is not trusted gets no request."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from byte_servers import bytes_server, http

from whystall.agent_server.llm.client import ChatClient
from whystall.agent_server.llm.wire import LlmError, Message

pytestmark = pytest.mark.anyio
Make = Callable[..., ChatClient]
ASK = [Message(role="user", content="why?")]
ANSWER = http(json.dumps({"choices": [{"message": {"content": "trusted"}}]}))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for this machine, with its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    key, cert = file.with_name("key.pem"), file.with_name("cert.pem")
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    words = [*make.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    file.write_text(key.read_text() + cert.read_text())
    return file


async def test_an_authority_that_is_not_known_is_refused_until_it_is_named(
    certificate: Path, client: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with bytes_server(ANSWER, tls=tls) as url:
        async with client(url) as chat:
            with pytest.raises(LlmError, match=r"unreachable: TLS: .* is not trusted: self.signed.*SSL_CERT_FILE"):
                await chat.complete(ASK, [])
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with client(url) as chat:
            assert (await chat.complete(ASK, [])).content == "trusted"


async def test_https_to_a_port_that_speaks_http(client: Make) -> None:
    with bytes_server(ANSWER) as url:
        async with client(url.replace("http:", "https:"), retries=0) as chat:
            with pytest.raises(LlmError, match=r"unreachable: TLS with 127\.0\.0\.1:\d+: .*https"):
                await chat.complete(ASK, [])


async def test_http_to_a_port_that_speaks_https(certificate: Path, client: Make) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with bytes_server(ANSWER, tls=tls) as url:
        async with client(url.replace("https:", "http:"), retries=0) as chat:
            with pytest.raises(LlmError, match="cut_off"):
                await chat.complete(ASK, [])


async def test_silence_within_tls_is_silence(certificate: Path, client: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with bytes_server(b"HTTP/1.1 200 OK\r\n", tls=tls, hold=True) as url:
        async with client(url, retries=0, timeout=1.0) as chat:
            with pytest.raises(LlmError, match="timeout"):
                await chat.complete(ASK, [])
    with bytes_server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", tls=tls) as url:
        async with client(url, retries=0) as chat:
            with pytest.raises(LlmError, match="cut_off"):
                await chat.complete(ASK, [])
