"""Measure crash_analyse: the speed of its scan beside `grep -c`, and its answers on logs with known titles.

usage: python -m benchmarks.crash_logs [--mib 256] [--logs DIRECTORY] [--only FILE]

DIRECTORY: files as of syzkaller's pkg/report/testdata/linux/report: header lines (TITLE, ALT, TYPE, CORRUPTED), a blank
line, the log. FILE: names of the files to use, one a line.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from whystall.tools.crashes.kernel import KernelReport, beginning, report
from whystall.tools.crashes.read import read_logs
from whystall.tools.crashes.rules import kernel_rules
from whystall.tools.node.log_lines import lines

_LINES = (
    "audit: type=1400 audit(1782744483.667:789): avc:  denied  { write } for  pid=29603 comm=",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth1: link becomes ready",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
    "mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged",
    "docker0: port 3(veth8a21) entered forwarding state",
)
# Errors that the hardware corrected; the logs do not count them.
_CORRECTED = ("memory_error_corrected", "machine_check_logged", "pcie_error_survived")
# Classes that a TYPE stands for; the parts of others before the first hyphen are the class.
_CLASSES = {
    "HANG": {"hung_task", "soft_lockup", "hard_lockup", "rcu_stall", "workqueue_lockup"},
    "WARNING": {"warning", "deadlock", "refcount"},
    "BUG": {"bug"},
    "DoS": {
        *("panic", "general_protection", "cpu_exception", "double_fault", "oops", "memory_corruption", "slab"),
        *("reference_leak", "stack_overflow"),
    },
    "MEMORY_SAFETY_UBSAN": {"ubsan"},
    "MEMORY_SAFETY_BUG": {"page_fault", "null_dereference", "memory_corruption"},
    "NULL-POINTER-DEREFERENCE": {"null_dereference"},
    "REFCOUNT_WARNING": {"refcount"},
    "LOCKDEP": {"deadlock", "lock_misuse", "lock_leaked", "rcu_misuse"},
    "ATOMIC_SLEEP": {"atomic_sleep"},
    "LEAK": {"memory_leak"},
}


def speed(mib: int) -> None:
    """Print MB/s of the scan and of grep on the same file of `mib` MiB, and the peak memory of this process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "console.log"
        block = "".join(f"[{n / 1000:12.6f}] {_LINES[n % len(_LINES)]}\n" for n in range(20_000)).encode()
        with path.open("wb") as file:
            while file.tell() < mib << 20:
                file.write(block)
        size = path.stat().st_size / 1e6
        read_logs([str(path)])  # the page cache, the rules
        before, cpu = time.monotonic(), time.process_time()
        read_logs([str(path)])
        wall, cpu = time.monotonic() - before, time.process_time() - cpu
        before = time.monotonic()
        subprocess.run(["grep", "-c", "BUG: ", path], stdout=subprocess.DEVNULL, check=False)
        grep = time.monotonic() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{size:.0f} MB: {size / wall:.0f} MB/s ({size / cpu:.0f} MB per s of CPU), grep -c {size / grep:.0f} MB/s")
    print(f"ratio to grep {wall / grep:.1f}; peak memory of the process {peak:.0f} MiB")


def first(log: bytes) -> KernelReport | None:
    """Return the first report in `log`."""
    rules = kernel_rules()
    parts = list(lines(log))
    for at, part in enumerate(parts):
        if part.origin != "user" and beginning(part, rules) is not None:
            found = report(parts[at : at + 1000], rules)
            if found is not None and found.kind not in _CORRECTED:
                return found
    return None


def answers(folder: Path, names: list[str]) -> None:
    """Print how many titles and classes are right, and how many logs without a crash stay silent."""
    right = dict.fromkeys(("title", "same_bug", "class", "silent", "corrupted"), 0)
    titled = classed = negatives = 0
    for name in names:
        data = (folder / name).read_bytes()
        head, _, log = (b"", b"", data) if data.startswith(b"\n") else data.partition(b"\n\n")
        log = log.split(b"\nREPORT:")[0]
        known: dict[str, list[str]] = {}
        for line in head.decode("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            known.setdefault(key, []).append(value.strip())
        title, kind = (known.get(key, [""])[0] for key in ("TITLE", "TYPE"))
        found = first(log)
        if not title:
            negatives += 1
            right["silent"] += found is None
            continue
        titled += 1
        names_found = {found.title, *found.also} if found is not None else set()
        right["title"] += found is not None and found.title == title
        right["same_bug"] += bool(names_found & {title, *known.get("ALT", [])})
        right["corrupted"] += found is not None and found.corrupted == (known.get("CORRUPTED") == ["Y"])
        if kind:
            classed += 1
            wanted = _CLASSES.get(kind, {kind.partition("-")[0].lower()})
            right["class"] += found is not None and found.kind in wanted
    print(f"title {right['title']}/{titled}, same bug {right['same_bug']}/{titled}, class {right['class']}/{classed}")
    print(f"silent {right['silent']}/{negatives}, recognised as corrupted {right['corrupted']}/{titled}")


def main() -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--only", type=Path)
    given = parser.parse_args()
    if given.mib:
        speed(given.mib)
    if given.logs is not None:
        every = sorted(path.name for path in given.logs.iterdir() if path.is_file())
        names = given.only.read_text("utf-8").split() if given.only is not None else every
        answers(given.logs, names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
