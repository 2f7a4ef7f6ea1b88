"""Find functions in the lines of a kernel's stack trace. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from whystall.tools.crashes.rules import Rules, StackRule

_NAME = r"(?:<[^>\n]+>(?:::[\w<>{}#]+)+|[a-zA-Z_$][\w.$]*)"
# Not inlined functions (`... fs/open.c:12 [inline]`): only a symbolizer adds them, and a report keeps its name without.
# ` [<ffffffff8129>] ? do_sys_open+0x1f/0x280 fs/open.c:12`, ` vfs_read+0x12/0x20 (T)`, `[c0e] [c02] schedule+0x2c/0x70`
_FRAME = re.compile(
    rf"^\s*(?:</?[A-Z#]\w*>\s*)*\(?(?:\[?<?(?:0x)?[0-9a-f]{{8,16}}>?\]?:?\s+)*(?P<unsure>\? )?\(?(?P<name>{_NAME})"
    r"(?:\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?|\s+[\w./-]+\.[chS]:\d+$)"
)
# `[<8011218c>] (unwind_backtrace) from [<8010e300>] (show_stack+0x18/0x1c)`, ` dump_stack from panic+0x18/0x1c`
_FROM = re.compile(
    rf"^\s*(?:\[<[0-9a-f]+>\] )?\(?(?P<name>{_NAME})(?:\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?)?\)? from "
    rf"(?:\[<[0-9a-f]+>\] )?(?:\(?(?P<caller>{_NAME})\+0x)?"
)
# `RIP: 0010:[<ffffffff8144d081>]  [<ffffffff8144d081>] __free_pages+0x21/0x80`, `pc : do_futex+0x1/0x2`
_AT = re.compile(
    r"(?:^|\s)(?:RIP:? |RIP: [0-9a-f]{4}:|EIP: |EIP: [0-9a-f]{4}:|I?P: |PC is at |pc : |NIP |epc\s*: |PC: |rIP: |ERA: "
    r"|--- interrupt: \d+ at |Krnl PSW : [0-9a-f]{16} [0-9a-f]{16} \()"
    r"(?:\[?<?(?:0x)?[0-9a-f]{6,16}>?\]?:?\s+)*(?:[0-9a-f]{4}:)?(?:\[?<[0-9a-f]+>\]?\s*)*"
    rf"(?P<name>{_NAME})\+0x[0-9a-f]+"
)
# `RIP: 0010:0xffffffffffffffff`, `IP: (null)`: a jump to nowhere; its caller is at fault
_NOWHERE = re.compile(r"^(?:RIP: 0010:|I?P: |PC is at )(?:\[<[0-9a-f]+>\]\s+)*(?:0x[0-9a-f]+|\s*\(null\))\s*$")
_STALE = "(unreliable)"
"""Ends a frame of powerpc that is perhaps stale."""
_ACQUIRED = re.compile(rf"at: (?:\[<[0-9a-f]+>\]\s+)?(?P<name>{_NAME})(?:\+0x[0-9a-f]+|\s+[\w./-]+\.[chS]:\d+)")
START = re.compile(
    r"(?:Call [Tt]race:|Backtrace:|stack backtrace:|Call Trace$|backtrace:|\bstack dump:|Call Trace\b|^\s*backtrace \()"
)
_ENDS = re.compile(
    r"Allocated by task|Allocated:|Freed by task|Freed:|Memory state around|---\[ end |The buggy address"
    r"|Showing all locks|which lock already depends|Last potentially|Uninit was |Local variable"
    r"|Bytes? \d+.* of \d+ are|kfence-#|Second to last"
    r"|Rebooting in|Kernel Offset|Shutting down cpus|^INFO: task |NMI backtrace for|Sending NMI|Preemption disabled at"
    r"|hardirqs last|the code is fine|Mem-Info|Object at|cpu \d+ not responding|Stack:$|Last Breaking-Event"
    r"|to a SOFTIRQ-irq-unsafe lock"
)
# ` asm_sysvec_apic_timer_interrupt+0x12/0x20`, ` el1h_64_irq+0x64/0x68`; not those marked `?`
_TIMER = re.compile(r"^(?!.*\? ).*\b(?:\w*apic_timer_interrupt|el1h?(?:_64)?_irq|__irq_svc|timer_interrupt)\w*\+0x")
_GRACE = "synchronize_rcu"
"""Who waits for a grace period waits for all readers, whoever called it."""
_CHECKS = re.compile(
    r"cpu_stall|nmi_cpu_backtrace|watchdog|rcu_check_callbacks|rcu_sched_clock|dump_cpu_task|tick_|console_write"
)
_MOST_TRACES = 8
_REPORTER = "rcu_gp_kthread"
_CLONE = re.compile(r"\.(?:isra|constprop|part|cold|llvm|lto_priv|localalias)\b[.\w]*$|\.\d+$")


class Frame(NamedTuple):
    """A function in a trace; `unsure`: the kernel marked it as perhaps stale; `at`: index of its line."""

    name: str
    unsure: bool
    at: int


def plain_name(name: str) -> str:
    """Return the name of a function without the suffixes of the compiler's clones."""
    before = None
    while before != name:
        before, name = name, _CLONE.sub("", name)
    return name


def frame_of(text: str, at: int = 0) -> Frame | None:
    """Return the function of a line of a trace; None if it is no such line."""
    if (found := _FROM.match(text)) is not None:
        return Frame(plain_name(found["name"]), False, at)
    if (found := _FRAME.match(text)) is not None:
        return Frame(plain_name(found["name"]), bool(found["unsure"]) or text.rstrip().endswith(_STALE), at)
    return None


def instruction(text: str) -> str:
    """Return the function of a line with the instruction pointer, empty for others and for user space."""
    found = _AT.search(text)
    return plain_name(found["name"]) if found is not None else ""


def trace(texts: Sequence[str], start: int = 0, marked: bool = True) -> list[Frame]:
    """Return the reliable frames of the first trace in `texts` from `start` on.

    Args:
        marked: begin at a line that announces a trace; else at once.
    """
    found: list[Frame] = []
    inside = not marked
    for at in range(start, len(texts)):
        text = texts[at]
        if START.search(text):
            if inside and found:
                break
            inside = True
            continue
        if not inside:
            continue
        if (name := instruction(text)) and found:
            found.append(Frame(name, False, at))
        elif (called := _FROM.match(text)) is not None:
            # both, since a function without code for the call to return to is named as caller only
            found += [Frame(plain_name(name), False, at) for name in (called["name"], called["caller"]) if name]
        elif (frame := frame_of(text, at)) is not None:
            if not frame.unsure:
                found.append(frame)
        elif _ENDS.search(text) and found:
            break
    return found


def candidates(texts: Sequence[str], rule: StackRule, named: str) -> Iterator[list[str]]:
    """Yield lists of functions, one per place where the guilty one may be, in the order of `rule`."""
    start = 0
    if rule.after is not None:
        start = next((i for i, text in enumerate(texts) if rule.after.search(text)), 0)
    for source in rule.sources:
        if source == "line" and named:
            yield [plain_name(named)]
        elif source == "acquired":
            near = (_ACQUIRED.search(text) for text in texts[start : start + 8])
            yield [plain_name(one["name"]) for one in near if one is not None][:2]
        elif source == "rip":
            yield from _from_instruction(texts, start)
        elif source == "interrupted" and (below := _interrupted(texts)) is not None:
            yield from _from_instruction(texts, below)
            yield [frame.name for frame in trace(texts, below, marked=False)]
        elif source == "below":
            yield [frame.name for frame in trace(texts, start + 1, marked=False)]
        elif source == "trace":
            yield from _traces(texts, start, all_of_them=rule.pick == "stall")


def _from_instruction(texts: Sequence[str], start: int) -> Iterator[list[str]]:
    """Yield the function of the first instruction pointer from `start` on and those below it, if there is one."""
    at = next((i for i in range(start, len(texts)) if instruction(texts[i])), None)
    lost = next((i for i in range(start, len(texts)) if _NOWHERE.search(texts[i])), len(texts))
    if at is not None and at < lost:
        yield [instruction(texts[at]), *(frame.name for frame in trace(texts, at + 1, marked=False))]


def _interrupted(texts: Sequence[str]) -> int | None:
    """Return the index of the line below the first entry of the timer's interrupt, where the interrupted loop is."""
    found = False
    for at, text in enumerate(texts):
        if _TIMER.search(text):
            found = True
        elif found:
            return at
    return None


def _traces(texts: Sequence[str], start: int, all_of_them: bool) -> Iterator[list[str]]:
    """Yield the functions of the first trace, or of the first ones, but not of the thread that reports a stall."""
    found = trace(texts, start) or trace(texts, start, marked=False)
    for _ in range(_MOST_TRACES if all_of_them else 1):
        if not any(frame.name == _REPORTER for frame in found) and not (all_of_them and _switched(found)):
            yield [frame.name for frame in found]
        if not found or not (found := trace(texts, found[-1].at + 1)):
            return


def _switched(found: Sequence[Frame]) -> bool:
    """Return whether the task of a trace had left its CPU, so that it is not what keeps a CPU busy."""
    return bool(found) and plain_name(found[0].name) == "__schedule"


def guilty(texts: Sequence[str], rule: StackRule, named: str, rules: Rules) -> str:
    """Return the function that a report is named after, by its lines `texts`; empty if none can be told."""
    skip = [rules.skip[name] for name in (("always",) if rule.always else ()) + rule.skip]
    for names in candidates(texts, rule, named):
        if rule.pick == "stall":
            found = _stalled(names, rules)
        else:
            found = next((name for name in names if not any(one.match(name) for one in skip)), "")
        if rule.pick == "wait":
            found = next((name for name in names if names_of(name, rules)[0] == _GRACE), found)
        if found:
            return found
    return plain_name(named) if "line" in rule.sources else ""


def _stalled(names: Sequence[str], rules: Rules) -> str:
    """Return the function that a loop belongs to: what a dispatcher called last, not where the loop was interrupted."""
    entered = [i for i, name in enumerate(names[:-1]) if rules.entry.search(name)]
    if entered and any(_CHECKS.search(name) for name in names[: entered[0]]):
        first = entered[0]  # above it, the check that found the stall
        while first + 1 in entered:
            first += 1
        names = names[first + 1 :]
    before = ""
    for name in names:
        if "smp_call_function" in name:
            return name
        if rules.dispatch.search(name):
            return before or name
        before = name
    return ""


def names_of(name: str, rules: Rules) -> list[str]:
    """Return the names of a function, the one for titles first: it and the ways it is written elsewhere."""
    for pattern, new in rules.canonical:
        if (found := pattern.search(name)) is not None:
            return list(dict.fromkeys([*(found.expand(one) for one in reversed(new)), name]))
    return [name]
