"""Call trees made by hand, for tests of flame graphs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from whystall.prompts.render import words
from whystall.tools.views.flame_layout import FlameTree, Layout, layout
from whystall.tools.views.flame_page import Row, flame_page
from whystall.tools.views.flame_svg import flame_svg

Stack = tuple[str, float | tuple[float, float]]
"""``a;b;c`` and what was seen there, before and after of a difference; ``python:a`` has another kind than native."""


def tree(stacks: Iterable[Stack], proven: Iterable[str] | None = None) -> FlameTree:
    """The tree of some stacks; `proven`: names of frames whose change is."""
    nodes: dict[tuple[int, str], int] = {}
    parent, depth, names, own = [], [], [], []
    for path, weight in stacks:
        up = -1
        for level, name in enumerate(path.split(";")):
            if (up, name) not in nodes:
                nodes[up, name] = len(parent)
                parent.append(up)
                depth.append(level)
                names.append(name)
                own.append(np.zeros(2 if isinstance(weight, tuple) else 1))
            up = nodes[up, name]
        own[up] += np.array(weight)
    weights = np.array(own, dtype=float).T if own else np.zeros((1, 0))
    total = weights.copy()
    for node in range(len(parent) - 1, -1, -1):
        if parent[node] >= 0:
            total[:, parent[node]] += total[:, node]
    frames = {name: row for row, name in enumerate(sorted(set(names)))}
    kinds, labels = zip(*[_kind(name) for name in frames], strict=True) if frames else ((), ())
    return FlameTree(
        parent=np.array(parent, int),
        depth=np.array(depth, int),
        frame=np.array([frames[name] for name in names], int),
        own=weights,
        total=total,
        labels=labels,
        kinds=kinds,
        codes=["train.py:12" if kind == "python" else "" for kind in kinds],
        proven=None if proven is None else np.isin(names, list(proven)),
    )


def _kind(name: str) -> tuple[str, str]:
    kind, colon, label = name.partition(":")
    return (kind, label) if colon and kind in ("python", "kernel", "device", "operator", "idle") else ("native", name)


STACKS: tuple[Stack, ...] = (
    ("python:main;python:load;read;kernel:vfs_read", 30),
    ("python:main;python:load;decode", 10),
    ("python:main;python:step;operator:aten::mm;device:GPU:gemm", 50),
    ("python:main;python:step", 6),
    ("idle:waiting", 4),
)
CHANGED: tuple[Stack, ...] = (
    ("python:main;python:load;read", (20, 60)),
    ("python:main;python:load;gone", (20, 0)),
    ("python:main;python:step", (60, 60)),
)


def laid(stacks: Iterable[Stack] = STACKS, proven: Iterable[str] | None = None, **more: Any) -> Layout:
    """What is drawn of some stacks."""
    found = layout(tree(stacks, proven), root="all", rest="rest", **more)
    assert found is not None
    return found


def rows(shown: Layout) -> list[Row]:
    """Every frame drawn, by its own share; totals as if nothing called itself."""
    found = []
    for number, (label, kind, code) in enumerate(zip(shown.labels, shown.kinds, shown.codes, strict=True)):
        here = shown.frame == number
        sums = shown.total[:, 0]
        own, total = shown.own[:, here].sum(axis=1) / sums, shown.total[:, here].sum(axis=1) / sums
        if kind not in ("root", "rest"):
            found.append(Row(label, kind, code, tuple(own.tolist()), tuple(total.tolist())))
    return sorted(found, key=lambda row: -row.own[-1])


def drawn(shown: Layout | None, lang: str = "en", **more: Any) -> str:
    """The page of a layout."""
    listed = rows(shown) if shown else []
    texts = {"heading": "Flames", "unit": "samples", "verdict": "load is slow", "notes": ["100 samples"]} | more
    return flame_page(shown, listed, words(lang)["flame_page"], lang=lang, **texts)


def picture(shown: Layout | None, lang: str = "en", **more: Any) -> str:
    """The drawing of a layout."""
    return flame_svg(shown, words(lang)["flame_page"], **({"heading": "Flames", "unit": "samples"} | more))
