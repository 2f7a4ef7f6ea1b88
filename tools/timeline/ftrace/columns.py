"""Convert parsed payloads to columns of the tables of a `SchedTrace`."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from whystall.tools.timeline.ftrace import payloads
from whystall.tools.timeline.ftrace.payloads import Family

# Bits of a raw state from the lowest on (include/linux/sched.h since 4.14). Above them R+: 256, before 4.14 up to 4096.
_STATE_BITS = "SDTtXZPI"
_IDLE = 0x402  # D that counts as no load, before 4.14
_CONTEXTS = {".": "task", "s": "softirq", "h": "hardirq", "H": "hardirq", "z": "nmi", "Z": "nmi"}
_BY_FLAG = pl.Series([_CONTEXTS.get(chr(code), "") for code in range(256)])
_SOFTIRQS = pl.Series(
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU", ""]
)


def _switches(parsed: pl.DataFrame) -> pl.DataFrame:
    # trace-cmd's short form has its own letters for the bits: its W is I since 4.14, its Z and X may be swapped
    short = pl.when(pl.col("short") == "W").then(pl.lit("I")).otherwise("short")
    state = parsed.select(pl.coalesce("state", short)).to_series()
    if not state.is_in([*"R", *_STATE_BITS]).all():
        state = payloads.mapped(state, _state)
    return parsed.select(
        "event", "next_prio", prev_tid="of", prev_prio="prio", prev_state=state, preempted=state == "R",
        next_tid="next",
    )  # fmt: skip


def _state(text: str) -> str:
    """Return one of R S D T t X Z P I, or "?"; of several the first, of a number (trace-cmd -R) by its bits."""
    if text.isdecimal():
        bits = int(text[:9])
        if bits & _IDLE == _IDLE:
            return "I"
        letter = next((letter for bit, letter in enumerate(_STATE_BITS) if bits >> bit & 1), "R")
        return letter if letter != "R" or bits in (0, 256, 512, 1024, 2048, 4096) else "?"
    if text == "D|N":  # TASK_NOLOAD, 4.2 to 4.13
        return "I"
    first = text[0].replace("x", "X")
    return first if first == "R" or first in _STATE_BITS else "?"


def _wakeups(parsed: pl.DataFrame) -> pl.DataFrame:
    kind = pl.when(pl.col("kind") == "wakeup_new").then(pl.lit("new")).otherwise("kind")
    return parsed.select("event", "prio", "success", kind=kind, of="of", target_cpu=pl.col("target").fill_null(-1))


def _migrations(parsed: pl.DataFrame) -> pl.DataFrame:
    return parsed.select("event", "of", from_cpu="from", to_cpu="to")


def _interrupts(parsed: pl.DataFrame) -> pl.DataFrame:
    soft = pl.col("soft").is_not_null()
    usual = pl.lit(_SOFTIRQS).gather(pl.min_horizontal("vector", len(_SOFTIRQS) - 1))
    name = pl.coalesce("name", pl.when(soft).then(usual), pl.lit(""))
    return parsed.select("event", "vector", soft=soft, entry=pl.col("edge") == "entry", name=name)


def _syscalls(parsed: pl.DataFrame) -> pl.DataFrame:
    def little(name: str) -> pl.Expr:
        digits = pl.col(name).str.replace_all(", ", "", literal=True)
        return digits.str.decode("hex", strict=False).bin.reinterpret(dtype=pl.Int64)

    raw = parsed.get_column("raw0").is_not_null().any()
    arguments = {
        f"arg{index}": pl.coalesce(f"arg{index}", *([little(f"raw{index}")] if raw else []), -1) for index in range(3)
    }
    return parsed.select(
        "event", pl.col("nr").fill_null(-1), pl.col("name").fill_null(""),
        entry=pl.col("edge").is_not_null(), result=pl.coalesce("result", "result_hex", -1), **arguments,
    )  # fmt: skip


def _tasks(parsed: pl.DataFrame) -> pl.DataFrame:
    """Add the columns `comm`, `name` and `clone` for names and thread groups."""
    text = pl.when(pl.col("kind").is_in(["exec", "rename"])).then("text").fill_null("")
    other = pl.col("other").fill_null(-1)
    return parsed.select("event", "kind", "of", "comm", "clone", other_tid=other, text=text, name="text")


def _power(parsed: pl.DataFrame) -> pl.DataFrame:
    value = pl.col("value")
    # the idle state -1 as 32 bits, or as 64, where it is another value
    value = pl.when(value != 0xFFFFFFFF).then(value).fill_null(-1)
    return parsed.select("event", "kind", "about", value=value)


def _block(parsed: pl.DataFrame) -> pl.DataFrame:
    size = pl.coalesce("bytes", pl.col("sectors") * 512)
    return parsed.select("event", "phase", "device", "operation", sector=pl.col("sector").fill_null(-1), bytes=size)


_MARKS = {"B": "begin", "E": "end", "C": "counter", "S": "async_begin", "F": "async_end", "I": "instant"}


def _markers(parsed: pl.DataFrame) -> pl.DataFrame:
    kind = pl.col("mark").replace_strict(_MARKS, return_dtype=pl.String)
    text = pl.col("text").fill_null("")
    return parsed.select(
        "event", kind=kind, pid=pl.col("of").fill_null(-1), name=text, value=pl.col("value").fill_null(-1)
    )


def of_the_row(family: Family) -> dict[str, pl.Expr]:
    """Return columns of the table that are not in the payload alone."""
    if family is payloads.SWITCH:
        return {"prev_arrived_ns": pl.lit(0)}
    if family is payloads.WAKE:
        return {"waker_tid": pl.col("tid"), "tid": pl.col("of"), "context": pl.lit(_BY_FLAG).gather("context")}
    if family is payloads.MIGRATE:
        return {"tid": pl.col("of")}
    if family is payloads.TASK:
        return {"tid": pl.coalesce("of", "tid")}
    return {"cpu": pl.col("about")} if family is payloads.POWER else {}


TABLE_OF: dict[Family, tuple[str, Callable[[pl.DataFrame], pl.DataFrame]]] = {
    payloads.SWITCH: ("switches", _switches),
    payloads.WAKE: ("wakeups", _wakeups),
    payloads.MIGRATE: ("migrations", _migrations),
    payloads.INTERRUPT: ("interrupts", _interrupts),
    payloads.SYSCALL: ("syscalls", _syscalls),
    payloads.TASK: ("tasks", _tasks),
    payloads.POWER: ("power", _power),
    payloads.BLOCK: ("block", _block),
    payloads.MARKER: ("markers", _markers),
}
"""The table of each family, and its columns that are in the payload, from what `Family.parse` gives."""
