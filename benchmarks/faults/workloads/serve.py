"""An inference server on asyncio: classifies texts that clients send over HTTP."""

from __future__ import annotations

import asyncio
import json
import re

import numpy as np
from joblog import Job

TRAILING = re.compile(r"\s+$")


class Server:
    """Answers POST requests on persistent connections."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._weights = np.random.default_rng(0).random((300, 300))
        self._cache: dict[int, str] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                text = (await reader.readexactly(length)).decode()
                self._job.reloaded()
                with self._job.phase("handle"):
                    body = json.dumps(await self.classify(text)).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def classify(self, text: str) -> float:
        tokens = self.tokenize(text)
        await asyncio.sleep(0)
        scores = self._weights @ self._weights[:, [token % 300 for token in tokens[:16]]]
        return float(scores.max())

    def tokenize(self, text: str) -> list[int]:
        words = self.tidied(text).split()
        if self._job.revision > 1 and len(words) > self._job.settings["long"]:
            return self.split_pieces(words)
        return [len(word) for word in words]

    def tidied(self, text: str) -> str:
        if self._job.revision > 1 and self._job.settings.get("tidy"):
            return TRAILING.sub("", text)  # mark: tidy
        return text

    def split_pieces(self, words: list[str]) -> list[int]:
        pieces: list[str] = []
        for word in words:
            for start in range(len(word)):
                piece = word[start : start + 3]
                if piece not in pieces:  # mark: pieces
                    pieces.append(piece)
        return [len(piece) for piece in pieces]


async def run(job: Job) -> None:
    server = await asyncio.start_server(Server(job).serve, "127.0.0.1", job.settings["port"])
    job.emit("ready")
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(run(Job()))
