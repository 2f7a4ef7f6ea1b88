"""The input shape of an activity of Kineto as a text, by which equal work is recognised.

"args": {"Input Dims": [[64, 128], [128, 32], []], "Input type": ["float", "float", ""]}     an operator
"args": {"grid": [64, 1, 1], "block": [128, 1, 1]}                                          a kernel
"""

from __future__ import annotations

import hashlib

import msgspec

from whystall.tools.contract.text import clean

NO_TENSORS = "-"
_LIMIT = 240
_DIFFERENT = 100_000
"""A file with more shapes than that gives each its own, as one with random sizes does: the rest has none."""


class Shapes:
    """Numbers texts of shapes in `texts`, in the order of first use."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self._known: dict[tuple[bytes, ...], int] = {}
        self._numbers: dict[str, int] = {}

    def number(self, dims: msgspec.Raw, types: msgspec.Raw, grid: msgspec.Raw, block: msgspec.Raw) -> int:
        """Return the index of the shape in `texts`; -1 if the event has none, or there are too many."""
        key = (bytes(dims), bytes(types), bytes(grid), bytes(block))
        if not key[0] and not key[2]:
            return -1
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _DIFFERENT:
                return -1
            text = _text(*key)
            found = -1
            if text:
                found = self._numbers.setdefault(text, len(self._texts))
                if found == len(self._texts):
                    self._texts.append(text)
            self._known[key] = found
        return found


def _text(dims: bytes, types: bytes, grid: bytes, block: bytes) -> str:
    """Return the shape, `NO_TENSORS` of an operator on scalars; empty if it cannot be read."""
    if grid:
        return clean(f"grid {_plain(grid)} block {_plain(block)}", _LIMIT)
    try:
        sizes, kinds = msgspec.json.decode(dims), msgspec.json.decode(types) if types else []
    except (msgspec.DecodeError, RecursionError):
        return ""
    if not isinstance(sizes, list) or not isinstance(kinds, list):
        return ""
    kinds = [*kinds, *[""] * len(sizes)]
    # arguments without dimensions are no tensors
    pairs = zip(sizes, kinds, strict=False)
    text = " ".join(f"{kind if isinstance(kind, str) else ''}{_size(size)}" for size, kind in pairs if size)
    if len(text) > _LIMIT:  # long ones often begin alike
        return f"{clean(text[: _LIMIT - 20])} #{_digest(text)}"
    return clean(text) or NO_TENSORS


def _digest(text: str) -> str:
    """Return a short digest that distinguishes long texts with a common beginning."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _size(size: object) -> str:
    return "[" + ",".join(map(str, size)) + "]" if isinstance(size, list) else str(size)


def _plain(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").replace(" ", "")
