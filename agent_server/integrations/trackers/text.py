"""The text of an issue: our part between marks, what people wrote around it kept; nothing in it steers a tracker.

Our part is Markdown in which strangers' text stands in code spans. What is left to do is what trackers read beside
Markdown: comments of HTML (the marks themselves), quick actions of GitLab, macros of Jira.
"""

from __future__ import annotations

import hashlib
import re

MARK = "whystall"
# https://docs.gitlab.com/user/project/quick_actions/: a line that begins with a slash, and no blank
_ACTION = re.compile(r"^(\s*)/(?=\w)")
# https://docs.gitlab.com/user/markdown/#gitlab-specific-references
_REFERENCE = re.compile(r"([@#!~&$^%*])(?=[\w\"(])")
_FENCE = re.compile(r"(`{3,})")
_SAID = re.compile(rf"(?:<!-- |\(){MARK} ([0-9a-f]{{16}}) said (\d{{1,18}})(?: -->|\))\s*\Z")
_CUT = "..."


def digest(text: str) -> str:
    """A hash of `text`, to know whether it changed."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def fitted(text: str, limit: int, note: str) -> str:
    """`text` within `limit` characters: whole lines are left out at its end, and `note` says so."""
    if len(text) <= limit:
        return text
    room = limit - len(note) - 2
    if room <= 0:
        return note[: max(limit, 0)]
    head = text[:room]
    cut = head.rfind("\n")
    return f"{head[:cut] if cut > 0 else ''}\n\n{note}"


def one_line(text: str, limit: int) -> str:
    """`text` as a title of at most `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - len(_CUT)] + _CUT


def _without_actions(text: str) -> str:
    """`text` in which no line begins with a slash and a word. In a block of code a blank goes before it, elsewhere a
    backslash: older GitLabs end a block at any line of three backticks, newer ones do not look into blocks.
    """
    lines, fence = [], ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark is not None and (not fence or line == fence):
            fence = "" if fence else mark[1]
        lines.append(_ACTION.sub(" /" if fence else r"\\/", line))
    return "\n".join(lines)


def quiet_title(text: str) -> str:
    """`text` as a title that mentions nobody and refers to nothing: GitLab looks for both in titles, which have no code
    spans. What would begin a reference is kept from its name by a word joiner, which nobody sees.
    """
    return _REFERENCE.sub("\\1\u2060", text)


class Markdown:
    """GitHub's and GitLab's. `limit`: characters that a description may have."""

    def __init__(self, limit: int, *, actions: bool) -> None:
        self.limit = limit
        self._actions = actions

    def inert(self, text: str) -> str:
        """`text` without what could end our part or, where the tracker knows such, be a quick action."""
        text = text.replace("<!--", "<! --").replace("-->", "-- >")
        return _without_actions(text) if self._actions else text

    def part(self, generated: str, marker: str, room: int, note: str) -> str:
        """Our part, between its marks, in at most `room` characters."""
        begin, end = self._marks(marker)
        left = room - len(begin) - len(end) - 4
        return f"{begin}\n{fitted(self.inert(generated).strip(), left, note)}\n{end}"

    def merged(self, there: str, generated: str, marker: str, note: str) -> str | None:
        """`there` with our part anew; None where people took its marks away: then the text is theirs."""
        begin, end = self._marks(marker)
        start = there.find(begin)
        stop = there.find(end, start)
        if start < 0 or stop < 0:
            return None
        before, after = there[:start], there[stop + len(end) :]
        room = self.limit - len(before) - len(after)
        return before + self.part(generated, marker, room, note) + after

    def holds(self, text: str, marker: str) -> bool:
        """Whether our part of `marker` is in `text`."""
        return self._marks(marker)[0] in text

    def comment(self, text: str, marker: str, number: int, limit: int, note: str) -> str:
        """A comment of ours, with a mark that people do not see."""
        mark = f"<!-- {MARK} {marker} said {number} -->"
        return f"{fitted(self.inert(text).strip(), limit - len(mark) - 2, note)}\n\n{mark}"

    @staticmethod
    def _marks(marker: str) -> tuple[str, str]:
        return f"<!-- {MARK} {marker}: what is between these marks is written anew -->", f"<!-- {MARK} {marker} end -->"


class Wiki:
    """Jira's markup (https://jira.atlassian.com/secure/WikiRendererHelpAction.jspa). Our part stands in one
    ``{noformat}``, where nothing is markup and nobody is mentioned; Jira Cloud may give it back as ``{code}``.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def inert(self, text: str) -> str:
        """`text` without what could end the block."""
        return re.sub(r"\{(?=\s*(?:noformat|code)\b)", "{ ", text, flags=re.IGNORECASE)

    def part(self, generated: str, marker: str, room: int, note: str) -> str:
        """Our part, between its marks, in at most `room` characters."""
        begin, end = self._marks(marker)
        left = room - len(begin) - len(end) - 2 * len("{noformat}") - 6
        return f"{{noformat}}\n{begin}\n{fitted(self.inert(generated).strip(), left, note)}\n{end}\n{{noformat}}"

    def merged(self, there: str, generated: str, marker: str, note: str) -> str | None:
        """`there` with our part anew; None where people took its marks away: then the text is theirs."""
        begin, end = self._marks(marker)
        block = re.compile(
            r"\{(noformat|code)(?:[:|][^}]*)?\}\s*" + re.escape(begin) + r".*?" + re.escape(end) + r"\s*\{\1\}",
            re.DOTALL,
        )
        found = block.search(there.replace("\r\n", "\n"))
        if found is None:
            return None
        there = there.replace("\r\n", "\n")
        before, after = there[: found.start()], there[found.end() :]
        return before + self.part(generated, marker, self.limit - len(before) - len(after), note) + after

    def holds(self, text: str, marker: str) -> bool:
        """Whether our part of `marker` is in `text`."""
        return self._marks(marker)[0] in text

    def comment(self, text: str, marker: str, number: int, limit: int, note: str) -> str:
        """A comment of ours, with a mark at its end."""
        mark = f"({MARK} {marker} said {number})"
        room = limit - len(mark) - 2 * len("{noformat}") - 6
        return f"{{noformat}}\n{fitted(self.inert(text).strip(), room, note)}\n{{noformat}}\n{mark}"

    @staticmethod
    def _marks(marker: str) -> tuple[str, str]:
        return f"[{MARK} {marker}: this block is written anew, write below it]", f"[{MARK} {marker} end]"


def own_comment(text: str) -> tuple[str, int] | None:
    """Marker and number of a comment of ours; None: somebody else said it. A quoted mark is none: it does not stand
    alone at the end.
    """
    found = _SAID.search(text.replace("\r\n", "\n").rstrip())
    if found is None or (found.start() and text[: found.start()].rstrip(" ")[-1:] not in ("\n", "")):
        return None
    return found[1], int(found[2])
