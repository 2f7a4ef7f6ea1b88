"""Verification of webhooks: each check raises `Refused` (401) unless the sender knows the secret.

Only Standard Webhooks sign a time; for the others a replay is detected by its id (`TrackerEvent.key`). An event states
how an issue is, not what to do, so that processing one twice changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac

from whystall.agent_server.integrations.messages import Refused
from whystall.agent_server.integrations.trackers.tracker import WebhookRequest
from whystall.agent_server.outbound.standard_webhooks import WINDOW_S, matches


def check_hub_signature(secret: str, given: str, body: bytes) -> None:
    """Verify ``X-Hub-Signature``: ``sha256=0b9c...``, the HMAC of the body."""
    if not _equal("sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(), given):
        raise Refused(401, "signature")


def check_pagerduty_signature(secret: str, given: str, body: bytes) -> None:
    """Verify ``X-PagerDuty-Signature``: ``v1=0b9c...,v1=77e1...``; two while a secret is rotated.

    https://developer.pagerduty.com/docs/verifying-webhook-signatures
    """
    wanted = "v1=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    matching = [_equal(wanted, part.strip()) for part in given.split(",")[:10]]
    if not any(matching):
        raise Refused(401, "signature")


def check_token(secret: str, given: str) -> None:
    """Verify a shared token."""
    if not _equal(secret, given):
        raise Refused(401, "signature")


def check_standard_webhook(secret: str, webhook: WebhookRequest) -> None:
    """Verify ``webhook-signature`` over id, timestamp and body, and that the timestamp is recent."""
    headers = webhook.headers
    id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not id or not matches(headers.get("webhook-signature", ""), secret, id, timestamp, webhook.body):
        raise Refused(401, "signature")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
        raise Refused(401, "malformed")
    if abs(webhook.now - int(timestamp)) > WINDOW_S:
        raise Refused(401, "too_old")


def unverifiable() -> Refused:
    """Return the refusal of a webhook for which no secret is configured."""
    return Refused(404, "off", "no secret of a webhook is set")


def _equal(one: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))
