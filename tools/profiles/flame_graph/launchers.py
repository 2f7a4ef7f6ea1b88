"""Find what launches device work: the nearest operator and the nearest program line above it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystall.tools.stacks.tree import CallTree

# Files of the framework and the interpreter, which call operators for the program. Kineto's paths are relative to the
# import path, so the standard library's files above threads and processes are listed by name.
_LIBRARY = re.compile(
    r"(?:^|/)(?:torch|torch_npu|torch_xla|triton)/|/lib/python[0-9.]+/(?!(?:site|dist)-packages/)|^<"
    r"|^(?:asyncio|concurrent|importlib|multiprocessing)/|^(?:contextlib|functools|runpy|threading)\.py$"
)
_NONE = -1


@dataclass(frozen=True)
class Launcher:
    """`operator` and `code` (the label of a Python frame), empty if there is none above; `pct` of the frame's work."""

    operator: str
    code: str
    pct: float


def launchers(tree: CallTree, frames: list[int], top: int) -> dict[int, list[Launcher]]:
    """Return at most `top` launchers of each of `frames` (rows of the tree's frames), largest first.

    The line is the nearest outside the framework and the interpreter, else the nearest.
    """
    kinds = tree.frames["kind"].to_numpy()
    files = tree.frames["file"].to_list()
    python = (kinds == "python") & np.array([file != "" for file in files], bool)
    own = python & np.array([_LIBRARY.search(file) is None for file in files], bool)
    operator, code, line = (_nearest(tree, wanted) for wanted in (kinds == "operator", own, python))
    code = np.where(code == _NONE, line, code)
    found: dict[int, list[Launcher]] = {}
    for frame in frames:
        nodes = np.flatnonzero(tree.frame == frame)
        pairs, at = np.unique(np.stack([operator[nodes], code[nodes]]), axis=1, return_inverse=True)
        weights = np.bincount(at.reshape(-1), tree.total[0, nodes], pairs.shape[1])
        best = np.argsort(-weights, kind="stable")[:top]
        whole = float(weights.sum()) or 1.0
        labels = ["", *tree.labels]  # `_NONE` is one below the first
        found[frame] = [
            Launcher(labels[int(pairs[0, n]) + 1], labels[int(pairs[1, n]) + 1], 100 * float(weights[n]) / whole)
            for n in best
        ]
    return found


def _nearest(tree: CallTree, wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return, per node, the nearest `wanted` frame at or above it; `_NONE` without one."""
    found = np.where(wanted[tree.frame], tree.frame, _NONE)
    for level in tree.levels[1:]:
        found[level] = np.where(found[level] == _NONE, found[tree.parent[level]], found[level])
    return found
