"""Read the numbers in English and Chinese text, with their units. Pure.

Digits with separators and scales, number words, Chinese numerals, fractions, and words for a magnitude ("hundreds of
milliseconds", "most of its time"). Each is read as the range of values that it allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

_TIMES = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds", "纳秒"), 1e-9),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microsecond", "microseconds", "微秒"), 1e-6),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds", "毫秒"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds", "秒钟", "秒"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes", "分钟"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours", "小时"), 3600.0),
    **dict.fromkeys(("day", "days", "天"), 86400.0),
}
_SIZES = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "字": 0, "兆": 2}
_SCALES = {"k": 1e3, "thousand": 1e3, "million": 1e6, "billion": 1e9, "百万": 1e6, "万": 1e4, "亿": 1e8, "千": 1e3}

_DIGITS = r"\d{1,3}(?: \d{3}){2,}(?![\d ]*\d)|\d{1,3}(?:[,'\u2009\u202f]\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+"
_NUMBER = rf"(?:{_DIGITS})(?:\s?[x×*]\s?10\^?[-−]?\d+|e[-+−]?\d+)?"
_SIZE = r"(?:[kmgt]i?b|bytes?|b|(?:kilo|mega|giga|tera|kibi|mebi|gibi)bytes?|兆字节|字节|兆)"
_PER_S = r"\s?(?:/|per |an? |each |every |每)\s?(?:seconds?|sec|s|秒)"
_UNIT = (
    r"(?P<pct>%|percent(?:age points?)?|per cent|pct|个?百分点)"
    rf"|(?P<byterate>{_SIZE}{_PER_S})"
    rf"|(?P<rate>(?:times|calls|requests|reads|writes|pages|faults|次|个?请求|页)?{_PER_S}|hz|iops)"
    rf"|(?P<size>{_SIZE})"
    r"|(?P<time>" + "|".join(sorted(_TIMES, key=len, reverse=True)) + r")"
    r"|(?P<ratio>[x×]|fold|倍)|(?P<cpus>(?:cpu|core)s?|个?\s?cpu|个?核)"
)
_WRITTEN = re.compile(
    rf"(?<![A-Za-z0-9_.])(?P<sign>[-−+])?(?P<number>{_NUMBER})"
    r"(?:\s?(?P<scale>(?:k|thousand|million|billion)(?![a-z])|百万|万|亿|千))?"
    rf"(?:[ -]?(?:{_UNIT}))?(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
_RANGE = re.compile(r"\s?(?:-|–|—|~|to|and|(?:out )?of(?: the)?|到|至)\s?", re.IGNORECASE)
_EACH_S = re.compile(r"每秒(?:钟)?[^\s\d，。,]{0,6}\s?$")

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
)
_WORDS = {word: float(i) for i, word in enumerate(f"{_ONES} eighteen nineteen".split())}
_WORDS |= {
    w: 10.0 * i for i, w in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)
}
_MULTIPLES = {"hundred": 100.0, "thousand": 1000.0, "million": 1e6, "dozen": 12.0}
_WORD = "|".join(sorted((*_WORDS, *_MULTIPLES), key=len, reverse=True))
_IN_WORDS = re.compile(rf"(?<![A-Za-z0-9_])((?:{_WORD})(?:[ -](?:{_WORD}))*)(?:[ -](?:{_UNIT}))?(?![A-Za-z0-9_])", re.I)
_ZH_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_ZH_TENS = {"十": 10, "百": 100, "千": 1000}
_ZH = "[零〇一二两三四五六七八九十百千万亿]"
_ZH_PERCENT = re.compile(rf"百分之({_ZH}+|\d+(?:\.\d+)?)")
_ZH_PARTS = re.compile(r"([二三四五六七八九十])分之([一二三四五六七八九])")
_ZH_TENTHS = re.compile(r"([一二三四五六七八九])成(?![为了本功员立果分])")
_ZH_COUNTED = "次|个|轮|步|遍|回|笔|条|台|块|名|项|种|件|类|段|份"
_ZH_NUMBER = re.compile(
    rf"(?<!第)(?<![零〇一二两三四五六七八九十百千万亿数几])({_ZH}+)\s?(?:(?P<time>纳秒|微秒|毫秒|秒钟|秒|分钟|小时|天)|"
    rf"(?P<size>兆字节|兆|字节)|(?P<ratio>倍)|(?P<cpus>个核|核)|(?P<counted>{_ZH_COUNTED}))"
)
_PARTS = {"third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9}
_PARTS |= {"tenth": 10}
_FRACTION = re.compile(
    rf"(?<![A-Za-z0-9_])(?P<over>an?|one|two|three|four|five|six|seven|eight|nine)[- ](?P<under>{'|'.join(_PARTS)})s?"
    r"(?![A-Za-z0-9_])(?! (?:finding|time|thread|process|call|rank|step|window|measurement|way)s?\b)",
    re.I,
)
_OF_A = re.compile(r" of an? (millisecond|second|minute|hour)\b", re.I)
_HALF = re.compile(r"\bhalf\b(?= (?:of|the|its|their|that)\b)|一半", re.I)
_HALF_A = re.compile(r"\bhalf an? (millisecond|second|minute|hour)\b|半(秒钟|秒|分钟|小时|天)", re.I)
# An article that means one ("takes a second"), unlike in "a second, independent way".
_A_UNIT = re.compile(
    r"\b(?:for|takes?|took|lasts?|lasting|about|almost|nearly|over|than|around|roughly|every|full|entire|whole|each) "
    r"(?:an? )?(millisecond|second|minute|hour|day)\b(?!,| (?:\w+ )?(?:mechanism|way|measurement|finding|thread|"
    r"process))",
    re.I,
)
_MANY = re.compile(
    r"\b(?:(?P<of>tens|dozens|hundreds|thousands|millions) of|(?P<for>many|several|for|takes?|lasts?|lasting|taking))"
    r" (?P<unit>microseconds|milliseconds|seconds|minutes|hours|days)\b"
    r"|\b(?P<counted>tens|dozens|hundreds|thousands|millions) of\b"
    r"|[数几上](?P<zh>十|百|千|万|百万)(?P<zhunit>纳秒|微秒|毫秒|秒|分钟|小时|次|个)"
    r"|(?:数|几|好几|多)(?P<few>毫秒|秒钟|秒|分钟|小时|天)",
    re.I,
)
_MAGNITUDES = {"tens": 10.0, "dozens": 12.0, "hundreds": 100.0, "thousands": 1e3, "millions": 1e6}
_MAGNITUDES |= {"十": 10.0, "百": 100.0, "千": 1e3, "万": 1e4, "百万": 1e6}
_MOST = re.compile(
    r"\b(?:most|the majority|the bulk|the lion's share) of (?:its|the|their|this|that)(?: \w+)? ?(?:time|window)\b|"
    r"\bmost of the time\b|\bmostly(?= (?:blocked|waiting|runnable|idle|asleep|off|in|stuck))|"
    r"[大多]部分时间|大半时间|多数时间",
    re.I,
)
_ALL = re.compile(
    r"\b(?:(?:nearly|almost|practically|virtually) )?all (?:of )?(?:its|the|their)(?: \w+)? ?(?:time|window)\b|"
    r"\bthe (?:whole|entire) (?:time|window)\b|\ball the time\b|\b(?:constantly|permanently|continuously|always)\b|"
    r"几乎(?:全部|所有)(?:的)?时间|全部时间|整个窗口|始终",
    re.I,
)
_HEDGED = re.compile(
    r"(?:\b(?:about|around|roughly|approximately|approx\.?|some|circa|nearly|almost|close to)|~|≈|约|大约|"
    r"大概|近|将近|接近|差不多)\s*(?:an? )?$",
    re.I,
)
_HEDGED_AFTER = re.compile(r"^\s?(?:or so\b|左右|上下)", re.I)
_MORE = re.compile(
    r"(?:\b(?:more than|over|above|at least|exceed(?:s|ing)?|greater than|no less than|well over)|>=?|≥|"
    r"超过|高于|大于|至少|"
    r"不少于|多于)\s*(?:an? )?$",
    re.I,
)
_MORE_AFTER = re.compile(r"^\s?(?:以上|多(?!个)|or more\b)", re.I)
_LESS = re.compile(
    r"(?:\b(?:less than|fewer than|under|below|within|shorter than)|<=?|≤|不到|低于|小于|"
    r"少于|不足)\s*(?:an? )?$",
    re.I,
)
_NEARLY = re.compile(r"(?:nearly|almost|近|将近|接近) *$", re.I)
_MOST_OF_ALL = re.compile(r"(?:\b(?:at most|(?:no|not) more than|not exceeding)|至多|最多|不超过)\s*(?:an? )?$", re.I)
_LESS_AFTER = re.compile(r"^\s?(?:以下|以内|or less\b)", re.I)
# Counts of arguments, which are no measurements: "two findings agree".
_ARGUED = re.compile(
    r"^[ -](?:\w+[ -]){0,2}(?:findings?|mechanisms?|measurements?|ways?|sources?|methods?|observations?|tools?|"
    r"kinds?|facts?|signals?|views?|things?|evidence|causes?)\b|^ of (?:the|them|its|these|those)\b",
    re.I,
)
_ARGUED_ZH = re.compile(r"^(?:相互|彼此|互相)?(?:独立|机制|测量|发现|证据|方法|指标|来源|工具|观测|原因|方面)")
# Nouns before a number that is an identifier: of a process, rank, CPU, device, line.
_NAMES = (
    (re.compile(r"(?:\bpids?|\btids?|\bprocess(?: id)?|\bthreads?(?: id)?|进程号?|线程号?)[ #:=]*$", re.I), "pid"),
    (re.compile(r"(?:\branks?|\bpeers?)[ #:=]*$", re.I), "rank"),
    (re.compile(r"(?:\bcpus?|\bcores?|\bprocessors?|核心?)[ #:=]*$", re.I), "cpu"),
    (re.compile(r"(?:\bgpus?|\bnpus?|\baccelerators?|\bdevices?|\bnodes?|加速卡)[ #:=]*$", re.I), "unit"),
    (re.compile(r"\blines?[ #:=]*$", re.I), "line"),
)
_COUNTED = re.compile(r"\s?(?:times\b|calls\b|次)", re.I)
_NEAR = 0.05
_SHORT = 2  # significant digits of a rough number


@dataclass(frozen=True)
class Numeral:
    """A number at `start` to `end` of a text.

    `dim`: ``time`` (s), ``pct``, ``size`` (bytes), ``byterate``, ``rate`` (1/s), ``count``, ``ratio``, ``cpus``,
    ``bare`` (no unit), or what it identifies: ``pid``, ``rank``, ``cpu``, ``unit``, ``line``. `spans`: lowest and
    highest value, more than one if the unit is ambiguous (KB). `rough`: in words for a range.
    """

    start: int
    end: int
    dim: str
    spans: tuple[tuple[float, float], ...]
    rough: bool = False


def read(text: str) -> list[Numeral]:
    """Return every number in `text`, in order, except counts of arguments ("two findings agree")."""
    found: list[Numeral] = []
    for reader in (_fractions, _vague, _of_chinese, _of_digits, _of_words):
        for numeral in reader(text):
            if not any(numeral.start < other.end and other.start < numeral.end for other in found):
                found.append(numeral)
    return sorted(found, key=lambda numeral: numeral.start)


def blanked(text: str) -> str:
    """Return `text` with every number and its unit blanked."""
    for numeral in read(text):
        text = text[: numeral.start] + " " * (numeral.end - numeral.start) + text[numeral.end :]
    return text


def _of_digits(text: str) -> Iterator[Numeral]:
    matches = list(_WRITTEN.finditer(text))
    found: list[Numeral] = []
    for index, match in enumerate(matches):
        raw = match["number"]
        # A run of digits with more dots is a version or an address, no number.
        if re.match(r"\.\d", text[match.end() :]):
            continue
        number, step = _value(raw)
        scale = _SCALES.get((match["scale"] or "").lower(), 1.0)
        unit = match
        if _plain(match) and index + 1 < len(matches):
            after = matches[index + 1]
            if _RANGE.fullmatch(text[match.end() : after.start("number")]):  # 0.8 to 1.2 s
                unit, scale = after, _SCALES.get((after["scale"] or "").lower(), scale)
        dim, factors = _unit(unit)
        if dim in ("size", "bare") and _EACH_S.search(text[: match.start()]):
            dim = "byterate" if dim == "size" else "rate"
        counted = _COUNTED.match(text[match.end() :]) is not None
        name = "" if counted else next((n for p, n in _NAMES if p.search(text[: match.start()])), "")
        if found and not name and found[-1].dim in ("pid", "rank", "cpu", "unit") and dim == "bare":
            name = (
                found[-1].dim
                if re.fullmatch(r"\s?(?:-|–|,|and|to|/|和|至|到|、)\s?", text[found[-1].end : match.start()])
                else ""
            )
        if name and "." not in raw and match["scale"] is None and dim == "bare":
            found.append(Numeral(match.start(), match.end("number"), name, ((number, number),)))
            continue
        start, end = match.start(), match.end()
        spans = tuple(_span(text, start, end, number * scale, step * scale, factor) for factor in factors)
        found.append(Numeral(start, end, dim, spans))
    yield from _joined(text, found)


def _plain(match: re.Match[str]) -> bool:
    return _unit(match)[0] == "bare"


def _joined(text: str, found: list[Numeral]) -> Iterator[Numeral]:
    """Join numbers such as ``1 min 30 s`` to one value."""
    pending: Numeral | None = None
    for numeral in found:
        between = text[pending.end : numeral.start].strip() if pending else ""
        if pending is not None and pending.dim == numeral.dim == "time" and between in ("", "零"):
            (low, high), (less, more) = pending.spans[0], numeral.spans[0]
            if less < low:
                whole = (low + high) / 2
                pending = replace(pending, end=numeral.end, spans=((whole + less, whole + more),))
                continue
        if pending is not None:
            yield pending
        pending = numeral
    if pending is not None:
        yield pending


def _value(raw: str) -> tuple[float, float]:
    """Return a number, and the value of one unit in its last significant digit."""
    text = re.sub(r"[,'\u2009\u202f\s]", "", raw).replace("−", "-").lower()
    head, power = text, 0
    exponent = re.search(r"(?:[x×*]10\^?|e)([-+]?\d+)$", text)
    if exponent:
        head, power = text[: exponent.start()], min(max(int(exponent[1]), -30), 30)
    whole, _, fraction = head.partition(".")
    if fraction or exponent:
        step = 10.0 ** (power - len(fraction))
    else:
        zeros = len(whole) - len(whole.rstrip("0")) if whole.strip("0") else 0
        step = 10.0**zeros
    return float(head) * 10.0**power, step


def _unit(match: re.Match[str]) -> tuple[str, tuple[float, ...]]:
    """Return the dimension of a number and the factor to its unit in `Numeral`; two for KB, which is ambiguous."""
    for dim in ("pct", "byterate", "rate", "size", "time", "ratio", "cpus"):
        word = match.groupdict().get(dim)
        if word is None:
            continue
        word = word.lower()
        if dim == "time":
            return dim, (_TIMES[word],)
        if dim in ("size", "byterate"):
            power = _SIZES.get(word[0], 0)
            if word.startswith("byte"):
                power = 0
            if re.match(r"[kmgt]i", word) and not word.startswith("mil"):
                return dim, (1024.0**power,)
            return dim, tuple(dict.fromkeys((1000.0**power, 1024.0**power)))
        return dim, (1.0,)
    return "bare", (1.0,)


def _span(text: str, start: int, end: int, value: float, step: float, factor: float) -> tuple[float, float]:
    """Return the range of a number, by its rounding and the words around it."""
    before, after = text[:start], text[end:]
    ones = 10.0 ** min(_exponent(step), 0) if step > 1 else step
    # Trailing zeros may be due to rounding, within one percent.
    slack = max(ones / 2, min(step / 2, abs(value) * 0.01))
    if _HEDGED.search(before) or _HEDGED_AFTER.search(after):
        rough = _significant(value, step) <= _SHORT
        slack = max(slack, min(step / 2, abs(value) * _NEAR) if not rough else abs(value) * _NEAR)
    slack *= 1 + 1e-9
    low, high = value - slack, value + slack
    if _MORE.search(before) or _MORE_AFTER.search(after):
        low, high = value - slack, value * 1.5
    elif _MOST_OF_ALL.search(before):
        low, high = value * 0.8, value + slack
    elif _LESS.search(before) or _LESS_AFTER.search(after):
        low, high = (0.0 if value <= 1 else value / 2), value + slack
    return low * factor, high * factor


def _exponent(step: float) -> int:
    return len(str(int(step))) - 1 if step >= 1 else -1


def _significant(value: float, step: float) -> int:
    return len(str(int(abs(value) / step + 0.5))) if step else 1


def _of_words(text: str) -> Iterator[Numeral]:
    for match in _IN_WORDS.finditer(text):
        words = re.split(r"[ -]", match[1].lower())
        dim, factors = _unit(match)
        if dim == "cpus" and words == ["one"] and re.search(r"\bof $", text[: match.start()], re.I):
            continue  # "30 % of one CPU"
        if dim == "bare" and (words == ["one"] or _ARGUED.search(text[match.end() :])):
            continue
        total, current = 0.0, 0.0
        for word in words:
            if word in _MULTIPLES:
                current = (current or 1.0) * _MULTIPLES[word]
                if _MULTIPLES[word] >= 1000:
                    total, current = total + current, 0.0
            else:
                current += _WORDS[word]
        value = total + current
        name = next((n for p, n in _NAMES if p.search(text[: match.start()])), "") if dim == "bare" else ""
        if name:
            yield Numeral(match.start(), match.end(), name, ((value, value),))
            continue
        step = 10.0 ** (len(str(int(value))) - len(str(int(value)).rstrip("0"))) if value else 1.0
        spans = tuple(_span(text, match.start(), match.end(), value, step, factor) for factor in factors)
        yield Numeral(match.start(), match.end(), dim, spans)


def _of_chinese(text: str) -> Iterator[Numeral]:
    for match in _ZH_PERCENT.finditer(text):
        value = float(match[1]) if match[1][0].isdigit() else _chinese(match[1])
        yield Numeral(match.start(), match.end(), "pct", (_span(text, match.start(), match.end(), value, 1.0, 1.0),))
    for match in _ZH_PARTS.finditer(text):
        value = 100.0 * _chinese(match[2]) / _chinese(match[1])
        yield Numeral(match.start(), match.end(), "pct", (_about(text, match, value),), rough=True)
    for match in _ZH_TENTHS.finditer(text):
        yield Numeral(match.start(), match.end(), "pct", (_about(text, match, 10.0 * _chinese(match[1])),), rough=True)
    for match in _ZH_NUMBER.finditer(text):
        value, dim = _chinese(match[1]), "count" if match["counted"] else _unit(match)[0]
        if (dim == "count" and match[1] in ("一", "十", "万")) or (dim == "ratio" and match[1] == "一"):
            continue  # an article, and parts of other words
        if dim == "count" and _ARGUED_ZH.search(text[match.end() :]):
            continue
        factors = (1.0,) if dim == "count" else _unit(match)[1]
        step = 10.0 ** (len(str(int(value))) - len(str(int(value)).rstrip("0"))) if value else 1.0
        spans = tuple(_span(text, match.start(), match.end(), value, step, factor) for factor in factors)
        yield Numeral(match.start(), match.end(), dim, spans)


def _chinese(text: str) -> float:
    total, section, digit = 0.0, 0.0, 0.0
    for char in text:
        if char in _ZH_DIGITS:
            digit = float(_ZH_DIGITS[char])
        elif char in _ZH_TENS:
            section += (digit or 1.0) * _ZH_TENS[char]
            digit = 0.0
        else:
            total = (total + section + digit or 1.0) * (1e4 if char == "万" else 1e8)
            section, digit = 0.0, 0.0
    return total + section + digit


def _about(text: str, match: re.Match[str], value: float) -> tuple[float, float]:
    """Return the range, in percent, of a share given as a fraction."""
    before, after = text[: match.start()], text[match.end() :]
    if _MORE.search(before) or _MORE_AFTER.search(after):
        return value, min(value * 1.5, 100.0)
    if _LESS.search(before) or _LESS_AFTER.search(after) or _NEARLY.search(before):
        return value * 0.8, value + 0.5
    return value - 2.5, value + 2.5


def _fractions(text: str) -> Iterator[Numeral]:
    for match in _FRACTION.finditer(text):
        over = 1.0 if match["over"].lower() in ("a", "an") else _WORDS[match["over"].lower()]
        value = 100.0 * over / _PARTS[match["under"].lower()]
        if of_a := _OF_A.match(text[match.end() :]):  # eight tenths of a second
            low, high = _about(text, match, value)
            factor = _TIMES[of_a[1].lower()] / 100
            yield Numeral(match.start(), match.end() + of_a.end(), "time", ((low * factor, high * factor),))
            continue
        yield Numeral(match.start(), match.end(), "pct", (_about(text, match, value),), rough=True)
    for match in _HALF.finditer(text):
        yield Numeral(match.start(), match.end(), "pct", (_about(text, match, 50.0),), rough=True)
    for match in _HALF_A.finditer(text):
        unit = _TIMES[(match[1] or match[2]).lower()]
        yield Numeral(match.start(), match.end(), "time", (_span(text, match.start(), match.end(), 0.5, 0.1, unit),))
    for match in _A_UNIT.finditer(text):
        if re.search(r"(?:bytes?|[kmgt]i?b|times|requests|\d) $", text[: match.start()], re.I):
            continue  # so much each second
        unit, start = _TIMES[match[1].lower()], match.start(1)
        low, high = _span(text, start, match.end(), 1.0, 1.0, unit)
        yield Numeral(start, match.end(), "time", ((max(low, 0.8 * unit), min(high, 1.5 * unit)),))


def _vague(text: str) -> Iterator[Numeral]:
    for match in _MANY.finditer(text):
        size = _MAGNITUDES.get((match["of"] or match["counted"] or match["zh"] or "").lower(), 1.0)
        word = (match["unit"] or match["zhunit"] or match["few"] or "").lower()
        dim, unit = ("time", _TIMES[word]) if word in _TIMES else ("count", 1.0)
        several = match["for"] or match["few"]
        yield Numeral(match.start(), match.end(), dim, ((size * unit, (100.0 if several else size * 20) * unit),))
    for match in _MOST.finditer(text):
        yield Numeral(match.start(), match.end(), "pct", ((50.0, 100.0),), rough=True)
    for match in _ALL.finditer(text):
        yield Numeral(match.start(), match.end(), "pct", ((90.0, 100.5),), rough=True)
