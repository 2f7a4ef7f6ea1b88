"""What passes between the chats of vendors and the conversation: one shape for all of them."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.outbound.request import Request, Response

TEXT_LIMIT = 4000
"""Characters of what somebody says that are read."""
BODY_LIMIT = 256 * 1024
"""Bytes of a callback; the longest text of a vendor, encrypted and packed in JSON twice, is below."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Place(_Model):
    """Where an answer goes. `channel`: the chat's name in the settings; `conversation`: the vendor's id of the group or
    person; `thread`: of the message that is answered; `hook`: an address the vendor gave for answers, which is used
    only where it lies at the vendor's own hosts, and `hook_until` (seconds since the epoch).
    """

    channel: str
    conversation: str
    thread: str = ""
    hook: str = ""
    hook_until: float = 0.0


class Incoming(_Model):
    """One message of a person, whose sender was proven. `event`: the vendor's id, the same when it is sent again.
    `sender` identifies, `sender_name` is what people see. `text`: without our own mention, at most `TEXT_LIMIT`
    characters, made inert. `direct`: said to us alone, not in a group. `proof`: of a signature that does not cover the
    body, and so proves no second message; empty where it does.
    """

    event: str
    place: Place
    sender: str
    sender_name: str = ""
    text: str
    direct: bool = False
    proof: str = ""


class Outgoing(_Model):
    """One message of ours. `text`: Markdown of our own making, in which all that is strangers' is escaped or in code
    spans; what a vendor cannot show, its sender turns into what it can. `picture`: uri of an artifact (PNG or SVG).
    """

    title: str = Field(max_length=200)
    text: str
    picture: str | None = None
    lang: Literal["en", "zh"] = "en"


@dataclass(frozen=True)
class Answered:
    """A callback that is answered and nothing else: a challenge, or what concerns nobody (`why`: a code). `proof`: as
    `Incoming` has it, which is then used up.
    """

    body: bytes = b"{}"
    content_type: str = "application/json"
    why: str = "ignored"
    proof: str = ""


class Refused(Exception):
    """A callback that is not believed. `status` of HTTP; `code`: ``signature``, ``too_old``, ``malformed``,
    ``too_large``, ``unknown_sender``; the caller says no more than these to whom it refuses.
    """

    def __init__(self, status: int, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.status = status
        self.code = code
        self.detail = detail


@dataclass(frozen=True)
class Picture:
    """A picture beside a message. `alt`: what it shows, in a sentence; `url`: where the vendor can fetch it, None where
    nobody outside reaches us.
    """

    png: bytes = field(repr=False)
    name: str
    alt: str
    url: str | None = None


class SendError(Exception):
    """A vendor's answer that is no yes. The message is one line for people. `code`: the vendor's. `again`: it may pass,
    after `wait` seconds where that is known.
    """

    def __init__(self, code: str, message: str = "", *, again: bool = False, wait: float | None = None) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.again = again
        self.wait = wait


SendSteps = Generator[Request, Response, None]
"""Says one message: what it yields is sent, what comes back is sent into it. Of its requests the last one alone is
visible to people: begun again from the start, it shows nothing twice that was not shown. Raises `SendError`."""


class Vendor(Protocol):
    """One chat of the settings. Pure: it neither sends nor stores; secrets are read when they are used, and a
    `ToolError` (bad_argument) says where one cannot be.
    """

    name: str
    kind: str
    accepted: Answered
    """What a callback is answered with when its message was taken."""
    pace: tuple[int, float]
    """So many messages within so many seconds, by the vendor's limits."""

    def home(self) -> Place | None:
        """Where it is told what nobody asked for; None: nowhere."""
        ...

    def receive(
        self, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now: float
    ) -> Incoming | Answered:
        """What a callback says. `headers` in lower case; `body` as it came. Raises `Refused`."""
        ...

    def send(self, to: Place, message: Outgoing, picture: Picture | None, key: str, now: float) -> SendSteps:
        """Say `message` at `to`. `key`: the message's own, for vendors that take one so as to show it once."""
        ...
