"""Send queued messages in order within a conversation; an unresponsive chat does not delay the others.

Delivery is at least once, and exactly once if the vendor accepts a message id.
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
from whystall.agent_server.journal.messages import FARTHEST, Message, Messages
from whystall.agent_server.outbound.client import Client, Undelivered
from whystall.agent_server.outbound.request import Request, Response, as_json
from whystall.agent_server.outbound.retry import queue_backoff_s
from whystall.agent_server.stores import Stores
from whystall.tools.contract.errors import ToolError

LEASE_S = 300.0
"""Longer than the at most six requests of a message, of `client.TIMEOUT_S` each."""
ATTEMPTS = 100
"""About a day of retries; an older message would mislead."""
PICTURELESS = 3
"""Failed attempts after which a message is sent without its picture."""
_REQUESTS = 10  # per message; more is a bug of a vendor module
# Statuses that the vendor module interprets; the client handles the others.
_VENDOR_ERRORS = [status for status in range(400, 500) if status not in (408, 425, 429)]


class Pictures(Protocol):
    """The store of pictures."""

    def load(self, uri: str, alt: str, now: float) -> Picture | None:
        """Read the picture `uri`; None if it was deleted."""
        ...


def queue(messages: Messages, key: str, place: Place, message: Outgoing) -> int | None:
    """Queue `message` for `place`; None if one with this `key` was queued before. Call it in the transaction that
    stores what the message reports.
    """
    return messages.put(key, place.channel, place.model_dump(mode="json"), message.model_dump(mode="json"))


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
            answer = await client.send(request, _VENDOR_ERRORS)
    finally:
        steps.close()
    raise SendError("endless", f"more than {_REQUESTS} requests for one message")


def dry_run_requests(steps: SendSteps) -> list[Request]:
    """Return the requests that would be sent if every one succeeded. Raises as `send_all`."""
    success = {
        "errcode": 0,
        "code": 0,
        "ok": True,
        "tenant_access_token": "dry-run-t0ken",
        "accessToken": "dry-run-t0ken",
        "access_token": "dry-run-t0ken",
        "expire": 7200,
        "expires_in": 7200,
        "processQueryKey": "q",
    }
    made = []
    try:
        made.append(next(steps))
        while len(made) < _REQUESTS:
            made.append(steps.send(Response(200, {}, as_json(success))))
    except StopIteration:
        pass
    finally:
        steps.close()
    return made


@dataclass
class _Channel:
    """The rate limit of one chat: times of the last messages, and the end of a pause that the vendor asked for."""

    sent_at: deque[float] = field(default_factory=deque)
    paused: float = 0.0

    def next_free(self, pace: tuple[int, float], now: float) -> float:
        """Return when the next message may be sent."""
        many, seconds = pace
        if self.paused > now + FARTHEST or any(moment > now for moment in self.sent_at):
            self.sent_at.clear()  # the clock was set back
            self.paused = min(self.paused, now)
        while len(self.sent_at) > many:
            self.sent_at.popleft()
        full = self.sent_at[0] + seconds if len(self.sent_at) == many else 0.0
        return max(self.paused, full)


class Sender:
    """Sends the messages of one worker within the rate limits of each chat. `clock`: seconds since the epoch."""

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
        """Send what is due in the chat `name`; return when the next message is due, None if none waits.

        Do not run it concurrently for one chat. Raises only `ToolError` (database, disk_full); messages sent but not
        yet marked are sent again.
        """
        vendor, channel = self._vendors[name], self._channels.setdefault(name, _Channel())
        while True:
            now = self._clock()
            if channel.next_free(vendor.pace, now) > now:
                break
            message = await in_thread(partial(self._kb.messages.take, now, LEASE_S, name))
            if message is None:
                break
            channel.sent_at.append(now)
            await self._send_one(vendor, channel, message)
        due = await in_thread(lambda: self._kb.messages.next_due(name))
        return None if due is None else max(due, channel.next_free(vendor.pace, self._clock()))

    def give_up_removed(self) -> int:
        """Fail the messages for chats that were removed from the settings; return their number."""
        given_up = 0
        for name in self._kb.messages.waiting():
            while name not in self._vendors and (message := self._kb.messages.take(self._clock(), LEASE_S, name)):
                self._failed(message, "no_such_chat", "the settings no longer have it")
                given_up += 1
        return given_up

    async def _send_one(self, vendor: Vendor, channel: _Channel, message: Message) -> None:
        try:
            to, outgoing = Place.model_validate(message.place), Outgoing.model_validate(message.message)
        except ValidationError as error:
            self._failed(message, "malformed", str(error.errors()[0]["msg"]))
            return
        try:
            picture = await self._picture(outgoing, message.attempts)
            steps = vendor.send(to, outgoing, picture, message.key, self._clock())
            requests = await send_all(self._client, steps)
        except (SendError, Undelivered) as error:
            code, text = error.code, error.message
            wait = queue_backoff_s(message.attempts - 1, error.wait) if error.again else None
            if error.again and (error.wait is not None or code == "rate_limited"):
                # A requested pause concerns all messages to this chat.
                channel.paused = self._clock() + min(wait or 0.0, FARTHEST)
        except ToolError as error:
            code, text, wait = error.code.value, error.message, queue_backoff_s(message.attempts - 1, None)
        else:
            detail = {"key": message.key, "title": outgoing.title, "requests": requests, "picture": picture is not None}
            # Not cancellable: a message that is not marked is sent again.
            await anyio.to_thread.run_sync(lambda: self._sent(message, detail))
            return
        if wait is None or message.attempts >= ATTEMPTS:
            self._failed(message, code, text)
            return
        with self._kb.transaction():
            self._kb.messages.retry(message.n, self._clock() + min(wait, FARTHEST), f"{code}: {text}")

    async def _picture(self, message: Outgoing, attempts: int) -> Picture | None:
        uri = message.picture
        if uri is None or self._pictures is None or attempts > PICTURELESS:
            return None
        pictures = self._pictures
        return await anyio.to_thread.run_sync(lambda: pictures.load(uri, message.title, self._clock()))

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
