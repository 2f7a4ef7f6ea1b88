"""Recognise addresses of this machine."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address: only this machine can connect to it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
