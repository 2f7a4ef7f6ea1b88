"""The call tree against the plain way to count it."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.events import choose_event
from whystall.tools.stacks.forest import Forest, grown, merged
from whystall.tools.stacks.model import NO_STACK, StackProfile
from whystall.tools.stacks.names import named, written
from whystall.tools.stacks.tree import NO_NODE, CallTree, Part, call_tree

Samples = list[tuple[tuple[str, ...], float, int]]


def made(samples: Samples) -> StackProfile:
    """A profile of (path, weight, tid)."""
    build = Builder()
    event = build.event("samples")
    for at, (path, weight, tid) in enumerate(samples):
        stack = build.stack(build.frame(name) for name in path)
        build.sample(stack, event, weight, thread=build.thread(7, tid, f"t{tid}"), at_ns=at * 10)
    return build.profile("test")


def chance_samples(seed: int, count: int = 300) -> Samples:
    """Random ones; few names, so that recursion and shared paths are frequent."""
    chance = random.Random(seed)
    return [
        (
            tuple(chance.choice("abcd") for _ in range(chance.randrange(1, 8))),
            chance.randrange(1, 9) / 4,
            chance.randrange(7, 10),
        )
        for _ in range(count)
    ]


def paths(tree: CallTree, values: np.ndarray) -> dict[tuple[str, ...], float]:
    """The value of each node by its path."""
    return {tuple(tree.label(up) for up in tree.path(node)): float(values[node]) for node in range(len(tree))}


@pytest.mark.parametrize("seed", range(4))
def test_weights_of_nodes_and_frames(seed: int) -> None:
    samples = chance_samples(seed)
    tree = call_tree(Part(made(samples)))
    own, total, frames, frames_own = (
        Counter[tuple[str, ...]](),
        Counter[tuple[str, ...]](),
        Counter[str](),
        Counter[str](),
    )
    for path, weight, _ in samples:
        own[path] += weight  # type: ignore[assignment]
        frames_own[path[-1]] += weight  # type: ignore[assignment]
        for end in range(1, len(path) + 1):
            total[path[:end]] += weight  # type: ignore[assignment]
        for name in set(path):
            frames[name] += weight  # type: ignore[assignment]
    assert paths(tree, tree.total[0]) == pytest.approx(dict(total))
    assert paths(tree, tree.own[0]) == pytest.approx({path: own[path] for path in total})
    assert dict(zip(tree.labels, tree.frame_total[0], strict=True)) == pytest.approx(dict(frames))
    assert dict(zip(tree.labels, tree.frame_own[0], strict=True)) == pytest.approx(dict(frames_own))
    assert tree.sums[0] == pytest.approx(sum(own.values()))


def test_the_order_of_nodes() -> None:
    tree = call_tree(Part(made(chance_samples(9))))
    inner = tree.parent != NO_NODE
    assert (tree.parent[inner] < np.arange(len(tree))[inner]).all()
    assert (np.diff(tree.depth) >= 0).all()
    place, end = tree.preorder
    walked = []

    def walk(node: int) -> None:
        walked.append(node)
        for child in sorted(np.flatnonzero(tree.parent == node), key=lambda one: tree.label(int(one))):
            walk(int(child))

    for root in sorted(np.flatnonzero(~inner), key=lambda one: tree.label(int(one))):
        walk(int(root))
    assert list(np.argsort(place)) == walked
    for node in range(len(tree)):
        below = sum(node in tree.path(other) for other in range(len(tree)))
        assert end[node] - place[node] == below


def test_two_sides_lie_over_one_another() -> None:
    first, second = chance_samples(1, 80), chance_samples(2, 80)
    tree = call_tree(Part(made(first)), Part(made(second)))
    for side, samples in enumerate((first, second)):
        alone = call_tree(Part(made(samples)))
        found = {path: value for path, value in paths(tree, tree.total[side]).items() if value}
        assert found == pytest.approx(paths(alone, alone.total[0]))


def test_spans_threads_and_roots() -> None:
    samples = chance_samples(3, 50)
    profile = made(samples)
    inside = call_tree(Part(profile, span_ns=(100, 200)), Part(profile, span_ns=(100, 200), outside=True))
    weights = [weight for _, weight, _ in samples]
    assert inside.sums.tolist() == pytest.approx([sum(weights[10:20]), sum(weights[:10]) + sum(weights[20:])])
    only = call_tree(Part(profile, threads=[0]))
    assert only.sums[0] == pytest.approx(sum(weight for _, weight, tid in samples if tid == samples[0][2]))
    rooted = call_tree(Part(profile), roots="thread")
    expected = Counter[str]()
    for _, weight, tid in samples:
        expected[f"t{tid} ({tid})"] += weight  # type: ignore[assignment]
    roots = {rooted.label(node): float(rooted.total[0, node]) for node in np.flatnonzero(rooted.depth == 0)}
    assert roots == pytest.approx(dict(expected))
    process = call_tree(Part(profile), roots="process")
    assert [process.label(int(node)) for node in np.flatnonzero(process.depth == 0)] == ["t7 (7)"]


def test_a_sample_that_lasts_counts_by_its_share_of_the_span() -> None:
    build = Builder()
    event = build.event("wait", "ns")
    build.sample(build.stack([build.frame("f")]), event, 100, at_ns=0, span_ns=100)
    build.sample(NO_STACK, event, 8, at_ns=50)
    profile = build.profile("test")
    tree = call_tree(Part(profile, span_ns=(75, 200)), Part(profile, span_ns=(75, 200), outside=True))
    assert {tree.label(node): tree.own[:, node].tolist() for node in range(len(tree))} == {
        "f": [25, 75],
        "[no stack]": [0, 8],
    }


def test_a_thread_called_like_a_function_is_not_it() -> None:
    build = Builder()
    event, thread = build.event("samples"), build.thread(3, 3, "work")
    for name, weight in (("work", 70), ("rest", 30)):
        build.sample(build.stack([build.frame(name)]), event, weight, thread=thread)
    tree = call_tree(Part(build.profile("test")), roots="comm")
    shares = {
        (label, kind): share
        for label, kind, share in zip(tree.labels, tree.frames["kind"], tree.frame_total[0], strict=True)
    }
    assert shares == {("work", "thread"): 100, ("work", "other"): 70, ("rest", "other"): 30}


def test_python_frames_by_line_or_function() -> None:
    build = Builder()
    event = build.event("samples")
    for line in (3, 4):
        build.sample(build.stack([build.frame("f", "/a/job.py", line, "python")]), event)
    build.sample(build.stack([build.frame("g", "/a/pkg/__init__.py", 1, "python")]), event)
    profile = build.profile("test")
    assert call_tree(Part(profile)).labels == ["f (job.py:3)", "f (job.py:4)", "g (pkg/__init__.py:1)"]
    assert call_tree(Part(profile), lines=False).labels == ["f (job.py)", "g (pkg/__init__.py)"]


def test_pruning_leaves_totals_alone() -> None:
    tree = call_tree(Part(made([(("a", "b"), 1, 7), (("a", "c"), 99, 7), (("d",), 0, 7)])))
    pruned = tree.pruned(0.02)
    assert paths(pruned, pruned.total[0]) == {("a",): 100, ("a", "c"): 99}
    assert (pruned.cut, pruned.sums[0]) == (1, 100)
    assert len(call_tree(Part(Builder().profile("test"))).pruned(0.1)) == 0


def test_a_deep_stack_is_no_trouble() -> None:
    tree = call_tree(Part(made([(("f", "g") * 4000, 1, 7)])))
    assert (len(tree), tree.frame_total[0].tolist()) == (8000, [1, 1])


def test_stacks_that_grow_and_merge_are_the_stacks_that_were_given() -> None:
    chance = random.Random(4)
    stacks = [[chance.randrange(3) for _ in range(chance.randrange(1, 6))] for _ in range(200)]
    flat = np.array([frame for stack in stacks for frame in stack])
    forest, leaf = grown(flat, np.array([len(stack) for stack in stacks]))
    one, (node_of,) = merged([forest])

    def path(of: Forest, node: int) -> list[int]:
        return [*path(of, int(of.parent[node])), int(of.frame[node])] if node >= 0 else []

    assert [path(forest, int(node)) for node in leaf] == stacks
    assert [path(one, int(node_of[node])) for node in leaf] == stacks
    assert len(one) == len({tuple(stack[:end]) for stack in stacks for end in range(1, len(stack) + 1)})


def test_the_event_that_is_meant() -> None:
    def profile(*events: tuple[str, str], source: str = "x") -> StackProfile:
        build = Builder()
        for name, unit in events:
            build.sample(NO_STACK, build.event(name, unit), 1)
        return build.profile(source)

    assert choose_event(profile(("anything", "bytes"))) == 0
    assert choose_event(profile(("alloc", "bytes"), ("wall", "ns"))) == 1
    assert choose_event(profile(("alloc", "bytes"), ("wall", "ns")), "alloc") == 0
    assert choose_event(profile(("alloc", "bytes"), ("wall", "ns"), source="pprof")) == 0
    assert choose_event(profile(("lost", "lost"), ("faults", "faults"))) == 1
    for events, name in (((("a", "bytes"), ("b", "count")), ""), ((("a", "bytes"),), "b")):
        with pytest.raises(ToolError, match="a \\(bytes\\)") as caught:
            choose_event(profile(*events), name)
        assert caught.value.code is ErrorCode.BAD_ARGUMENT
    with pytest.raises(ToolError, match="empty"):
        choose_event(profile(("lost", "lost")))


@pytest.mark.parametrize(
    "text",
    [
        "save (train.py:212)",
        "f (pkg/__init__.py)",
        "memcpy (libc.so.6)",
        "read_[k]",
        "GPU:gemm",
        "NPU:[idle]",
        "thread (12)",
        "operator()(int)",
        "保存",
    ],
)
def test_a_written_name_is_read_as_the_same(text: str) -> None:
    assert written(*named(text)) == text
