"""Fold like layers of a call tree for pictures: 24 equal decoder layers become one node with a count.

Siblings are like layers if their names differ in one number only, and none weighs much more or less than the others: a
layer that is slow stays apart. Pure: columns in, columns out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_LAYERS = 3
"""Fewer siblings are not folded."""
APART = 0.5
"""A layer that differs from the median by more than this share of it stays apart."""
MOST_NODES = 300_000
"""Larger trees are not folded: it is a loop over all nodes."""
# layers.12, layers.12.self_attn, nn.Module: LlamaDecoderLayer_3, ## layer 7 ##, block[4]
_NUMBERED = re.compile(
    r"(.*?(?:[._\[]|\b(?:layer|block|stage)\s))(\d{1,4})((?:[.\]].*)?(?:\s*#*)?)", re.IGNORECASE | re.DOTALL
)
_KINDS = frozenset({"annotation", "operator"})
_MODULE = "nn.Module: "
"""PyTorch's profiler names modules so, among the frames of Python (``record_function`` with modules)."""


@dataclass(frozen=True)
class FoldedTree:
    """The columns of a tree (see `whystall.tools.views.flame_layout.FlameTree`) after folding. `names` has the frames
    of the tree first, then those of folded layers, `kind_of` the frame that each of these stands for."""

    parent: NDArray[np.int64]
    depth: NDArray[np.int64]
    frame: NDArray[np.int64]
    own: NDArray[np.float64]
    total: NDArray[np.float64]
    names: list[str]
    kind_of: list[int]


def layer_stem(name: str) -> str:
    """Return `name` with ``*`` in place of a layer's number, empty if it has none: ``LlamaDecoderLayer_*``."""
    found = _NUMBERED.fullmatch(name)
    return f"{found[1]}*{found[3]}" if found else ""


def fold_layers(
    parent: NDArray[Any],
    frame: NDArray[Any],
    own: NDArray[np.float64],
    total: NDArray[np.float64],
    names: Sequence[str],
    kinds: Sequence[str],
) -> FoldedTree | None:
    """Return the tree with like layers folded; None if it has none. `parent`: -1 for the outermost, before its
    children; `own`, `total`: a row per side."""
    stems = [
        layer_stem(name) if kind in _KINDS or name.startswith(_MODULE) else ""
        for name, kind in zip(names, kinds, strict=True)
    ]
    if len(parent) > MOST_NODES or not any(stems):
        return None
    labels = _labels(parent.tolist(), frame.tolist(), total, stems)
    if not labels:
        return None
    every = [*names]
    kind_of: list[int] = []
    number: dict[str, int] = {}
    place: list[int] = []  # of each node of the tree in the folded one
    known: dict[tuple[int, int], int] = {}
    parents: list[int] = []
    depths: list[int] = []
    frames: list[int] = []
    for node, (up, of) in enumerate(zip(parent.tolist(), frame.tolist(), strict=True)):
        above = place[up] if up >= 0 else -1
        label = labels.get(node)
        if label is not None:
            if label not in number:
                number[label] = len(every)
                every.append(label)
                kind_of.append(of)
            of = number[label]
        at = known.setdefault((above, of), len(parents))
        if at == len(parents):
            parents.append(above)
            depths.append(depths[above] + 1 if above >= 0 else 0)
            frames.append(of)
        place.append(at)
    sums = [np.array([np.bincount(place, side, len(parents)) for side in rows]) for rows in (own, total)]
    columns = [np.array(column, np.int64) for column in (parents, depths, frames)]
    return FoldedTree(columns[0], columns[1], columns[2], sums[0], sums[1], every, kind_of)


def _labels(
    parent: Sequence[int], frame: Sequence[int], total: NDArray[np.float64], stems: Sequence[str]
) -> dict[int, str]:
    """Return the label of each node that is folded with its siblings."""
    alike: dict[tuple[int, str], list[int]] = {}
    for node, of in enumerate(frame):
        if stems[of]:
            alike.setdefault((parent[node], stems[of]), []).append(node)
    labels: dict[int, str] = {}
    for (_, stem), nodes in alike.items():
        weights = total[:, nodes]
        middle = np.median(weights, axis=1, keepdims=True)
        near = np.nonzero((np.abs(weights - middle) <= APART * middle).all(axis=0))[0]
        kept = [nodes[at] for at in near.tolist()]
        if len(kept) >= LEAST_LAYERS:
            labels |= dict.fromkeys(kept, f"{stem} (×{len(kept)})")
    return labels
