"""Reading ftrace's text: what a simple writer wrote comes back, and no damage does harm."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest

from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean
from whystall.tools.timeline.ftrace import source as ftrace_source
from whystall.tools.timeline.ftrace.text import read
from whystall.tools.timeline.sched import TABLES, SchedTrace

pytestmark = pytest.mark.thorough

DATA = Path(__file__).with_name("data") / "ftrace"
FLAG = {"task": ".", "softirq": "s", "hardirq": "h", "nmi": "z"}
PIECES = [
    " ", ":", ": ", "==>", " ==> ", "[000]", "prev_pid=", " next_comm=", "next_pid=1", " next_prio=1", "-12", "\\", "=",
    "ü", "日本",
    "(7)", "#", "prev_state=R", " target_cpu=", " orig_cpu=1", "1.5:", "->", "sched_switch", "a", "b", "\t",
    "\x01", "CPU:1 [LOST",
]  # fmt: skip


class Writer:
    """A trace of random events, as the kernel would print it; `rows` are its content, by table."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.tgid = self.dice.random() < 0.5
        self.flags = self.dice.choice((0, 4, 5))
        self.digits = self.dice.choice((6, 9))
        self.padding = self.dice.choice((5, 7))
        self.rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in TABLES}
        self.named: list[tuple[int, int, str]] = []
        self.lines: list[str] = []
        self.now = self.dice.choice((3, 99_999_999, 40_000_000_000, 1_795_192_742_000_000)) * 1000
        self.names = {tid: self._name() for tid in self.dice.sample(range(1, 4_194_304), 12)}
        for _ in range(120):
            self.dice.choice(
                (self._switch, self._switch, self._wake, self._migrate, self._softirq, self._irq, self._call)
            )()
            if self.dice.random() < 0.05:
                self.names[self.dice.choice(list(self.names))] = self._name()

    def _name(self) -> str:
        name = ""
        while True:
            longer = name + self.dice.choice(PIECES)
            if len(longer.encode()) > 15 or self.dice.random() < 0.2:
                # one that ends in a space is indistinguishable from padding where it ends the line
                return name.strip() or "x"
            name = longer

    def _thread(self) -> int:
        return self.dice.choice(list(self.names))

    def _who(self) -> tuple[int, int, str]:
        """A thread that runs, its CPU and context."""
        return self._thread(), self.dice.choice((0, 7, 63, 999, 1023)), self.dice.choice(list(FLAG))

    def _line(self, tid: int, cpu: int, context: str, event: str) -> int:
        self.now += self.dice.randrange(0, 5_000_000) * (1000 if self.digits == 6 else 1)
        seconds, rest = divmod(self.now, 10**9)
        name = self.names.get(tid, "<idle>").encode()
        head = " " * (16 - len(name)) + name.decode()
        group = f" ({tid:7d})" if self.tgid else ""
        flags = f" {'d.' + FLAG[context] + '2.':.{self.flags}}" if self.flags else "  "
        time = f"{seconds:5d}.{rest:09d}"[: -(9 - self.digits) or None]
        self.lines.append(f"{head}-{tid:<{self.padding}d}{group} [{cpu:03d}]{flags} {time}: {event}\n")
        return self.now

    def _say(self, at: int, *tids: int) -> None:
        self.named += [(at, tid, clean(self.names[tid])) for tid in tids if tid]

    def _switch(self) -> None:
        (prev, cpu, _), following = self._who(), self.dice.choice([0, *self.names])
        state = self.dice.choice(["R", "R+", "S", "D", "T", "t", "X", "Z", "P", "I"])
        prio, next_prio = self.dice.choice((120, -1, 0, 98)), self.dice.choice((120, -1, 0, 98))
        at = self._line(
            prev, cpu, "task",
            f"sched_switch: prev_comm={self.names[prev]} prev_pid={prev} prev_prio={prio} prev_state={state} ==> "
            f"next_comm={self.names.get(following, 'swapper/1')} next_pid={following} next_prio={next_prio}",
        )  # fmt: skip
        self.rows["switches"].append((at, cpu, prev, prio, state[0], state[0] == "R", 0, following, next_prio))
        self._say(at, prev, following)

    def _wake(self) -> None:
        (tid, cpu, context), woken = self._who(), self._thread()
        kind, target = self.dice.choice(("waking", "wakeup", "new")), self.dice.randrange(1024)
        event = f"sched_{'wakeup_new' if kind == 'new' else kind}"
        at = self._line(
            tid, cpu, context, f"{event}: comm={self.names[woken]} pid={woken} prio=99 target_cpu={target:03d}"
        )
        self.rows["wakeups"].append((at, cpu, kind, tid, context if self.flags else "", woken, 99, target))
        self._say(at, woken)

    def _migrate(self) -> None:
        (tid, cpu, context), moved = self._who(), self._thread()
        event = f"sched_migrate_task: comm={self.names[moved]} pid={moved} prio=1 orig_cpu={cpu} dest_cpu=5"
        self.rows["migrations"].append((self._line(tid, cpu, context, event), cpu, moved, cpu, 5))
        self._say(self.now, moved)

    def _softirq(self) -> None:
        (tid, cpu, _), entry = self._who(), self.dice.random() < 0.5
        at = self._line(tid, cpu, "softirq", f"softirq_{'entry' if entry else 'exit'}: vec=3 [action=NET_RX]")
        self.rows["interrupts"].append((at, cpu, tid, True, entry, 3, "NET_RX"))

    def _irq(self) -> None:
        (tid, cpu, _), name = self._who(), self._name()
        at = self._line(tid, cpu, "hardirq", f"irq_handler_entry: irq=28 name={name}")
        self.rows["interrupts"].append((at, cpu, tid, False, True, 28, clean(name)))

    def _call(self) -> None:
        (tid, cpu, _), values = self._who(), [self.dice.getrandbits(64) for _ in range(3)]
        signed = [value - (value >> 63 << 64) for value in values]
        text = ", ".join(f"{value:x}" for value in values)
        at = self._line(tid, cpu, "task", f"sys_enter: NR 202 ({text}, 0, 0, 0)")
        self.rows["syscalls"].append((at, cpu, tid, True, 202, "", *signed, -1))
        at = self._line(tid, cpu, "task", f"sys_exit: NR 202 = {signed[0]}")
        self.rows["syscalls"].append((at, cpu, tid, False, 202, "", -1, -1, -1, signed[0]))

    def renames(self) -> dict[int, list[tuple[int, str]]]:
        """What each thread was called, from when on."""
        found: dict[int, list[tuple[int, str]]] = {}
        for at, tid, name in self.named:
            known = found.setdefault(tid, [])
            if not known or known[-1][1] != name:
                known.append((at, name))
        return found


@pytest.mark.parametrize("seed", range(40))
def test_what_was_written_is_read(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Writer(seed)
    path = tmp_path / "trace.txt"
    path.write_text("# tracer: nop\n" + "".join(written.lines), encoding="utf-8")
    monkeypatch.setattr(ftrace_source, "BLOCK", written.dice.choice((1500, 10_000, 1 << 20)))
    trace = read(path)
    assert trace.odd.count == 0, trace.odd
    for name in ("switches", "wakeups", "migrations", "interrupts", "syscalls"):
        assert trace.table(name).rows() == written.rows[name], name
    for tid, expected in written.renames().items():
        recorded = trace.table("names").filter(tid=tid)
        assert recorded.select("at_ns", "comm").rows() == expected
        assert set(recorded["pid"]) == {tid if written.tgid and tid in heads(written) else -1}


def heads(written: Writer) -> set[int]:
    """Threads that a line stands for."""
    return {int(line[17 : 17 + 8].split("(")[0].split("[")[0]) for line in map(columns, written.lines)}


def columns(line: str) -> str:
    """With as many characters before the dash as there are bytes."""
    return line.encode()[:32].decode("latin1")


def damaged(dice: random.Random, text: bytes) -> bytes:
    """A few bytes changed, lost, or doubled."""
    data = bytearray(text)
    for _ in range(dice.randrange(1, 40)):
        at = dice.randrange(len(data) + 1)
        length = dice.choice((1, 1, 1, 7, 100))
        rubbish = (b"\n", b"\0", b" ", b"9" * 25, b"-", b"\xff", b"\r", b": ", b"[", b"]", b"0x", dice.randbytes(1))
        data[at : at + length] = dice.choice((b"", bytes(data[at : at + length]) * 2, dice.choice(rubbish)))
    return bytes(data)


def sound(trace: SchedTrace) -> None:
    for name, schema in TABLES.items():
        table = trace.table(name)
        assert table.schema == schema
        assert not any(table.null_count().row(0)), name
        assert table.get_column("start_ns" if name == "holes" else table.columns[0]).is_sorted() or name == "clocks"
        for column in table.select(pl.col(pl.String)):
            assert not column.str.contains(r"\p{C}").any()
    assert trace.start_ns <= trace.end_ns
    assert len(trace.odd.examples) <= trace.odd.count or not trace.odd.count


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.txt")))
@pytest.mark.parametrize("seed", range(6))
def test_no_damage_does_harm(name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(f"{name}{seed}")
    text = (DATA / name).read_bytes()
    monkeypatch.setattr(ftrace_source, "BLOCK", dice.choice((2000, 1 << 20)))
    path = tmp_path / "trace.txt"
    path.write_bytes(damaged(dice, text))
    sound(read(path))


@pytest.mark.parametrize("seed", range(30))
def test_one_damaged_line_is_a_trace_or_an_error(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    line = dice.choice((DATA / "linux61_tgid.txt").read_bytes().splitlines()[12:]) + b"\n"
    path = tmp_path / "trace.txt"
    path.write_bytes(damaged(dice, line))
    with suppress(ToolError):
        sound(read(path))
