"""Who may call the MCP server over HTTP: static and signed tokens, scopes, what an unauthorised client is told, TLS."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509.oid import NameOID
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.cli.commands.serve import _certificate as certificate_of
from whystall.agent_server.interfaces.mcp.http import METADATA, RequireScope, choose_token, http_app
from whystall.agent_server.interfaces.mcp.scopes import needed
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.agent_server.interfaces.web import http_server
from whystall.agent_server.interfaces.web.http_server import Certificate
from whystall.agent_server.settings.load import load
from whystall.agent_server.settings.sections.access import AccessSettings
from whystall.tools.contract.errors import ToolError

pytestmark = pytest.mark.anyio
ERAS = ("auto", "legacy")
RECORDED = Path(__file__).parents[2] / "recorded"
LONE = "the-token-of-the-command-line-01"
TOKENS = {"watch": ["observe"], "desk": ["tickets"], "root": ["admin"]}
URL = "https://gpu7.example.com:8377/mcp"
ISSUER = "https://login.example.com"
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
WRITING = {"ticket_draft", "kb_record", "kb_feedback"}


def token_of(name: str) -> str:
    """A static token."""
    return f"a-static-token-of-{name}-0123456789"


@pytest.fixture(autouse=True)
def _tokens(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(state))
    for name in TOKENS:
        monkeypatch.setenv(f"TOKEN_{name}", token_of(name))


def access(**more: Any) -> AccessSettings:
    """The settings with the static tokens."""
    tokens = {name: {"token": {"env": f"TOKEN_{name}"}, "scopes": scopes} for name, scopes in TOKENS.items()}
    return AccessSettings.model_validate({"tokens": tokens, **more})


@contextmanager
def serving(settings: AccessSettings, tls: Certificate | None = None, lone: str | None = LONE) -> Iterator[str]:
    """The address of a server, which is in a thread of this process."""
    with App().closing() as app, http_server.listen("127.0.0.1", 0) as listener:
        made: Starlette = http_app(McpServer(app, chosen=("all",)), "127.0.0.1", lone, access=settings)
        server = http_server.HttpServer(made, tls)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve_on(listener)))
        thread.start()
        try:
            yield http_server.url(listener, "/mcp", "http" if tls is None else "https")
        finally:
            server.leave()
            thread.join(60)


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The public key of the issuer."""
    return public(RSA_KEY, tmp_path_factory.mktemp("keys") / "issuer.pem")


def public(key: Any, path: Path) -> Path:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    path.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return path


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def rs256(key: rsa.RSAPrivateKey) -> Callable[[bytes], bytes]:
    return lambda text: key.sign(text, padding.PKCS1v15(), hashes.SHA256())


def es256(text: bytes) -> bytes:
    r, s = decode_dss_signature(EC_KEY.sign(text, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def signed(sign: Callable[[bytes], bytes] | None = None, header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A token of the issuer (RFC 7515, 9068), made by hand; a claim of None is left out."""
    whole = {"iss": ISSUER, "aud": URL, "sub": "ann", "client_id": "ide", "scope": "observe", "exp": time.time() + 300}
    whole = {name: value for name, value in {**whole, **claims}.items() if value is not None}
    head = {"alg": "RS256", "typ": "at+jwt", "kid": "k1", **(header or {})}
    text = ".".join(b64(json.dumps(part).encode()) for part in (head, whole))
    return f"{text}.{b64((sign or rs256(RSA_KEY))(text.encode()))}"


def client(url: str, token: str, mode: str) -> Client:
    session = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
    return Client(streamable_http_client(url, http_client=session), mode=mode)


def post(url: str, token: str | None, method: str = "tools/list", params: Any = None, **more: Any) -> httpx2.Response:
    """One raw request of a stateless client."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**(params or {}), "_meta": meta}}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28"}
    headers["Mcp-Method"] = method
    if named := (params or {}).get("name") or (params or {}).get("uri"):
        headers["Mcp-Name"] = named
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return httpx2.post(url, json=body, headers=headers, timeout=60, **more)


def challenge(response: httpx2.Response) -> dict[str, str]:
    """The parameters of ``WWW-Authenticate: Bearer name="value", ...``."""
    scheme, _, rest = response.headers["www-authenticate"].partition(" ")
    assert scheme == "Bearer"
    pairs = [part.split("=", 1) for part in rest.split(", ")]
    return {name: value.strip('"') for name, value in pairs}


@pytest.fixture(scope="module")
def server(key_file: Path, state: Path) -> Iterator[str]:
    """A server with static tokens and an issuer whose key it has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHYSTALL_HOME", str(state))
        for name in TOKENS:
            patch.setenv(f"TOKEN_{name}", token_of(name))
        settings = access(url=URL, issuer={"url": ISSUER, "key_file": key_file})
        with serving(settings) as url:
            yield url


def test_a_client_without_a_token_is_led_to_the_issuer(server: str) -> None:
    refused = post(server, None)
    told = challenge(refused)
    assert refused.status_code == 401
    assert told == {"scope": "observe", "resource_metadata": f"https://gpu7.example.com:8377{METADATA}/mcp"}
    for path in (METADATA, f"{METADATA}/mcp"):
        document = httpx2.get(server.removesuffix("/mcp") + path).json()
        assert document["resource"] == URL
        assert document["authorization_servers"] == [ISSUER]
        assert document["scopes_supported"] == ["observe", "tickets", "admin"]
        assert document["bearer_methods_supported"] == ["header"]


def test_without_an_issuer_no_metadata_is_named() -> None:
    with serving(access()) as url:
        assert challenge(post(url, "wrong")).keys() == {"error", "error_description", "scope"}
        assert httpx2.get(url.removesuffix("/mcp") + METADATA).status_code == 404


@pytest.mark.parametrize("mode", ERAS)
async def test_each_token_lists_what_it_may_call(mode: str, server: str) -> None:
    listed = {}
    for name in (*TOKENS, "lone"):
        async with client(server, LONE if name == "lone" else token_of(name), mode) as connected:
            listed[name] = {tool.name for tool in (await connected.list_tools()).tools}
    assert listed["root"] == listed["lone"] >= WRITING
    assert listed["watch"] == listed["root"] - WRITING
    assert listed["desk"] == WRITING | {"artifact_read"}


@pytest.mark.parametrize("mode", ERAS)
async def test_a_call_within_the_scope_works(mode: str, server: str) -> None:
    async with client(server, token_of("watch"), mode) as connected:
        assert not (await connected.call_tool("kb_search", {"query": "checkpoint"})).is_error
        doctor = await connected.call_tool("artifact_read", {"uri": "whystall://schemas/diagnose"})
        assert not doctor.is_error
    async with client(server, signed(scope="openid tickets observe"), mode) as connected:
        assert not (await connected.call_tool("kb_search", {"query": "checkpoint"})).is_error
        unknown = await connected.call_tool("ticket_draft", {"diagnosis": "none"})
        assert "not_found" in unknown.content[0].text  # type: ignore[union-attr]


BEYOND: list[tuple[str, str, dict[str, Any], str]] = [
    ("watch", "tools/call", {"name": "ticket_draft", "arguments": {"diagnosis": "d"}}, "tickets"),
    ("watch", "resources/read", {"uri": "whystall://tickets/1"}, "tickets"),
    ("watch", "resources/read", {"uri": "WHYSTALL://Tickets/1"}, "tickets"),
    ("watch", "tools/call", {"name": "artifact_read", "arguments": {"uri": "whystall://tickets/1"}}, "tickets"),
    ("desk", "tools/call", {"name": "host_snapshot", "arguments": {}}, "observe"),
    ("desk", "tools/call", {"name": "artifact_read", "arguments": {"uri": "whystall://doctor/host"}}, "observe"),
    ("desk", "resources/read", {"uri": "whystall://windows/hang,1,1"}, "observe"),
    ("desk", "made/up", {}, "observe"),
    ("watch", "tools/call", {"name": "diagnose", "arguments": {"ticket": True}}, "observe tickets"),
    ("desk", "tools/call", {"name": "diagnose", "arguments": {"ticket": "yes"}}, "observe tickets"),
]


@pytest.mark.parametrize(("name", "method", "params", "scope"), BEYOND)
def test_a_request_beyond_the_scope_is_403_and_names_the_scope(
    name: str, method: str, params: dict[str, Any], scope: str, server: str
) -> None:
    refused = post(server, token_of(name), method, params)
    told = challenge(refused)
    assert refused.status_code == 403
    assert (told["error"], told["scope"]) == ("insufficient_scope", scope)
    assert told["resource_metadata"].endswith(f"{METADATA}/mcp")


@pytest.mark.parametrize(("name", "method", "params", "scope"), BEYOND)
def test_the_server_refuses_it_too_if_the_gate_read_another_request(
    name: str, method: str, params: dict[str, Any], scope: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RequireScope, "_required", lambda *_: ())
    answer = post(server, token_of(name), method, params).json()
    assert answer["error"]["message"] == f"insufficient_scope: this needs a token for {scope}"


async def test_tickets_are_shown_to_whoever_may_read_them(server: str) -> None:
    async with client(server, LONE, "auto") as connected:
        drafted = {"recording": str(RECORDED / "checkpoint"), "ticket": True}
        ticket = (await connected.call_tool("diagnose", drafted)).structured_content["ticket"]  # type: ignore[index]
    uri = f"whystall://tickets/{ticket}"
    async with client(server, token_of("desk"), "auto") as connected:
        listed = {str(each.uri) for each in (await connected.list_resources()).resources}
        assert uri in listed
        assert all(each.startswith(("whystall://tickets/", "skill://")) for each in listed)
        assert "checkpoint" in (await connected.read_resource(uri)).contents[0].text  # type: ignore[union-attr]
    async with client(server, token_of("watch"), "auto") as connected:
        listed = {str(each.uri) for each in (await connected.list_resources()).resources}
        assert any(each.startswith("whystall://incidents/") for each in listed)
        assert not any(each.startswith("whystall://tickets/") for each in listed)


def test_whatever_writes_tickets_or_cards_needs_their_scope() -> None:
    with App().closing() as app:
        entries = McpServer(app).entries.values()
        assert {entry.name for entry in entries if entry.scope == "tickets"} == WRITING
        assert not [entry.name for entry in entries if entry.scope == "observe" and _writes_tickets(entry)]


def _writes_tickets(entry: Any) -> bool:
    return not entry.read_only and not entry.name.startswith("diagnose")


def test_the_fleet_needs_admin_and_completion_of_ticket_ids_tickets() -> None:
    from whystall.agent_server.interfaces.mcp.fleet import fleet_entries

    with pytest.MonkeyPatch.context() as patch, App().closing() as app:
        patch.setenv("WHYSTALL_FLEET__HOSTS", "node1")
        entries = {entry.name: entry for entry in fleet_entries(app, "en")}
    assert needed("tools/call", {"name": "fleet"}, entries) == ("admin",)
    of_tickets = {"ref": {"type": "ref/resource", "uri": "whystall://tickets/{id}"}}
    assert needed("completion/complete", of_tickets, entries) == ("tickets",)
    assert needed("completion/complete", {"ref": {"type": "ref/prompt", "name": "p"}}, entries) == ("observe",)
    assert needed("tools/call", {"name": "unknown"}, entries) == ()
    assert needed("tools/call", {"name": ["fleet"], "arguments": 3}, entries) == ()


WRONG: dict[str, Callable[[], str]] = {
    "another audience": lambda: signed(aud="https://gpu8.example.com:8377/mcp"),
    "an audience that begins alike": lambda: signed(aud=f"{URL}2"),
    "no audience": lambda: signed(aud=None),
    "another issuer": lambda: signed(iss="https://evil.example.com"),
    "no issuer": lambda: signed(iss=None),
    "expired": lambda: signed(exp=time.time() - 3600),
    "without an end": lambda: signed(exp=None),
    "an endless end": lambda: signed(exp=float("inf")),
    "not valid yet": lambda: signed(nbf=time.time() + 3600),
    "another key": lambda: signed(rs256(rsa.generate_private_key(65537, 2048))),
    "no signature": lambda: signed(lambda _: b"", {"alg": "none"}),
    "an algorithm of another kind of key": lambda: signed(es256, {"alg": "ES256"}),
    "the public key as a shared secret": lambda: signed(_hmac_with_public_key, {"alg": "HS256"}),
    "a changed claim": lambda: _with_scope(signed(), "admin"),
    "no JSON": lambda: f"{b64(b'x')}.{b64(b'y')}.{b64(b'z')}",
    "dots": lambda: "..",
}


def _hmac_with_public_key(text: bytes) -> bytes:
    import hmac as shared

    form = serialization.PublicFormat.SubjectPublicKeyInfo
    pem = RSA_KEY.public_key().public_bytes(serialization.Encoding.PEM, form)
    return shared.new(pem, text, "sha256").digest()


def _with_scope(token: str, scope: str) -> str:
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return f"{head}.{b64(json.dumps({**claims, 'scope': scope}).encode())}.{signature}"


@pytest.mark.parametrize("why", WRONG)
def test_a_signed_token_that_is_wrong_is_401(why: str, server: str, caplog: pytest.LogCaptureFixture) -> None:
    token = WRONG[why]()
    with caplog.at_level(logging.DEBUG):
        refused = post(server, token)
    assert (refused.status_code, challenge(refused)["error"]) == (401, "invalid_token")
    assert token not in refused.text + caplog.text + str(refused.headers)


def test_signed_tokens_are_accepted_with_the_scopes_they_state(server: str) -> None:
    for claims in ({}, {"aud": ["x", URL]}, {"aud": f"{URL}/"}, {"scope": None, "scp": ["observe", 3]}):
        assert post(server, signed(**claims)).status_code == 200, claims
    for claims in ({"scope": None}, {"scope": "openid"}, {"scope": {"observe": 1}}, {"scope": "observer"}):
        listed = post(server, signed(**claims)).json()["result"]["tools"]
        assert [tool["name"] for tool in listed] == ["artifact_read"]  # for what any token may read
        assert post(server, signed(**claims), "tools/call", {"name": "kb_search"}).status_code == 403


@pytest.mark.parametrize("other", ["desk", "signed"])
def test_a_session_belongs_to_the_token_that_opened_it(other: str, server: str) -> None:
    headers = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {token_of('watch')}"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    opened = httpx2.post(server, json=opening, headers=headers, timeout=60)
    session = opened.headers["mcp-session-id"]
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    for token, status in ((token_of("watch"), 200), (token_of("desk") if other == "desk" else signed(), 404)):
        with_session = {**headers, "Mcp-Session-Id": session, "Authorization": f"Bearer {token}"}
        assert httpx2.post(server, json=listing, headers=with_session, timeout=60).status_code == status


class Keys:
    """The JWKS of an issuer on loopback: `keys` by their ids; `asked`: requests so far."""

    def __init__(self) -> None:
        self.asked = 0
        self.keys = [self.jwk("k1", RSA_KEY)]
        this = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                this.asked += 1
                body = json.dumps({"keys": this.keys}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/keys"

    @staticmethod
    def jwk(kid: str, key: rsa.RSAPrivateKey) -> dict[str, str]:
        numbers = key.public_key().public_numbers()
        e, n = (b64(number.to_bytes((number.bit_length() + 7) // 8, "big")) for number in (numbers.e, numbers.n))
        return {"kty": "RSA", "kid": kid, "use": "sig", "e": e, "n": n}


@pytest.fixture
def keys() -> Iterator[Keys]:
    made = Keys()
    thread = threading.Thread(target=made.http.serve_forever)
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


def test_keys_are_fetched_once_and_not_for_anybody(keys: Keys) -> None:
    keys.keys.append({"kty": "oct", "kid": "shared", "k": b64(b"0" * 32)})
    with serving(access(url=URL, issuer={"url": ISSUER, "jwks_url": keys.url})) as url:
        for why in ("another audience", "another issuer", "expired", "no JSON", "dots", "an endless end"):
            assert post(url, WRONG[why]()).status_code == 401
        assert keys.asked == 0
        assert [post(url, signed()).status_code for _ in range(3)] == [200] * 3
        assert keys.asked == 1
        for kid in ("k2", "shared", "", None):  # unknown, or no public key
            assert post(url, signed(header={"kid": kid})).status_code == 401
        assert keys.asked <= 2
        for why in ("another key", "no signature", "the public key as a shared secret"):
            assert post(url, WRONG[why]()).status_code == 401


def test_if_the_issuer_is_down_static_tokens_still_work(keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    keys.http.server_close()
    with serving(access(url=URL, issuer={"url": ISSUER, "jwks_url": keys.url})) as url:
        token = signed()
        down = post(url, token)
        assert (down.status_code, down.json()) == (503, {"error": "unready"})
        assert int(down.headers["retry-after"]) > 0
        assert post(url, token_of("watch")).status_code == 200
    assert "cannot fetch the keys" in caplog.text
    assert token not in caplog.text


@pytest.mark.parametrize(("key", "alg", "status"), [(EC_KEY, "ES256", 200), (RSA_KEY, "ES256", 401)])
def test_a_key_file_states_which_algorithms_it_verifies(key: Any, alg: str, status: int, tmp_path: Path) -> None:
    path = public(key, tmp_path / "issuer.pem")
    with serving(access(url=URL, issuer={"url": ISSUER, "key_file": path})) as url:
        assert post(url, signed(es256, {"alg": alg})).status_code == status


def test_a_static_token_is_revoked_by_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(token_of("file"))
    tokens = {"ci": {"token": {"file": str(file)}, "scopes": ["observe"]}}
    with serving(AccessSettings.model_validate({"tokens": tokens}), lone=None) as url:
        assert post(url, token_of("file")).status_code == 200
        file.write_text(token_of("next"))
        assert post(url, token_of("file")).status_code == 401
        assert post(url, token_of("next")).status_code == 200
        file.unlink()
        assert post(url, token_of("next")).status_code == 401
    assert "[access.tokens.ci] token" in caplog.text
    assert token_of("next") not in caplog.text


def test_weak_and_repeated_tokens_and_wrong_keys_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKEN_desk", "short")
    with pytest.raises(ToolError, match=r"\[access.tokens.desk\] token: shorter than 16"), serving(access()):
        pass
    monkeypatch.setenv("TOKEN_desk", LONE)
    with pytest.raises(ToolError, match="the same as the token of the command line"), serving(access()):
        pass
    monkeypatch.setenv("TOKEN_desk", token_of("desk"))
    wrong = tmp_path / "key.pem"
    wrong.write_text("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    for path, text in ((wrong, "holds no public key"), (tmp_path / "none.pem", "cannot read")):
        settings = access(url=URL, issuer={"url": ISSUER, "key_file": path})
        with pytest.raises(ToolError, match=text), serving(settings):
            pass


def test_the_settings_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "whystall.toml"
    monkeypatch.setenv("WHYSTALL_CONFIG", str(path))
    monkeypatch.delenv("WHYSTALL_TOKEN", raising=False)
    issuer = f'[access.issuer]\nurl = "{ISSUER}"\n'
    faults = {
        issuer + 'key_file = "k"\n': "an issuer needs url",
        f'[access]\nurl = "{URL}"\n{issuer}': "give one of jwks_url and key_file",
        f'[access]\nurl = "{URL}#x"\n': r"without \? and #",
        '[access]\nurl = "http://gpu7/mcp"\n': "https://",
        '[access.tokens.a]\ntoken = "secret"\nscopes = ["observe"]\n': "does not belong in the settings",
        '[access.tokens.a]\ntoken = { env = "A" }\nscopes = ["all"]\n': "give one of 'observe', 'tickets', 'admin'",
        '[access.tokens.a]\ntoken = { env = "A" }\nscopes = []\n': "scopes",
    }
    for text, fault in faults.items():
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(ToolError, match=fault) as refused:
            load()
        assert "secret" not in refused.value.message.replace("a secret does not", "")
    path.write_text('[access.tokens.a]\ntoken = { env = "A" }\nscopes = ["observe"]\n')
    assert load().access.on
    assert choose_token("0.0.0.0", None, None, others=True) == (None, False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate of 127.0.0.1, signed by itself."""
    directory = tmp_path_factory.mktemp("tls")
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder(name, name, EC_KEY.public_key(), 7, now - timedelta(1), now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(EC_KEY, hashes.SHA256())
    )
    chain, key = directory / "chain.pem", directory / "key.pem"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.touch(mode=0o600)
    plain = serialization.NoEncryption()
    key.write_bytes(EC_KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return Certificate(chain, key)


def test_tls(certificate: Certificate) -> None:
    certificate.check()
    with serving(access(), certificate) as url:
        trusting = ssl.create_default_context(cafile=str(certificate.chain))
        assert url.startswith("https://")
        assert post(url, token_of("watch"), verify=trusting).status_code == 200
        with pytest.raises(httpx2.HTTPError):
            post(url, token_of("watch"))
        with pytest.raises(httpx2.HTTPError):
            post(url.replace("https:", "http:"), token_of("watch"))


def test_a_certificate_is_given_with_its_key_or_not_at_all(certificate: Certificate) -> None:
    assert certificate_of(None, None) is None
    assert certificate_of(certificate.chain, certificate.key) == certificate
    for chain, key in ((certificate.chain, None), (None, certificate.key)):
        with pytest.raises(ToolError, match="a certificate needs its key"):
            certificate_of(chain, key)


def test_a_certificate_that_cannot_be_used_is_refused(certificate: Certificate, tmp_path: Path) -> None:
    wrong = [
        Certificate(certificate.key, certificate.key),
        Certificate(tmp_path / "none", certificate.key),
        Certificate(certificate.chain, tmp_path / "none"),
    ]
    for each in wrong:
        with pytest.raises(ToolError, match="cannot use"):
            each.check()
    locked = tmp_path / "locked.pem"
    form, secret = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"password")
    locked.touch(mode=0o600)
    locked.write_bytes(EC_KEY.private_bytes(serialization.Encoding.PEM, form, secret))
    with pytest.raises(ToolError, match="for TLS"):
        Certificate(certificate.chain, locked).check()
    locked.chmod(0o644)
    with pytest.raises(ToolError, match="every user can read"):
        Certificate(certificate.chain, locked).check()
