"""A Python program that logs which of its lines did what: a loop with known shares of CPU time, recursion, a thread
each in a lock, in a pipe, in a generator's sleep, in an event loop, in a text that was executed, in a zip file.

usage: python_job.py FOLDER. Runs under any CPython from 3.9 on, with the standard library only.
"""

import asyncio
import json
import os
import sys
import threading
import time
import zipfile
from collections.abc import Iterator

spent = {"heavy": 0.0, "light": 0.0}
naps = [0]
lock = threading.Lock()


def burn(seconds: float) -> float:
    """Have the CPU for so long; how long it was."""
    start = now = time.thread_time()
    while now - start < seconds:
        for _ in range(300):
            pass
        now = time.thread_time()
    return now - start


def heavy() -> None:
    """Three quarters."""
    spent["heavy"] += burn(0.015)  # LINE heavy


def light(depth: int) -> None:
    """One quarter, four calls deep."""
    if depth:
        light(depth - 1)  # LINE deeper
    else:
        spent["light"] += burn(0.005)  # LINE light


def sorted_by_python(rounds: int) -> None:
    """Python called by C called by Python."""
    list(map(lambda _: heavy(), range(rounds)))  # noqa: C417  # LINE mapped


def holds_up() -> None:
    lock.acquire()  # LINE lock


def reads(pipe: int) -> None:
    os.read(pipe, 1)  # LINE pipe


def napping() -> Iterator[None]:
    while True:
        time.sleep(0.02)  # LINE nap
        naps[0] += 1
        yield


def naps_on() -> None:
    for _ in napping():  # LINE generator
        pass


async def awaits() -> None:
    while True:
        await asyncio.sleep(0.03)


def loops() -> None:
    asyncio.new_event_loop().run_until_complete(awaits())  # LINE loop


def executes() -> None:
    exec("import time\n\ndef inner():\n    while True: time.sleep(0.04)\n\ninner()\n", {})  # LINE exec


def from_zip(folder: str) -> None:
    path = os.path.join(folder, "packed.zip")
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("träumt_夢.py", "import time\ndef schläft():\n    while True:\n        time.sleep(0.05)\n")
    sys.path.insert(0, path)
    __import__("träumt_夢").schläft()  # LINE zip


def main(folder: str) -> None:
    pipe = os.pipe()[0]
    lock.acquire()
    bodies = {
        "lock": holds_up,
        "pipe": lambda: reads(pipe),
        "nap": naps_on,
        "loop": loops,
        "exec": executes,
        "zip": lambda: from_zip(folder),
    }
    threads = {name: threading.Thread(target=body, daemon=True) for name, body in bodies.items()}
    for thread in threads.values():
        thread.start()
    time.sleep(0.2)
    print(json.dumps({"tids": {name: thread.native_id for name, thread in threads.items()}}), flush=True)
    sys.stdin.readline()
    spent.update(heavy=0.0, light=0.0)
    naps[0] = 0
    began = time.monotonic_ns()
    while sum(spent.values()) < 0.5:  # of CPU time, which a busy machine gives later
        sorted_by_python(1)
        light(4)
    print(json.dumps({**spent, "naps": naps[0], "began": began, "ended": time.monotonic_ns()}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1])
