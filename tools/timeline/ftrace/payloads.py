"""Parse the payloads of events into columns: regular expressions, one family of events after the other.

A command name has at most 15 bytes and may hold anything. The expressions are anchored at both ends, and what must
stand between two names is longer than a name, so that no name can imitate it. Where that is not so (the short forms of
trace-cmd) the caller compares redundant fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

import polars as pl

from whystall.tools.contract.text import NAME_LIMIT, PATH_LIMIT, clean

EVENT = pl.col("event")
_NUMBER, _CPU = r"[0-9]{1,9}", r"[0-9]{1,5}"
_SIGNED = rf"-?{_NUMBER}"
_WORD = "[0-9A-Za-z_]+"
# Fields that vendors' kernels add at the end: `state=W`, `expeller_type=0`.
_MORE = "(?: [a-z_]+=[^ ]*)*"
_INTEGERS = ("of", "prio", "next", "next_prio", "success", "target", "from", "to", "vector", "other", "about", "nr")
_LONG = ("bytes", "sector", "sectors", "result", "value")
_HEX = ("arg0", "arg1", "arg2", "clone", "result_hex")
Halves: TypeAlias = "tuple[str, str | Halves, str | Halves]"


class Family:
    """Events that are parsed alike.

    `prefixes`: of their names, of which eight bytes count; `names`: a pattern of their names; `patterns`: forms of
    their payload, tried in turn. `repeats`: whether caching pays. `halves`: the first of these forms, cut in two at a
    text, with a form for either side. On a busy host all pairs of threads occur, but the threads themselves are few: so
    each side is parsed once.
    """

    def __init__(
        self,
        prefixes: tuple[str, ...],
        names: str,
        patterns: tuple[str, ...],
        halves: Halves | None = None,
        repeats: bool = True,
    ) -> None:
        self.prefixes, self.names, self.patterns, self.repeats = prefixes, names, patterns, repeats
        self._halves = halves
        groups = dict.fromkeys(name for pattern in patterns for name in re.compile(pattern).groupindex)
        types: dict[str, pl.DataType] = {"event": pl.String(), **{name: _type(name) for name in groups}}
        self._groups = pl.Schema(types)

    def parse(self, texts: pl.Series) -> pl.DataFrame:
        """Parse the distinct `texts`: `event`, and all groups as columns of numbers and texts, null where the payload
        lacks them; texts are escaped."""
        left, found = texts.to_frame("event"), [self._groups.to_frame()]
        if self._halves is not None:
            found.append(_in_halves(left, "event", self._halves))
            left = _rest(left, found[-1])
        for form in (None, _plain_fields):
            if form is not None:
                left = left.filter(EVENT.str.contains("=0x", literal=True))
            for pattern in self.patterns:
                if left.is_empty():
                    break
                found.append(_matched(left, "event", pattern, form))
                left = _rest(left, found[-1])
        return pl.concat(found, how="diagonal")


def _in_halves(texts: pl.DataFrame, column: str, halves: Halves) -> pl.DataFrame:
    """Return the texts that have the form, and the groups of both sides."""
    cut, *forms = halves
    text = pl.col(column).cast(pl.Binary)
    found = pl.col(column).str.find(cut, literal=True)  # in bytes
    sides = {f"{column}.": text.bin.slice(0, found), f"{column}:": text.bin.slice(found + len(cut))}
    read = texts.select(column, **{name: side.cast(pl.String) for name, side in sides.items()}).drop_nulls()
    for name, form in zip(sides, forms, strict=True):
        side = read.select(pl.col(name).unique())
        parsed = _matched(side, name, form) if isinstance(form, str) else _in_halves(side, name, form)
        read = read.join(parsed, on=name)
    return read.drop(*sides)


def _matched(
    texts: pl.DataFrame, column: str, pattern: str, form: Callable[[pl.Expr], pl.Expr] | None = None
) -> pl.DataFrame:
    text = form(pl.col(column)) if form else pl.col(column)
    groups = texts.select(column, text.str.extract_groups(pattern).alias("groups")).unnest("groups")
    parsed = groups.filter(pl.any_horizontal(pl.col(name).is_not_null() for name in groups.columns[1:]))
    return parsed.with_columns(_typed(name, parsed) for name in groups.columns[1:])


def _rest(texts: pl.DataFrame, read: pl.DataFrame) -> pl.DataFrame:
    return texts.clear() if len(read) == len(texts) else texts.join(read, on="event", how="anti")


def _plain_fields(text: pl.Expr) -> pl.Expr:
    """Undo the tracer's option `fields`, which writes ``prev_pid=0x4a22 (18978)``."""
    return text.str.replace_all(r"=0x[0-9a-f]+ \((-?[0-9]+)\)", "=${1}")


def _type(name: str) -> pl.DataType:
    if name in _INTEGERS:
        return pl.Int32()
    return pl.Int64() if name in _LONG or name in _HEX else pl.String()


def _typed(name: str, rows: pl.DataFrame) -> pl.Expr | pl.Series:
    if name in _HEX:
        return pl.col(name).str.to_integer(base=16, dtype=pl.UInt64, strict=False).reinterpret(signed=True)
    kind = _type(name)
    if kind != pl.String:
        return pl.col(name).cast(kind, strict=False)
    return inert(rows.get_column(name), PATH_LIMIT if name == "text" else NAME_LIMIT)


def inert(texts: pl.Series, limit: int = NAME_LIMIT) -> pl.Series:
    """Escape control characters; nulls stay."""
    strange = texts.str.contains(r"[^ -~]|^ARRAY\[") | (texts.str.len_bytes() > limit)
    return mapped(texts, lambda text: clean(_unarrayed(text), limit)) if strange.any() else texts


def _unarrayed(text: str) -> str | bytes:
    """Decode texts that trace-cmd -R writes as ``ARRAY[70, 79, 00]``."""
    numbers = re.fullmatch(r"ARRAY\[((?:[0-9a-f]{2}, )*[0-9a-f]{2})\]", text)
    return bytes.fromhex(numbers[1].replace(",", "")) if numbers else text


def mapped(texts: pl.Series, function: Callable[[str], str]) -> pl.Series:
    """Return `function` of every text, called once for each distinct one; nulls stay."""
    old = texts.unique().drop_nulls()
    new = pl.Series([function(text) for text in old], dtype=pl.String)
    replaced: pl.Series = texts.replace_strict(old, new, default=None, return_dtype=pl.String)
    return replaced


def _one(*names: str) -> str:
    return "|".join(names)


def _argument(index: int) -> str:
    return rf"(?:0x)?(?P<arg{index}>[0-9a-f]{{1,16}})"


def _named_arguments(separator: str) -> str:
    """Return a pattern of arguments ``uaddr: 7f.., op: 80``, with types before the names or more after an address."""
    after = r'(?: "[^"]*"\.*| \([^)]*\))?'
    each = [rf"[^:=,]*{separator}{_argument(index)}{after}" for index in range(3)]
    return rf"(?:{each[0]}(?:, {each[1]}(?:, {each[2]})?)?)?"


def _bytes(names: Iterable[str]) -> str:
    return ", ".join(rf"(?P<{name}>(?:[0-9a-f]{{2}}, ){{7}}[0-9a-f]{{2}})" for name in names)


_PREV = rf"prev_comm=(?P<comm>.*?) prev_pid=(?P<of>{_NUMBER}) prev_prio=(?P<prio>{_SIGNED})"
_STATE = "(?P<state>[^ ]+)"
_NEXT = rf"(?P<next_comm>.*?) next_pid=(?P<next>{_NUMBER}) next_prio=(?P<next_prio>{_SIGNED}){_MORE} *$"
# sched_switch: prev_comm=train prev_pid=4711 prev_prio=120 prev_state=S ==> next_comm=sh next_pid=99 next_prio=120
# sched_switch: task train:4711 [120] (S) ==> swapper/1:0 [120]  (before 2.6.35)
# sched_switch: train:4711 [120] S ==> swapper/1:0 [120]  (trace-cmd)
SWITCH = Family(
    ("sched_sw",),
    _one("sched_switch"),
    (
        rf"(?s)^sched_switch: +{_PREV} prev_state={_STATE} +(?:==> )?next_comm={_NEXT}",
        rf"(?s)^sched_switch: +task (?P<comm>.*?):(?P<of>{_NUMBER}) \[(?P<prio>{_SIGNED})\] \((?P<state>[^ )]+)\) ==> "
        rf"(?P<next_comm>.*?):(?P<next>{_NUMBER}) \[(?P<next_prio>{_SIGNED})\] *$",
        rf"(?s)^sched_switch: +(?P<comm>.*?):(?P<of>{_NUMBER}) \[(?P<prio>{_SIGNED})\] (?P<short>[^ ]+) ==> "
        rf"(?P<next_comm>.*?):(?P<next>{_NUMBER}) \[(?P<next_prio>{_SIGNED})\] *$",
    ),
    (" ==> next_comm=", (" prev_state=", rf"(?s)^sched_switch: +{_PREV}$", f"^{_STATE} *$"), rf"(?s)^{_NEXT}"),
)
_WOKEN = (
    rf"(?s)^sched_(?P<kind>waking|wakeup|wakeup_new): +comm=(?P<comm>.*?) pid=(?P<of>{_NUMBER}) "
    rf"prio=(?P<prio>{_SIGNED})(?: success=(?P<success>[0-9]))?"
)
# sched_wakeup: comm=train pid=4711 prio=120 target_cpu=001
# sched_wakeup: task train:4711 [120] success=1 [001]  (before 2.6.35)
# sched_waking: train:4711 [120] CPU:001  (trace-cmd)
WAKE = Family(
    ("sched_wa",),
    _one("sched_waking", "sched_wakeup", "sched_wakeup_new"),
    (
        rf"{_WOKEN}(?: (?:target_cpu=|CPU:)(?P<target>{_CPU}){_MORE})? *$",
        rf"{_WOKEN} \[(?P<target>{_CPU})\] *$",
        rf"(?s)^sched_(?P<kind>waking|wakeup|wakeup_new): +task (?P<comm>.*?):(?P<of>{_NUMBER}) \[(?P<prio>{_SIGNED})\]"
        rf"(?: success=(?P<success>[0-9]))? \[(?P<target>{_CPU})\] *$",
        rf"(?s)^sched_(?P<kind>waking|wakeup|wakeup_new): +(?P<comm>.*?):(?P<of>{_NUMBER}) \[(?P<prio>{_SIGNED})\]"
        r"(?: ?<CANT FIND FIELD success>)?(?: success=(?P<success>[0-9]))?"
        rf"(?: CPU:(?P<target>{_CPU}))?(?: Latency: .*)? *$",
    ),
    (" target_cpu=", rf"{_WOKEN}$", rf"^(?P<target>{_CPU}){_MORE} *$"),
)
_MOVED = rf"(?s)^sched_migrate_task: +comm=(?P<comm>.*?) pid=(?P<of>{_NUMBER}) prio={_SIGNED}(?: load=[0-9]+)?"
# sched_migrate_task: comm=train pid=4711 prio=120 orig_cpu=1 dest_cpu=2
MIGRATE = Family(
    ("sched_mi",),
    _one("sched_migrate_task"),
    (rf"{_MOVED} orig_cpu=(?P<from>{_CPU}) dest_cpu=(?P<to>{_CPU}){_MORE} *$",),
    (" orig_cpu=", rf"{_MOVED}$", rf"^(?P<from>{_CPU}) dest_cpu=(?P<to>{_CPU}){_MORE} *$"),
)
# softirq_entry: vec=1 [action=TIMER]
# irq_handler_entry: irq=35 name=nvme0q1
INTERRUPT = Family(
    ("irq_hand", "softirq_"),
    _one(r"irq_handler_e(?:ntry|xit)", "softirq_e(?:ntry|xit)"),
    (
        rf"^(?P<soft>softirq)_(?P<edge>entry|exit): +(?:vec|softirq)=(?P<vector>{_NUMBER})"
        r"(?: \[?action=(?P<name>[^] ]*)\]?)? *$",
        rf"(?s)^irq_handler_(?P<edge>entry|exit): +irq=(?P<vector>{_NUMBER}) "
        rf"(?:(?:name|handler)=(?P<name>.*?)|ret(?:urn)?={_WORD}) *$",
    ),
)
# sys_enter: NR 202 (7f2c, 80, 0, 0, 0, 0)
# sys_exit: NR 202 = 0
# sys_futex(uaddr: 7f2c, op: 80, val: 0)
# sys_futex -> 0x0
SYSCALL = Family(
    ("sys_",),
    _one(f"sys_{_WORD}"),
    (
        rf"^sys_exit: +NR (?P<nr>{_SIGNED}) = (?P<result>-?[0-9]{{1,19}}) *$",
        rf"^sys_(?P<edge>enter): +NR (?P<nr>{_SIGNED}) \({_argument(0)}, {_argument(1)}, {_argument(2)}[,)]",
        rf"^sys_(?P<name>{_WORD}) -> 0x(?P<result_hex>[0-9a-f]{{1,16}}) *$",
        rf"(?s)^sys_(?P<edge>enter)_(?P<name>{_WORD}): +{_named_arguments(': ')}(?:,.*)? *$",
        rf"^sys_exit_(?P<name>{_WORD}): +0x(?P<result_hex>[0-9a-f]{{1,16}}) *$",
        rf"(?s)^sys_(?P<name>{_WORD})(?P<edge>\(){_named_arguments(': ')}(?:,.*)?\) *$",
        rf"^sys_exit: +id=(?P<nr>{_SIGNED}) ret=(?P<result>-?[0-9]{{1,19}}) *$",
        rf"^sys_(?P<edge>enter): +id=(?P<nr>{_SIGNED}) args=ARRAY\[{_bytes(('raw0', 'raw1', 'raw2'))}",
        rf"^sys_exit_(?P<name>{_WORD}): +(?:__syscall_)?nr=(?P<nr>{_SIGNED}) ret=0x(?P<result_hex>[0-9a-f]{{1,16}}) *$",
        rf"^sys_exit_(?P<name>{_WORD}): +(?:__syscall_)?nr=(?P<nr>{_SIGNED}) ret=(?P<result>-?[0-9]{{1,19}}) *$",
        rf"(?s)^sys_(?P<edge>enter)_(?P<name>{_WORD}): +(?:(?:__syscall_)?nr=(?P<nr>{_SIGNED}) )?.*$",
    ),
    repeats=False,
)
# sched_process_fork: comm=train pid=4711 child_comm=train child_pid=4712
# task_rename: pid=4712 oldcomm=train newcomm=pt_data_worker oom_score_adj=0
TASK = Family(
    ("sched_pr", "task_ren", "task_new"),
    _one(r"sched_process_(?:fork|exec|exit)", "task_rename", "task_newtask"),
    (
        rf"(?s)^sched_process_(?P<kind>fork): +(?:parent_)?comm=(?P<comm>.*?) (?:parent_)?pid=(?P<of>{_NUMBER}) "
        rf"child_comm=(?P<text>.*) child_pid=(?P<other>{_NUMBER}) *$",
        rf"(?s)^sched_process_(?P<kind>exec): +filename=(?P<text>.*) pid=(?P<of>{_NUMBER}) old_pid={_NUMBER} *$",
        rf"(?s)^sched_process_(?P<kind>exit): +comm=(?P<comm>.*?) pid=(?P<of>{_NUMBER}) prio={_SIGNED}"
        r"(?: group_dead=[^ ]+)? *$",
        rf"(?s)^task_(?P<kind>rename): +(?:pid=(?P<of>{_NUMBER}) )?oldcomm=(?P<comm>.*?) newcomm=(?P<text>.*) "
        r"oom_score_adj=-?[0-9]+ *$",
        rf"(?s)^task_(?P<kind>newtask): +pid=(?P<other>{_NUMBER}) comm=(?P<text>.*) "
        r"clone_flags=(?:0x)?(?P<clone>[0-9a-f]{1,16}) oom_score_adj=-?[0-9]+ *$",
    ),
)
# cpu_idle: state=1 cpu_id=3
POWER = Family(
    ("cpu_idle", "cpu_freq"),
    _one("cpu_idle", "cpu_frequency"),
    (rf"^cpu_(?P<kind>idle|frequency): +state=(?P<value>[0-9]{{1,20}}) cpu_id=(?P<about>{_CPU}){_MORE} *$",),
)
# block_rq_issue: 259,0 R 131072 () 41943040 + 256 [train]
BLOCK = Family(
    ("block_rq",),
    _one("block_rq_insert", "block_rq_issue", "block_rq_complete"),
    (
        rf"(?s)^block_rq_(?P<phase>insert|issue|complete): +(?P<device>[0-9]+,[0-9]+) (?P<operation>{_WORD})"
        r"(?: (?P<bytes>[0-9]{1,18}))? \(.*?\) (?P<sector>[0-9]{1,20}) \+ (?P<sectors>[0-9]{1,18}) .*\[.*\] *$",
    ),
)
_MARK = r"(?s)^(?:0|print|tracing_mark_write): +(?:tracing_mark_write: +)?"
# tracing_mark_write: B|4711|load batch
# print:                tracing_mark_write: C|4711|queued|3  (trace-cmd)
# 0: E  (before 3.2)
MARKER = Family(
    ("tracing_", "print:", "0: "),
    "(?:[^\\s\\S])",  # any other message is an event without a table
    (
        rf"{_MARK}(?P<mark>[BI])\|(?P<of>{_NUMBER})?\|(?P<text>.*?)\s*$",
        rf"{_MARK}(?P<mark>E)(?:\|(?P<of>{_NUMBER})?(?:\|.*)?)?\s*$",
        rf"{_MARK}(?P<mark>C)\|(?P<of>{_NUMBER})?\|(?P<text>.+?)\|(?P<value>-?[0-9]{{1,18}})(?:\.[0-9]+)?(?:\|.*)?\s*$",
        rf"{_MARK}(?P<mark>[SF])\|(?P<of>{_NUMBER})?\|(?P<text>.*?)\|(?P<value>-?[0-9]{{1,18}})(?:\|.*)?\s*$",
    ),
)
"""Messages in the form of Android's atrace (system/core, libcutils/trace-dev.cpp)."""
