"""Signed, expiring addresses from which vendors fetch pictures. Pure.

An address gives access to one picture until it expires; it cannot be forged or extended.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from urllib.parse import urlencode

LASTS_S = 7 * 86_400.0
"""Chats fetch a picture when the message is read, which may be after a weekend."""
NAME = re.compile(r"[0-9a-f]{8,64}-[A-Za-z0-9_.-]{1,100}\.png")
_NUMBER = re.compile(r"\d{1,12}", re.ASCII)
_SIGN = re.compile(r"[0-9a-f]{64}")


def digest(svg: str) -> str:
    """Return the unguessable start of a picture's name."""
    return hashlib.sha256(svg.encode("utf-8", "replace")).hexdigest()[:32]


def link(base: str, name: str, key: bytes, now: float, lasts: float = LASTS_S) -> str:
    """Return the address of the picture `name` below `base` (``https://host``), valid for `lasts` seconds."""
    expires = str(int(now + lasts))
    query = urlencode({"expires": expires, "sign": _sign(key, name, expires)})
    return f"{base.rstrip('/')}/pictures/{name}?{query}"


def is_valid(name: str, query: Mapping[str, str], key: bytes, now: float) -> bool:
    """Return whether the signature of the request for `name` is valid and has not expired."""
    expires, sign = query.get("expires", ""), query.get("sign", "")
    if not (NAME.fullmatch(name) and _NUMBER.fullmatch(expires) and _SIGN.fullmatch(sign)):
        return False
    return hmac.compare_digest(sign.encode(), _sign(key, name, expires).encode()) and now < int(expires)


def _sign(key: bytes, name: str, expires: str) -> str:
    return hmac.new(key, f"picture:{name}:{expires}".encode(), hashlib.sha256).hexdigest()
