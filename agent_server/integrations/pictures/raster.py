"""SVG into PNG, by resvg (the extra ``pictures``): no browser, no system library.

It draws with the fonts of this host, and what none of them has it leaves out. So it is tried first whether two letters,
or two Chinese characters, look different: a picture without words is none.
"""

from __future__ import annotations

from functools import cache

from whystall.knowledge_base.models import Lang

ZOOM = 2
"""Pixels per unit: text stays sharp on a telephone."""
_PROBES: dict[Lang, tuple[str, str]] = {"en": ("a", "k"), "zh": ("诊", "断")}


def available() -> bool:
    """Whether pictures can be made here at all."""
    return can_write("en")


@cache
def can_write(lang: Lang) -> bool:
    """Whether resvg is there and a font of this host has the letters of `lang`."""
    try:
        import resvg_py  # noqa: F401
    except ImportError:
        return False
    first, second = (_probe(character) for character in _PROBES[lang])
    return first != second


def readable(lang: Lang) -> Lang | None:
    """The language in which words of `lang` can be drawn here: itself, else English, else None."""
    wanted: tuple[Lang, ...] = (lang, "en")
    return next((one for one in wanted if can_write(one)), None)


def png(svg: str) -> bytes:
    """`svg` as PNG on white; a ValueError where it is none. Takes a tenth of a second; the lock of Python is held."""
    import resvg_py

    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=svg,
            zoom=ZOOM,
            background="#ffffff",
            sans_serif_family="DejaVu Sans",
            monospace_family="DejaVu Sans Mono",
        )
    )


def _probe(character: str) -> bytes:
    return png(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="24" height="24"><text x="2" y="20" font-size="18" '
        f'font-family="sans-serif">{character}</text></svg>'
    )
