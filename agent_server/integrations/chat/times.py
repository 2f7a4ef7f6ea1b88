"""Parse times in messages, "tomorrow 9am", "周五 18:00", "for 2 hours", in the reader's zone. Pure: `now` is given.

Replies show the absolute time that was understood: "next Friday" means different days to different people.
A day without a clock time is taken at noon, and a clock time that has passed today is tomorrow's.
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
_NUMBER = r"(?P<n>[0-9]+(?:\.[0-9]+)?|half an(?= )|an?(?= )|one|two|three|[零〇一二两三四五六七八九十半]{1,3})"
_SPAN = re.compile(
    rf"(?<![\w.]){_NUMBER} *个?(?:{'|'.join(f'(?P<u{n}>{unit})' for n, (unit, _) in enumerate(_UNITS))})(?![A-Za-z])",
    re.IGNORECASE,
)
_LATER = re.compile(r" *(?:后|之后|以后|from now|later)", re.I)
_AGO = re.compile(r" *(?:ago|之前|以前|前)", re.I)
_LONGEST = timedelta(days=366)
_NOON, _NIGHT, _MORNING, _EVENING = time(12), time(21), time(9), time(20)

_ISO = re.compile(r"(?P<y>\d{4})[-/.年](?P<m>\d{1,2})[-/.月](?P<d>\d{1,2})日?", re.ASCII)
_MONTH_DAY = re.compile(r"(?<!\d)(?P<m>\d{1,2})月(?P<d>\d{1,2})[日号]", re.ASCII)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMED_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_MONTH_NAMES = (
    re.compile(rf"\b{_NAMED_MONTH}\.? +(?P<d>\d{{1,2}})(?:st|nd|rd|th)?\b(?!:)", re.I | re.A),
    re.compile(rf"\b(?P<d>\d{{1,2}})(?:st|nd|rd|th)? +{_NAMED_MONTH}\b", re.I | re.A),
)
_WEEKDAY = re.compile(
    r"\b(?P<which>next|last|this|coming|on)? *(?P<day>mon|tue|wed|thu|fri|sat|sun)(?:s|nes|rs|ur)?(?:day)?\b", re.I
)
_ZH_WEEKDAY = re.compile(r"(?P<which>下个?|上个?|这个?|本)?(?:周|星期|礼拜)(?P<day>[一二三四五六日天])")
_DAYS: tuple[tuple[str, int, time | None], ...] = (
    (r"大后天", 3, None),
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
    r"|\b(?:at|tonight|morning|afternoon|evening|night) (?P<h3>[01]?\d|2[0-4])(?! *(?:st|nd|rd|th|%|[ap]\.?m))\b(?!:)"
    r"|\b(?P<word>noon|midnight)\b",
    re.I | re.A,
)
_LATE = re.compile(r"\b(?:tonight|night|evening|afternoon)\b|晚|夜|下午", re.I)
_NIGHTLY = re.compile(r"\b(?:tonight|night)\b|晚|夜", re.I)
_PARTS_OF_DAY: tuple[tuple[str, time], ...] = (
    (r"\bmorning\b|早上|早晨|上午", _MORNING),
    (r"\bafternoon\b|下午", time(15)),
    (r"\bevening\b|晚上|傍晚", _EVENING),
    (r"\bnight\b|夜里", _NIGHT),
)
_SMALL_HOURS = 4  # "tonight at 2" is after midnight
# Words allowed around a time in a command.
_FILLER = re.compile(
    r"\b(?:for|until|till|til|to|by|the|at|on|of|in|next|this|coming)\b|直到|为止|持续|为期|到|至|止|内|的|[\s,，.。!！]",
    re.I,
)
_ZH_CLOCK = re.compile(
    r"(?P<part>凌晨|早上|早晨|清晨|上午|中午|下午|傍晚|晚上|晚|夜里)? *"
    r"(?P<h>\d{1,2}|[一二两三四五六七八九十]{1,3}) *[点时]"
    r"(?P<rest>半|一刻|三刻|整|(?:\d{1,2}|[零一二三四五六七八九十]{1,3})分?)?",
    re.A,
)

_DATES = (_ISO, _MONTH_DAY, *_MONTH_NAMES)
_AFTER_SPAN = re.compile(rf"(?:{_SPAN.pattern})(?:{_LATER.pattern})?", re.I)
_PARTS = (
    *(_CLOCK, *(re.compile(day[0], re.I) for day in _DAYS), _ZH_CLOCK, _ZH_WEEKDAY, _WEEKDAY, _WEEKEND),
    *(re.compile(part[0], re.I) for part in _PARTS_OF_DAY),
)
"""The parts of a time besides dates and durations."""


_BEFORE_SPAN = re.compile(r"(过去|最近|近|这|前|在)")
_LAST_NIGHT = r"\b(?:last night|overnight|while i was (?:asleep|sleeping))\b|昨晚|昨夜|夜里|半夜|凌晨"
_PERIODS = (
    (r"\b(?:last|past) hour\b|(?:过去|最近)一?个?小时", timedelta(hours=1)),
    (r"\bfew hours\b|几个?小时", timedelta(hours=6)),
    (r"\b(?:last|previous) shift\b|\bhand-?(?:over|off)\b|上个?班|交班|交接", timedelta(hours=12)),
    (r"\b(?:last|past|this) week\b|\bfew days\b|上周|这周|本周|这几天|最近几天", timedelta(days=7)),
)
"""Periods that end now, by the words for them."""


def when(text: str, now: datetime) -> datetime | None:
    """Return the time that `text` names, in the zone of `now`; None without one (or for "now")."""
    for match in _SPAN.finditer(text):
        if _AGO.match(text[match.end() :]) and (span := _span(match)) is not None:
            return now - span
        ahead = re.search(r"\bin +$", text[: match.start()], re.I) or _LATER.match(text[match.end() :])
        if ahead and (span := _span(match)) is not None:
            return now + span
    day, clock = _day(text, now), _clock(text)
    if day is None and clock is None:
        return None
    if day is None:
        _, at = clock or (0, _NOON)
        found = _at(now.date(), at, now)
        return found if found >= now else _at(now.date() + timedelta(days=1), at, now)
    on, usual = day
    usual = usual or next((at for part, at in _PARTS_OF_DAY if re.search(part, text, re.I)), None)
    days, at = clock or (0, usual or _NOON)
    return _at(on + timedelta(days=days), at, now)


def until(text: str, now: datetime) -> datetime | None:
    """Return the end of a period that begins now: after "2 hours", or at "tomorrow 9am".

    None where `text` names no end within a year, names one in the past, or holds a part that is not understood.
    """
    dateless = text
    for pattern in _DATES:
        dateless = pattern.sub(" ", dateless)  # 25日 in a date is no duration of 25 days
    found = _SPAN.search(dateless)
    rest = _AFTER_SPAN.sub(" ", dateless)
    for part in _PARTS:
        rest = part.sub(" ", rest)
    if _FILLER.sub("", rest) or (found is not None and _AGO.match(dateless[found.end() :])):
        return None
    span = _span(found)
    end = now + span if span is not None else when(text, now)
    return end if end is not None and now < end <= now + _LONGEST else None


def period(text: str, now: datetime) -> tuple[datetime, datetime]:
    """Return begin and end of the past period that `text` names ("last night", 过去6小时, "since yesterday"), in the
    zone of `now`; without one the last 24 hours. A night is from 18:00 to 9:00.
    """
    spaced = _BEFORE_SPAN.sub(r"\1 ", text)  # a number is no part of the word before it
    if (found := _span(_SPAN.search(spaced))) is not None:
        return now - found, now
    for pattern, span in _PERIODS:
        if re.search(pattern, text, re.I):
            return now - span, now
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    begin, end = now - timedelta(days=1), now
    if re.search(_LAST_NIGHT, text, re.I):
        begin, end = midnight - timedelta(hours=6), min(now, midnight + timedelta(hours=9))
    elif re.search(r"\bweekend\b|周末", text, re.I):
        begin = midnight - timedelta(days=(now.weekday() - 5) % 7)
        end = min(now, begin + timedelta(days=2))
    elif re.search(r"前天", text):
        begin, end = midnight - timedelta(days=2), midnight - timedelta(days=1)
    elif re.search(r"\byesterday\b|昨天|昨日", text, re.I):
        begin, end = midnight - timedelta(days=1), midnight
    elif re.search(r"\b(?:today|this morning|midnight)\b|今天|今早|今日", text, re.I):
        begin = midnight
    return begin, (now if re.search(r"\bsince\b|以来|至今|到现在|从", text, re.I) else end)


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
    """Return the day that `text` names and the usual time for it ("tonight": 21:00)."""
    if (match := _ISO.search(text)) is not None:
        return _date(int(match["y"]), int(match["m"]), int(match["d"]))
    if (match := _MONTH_DAY.search(text)) is not None:
        return _next_date(int(match["m"]), int(match["d"]), now)
    for pattern_ in _MONTH_NAMES:
        if (match := pattern_.search(text)) is not None:
            return _next_date(_MONTHS.index(match["month"][:3].lower()) + 1, int(match["d"]), now)
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


def _next_date(month: int, day: int, now: datetime) -> tuple[date, None] | None:
    """Return the day in this year, or in the next one if it has passed."""
    found = _date(now.year, month, day)
    return _date(now.year + 1, month, day) if found is not None and found[0] < now.date() else found


def _date(year: int, month: int, day: int) -> tuple[date, None] | None:
    try:
        return date(year, month, day), None
    except ValueError:
        return None


def _weekday(day: int, which: str, now: datetime) -> date:
    """Return the next such day, today included; with "next" that of the next week, which begins on a Monday."""
    if which in ("next", "下", "下个"):
        return now.date() + timedelta(days=7 - now.weekday() + day)
    if which in ("上", "上个"):
        return now.date() + timedelta(days=day - now.weekday() - 7)
    if which == "last":
        return now.date() - timedelta(days=(now.weekday() - day - 1) % 7 + 1)
    return now.date() + timedelta(days=(day - now.weekday()) % 7)


def _clock(text: str) -> tuple[int, time] | None:
    """Return the clock time in `text`, and how many days after the named day it lies ("tonight at 12": 1)."""
    if (match := _ZH_CLOCK.search(text)) is not None:
        return _zh_time(match)
    match = _CLOCK.search(text)
    if match is None:
        return None
    if match["word"]:
        noon = match["word"].lower() == "noon"
        return (0, _NOON) if noon else (int(bool(_NIGHTLY.search(text))), time(0))
    hour, minute = int(match["h"] or match["h2"] or match["h3"]), int(match["m"] or match["m2"] or 0)
    half = (match["half"] or "").lower()[:1]
    if minute > 59 or (half and not 1 <= hour <= 12):
        return None
    if half:
        return 0, time(hour % 12 + (12 if half == "p" else 0), minute)
    return _by_part_of_day(hour, minute, late=bool(_LATE.search(text)), night=bool(_NIGHTLY.search(text)))


def _by_part_of_day(hour: int, minute: int, *, late: bool, night: bool) -> tuple[int, time]:
    if night and (hour in (0, 12) or 1 <= hour <= _SMALL_HOURS):
        return 1, time(hour % 12, minute)
    if late and hour < 12:
        hour += 12
    return hour // 24, time(hour % 24, minute)


def _zh_time(match: re.Match[str]) -> tuple[int, time] | None:
    hour = int(match["h"]) if match["h"].isdigit() else int(_zh_number(match["h"]) or 0)
    part, rest = match["part"] or "", match["rest"] or ""
    minute = {"半": 30, "一刻": 15, "三刻": 45, "整": 0, "": 0}.get(rest)
    if minute is None:
        digits = rest.removesuffix("分")
        minute = int(digits) if digits.isdigit() else int(_zh_number(digits) or 0)
    if hour > 24 or minute > 59:
        return None
    if part == "凌晨" and hour == 12:
        return 0, time(0, minute)
    if part == "中午" and hour < _SMALL_HOURS:
        return 0, time(hour + 12, minute)
    late = part in ("下午", "傍晚", "晚上", "晚", "夜里")
    return _by_part_of_day(hour, minute, late=late, night=part in ("晚上", "晚", "夜里"))


def _at(day: date, clock: time, now: datetime) -> datetime:
    """Return `clock` on `day` in the zone of `now`; a skipped time becomes the one an hour later."""
    moment = datetime.combine(day, clock, tzinfo=now.tzinfo)
    return moment.astimezone(timezone.utc).astimezone(now.tzinfo)
