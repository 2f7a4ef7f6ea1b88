"""Injectors: generator functions of (case, **arguments).

What stands before the ``yield`` prepares the host before the job starts; what follows it injects the fault. A module
here needs no registration: every public generator function that it defines is an injector by its name.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Generator

Injector = Callable[..., Generator[None, None, None]]


@functools.cache
def injectors() -> dict[str, Injector]:
    """Return all injectors by name; raise ValueError if two modules use one name."""
    found: dict[str, Injector] = {}
    for module in pkgutil.iter_modules(__path__):
        for name, value in vars(importlib.import_module(f"{__name__}.{module.name}")).items():
            if name.startswith("_") or not inspect.isgeneratorfunction(value):
                continue
            if value.__module__ != f"{__name__}.{module.name}":
                continue
            if name in found:
                raise ValueError(f"two injectors are called {name}")
            found[name] = value
    return found
