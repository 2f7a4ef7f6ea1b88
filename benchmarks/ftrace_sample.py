"""Generate the kernel tracer's text of a simulated busy host, of any size, in order of time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

_CPUS, _THREADS = 16, 400
_PERIOD = 100_000  # lines after which the events repeat, later
_NAMES = (
    "python3",
    "pt_autograd_0",
    "pt_data_worker",
    "cuda-EvtHandlr",
    "kworker/%d:1",
    "ksoftirqd/%d",
    "Web Content",
    "sshd",
)
_START_NS = 40_000 * 10**9


class _Host:
    """CPUs that run, wake, migrate and interrupt threads, with complete chains of switches."""

    def __init__(self, seed: int, syscalls: bool) -> None:
        self._dice = random.Random(seed)
        self._syscalls = syscalls
        self._names = {tid: self._named(tid) for tid in range(1000, 1000 + _THREADS)}
        self._running = [0] * _CPUS
        self._waiting = list(self._names)
        self._dice.shuffle(self._waiting)
        self._homes = {tid: self._dice.randrange(_CPUS) for tid in self._names}

    def _named(self, tid: int) -> str:
        name = _NAMES[tid % len(_NAMES)]
        return name % (tid % _CPUS) if "%" in name else name

    def lines(self, count: int) -> list[tuple[int, str, str]]:
        """Return lines as (ns since the previous, text before the time, text after it); all CPUs idle at both ends."""
        found: list[tuple[int, str, str]] = []
        while len(found) < count:
            self._step(found, self._dice.randrange(_CPUS))
        for cpu in range(_CPUS):
            if self._running[cpu]:
                self._switch(found, cpu, 0)
        return found

    def _step(self, found: list[tuple[int, str, str]], cpu: int) -> None:
        current, dice = self._running[cpu], self._dice
        if dice.random() < 0.2:
            vector = dice.choice(("1 [action=TIMER]", "7 [action=SCHED]", "9 [action=RCU]", "3 [action=NET_RX]"))
            self._line(found, cpu, "..s1.", f"softirq_entry: vec={vector}")
            self._line(found, cpu, "..s1.", f"softirq_exit: vec={vector}")
        if self._syscalls and current:
            for _ in range(dice.randrange(4)):
                number, address = dice.choice((0, 1, 202, 232)), dice.getrandbits(20)
                self._line(found, cpu, ".....", f"sys_enter: NR {number} (7f3a{address:08x}, 189, 0, 0, 0, ffffffff)")
                self._line(found, cpu, ".....", f"sys_exit: NR {number} = {dice.choice((0, 1, 64, -11, -110))}")
        # A few threads do most of the work, and rarely migrate.
        woken = self._waiting.pop(int(len(self._waiting) * dice.random() ** 4))
        name, old = self._names[woken], self._homes[woken]
        home = self._homes[woken] = dice.randrange(_CPUS) if dice.random() < 0.02 else old
        about = f"comm={name} pid={woken} prio=120"
        self._line(
            found, cpu, "d.s3." if dice.random() < 0.3 else "d..3.", f"sched_waking: {about} target_cpu={old:03d}"
        )
        if home != old:
            self._line(found, cpu, "d..3.", f"sched_migrate_task: {about} orig_cpu={old} dest_cpu={home}")
        self._line(found, cpu, "dN.4.", f"sched_wakeup: {about} target_cpu={home:03d}")
        self._switch(found, home, woken)
        if dice.random() < 0.5:
            self._switch(found, home, 0)

    def _switch(self, found: list[tuple[int, str, str]], cpu: int, following: int) -> None:
        leaving = self._running[cpu]
        if leaving:
            self._waiting.insert(int(len(self._waiting) * self._dice.random() ** 4), leaving)
        state = self._dice.choices(("S", "D", "R", "R+", "I"), (70, 5, 10, 10, 5))[0] if leaving else "R"
        names = [self._names[tid] if tid else f"swapper/{cpu}" for tid in (leaving, following)]
        self._line(
            found, cpu, "d..2.",
            f"sched_switch: prev_comm={names[0]} prev_pid={leaving} prev_prio=120 prev_state={state} ==> "
            f"next_comm={names[1]} next_pid={following} next_prio=120",
        )  # fmt: skip
        self._running[cpu] = following

    def _line(self, found: list[tuple[int, str, str]], cpu: int, flags: str, event: str) -> None:
        tid = self._running[cpu]
        name, group = (self._names[tid], f"{tid - tid % 20:7d}") if tid else ("<idle>", "-------")
        head = f"{name:>16s}-{tid:<7d} ({group}) [{cpu:03d}] {flags} "
        found.append((self._dice.randrange(200, 3000), head, f": {event}\n"))


def write(path: Path, size: int, *, syscalls: bool = False, seed: int = 1) -> int:
    """Write at least `size` bytes of whole lines; return the number of events. `syscalls`: with system calls."""
    lines = 0
    with path.open("w") as file:
        file.write("# tracer: nop\n#\n")
        for text, count in _periods(seed, syscalls):
            file.write(text)
            lines += count
            if file.tell() >= size:
                return lines
    return lines


def _periods(seed: int, syscalls: bool) -> Iterator[tuple[str, int]]:
    period = _Host(seed, syscalls).lines(_PERIOD)
    now = _START_NS
    while True:
        parts = []
        for after, head, tail in period:
            now += after
            seconds, rest = divmod(now // 1000, 1_000_000)
            parts += (head, f"{seconds:5d}.{rest:06d}", tail)
        yield "".join(parts), len(period)
