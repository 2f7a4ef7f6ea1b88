"""Standard Webhooks (https://www.standardwebhooks.com, spec/standard-webhooks.md): how programs sign what they post.

``webhook-id`` is the message's own, the same when it is sent again; ``webhook-timestamp`` the time of this attempt in
seconds; ``webhook-signature`` holds, separated by blanks, ``v1,`` and base64 of HMAC-SHA256 over ``id.timestamp.body``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

WINDOW_S = 300.0
"""How far a timestamp may lie from now, on either side."""
_PREFIX = "whsec_"
_MANY = 10  # signatures; more than one while a secret is changed


def signature(secret: str, id: str, timestamp: str, body: bytes) -> str:
    """One signature. `secret`: ``whsec_`` and base64 as the standard has it, or any text, which is taken as it is."""
    mac = hmac.new(_key(secret), f"{id}.{timestamp}.".encode() + body, hashlib.sha256)
    return "v1," + base64.b64encode(mac.digest()).decode()


def signed(secret: str, id: str, timestamp: str, body: bytes) -> dict[str, str]:
    """The three headers."""
    return {
        "webhook-id": id,
        "webhook-timestamp": timestamp,
        "webhook-signature": signature(secret, id, timestamp, body),
    }


def matches(given: str, secret: str, id: str, timestamp: str, body: bytes) -> bool:
    """Whether one of the signatures in the header `given` is right; the time it takes does not tell how far."""
    expected = signature(secret, id, timestamp, body).encode()
    found = False
    for one in given.split(" ")[:_MANY]:
        found |= hmac.compare_digest(one.encode("utf-8", "replace"), expected)
    return found


def _key(secret: str) -> bytes:
    if secret.startswith(_PREFIX):
        try:
            return base64.b64decode(secret[len(_PREFIX) :], validate=True)
        except (binascii.Error, ValueError):
            pass
    return secret.encode()
