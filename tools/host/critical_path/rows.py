"""Build the table of one thread: every part of its time in a row; the rows sum to the window. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, median_high

from whystall.tools.contract.text import path_pattern
from whystall.tools.host.common.held import HELD_WAITS
from whystall.tools.host.common.path_codes import RUNNING, SPINS
from whystall.tools.host.common.places import NOWHERE, Place
from whystall.tools.host.common.running_kinds import running_kind, spinning_wait
from whystall.tools.host.common.timelines import Sample, Timeline, Wait
from whystall.tools.host.common.wait_kinds import Kind
from whystall.tools.host.critical_path.brief import futex_codes
from whystall.tools.host.critical_path.growth import growth_of
from whystall.tools.host.critical_path.walk import ON_CPU, Chains, Step
from whystall.tools.host.critical_path.world import World

_POLL_NS, _POLLS_PER_S = 50_000_000, 5.0
INODE_NAMES = ("pipe:[", "socket:[", "anon_inode:")
"""Prefixes of names that add nothing to the kind of the wait."""
# A thread that runs for at least this share of the time that it runs or lacks a CPU counts as running.
_RUNS = 0.3
_MOSTLY = 0.5
# What another thread does at the moment of a sample: within this time of it.
_AROUND_NS = 10_000_000
# Workers bound to the same CPUs take turns there, so that the awaited one runs for a part of the time.
_LACKS = 0.3
# Why a thread has no CPU although its job does not use them up.
PINNED = "pinned"
KEPT_OFF = ("others", "confined", PINNED, "real_time", "real_time_limit")
"""Details of steps without a CPU."""
# Rows with less of the running time have too few samples to show that they grow.
_JUDGED = 0.05
_CHILDREN = frozenset({"child", "start_process"})
_POOL = "pool"
ENDED_BY_TIME = ("sleep", "timeout")
"""Waits that no other thread ends."""
ABSENT = "absent"
"""`code` of the row for the time in which the thread did not exist."""


@dataclass
class Row:
    """A part of a thread's time. `code`: a wait's, `running`, or `ABSENT`. `took`: the lengths of its waits; `chains`:
    what the threads did that it waited for; `children`: names of those in child processes, by tid: processes that are
    started one after another, or share the work, count as one by name; `outside`: the processes of the threads
    outside of its own process, by tid; `by`: time by who ended the waits (tid), or had the CPU (pid).
    `interpreted_ns`: time in the bytecode of Python, or in what the interpreter does for it, None: not known. `growth`:
    see `growth_of`. `cpus`: the only ones that the thread may use, if its waits depend on that. `between`,
    `between_object`: of a sleep, `path_codes.ASKS` and so on, and the peer or file, if the thread does no more between
    two sleeps, which takes `between_ns`. `killed_ns`: see `explain_kills`. `timed_ns`: of its waits for other threads,
    those that timed out, whoever ended the last one of a series. `standstill`: all threads of the job wait for each
    other."""

    code: str
    mode: str = ""
    detail: str = ""
    place: Place = NOWHERE
    total_ns: int = 0
    count: int = 0
    took: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    chains: Chains = field(default_factory=Counter)
    children: dict[int, str] = field(default_factory=dict)
    outside: dict[int, int] = field(default_factory=dict)
    pool: frozenset[int] = frozenset()
    by: Counter[tuple[int, str]] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    objects: Counter[str] = field(default_factory=Counter)
    open_ns: int = 0
    interpreted_ns: int | None = None
    growth: float | None = None
    cpus: str = ""
    between: str = ""
    between_object: str = ""
    between_ns: int = 0
    killed_ns: int = 0
    timed_ns: int = 0
    standstill: bool = False
    first_ns: int = -1
    last_ns: int = 0

    @property
    def line(self) -> str:
        """The line of the program with most of the time."""
        return max(self.lines, key=lambda text: self.lines[text]) if self.lines else self.place.line

    @property
    def inner(self) -> str:
        """The innermost line of Python with most of the time."""
        return max(self.codes, key=lambda text: self.codes[text]) if self.codes else self.place.code

    @property
    def role(self) -> str:
        """The role of the library code with most of the time; see `Place.role`."""
        return max(self.roles, key=lambda text: self.roles[text]) if self.roles else self.place.role

    @property
    def object(self) -> str:
        """The object with most of the time, preferably one with a distinctive name."""
        named = {name: took for name, took in self.objects.items() if not name.startswith(INODE_NAMES)}
        found = named or self.objects
        return max(found, key=lambda name: found[name]) if found else ""

    @property
    def longest_ns(self) -> int:
        """The longest of its waits."""
        return max(self.took, default=0)

    @property
    def typical_ns(self) -> float:
        """The median of its waits."""
        return median(self.took) if self.took else 0.0

    @property
    def requested_ns(self) -> int | None:
        """The upper median of the times that its waits requested; None without any."""
        return median_high(self.asked) if self.asked else None

    def root(self) -> tuple[Step, int] | None:
        """Return the last step with most of the time, over all chains that end in it, and that time.

        First it is decided in which process, or thread of the own process, most of the time ends, then what that one
        did.
        """
        return next(iter(self.ends()), None)

    def ends(self) -> list[tuple[Step, int]]:
        """Return what the process did in which most of the row's chains end: the step that stands for each kind, and
        the time of that kind, the longest first."""
        last = self.last_steps()
        owner, _ = self._root_owner(last)
        if owner is None:
            return []
        # add up lines and threads of one kind; a thread without a CPU counts as running
        groups: Counter[tuple[int | str, str, str]] = Counter()
        for step, took in last.items():
            if self._owner(step) == owner:
                groups[self._group(step)] += took
        return [self._main_step(last, group, total) for group, total in groups.most_common()]

    def last_steps(self) -> Counter[Step]:
        """Return the time by the steps at the ends of the row's chains."""
        last: Counter[Step] = Counter()
        for chain, took in self.chains.items():
            if chain:
                last[chain[-1]] += took
        return last

    def root_owner_ns(self) -> int:
        """Return the time of all chains that end where `root` does, whatever was done there."""
        return self._root_owner(self.last_steps())[1]

    def _root_owner(self, last: Counter[Step]) -> tuple[int | str | None, int]:
        """Return the process, or thread of the own process, in which most of the time of `last` ends, and that time."""
        owners: Counter[int | str] = Counter()
        for step, took in last.items():
            owners[self._owner(step)] += took
        return next(iter(owners.most_common(1)), (None, 0))

    def _main_step(self, ends: Counter[Step], group: tuple[int | str, str, str], total: int) -> tuple[Step, int]:
        """Return the step of `ends` that stands for `group`, which lasts `total`, and its time: all of it, but of
        workers that take turns on the CPUs to which they are bound only what they lack a CPU."""
        inside = [step for step in ends if self._group(step) == group]
        codes: Counter[str] = Counter()
        for step in inside:
            codes[step.code] += ends[step]
        kept: Counter[str] = Counter()
        for step in inside:
            if step.code == "cpu" and step.detail in KEPT_OFF:
                kept[step.detail] += ends[step]
        if codes["quota"] >= _RUNS * total:
            code = "quota"
        elif kept.total() >= _MOSTLY * total or kept[PINNED] >= _LACKS * total:
            code = "cpu"
        else:
            code = RUNNING if codes[RUNNING] >= _RUNS * total else codes.most_common(1)[0][0]
        bound = code == "cpu" and kept[PINNED] >= _LACKS * total
        able = [step for step in inside if step.code == code and (step.detail == PINNED or not bound)]
        return max(able, key=lambda step: ends[step]), kept[PINNED] if bound else total

    def workers(self) -> set[int]:
        """Return the threads that run, or lack a CPU, at the ends of the row's chains and count as that of `root`."""
        last = self.last_steps()
        owner, _ = self._root_owner(last)
        return {step.tid for step in last if step.code in ON_CPU and self._owner(step) == owner}

    def passes(self, step: Step) -> int:
        """Return the time of the chains that contain `step`, at any line."""
        return sum(
            took for chain, took in self.chains.items() if any(self._group(one) == self._group(step) for one in chain)
        )

    def awaited(self, step: Step) -> Counter[int]:
        """Return the threads that `step` waits for in the row's chains, and for how long."""
        found: Counter[int] = Counter()
        for chain, took in self.chains.items():
            for one, after in pairwise(chain):
                if self._group(one) == self._group(step) and after.tid not in (0, one.tid):
                    found[after.tid] += took
                    break
        return found

    def chain(self) -> tuple[Step, ...]:
        """Return the chain with most of the time among those that end in the root."""
        found = self.root()
        if found is None:
            return ()
        root = found[0]
        ends = {
            chain: took for chain, took in self.chains.items() if chain and self._group(chain[-1]) == self._group(root)
        }
        exact = {chain: took for chain, took in ends.items() if chain[-1] == root}
        return max(exact or ends, key=lambda chain: ends[chain])

    def alike(self, step: Step) -> int:
        """Return the number of further processes that count as that of `step` and end a chain like it."""
        group = self._group(step)
        ends = {chain[-1].tid for chain in self.chains if chain and self._group(chain[-1]) == group}
        return len({self.outside.get(tid, tid) for tid in ends}) - 1

    def _owner(self, step: Step) -> int | str:
        if step.tid in self.pool:
            return _POOL
        return self.children.get(step.tid) or self.outside.get(step.tid, step.tid)

    def _group(self, step: Step) -> tuple[int | str, str, str]:
        who = self._owner(step)
        if step.code in (RUNNING, "cpu", "quota"):
            return who, RUNNING, ""
        return who, step.code, step.detail


def rows_of(world: World, line: Timeline) -> list[Row]:
    """Return the rows of thread `line`, longest first. Together they last as long as the window."""
    rows: dict[tuple[object, ...], Row] = {}
    for wait in line.waits:
        _add_wait(world, line, wait, rows)
    codes = futex_codes(world, line)
    for short in line.short:
        kind = world.kind(line, short.wait)
        code = codes.get(short.wait.place, kind.code) if short.wait.syscall.startswith("futex") else kind.code
        row = _row(rows, code, kind.detail, line, short.wait, world)
        row.total_ns += short.total_ns
        row.count += short.number
        row.took.append(min(short.max_ns, short.total_ns))
        row.lines[short.wait.place.line] += short.total_ns
        row.codes[short.wait.place.code] += short.total_ns
        row.roles[short.wait.place.role] += short.total_ns
    _add_running(world, line, rows)
    lived = line.alive[1] - line.alive[0]
    if lived < world.window_ns:
        rows[ABSENT,] = Row(ABSENT, total_ns=world.window_ns - lived)
    found = [row for row in rows.values() if row.total_ns > 0]
    for row in found:
        _recognise_polling(row, world.window_ns)
        _recognise_pool(row)
    return sorted(found, key=lambda row: -row.total_ns)


def _row(rows: dict[tuple[object, ...], Row], code: str, detail: str, line: Timeline, wait: Wait, world: World) -> Row:
    place = wait.place if code != "cpu" else NOWHERE
    named = path_pattern(wait.path) if wait.path else world.objects.name(wait.object)
    # the names of pipes and sockets change with each child or request
    kept = "" if wait.object.startswith(INODE_NAMES) else named
    key = (code, "" if code == "cpu" else detail, place.line, kept)
    if key not in rows:
        rows[key] = Row(code, "", detail, place)
    named = wait.path or named or world.objects.name(world.object_at_end(line, wait))
    if code != "cpu" and code not in HELD_WAITS and named:  # it was about to wait for something else
        rows[key].objects[named] += max(wait.end_ns - wait.start_ns, 1)
    return rows[key]


def wait_code(world: World, line: Timeline, wait: Wait, kind: Kind) -> str:
    """Return the code of the row to which `wait`, of the `kind` given, belongs."""
    code = kind.code
    if code == "events" and world.enders.awaits_server(line, wait):
        code = "socket"
    # the time-out of an event loop's poll is its next timer, and a server looks now and then whether it shall stop
    # (socketserver.serve_forever, poll_interval): neither is the end of its patience
    looping = code == "events" and (wait.place.role == "event_loop" or world.objects.awaits_clients(wait.object))
    if code in ("queue", "queue_full", "lock", "events") and wait.asked_ns > 0 and not looping:
        end = world.end_of(line, wait)
        if end is wait and wait.context == "timer":
            code = "timeout"
    return code


def _add_wait(world: World, line: Timeline, wait: Wait, rows: dict[tuple[object, ...], Row]) -> None:
    kind = world.kind(line, wait)
    blocked, runnable = wait.awake_ns - wait.start_ns, wait.end_ns - wait.awake_ns
    code = wait_code(world, line, wait, kind)
    if blocked > 0:
        row = _row(rows, code, kind.detail, line, wait, world)
        _count(row, wait, blocked)
        if wait.asked_ns >= 0:
            row.asked.append(wait.asked_ns)
        if wait.open:
            row.open_ns = max(row.open_ns, blocked)
        # a waiter for the interpreter lock times out every 5 ms, whoever holds it
        if wait.context == "timer" and wait.asked_ns > 0 and code not in (*ENDED_BY_TIME, "interpreter_lock"):
            row.timed_ns += blocked
        other = world.enders.waker(line, wait, kind.code)
        if other is not None and code not in ENDED_BY_TIME:
            row.by[other.tid, other.comm] += blocked
        if other is not None and code not in (*ENDED_BY_TIME, *HELD_WAITS):
            for chain, took in world.walk.answers(other, wait.start_ns, wait.awake_ns, (line.tid,)):
                if chain:
                    row.chains[chain] += took
                    _note_processes(world, line, row, chain)
    if runnable > 0:
        row = _row(rows, "cpu", "", line, wait, world)
        _count(row, wait, runnable)
        if wait.ran_pid > 0:
            row.by[wait.ran_pid, wait.ran_comm] += runnable


def _note_processes(world: World, line: Timeline, row: Row, chain: tuple[Step, ...]) -> None:
    """Note to which processes the steps of `chain` belong, and the names of those in child processes."""
    own = world.children.get(line.pid, ())
    inside = row.code in _CHILDREN
    for step in chain:
        pid = world.pid_of(step.tid)
        if pid not in (0, line.pid):
            row.outside[step.tid] = pid
        if (inside or pid in own) and (comm := world.comm(step.tid)):
            row.children[step.tid] = comm
        inside = inside or step.code in _CHILDREN


def _count(row: Row, wait: Wait, took: int) -> None:
    row.total_ns += took
    row.count += 1
    row.took.append(took)
    row.lines[wait.place.line] += took
    row.codes[wait.place.code] += took
    row.roles[wait.place.role] += took
    row.first_ns = wait.start_ns if row.first_ns < 0 else min(row.first_ns, wait.start_ns)
    row.last_ns = max(row.last_ns, wait.end_ns)


def _follow_spinning(world: World, line: Timeline, sample: Sample, took: int, row: Row) -> None:
    """Add to `row` what the threads of the process do that run without spinning, while `line` spins for a lock: one of
    them has it."""
    if row.code != "lock":
        return
    start, end = sample.at_ns - _AROUND_NS, sample.at_ns + _AROUND_NS
    holders = []
    for other in world.lines.values():
        if other.pid != line.pid or other.tid == line.tid or not (other.samples or other.waits):
            continue
        chain, _ = max(world.walk.answers(other, start, end, (line.tid,)), key=lambda found: found[1], default=((), 0))
        if chain and chain[0].code in ON_CPU:
            holders.append((other, chain))
    for other, chain in holders:
        row.by[other.tid, other.comm] += took // len(holders)
        row.chains[chain] += took // len(holders)
        world.presumed.add((line.tid, line.pid))


def _add_running(world: World, line: Timeline, rows: dict[tuple[object, ...], Row]) -> None:
    """Divide the time that the thread ran among the functions in which it was sampled; spinning is a wait."""
    ran = line.running_ns
    if ran <= 0:
        return
    if not line.samples:
        rows[RUNNING, "", ""] = Row(RUNNING, "", total_ns=ran)
        return
    given = 0
    # a sampler that reads frames of Python only cannot tell bytecode from native code that it calls
    natives = any(sample.place.native for sample in line.samples)
    for number, sample in enumerate(line.samples, 1):
        took = ran * number // len(line.samples) - given
        given += took
        if code := spinning_wait(sample.place):
            detail = SPINS if code == "lock" else ""
            row = rows.setdefault((code, detail, sample.place.line, ""), Row(code, "", detail, sample.place))
            _follow_spinning(world, line, sample, took, row)
        else:
            kind = running_kind(sample.place, sample.kernel)
            key = (RUNNING, kind.code, kind.detail, sample.place.function or sample.place.line)
            row = rows.setdefault(key, Row(RUNNING, kind.code, kind.detail, sample.place))
        row.total_ns += took
        row.count += 1
        row.lines[sample.place.line] += took
        row.codes[sample.place.code] += took
        row.roles[sample.place.role] += took
        if natives:
            row.interpreted_ns = (row.interpreted_ns or 0) + (took if sample.place.interpreted else 0)
    for row in rows.values():
        own = row.code == RUNNING and row.mode == "user"
        if own and row.total_ns >= _JUDGED * line.running_ns and row.place.function is not None:
            row.growth = growth_of(line, row.place.function)


def _recognise_polling(row: Row, window_ns: int) -> None:
    """Reclassify frequent short sleeps as a polling loop."""
    often = row.count >= _POLLS_PER_S * window_ns / 1e9
    if row.code in ("sleep", "timeout") and often and row.typical_ns <= _POLL_NS:
        row.code = "poll"


def _recognise_pool(row: Row) -> None:
    """Let threads of the own process that share the work count as one: none of them is awaited for most of the time,
    but together those that run, or could run, are."""
    last = row.last_steps()
    own: Counter[int] = Counter()
    for step, took in last.items():
        if step.code in ON_CPU and step.tid not in row.outside and step.tid not in row.children:
            own[step.tid] += took
    total = sum(last.values())
    if own and max(own.values()) < _MOSTLY * total <= sum(own.values()):
        row.pool = frozenset(own)
