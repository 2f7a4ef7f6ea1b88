"""Like layers of a call tree are one node with a count; a layer that is slow stays apart."""

from __future__ import annotations

import numpy as np
import pytest

from whystall.tools.stacks.layers import FoldedTree, fold_layers, layer_stem


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("nn.Module: LlamaDecoderLayer_3", "nn.Module: LlamaDecoderLayer_*"),
        ("layers.12", "layers.*"),
        ("layers.12.self_attn", "layers.*.self_attn"),
        ("## layer 7 ##", "## layer * ##"),
        ("block[4]", "block[*]"),
        ("ProfilerStep#12", ""),
        ("aten::mm", ""),
        ("conv2d", ""),
    ],
)
def test_a_layer_is_known_by_its_number(name: str, stem: str) -> None:
    assert layer_stem(name) == stem


def folded(layers: int, slow: int = -1) -> FoldedTree | None:
    """A step with so many layers, each of an attention and a loss function below; one of them may be slow."""
    names = ["step", "attention", *(f"layers.{n}" for n in range(layers))]
    parent, frame, own = [-1], [0], [1.0]
    for n in range(layers):
        parent += [0, len(parent)]
        frame += [2 + n, 1]
        own += [1.0, 9.0 * (3 if n == slow else 1)]
    weights = np.array([own])
    total = weights.copy()
    for node in range(len(parent) - 1, 0, -1):
        total[0, parent[node]] += total[0, node]
    return fold_layers(np.array(parent), np.array(frame), weights, total, names, ["annotation"] * len(names))


def test_like_layers_are_one_with_a_count() -> None:
    found = folded(24)
    assert found is not None
    assert found.parent.tolist() == [-1, 0, 1]
    assert [found.names[of] for of in found.frame] == ["step", "layers.* (×24)", "attention"]
    assert found.total.tolist() == [[241, 240, 216]]
    assert found.own.tolist() == [[1, 24, 216]]
    assert found.depth.tolist() == [0, 1, 2]
    assert found.kind_of == [2]


def test_a_slow_layer_stays_apart() -> None:
    found = folded(24, slow=7)
    assert found is not None
    assert [found.names[of] for of in found.frame] == ["step", "layers.* (×23)", "attention", "layers.7", "attention"]
    assert found.total.tolist() == [[259, 230, 207, 28, 27]]


def test_two_layers_are_no_stack_of_layers() -> None:
    assert folded(2) is None
