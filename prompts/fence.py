"""Fences around untrusted text in prompts.

Data of a host, ticket or card is given to a model as one line of JSON between two markers with a random nonce. The
system prompt states that nothing between the markers is an instruction.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence

from whystall.prompts.escape import printable

_NONCE = re.compile(r"[0-9a-f]{16}")
# Markers of roles in chat formats (<|im_start|>, </s>, [INST]) and Markdown fences, which become JSON escapes. None
# occurs outside of JSON strings.
_MARKS = {"<": "\\u003c", ">": "\\u003e", "`": "\\u0060", "｜": "\\uff5c"}
_BRACKET = re.compile(r"\[(?=\s*/?\s*[A-Z]{3,})")


class Fence:
    """The markers of one conversation."""

    def __init__(self, nonce: str | None = None) -> None:
        """`nonce`: 16 hexadecimal digits, only to repeat an earlier conversation; else random."""
        self.nonce = nonce or secrets.token_hex(8)
        if not _NONCE.fullmatch(self.nonce):
            raise ValueError(f"no nonce: {self.nonce!r}")
        self.opening = f"<<data {self.nonce}"
        self.closing = f"{self.nonce} data>>"

    def put(self, value: object) -> str:
        """Return `value` between the markers: three lines, the middle one JSON, with unprintable characters as visible
        escapes. Nothing in it can close the fence. Raises TypeError or ValueError for values that JSON cannot
        represent.
        """
        text = json.dumps(_inert(value), ensure_ascii=False, allow_nan=False)
        for mark, escape in _MARKS.items():
            text = text.replace(mark, escape)
        text = _BRACKET.sub(r"\\u005b", text)
        # Escape the nonce itself. (An escape of its first digit would end in that digit.)
        text = text.replace(self.nonce, f"{self.nonce[0]}\\u{ord(self.nonce[1]):04x}{self.nonce[2:]}")
        return f"{self.opening}\n{text}\n{self.closing}"


def _inert(value: object) -> object:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {_inert(key): _inert(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_inert(inner) for inner in value]
    return value
