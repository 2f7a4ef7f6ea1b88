"""hang on recordings made by hand: how many collectives each rank has begun, and where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hang_jobs import ALL_REDUCE, BACKWARD, COMPUTES, GATHER, INSIDE, LOADS, TRAIN, WORLD, WRAPPER, R, judged, late

from whystall.tools.host.hang.stack_tree import stack_tree


def test_the_rank_that_has_begun_fewer_is_named_with_its_line() -> None:
    found = judged(INSIDE, INSIDE, LOADS, INSIDE)
    assert (found.data.verdict, late(found)) == ("late", [2])
    (finding,) = found.findings
    assert (finding.kind, finding.subject.rank, finding.subject.pid) == ("rank.not_entered", 2, 102)
    assert finding.metrics["seq"] == 38
    assert finding.metrics["waiting"] == 3
    assert finding.attributes["code"] == "load (job.py:6)"
    assert finding.attributes["wait"] == "pipe"
    assert found.data.groups[0].started == "38: 0-1, 3; 37: 2"
    (row,) = found.data.late
    assert (row.line, row.group, row.number, row.waiting) == ("load (job.py:6)", WORLD, 38, "0-1, 3")


def test_a_rank_that_waits_for_another_is_not_named() -> None:
    pairs = {"1": [0, 1], "2": [2, 3]}
    first = R({WORLD: 24, "1": 24})
    waits = R({WORLD: 23, "2": 24})
    loads = replace(LOADS, started={WORLD: 23, "2": 23})
    found = judged(first, first, loads, waits, members=pairs)
    assert (found.data.verdict, late(found)) == ("late", [2])
    (finding,) = found.findings
    assert finding.metrics["waiting"] == 3


def test_groups_entered_in_different_orders_are_a_cycle() -> None:
    found = judged(R({WORLD: 5, "1": 4}), R({WORLD: 4, "1": 5}), members={"1": [0, 1]})
    assert (found.data.verdict, late(found)) == ("cycle", [0, 1])


@pytest.mark.parametrize("stack", [(*ALL_REDUCE, *TRAIN), BACKWARD])
def test_a_job_that_moves_is_not_hung(stack: tuple[str, ...]) -> None:
    moves = R({WORLD: (37, 38)}, stack)
    found = judged(moves, moves, R({WORLD: (36, 37)}, TRAIN, {"state": "R"}))
    assert (found.data.verdict, late(found), found.findings) == ("moving", [], [])


def test_a_rank_that_computes_is_named_as_such() -> None:
    found = judged(INSIDE, COMPUTES)
    assert (found.data.verdict, late(found)) == ("computing", [1])
    assert found.findings[0].attributes["wait"] == "running"
    assert found.findings[0].severity.value == "minor"


def test_collectives_of_the_backward_pass_count_as_waiting() -> None:
    found = judged(R(stack=BACKWARD), R(stack=BACKWARD), LOADS)
    assert (found.data.verdict, late(found)) == ("late", [2])


@pytest.mark.parametrize(
    ("ranks", "sizes", "verdict"),
    [
        ((INSIDE, INSIDE), {}, "all_inside"),
        ((INSIDE, INSIDE), {WORLD: 4}, "unseen"),
        ((replace(LOADS, started={WORLD: 9}), replace(LOADS, started={WORLD: 9})), {}, "outside"),
        # both wait in a collective, one with a later one already begun beside it: nobody is outside
        ((R({WORLD: 40}), R({WORLD: 38})), {}, "all_inside"),
    ],
)
def test_nobody_is_accused_without_a_rank_outside(ranks: tuple[R, ...], sizes: dict[str, int], verdict: str) -> None:
    found = judged(*ranks, sizes=sizes)
    assert (found.data.verdict, late(found), found.findings) == (verdict, [], [])
    assert found.data.absent == ("0: 2-3" if sizes else "")


def test_a_job_that_was_not_read_at_the_start_is_not_said_to_move() -> None:
    found = judged(INSIDE, LOADS, looks="end")
    assert (found.data.verdict, late(found), found.findings) == ("not_compared", [], [])


RECEIVES = ("recv (torch/distributed/distributed_c10d.py:2700)", WRAPPER, *TRAIN)


def test_numbers_that_include_sends_accuse_nobody() -> None:
    """A pipeline on gloo: the middle rank sends and receives twice as often, and the last one is in a file."""
    found = judged(R({WORLD: 17}), R({WORLD: 30}, RECEIVES), replace(LOADS, started={WORLD: 6}))
    assert (found.data.verdict, late(found), found.findings) == ("unclear", [], [])
    found = judged(R({WORLD: 17}), replace(LOADS, started={WORLD: 30}), R({WORLD: 7}))
    assert (found.data.verdict, late(found), found.findings) == ("unclear", [], [])


def test_ranks_that_left_a_broadcast_are_ahead_of_those_that_wait_in_it() -> None:
    """DistributedDataParallel broadcasts the order of its buckets, then their sizes."""
    found = judged(R({WORLD: 5}), R({WORLD: 6}), replace(LOADS, started={WORLD: 4}), R({WORLD: 6}))
    assert (found.data.verdict, late(found)) == ("late", [2])
    assert found.data.late[0].waiting == "0-1, 3"
    # too far apart for that
    found = judged(R({WORLD: 5}), R({WORLD: 9}), replace(LOADS, started={WORLD: 4}), R({WORLD: 6}))
    assert (found.data.verdict, late(found)) == ("unclear", [])
    # another one is not behind them all
    found = judged(R({WORLD: 5}), R({WORLD: 6}), replace(LOADS, started={WORLD: 5}), R({WORLD: 6}))
    assert (found.data.verdict, late(found)) == ("unclear", [])


def test_a_receive_beside_a_send_is_no_mismatch() -> None:
    sends = R(stack=("send (torch/distributed/distributed_c10d.py:2600)", WRAPPER, *TRAIN))
    assert judged(R(stack=RECEIVES), R(stack=RECEIVES), sends).data.verdict == "all_inside"


def test_processes_of_two_jobs_are_not_compared() -> None:
    jobs = judged(INSIDE, LOADS, INSIDE, INSIDE, sizes={WORLD: 2}, members={WORLD: [0, 1, 0, 1]})
    assert (jobs.data.verdict, late(jobs), jobs.findings) == ("several_jobs", [], [])


def test_a_rank_that_waits_for_its_device_is_in_its_collective() -> None:
    """NCCL returns when an operation is queued; the program then waits for the device."""
    device = R(stack=("synchronize (torch/cuda/__init__.py:900)", *TRAIN))
    found = judged(device, device, LOADS)
    assert (found.data.verdict, late(found)) == ("late", [2])


SPINS = R(stack=TRAIN, row={"state": "R"}, backend="nccl")


def test_a_rank_on_its_cpu_may_wait_for_its_device() -> None:
    """CUDA waits by looking again and again; the line is that of `loss.item()`, which is none of a library."""
    sleeps = replace(LOADS, backend="nccl")
    found = judged(SPINS, SPINS, sleeps, SPINS)
    assert (found.data.verdict, late(found)) == ("spinning", [2])
    (finding,) = found.findings
    assert (finding.severity.value, finding.metrics["waiting"]) == ("minor", 3)
    # one that waits without looking is proof enough
    device = replace(SPINS, stack=("synchronize (torch/cuda/__init__.py:900)", *TRAIN))
    assert judged(SPINS, device, sleeps).data.verdict == "late"
    # all have begun the same
    assert judged(SPINS, SPINS, SPINS).data.verdict == "outside"
    # gloo does not wait like that: they compute
    assert judged(replace(SPINS, backend="gloo"), LOADS).data.verdict == "outside"
    # somewhere else than before: the job moves
    assert judged(replace(SPINS, started={WORLD: (37, 38)}), sleeps).data.verdict == "moving"


def test_another_collective_than_the_others_is_a_mismatch() -> None:
    found = judged(INSIDE, INSIDE, R(stack=(*GATHER, *TRAIN)))
    assert (found.data.verdict, late(found)) == ("mismatch", [2])
    (finding,) = found.findings
    assert finding.attributes["found"] == "all_gather"
    assert finding.attributes["expected"] == "all_reduce"
    assert judged(INSIDE, R(stack=(*GATHER, *TRAIN))).data.late == []  # one of two: either


def test_a_process_without_groups_is_no_rank() -> None:
    assert judged(R({})).data.verdict == "no_ranks"


def test_equal_stacks_are_one_branch() -> None:
    tree = stack_tree([(0, ("wait", "step", "main")), (1, ("wait", "step", "main")), (2, ("read", "load", "main"))])
    assert tree == ["[0-2] main", "  [0-1] step > wait", "  [2] load > read"]
    assert len(stack_tree((rank, (f"f{rank}",)) for rank in range(5000))) == 2001
