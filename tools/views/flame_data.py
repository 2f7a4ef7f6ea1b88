"""A layout as input of the script ``assets/flame.js``: JSON, with columns of numbers as bytes in base64."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystall.tools.views.flame_layout import Layout
from whystall.tools.views.kernel_labels import kernel_labels

MOST_TEXT = 3_000_000
"""Characters of all labels together; beyond it long ones are cut."""
_LABEL = 400


def flame_data(layout: Layout) -> dict[str, Any]:
    """Return the columns of `layout`, bounded: labels of 40,000 frames take some megabytes."""
    short = short_labels(layout)
    longest = max(40, min(_LABEL, MOST_TEXT // max(len(layout.labels), 1)))
    return {
        "labels": [_short(label, longest) for label in layout.labels],
        "short": {str(at): _short(text, longest) for at, text in short.items()},
        "kinds": layout.kinds,
        "codes": [_short(code, longest) for code in layout.codes],
        "parent": packed(layout.parent, "<i4"),
        "frame": packed(layout.frame, "<i4"),
        "own": [packed(side, "<f8") for side in layout.own],
        "proven": None if layout.proven is None else packed(layout.proven, "<u1"),
    }


def short_labels(layout: Layout) -> dict[int, str]:
    """Return the labels of kernels for the space of a frame, by frame, where they differ from the full ones."""
    device = [at for at, kind in enumerate(layout.kinds) if kind in ("device", "launch")]
    texts = kernel_labels([layout.labels[at] for at in device])
    return {at: text for at, text in zip(device, texts, strict=True) if text != layout.labels[at]}


def packed(values: NDArray[Any], kind: str) -> str:
    """Encode numbers as little-endian bytes in base64; `kind`: ``<i4``, ``<f4``, ``<f8`` or ``<u1``."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
