"""How much of a ring buffer's content is complete (the ring buffer itself is tested live)."""

from __future__ import annotations

import random

from whystall.bpf.ring import _leading


def test_what_comes_before_the_first_unfinished_record_counts() -> None:
    draw = random.Random(1)
    for length in range(40):
        assert _leading(b"good" * length, b"good") == length
        for bad in range(length):
            later = [draw.choice([b"good", b"busy"]) for _ in range(length - bad - 1)]
            words = [b"good"] * bad + [b"busy"] + later
            assert _leading(b"".join(words), b"good") == bad
