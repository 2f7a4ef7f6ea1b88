"""A small trace and the accelerator profile of the same second, as files: what the tests of the doors read.

Thread `TID` of a process wakes every 2 ms, launches a kernel of 1.5 ms, and sleeps again. The trace counts on mono, the
profile in the epoch; the trace notes both clocks.
"""

from __future__ import annotations

import json
from pathlib import Path

TID = 4000
PERIOD_NS, BUSY_NS, KERNEL_NS = 2_000_000, 200_000, 1_500_000
START_NS = 1_000_000_000_000
REAL_NS = 1_700_000_000_000_000_000
PERIODS = 500
HEAD = "# tracer: nop\n#\n#           TASK-PID       TGID    CPU#  |||||  TIMESTAMP  FUNCTION\n"


def trace_text(clock: str = "mono") -> str:
    """The trace, as whystall writes it."""
    about = {"version": 1, "clock": clock, "cpus": [0], "groups": ["sched"]}
    lines = [HEAD + f"# whystall: {json.dumps(about)}", clocks(0)]
    for number in range(PERIODS):
        at = number * PERIOD_NS + 100_000
        lines += [
            event(at, "<idle>", 0, f"sched_waking: comm=train pid={TID} prio=120 target_cpu=000"),
            event(at + 5_000, "<idle>", 0, switch("swapper/0", 0, "R", "train", TID)),
            event(at + BUSY_NS, "train", TID, switch("train", TID, "S", "swapper/0", 0)),
        ]
    lines += ['# whystall-lost: {"cpu":0,"overrun":0,"dropped":0}', clocks(PERIODS * PERIOD_NS)]
    return "\n".join([*lines, '# whystall-end: {"stopped_by":"duration"}', ""])


def event(at_ns: int, comm: str, tid: int, text: str) -> str:
    """One line of a trace."""
    seconds, rest = divmod(START_NS + at_ns, 10**9)
    return f"{comm:>16}-{tid:<7} ({tid or '-----':>7}) [000] d..2. {seconds}.{rest:09d}: {text}"


def switch(comm: str, tid: int, state: str, to: str, next_tid: int) -> str:
    """The payload of a context switch."""
    left = f"prev_comm={comm} prev_pid={tid} prev_prio=120 prev_state={state}"
    return f"sched_switch: {left} ==> next_comm={to} next_pid={next_tid} next_prio=120"


def clocks(at_ns: int) -> str:
    """The line with the host's clocks."""
    mono = START_NS + at_ns
    point = {"mono": mono, "mono_raw": mono + 17, "boot": mono, "real": REAL_NS + at_ns, "error_ns": 100}
    return f"# whystall-clocks: {json.dumps(point)}"


def profile_text(later_s: float = 0.0) -> str:
    """The profile in Kineto's form, `later_s` off."""
    events = []
    for number in range(PERIODS):
        at_us = (number * PERIOD_NS + 150_000) / 1e3 + later_s * 1e6
        kernel = {"device": 0, "stream": 7, "correlation": number + 1}
        events += [
            _slice("cuda_runtime", "cudaLaunchKernel", TID, TID, at_us, 20, {"correlation": number + 1}),
            _slice("kernel", "gemm", 0, 7, at_us + 30, KERNEL_NS / 1e3, kernel),
        ]
    about = {"schemaVersion": 1, "baseTimeNanoseconds": REAL_NS, "displayTimeUnit": "ms"}
    return json.dumps({**about, "traceEvents": events})


def _slice(
    category: str, name: str, pid: int, tid: int, at_us: float, length_us: float, args: dict[str, int]
) -> dict[str, object]:
    where = {"cat": category, "name": name, "pid": pid, "tid": tid}
    return {"ph": "X", **where, "ts": at_us, "dur": length_us, "args": args}


def write(directory: Path, clock: str = "mono", later_s: float = 0.0) -> tuple[Path, Path]:
    """Both files: trace and profile."""
    trace, profile = directory / "trace.txt", directory / "profile.json"
    trace.write_text(trace_text(clock))
    profile.write_text(profile_text(later_s))
    return trace, profile
