"""The scan of large logs."""

from __future__ import annotations

import io

import pytest

from whystall.tools.crashes import scan

TEXTS = ("BUG: ", "exitcode  : ")


def found(data: bytes) -> list[int]:
    return [place.offset for place in scan.places(io.BytesIO(data), TEXTS, lambda _: False)]


@pytest.mark.parametrize("chunk", [64, 1000, 4096])
def test_every_line_is_found_wherever_the_chunks_end(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(scan, "_CHUNK", chunk)
    monkeypatch.setattr(scan, "_SLICE", 50)
    monkeypatch.setattr(scan, "WINDOW", 128)
    monkeypatch.setattr(scan, "BEFORE", 64)
    lines = [b"BUG: %d\n" % n if n % 7 == 0 else b"line %d \xff\xe4\xb8\xad\n" % n for n in range(400)]
    data = b"".join(lines)
    starts = [sum(map(len, lines[:n])) for n in range(0, 400, 7)]
    assert found(data) == starts


def test_a_place_has_what_follows_and_what_precedes_it() -> None:
    (place,) = scan.places(io.BytesIO(b"a\nb\nx BUG: c\nd\n"), TEXTS, lambda _: False)
    assert (place.offset, place.window, place.before) == (4, b"x BUG: c\nd\n", b"a\nb\n")


def test_lines_that_were_read_already_are_left_out() -> None:
    data = b"BUG: 1\nBUG: 2\nBUG: 3\n"
    assert [p.offset for p in scan.places(io.BytesIO(data), TEXTS, lambda at: at == 7)] == [0, 14]


def test_a_line_without_an_end_is_bounded() -> None:
    data = b"y" * (2 * scan.BEFORE) + b"BUG: " + b"z" * (2 * scan.WINDOW)
    (place,) = scan.places(io.BytesIO(data), TEXTS, lambda _: False)
    assert len(place.window) == scan.WINDOW
    assert b"BUG: " in place.window
