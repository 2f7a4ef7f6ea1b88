"""hang on recordings made by hand: how many collectives each rank has begun, and where it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from recordings import Scene

from whystall.tools.contract.registry import Judgement
from whystall.tools.host.hang.stack_tree import stack_tree
from whystall.tools.host.hang.tables import Data
from whystall.tools.host.hang.tool import Params, judge

WRAPPER = "wrapper (torch/distributed/c10d_logger.py:83)"
ALL_REDUCE = (
    "all_reduce (torch/distributed/distributed_c10d.py:3000)",
    "wrapper (torch/distributed/c10d_logger.py:83)",
)
GATHER = ("all_gather (torch/distributed/distributed_c10d.py:4000)", WRAPPER)
TRAIN = ("train (job.py:10)", "<module> (job.py:12)")
BACKWARD = ("_engine_run_backward (torch/autograd/graph.py:824)", "backward (torch/_tensor.py:648)", *TRAIN)
WAIT = {"state": "S", "syscall": "futex", "wchan": "futex_do_wait"}
READ = {"state": "S", "syscall": "read", "wchan": "pipe_read", "object": "pipe:[77]"}
WORLD = "0"


@dataclass(frozen=True)
class R:
    """A rank: collectives begun by group, the stack, and columns of its thread; pairs: at the start and at the end."""

    started: dict[str, int | tuple[int, int]] = field(default_factory=lambda: {WORLD: 38})
    stack: tuple[str, ...] = (*ALL_REDUCE, *TRAIN)
    row: dict[str, object] = field(default_factory=lambda: dict(WAIT))


INSIDE = R()
LOADS = R({WORLD: 37}, ("load (job.py:6)", *TRAIN), dict(READ))
COMPUTES = R({WORLD: 37}, ("forward (model.py:41)", *TRAIN), {"state": "R"})


def judged(
    *ranks: R, sizes: dict[str, int] | None = None, members: dict[str, list[int]] | None = None
) -> Judgement[Data]:
    """The job of `ranks`; `members`: global ranks of each group other than the one of all."""
    scene = Scene(window_s=2)
    for rank, one in enumerate(ranks):
        pid = 100 + rank
        scene.seen(
            "threads", pid=pid, tid=pid, comm="python", **one.row, pystack=scene.stack(one.stack, kernel=False), lock=0
        )
        for group, started in one.started.items():
            of = (members or {}).get(group, [*range(len(ranks))])
            size = (sizes or {}).get(group, len(of))
            number = of[rank] if len(set(of)) < len(of) else of.index(rank)
            place = {"backend": "gloo", "name": group, "rank": number, "size": size}
            scene.seen("process_groups", pid=pid, group=1000 + int(group), started=started, **place)
    return judge(scene.build(), Params())


def late(found: Judgement[Data]) -> list[int]:
    return [one.rank for one in found.data.late]


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


RECEIVES = ("recv (torch/distributed/distributed_c10d.py:2700)", WRAPPER, *TRAIN)


def test_numbers_that_include_sends_accuse_nobody() -> None:
    """A pipeline on gloo: the middle rank sends and receives twice as often, and the last one is in a file."""
    found = judged(R({WORLD: 17}), R({WORLD: 30}, RECEIVES), replace(LOADS, started={WORLD: 6}))
    assert (found.data.verdict, late(found), found.findings) == ("unclear", [], [])
    found = judged(R({WORLD: 17}), replace(LOADS, started={WORLD: 30}), R({WORLD: 7}))
    assert (found.data.verdict, late(found), found.findings) == ("unclear", [], [])


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
