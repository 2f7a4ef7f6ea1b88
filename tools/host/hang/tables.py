"""The output tables of hang. The rows of ranks hold all that `judge` needs, so that those of many hosts can be judged
as one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from whystall.tools.contract.result import Model
from whystall.tools.host.hang.failures import Failure
from whystall.tools.host.hang.judge import Hang
from whystall.tools.host.hang.ranks import GroupKey, Membership, RankState
from whystall.tools.timeline.rank_data.rank_list import rank_list

MOST_RANKS = 1_000_000
_Count = Annotated[int, Field(ge=0, le=2**63)]
_Number = Annotated[int, Field(ge=0, lt=MOST_RANKS)]


class MemberRow(Model):
    """A rank in a process group of `size` members. `started`: operations begun; `before`: at the start of the window,
    None if they were not read then."""

    backend: str
    name: str
    size: Annotated[int, Field(ge=1, le=MOST_RANKS)]
    rank: _Number
    started: _Count
    before: _Count | None
    description: str = ""


class Doing(Model):
    """A rank, and what it does: ``running``, or what its thread waits for, of `object`. `whom`: the holder of that,
    with its line; `line`: of the program; `idle_s`: for how long at least its thread has not run, None if it runs or
    that is not known. `host`: empty for the observed one."""

    rank: Annotated[int, Field(ge=-1, lt=MOST_RANKS)]
    host: str = ""
    pid: int
    comm: str
    doing: str
    object: str
    whom: str
    line: str
    idle_s: float | None = None


class RankRow(Doing):
    """A rank. `collective`: the function in which it waits for others; `still`: it did not move in the window;
    `in_collective` and `waits_for_device`: as of `RankState`."""

    collective: str
    still: bool
    late: bool
    tid: int
    in_collective: bool
    waits_for_device: bool
    groups: list[MemberRow] = Field(default_factory=list)

    def state(self, host: str) -> RankState:
        """Return the row as reported by `host`. Raises `ValueError` if it is in a group twice, or is no member."""
        groups = {GroupKey(one.backend, one.name, one.size): one for one in self.groups}
        if len(groups) < len(self.groups) or any(one.rank >= one.size for one in self.groups):
            raise ValueError("groups of a rank contradict each other")
        return RankState(
            rank=self.rank,
            host=host,
            pid=self.pid,
            tid=self.tid,
            comm=self.comm,
            groups={k: Membership(m.rank, m.started, m.before, m.description) for k, m in groups.items()},
            still=self.still,
            doing=self.doing,
            object=self.object,
            whom=self.whom,
            line=self.line,
            idle_s=self.idle_s,
            collective=self.collective,
            in_collective=self.in_collective,
            waits_for_device=self.waits_for_device,
        )


class LateRow(Doing):
    """A rank to look at first. `number`: of the operation of `group` that it has not begun, counted from 1, or that
    differs from the others'; `waiting`: ranks that wait for it, as ``0-1, 3``."""

    group: str
    number: int
    waiting: str


class FailedRow(Model):
    """A rank that has failed or left the job. `how`: a constant of `failures`; `code`: the signal or the exit status;
    `ago_s`: since it ended; `exception`: ``ValueError: text`` by `log`; `line`: of the program, in it; `oom_group`: the
    kernel killed it (`oom_it`), or processes of the job, for lack of memory in this cgroup; `consequence`: so end ranks
    when another one has ended. `host`: empty for the observed one. None or empty: not known."""

    rank: _Number
    host: str = ""
    pid: int | None
    comm: str = ""
    how: Literal["killed", "exited", "gone", "raised", "leaving"]
    code: Annotated[int, Field(ge=0, le=255)] | None
    ago_s: Annotated[float, Field(ge=0, le=1e9)] | None
    exception: str
    line: str
    log: str
    oom_group: str
    oom_it: bool
    consequence: bool

    def failure(self, host: str) -> Failure:
        """Return the row as reported by `host`, without its place in a log of that host."""
        return Failure(
            rank=self.rank,
            host=host,
            pid=-1 if self.pid is None else self.pid,
            comm=self.comm,
            how=self.how,
            code=-1 if self.code is None else self.code,
            ago_ns=-1 if self.ago_s is None else int(self.ago_s * 1e9),
            exception=self.exception,
            line=self.line,
            log=self.log,
            of_other=self.consequence,
            oom_group=self.oom_group,
            oom_it=self.oom_it,
        )


class GroupRow(Model):
    """A process group. `size`: members on all hosts; `ranks`: those read, by their number in the group; `started`:
    operations begun, as ``38: 0-2, 4-7; 37: 3``; `began`: within the window."""

    backend: str
    name: str
    description: str
    size: int
    ranks: str
    started: str
    began: int


class Data(Model):
    """`verdict`: a constant of `judge`, or ``no_ranks``. `failed`: ranks that have ended or failed, the first one
    first; `just_left`: those that ended within the window with nothing that shows a failure; `late`: those to look at
    first; `waiting`: those in a collective, as ``0-1, 3``, the longest for at least `waited_s` (None: not known).
    `tree`: stacks of all ranks, merged."""

    verdict: str = "no_ranks"
    failed: list[FailedRow] = Field(default_factory=list)
    just_left: list[_Number] = Field(default_factory=list)
    late: list[LateRow] = Field(default_factory=list)
    waiting: str = ""
    waited_s: float | None = None
    absent: str = ""
    rows: list[RankRow] = Field(default_factory=list)
    groups: list[GroupRow] = Field(default_factory=list)
    tree: list[str] = Field(default_factory=list)


def failed_row(one: Failure) -> FailedRow:
    """Return a rank that has failed or left as a row."""
    return FailedRow.model_validate(
        {
            "rank": one.rank,
            "host": one.host,
            "pid": one.pid if one.pid > 0 else None,
            "comm": one.comm,
            "how": one.how,
            "code": one.code if one.code >= 0 else None,
            "ago_s": one.ago_ns / 1e9 if one.ago_ns >= 0 else None,
            "exception": one.exception,
            "line": one.line,
            "log": one.log,
            "oom_group": one.oom_group,
            "oom_it": one.oom_it,
            "consequence": one.consequence,
        }
    )


def rank_row(one: RankState, *, late: bool) -> RankRow:
    """Return a rank as a row."""
    members = [
        MemberRow(
            backend=key.backend,
            name=key.name,
            size=key.size,
            rank=member.rank,
            started=member.started,
            before=member.before,
            description=member.description,
        )
        for key, member in one.groups.items()
    ]
    return RankRow(
        **_doing(one),
        collective=one.collective,
        still=one.still,
        late=late,
        tid=one.tid,
        in_collective=one.in_collective,
        waits_for_device=one.waits_for_device,
        groups=members,
    )


def late_rows(found: Hang, ranks: Sequence[RankState]) -> list[LateRow]:
    """Return the ranks that others wait for, and those in another collective than the others."""
    rows = [
        LateRow(
            **_doing(one.state),
            group=one.group.name,
            number=one.number,
            waiting=rank_list(each.rank for each in one.waiting),
        )
        for one in found.late
    ]
    for odd in found.mismatched:
        others = rank_list(rank for rank in odd.functions if rank not in odd.odd)
        rows += [
            LateRow(**_doing(one), group=odd.group.name, number=odd.number, waiting=others)
            for one in ranks
            if one.rank in odd.odd
        ]
    return rows


def group_rows(ranks: Sequence[RankState]) -> list[GroupRow]:
    """Return the groups of `ranks`, the largest first."""
    members: dict[GroupKey, list[Membership]] = {}
    for one in ranks:
        for key, member in one.groups.items():
            members.setdefault(key, []).append(member)
    return [_group(key, members[key]) for key in sorted(members, key=lambda key: (-key.size, key.name))]


def _group(key: GroupKey, members: Sequence[Membership]) -> GroupRow:
    by_count: dict[int, list[int]] = {}
    for member in members:
        by_count.setdefault(member.started, []).append(member.rank)
    return GroupRow(
        backend=key.backend,
        name=key.name,
        description=next((one.description for one in members if one.description), ""),
        size=key.size,
        ranks=rank_list(one.rank for one in members),
        started="; ".join(f"{count}: {rank_list(of)}" for count, of in sorted(by_count.items(), reverse=True)),
        began=max(one.started - (one.started if one.before is None else one.before) for one in members),
    )


def _doing(one: RankState) -> dict[str, Any]:
    """Return the fields of `Doing`."""
    return {name: getattr(one, name) for name in Doing.model_fields}
