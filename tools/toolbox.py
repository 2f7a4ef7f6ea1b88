"""Find all tools, without importing any."""

from __future__ import annotations

from collections.abc import Sequence
from pkgutil import iter_modules
from types import ModuleType

from whystall.tools import host, profiles, ranks
from whystall.tools.contract.registry import Registry

# Packages in which every module or package but `common` is one tool of that name.
_TOOL_PACKAGES: Sequence[ModuleType] = (host, profiles)
_RANK_TOOLS = ("collective_live", "compare_runs", "slow_node_check")


def registry() -> Registry:
    """Return a registry with every tool: all found in the tool packages, and those of ranks."""
    modules = {name: f"{ranks.__name__}.{name}.tool" for name in _RANK_TOOLS}
    for package in _TOOL_PACKAGES:
        for _, name, is_package in iter_modules(package.__path__):
            if name != "common":
                modules[name] = f"{package.__name__}.{name}.tool" if is_package else f"{package.__name__}.{name}"
    return Registry(modules)
