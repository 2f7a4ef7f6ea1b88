"""The addresses of this host, to know whether an alert of ``10.0.0.7:9100`` is about it."""

from __future__ import annotations

import ipaddress
from pathlib import Path


def own(root: Path = Path("/proc")) -> tuple[str, ...]:
    """All addresses of the network namespace of `root`; empty where the kernel does not tell them."""
    return tuple(dict.fromkeys([*_four(_read(root / "net/fib_trie")), *_six(_read(root / "net/if_inet6"))]))


def _four(trie: str) -> list[str]:
    """Of the routing table (Documentation/networking/fib_trie.rst): a leaf, and below it what it is to this host."""
    found, leaf = [], ""
    for line in trie.splitlines():
        said = line.strip()
        if said.startswith("|-- "):
            leaf = said.removeprefix("|-- ")
        elif said == "/32 host LOCAL":
            found.append(leaf)
    return found


def _six(table: str) -> list[str]:
    words = [line.split()[0] for line in table.splitlines() if line.strip()]
    return [str(ipaddress.IPv6Address(int(word, 16))) for word in words if len(word) == 32]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
