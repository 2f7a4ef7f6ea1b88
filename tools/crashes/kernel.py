"""Read a crash report of the kernel out of the lines of a log. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from whystall.tools.collect.kernel_log import OomKill, kills
from whystall.tools.contract.text import clean
from whystall.tools.crashes.details import Details, details
from whystall.tools.crashes.rules import Form, ReportRule, Rules
from whystall.tools.crashes.stack import START, frame_of, guilty, instruction, names_of, trace
from whystall.tools.node.log_lines import LogLine, Origin

UNKNOWN = "corrupted"
"""What a title has in place of a function that cannot be told."""
_TITLE = 200
_FOLLOWING = 15
"""Lines after the heading of a trace, one of which must be a frame."""
_OOM, _KILLED = "oom", ": Killed process "
_UNKNOWN = "an unknown process"
_FRAMES = 16
_BORROWED = 150
# reports whose lines all look alike
_CONTIGUOUS = (re.compile(r"\[Hardware Error\]|^EDAC |^mce: "),)
# lines that belong to a report, whatever is printed after it
_PART = re.compile(
    r"\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?|^\s*(?:CPU|PID|RIP|EIP|RSP|RAX|RBP|R\d\d|FS|CS|CR2|DR\d|Code|Call Trace"
    r"|Hardware name|Modules linked in|Workqueue|task|Oops|pc|lr|sp|NIP|LR|GPR\d*|x\d+|r\d+|Process|Stack|Tainted"
    r"|Not tainted)\s*:|^=====|^-----|</?[A-Z]+>|Kernel panic|---\[ end|Memory state|^>?\s?[0-9a-f]{8,16}: "
    r"|locks? held|: Killed process|\[Hardware Error\]|oom"
)
_KIND = re.compile(r"\b(WARNING|INFO|BUG)\b")
_OTHER_REPORT = "FAULT_INJECTION: forcing a failure"
_INTERLEAVED = "interleaved with another report"
_NEAR, _TOP = 40, 6
_CLONE_NUMBER = re.compile(r"\.\d+\b")
_PANIC = "Kernel panic - not syncing"
_STALL = re.compile(r"INFO: rcu.* detected .*stall|INFO: rcu.*self-detected")
"""Of the CPU that stalls and of one that notices it: the same stall."""
_LAST_RAN = "Stack dump where RCU GP kthread last ran"
"""Begins the end of a stall's report: of a CPU that need not stall."""
_OTHER_CPU = re.compile(r"Sending NMI|NMI backtrace for|backtrace for cpu|rcu: .*(?:blocking|Stack dump)")
_MASKS = (
    (re.compile(r"\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*\d)[0-9a-f]{6,16}\b"), "ADDR"),
    (re.compile(r"(?<=\.c:)\d+"), "LINE"),
    (re.compile(r"([a-zA-Z_][\w.]*)\+(?:0x[0-9a-f]+|ADDR)(?:/(?:0x[0-9a-f]+|ADDR))?"), r"\1"),
    (re.compile(r"\bCPU#\d+"), "CPU"),
    (re.compile(r"(?<![\w.])\d+(?![\w.])|(?<==)\d+"), "NUM"),
)


@dataclass(frozen=True)
class KernelReport:
    """A crash report. `start`, `end`: offsets in bytes; `why`: why it is `corrupted`; `panicked`: the kernel stopped
    with it; `frames`: reliable functions of its first trace, innermost first; `kills`: processes that it killed for
    lack of memory; `allocator`: the line of who asked for that memory; `lines`: offsets of all its lines; `module`: of
    the function, empty if it is of the kernel itself or its lines do not state one."""

    start: int
    end: int
    title: str
    also: tuple[str, ...]
    kind: str
    function: str
    why: str
    panicked: bool
    time_s: float | None
    clock: str
    host: str
    origin: Origin
    details: Details
    lines: frozenset[int] = frozenset()
    frames: tuple[str, ...] = ()
    kills: tuple[OomKill, ...] = ()
    allocator: str = ""
    module: str = ""

    @property
    def corrupted(self) -> bool:
        """Return whether the report is cut off, interleaved or lacks its trace."""
        return bool(self.why)


def beginning(line: LogLine, rules: Rules) -> tuple[ReportRule, int] | None:
    """Return the rule of a line that begins a report, and where in its text; None for other lines."""
    for rule in rules.reports:
        at = line.text.find(rule.begins)
        if at >= 0 and (rule.unless is None or rule.unless.search(line.text) is None):
            stamped = line.stamped or line.clock or line.origin == "kernel"
            return (rule, at) if stamped or not rule.stamped else None
    return None


def report(window: Iterable[LogLine], rules: Rules) -> KernelReport | None:
    """Return the report that begins with the first line of `window`; None if it begins none.

    Args:
        window: the line and those after it, of all writers; read no further than the report goes.
    """
    following = iter(window)
    first = next(following, None)
    found = beginning(first, rules) if first is not None else None
    if first is None or found is None or first.origin == "user":
        return None
    rule, _ = found
    own, more = _own_lines(first, following, rules)
    texts = [line.text for line in own]
    form, groups = _form(rule, texts)
    killed = tuple(kills((0, text.encode("utf-8", "replace")) for text in texts)) if form.kind == _OOM else ()
    if form.kind == _OOM:  # who asked for memory last need not be whom the kernel killed
        groups["task"] = killed[0].comm if killed else groups.get("task") or _UNKNOWN
    title, also, function, why = _named(form, groups, [*texts, *(line.text for line in more)], rules)
    last = first if form.alone else next(line for line in reversed(own) if line is first or _PART.search(line.text))
    known = details(texts)
    if killed:
        known = known._replace(comm=killed[0].comm, pid=killed[0].pid)
    return KernelReport(
        start=first.start,
        end=last.end,
        title=title,
        also=also,
        kind=form.kind,
        function=function,
        why=why,
        panicked=any(_PANIC in text for text in texts),
        time_s=first.time_s,
        clock=first.clock,
        host=first.host,
        origin=first.origin,
        details=known,
        lines=frozenset(line.start for line in own),
        frames=tuple(frame.name for frame in trace(texts)[:_FRAMES]) if form.stack is not None else (),
        kills=killed,
        module=_module(function, texts),
        allocator=next((clean(text.strip(), _TITLE) for text in texts if "invoked oom-killer" in text), ""),
    )


def _module(function: str, texts: Sequence[str]) -> str:
    """Return the module that the lines of a trace name behind `function`, empty if none does::

    RIP: 0010:mlx5e_handle_rx_cqe+0x9c/0x260 [mlx5_core]
    """
    if not function:
        return ""
    frame = rf"(?<![\w.]){re.escape(function)}(?:\.[\w.]+)?\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?"
    named = re.compile(rf"{frame} \[(\w[\w-]{{0,63}})")
    return next((found[1] for text in texts if (found := named.search(text)) is not None), "")


def _own_lines(first: LogLine, following: Iterator[LogLine], rules: Rules) -> tuple[list[LogLine], list[LogLine]]:
    """Return the lines of the report: of its writer, up to the next report.

    The second list is empty unless those name no function: then it has what the same context prints next, since its
    trace is of the same place.
    """
    own = [first]
    others = False
    sort = next((one for one in _CONTIGUOUS if one.search(first.text)), None)
    for line in following:
        if _KILLED in own[-1].text:
            break  # the kill is the end; the next lines may be of another one
        if _LAST_RAN in line.text:
            break
        if sort is not None and not sort.search(line.text):
            continue
        if (first.stamped and not line.stamped) or line.origin == "user":
            continue  # of a program that writes to the same console
        others = others or _OTHER_CPU.search(line.text) is not None
        if first.caller and line.caller and line.caller != first.caller and not (others and line.caller[0] == "C"):
            continue
        begun = beginning(line, rules)
        if begun is not None and all(form.alone for form in begun[0].forms):
            continue  # a report of one line, printed into this one
        if (
            begun is not None
            and not begun[0].continues
            and not (_STALL.search(first.text) and _STALL.search(line.text))
        ):
            if first.caller and line.caller == first.caller and _frameless(own):
                return own, [one for one in itertools.islice(following, _BORROWED) if one.caller == first.caller]
            break
        own.append(line)
    return own, []


def _frameless(own: Sequence[LogLine]) -> bool:
    """Return whether the lines of a report name no function."""
    return not any(frame_of(line.text) or instruction(line.text) for line in own)


def _form(rule: ReportRule, texts: Sequence[str]) -> tuple[Form, dict[str, str]]:
    kind = _KIND.search(texts[0])
    known = {"kind": kind[1] if kind else "WARNING"}
    for form in rule.forms:
        found = form.line.search(texts[0])
        if found is None:
            continue
        groups = {name: text or "" for name, text in found.groupdict().items()}
        if form.later is not None:
            near = (form.later.search(text) for text in texts[1 : 1 + form.reach])
            later = next((one for one in near if one is not None), None)
            if later is None:
                continue
            groups |= {name: text or "" for name, text in later.groupdict().items()}
        return form, known | groups
    return rule.forms[-1], known | {"rest": texts[0][texts[0].find(rule.begins) :]}


def _named(
    form: Form, groups: dict[str, str], texts: Sequence[str], rules: Rules
) -> tuple[str, tuple[str, ...], str, str]:
    """Return the title, other titles, the function, and why the report is corrupted (empty: it is not)."""
    why = _broken(texts) if form.stack is not None else ""
    function = ""
    if form.stack is not None and why != _INTERLEAVED:
        function = guilty(texts, form.stack, groups.get("func", ""), rules)
        if not function:
            why = why or "no function in its trace"
    names = names_of(function, rules) if function else [UNKNOWN]
    texts_of = [_filled(one, groups, name) for name in names for one in (form.title, *form.also)]
    title = texts_of[0]
    return title, tuple(dict.fromkeys(one for one in texts_of[1:] if one != title)), function, why


def _filled(template: str, groups: dict[str, str], frame: str) -> str:
    known = dict.fromkeys(("what", "way", "rest", "func", "func2", "task", "kind"), "") | groups
    known["func"] = _CLONE_NUMBER.sub(".NUM", known["func"].partition("+")[0])
    if "rest" in groups:
        known["rest"] = masked(known["rest"])
    return clean(template.format(**known, frame=frame).strip(), _TITLE)


def masked(text: str) -> str:
    """Return `text` with what differs from crash to crash (addresses, numbers, line numbers) replaced."""
    for pattern, new in _MASKS:
        text = pattern.sub(new, text)
    return text


def _broken(texts: Sequence[str]) -> str:
    """Return why the traces of a report are not whole; empty if they are."""
    if any(_OTHER_REPORT in text for text in texts[1:_NEAR]) or any(
        frame.name.startswith("should_fail") for frame in trace(texts)[:_TOP]
    ):
        return _INTERLEAVED
    heads = [at for at, text in enumerate(texts) if START.search(text)]
    for at in heads:
        if not any(frame_of(text) for text in texts[at + 1 : at + 1 + _FOLLOWING]):
            return "no function in its trace"
    return "" if heads or any(frame_of(text) for text in texts) else "no trace"
