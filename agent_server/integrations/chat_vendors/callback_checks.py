"""What the callbacks of all vendors are held against. What is wrong raises `Refused`."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from whystall.agent_server.integrations.messages import BODY_LIMIT, TEXT_LIMIT, Refused
from whystall.agent_server.settings.loopback import is_loopback
from whystall.tools.contract.text import clean

ID_LIMIT = 500
_NUMBER = re.compile(r"\d{1,16}", re.ASCII)
# A header that came twice is joined by the server with a comma: two signatures are none.
_SIGNATURE = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,500}")


def bounded(body: bytes) -> bytes:
    """`body`, where it is not too large."""
    if len(body) > BODY_LIMIT:
        raise Refused(413, "too_large", f"more than {BODY_LIMIT} bytes")
    return body


def signature(headers: Mapping[str, str], name: str) -> str:
    """The header `name`, which holds a signature; there once, and printable."""
    value = headers.get(name, "")
    if not _SIGNATURE.fullmatch(value):
        raise Refused(401, "signature", f"no usable header {name}")
    return value


def stamp(headers: Mapping[str, str], name: str, now: float, window: float, unit: float = 1.0) -> str:
    """The header `name`, a time in `unit` seconds, at most `window` seconds before or after `now`, as it came: what is
    signed is its text.
    """
    value = headers.get(name, "")
    if not _NUMBER.fullmatch(value):
        raise Refused(401, "signature", f"no usable header {name}")
    recent(int(value) * unit, now, window)
    return value


def recent(moment: float, now: float, window: float) -> None:
    """Refuse a `moment` that is further from `now` than `window`, on either side."""
    if abs(now - moment) > window:
        side = "past" if moment < now else "future"
        raise Refused(401, "too_old", f"{abs(now - moment):.0f} s in the {side}, or the clock of this host is wrong")


def same(given: str, expected: str) -> None:
    """Refuse what is not `expected`, in a time that does not tell how far it agrees."""
    if not hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode()):
        raise Refused(401, "signature", "it does not match")


def json_object(text: bytes | str) -> dict[str, Any]:
    """The JSON object in `text`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused(400, "malformed", "no JSON") from None
    if not isinstance(value, dict):
        raise Refused(400, "malformed", "no JSON object")
    return value


def inner(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object `name` in `value`; empty where there is none."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def objects(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in the list `name` in `value`."""
    found = value.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def word(value: Mapping[str, Any], name: str, limit: int = ID_LIMIT) -> str:
    """The text `name` in `value`, made inert; empty where it is none. A longer one is no id of a vendor's."""
    found = value.get(name)
    if not isinstance(found, str) or not found:
        return ""
    if len(found) > limit:
        raise Refused(400, "malformed", f"{name} is too long")
    return clean(found, 10 * limit)


def needed(value: Mapping[str, Any], name: str) -> str:
    """`word`, which has to be there."""
    found = word(value, name)
    if not found:
        raise Refused(400, "malformed", f"no {name}")
    return found


def spoken(text: str) -> str:
    """What somebody said, in one line, made inert and cut."""
    return clean(" ".join(text[: 4 * TEXT_LIMIT].split()), TEXT_LIMIT)


def lies_at(url: str, hosts: frozenset[str]) -> bool:
    """Whether `url` is an address at one of `hosts` (``host`` or ``host:port``) that may be sent to: by https, or by
    http on this machine; nothing else may be hidden in it.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    if parts.username or parts.password or "\\" in url or not url.isprintable() or " " in url:
        return False
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        return False
    named = f"[{host}]" if ":" in host else host
    return (named if port is None else f"{named}:{port}") in hosts
