"""Sign and verify webhooks by Standard Webhooks (https://www.standardwebhooks.com, spec/standard-webhooks.md).

``webhook-id`` identifies the message and stays the same when it is sent again; ``webhook-timestamp`` is the time of
this attempt in seconds; ``webhook-signature`` holds, separated by spaces, ``v1,`` and base64 of HMAC-SHA256 over
``id.timestamp.body``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from whystall.tools.contract.errors import ErrorCode, ToolError

WINDOW_S = 300.0
"""Largest accepted difference between a timestamp and now."""
_PREFIX = "whsec_"
_MANY = 10  # signatures; more than one while a secret is rotated


def signature(secret: str, id: str, timestamp: str, body: bytes) -> str:
    """Return one signature. `secret`: ``whsec_`` and base64, as in the standard, or any other text, used as raw bytes.

    Raises `ToolError` (bad_argument) if ``whsec_`` is not followed by base64.
    """
    mac = hmac.new(_key(secret), f"{id}.{timestamp}.".encode() + body, hashlib.sha256)
    return "v1," + base64.b64encode(mac.digest()).decode()


def signature_headers(secret: str, id: str, timestamp: str, body: bytes) -> dict[str, str]:
    """Return the three headers of a signed message."""
    return {
        "webhook-id": id,
        "webhook-timestamp": timestamp,
        "webhook-signature": signature(secret, id, timestamp, body),
    }


def matches(given: str, secret: str, id: str, timestamp: str, body: bytes) -> bool:
    """Return whether one of the signatures in the header `given` is right, compared in constant time."""
    expected = signature(secret, id, timestamp, body).encode()
    found = False
    for one in given.split(" ")[:_MANY]:
        found |= hmac.compare_digest(one.encode("utf-8", "replace"), expected)
    return found


def _key(secret: str) -> bytes:
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        key = base64.b64decode(secret[len(_PREFIX) :], validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        message = f"the webhook secret starts with {_PREFIX}, but what follows is not base64"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "copy the whole secret again, with its trailing =")
    return key
