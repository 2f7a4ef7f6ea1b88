"""The section ``llm``: how to reach the language model, and the limits of a diagnosis that it drives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from whystall.agent_server.settings.loopback import is_loopback
from whystall.agent_server.settings.secret import Secret, read_private
from whystall.agent_server.settings.section import Section
from whystall.agent_server.settings.sources import LLM_PREFIX as PREFIX
from whystall.tools.contract.errors import ErrorCode, ToolError

_KEY_LIMIT = 4096
_ENDPOINTS = ("/chat/completions", "/messages")


def _printable(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("it holds unprintable characters, or blanks around it")
    return text


ModelName = Annotated[
    str,
    Field(min_length=1, max_length=200, description="the model's name, as the server knows it"),
    AfterValidator(_printable),
]
"""The name of a model in settings."""


class LlmSettings(Section):
    """The server of a model, and the limits of a diagnosis that the model drives."""

    model_config = ConfigDict(protected_namespaces=())

    base_url: Annotated[
        str,
        Field(
            max_length=2000,
            description="where the server's API begins: https://host/v1. Without a path /v1 is added, since vLLM,"
            " Ollama and llama.cpp answer there; a path that is given is kept",
        ),
    ]
    model: ModelName
    protocol: Annotated[
        Literal["openai", "anthropic"],
        Field(description="openai: chat completions; anthropic: the Messages API, with prompt caching"),
    ] = "openai"
    api_key: Annotated[
        Secret | None,
        Field(
            description="sent as a bearer token, or as x-api-key (anthropic); other processes may read a process's"
            " environment"
        ),
    ] = None
    api_key_file: Annotated[
        Path | None, Field(description="a file with the key in it, readable by its owner only (mode 0600)")
    ] = None
    plain_http: Annotated[bool, Field(description="send the key unencrypted over http:// to another host")] = False
    stream: Annotated[
        bool,
        Field(
            description="ask for answers in pieces: for servers that offer nothing else, and proxies that cut silent"
            " connections. Off by default, as servers differ most in how they stream function calls"
        ),
    ] = False
    timeout: Annotated[
        float, Field(ge=1, le=3600, description="seconds for one answer, its retries and pauses included")
    ] = 120.0
    retries: Annotated[
        int, Field(ge=0, le=10, description="how often a request is repeated when the server is busy or fails")
    ] = 2
    temperature: Annotated[
        float | None,
        Field(
            ge=0,
            le=2,
            description="0 to 2; unset: the server's own, since some models refuse any other, and others repeat"
            " themselves at 0",
        ),
    ] = None
    reply_tokens: Annotated[
        int | None,
        Field(
            ge=16,
            le=1_000_000,
            description="tokens of one answer with its thoughts; unset: the server's, and 16,000 for anthropic",
        ),
    ] = None
    effort: Annotated[
        Literal["low", "medium", "high", "xhigh", "max"] | None,
        Field(
            description="how much the model may think: reasoning_effort, or output_config.effort with adaptive thinking"
            " (anthropic); unset: the server's. It is left out if the server refuses it"
        ),
    ] = None
    rerank: Annotated[
        bool, Field(description="let the model choose among the first incidents that a search finds; see rerank_cards")
    ] = True
    rerank_cards: Annotated[
        int,
        Field(
            ge=2,
            le=100,
            description="incidents that the model compares: of 60 symptoms, 40 held the right one for 93 %",
        ),
    ] = 40
    rerank_timeout: Annotated[
        float, Field(ge=0.5, le=600, description="seconds that a search waits for the model, retries included")
    ] = 20.0
    max_steps: Annotated[int, Field(ge=1, le=100, description="answers of the model per diagnosis")] = 12
    max_seconds: Annotated[
        float, Field(ge=1, le=7200, description="seconds per diagnosis, for the model's answers and its observations")
    ] = 600.0
    max_tokens: Annotated[
        int, Field(ge=1000, le=100_000_000, description="tokens per diagnosis, in and out together")
    ] = 300_000
    max_money: Annotated[
        float | None,
        Field(gt=0, le=1_000_000, description="per diagnosis, in the currency of the prices (both needed)"),
    ] = None
    price_in: Annotated[
        float | None, Field(ge=0, le=1_000_000, description="of a million tokens that the model reads")
    ] = None
    price_out: Annotated[
        float | None, Field(ge=0, le=1_000_000, description="of a million tokens that the model writes")
    ] = None

    @field_validator("base_url")
    @classmethod
    def _normal_url(cls, text: str) -> str:
        return normal_url(text)

    @model_validator(mode="after")
    def _fit_together(self) -> LlmSettings:
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError(f"{PREFIX}API_KEY and {PREFIX}API_KEY_FILE are both set")
        if self.max_money is not None and (self.price_in is None or self.price_out is None):
            raise ValueError(f"{PREFIX}MAX_MONEY needs {PREFIX}PRICE_IN and {PREFIX}PRICE_OUT")
        keyed = self.api_key is not None or self.api_key_file is not None
        if keyed and self.unencrypted and not self.plain_http:
            raise ValueError(
                f"the key would go unencrypted to {self.host}: use https://, or on a network that you trust"
                f" set {PREFIX}PLAIN_HTTP=1"
            )
        return self

    @property
    def host(self) -> str:
        """The server's host and port."""
        return urlsplit(self.base_url).netloc

    @property
    def unencrypted(self) -> bool:
        """Whether requests go over a network unencrypted."""
        url = urlsplit(self.base_url)
        return url.scheme == "http" and not is_loopback(url.hostname or "")

    def key(self) -> str:
        """Read the API key; empty if none is set. Raises `ToolError` (no_model), which never holds the key."""
        if self.api_key is not None:
            name = self.api_key.env or "[llm] api_key"
            try:
                key = self.api_key.read(name)
            except ToolError as error:
                raise ToolError(ErrorCode.NO_MODEL, error.message, error.remedy) from None
        elif self.api_key_file is not None:
            name = f"{PREFIX}API_KEY_FILE"
            raw = read_private(name, self.api_key_file, _KEY_LIMIT + 2, ErrorCode.NO_MODEL)
            name, key = f"{name}: {self.api_key_file}", raw.decode("ascii", "replace").strip()
        else:
            return ""
        if not key or len(key) > _KEY_LIMIT or not key.isascii() or not key.isprintable() or " " in key:
            rule = f"it is no line of at most {_KEY_LIMIT} printable ASCII characters without blanks"
            message = f"{name}: the key is not usable: {rule if key else 'it is empty'}"
            raise ToolError(ErrorCode.NO_MODEL, message, "give the key in one line, and nothing else")
        return key


def normal_url(text: str, endpoints: Sequence[str] = _ENDPOINTS, key: str = f"{PREFIX}API_KEY_FILE") -> str:
    """Return scheme, host and path without a final slash and without one of `endpoints`; ``/v1`` for no path.

    `key`: the setting of the key. Raises ValueError, which does not repeat `text`: it may hold a key.
    """
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("no URL: it holds blanks or characters that are not ASCII")
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise ValueError("no URL") from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0:
        raise ValueError("a URL begins with http:// or https:// and a host")
    if url.username is not None or url.password is not None:
        raise ValueError(f"it holds a user or password: use {key}")
    if url.query or url.fragment:
        raise ValueError("it has parameters after its path")
    path = url.path.rstrip("/")
    for endpoint in endpoints:  # the endpoint itself is what people copy
        path = path.removesuffix(endpoint).rstrip("/")
    return SplitResult(url.scheme, url.netloc, path or "/v1", "", "").geturl()
