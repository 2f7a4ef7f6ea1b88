"""Parse the head of a line of ftrace's text: thread, CPU and instant; and where the event begins.

              <idle>-0     [001] d.h.. 15499.898405: sched_waking: comm=kworker/1:1 pid=40 prio=120 target_cpu=001
    TIMER-1-97     (   97) [000] ..... 15499.898412345: sys_enter: NR 232 (4, 7ffd0, 20, ffffffff, 0, 8)
            train-4711  1dNh2 15499898405us : sched_switch: prev_comm=train prev_pid=4711 prev_prio=120 ...
             train  4711 [001] 15499.898405:       sched:sched_switch: train:4711 [120] S ==> swapper/1:0 [120]

The last form is that of ``perf script`` for tracepoints, whose group precedes the name of the event.
Heads of one file have few layouts: the kernel and trace-cmd pad the command name to 16 bytes and the numbers to fixed
widths. So a layout is learned from one line, and all lines that have it are parsed at once: eight bytes at a time are
taken as an integer, punctuation is compared under a mask, and digits become numbers by three multiplications (the
method of D. Lemire, "Quickly parsing eight digits", 2018). Since the name's place is fixed, its content cannot mislead.
Other lines (white space changed by an editor, the formats with latencies) are matched by a regular expression.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import polars as pl

_NAME = 16  # TASK_COMM_LEN: position of the dash after the command name
_LAYOUTS = 12  # tried per block
_LAST = 9_000_000_000  # largest second whose nanoseconds fit into 64 bits
_LONGEST = 1 << 16  # bytes of a line that are examined: the kernel's own limit is a page

HEADS = pl.Schema(
    {
        # the line's number in its block
        "row": pl.get_index_type(),
        "at_ns": pl.Int64,
        "cpu": pl.Int32,
        "tid": pl.Int32,
        # the third flag as a character code: in which context; 0 without flags
        "context": pl.UInt8,
        # the event's name and all that follows; its first eight bytes as a little-endian integer
        "event": pl.String,
        "start": pl.UInt64,
    }
)
THREADS = pl.Schema(
    {"row": pl.get_index_type(), "at_ns": pl.Int64, "tid": pl.Int32, "comm": pl.String, "pid": pl.Int32}
)
"""Threads named in heads: the name and the thread group (-1: unknown) were looked up when the trace was read out, so
they are the same in all of it."""
_AFTER_NAME = (
    r"-(?P<tid>\d{1,8})(?: +\( *(?P<tgid>\d{1,8}|-+)\))? +\[(?P<cpu>\d{1,5})\] +"
    r"(?:(?P<flags>[^\d\s]\S{2,7}) +)?(?P<sec>\d{1,15})(?:\.(?P<frac>\d{1,18}))?: +"
)
_FIXED = re.compile((r"(?s)^.{16}" + _AFTER_NAME + r"(?=\S)").encode())
_LOOSE = r"^\s*(?P<comm>.*?)" + _AFTER_NAME + r"(?P<event>\S.*)$"
_DELAYS = (
    r"^\s*(?P<comm>.*?)-(?P<tid>\d{1,8}) +(?P<cpu>\d{1,5})(?P<flags>[^\d\s]\S{2,7})? +(?P<us>\d{1,14})us.?: +"
    r"(?P<event>\S.*)$"
)
_VERBOSE = (
    r"^\s*(?P<comm>.*?) +(?P<tid>\d{1,8}) +(?P<cpu>\d{1,5}) +\d+ [0-9a-f]{8} [0-9a-f]{8} \[(?P<hex>[0-9a-f]{1,13})\] "
    r"\d+\.\d+ms \([+-]?\d+\.\d+ms\): +(?P<event>\S.*)$"
)
# A thread that has ended is -1. Of a tracepoint only: samples of counters have no underscore (`cpu-clock:pppH:`).
_PERF = (
    r"^\s*(?P<comm>.*?) +(?:(?P<tgid>\d{1,8})/ *)?(?P<tid>-1|\d{1,8}) +\[(?P<cpu>\d{1,5})\] +"
    r"(?P<sec>\d{1,15})\.(?P<frac>\d{1,9}): +(?:\d{1,20} +)?[a-z]\w*:(?P<event>[a-z]\w*_\w*:.*)$"
)
_LINE = pl.col("line")


Span = tuple[int, int]


@dataclass(frozen=True)
class Heads:
    """`events` (`HEADS`), their `threads` (`THREADS`), and the lines that are no events (`row`, `line`).

    `seconds`: whether the tracer printed fractions of time, so that `at_ns` is nanoseconds; else its own units.
    """

    events: pl.DataFrame
    threads: pl.DataFrame
    rest: pl.DataFrame
    seconds: bool = True


@dataclass(frozen=True)
class Layout:
    """Byte ranges of the parts of a head: first byte, and the byte after the last. `event`: where its name begins."""

    tid: Span
    tgid: Span | None
    cpu: Span
    flags: Span | None
    seconds: Span
    fraction: Span | None
    event: int


def heads(lines: pl.DataFrame) -> Heads:
    """Read the heads of `lines` (`row`, `line`), sorted by row.

    A trace is either in seconds or not: the few lines in the other form are no events.
    """
    parts, rest, known = [], lines, set[Layout]()
    while len(known) < _LAYOUTS and (layout := _learned(rest, known)) is not None:
        known.add(layout)
        parts.append(_read(rest, layout))
        rest = parts[-1].rest
    for pattern in (_PERF, _LOOSE, _DELAYS, _VERBOSE):
        if not rest.is_empty():
            parts += _matched(rest, pattern)
            rest = parts[-1].rest
    parts = [part for part in parts if len(part.events)]
    seconds = sum(len(part.events) if part.seconds else -len(part.events) for part in parts) >= 0
    strange = [part.events.select("row") for part in parts if part.seconds != seconds]
    parts = [part for part in parts if part.seconds == seconds]
    if strange:
        rest = pl.concat([rest, lines.join(pl.concat(strange), on="row")]).sort("row")
    if len(parts) == 1:
        return Heads(parts[0].events, parts[0].threads, rest, seconds)
    events = pl.concat([HEADS.to_frame(), *(part.events for part in parts)]).sort("row")
    threads = pl.concat([THREADS.to_frame(), *(part.threads for part in parts)]).sort("row")
    return Heads(events, threads.unique("tid", keep="first", maintain_order=True), rest, seconds)


def _learned(lines: pl.DataFrame, known: set[Layout]) -> Layout | None:
    """Return a new layout of one of the lines: the first and some others are tried."""
    for begin, step in ((0, 1), (40, max(1, len(lines) // 40))):
        for line in lines.get_column("line")[begin : begin + 40 * step : step]:
            layout = _layout(line[:200].encode()) if line else None
            if layout is not None and layout not in known:
                return layout
    return None


def _layout(line: bytes) -> Layout | None:
    found = _FIXED.match(line)
    if found is None:
        return None
    tgid, flags, fraction = ((found.span(name) if found[name] else None) for name in ("tgid", "flags", "frac"))
    cpu, tid_end = found.span("cpu"), found.end("tid")
    if tgid is not None:
        tgid = (line.index(b"(", tid_end) + 1, tgid[1])  # the parenthesis precedes the padding
    seconds = flags[1] if flags else cpu[1] + 1
    layout = Layout(
        tid=(_NAME + 1, (tgid or cpu)[0] - 2),
        tgid=tgid,
        cpu=cpu,
        flags=flags,
        seconds=(seconds + 1, found.end("sec")),
        fraction=fraction,
        event=found.end(),
    )
    short = layout.tid[1] - layout.tid[0] <= 8 and layout.seconds[1] - layout.seconds[0] <= 16
    # numbers are read by the eight or sixteen bytes that end with them, from the dash on
    late = layout.cpu[1] - 8 >= _NAME and layout.seconds[1] - 16 >= _NAME
    return layout if short and late and layout.event <= 160 else None


_ONES = 0x0101010101010101
_ALL = 0xFF * _ONES
_POWERS = pl.Series([10**exponent for exponent in range(9)], dtype=pl.UInt64)


class _Words:
    """The bytes of lines from the dash on, as little-endian integers in columns ``0``, ``1``, ..."""

    def __init__(self, end: int) -> None:
        self.count = -(-(end - _NAME) // 8)

    def load(self, lines: pl.DataFrame) -> pl.DataFrame:
        """Prepare columns; lines that are too short become nulls."""
        kind = pl.Array(pl.UInt64, self.count)
        bytes_ = _LINE.cast(pl.Binary).bin.slice(_NAME, 8 * self.count).bin.reinterpret(dtype=kind)
        words = lines.select(bytes_.alias("words"))
        return words.select(pl.col("words").arr.get(index).alias(str(index)) for index in range(self.count))

    def at(self, begin: int) -> pl.Expr:
        """Return the eight bytes from `begin` on, little-endian; bytes outside of the columns are 0."""
        index, shift = divmod(begin - _NAME, 8)
        word = pl.col(str(index))
        if not shift:
            return word
        low = word // (1 << 8 * shift)
        return low + pl.col(str(index + 1)) * (1 << 64 - 8 * shift) if index + 1 < self.count else low

    def text(self, begin: int, skip: int, width: int) -> pl.Expr:
        """Return `width` of the eight bytes from `begin`, after `skip`; spaces and all other bytes as the digit 0."""
        keep = ((1 << 8 * width) - 1) << 8 * skip
        if keep == _ALL:
            return self.at(begin) | 0x10 * _ONES
        return ((self.at(begin) | 0x10 * _ONES) & keep) | (0x30 * _ONES & ~keep)

    def right(self, span: Span) -> pl.Expr:
        """Return the text of the last eight bytes of a span, or of all if it has fewer."""
        width = min(8, span[1] - span[0])
        return self.text(span[1] - 8, 8 - width, width)

    def left(self, span: Span) -> pl.Expr:
        """Return the text of the first eight bytes of a span, or of all if it has fewer."""
        return self.text(span[0], 0, min(8, span[1] - span[0]))


def _digits(text: pl.Expr) -> pl.Expr:
    """Return whether eight characters are digits: their high half is 3, and stays it when 6 is added."""
    high = 0xF0 * _ONES
    return ((text & high) == 0x30 * _ONES) & (((text + 0x06 * _ONES) & high) == 0x30 * _ONES)


def _number(text: pl.Expr) -> pl.Expr:
    """Return the number of eight digits: neighbours are joined to pairs, pairs to fours, fours to one number."""
    pairs = (text & 0x0F * _ONES) * 2561 // 256 & 0x00FF00FF00FF00FF
    fours = pairs * 6553601 // 65536 & 0x0000FFFF0000FFFF
    return fours * 42949672960001 // (1 << 32)


@lru_cache(maxsize=64)
def _stages(layout: Layout) -> tuple[_Words, tuple[list[pl.Expr], ...]]:
    """Return what to load for a layout, and what to compute from it, one selection after the other."""
    tid, seconds, fraction, flags = layout.tid, layout.seconds, layout.fraction, layout.flags
    words = _Words(layout.event + 8)
    texts = {"tid": words.left(tid), "cpu": words.right(layout.cpu), "second": words.right(seconds)}
    if seconds[1] - seconds[0] > 8:
        texts["more"] = words.right((seconds[0], seconds[1] - 8))
    others = {
        "digits": (words.at(tid[0]) & 0x10 * _ONES & ((1 << 8 * (tid[1] - tid[0])) - 1)).bitwise_count_ones(),
        "start": words.at(layout.event),
        "context": (words.at(flags[0] + 2) & 0xFF if flags else pl.lit(0, pl.UInt64)).cast(pl.UInt8),
        "ninth": pl.lit(0, pl.UInt64),
        "good": pl.all_horizontal(
            (pl.col(str(index)) & mask) == value
            for index, (mask, value) in enumerate(_punctuation(layout, words.count))
            if mask
        ),
    }
    if fraction:
        texts["fraction"] = words.left(fraction)
        if fraction[1] - fraction[0] > 8:
            others["ninth"] = words.at(fraction[0] + 8) & 0x0F
    numbers = [pl.col(name) for name in texts]
    at = pl.col("second") + (pl.col("more") * 10**8 if "more" in texts else 0)
    good = pl.col("good") & (pl.col("whole") * pl.col("scale") == pl.col("tid"))
    good &= at <= (_LAST if fraction else 1 << 62)
    if fraction:
        at = at * 10**9 + pl.col("fraction") * 10 + pl.col("ninth")
    scale = pl.lit(_POWERS).gather(8 - pl.col("digits"))
    return words, (
        [text.alias(name) for name, text in {**texts, **others}.items()],
        [
            *(_number(number) for number in numbers),
            *map(pl.col, ("context", "start", "ninth")),
            scale.alias("scale"),
            pl.all_horizontal("good", *(_digits(number) for number in numbers)),
        ],
        [pl.all(), (pl.col("tid") // pl.col("scale")).alias("whole")],
        [
            at.cast(pl.Int64, strict=False).alias("at_ns"),  # invalid in lines with another layout
            pl.col("cpu").cast(pl.Int32, strict=False),
            pl.col("whole").cast(pl.Int32, strict=False).alias("tid"),
            pl.col("context"),
            pl.col("start"),
            good.fill_null(False).alias("good"),
        ],
    )


def _read(lines: pl.DataFrame, layout: Layout) -> Heads:
    words, stages = _stages(layout)
    loaded = words.load(lines)
    for stage in stages:
        loaded = loaded.select(stage)
    every = lines.hstack(loaded)
    good = every.get_column("good")
    part = every if good.all() else every.filter(good)
    threads = part.filter(pl.col("tid").is_first_distinct()).select(
        "row", "at_ns", "tid", comm=_slice((0, _NAME)), pid=_slice(layout.tgid) if layout.tgid else pl.lit("-")
    )
    rest = lines.filter(~good) if len(part) < len(lines) else lines.clear()
    event = _LINE.cast(pl.Binary).bin.slice(layout.event).cast(pl.String).alias("event")
    events = part.select("row", "at_ns", "cpu", "tid", "context", event, "start")
    return Heads(events, _named(threads), rest, layout.fraction is not None)


def _slice(span: Span) -> pl.Expr:
    text = _LINE.cast(pl.Binary).bin.slice(span[0], span[1] - span[0]).cast(pl.String, strict=False)
    return text.str.strip_chars(" ")


def _punctuation(layout: Layout, count: int) -> list[tuple[int, int]]:
    marks = {_NAME: "-", layout.tid[1]: " ", layout.cpu[0] - 1: "[", layout.cpu[1]: "]", layout.cpu[1] + 1: " "}
    marks |= {layout.seconds[0] - 1: " ", layout.event - 1: " "}
    if layout.tgid:
        marks |= {layout.tgid[0] - 1: "(", layout.tgid[1]: ")"}
    if layout.fraction:
        marks |= {layout.seconds[1]: "."}
    marks |= {(layout.fraction or layout.seconds)[1]: ":"}
    words = [(0, 0)] * count
    for place, mark in marks.items():
        index, byte = divmod(place - _NAME, 8)
        words[index] = (words[index][0] | 0xFF << 8 * byte, words[index][1] | ord(mark) << 8 * byte)
    return words


def _matched(lines: pl.DataFrame, pattern: str) -> list[Heads]:
    """Match lines of any tracer's length by a regular expression; return those in seconds, and those not."""
    short = pl.col("line").str.len_bytes() <= _LONGEST
    groups = lines.with_columns(pl.when(short).then(_LINE.str.extract_groups(pattern)).alias("groups")).unnest("groups")
    groups = groups.with_columns(pl.lit(None, pl.String).alias(name) for name in _GROUPS if name not in groups.columns)
    nanoseconds = pl.col("frac").str.slice(0, 9).str.pad_end(9, "0").cast(pl.Int64, strict=False)
    microseconds = pl.coalesce(_integer("us"), pl.col("hex").str.to_integer(base=16, strict=False))
    second = pl.when(_integer("sec") <= _LAST).then(_integer("sec"))
    whole = pl.col("frac").is_null() & pl.col("sec").is_not_null()
    at = pl.when(whole).then(_integer("sec")).otherwise(pl.coalesce(second * 10**9 + nanoseconds, microseconds * 1000))
    groups = groups.with_columns(at_ns=at)
    matched, rest = (groups.filter(test) for test in (pl.col("at_ns").is_not_null(), pl.col("at_ns").is_null()))
    matched = matched.with_columns(
        tid=_integer("tid"),
        cpu=_integer("cpu"),
        context=_bytes(pl.col("flags").cast(pl.Binary).bin.slice(2, 1), pl.UInt8),
        start=_bytes(pl.col("event").str.pad_end(8, "\0").cast(pl.Binary).bin.slice(0, 8), pl.UInt64),
    )
    threads = matched.select("row", "at_ns", "tid", "comm", pid="tgid").filter(
        pl.col("tid").is_first_distinct() & (pl.col("tid") >= 0)
    )
    return [
        Heads(_typed(matched.filter(test)), _named(threads), rest.select("row", "line"), seconds)
        for test, seconds in ((whole, False), (~whole, True))
    ]


_GROUPS = ("comm", "tgid", "flags", "sec", "frac", "us", "hex")


def _integer(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Int64, strict=False)


def _bytes(text: pl.Expr, kind: type[pl.DataType]) -> pl.Expr:
    return text.bin.reinterpret(dtype=kind).fill_null(0)


def _typed(events: pl.DataFrame) -> pl.DataFrame:
    return events.select(HEADS.names()).cast(HEADS)


def _named(threads: pl.DataFrame) -> pl.DataFrame:
    pid = pl.col("pid").cast(pl.Int32, strict=False).fill_null(-1)
    return threads.with_columns(pid=pid).select(THREADS.names()).cast(THREADS)
