"""Recordings made by hand of a program whose steps wait for a thread that reads files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from recordings import PID, Scene

from whystall.tools.recording.store import Recording

DECODER = 4102
NEXT = ("get (python3.11/queue.py:171)", "next_batch (train.py:41)", "main (train.py:90)")
DECODE = ("decode (data.py:17)", "worker (data.py:5)")
COPY = ("copy (train.py:60)", "main (train.py:90)")
WORK_MS = 20.0


def waits_ms(steps: int, mean: float, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [mean * rng.uniform(0.8, 1.2) for _ in range(steps)]


def recording_of(
    waits: Sequence[float], name: str = "decoder", lines: tuple[str, ...] = NEXT, **manifest: Any
) -> Recording:
    """Return steps that compute, copy (one in three for long), and wait for a batch for `waits` ms at `lines`, while a
    thread reads a numbered file."""
    scene = Scene(window_s=sum(2 * WORK_MS + ms for ms in waits) / 1e3 + 0.1).thread(user=30).thread(DECODER, name)
    at = 0.05
    for number, ms in enumerate(waits):
        at += WORK_MS / 1e3
        woken = {"waker": (PID, DECODER, name), "context": "task", "runnable_ns": 0}
        scene.wait(at, ms, "futex", lock=64, user=lines, **woken)
        file = f"/data/a{number % 4}.bin"
        scene.wait(at, ms, "read", file, tid=DECODER, state="D", user=DECODE, runnable_ns=0)
        at += ms / 1e3
        scene.wait(at, WORK_MS, "fsync", "/out", state="D", user=COPY, runnable_ns=0)
        at += WORK_MS / 1e3
    return scene.build(**manifest)
