"""Write the table of kernels and tools in docs/kernels.md from the results of the last full run (`results.json`).

usage: python -m kernels.table    writes it into docs/kernels.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs/kernels.md"
BEGIN = "<!-- kernels: written by `make test-kernels` from tests/kernels/results.json -->\n"
END = "<!-- end of kernels -->\n"
ENGINES = ("ebpf", "bcc", "tracefs", "procfs")
"""Engines by preference; others follow by name."""


def table(results: Mapping[str, Any]) -> str:
    """Markdown: a row per tool, two columns per kernel: as root, and with capabilities only.

    Raises:
        ValueError: a kernel failed, so nothing may be claimed of it.
    """
    for name, result in results.items():
        if result["verdict"] != "passed":
            raise ValueError(f"kernel {name} did not pass")
    names = sorted(results, key=_order)
    tools = sorted({seen["tool"] for result in results.values() for seen in result["seen"]})
    heads = [f"{results[name]['release']}{_remark(name, results[name])}" for name in names]
    lines = ["| tool | " + " | ".join(heads) + " |", "|---|" + "---|" * len(names)]
    for tool in tools:
        cells = [_cell(tool, results[name]["seen"]) for name in names]
        lines.append(f"| `{tool}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _order(name: str) -> tuple[int, ...]:
    """Series by number; this host last."""
    return tuple(int(part) for part in name.split(".")) if name[0].isdigit() else (sys.maxsize,)


def _remark(name: str, result: Mapping[str, Any]) -> str:
    return "" if any(seen["kprobes"] for seen in result["seen"]) else ", no kprobes"


def _cell(tool: str, seen: list[Mapping[str, Any]]) -> str:
    """Engines as root; what differs with capabilities only; nothing where the tool was not judged."""
    by_privilege = {
        privilege: _engines(one for one in seen if (one["tool"], one["privilege"]) == (tool, privilege))
        for privilege in ("root", "capabilities")
    }
    root, capabilities = by_privilege["root"], by_privilege["capabilities"]
    if not capabilities:
        return f"{root}; capabilities: not tried" if root else "-"
    return root if capabilities == root else f"{root}; capabilities: {capabilities}"


def _engines(seen: Any) -> str:
    """``ebpf`` or ``ebpf + procfs`` (one answer from both), alternatives with ``or``: ``ebpf or bcc``."""
    ways = {tuple(sorted(set(one["engines"].values()), key=_rank)) for one in seen}
    # collectors that only some arguments need: the longer answer says it all
    told = [way for way in ways if not any(set(way) < set(other) for other in ways)]
    return " or ".join(" + ".join(way) for way in sorted(told, key=lambda way: [_rank(engine) for engine in way]))


def _rank(engine: str) -> tuple[int, str]:
    return (ENGINES.index(engine) if engine in ENGINES else len(ENGINES), engine)


def with_table(page: str, made: str) -> str:
    """Return the page with its table replaced.

    Raises:
        ValueError: it lacks the lines around the table.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the lines {BEGIN.strip()!r} and {END.strip()!r}")
    return before + begin + made + end + after


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_table(text, table(json.loads(RESULTS.read_text(encoding="utf-8")))), encoding="utf-8")
