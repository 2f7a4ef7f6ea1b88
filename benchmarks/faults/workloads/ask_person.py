"""Label samples: prints each, and waits for a person's answer."""

from __future__ import annotations

import itertools

import numpy as np
from joblog import Job


def ask(number: int) -> str:
    print(f"sample {number}, label? ", end="", flush=True)
    return input()  # mark: input


def main() -> None:
    job = Job()
    values = np.random.default_rng(0).random((200, 200))
    job.emit("ready")
    for number in itertools.count(1):
        with job.phase("step", n=number):
            np.dot(values, values)
            ask(number)


if __name__ == "__main__":
    main()
