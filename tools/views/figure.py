"""What drawings of cells share: the SVG element in a page or as a file, and the picture of the cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whystall.tools.views.page import asset, escape
from whystall.tools.views.png import Colour, data_uri

ROUND = [m * 10.0**power for power in range(-3, 9) for m in (1, 2, 5)]
"""Round numbers, ascending: distances between labels."""
_LETTER = 7.2  # width of a letter of the heading, at most


@dataclass(frozen=True)
class Figure:
    """A drawing without its ``svg`` element. `look`: its class, and the style sheet ``<look>_figure.css``; `x`, `y`:
    where the cells begin, `cell`: the size of one. `wide`: as wide as the page."""

    look: str
    content: str
    width: float
    height: float
    x: float
    y: float
    cell: tuple[float, float]
    wide: bool = False

    def inline(self, key: str, label: str, *, role: str = "img") -> str:
        """Return the element for a page that has the style: `key` is its id; it can have the focus."""
        look = f"{self.look} wide" if self.wide else self.look
        return (
            f'<svg id="{escape(key)}" class="{look}" xmlns="http://www.w3.org/2000/svg" width="{self.width:.0f}" '
            f'height="{self.height:.0f}" viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="{role}" '
            f'tabindex="0" aria-label="{escape(label)}">{self.content}</svg>'
        )

    def alone(self, heading: str, lines: Sequence[str] = ()) -> str:
        """Return a file of its own: `heading` and `lines` above; it follows the theme of the viewer."""
        high = 32 + 18 * len(lines)
        width = max(self.width, 20 + _LETTER * max((len(line) for line in (heading, *lines)), default=0))
        notes = "".join(
            f'<text class="line" x="12" y="{42 + 18 * at}">{escape(line)}</text>' for at, line in enumerate(lines)
        )
        size = f"{width:.0f} {self.height + high:.0f}"
        return (
            f'<svg class="{self.look} alone" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
            f'height="{self.height + high:.0f}" viewBox="0 0 {size}" role="img" aria-label="{escape(heading)}">'
            f'<style>{asset(f"{self.look}_figure.css")}</style><rect class="ground" width="100%" height="100%"/>'
            f'<text class="heading" x="12" y="22">{escape(heading)}</text>{notes}'
            f'<g transform="translate(0 {high})">{self.content}</g></svg>\n'
        )


def cells_image(
    x: float, y: float, extent: tuple[float, float], size: tuple[int, int], pixels: bytes, palette: Sequence[Colour]
) -> str:
    """Return a picture of `size` cells (columns, rows), drawn `extent` large; `pixels` index `palette` row by row."""
    return (
        f'<image class="cells" image-rendering="optimizeSpeed" x="{x}" y="{y}" width="{extent[0]:.2f}" '
        f'height="{extent[1]:.2f}" preserveAspectRatio="none" href="{data_uri(*size, pixels, palette)}"/>'
    )


def colour_bar(x: float, y: float, width: float, colours: Sequence[Colour]) -> str:
    """Return the colours of a legend from left to right, framed."""
    picture = data_uri(len(colours), 1, bytes(range(len(colours))), colours)
    return (
        f'<image x="{x}" y="{y}" width="{width}" height="10" preserveAspectRatio="none" href="{picture}"/>'
        f'<rect class="frame" x="{x}" y="{y}" width="{width}" height="10"/>'
    )
