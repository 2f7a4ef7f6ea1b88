"""hang where a rank has ended, or its program has: named with what shows it, and never guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hang_jobs import (
    INSIDE,
    LOADS,
    SHUTDOWN,
    TRAIN,
    WAIT,
    WORLD,
    R,
    ended,
    failed_job,
    kill,
    late,
    logged,
    process,
)

from whystall.tools.contract.registry import Judgement
from whystall.tools.host.hang.tables import Data

OTHERS = {0: INSIDE, 1: INSIDE, 3: INSIDE}
STAYS = R({WORLD: 37}, SHUTDOWN, {"state": "S", "syscall": "futex", "wchan": "futex_do_wait"})
ONE_HOST = {"local_size": 4, "world_size": 4, "one_host": True}
KILLED, EXIT_1, EXIT_3 = 9, 1 << 8, 3 << 8
PEER = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:2291"


def failed(found: Judgement[Data]) -> list[tuple[int, str, int | None]]:
    return [(one.rank, one.how, one.code) for one in found.data.failed]


@pytest.mark.parametrize(
    ("status", "how", "code"), [(KILLED, "killed", 9), (EXIT_3, "exited", 3), (0, "exited", 0), (-1, "gone", None)]
)
def test_a_zombie_that_started_between_the_ranks_is_the_missing_one(status: int, how: str, code: int | None) -> None:
    found = failed_job(OTHERS, ended(2, status), idle_s={0: 31.5, 1: 30, 2: 32})
    assert (found.data.verdict, failed(found), late(found)) == ("first_failure", [(2, how, code)], [])
    (row,) = found.data.failed
    assert (row.pid, row.ago_s, row.consequence) == (102, 32, False)
    assert (found.data.waiting, found.data.waited_s) == ("0-1, 3", 31.5)
    (finding,) = found.findings
    assert (finding.kind, finding.subject.rank, finding.subject.pid) == ("rank.failed", 2, 102)
    assert finding.metrics["waiting_s"] == 31.5
    assert finding.metrics["ended_s"] == 32
    assert finding.metrics.get("signal") == (9 if how == "killed" else None)
    assert finding.metrics.get("exit_status") == (code if how == "exited" else None)


@pytest.mark.parametrize(
    "other",
    [
        process(102, state="Z", exit_code=KILLED, comm="nvidia-smi"),  # no rank has such a name
        process(102, state="Z", exit_code=KILLED, ppid=101),  # a child of a rank, such as a worker of a data loader
        process(99, state="Z", exit_code=KILLED),  # started before all ranks
        process(102, state="S"),  # it lives
    ],
)
def test_other_processes_are_not_the_missing_rank(other: dict[str, object]) -> None:
    found = failed_job(OTHERS, other)
    assert (found.data.verdict, failed(found), found.findings) == ("unseen", [], [])
    assert found.data.absent == "0: 2"


def test_two_missing_ranks_and_one_zombie_are_not_matched() -> None:
    found = failed_job({0: INSIDE, 3: INSIDE}, ended(2, KILLED))
    assert (found.data.verdict, failed(found)) == ("unseen", [])


def test_a_missing_rank_that_must_be_on_this_host_is_gone() -> None:
    assert failed(failed_job(OTHERS, known=ONE_HOST)) == [(2, "gone", None)]
    assert failed_job(OTHERS).data.verdict == "unseen"  # nothing shows on which host it is
    assert failed_job(OTHERS, known={"world_size": 4}).data.verdict == "unseen"


def test_only_the_missing_rank_of_this_host_is_accused() -> None:
    """torchrun on two hosts with two ranks each; ranks 0 and 1 are on the other one."""
    second = {"local_rank": 0, "local_size": 2, "group_rank": 1, "world_size": 4}
    found = failed_job({2: INSIDE}, known=second)
    assert (found.data.verdict, failed(found), found.data.absent) == ("first_failure", [(3, "gone", None)], "0: 0-1, 3")
    # ranks dealt out in turn: numbers of one host are not consecutive
    found = failed_job({0: INSIDE}, known=second | {"group_rank": 1})
    assert (found.data.verdict, failed(found)) == ("unseen", [])


def test_a_rank_whose_process_lives_is_not_accused() -> None:
    """It may be about to join; a child of it with the same environment does not count."""
    starting = process(102, rank=2, local_rank=2)
    assert failed_job(OTHERS, starting, known=ONE_HOST).data.verdict == "unseen"
    orphan = process(150, rank=2, local_rank=2, ppid=1)
    assert failed(failed_job(OTHERS, orphan, known=ONE_HOST)) == [(2, "gone", None)]


def test_a_process_that_a_rank_has_forked_is_no_rank() -> None:
    """Its memory has the parent's groups, also when the parent has ended."""
    found = failed_job({**OTHERS, 2: LOADS}, copies=[0, 2])
    assert (found.data.verdict, late(found), len(found.data.rows)) == ("late", [2], 4)
    found = failed_job(OTHERS, ended(2, KILLED), copies=[2])
    assert (found.data.verdict, failed(found), len(found.data.rows)) == ("first_failure", [(2, "killed", 9)], 3)


def test_a_job_that_ends_has_not_failed() -> None:
    found = failed_job(OTHERS, left=[2])
    assert (found.data.verdict, failed(found), found.findings) == ("ending", [], [])
    assert failed_job(OTHERS, ended(2, 0), left=[2]).data.verdict == "ending"
    assert failed_job({}, left=[0, 1, 2, 3]).data.verdict == "ending"
    # one that fails meanwhile has
    found = failed_job(OTHERS, ended(2, EXIT_1), left=[2])
    assert (found.data.verdict, failed(found)) == ("first_failure", [(2, "exited", 1)])


def test_a_job_that_moves_without_a_rank_is_not_hung() -> None:
    moves = replace(INSIDE, started={WORLD: (37, 38)})
    found = failed_job({0: moves, 1: moves, 3: moves}, ended(2, EXIT_1))
    assert (found.data.verdict, failed(found), found.findings) == ("moving", [(2, "exited", 1)], [])
    found = failed_job(dict.fromkeys((0, 1, 3), moves), ended(2, 0))
    assert (found.data.verdict, failed(found)) == ("moving", [])


def test_the_first_failure_is_not_its_consequence() -> None:
    """gloo's other ranks fail as soon as one has; their launcher ends the last one."""
    logs = [logged(1, PEER, line=40), logged(2, "ValueError: no label", line=50)]
    found = failed_job({0: INSIDE}, ended(1, EXIT_1), ended(2, EXIT_1), ended(3, 15), logs=logs)
    assert (found.data.verdict, [one.rank for one in found.data.failed]) == ("first_failure", [2, 1, 3])
    assert [one.consequence for one in found.data.failed] == [False, True, True]
    first = found.data.failed[0]
    assert (first.exception, first.line, first.log) == ("ValueError: no label", "step (job.py:22)", "/logs/job.log")
    assert found.findings[0].attributes["detail"] == "ValueError: no label"
    assert [one.severity.value for one in found.findings] == ["critical", "major", "major"]


def test_of_several_failures_the_earliest_is_the_first() -> None:
    found = failed_job({0: INSIDE, 3: INSIDE}, ended(1, EXIT_1), ended(2, EXIT_1), idle_s={1: 20, 2: 20.4})
    assert [one.rank for one in found.data.failed] == [2, 1]


def test_a_consequence_alone_does_not_accuse_while_ranks_are_elsewhere() -> None:
    logs = [logged(2, PEER)]
    assert failed_job(OTHERS, ended(2, EXIT_1), logs=logs).data.verdict == "first_failure"
    found = failed_job(OTHERS, ended(2, EXIT_1), logs=logs, size=8)
    assert (found.data.verdict, failed(found), found.findings) == ("unseen", [(2, "exited", 1)], [])


def test_a_rank_whose_program_has_ended_is_named_with_its_exception() -> None:
    found = failed_job({**OTHERS, 2: STAYS}, logs=[logged(2, "ValueError: no label")])
    assert (found.data.verdict, failed(found), late(found)) == ("first_failure", [(2, "raised", None)], [])
    found = failed_job({**OTHERS, 2: STAYS})
    assert (found.data.verdict, failed(found), late(found)) == ("first_failure", [(2, "leaving", None)], [])
    leaves = R({WORLD: 37}, ("destroy_process_group (torch/distributed/distributed_c10d.py:2100)", *TRAIN), dict(WAIT))
    found = failed_job({**OTHERS, 2: leaves})
    assert (found.data.verdict, failed(found)) == ("first_failure", [(2, "leaving", None)])
    assert failed_job(dict.fromkeys(range(4), leaves)).data.verdict == "outside"


def test_a_rank_that_destroyed_its_groups_is_named() -> None:
    """Nothing of the group is left in its memory, and its process waits for a thread."""
    found = failed_job({**OTHERS, 2: replace(STAYS, started={})}, known=ONE_HOST)
    assert (found.data.verdict, failed(found)) == ("first_failure", [(2, "leaving", None)])


def test_a_late_rank_is_the_cause_unless_another_one_failed() -> None:
    alive = {0: INSIDE, 1: LOADS, 3: INSIDE}
    found = failed_job(alive, ended(2, 0))
    assert (found.data.verdict, late(found), failed(found)) == ("late", [1], [(2, "exited", 0)])
    assert [one.kind for one in found.findings] == ["rank.not_entered"]
    found = failed_job(alive, ended(2, EXIT_1))
    assert (found.data.verdict, late(found), failed(found)) == ("first_failure", [1], [(2, "exited", 1)])


def test_a_rank_that_left_is_not_why_others_wait_for_a_device() -> None:
    """A device may work for longer than the window, and the rank may have had nothing more to do."""
    device = R(stack=("synchronize (torch/cuda/__init__.py:900)", *TRAIN))
    alive = {0: device, 1: device, 3: device}
    found = failed_job(alive, ended(2, 0))
    assert (found.data.verdict, failed(found), found.findings) == ("unseen", [(2, "exited", 0)], [])
    assert failed_job(alive, ended(2, KILLED)).data.verdict == "first_failure"


def test_ranks_that_spin_for_their_devices_wait_for_the_one_that_failed() -> None:
    spins = R(stack=TRAIN, row={"state": "R"}, backend="nccl")
    alive = {0: spins, 1: spins, 3: spins}
    assert failed_job(alive, ended(2, KILLED)).data.verdict == "first_failure"
    assert failed_job(alive, ended(2, 0)).data.verdict == "outside"
    computes = replace(spins, backend="gloo")
    assert failed_job(dict.fromkeys((0, 1, 3), computes), ended(2, KILLED)).data.verdict == "outside"


def test_an_exception_without_a_rank_counts_only_where_there_is_no_choice() -> None:
    alone = failed_job(OTHERS, ended(2, EXIT_1), logs=[logged(-1, "ValueError: no label")])
    assert alone.data.failed[0].exception == "ValueError: no label"
    two = failed_job({0: INSIDE, 3: INSIDE}, ended(1, EXIT_1), ended(2, EXIT_1), logs=[logged(-1, "ValueError: a")])
    assert [one.exception for one in two.data.failed] == ["", ""]
    # in the file of a local rank
    found = failed_job(OTHERS, known=ONE_HOST, logs=[logged(-1, "KeyError: 'x'", local_rank=2)])
    assert found.data.failed[0].exception == "KeyError: 'x'"
    # it was killed, or exited without an error: the exception is of an earlier attempt
    for status in (KILLED, 0):
        found = failed_job(OTHERS, ended(2, status), logs=[logged(2, "KeyError: 'x'")])
        assert found.data.failed[0].exception == ""
    # of a rank that lives
    found = failed_job(OTHERS, ended(2, KILLED), logs=[logged(1, "KeyError: 'x'")])
    assert [(one.rank, one.exception) for one in found.data.failed] == [(2, "")]


def test_kills_for_lack_of_memory() -> None:
    found = failed_job(OTHERS, ended(2, KILLED), kills=[kill(102, cgroup="/job")])
    assert (found.data.failed[0].oom_group, found.data.failed[0].oom_it) == ("/job", True)
    assert found.findings[0].attributes["limit_of"] == "/job"
    # gone, and the killed process of such a name started between the ranks
    found = failed_job(OTHERS, known=ONE_HOST, kills=[kill(102)])
    assert failed(found) == [(2, "killed", 9)]
    assert (found.data.failed[0].pid, found.data.failed[0].oom_group) == (102, "/")
    # another job's; one in the job's cgroup may be a worker's
    found = failed_job(OTHERS, known=ONE_HOST, kills=[kill(900)])
    assert (failed(found), found.data.failed[0].oom_group) == ([(2, "gone", None)], "")
    found = failed_job(OTHERS, known=ONE_HOST, kills=[kill(-1, comm="", of_job=True, cgroup="/job")])
    assert failed(found) == [(2, "gone", None)]
    assert (found.data.failed[0].oom_group, found.data.failed[0].oom_it) == ("/job", False)
    found = failed_job(OTHERS, ended(2, EXIT_1), kills=[kill(900, of_job=True, cgroup="/job")])
    assert found.data.failed[0].oom_group == ""  # it was not killed
    found = failed_job({**OTHERS, 2: STAYS}, kills=[kill(102)])
    assert found.data.failed[0].oom_group == ""  # it lives: another process had its number
