"""Vectors of texts from a server of OpenAI's embeddings (``POST /v1/embeddings``): vLLM, Ollama, llama.cpp, TEI and
others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio

from whystall.agent_server.llm.jsontext import NotJson, parse_json
from whystall.agent_server.outbound.client import Client, Undelivered
from whystall.agent_server.outbound.request import Request, as_json
from whystall.agent_server.outbound.retry import backoff_s
from whystall.knowledge_base.embeddings import DIMENSIONS, EmbeddingError
from whystall.tools.contract.errors import ToolError

if TYPE_CHECKING:
    from whystall.agent_server.settings.sections.embeddings import EmbeddingsSettings

BODY_LIMIT = 16 << 20
"""Bytes of an answer: 64 vectors of 8,192 numbers."""
_ATTEMPTS = 2
_LONGEST_PAUSE_S = 2.0


class EmbeddingClient:
    """An `Embedder` behind a server. Each request has the settings' `timeout`; all together `seconds` (None: any)."""

    def __init__(self, settings: EmbeddingsSettings, seconds: float | None) -> None:
        """Raises `ToolError` (no_model) if the key cannot be read."""
        self._settings = settings
        self._key = settings.key()
        self._seconds = seconds
        self._until = None if seconds is None else time.monotonic() + seconds

    @property
    def name(self) -> str:
        return self._settings.model

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a vector for each of `texts`, in their order. Raises `EmbeddingError`."""
        return anyio.run(self._embed, list(texts))

    async def _embed(self, texts: list[str]) -> list[list[float]]:
        body: dict[str, Any] = {"model": self._settings.model, "input": texts}
        if self._settings.dimensions is not None:
            body["dimensions"] = self._settings.dimensions
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        url = f"{self._settings.base_url}/embeddings"
        secrets = (self._key,) if self._key else ()
        request = Request("POST", url, headers, as_json(body), secrets, repeatable=True)
        async with Client(limit=BODY_LIMIT) as client:
            for attempt in range(_ATTEMPTS):
                try:
                    response = await client.send(request, timeout=self._left())
                    return _vectors(response.body, len(texts))
                except Undelivered as error:
                    pause = backoff_s(attempt, error.wait)
                    if (
                        attempt + 1 == _ATTEMPTS
                        or not error.again
                        or error.code == "timeout"
                        or pause > _LONGEST_PAUSE_S
                    ):
                        raise EmbeddingError(str(error)) from None
                except ToolError as error:
                    raise EmbeddingError(error.message) from None
                await anyio.sleep(pause)
        raise AssertionError("unreachable")

    def _left(self) -> float:
        """Return the seconds of the next request. Raises `EmbeddingError` if none are left."""
        if self._until is None:
            return self._settings.timeout
        left = self._until - time.monotonic()
        if left <= 0:
            raise EmbeddingError(f"timeout: {self._settings.host} took more than {self._seconds:g} s for this search")
        return min(left, self._settings.timeout)


def _vectors(body: bytes, count: int) -> list[list[float]]:
    """Return the vectors of an answer: ``{"data": [{"index": 0, "embedding": [0.1, -0.2]}]}``, which may be in any
    order. Raises `EmbeddingError`.
    """
    try:
        answer = parse_json(body)
    except NotJson:
        raise EmbeddingError("bad_answer: the answer is not JSON (is that the address of a model?)") from None
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list) or len(entries) != count:
        raise EmbeddingError(f"bad_answer: the answer has not {count} vectors")
    found: dict[int, list[float]] = {}
    for at, entry in enumerate(entries):
        index = entry.get("index", at) if isinstance(entry, dict) else None
        vector = entry.get("embedding") if isinstance(entry, dict) else None
        if type(index) is not int or not 0 <= index < count or index in found:
            raise EmbeddingError("bad_answer: the vectors are not numbered")
        if not isinstance(vector, list) or len(vector) > DIMENSIONS or not all(type(v) in (int, float) for v in vector):
            raise EmbeddingError(f"bad_answer: a vector is no list of at most {DIMENSIONS} numbers")
        try:
            found[index] = [float(value) for value in vector]
        except OverflowError:
            raise EmbeddingError("bad_answer: a vector holds a number that is too large") from None
    return [found[index] for index in range(count)]
