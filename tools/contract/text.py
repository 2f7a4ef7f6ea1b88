"""Make text that came from a host inert.

Command names, paths, symbols and log lines are written by strangers. `clean` is applied once, where such text
enters a table, so that nothing downstream (terminal, Markdown, JSON, a model) can be steered by it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

PATH_LIMIT = 4096
NAME_LIMIT = 256

# Cc control, Cf format (bidirectional overrides, zero width), Cs surrogates, Co private, Zl/Zp line separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_PLAIN = re.compile(r"[ -~]*")


def clean(text: str | bytes, limit: int = NAME_LIMIT) -> str:
    """Return `text` with every unprintable or direction-changing character written as an escape.

    Bytes that are not UTF-8 become ``\\xNN``; control characters become ``\\xNN`` or ``\\uNNNN``. The result has at
    most `limit` characters; a cut is marked with a final ``…``. Quotes, ``$(x)`` and the like stay as they are: they
    are harmless in a string and every renderer escapes for its own format.
    """
    if isinstance(text, bytes):
        text = text.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
    if not _PLAIN.fullmatch(text):
        text = "".join(_escape(c) if unicodedata.category(c) in _UNSAFE else c for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clean_path(path: str | bytes) -> str:
    """`clean` with the limit of a path (PATH_MAX)."""
    return clean(path, PATH_LIMIT)


def path_pattern(path: str) -> str:
    """Return `path` with each run of digits in its last two components as ``*``.

    Checkpoints are numbered by file (``chk_000120.bin``) or by directory (``checkpoint-500/model.safetensors``); what
    recurs is the pattern, not the file.
    """
    head, slash, leaf = path.rpartition("/")
    above, slash2, parent = head.rpartition("/")
    return f"{above}{slash2}{_numberless(parent)}{slash}{_numberless(leaf)}"


def path_series(paths: Collection[str]) -> str:
    """Return the name of a series of files that share a `path_pattern`: ``*`` only in components that differ."""
    parents, leaves = ({path.rpartition("/")[part] for path in paths} for part in (0, 2))
    pattern, slash, leaf = path_pattern(min(paths)).rpartition("/")
    parent = pattern if len(parents) > 1 else parents.pop()
    return f"{parent}{slash}{leaf if len(leaves) > 1 else leaves.pop()}"


def _numberless(name: str) -> str:
    return re.sub(r"[0-9]+", "*", name)


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
