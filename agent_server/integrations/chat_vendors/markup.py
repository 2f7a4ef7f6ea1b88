"""Parse the Markdown of our messages into blocks and spans, from which each vendor's format is made.

Markdown is never passed on, so only our own markup, mentions and links take effect. Line breaks are kept.

    **Likely**: the page cache evicts `data.bin` ([ticket 12](https://t.example/12))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from whystall.agent_server.integrations.messages import Outgoing
from whystall.prompts.render import words

Kind = Literal["heading", "line", "item", "number", "quote", "code"]
Form = TypeVar("Form")

_HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*")
_ITEM = re.compile(r"(\s*)[-*+]\s+(.*)")
_NUMBER = re.compile(r"(\s*)(\d{1,9})[.)]\s+(.*)")
_QUOTE = re.compile(r"\s*>\s?(.*)")
_FENCE = re.compile(r"\s*(`{3,}|~{3,}).*")
_RULE = re.compile(r"\s*([-*_])(\s*\1){2,}\s*")
_ROW = re.compile(r"\s*\|(.*)\|\s*")
_DIVIDER = re.compile(r"[\s|:-]+")
_TICKS = re.compile(r"`+")
_LINK = re.compile(r"!?\[((?:[^\[\]\\]|\\.)*)\]\(([^()\s]{0,2000})\)")
_MARKED = re.compile(r"\*\*|\*|_")
_PLAIN = re.compile(r"[^\\`!\[*_]+")
_WEB = re.compile(r"https?://[^\s<>\"]+", re.IGNORECASE)
_LEVELS = 4
_TEXT_LIMIT = 40_000
LINE_LIMIT = 6_000
_REACH = 1_000  # maximum characters between a mark and its end


@dataclass(frozen=True)
class Span:
    """A run of text in one style. `code`: a name, shown verbatim; `href`: a web address, else empty."""

    text: str
    bold: bool = False
    italic: bool = False
    code: bool = False
    href: str = ""


@dataclass(frozen=True)
class Block:
    """One line of a message. `level`: depth of a list item, from 0; `number`: of a numbered item; `gap`: whether an
    empty line precedes it.
    """

    kind: Kind
    spans: tuple[Span, ...]
    level: int = 0
    number: int = 0
    gap: bool = False

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


@dataclass
class _Reader:
    """Collects blocks line by line; `fence`: the end mark of the current code block."""

    blocks: list[Block] = field(default_factory=list)
    fence: str = ""
    gap: bool = False

    def add(self, kind: Kind, spans: Sequence[Span], level: int = 0, number: int = 0) -> None:
        self.blocks.append(Block(kind, tuple(spans), min(level, _LEVELS), number, self.gap and bool(self.blocks)))
        self.gap = False

    def line(self, line: str) -> None:
        if self.fence:
            if line.strip().startswith(self.fence):
                self.fence = ""
            else:
                self.add("code", [Span(line, code=True)])
        elif fence := _FENCE.fullmatch(line):
            self.fence = fence[1]
        elif not line.strip() or _RULE.fullmatch(line):
            self.gap = True
        elif row := _ROW.fullmatch(line):
            if not _DIVIDER.fullmatch(row[1]):
                self.add("line", list(spans(" · ".join(cell.strip() for cell in re.split(r"(?<!\\)\|", row[1])))))
        elif heading := _HEADING.fullmatch(line):
            self.add("heading", [replace(span, bold=True) for span in spans(heading[1])])
        elif item := _ITEM.fullmatch(line):
            self.add("item", list(spans(item[2])), len(item[1]) // 2)
        elif number := _NUMBER.fullmatch(line):
            self.add("number", list(spans(number[3])), len(number[1]) // 2, int(number[2]))
        elif quote := _QUOTE.fullmatch(line):
            self.add("quote", list(spans(quote[1])))
        else:
            self.add("line", list(spans(line.strip())))


def blocks(text: str) -> list[Block]:
    """Parse the Markdown `text` into blocks."""
    reader = _Reader()
    for line in text[:_TEXT_LIMIT].split("\n"):
        reader.line(line[:LINE_LIMIT].rstrip())
    return reader.blocks


def spans(text: str, style: Span | None = None) -> Iterator[Span]:
    """Yield the spans of one line of Markdown in `style`; unpaired marks are text."""
    style = style or Span("")
    plain: list[str] = []
    at = 0
    while at < len(text):
        found = _mark(text, at, style)
        if found is None:
            run = _PLAIN.match(text, at)
            end = run.end() if run else at + 1
            escaped = text[at] == "\\" and at + 1 < len(text) and not text[at + 1].isalnum()
            plain.append(text[at + 1] if escaped else text[at:end])
            at = at + 2 if escaped else end
            continue
        if plain:
            yield replace(style, text="".join(plain))
            plain.clear()
        inside, at = found
        yield from inside
    if plain:
        yield replace(style, text="".join(plain))


def _mark(text: str, at: int, style: Span) -> tuple[list[Span], int] | None:
    """Return the spans of the markup at `at` and its end, or None if there is none."""
    if ticks := _TICKS.match(text, at):
        end = _closing_ticks(text, ticks.end(), len(ticks[0]))
        if end is None:
            return None
        inside = text[ticks.end() : end]
        if inside[:1] == " " and inside[-1:] == " " and inside.strip():
            inside = inside[1:-1]
        return [replace(style, text=inside, code=True)], end + len(ticks[0])
    if not style.href and (link := _LINK.match(text, at)):
        href = link[2] if _WEB.fullmatch(link[2]) and link[0][0] != "!" else ""
        return list(spans(link[1], replace(style, href=href))), link.end()
    if mark := _MARKED.match(text, at):
        changed = replace(style, bold=True) if mark[0] == "**" else replace(style, italic=True)
        within_a_word = mark[0] == "_" and text[max(at - 1, 0) : at].isalnum()
        end = None if within_a_word or changed == style else _closing(text, mark.end(), mark[0])
        if end is not None:
            return list(spans(text[mark.end() : end], changed)), end + len(mark[0])
    return None


def _closing_ticks(text: str, start: int, length: int) -> int | None:
    return next((m.start() for m in _TICKS.finditer(text, start) if len(m[0]) == length), None)


def _closing(text: str, start: int, mark: str) -> int | None:
    """Return the position of the closing `mark`: not in a code span, and not next to blanks."""
    at = start
    while at < min(len(text), start + _REACH):
        if text[at] == "\\":
            at += 2
        elif ticks := _TICKS.match(text, at):
            end = _closing_ticks(text, ticks.end(), len(ticks[0]))
            at = ticks.end() if end is None else end + len(ticks[0])
        elif text.startswith(mark, at):
            if at > start and not text[at - 1].isspace() and not text[start].isspace():
                return at
            at += len(mark)
        else:
            at += 1
    return None


# --- links and mentions -----------------------------------------------------------------------------------------------

JOINER = "\u2060"
"""Word joiner: invisible, and prevents programs from recognising a link or mention."""
_LIVE = re.compile(r"<(?=[\w/!@?])|\](?=\()|!(?=\[)|:(?=//)|@(?=\w)|\bwww(?=\.)", re.IGNORECASE)


def defused(text: str) -> str:
    """Return `text`, visually unchanged, with tags, links and mentions disabled."""
    return _LIVE.sub(lambda found: found[0] + JOINER, text)


# --- a vendor's Markdown ----------------------------------------------------------------------------------------------


def span_markdown(span: Span) -> str:
    """Return `span` in Markdown without escapes, which neither DingTalk nor WeCom has."""
    if span.code:
        text = f"`{defused(span.text.replace('`', chr(0x2019)))}`"
    elif span.href:
        return f"[{plain_markdown(span.text).replace('[', '(').replace(']', ')')}]({span.href})"
    else:
        text = plain_markdown(span.text)
    for on, mark in ((span.italic, "*"), (span.bold, "**")):
        if on and text.strip() == text and text:
            text = f"{mark}{text}{mark}"
    return text


def plain_markdown(text: str) -> str:
    """Return `text` with links, mentions and emphasis disabled."""
    return defused(text.replace("*", "∗").replace("`", "’"))


# --- length -----------------------------------------------------------------------------------------------------------


def fitted(
    content: Sequence[Block], fits: Callable[[Sequence[Block]], bool], rest: Callable[[int], Block]
) -> Sequence[Block]:
    """Return the longest start of `content` that `fits` with the line from `rest` about the omitted blocks.

    If the first block alone is too long, it is cut.
    """
    if fits(content):
        return content
    low = _longest(len(content), lambda count: fits([*content[:count], rest(len(content) - count)]))
    if low:
        return [*content[:low], rest(len(content) - low)]
    return [_shortened(content[0], lambda block: fits([block, rest(len(content))])), rest(len(content))]


def _shortened(block: Block, fits: Callable[[Block], bool]) -> Block:
    text = block.text
    low = _longest(len(text), lambda length: fits(replace(block, spans=(Span(text[:length] + "…"),))))
    return replace(block, spans=(Span(text[:low] + "…"),))


def _longest(length: int, fits: Callable[[int], bool]) -> int:
    """Return the greatest number below `length` that `fits`, or 0."""
    low, high = 0, length
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def parts(
    content: Sequence[Block], fits: Callable[[Sequence[Block]], bool], most: int, rest: Callable[[int], Block]
) -> list[Sequence[Block]]:
    """Return `content` as at most `most` parts, each of which `fits`. A block that is too long for one is continued as
    plain text in the next; the last part is cut as by `fitted`.
    """
    found: list[Sequence[Block]] = []
    left = content
    while len(found) < most - 1 and not fits(left):
        part, left = _divided(left, fits)
        found.append(part)
    return [*found, fitted(left, fits, rest)]


def _divided(
    content: Sequence[Block], fits: Callable[[Sequence[Block]], bool]
) -> tuple[Sequence[Block], Sequence[Block]]:
    """Return the longest start of `content` that `fits`, at least one character, and the rest. Only a block that would
    not fit alone is divided.
    """
    count = _longest(len(content), lambda count: fits(content[:count]))
    start, block = content[:count], replace(content[count], gap=False)
    if not start or not fits([block]):
        text = block.text

        def piece(text: str) -> Block:
            return replace(content[count], spans=(Span(text),))

        length = _longest(len(text), lambda length: fits([*start, piece(text[:length])]))
        length = length if start else max(length, 1)
        if length:
            return [*start, piece(text[:length])], [replace(block, spans=(Span(text[length:]),)), *content[count + 1 :]]
    return start, [block, *content[count + 1 :]]


# --- messages ---------------------------------------------------------------------------------------------------------


def message_blocks(message: Outgoing) -> list[Block]:
    """Return the blocks of the text without a first line that repeats the title, which is shown above."""
    found = blocks(message.text)
    if len(found) < 2 or found[0].text != message.title:
        return found
    return [replace(found[1], gap=False), *found[2:]]


def omitted_line(lang: str) -> Callable[[int], Block]:
    """Return a function that makes the line about n omitted lines."""
    text = words(lang)["vendors"]["cut"]
    return lambda n: Block("line", (Span(text.format(n=n), italic=True),), gap=True)
