"""The addresses of this host, to decide whether an alert of ``10.0.0.7:9100`` concerns it."""

from __future__ import annotations

import ipaddress
from pathlib import Path


def own(root: Path = Path("/proc")) -> tuple[str, ...]:
    """Return all addresses of the network namespace of `root`; empty if the kernel does not list them."""
    return tuple(dict.fromkeys([*_four(_read(root / "net/fib_trie")), *_six(_read(root / "net/if_inet6"))]))


def _four(trie: str) -> list[str]:
    """Return the local leaves of /proc/net/fib_trie (Documentation/networking/fib_trie.rst)::

    |-- 10.0.0.7
       /32 host LOCAL
    """
    found, leaf = [], ""
    for line in trie.splitlines():
        text = line.strip()
        if text.startswith("|-- "):
            leaf = text.removeprefix("|-- ")
        elif text == "/32 host LOCAL":
            found.append(leaf)
    return found


def _six(table: str) -> list[str]:
    # fe80000000000000021122fffe334455 02 40 20 80 eth0
    words = [line.split()[0] for line in table.splitlines() if line.strip()]
    return [str(ipaddress.IPv6Address(int(word, 16))) for word in words if len(word) == 32]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
