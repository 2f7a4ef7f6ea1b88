"""Checks of vendors' callbacks; all raise `Refused`."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from whystall.agent_server.integrations.messages import BODY_LIMIT, LINES_LIMIT, TEXT_LIMIT, Refused
from whystall.agent_server.settings.loopback import is_loopback
from whystall.tools.contract.text import clean

ID_LIMIT = 500
_NUMBER = re.compile(r"\d{1,16}", re.ASCII)
# Without commas: the server joins repeated headers with one, and two signatures are invalid.
_SIGNATURE = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,500}")


def check_size(body: bytes) -> bytes:
    """Return `body` if it is at most `BODY_LIMIT` bytes."""
    if len(body) > BODY_LIMIT:
        raise Refused(413, "too_large", f"more than {BODY_LIMIT} bytes")
    return body


def signature(given: Mapping[str, str], name: str) -> str:
    """Return the signature in the header or parameter `name`, which must occur once and be printable."""
    value = given.get(name, "")
    if not _SIGNATURE.fullmatch(value):
        raise Refused(401, "signature", f"no usable {name}")
    return value


def check_timestamp(given: Mapping[str, str], name: str, now: float, window: float, unit: float = 1.0) -> str:
    """Return the header or parameter `name` as text, a time in `unit` seconds that is at most `window` seconds from
    `now`.
    """
    value = given.get(name, "")
    if not _NUMBER.fullmatch(value):
        raise Refused(401, "signature", f"no usable {name}")
    check_recent(int(value) * unit, now, window)
    return value


def check_recent(moment: float, now: float, window: float) -> None:
    """Refuse a `moment` more than `window` seconds before or after `now`."""
    if abs(now - moment) > window:
        side = "past" if moment < now else "future"
        raise Refused(401, "too_old", f"{abs(now - moment):.0f} s in the {side}, or the clock of this host is wrong")


def check_equal(given: str, expected: str) -> None:
    """Refuse a value other than `expected`; the comparison takes constant time."""
    if not hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode()):
        raise Refused(401, "signature", "it does not match")


def json_object(text: bytes | str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused(400, "malformed", "no JSON") from None
    if not isinstance(value, dict):
        raise Refused(400, "malformed", "no JSON object")
    return value


def inner_object(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the object `name` in `value`, or an empty one."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def objects(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects in the list `name` in `value`."""
    found = value.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def text_of(value: Mapping[str, Any], name: str, limit: int = ID_LIMIT) -> str:
    """Return the cleaned text `name` in `value`, or an empty one; longer ones than `limit` are refused."""
    found = value.get(name)
    if not isinstance(found, str) or not found:
        return ""
    if len(found) > limit:
        raise Refused(400, "malformed", f"{name} is too long")
    return clean(found, 10 * limit)


def required(value: Mapping[str, Any], name: str) -> str:
    """Return `text_of`, refusing an empty one."""
    found = text_of(value, name)
    if not found:
        raise Refused(400, "malformed", f"no {name}")
    return found


def message_text(text: str) -> str:
    """Return a person's message as one cleaned line, cut to `TEXT_LIMIT`."""
    return clean(" ".join(text[: 4 * TEXT_LIMIT].split()), TEXT_LIMIT)


def message_lines(text: str) -> str:
    """Return a person's message with its line breaks, each line cleaned, at most `LINES_LIMIT` characters; empty for a
    message of one line.
    """
    lines = text[:LINES_LIMIT].expandtabs().splitlines()
    if sum(1 for line in lines if line.strip()) < 2:
        return ""
    return "\n".join(clean(line.rstrip(), LINES_LIMIT) for line in lines)[:LINES_LIMIT]


def is_vendor_url(url: str, hosts: frozenset[str]) -> bool:
    """Return whether `url` is an https address (http on this host) at one of `hosts`, without credentials."""
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
