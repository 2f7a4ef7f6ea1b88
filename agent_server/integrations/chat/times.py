"""Times as people say them, "tomorrow 9am", "周五 18:00", "for 2 hours", in the reader's zone. Pure: `now` is given.

Whoever answers says the date that was understood: words such as "next Friday" mean different days to different people.
A day without a clock time is taken at noon, and a clock time that is over today is tomorrow's.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, timezone

_MONDAY_FIRST = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_ZH_DAYS = {"一": 0, "二": 1, "三": 2, "四": 3, "五": 4, "六": 5, "日": 6, "天": 6}
_ZH_DIGITS = {d: n for n, d in enumerate("零一二三四五六七八九")} | {"两": 2, "〇": 0}
_EN_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "half an": 0.5}
_UNITS = (
    (r"s|secs?|seconds?|秒钟?", 1),
    (r"m|mins?|minutes?|分钟?", 60),
    (r"h|hrs?|hours?|小时|钟头", 3600),
    (r"d|days?|天|日", 86_400),
    (r"w|weeks?|周|星期|礼拜", 604_800),
)
_NUMBER = r"(?P<n>[0-9]+(?:\.[0-9]+)?|half an|an?|one|two|three|[零〇一二两三四五六七八九十半]{1,3})"
_SPAN = re.compile(
    rf"(?<![\w.]){_NUMBER} *个?(?:{'|'.join(f'(?P<u{n}>{unit})' for n, (unit, _) in enumerate(_UNITS))})(?![A-Za-z])",
    re.IGNORECASE,
)
_LATER = re.compile(r" *(?:后|之后|以后|from now|later)", re.I)
_LONGEST = timedelta(days=366)
_NOON, _NIGHT, _MORNING, _EVENING = time(12), time(21), time(9), time(20)

_ISO = re.compile(r"(?P<y>\d{4})[-/.年](?P<m>\d{1,2})[-/.月](?P<d>\d{1,2})日?", re.ASCII)
_MONTH_DAY = re.compile(r"(?<!\d)(?P<m>\d{1,2})月(?P<d>\d{1,2})[日号]", re.ASCII)
_WEEKDAY = re.compile(
    r"\b(?P<which>next|this|coming|on)? *(?P<day>mon|tue|wed|thu|fri|sat|sun)(?:s|nes|rs|ur)?(?:day)?\b", re.I
)
_ZH_WEEKDAY = re.compile(r"(?P<which>下个?|这个?|本)?(?:周|星期|礼拜)(?P<day>[一二三四五六日天])")
_DAYS: tuple[tuple[str, int, time | None], ...] = (
    (r"\bday after tomorrow\b|后天", 2, None),
    (r"\btomorrow morning\b|明早|明天早上|明天上午", 1, _MORNING),
    (r"\btomorrow (?:night|evening)\b|明晚|明天晚上", 1, _EVENING),
    (r"\btomorrow\b|\btmrw?\b|\btmw\b|明天|明日", 1, None),
    (r"\byesterday\b|昨天|昨日", -1, None),
    (r"\btonight\b|今晚|今夜", 0, _NIGHT),
    (r"\bthis morning\b|今早|今天早上|今天上午", 0, _MORNING),
    (r"\bthis (?:evening)\b|今天晚上", 0, _EVENING),
    (r"\btoday\b|今天|今日", 0, None),
)
_WEEKEND = re.compile(r"\bweekend\b|周末", re.I)
_CLOCK = re.compile(
    r"(?<![\d:#.])(?P<h>\d{1,2})(?::(?P<m>\d{2}))? ?(?P<half>a\.?m\.?|p\.?m\.?)(?![A-Za-z])"
    r"|(?<![\d:#.])(?P<h2>[01]?\d|2[0-4])[:：](?P<m2>[0-5]\d)(?![\d:])"
    r"|\bat (?P<h3>[01]?\d|2[0-4])(?! *(?:st|nd|rd|th|%))\b"
    r"|\b(?P<word>noon|midnight)\b",
    re.I | re.A,
)
_ZH_CLOCK = re.compile(
    r"(?P<part>凌晨|早上|早晨|清晨|上午|中午|下午|傍晚|晚上|晚|夜里)? *"
    r"(?P<h>\d{1,2}|[一二两三四五六七八九十]{1,3}) *[点时]"
    r"(?P<rest>半|一刻|三刻|整|(?:\d{1,2}|[零一二三四五六七八九十]{1,3})分?)?",
    re.A,
)


def when(text: str, now: datetime) -> datetime | None:
    """The time that `text` names, in the zone of `now`; None where it names none (or says "now")."""
    for match in _SPAN.finditer(text):
        ahead = re.search(r"\bin +$", text[: match.start()], re.I) or _LATER.match(text[match.end() :])
        if ahead and (span := _span(match)) is not None:
            return now + span
    day, clock = _day(text, now), _clock(text)
    if day is None and clock is None:
        return None
    on, usual = day or (now.date(), None)
    found = _at(on, clock or usual or _NOON, now)
    if day is None and found < now:
        return _at(on + timedelta(days=1), clock or _NOON, now)
    return found


def until(text: str, now: datetime) -> datetime | None:
    """When a time that begins now ends: after "2 hours", or at "tomorrow 9am"; None where `text` says neither, or
    nothing within a year.
    """
    span = _span(_SPAN.search(text))
    end = now + span if span is not None else when(text, now)
    return end if end is not None and now < end <= now + _LONGEST else None


def _span(match: re.Match[str] | None) -> timedelta | None:
    if match is None:
        return None
    amount = _number(match["n"].lower())
    seconds = next(s for n, (_, s) in enumerate(_UNITS) if match[f"u{n}"])
    if amount is None or not 0 < amount * seconds <= _LONGEST.total_seconds():
        return None
    return timedelta(seconds=amount * seconds)


def _number(text: str) -> float | None:
    if text[0].isdigit() and text.isascii():
        return float(text) if len(text) < 9 else None
    if text in _EN_NUMBERS:
        return _EN_NUMBERS[text]
    return 0.5 if text == "半" else _zh_number(text)


def _zh_number(text: str) -> float | None:
    tens, ten, ones = text.partition("十")
    if ten:
        return 10 * (_ZH_DIGITS.get(tens, 1) if tens else 1) + (_ZH_DIGITS.get(ones, 0) if ones else 0)
    return float(_ZH_DIGITS[text]) if text in _ZH_DIGITS else None


def _day(text: str, now: datetime) -> tuple[date, time | None] | None:
    """The day that `text` names, and the time of it that is usually meant."""
    if (match := _ISO.search(text)) is not None:
        return _date(int(match["y"]), int(match["m"]), int(match["d"]))
    if (match := _MONTH_DAY.search(text)) is not None:
        found = _date(now.year, int(match["m"]), int(match["d"]))
        past = found is not None and found[0] < now.date()
        return _date(now.year + 1, int(match["m"]), int(match["d"])) if past else found
    if (match := _ZH_WEEKDAY.search(text)) is not None:
        return _weekday(_ZH_DAYS[match["day"]], match["which"] or "", now), None
    for pattern, days, usual in _DAYS:
        if re.search(pattern, text, re.I):
            return now.date() + timedelta(days=days), usual
    if (match := _WEEKDAY.search(text)) is not None:
        return _weekday(_MONDAY_FIRST.index(match["day"].lower()), (match["which"] or "").lower(), now), None
    if _WEEKEND.search(text):
        return now.date() + timedelta(days=(5 - now.weekday()) if now.weekday() < 5 else 0), None
    return None


def _date(year: int, month: int, day: int) -> tuple[date, None] | None:
    try:
        return date(year, month, day), None
    except ValueError:
        return None


def _weekday(day: int, which: str, now: datetime) -> date:
    """The next such day, today included; with "next" that of the week after this one, which begins on a Monday."""
    if which in ("next", "下", "下个"):
        return now.date() + timedelta(days=7 - now.weekday() + day)
    return now.date() + timedelta(days=(day - now.weekday()) % 7)


def _clock(text: str) -> time | None:
    if (match := _ZH_CLOCK.search(text)) is not None:
        return _zh_time(match)
    match = _CLOCK.search(text)
    if match is None:
        return None
    if match["word"]:
        return _NOON if match["word"].lower() == "noon" else time(0)
    hour, minute = int(match["h"] or match["h2"] or match["h3"]), int(match["m"] or match["m2"] or 0)
    half = (match["half"] or "").lower()[:1]
    if half and not 1 <= hour <= 12:
        return None
    hour = hour % 12 + (12 if half == "p" else 0) if half else hour % 24
    return time(hour, minute) if minute < 60 else None


def _zh_time(match: re.Match[str]) -> time | None:
    hour = int(match["h"]) if match["h"].isdigit() else int(_zh_number(match["h"]) or 0)
    part, rest = match["part"] or "", match["rest"] or ""
    if hour < 12 and (part in ("下午", "傍晚", "晚上", "晚", "夜里") or (part == "中午" and hour < 4)):
        hour += 12
    minute = {"半": 30, "一刻": 15, "三刻": 45, "整": 0, "": 0}.get(rest)
    if minute is None:
        digits = rest.removesuffix("分")
        minute = int(digits) if digits.isdigit() else int(_zh_number(digits) or 0)
    return time(hour % 24, minute) if hour <= 24 and minute < 60 else None


def _at(day: date, clock: time, now: datetime) -> datetime:
    """`clock` on `day` where `now` is; a time that the clocks skip is the one they show instead."""
    moment = datetime.combine(day, clock, tzinfo=now.tzinfo)
    return moment.astimezone(timezone.utc).astimezone(now.tzinfo)
