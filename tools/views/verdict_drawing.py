"""A verdict as one SVG picture: its name, where the time went, its evidence, and what to do. Pure.

It is read on a telephone: few words, large, and lengths are written as figures too. The width of text is estimated
generously, since the viewer's fonts are unknown. Looks are classes of assets/verdict_figure.css.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whystall.tools.views.page import asset, escape

WIDTH = 660
_MARGIN = 30
_ROOM = WIDTH - 2 * _MARGIN
_BODY, _SMALL, _TITLE = 17.0, 15.0, 25.0
_LEADING = 1.42
_LABEL = 104  # width of the column of labels
_LOST_MARKED = 5.0  # percent; less gets no bracket
_WIDE = 58  # a segment of this width has space for its figure
# Quantities, words, parts of paths and single Chinese characters: where a line may end.
_ATOMS = re.compile(
    r"\d[\d.,]* (?:%|[A-Za-z/]{1,5}\b)|\s+|[\u2e80-\U0003ffff]"
    r"|[^\s/_\u2e80-\U0003ffff]*[/_]|[^\s/_\u2e80-\U0003ffff]+"
)
_CLOSING = re.compile(r"[，。；：、）！？」』》”’,.;:)!?%\]]")


@dataclass(frozen=True)
class Run:
    """A piece of text. `name`: of something on the host, drawn in another typeface."""

    text: str
    name: bool = False
    bold: bool = False


Line = Sequence[Run]


@dataclass(frozen=True)
class Share:
    """A part of the time: `pct` of it, `look` (user, system, runnable, blocked, idle), its name and its figure."""

    pct: float
    look: str
    label: str
    figure: str


@dataclass(frozen=True)
class Proof:
    """A measurement that supports the cause. `parts` of the same time that it covers: percent, and the look of the
    `Share` they belong to; none if it is no share of time. `figure`: their sum."""

    line: Line
    parts: Sequence[tuple[float, str]] = ()
    figure: str = ""


@dataclass(frozen=True)
class Fact:
    """A label and the text beside it, in at most `lines` lines."""

    label: str
    line: Line
    lines: int = 3


@dataclass(frozen=True)
class Card:
    """Everything to draw. `look`: confirmed, likely, inconclusive, healthy, no_load. `shares` and `proofs` may be
    empty; `shares` come with own code first and idle last, and what is between them is `lost`."""

    lang: str
    look: str
    badge: str
    title: str
    about: Line
    shares_heading: Line
    shares: Sequence[Share]
    lost: str
    proofs_heading: Line
    proofs: Sequence[Proof]
    facts: Sequence[Fact]
    foot: str


def draw(card: Card) -> str:
    """Return the picture as an SVG file."""
    pen = _Pen()
    _head(pen, card)
    if card.shares:
        _shares(pen, card)
    if card.proofs:
        _proofs(pen, card)
    if card.facts:
        _facts(pen, card)
    pen.down(4)
    pen.text(_MARGIN, [Run(card.foot)], _ROOM, "quiet", _SMALL, 1)
    height = round(pen.y + 14)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="verdict {escape(card.lang)}" lang="{escape(card.lang)}" '
        f'role="img" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
        f"<title>{escape(f'{card.badge}: {card.title}')}</title><style>{asset('verdict_figure.css')}</style>"
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>'
        f'<rect class="{escape(card.look)}" width="8" height="{height}"/>{"".join(pen.made)}</svg>\n'
    )


class _Pen:
    """The markup so far, and where the next line begins."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.y = 24.0

    def down(self, by: float) -> None:
        self.y += by

    def put(self, markup: str) -> None:
        self.made.append(markup)

    def text(self, x: float, line: Line, width: float, look: str, size: float, lines: int) -> None:
        """Draw `line` from `x`, in at most `lines` lines of `width`; a remainder is marked."""
        for part in _wrapped(line, width, size, lines):
            self.y += size * _LEADING
            self.at(x, self.y - size * 0.36, part, look)

    def at(self, x: float, y: float, line: Line, look: str) -> None:
        """Draw `line` at a position."""
        runs = "".join(_run(run) for run in line)
        self.put(f'<text class="{look}" x="{x:.1f}" y="{y:.1f}">{runs}</text>')

    def box(self, x: float, y: float, width: float, height: float, look: str, round_: float = 0.0) -> None:
        corner = f' rx="{round_:g}"' if round_ else ""
        self.put(f'<rect class="{look}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{corner}/>')


def _run(run: Run) -> str:
    looks = " ".join(look for look, on in (("name", run.name), ("strong", run.bold)) if on)
    text = escape(run.text)
    return f'<tspan class="{looks}">{text}</tspan>' if looks else text


def _head(pen: _Pen, card: Card) -> None:
    width = _width(card.badge, 15.0, name=False) * 1.12 + 26
    pen.box(_MARGIN, pen.y, width, 28, escape(card.look), 6)
    pen.at(_MARGIN + 13, pen.y + 19.5, [Run(card.badge)], "badge")
    pen.down(34)
    pen.text(_MARGIN, [Run(card.title, bold=True)], _ROOM, "title", _TITLE, 3)
    pen.down(3)
    pen.text(_MARGIN, card.about, _ROOM, "quiet", _SMALL, 2)
    pen.down(10)


def _shares(pen: _Pen, card: Card) -> None:
    pen.down(8)
    pen.text(_MARGIN, card.shares_heading, _ROOM, "heading", _BODY, 2)
    whole = max(sum(share.pct for share in card.shares), 100.0)
    pen.down(8)
    _bracket(pen, card, whole)
    x, top, height = float(_MARGIN), pen.y, 40.0
    pen.box(x, top, _ROOM, height, "track")
    for share in card.shares:
        width = _ROOM * share.pct / whole
        if width >= 0.5:
            pen.box(x, top, width, height, escape(share.look))
        if width >= _WIDE:
            dark = " dark" if share.look in ("idle", "runnable") else ""
            pen.at(x + width / 2, top + 26, [Run(share.figure)], f"inside{dark}")
        x += width
    pen.down(height)
    _scale(pen)
    pen.down(20)
    x = float(_MARGIN)
    for share in card.shares:
        if share.pct < 0.05:
            continue
        wide = _width(f"{share.label} {share.figure}", _SMALL, name=False, bold=True) + 21
        if x > _MARGIN and x + wide > _MARGIN + _ROOM:
            x = float(_MARGIN)
            pen.down(25)
        pen.box(x, pen.y - 12, 14, 14, escape(share.look), 2)
        pen.at(x + 21, pen.y, [Run(f"{share.label} "), Run(share.figure, bold=True)], "label")
        x += wide + 22
    pen.down(12)


def _bracket(pen: _Pen, card: Card, whole: float) -> None:
    before = sum(share.pct for share in card.shares if share.look == "user")
    lost = sum(share.pct for share in card.shares if share.look not in ("user", "idle"))
    if lost < _LOST_MARKED:
        return
    left, right = _MARGIN + _ROOM * before / whole, _MARGIN + _ROOM * (before + lost) / whole
    half = _width(card.lost, _SMALL, name=False, bold=True) / 2
    middle = min(max((left + right) / 2, _MARGIN + half), _MARGIN + _ROOM - half)
    pen.down(15)
    pen.at(middle, pen.y, [Run(card.lost)], "lost")
    pen.down(12)
    pen.put(f'<path class="bracket" d="M{left + 1:.1f} {pen.y:.1f}v-6H{right - 1:.1f}v6"/>')
    pen.down(3)


def _scale(pen: _Pen) -> None:
    for part, anchor in ((0, "start"), (25, ""), (50, ""), (75, ""), (100, "end")):
        x = _MARGIN + _ROOM * part / 100
        pen.put(f'<path class="grid" d="M{x:.1f} {pen.y:.1f}v5"/>')
        pen.at(x, pen.y + 18, [Run(f"{part} %")], f"tick {anchor}".strip())
    pen.down(22)


def _proofs(pen: _Pen, card: Card) -> None:
    pen.down(10)
    pen.text(_MARGIN, card.proofs_heading, _ROOM, "heading", _BODY, 2)
    for at, proof in enumerate(card.proofs):
        pen.down(6)
        room = _ROOM - (_width(proof.figure, _BODY, name=False) + 16 if proof.figure else 0)
        first = pen.y + _BODY * _LEADING
        pen.text(_MARGIN, proof.line, room, "text", _BODY, 3)
        if proof.figure:
            pen.at(_MARGIN + _ROOM, first - _BODY * 0.36, [Run(proof.figure)], "figure")
        if proof.parts:
            pen.down(5)
            pen.box(_MARGIN, pen.y, _ROOM, 12, "track")
            x, most = float(_MARGIN), max(sum(pct for pct, _ in proof.parts), 100.0)
            for pct, look in proof.parts:
                width = _ROOM * pct / most
                pen.box(x, pen.y, max(width, 0.4), 12, escape(look) + (" also" if at else ""))
                x += width
            pen.down(14)
    pen.down(8)


def _facts(pen: _Pen, card: Card) -> None:
    pen.down(4)
    pen.put(f'<path class="rule" d="M{_MARGIN} {pen.y:.1f}h{_ROOM}"/>')
    pen.down(6)
    for fact in card.facts:
        pen.down(4)
        beside = _width(fact.label, _SMALL, name=False) <= _LABEL - 12
        first = pen.y + _BODY * _LEADING - _BODY * 0.36
        if beside:
            pen.at(_MARGIN, first, [Run(fact.label)], "label")
        else:
            pen.text(_MARGIN, [Run(fact.label)], _ROOM, "label", _SMALL, 1)
        pen.text(_MARGIN + _LABEL, fact.line, _ROOM - _LABEL, "text", _BODY, fact.lines)
    pen.down(8)


# --- text -------------------------------------------------------------------------------------------------------------


def _wrapped(line: Line, width: float, size: float, most: int) -> Iterator[list[Run]]:
    """Return `line` in at most `most` lines that are hardly wider than `width`."""
    rows: list[list[Run]] = [[]]
    left = width
    for run in line:
        whole = _width(run.text, size, name=run.name, bold=run.bold)
        if run.name and left < whole <= width and rows[-1]:  # a name is kept on one line if it fits
            rows.append([])
            left = width
        for atom in _atoms(run, width, size):
            wide = _width(atom, size, name=run.name, bold=run.bold)
            if wide > left and rows[-1] and not _CLOSING.match(atom):
                if atom.isspace():
                    continue
                rows.append([])
                left = width
            if atom.isspace() and not rows[-1]:
                continue
            _append(rows[-1], run, atom)
            left -= wide
    if len(rows) > most:
        rows = rows[:most]
        _append(rows[-1], rows[-1][-1], "…")
    yield from (row for row in rows if row)


def _append(row: list[Run], like: Run, text: str) -> None:
    if row and (row[-1].name, row[-1].bold) == (like.name, like.bold):
        row[-1] = Run(row[-1].text + text, like.name, like.bold)
    else:
        row.append(Run(text, like.name, like.bold))


def _atoms(run: Run, width: float, size: float) -> Iterator[str]:
    """Yield the pieces of `run` between which a line may end; none is wider than a line."""
    most = max(int(width / (size * 0.7)), 1)
    for atom in _ATOMS.findall(run.text):
        for at in range(0, len(atom), most):
            yield atom[at : at + most]


def _width(text: str, size: float, *, name: bool, bold: bool = False) -> float:
    """Return the estimated width of `text`, as in DejaVu, whose letters are wide."""
    if name:
        return size * sum(1.0 if ord(c) >= 0x2E80 else 0.58 for c in text)
    return size * sum(map(_em, text)) * (1.14 if bold else 1.0)


def _em(character: str) -> float:
    if ord(character) >= 0x2E80:
        return 1.0
    if character in " ilj.,:;'|!()[]`/ft":
        return 0.36
    if character in "mwMW%@":
        return 0.92
    return 0.68 if character.isupper() else 0.61
