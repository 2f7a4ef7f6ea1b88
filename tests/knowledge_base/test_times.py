"""Parsing of times."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from whystall.knowledge_base.times import age_days, moment, now, rfc3339

AT = datetime(2026, 11, 20, 14, 39, 46, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-20T14:39:46Z",
        "2026-11-20T14:39:46",
        "2026-11-20 14:39:46.0Z",
        "2026-11-20t14:39:46.000000000z",
        "2026-11-20T15:39:46+01:00",
        " 2026-11-20T14:39:46.000Z ",
    ],
)
def test_one_moment_in_many_ways(text: str) -> None:
    assert moment(text) == AT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-11-20",
        "2026-13-20T14:39:46Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9" * 99,
    ],
)
def test_a_malformed_time_is_none(text: str) -> None:
    assert moment(text) is None


def test_fractions_are_kept_and_text_sorts() -> None:
    assert moment("2026-11-20T14:39:46.5Z") == AT + timedelta(milliseconds=500)
    assert rfc3339(AT) < rfc3339(AT + timedelta(seconds=1)) < rfc3339(AT + timedelta(days=400))
    assert moment(now()) is not None


def test_ages_are_never_negative() -> None:
    assert age_days("2026-11-20T14:39:46Z", AT + timedelta(hours=36)) == 1.5
    assert age_days("2026-11-20T14:39:46Z", AT - timedelta(days=1)) == 0
    assert age_days("never", AT) is None
