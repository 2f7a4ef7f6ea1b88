"""Command lines of the example programs; errors are one line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Exit with status 2 and one line on wrong options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (see --help)\n")


def between(kind: type[int | float], low: float, high: float) -> Callable[[str], float]:
    """Return an argument type: a number of ``kind`` from ``low`` to ``high``, both included."""

    def convert(text: str) -> float:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low:g} and {high:g}")
        return value

    convert.__name__ = "number"  # argparse names it in its message
    return convert
