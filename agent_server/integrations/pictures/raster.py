"""Render SVG to PNG with resvg (the extra ``pictures``), which needs no browser and no system library.

It uses the fonts of this host and omits characters that none has. So a probe first checks whether two letters, or two
Chinese characters, are rendered differently.
"""

from __future__ import annotations

from functools import cache

from whystall.knowledge_base.models import Lang

ZOOM = 2
"""Pixels per unit, for sharp text on a phone."""
_PROBES: dict[Lang, tuple[str, str]] = {"en": ("a", "k"), "zh": ("诊", "断")}


@cache
def can_write(lang: Lang) -> bool:
    """Return whether resvg is installed and a font has the letters of `lang`."""
    try:
        import resvg_py  # noqa: F401
    except ImportError:
        return False
    first, second = (_probe(character) for character in _PROBES[lang])
    return first != second


def readable(lang: Lang) -> Lang | None:
    """Return `lang` if it can be rendered here, else English, else None."""
    wanted: tuple[Lang, ...] = (lang, "en")
    return next((one for one in wanted if can_write(one)), None)


def png(svg: str) -> bytes:
    """Render `svg` on white; raises `ValueError`. Takes 0.1 s with the GIL held."""
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
