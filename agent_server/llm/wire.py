"""What goes to a model and comes back, independent of its vendor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolCall(_Model):
    """A call that the model asks for. `arguments` is the text it wrote, which may be no JSON at all."""

    id: str
    name: str
    arguments: str


class Message(_Model):
    """One message of a conversation. `calls`: of an assistant; `call_id`: which of them a ``tool`` message answers;
    `reasoning`: of the reply that an assistant's message repeats.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    calls: list[ToolCall] = Field(default_factory=list)
    call_id: str | None = None
    reasoning: str | None = None


class Function(_Model):
    """A function offered to the model; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class Reply(_Model):
    """What the model answered. `finish`: why it ended, in the vendor's word (``stop``, ``tool_calls``, ``length``,
    ``content_filter``); `refusal`: its refusal, where it gave one. `reasoning`: what it thought, where the server tells
    it apart; some servers want it back with the calls it led to, even where it is empty; nothing is concluded from it.
    Tokens as the server counted them, else estimated (`estimated`). `seconds`: how long it took, retries included.
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
        """What the model is called."""

    async def complete(self, messages: Sequence[Message], functions: Sequence[Function]) -> Reply:
        """The next message. Raises `LlmError` when there is none to be had."""


class LlmError(Exception):
    """No answer could be had. `code`: ``unreachable``, ``timeout``, ``unauthorised``, ``rate_limited``, ``rejected``
    (another 4xx), ``server_error``, ``bad_answer`` (no JSON, not the protocol), ``too_large`` (the answer),
    ``context_full`` (the conversation is longer than the model takes), ``cut_off`` (the connection ended within the
    answer), ``replay`` (a transcript holds no such answer). The message is one line and holds no secret.
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(f"{code}: {message}")
