"""How to reach the language model, and what may be spent on it: settings from the environment, and under them the table
``[llm]`` of the settings file.

Every field of `LlmSettings` is the variable ``WHYSTALL_LLM_`` and its name in capitals, and its name in the table.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from whystall.agent_server.settings.llm_environment import PREFIX, variables, written
from whystall.agent_server.settings.loopback import is_loopback
from whystall.agent_server.settings.paths import beside
from whystall.agent_server.settings.secret import Secret, read_private
from whystall.agent_server.settings.sources import config_path
from whystall.tools.contract.errors import ErrorCode, ToolError

_KEY_LIMIT = 4096
_ENDPOINT = "/chat/completions"
_REMEDY = (
    f"set {PREFIX}BASE_URL (http://127.0.0.1:8000/v1) and {PREFIX}MODEL, and for a hosted model {PREFIX}API_KEY_FILE"
)
_CORRECT = "correct it and call again; `whystall doctor` says whether the model answers"


class LlmSettings(BaseSettings):
    """An OpenAI-compatible server, and the bounds of a diagnosis that a model drives."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )

    base_url: Annotated[
        str,
        Field(
            max_length=2000,
            description="where the server's API begins: https://host/v1. Without a path /v1 is added, since vLLM,"
            " Ollama and llama.cpp answer there; a path that is given is kept",
        ),
    ]
    model: Annotated[str, Field(min_length=1, max_length=200, description="the model's name, as the server knows it")]
    api_key: Annotated[
        SecretStr | None, Field(description="sent as a bearer token; others may read the environment of a process")
    ] = None
    api_key_file: Annotated[
        Path | None, Field(description="a file with the key in it, which nobody but its owner may read (mode 0600)")
    ] = None
    plain_http: Annotated[
        bool, Field(description="send the key over http:// to another host, where everybody on the way can read it")
    ] = False
    stream: Annotated[
        bool,
        Field(
            description="ask for the answer in pieces: for servers that offer nothing else, and proxies that cut silent"
            " connections. Off: an answer is used whole, and function calls in pieces are where servers differ most"
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
        Field(ge=16, le=1_000_000, description="tokens of one answer with its thoughts; unset: the server's"),
    ] = None
    max_steps: Annotated[int, Field(ge=1, le=100, description="answers of the model per diagnosis")] = 12
    max_seconds: Annotated[
        float, Field(ge=1, le=7200, description="seconds per diagnosis, for the model's answers and what it looks at")
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

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What `load_settings` read of the file, and the environment. No ``.env``: who starts us in a directory that
        others write to shall not be sent to their server.
        """
        return init_settings, env_settings

    @field_validator("base_url")
    @classmethod
    def _normal_url(cls, text: str) -> str:
        return _normal_url(text)

    @field_validator("model")
    @classmethod
    def _printable(cls, text: str) -> str:
        if not text.isprintable() or text != text.strip():
            raise ValueError("it holds unprintable characters, or blanks around it")
        return text

    @field_validator("api_key")
    @classmethod
    def _usable(cls, key: SecretStr | None) -> SecretStr | None:
        return key and SecretStr(_usable_key(key.get_secret_value()))

    @model_validator(mode="after")
    def _fit_together(self) -> LlmSettings:
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError(f"{PREFIX}API_KEY and {PREFIX}API_KEY_FILE are both set")
        if self.max_money is not None and (self.price_in is None or self.price_out is None):
            raise ValueError(f"{PREFIX}MAX_MONEY needs {PREFIX}PRICE_IN and {PREFIX}PRICE_OUT")
        keyed = self.api_key is not None or self.api_key_file is not None
        if keyed and self.reads_along and not self.plain_http:
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
    def reads_along(self) -> bool:
        """Whether what is said goes over a network unencrypted."""
        url = urlsplit(self.base_url)
        return url.scheme == "http" and not is_loopback(url.hostname or "")


def load_settings() -> LlmSettings:
    """The settings as environment and file have them, the former over the latter, with the key out of its file.

    `ToolError` (no_model) when none are there, or they cannot be used; it holds no secret. Also what
    `environment.written` raises.
    """
    given = variables()
    below = _of_table(written(), {name.upper().removeprefix(PREFIX).lower() for name in given})
    if not given and not below:
        raise ToolError(ErrorCode.NO_MODEL, "no language model is set up", _REMEDY)
    known = {PREFIX + name.upper() for name in LlmSettings.model_fields}
    unknown = [name for name in given if name.upper() not in known]
    if unknown:
        raise ToolError(ErrorCode.NO_MODEL, f"unknown setting {unknown[0]}", f"valid: {', '.join(sorted(known))}")
    try:
        settings = LlmSettings(**below)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False)
        remedy = _REMEDY if any(fault["type"] == "missing" for fault in faults) else _CORRECT
        raise ToolError(ErrorCode.NO_MODEL, "; ".join(_said(fault, below) for fault in faults), remedy) from None
    if settings.api_key_file is None:
        return settings
    key = SecretStr(_read_key(settings.api_key_file))
    return settings.model_copy(update={"api_key": key})


_KEYS = {"api_key", "api_key_file"}


def _of_table(table: dict[str, Any], given: set[str]) -> dict[str, Any]:
    """What of the table ``[llm]`` counts beside what is `given` in the environment. A key stands there as every secret
    does: where it is.
    """
    above = given | (_KEYS if given & _KEYS else set())
    below = {name: value for name, value in table.items() if name not in above}
    if "api_key" in below:
        try:
            with beside(config_path()[0]):
                secret = Secret.model_validate(below.pop("api_key"))
        except ValidationError as error:
            fault = error.errors(include_input=False, include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise ToolError(ErrorCode.NO_MODEL, f"[llm] api_key: {fault}", _CORRECT) from None
        if secret.file is not None:
            below.setdefault("api_key_file", secret.file)
        else:
            below["api_key"] = secret.read("[llm] api_key")
    return below


def _said(fault: ErrorDetails, below: Container[str]) -> str:
    name = "".join(_name(str(part), below) for part in fault["loc"][:1])
    if fault["type"] == "extra_forbidden":
        return f"{name}: there is no such setting"
    if fault["type"] == "missing":
        return f"{name} is not set"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{name}: {message[:1].lower()}{message[1:]}" if name else message


def _name(field: str, below: Container[str]) -> str:
    return f"[llm] {field}" if field in below else PREFIX + field.upper()


def _normal_url(text: str) -> str:
    """`text` as scheme, host and path without a final slash. Errors do not repeat it: it may hold a key."""
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
        raise ValueError(f"it holds a user or password: use {PREFIX}API_KEY_FILE")
    if url.query or url.fragment:
        raise ValueError("it has parameters after its path")
    path = url.path.rstrip("/").removesuffix(_ENDPOINT).rstrip("/")  # the endpoint itself is what people copy
    return SplitResult(url.scheme, url.netloc, path or "/v1", "", "").geturl()


def _read_key(path: Path) -> str:
    """The key in the file `path`; `ToolError` (no_model) when there is none, or others may read it."""
    variable = f"{PREFIX}API_KEY_FILE"
    raw = read_private(variable, path, _KEY_LIMIT + 2, ErrorCode.NO_MODEL)
    try:
        return _usable_key(raw.decode("ascii", "replace").strip())
    except ValueError as error:
        message = f"{variable}: {path}: the key is not usable: {error}"
        raise ToolError(ErrorCode.NO_MODEL, message, "the file holds the key in one line, and nothing else") from None


def _usable_key(key: str) -> str:
    """`key` if it can stand in a header."""
    if not key:
        raise ValueError("it is empty")
    if len(key) > _KEY_LIMIT or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"it is no line of at most {_KEY_LIMIT} printable ASCII characters without blanks")
    return key
