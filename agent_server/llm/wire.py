"""Messages, functions and replies of a model, independent of its vendor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolCall(_Model):
    """A call that the model requests. `arguments`: its text, which may be invalid JSON."""

    id: str
    name: str
    arguments: str


class Message(_Model):
    """One message of a conversation. `calls`: of an assistant; `call_id`: which of them a ``tool`` message answers;
    `reasoning`: of the reply that an assistant's message repeats; `must_call`: the reply has to be a call.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    calls: list[ToolCall] = Field(default_factory=list)
    call_id: str | None = None
    reasoning: str | None = None
    must_call: bool = False


class Function(_Model):
    """A function offered to the model; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class Reply(_Model):
    """An answer of the model.

    `finish`: the vendor's finish reason (``stop``, ``tool_calls``, ``length``, ``content_filter``). `reasoning`: its
    thoughts, if the server separates them; some servers require them back with the calls, even if empty. `estimated`:
    the server did not count tokens. `seconds`: including retries.
    """

    content: str = ""
    calls: list[ToolCall] = Field(default_factory=list)
    finish: str = "stop"
    refusal: str = ""
    reasoning: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: bool = False
    seconds: float = 0.0


class LanguageModel(Protocol):
    """Something that continues a conversation: a server, or the transcript of an earlier one."""

    @property
    def name(self) -> str:
        """The model's name."""

    async def complete(self, messages: Sequence[Message], functions: Sequence[Function]) -> Reply:
        """Return the next message. Raises `LlmError`."""


class LlmError(Exception):
    """The model gave no answer. The message is one line without secrets.

    `code`: ``unreachable``, ``timeout``, ``unauthorised``, ``rate_limited``, ``rejected`` (another 4xx),
    ``server_error``, ``bad_answer`` (not JSON, or not the protocol), ``too_large`` (the answer), ``context_full`` (the
    conversation), ``cut_off`` (the connection ended within the answer), ``budget_seconds`` (no time left).
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(f"{code}: {message}")
