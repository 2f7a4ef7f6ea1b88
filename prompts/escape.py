"""Makes values inert in the output format: Markdown, or the plain text of a terminal and of MCP.

Our own texts are `Safe`; everything else that a template prints is escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

# Text that is no markup in any Markdown flavour: letters, digits and some punctuation.
_QUIET = re.compile(r"[\w ,;:'\"()%/=+.?，。；：、（）！？“”·-]*")
# Exceptions: at the start (lists, underlined headings, indented code), and where URLs become links.
_LOUD = re.compile(r"^(\s|[-+=]|\d+[.)])|_|://|www\.", re.IGNORECASE)
# A single plain word; Python's names of nameless code are allowed.
_BARE = re.compile(r"(?:[\w.,:@%+=/*-]|<(?:module|locals|lambda|genexpr|listcomp|dictcomp|setcomp)>)+")

# A function and its location: save (train.py:212)
_PLACE = re.compile(r"(.+) \(([^()]+:\d+)\)")


class Safe(str):
    """Text that is shown unescaped."""

    __slots__ = ()


def printable(text: str) -> str:
    """Return `text` with unprintable, cursor-moving and bidirectional control characters as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def short(text: str, limit: int) -> str:
    """Return `text` in at most `limit` characters, with ``…`` for the middle of a longer one."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def markdown(value: object) -> Safe:
    """Return `value` for running Markdown; as code if anything in it could be markup."""
    if isinstance(value, Safe):
        return value
    text = printable(str(value))
    return markdown_code(text) if _LOUD.search(text) or not _QUIET.fullmatch(text) else Safe(text)


def markdown_code(value: object) -> Safe:
    """Return `value` as a code span, in which nothing is markup. The fence is longer than any inside."""
    text = printable(str(value))
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    pad = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) or not text else ""
    return Safe(f"{fence}{pad}{text}{pad}{fence}")


def markdown_block(value: object) -> Safe:
    """Return `value` as a fenced block of lines; nothing in it is markup or ends the fence."""
    lines = [printable(line) for line in str(value).split("\n")]
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0))
    return Safe("\n".join([f"{fence}text", *lines, fence]))


def plain(value: object) -> Safe:
    """Return `value` for a terminal or a model."""
    return value if isinstance(value, Safe) else Safe(printable(str(value)))


def plain_code(value: object) -> Safe:
    """Return a name for a terminal or a model, quoted unless it is a single plain word, so that it cannot pass for
    prose.
    """
    text = printable(str(value))
    return Safe(text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False))


def placed(text: str, name: Callable[[object], Safe], limit: int) -> Safe:
    """Return a program location such as ``save (train.py:212)`` with function and file each as a `name` of at most
    `limit` characters; other text as one name.
    """
    known = _PLACE.fullmatch(text)
    if known is None:
        return name(short(text, limit))
    function, line = (name(short(part, limit)) for part in known.groups())
    return Safe(f"{function} ({line})")
