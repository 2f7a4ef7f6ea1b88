"""Addresses of pictures that vendors fetch: signed, and good for a while. Pure.

Whoever has such an address sees that one picture until it ends; nobody can make another, or make one last longer.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from urllib.parse import urlencode

LASTS_S = 7 * 86_400.0
"""Chats fetch a picture when somebody reads the message, which may be after a weekend."""
NAME = re.compile(r"[0-9a-f]{8,64}-[A-Za-z0-9_.-]{1,100}\.png")
_NUMBER = re.compile(r"\d{1,12}", re.ASCII)
_SIGN = re.compile(r"[0-9a-f]{64}")


def digest(svg: str) -> str:
    """What the name of a picture begins with; nobody guesses it who has not seen the picture."""
    return hashlib.sha256(svg.encode("utf-8", "replace")).hexdigest()[:32]


def link(base: str, name: str, key: bytes, now: float, lasts: float = LASTS_S) -> str:
    """The address of the picture `name` below `base` (``https://host``), good until `now` + `lasts` seconds."""
    expires = str(int(now + lasts))
    query = urlencode({"expires": expires, "sign": _sign(key, name, expires)})
    return f"{base.rstrip('/')}/pictures/{name}?{query}"


def holds(name: str, query: Mapping[str, str], key: bytes, now: float) -> bool:
    """Whether the address that asks for `name` is one of ours and has not ended."""
    expires, sign = query.get("expires", ""), query.get("sign", "")
    if not (NAME.fullmatch(name) and _NUMBER.fullmatch(expires) and _SIGN.fullmatch(sign)):
        return False
    return hmac.compare_digest(sign.encode(), _sign(key, name, expires).encode()) and now < int(expires)


def _sign(key: bytes, name: str, expires: str) -> str:
    return hmac.new(key, f"picture:{name}:{expires}".encode(), hashlib.sha256).hexdigest()
