"""Make JSON that came from another program inert (`text.clean`), and bound it."""

from __future__ import annotations

from typing import Any

from whystall.tools.contract.text import clean

_DEPTH, _TEXT, _ITEMS = 24, 4096, 200_000


def inert(value: Any, secret: str = "") -> Any:
    """Return JSON with every text and key made inert, cut at 4096 characters, and without `secret`.

    Raises `ValueError` if it is nested too deep, or has too many values.
    """
    left = [_ITEMS]

    def text(value: str) -> str:
        return clean(value.replace(secret, "***") if secret else value, _TEXT)

    def walk(value: Any, depth: int) -> Any:
        left[0] -= 1
        if depth > _DEPTH or left[0] < 0:
            raise ValueError("nested too deep, or too many values")
        if isinstance(value, str):
            return text(value)
        if isinstance(value, list):
            return [walk(each, depth + 1) for each in value]
        if isinstance(value, dict):
            return {text(str(key)): walk(each, depth + 1) for key, each in value.items()}
        return value

    return walk(value, 0)
