"""What passes between the chats of vendors and the conversation: one shape for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.outbound.request import Request

TEXT_LIMIT = 4000
"""Characters of what somebody says that are read."""


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
    characters, made inert. `direct`: said to us alone, not in a group.
    """

    event: str
    place: Place
    sender: str
    sender_name: str = ""
    text: str
    direct: bool = False


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
    """A callback that is answered and nothing else: a challenge, or what concerns nobody (`why`: a code)."""

    body: bytes = b"{}"
    content_type: str = "application/json"
    why: str = "ignored"


class Refused(Exception):
    """A callback that is not believed. `status` of HTTP; `code`: ``signature``, ``too_old``, ``malformed``,
    ``too_large``, ``unknown_sender``; the caller says no more than these to whom it refuses.
    """

    def __init__(self, status: int, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.status = status
        self.code = code
        self.detail = detail


class Vendor(Protocol):
    """One chat of the settings. Pure: it neither sends nor stores."""

    name: str
    kind: str

    def receive(
        self, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now: float
    ) -> Incoming | Answered:
        """What a callback says. `headers` in lower case; `body` as it came. Raises `Refused`."""
        ...

    def requests(self, to: Place, message: Outgoing, now: float) -> list[Request]:
        """What is to be sent to the vendor, one after another, to say `message`."""
        ...
