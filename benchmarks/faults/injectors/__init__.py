"""Injectors: generator functions of (case, **arguments).

The part before ``yield`` runs before the job starts, and prepares the host; the part after it injects the fault. Every
public generator function of a module here is an injector with its name; there is no registration.
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
