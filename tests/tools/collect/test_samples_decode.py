"""Samples to the tables of a stack profile."""

from __future__ import annotations

from array import array

from whystall.bpf.capture import Thread
from whystall.bpf.samples import Place, Samples
from whystall.tools.collect.frames import Call
from whystall.tools.collect.samples_decode import sample_tables
from whystall.tools.stacks.model import NO_STACK, StackProfile
from whystall.tools.stacks.tree import Part, call_tree

MAIN, WORK = Call("main", "/bin/a", 0, "native"), Call("work", "/src/train.py", 12, "python")
READ = Call("ksys_read", "", 0, "kernel")
PLACES = [Place(7, 7, 0, 1, 0), Place(7, 8, 2, 1, 0), Place(9, 9, 0, 0, 0)]
CALLS = {PLACES[0]: [MAIN, WORK], PLACES[1]: [MAIN, WORK, READ], PLACES[2]: []}
THREADS = {7: Thread(7, 7, b"trainer", False), 8: Thread(8, 7, b"\x1b[31m", False)}


def profile(one_in: int = 1) -> StackProfile:
    samples = Samples(array("q", [100, 200, 300, 400]), array("i", [0, 1, 1, 2]), PLACES, one_in)
    return StackProfile(sample_tables(samples, THREADS, CALLS.__getitem__, 10_000_000), "ebpf")


def test_samples_keep_their_instants_threads_and_stacks() -> None:
    made = profile()
    assert made.samples["at_ns"].to_list() == [100, 200, 300, 400]
    assert made.samples["weight"].to_list() == [1e7] * 4
    assert made.samples["stack"].to_list()[-1] == NO_STACK
    assert made.events.rows() == [(0, "cpu-clock", "ns", 1e7)]
    assert made.frames.rows() == [
        (0, "main", "/bin/a", 0, "native"),
        (1, "work", "/src/train.py", 12, "python"),
        (2, "ksys_read", "", 0, "kernel"),
    ]
    names = {(row["pid"], row["tid"]): row["comm"] for row in made.threads.iter_rows(named=True)}
    assert names == {(7, 7): "trainer", (7, 8): "\\x1b[31m", (9, 9): ""}
    tree = call_tree(Part(made))
    assert {tree.label(node): tree.total[0][node] / 1e7 for node in range(len(tree))} == {
        "main": 3,
        "work (train.py:12)": 3,
        "ksys_read": 2,
        "[no stack]": 1,
    }


def test_of_several_only_one_was_kept() -> None:
    assert profile(4).samples["weight"].to_list() == [4e7] * 4
    assert profile(4).events["period"].to_list() == [4e7]  # what one of them stands for


def test_nobody_had_a_cpu() -> None:
    empty = sample_tables(Samples(array("q"), array("i"), [], 1), {}, CALLS.__getitem__, 10_000_000)
    assert StackProfile(empty, "ebpf").samples.is_empty()
