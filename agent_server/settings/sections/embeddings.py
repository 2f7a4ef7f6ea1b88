"""The section ``embeddings``: an embedding model for the search of past incidents."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from whystall.agent_server.settings.loopback import is_loopback
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section
from whystall.agent_server.settings.sections.llm import ModelName, normal_url
from whystall.tools.contract.errors import ErrorCode, ToolError


class EmbeddingsSettings(Section):
    """The server of an embedding model. It reads the cards and what is searched for."""

    model_config = ConfigDict(protected_namespaces=())

    base_url: Annotated[
        str, Field(max_length=2000, description="where the server's API begins: https://host/v1, as in [llm]")
    ]
    model: ModelName
    api_key: Annotated[Secret | None, Field(description="sent as a bearer token")] = None
    plain_http: Annotated[bool, Field(description="send the key unencrypted over http:// to another host")] = False
    dimensions: Annotated[
        int | None,
        Field(ge=8, le=8192, description="numbers of a vector, for models that can shorten them; unset: the model's"),
    ] = None
    timeout: Annotated[float, Field(ge=0.1, le=600, description="seconds of one request, of at most 64 texts")] = 10.0
    search_timeout: Annotated[
        float,
        Field(ge=0.1, le=600, description="seconds that a search waits for embeddings, those of new cards included"),
    ] = 20.0

    @field_validator("base_url")
    @classmethod
    def _normal_url(cls, text: str) -> str:
        return normal_url(text, ("/embeddings",), "[embeddings] api_key")

    @model_validator(mode="after")
    def _encrypted(self) -> EmbeddingsSettings:
        url = urlsplit(self.base_url)
        unencrypted = url.scheme == "http" and not is_loopback(url.hostname or "")
        if self.api_key is not None and unencrypted and not self.plain_http:
            raise ValueError(
                f"the key would go unencrypted to {self.host}: use https://, or in a network that you trust plain_http"
            )
        return self

    @property
    def host(self) -> str:
        """The server's host and port."""
        return urlsplit(self.base_url).netloc

    def key(self) -> str:
        """Read the API key; empty if none is set. Raises `ToolError` (no_model), which never holds the key."""
        if self.api_key is None:
            return ""
        try:
            key = self.api_key.read("[embeddings] api_key")
        except ToolError as error:
            raise ToolError(ErrorCode.NO_MODEL, error.message, error.remedy) from None
        if not key.isascii() or " " in key:
            message = "[embeddings] api_key: the key is not usable: it holds blanks or characters that are not ASCII"
            raise ToolError(ErrorCode.NO_MODEL, message, "give the key in one line, and nothing else")
        return key
