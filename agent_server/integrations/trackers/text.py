"""The text of an issue: our part between two marks, and around it what people wrote, which is kept.

Our part is Markdown with all foreign text in code spans. `TextFormat.inert` neutralises what trackers interpret beyond
Markdown: HTML comments (the marks themselves), quick actions of GitLab, macros of Jira.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from typing import ClassVar

MARK = "whystall"
# https://docs.gitlab.com/user/project/quick_actions/: a line that begins with a slash and a word
_ACTION = re.compile(r"^(\s*)/(?=\w)")
# https://docs.gitlab.com/user/markdown/#gitlab-specific-references
_REFERENCE = re.compile(r"([@#!~&$^%*])(?=[\w\"(])")
_FENCE = re.compile(r"(`{3,})")
_OWN_COMMENT = re.compile(rf"(?:<!-- |\(){MARK} ([0-9a-f]{{16}}) said (\d{{1,18}})(?: -->|\))\s*\Z")
_ELLIPSIS = "..."


def digest(text: str) -> str:
    """Return a hash of `text`."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def fitted(text: str, limit: int, note: str) -> str:
    """Return `text` in at most `limit` characters: if too long, without its last lines and with `note` instead."""
    if len(text) <= limit:
        return text
    room = limit - len(note) - 2
    if room <= 0:
        return note[: max(limit, 0)]
    head = text[:room]
    cut = head.rfind("\n")
    return f"{head[:cut] if cut > 0 else ''}\n\n{note}"


def one_line(text: str, limit: int) -> str:
    """Return `text` as a title of at most `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - len(_ELLIPSIS)] + _ELLIPSIS


def own_comment(text: str) -> tuple[str, int] | None:
    """Return marker and number of a comment of ours, else None. A quoted mark is not alone on the last line."""
    found = _OWN_COMMENT.search(text.replace("\r\n", "\n").rstrip())
    if found is None or (found.start() and text[: found.start()].rstrip(" ")[-1:] not in ("\n", "")):
        return None
    return found[1], int(found[2])


class TextFormat(ABC):
    """The markup of a tracker. `limit`: characters of a description."""

    _block: ClassVar[tuple[str, str]] = ("", "")
    """Around our part and our comments."""
    _part_marks: ClassVar[tuple[str, str]]
    _comment_mark: ClassVar[str]

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def title(self, text: str) -> str:
        """Return `text` as a title without mentions or references."""
        return text

    @abstractmethod
    def inert(self, text: str) -> str:
        """Return `text` without anything that could end our part or trigger an action."""

    def part(self, generated: str, marker: str, room: int, note: str) -> str:
        """Return our part between its marks in at most `room` characters; `note` replaces what is cut."""
        (before, after), (begin, end) = self._block, self._marks(marker)
        left = room - len(before) - len(begin) - len(end) - len(after) - 4
        return f"{before}{begin}\n{fitted(self.inert(generated).strip(), left, note)}\n{end}{after}"

    def merged(self, there: str, generated: str, marker: str, note: str) -> str | None:
        """Return `there` with our part replaced; None if people removed its marks: then the text is left alone."""
        around = self._around(there, *self._marks(marker))
        if around is None:
            return None
        before, after = around
        return before + self.part(generated, marker, self.limit - len(before) - len(after), note) + after

    def holds(self, text: str, marker: str) -> bool:
        """Return whether `text` contains our part with `marker`."""
        return self._marks(marker)[0] in text

    def comment(self, text: str, marker: str, number: int, limit: int, note: str) -> str:
        """Return our comment with a mark at its end, by which `own_comment` recognises it."""
        (before, after), mark = self._block, self._comment_mark.format(MARK, marker, number)
        room = limit - len(before) - len(after) - len(mark)
        return f"{before}{fitted(self.inert(text).strip(), room, note)}{after}{mark}"

    def _marks(self, marker: str) -> tuple[str, str]:
        begin, end = self._part_marks
        return begin.format(MARK, marker), end.format(MARK, marker)

    @abstractmethod
    def _around(self, text: str, begin: str, end: str) -> tuple[str, str] | None:
        """Return the text before and after our part; None if a mark is missing."""


class Markdown(TextFormat):
    """Markdown of GitHub and GitLab. `actions`: whether the tracker has quick actions."""

    _part_marks = ("<!-- {} {}: what is between these marks is written anew -->", "<!-- {} {} end -->")
    _comment_mark = "\n\n<!-- {} {} said {} -->"

    def __init__(self, limit: int, *, actions: bool) -> None:
        super().__init__(limit)
        self._actions = actions

    def title(self, text: str) -> str:
        """Insert an invisible word joiner before each name: GitLab finds references in titles, which have no code."""
        return _REFERENCE.sub("\\1\u2060", text)

    def inert(self, text: str) -> str:
        """Return `text` without HTML comments and quick actions."""
        text = text.replace("<!--", "<! --").replace("-->", "-- >")
        return _without_actions(text) if self._actions else text

    def _around(self, text: str, begin: str, end: str) -> tuple[str, str] | None:
        start = text.find(begin)
        stop = text.find(end, start)
        return None if start < 0 or stop < 0 else (text[:start], text[stop + len(end) :])


class Wiki(TextFormat):
    """Markup of Jira (https://jira.atlassian.com/secure/WikiRendererHelpAction.jspa). Our part is one ``{noformat}``,
    in which nothing is interpreted; Jira Cloud may return it as ``{code}``.
    """

    _block = ("{noformat}\n", "\n{noformat}")
    _part_marks = ("[{} {}: this block is written anew, write below it]", "[{} {} end]")
    _comment_mark = "\n({} {} said {})"

    def inert(self, text: str) -> str:
        return re.sub(r"\{(?=\s*(?:noformat|code)\b)", "{ ", text, flags=re.IGNORECASE)

    def _around(self, text: str, begin: str, end: str) -> tuple[str, str] | None:
        opening, text = r"\{(noformat|code)(?:[:|][^}]*)?\}\s*", text.replace("\r\n", "\n")
        found = re.search(rf"{opening}{re.escape(begin)}.*?{re.escape(end)}\s*\{{\1\}}", text, re.DOTALL)
        return None if found is None else (text[: found.start()], text[found.end() :])


def _without_actions(text: str) -> str:
    """Return `text` without lines that begin with a slash and a word: in a code block a blank is inserted, elsewhere a
    backslash. Older GitLabs end a block at any line of three backticks; newer ones find no actions in blocks.
    """
    lines, fence = [], ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark is not None and (not fence or line == fence):
            fence = "" if fence else mark[1]
        lines.append(_ACTION.sub(" /" if fence else r"\\/", line))
    return "\n".join(lines)
