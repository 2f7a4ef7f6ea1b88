"""Times as people say them, in the reader's zone."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from whystall.agent_server.integrations.chat.times import until, when

SHANGHAI, BERLIN = ZoneInfo("Asia/Shanghai"), ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 18, 14, 30, tzinfo=SHANGHAI)  # a Wednesday


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tomorrow 9am", "2026-11-19 09:00"),
        ("tomorrow", "2026-11-19 12:00"),
        ("tonight", "2026-11-18 21:00"),
        ("Friday 18:00", "2026-11-20 18:00"),
        ("next monday at 3pm", "2026-11-23 15:00"),
        ("on wednesday 15:00", "2026-11-18 15:00"),
        ("in 2 hours", "2026-11-18 16:30"),
        ("in half an hour", "2026-11-18 15:00"),
        ("2小时后", "2026-11-18 16:30"),
        ("明天下午三点", "2026-11-19 15:00"),
        ("明早", "2026-11-19 09:00"),
        ("今晚", "2026-11-18 21:00"),
        ("下周一", "2026-11-23 12:00"),
        ("周五 18:00", "2026-11-20 18:00"),
        ("后天上午10点半", "2026-11-20 10:30"),
        ("3月3日 早上8点", "2027-03-03 08:00"),
        ("2026-12-01 08:15", "2026-12-01 08:15"),
        ("this weekend", "2026-11-21 12:00"),
        ("9:00", "2026-11-19 09:00"),  # it is over today
        ("day after tomorrow noon", "2026-11-20 12:00"),
        ("12am tomorrow", "2026-11-19 00:00"),
        ("tonight at 9", "2026-11-18 21:00"),
        ("tonight 8", "2026-11-18 20:00"),
        ("tonight at 12", "2026-11-19 00:00"),
        ("tomorrow evening at 8", "2026-11-19 20:00"),
        ("晚上12点", "2026-11-19 00:00"),
        ("明天晚上12点", "2026-11-20 00:00"),
        ("明天凌晨12点", "2026-11-19 00:00"),
        ("凌晨12点", "2026-11-19 00:00"),
        ("大后天", "2026-11-21 12:00"),
        ("上周五", "2026-11-13 12:00"),
        ("last friday", "2026-11-13 12:00"),
        ("Nov 25 9am", "2026-11-25 09:00"),
        ("friday evening", "2026-11-20 20:00"),
        ("tomorrow at 9 pm", "2026-11-19 21:00"),
        ("25 November at 9", "2026-11-25 09:00"),
        ("3 days ago", "2026-11-15 14:30"),
    ],
)
def test_a_time_is_understood(text: str, expected: str) -> None:
    found = when(f"who is on call {text} for storage", NOW)
    assert found is not None
    assert f"{found:%Y-%m-%d %H:%M}" == expected
    assert found.tzinfo is SHANGHAI


@pytest.mark.parametrize("text", ["", "now", "for storage-2", "ticket 12", "2026-13-45", "25:00", "13pm", "99点"])
def test_no_time_is_made_up(text: str) -> None:
    assert when(text, NOW) is None


def test_a_time_that_the_clocks_skip_is_the_one_they_show() -> None:
    saturday = datetime(2026, 3, 28, 12, 0, tzinfo=BERLIN)
    found = when("tomorrow 02:30", saturday)
    assert found is not None
    assert f"{found:%H:%M %z}" == "03:30 +0200"


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("2h", timedelta(hours=2)),
        ("for 90 minutes", timedelta(minutes=90)),
        ("两小时", timedelta(hours=2)),
        ("半小时", timedelta(minutes=30)),
        ("一周", timedelta(days=7)),
        ("until tomorrow 9am", timedelta(hours=18, minutes=30)),
        ("到明天早上", timedelta(hours=18, minutes=30)),
        ("until tomorrow at 9 am", timedelta(hours=18, minutes=30)),
        ("到今晚12点", timedelta(hours=9, minutes=30)),
        ("until tonight at 9", timedelta(hours=6, minutes=30)),
        ("until Nov 25 9am", timedelta(days=6, hours=18, minutes=30)),
        ("到11月25日 9点", timedelta(days=6, hours=18, minutes=30)),
    ],
)
def test_an_end_is_understood(text: str, span: timedelta) -> None:
    assert until(text, NOW) == NOW + span


@pytest.mark.parametrize(
    "text", ["", "forever", "0h", "90000 days", "until yesterday", "3 days ago", "3天前", "上周五", "2h or so"]
)
def test_no_end_is_made_up(text: str) -> None:
    assert until(text, NOW) is None
