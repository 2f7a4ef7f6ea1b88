"""A peer of `text_convert`: ftrace's text to Chrome's JSON, a regular expression per line: ``IN OUT``."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

_HEAD = re.compile(r"^ *(.+)-(\d+) +(?:\( *(\d+|-+)\) +)?\[(\d+)\] +(?:(\S+) +)?(\d+\.\d+): (\w+): (.*)$")
_SWITCH = re.compile(
    r"prev_comm=(.*) prev_pid=(\d+) prev_prio=(-?\d+) prev_state=(\S+) ==> "
    r"next_comm=(.*) next_pid=(\d+) next_prio=(-?\d+)"
)


def main(source: str, output: str) -> None:
    """Write a slice per thread on a CPU, and an instant per other event."""
    running: dict[str, tuple[str, float, str]] = {}
    events: list[dict[str, Any]] = []
    with open(source, errors="replace") as lines:
        for line in lines:
            head = _HEAD.match(line)
            if head is None:
                continue
            comm, tid, _, cpu, _, seconds, event, rest = head.groups()
            at = float(seconds) * 1e6
            switch = _SWITCH.match(rest) if event == "sched_switch" else None
            if switch is None:
                about = {"cpu": cpu, "what": rest}
                events.append({"name": event, "ph": "i", "pid": comm, "tid": tid, "ts": at, "s": "t", "args": about})
                continue
            if cpu in running:
                name, start, pid = running[cpu]
                about = {"tid": pid, "state": switch[4]}
                slice_ = {"name": name, "ph": "X", "pid": "cpu", "tid": cpu, "ts": start, "dur": at - start}
                events.append({**slice_, "args": about})
            running[cpu] = (switch[5], at, switch[6])
    with open(output, "w") as out:
        json.dump({"traceEvents": events}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
