"""Sends the messages that wait in the knowledge base: in order within a conversation, each chat by itself, so that one
that does not answer holds up no other. A message is sent at least once; where the vendor takes an id, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import anyio
from pydantic import ValidationError

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.messages import Outgoing, Picture, Place, SendError, SendSteps, Vendor
from whystall.agent_server.journal.messages import FARTHEST, Message
from whystall.agent_server.outbound.client import Client, Undelivered
from whystall.agent_server.outbound.request import Request, Response, as_json
from whystall.agent_server.outbound.retry import later
from whystall.agent_server.stores import Stores
from whystall.tools.contract.errors import ToolError

LEASE_S = 300.0
"""A message takes at most six requests, each of at most `client.TIMEOUT_S`."""
ATTEMPTS = 100
"""Tries, about a day of them: who reads a message later than that is misled by it."""
PICTURELESS = 3
"""After so many failed tries a message goes without its picture: the text tells it all."""
_REQUESTS = 10  # of one message; more is a vendor's fault of ours
# What a vendor itself makes out of an answer; the others mean the same for all of them.
_JUDGED = [status for status in range(400, 500) if status not in (408, 425, 429)]


class Pictures(Protocol):
    """Where pictures are kept."""

    def load(self, uri: str, alt: str, now: float) -> Picture | None:
        """The picture `uri`; None where it is gone. Reads a file."""
        ...


def queue(kb: Stores, key: str, place: Place, message: Outgoing) -> int | None:
    """Queue `message` for `place`; None where one of this `key` was queued before. Call it in the transaction that
    stores what the message tells.
    """
    return kb.messages.put(key, place.channel, place.model_dump(mode="json"), message.model_dump(mode="json"))


async def send_all(client: Client, steps: SendSteps) -> int:
    """Send the requests of one message in order and return their number.

    Raises `SendError`, `Undelivered`, `ToolError` (bad_argument: a secret cannot be read).
    """
    answer: Response | None = None
    try:
        for sent in range(_REQUESTS):
            try:
                request: Request = next(steps) if answer is None else steps.send(answer)
            except StopIteration:
                return sent
            answer = await client.send(request, _JUDGED)
    finally:
        steps.close()
    raise SendError("endless", f"more than {_REQUESTS} requests for one message")


def dry_run_requests(steps: SendSteps) -> list[Request]:
    """What would be sent, if every request were answered with yes. Raises as `send` does."""
    yes = {
        "errcode": 0,
        "code": 0,
        "ok": True,
        "tenant_access_token": "dry-run-t0ken",
        "accessToken": "dry-run-t0ken",
        "expire": 7200,
        "processQueryKey": "q",
    }
    made = []
    try:
        made.append(next(steps))
        while len(made) < _REQUESTS:
            made.append(steps.send(Response(200, {}, as_json(yes))))
    except StopIteration:
        pass
    finally:
        steps.close()
    return made


@dataclass
class _Channel:
    """When a chat was spoken to last, and until when it wants to be left alone."""

    spoken: deque[float] = field(default_factory=deque)
    paused: float = 0.0

    def free(self, pace: tuple[int, float], now: float) -> float:
        """When the next message may go; `now` or earlier: at once."""
        many, seconds = pace
        if self.paused > now + FARTHEST or any(moment > now for moment in self.spoken):
            self.spoken.clear()  # the clock was set back
            self.paused = min(self.paused, now)
        while len(self.spoken) > many:
            self.spoken.popleft()
        full = self.spoken[0] + seconds if len(self.spoken) == many else 0.0
        return max(self.paused, full)


class Sender:
    """Sends for one worker; `clock`: seconds since the epoch. Keeps how often each chat was spoken to."""

    def __init__(
        self,
        kb: Stores,
        vendors: Mapping[str, Vendor],
        client: Client,
        clock: Callable[[], float],
        pictures: Pictures | None = None,
    ) -> None:
        self._kb = kb
        self._vendors = vendors
        self._client = client
        self._clock = clock
        self._pictures = pictures
        self._channels: dict[str, _Channel] = {}

    async def due(self, name: str) -> float | None:
        """Send what is due in the chat `name`, until it wants a pause; when there will be more (seconds since the
        epoch), None: nothing waits. Of one chat it runs once at a time.

        Raises only `ToolError` (database, disk_full); what had been sent by then is marked so, or is sent again.
        """
        vendor, channel = self._vendors[name], self._channels.setdefault(name, _Channel())
        while True:
            now = self._clock()
            if channel.free(vendor.pace, now) > now:
                break
            message = await in_thread(partial(self._kb.messages.take, now, LEASE_S, name))
            if message is None:
                break
            channel.spoken.append(now)
            await self._one(vendor, channel, message)
        due = await in_thread(lambda: self._kb.messages.next_due(name))
        return None if due is None else max(due, channel.free(vendor.pace, self._clock()))

    def strays(self) -> int:
        """Give up what waits for chats that the settings no longer have; how many messages that were."""
        given_up = 0
        for name in self._kb.messages.waiting():
            while name not in self._vendors and (message := self._kb.messages.take(self._clock(), LEASE_S, name)):
                self._failed(message, "no_such_chat", "the settings no longer have it")
                given_up += 1
        return given_up

    async def _one(self, vendor: Vendor, channel: _Channel, message: Message) -> None:
        try:
            to, said = Place.model_validate(message.place), Outgoing.model_validate(message.message)
        except ValidationError as error:
            self._failed(message, "malformed", str(error.errors()[0]["msg"]))
            return
        try:
            picture = await self._picture(said, message.attempts)
            steps = vendor.send(to, said, picture, message.key, self._clock())
            requests = await send_all(self._client, steps)
        except (SendError, Undelivered) as error:
            code, text = error.code, error.message
            wait = later(message.attempts - 1, error.wait) if error.again else None
            if error.again and (error.wait is not None or code == "rate_limited"):
                # Whoever asks for a pause means all that we would say there.
                channel.paused = self._clock() + min(wait or 0.0, FARTHEST)
        except ToolError as error:
            code, text, wait = error.code.value, error.message, later(message.attempts - 1, None)
        else:
            detail = {"key": message.key, "title": said.title, "requests": requests, "picture": picture is not None}
            # Not abandoned, and the file is waited for: what is not marked is said again.
            await anyio.to_thread.run_sync(lambda: self._sent(message, detail))
            return
        if wait is None or message.attempts >= ATTEMPTS:
            self._failed(message, code, text)
            return
        with self._kb.transaction():
            self._kb.messages.retry(message.n, self._clock() + min(wait, FARTHEST), f"{code}: {text}")

    async def _picture(self, said: Outgoing, attempts: int) -> Picture | None:
        uri = said.picture
        if uri is None or self._pictures is None or attempts > PICTURELESS:
            return None
        pictures = self._pictures
        return await anyio.to_thread.run_sync(lambda: pictures.load(uri, said.title, self._clock()))

    def _sent(self, message: Message, detail: Mapping[str, object]) -> None:
        with self._kb.transaction():
            self._kb.messages.sent(message.n)
            self._kb.audit.put("engine", "message.sent", _target(message), "ok", detail)

    def _failed(self, message: Message, code: str, text: str) -> None:
        with self._kb.transaction():
            self._kb.messages.failed(message.n, f"{code}: {text}")
            detail = {"key": message.key, "why": text, "attempts": message.attempts}
            self._kb.audit.put("engine", "message.sent", _target(message), code, detail)


def _target(message: Message) -> str:
    return f"{message.channel}:{message.conversation}"
