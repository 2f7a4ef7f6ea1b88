"""The Markdown of our own messages, read into blocks and spans, from which each vendor's form is made.

Nothing is passed on as Markdown: what a vendor would take for markup, a mention or a link is only what we made one.
Line breaks stay, as people in a chat expect; a name in a code span stays a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

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
_REACH = 1_000  # characters within which a mark is closed


@dataclass(frozen=True)
class Span:
    """A run of text in one style. `code`: a name, to be shown as it is; `href`: an address on the web, else empty."""

    text: str
    bold: bool = False
    italic: bool = False
    code: bool = False
    href: str = ""


@dataclass(frozen=True)
class Block:
    """One line of a message. `level`: how deep an item stands, from 0; `number` of a numbered one. `gap`: an empty line
    came before it.
    """

    kind: Kind
    spans: tuple[Span, ...]
    level: int = 0
    number: int = 0
    gap: bool = False

    @property
    def text(self) -> str:
        """Its text, without styles."""
        return "".join(span.text for span in self.spans)


@dataclass
class _Reader:
    """Reads the lines of `text`; `fence` is what ends the code block that it is in."""

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
    """The blocks of the Markdown `text`."""
    reader = _Reader()
    for line in text[:_TEXT_LIMIT].split("\n"):
        reader.line(line[:LINE_LIMIT].rstrip())
    return reader.blocks


def spans(text: str, style: Span | None = None) -> Iterator[Span]:
    """The spans of one line of Markdown, in `style`; marks without a partner are text."""
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
    """What the mark at `at` makes of what follows, and where that ends; None: there is none."""
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
    """Where `mark` ends what it began before `start`: not at once, not in a name, not after a blank."""
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


# --- what no vendor is to take for a link or a mention ----------------------------------------------------------------

JOINER = "\u2060"
"""Word joiner: it shows nothing, and ends what programs recognise by its letters."""
_LIVE = re.compile(r"<(?=[\w/!@?])|\](?=\()|!(?=\[)|:(?=//)|@(?=\w)|\bwww(?=\.)", re.IGNORECASE)


def defused(text: str) -> str:
    """`text`, in which nothing is a tag, a link or a mention by its letters; it looks the same."""
    return _LIVE.sub(lambda found: found[0] + JOINER, text)


# --- length -----------------------------------------------------------------------------------------------------------


def fitted(
    content: Sequence[Block], fits: Callable[[Sequence[Block]], bool], rest: Callable[[int], Block]
) -> Sequence[Block]:
    """As many blocks of `content`, from its beginning, as `fits` holds good of together with the line that says how
    many more there are, which `rest` makes. One that alone is too long is cut.
    """
    if fits(content):
        return content
    low, high = 0, len(content)  # `low` blocks fit, `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if fits([*content[:middle], rest(len(content) - middle)]):
            low = middle
        else:
            high = middle
    if low:
        return [*content[:low], rest(len(content) - low)]
    return [_shortened(content[0], lambda block: fits([block, rest(len(content))])), rest(len(content))]


def _shortened(block: Block, fits: Callable[[Block], bool]) -> Block:
    text = block.text
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(replace(block, spans=(Span(text[:middle] + "…"),))):
            low = middle
        else:
            high = middle
    return replace(block, spans=(Span(text[:low] + "…"),))
