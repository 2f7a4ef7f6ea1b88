"""Make values inert in the format they are shown in: Markdown, or the plain text of a terminal and of MCP.

Words of our own are `Safe`; everything else that a template prints is escaped without being asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

# Text that no Markdown flavour reads as markup, wherever it stands: letters, digits and quiet punctuation.
_QUIET = re.compile(r"[\w ,;:'\"()%/=+.?，。；：、（）！？“”·-]*")
# ... except at the start (lists, underlined headings, indented code) and where addresses become links.
_LOUD = re.compile(r"^(\s|[-+=]|\d+[.)])|_|://|www\.", re.IGNORECASE)
# A single plain word; Python's own names of code without a name are part of one.
_BARE = re.compile(r"(?:[\w.,:@%+=/*-]|<(?:module|locals|lambda|genexpr|listcomp|dictcomp|setcomp)>)+")

# A function and where it is: save (train.py:212)
_PLACE = re.compile(r"(.+) \(([^()]+:\d+)\)")


class Safe(str):
    """Text that may be shown as it is."""

    __slots__ = ()


def printable(text: str) -> str:
    """`text` with what cannot be seen, moves the cursor or turns the direction of writing as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def short(text: str, limit: int) -> str:
    """`text` in at most `limit` characters; the middle of a longer one is left out, marked ``…``."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def markdown(value: object) -> Safe:
    """`value` for running Markdown: as it is where nothing in it could be markup, else as code."""
    if isinstance(value, Safe):
        return value
    text = printable(str(value))
    return markdown_code(text) if _LOUD.search(text) or not _QUIET.fullmatch(text) else Safe(text)


def markdown_code(value: object) -> Safe:
    """`value` as a code span: there links, mentions, HTML and emphasis mean nothing. The fence is longer
    than any inside.
    """
    text = printable(str(value))
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    pad = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) or not text else ""
    return Safe(f"{fence}{pad}{text}{pad}{fence}")


def markdown_block(value: object) -> Safe:
    """`value` as a fenced block, with its lines: nothing in it is markup, and no line in it ends the fence."""
    lines = [printable(line) for line in str(value).split("\n")]
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0))
    return Safe("\n".join([f"{fence}text", *lines, fence]))


def plain(value: object) -> Safe:
    """`value` for a terminal or a model."""
    return value if isinstance(value, Safe) else Safe(printable(str(value)))


def plain_code(value: object) -> Safe:
    """A name for a terminal or a model: in quotes unless it is a single plain word, so that it cannot pass
    for prose.
    """
    text = printable(str(value))
    return Safe(text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False))


def placed(text: str, name: Callable[[object], Safe], limit: int) -> Safe:
    """A line of a program, ``save (train.py:212)``: function and file each as a `name` of at most `limit` characters,
    so that it reads as one wherever it is shown; other text as one name.
    """
    known = _PLACE.fullmatch(text)
    if known is None:
        return name(short(text, limit))
    function, line = (name(short(part, limit)) for part in known.groups())
    return Safe(f"{function} ({line})")
