"""What the client needs of a protocol, and bounds of answers that hold for all."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from whystall.agent_server.llm.jsontext import NotJson, parse_json
from whystall.agent_server.llm.wire import Function, Message, Reply

# Characters. A conversation holds the text and the calls of every reply, and is sent again with each request.
CONTENT_LIMIT = 256 << 10
REASONING_LIMIT = 1 << 20
ARGUMENTS_LIMIT = 64 << 10
CALLS_LIMIT = 64
NAME_LIMIT = 256
FINISH_LIMIT = 64
TOKENS_LIMIT = 1_000_000_000
_UNUSUAL = re.compile(r"[^a-zA-Z0-9_-]")


class Answer(Protocol):
    """An answer in the making. `finished`: only token counts may follow; `ended`: nothing follows."""

    finished: bool
    ended: bool

    def add(self, chunk: Any) -> None:
        """Add an event of a stream, or a whole answer. Raises `Fault`: bad_answer, too_large, or the error it holds."""

    def end(self) -> None:
        """Note that the server has sent everything."""

    def reply(self, new_ids: Iterator[str]) -> Reply:
        """Return the reply; tokens are 0 and `estimated` if the server did not count them.

        `new_ids` for calls without an id. Raises `Fault`: bad_answer if there was no answer, server_error.
        """


class Dialect(Protocol):
    """A protocol, and the variant of it that a server accepts, learnt from its refusals and kept for later requests.

    `path`: of the endpoint; `models_path`: of the list of models.
    """

    path: str
    models_path: str

    def headers(self, key: str) -> Mapping[str, str]:
        """Return the headers of every request. `key`: the API key, empty for none."""

    def body(self, messages: Sequence[Message], functions: Sequence[Function]) -> dict[str, Any]:
        """Return the body of a request."""

    def answer(self) -> Answer:
        """Return an empty answer."""

    def learn(self, refusal: str) -> bool:
        """Adapt to the error message `refusal`; return whether anything changed."""


def ids() -> Iterator[str]:
    """Yield ids for calls without one: nine letters and digits, as the templates of Mistral require."""
    return (f"call{number:05d}" for number in itertools.count(1))


def plain_name(name: str) -> str:
    """Return the name of a function as strict servers accept it."""
    return _UNUSUAL.sub("_", name)[:64] or "unnamed"


def object_of(text: str) -> dict[str, Any]:
    """Return the JSON object `text`; empty if it is none."""
    try:
        value = parse_json(text)
    except NotJson:
        return {}
    return value if isinstance(value, dict) else {}
