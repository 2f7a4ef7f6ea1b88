"""Read ``py-spy dump`` and ``top`` by the fixed rules of pyspy_top.yaml, as an experienced engineer would."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.adapters.pyspy_look import Look, ThreadSample, look, program
from benchmarks.faults.judgement import judgement

_RULES = Path(__file__).with_suffix(".yaml")
_ANSWER_SHARE = 0.4  # of the dumps, from which a wait is named as likely
_NOTICE_SHARE = 0.2  # from which it is named at all
_READY_SHARE = 0.25  # of the time ready without running, from which a thread lacks a CPU
_BUSY_PCT = 30.0
_INACTIVE_PCT = 1.0  # CPU time of a job that does nothing at all
_IDLE_PCT = 5.0
_GROWTH_MIB_S = 4.0
_SWAPPED_MIB = 10.0
_INNERMOST = 3
_IDLE = ("events", "other", "futex")
_OF_OTHERS = ("socket_wait", "collective_wait", "file_read", "file_metadata", "handover_wait")
_SHORT_SLEEP = re.compile(r"sleep\(0?\.0\d")
_SERVER = re.compile(r"socketserver\.py|http/server\.py|asyncio/|uvicorn|tornado|gunicorn")


@dataclass
class Reading:
    """What the rules conclude. `line`: the line of the program, `pids`: processes and threads that cause it."""

    measure: str
    share: float
    cause: str
    line: str = ""
    pids: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    direct: bool = False


@cache
def rules() -> dict[str, Any]:
    """Return the rules, read once."""
    found: dict[str, Any] = yaml.safe_load(_RULES.read_text(encoding="utf-8"))
    return found


def measure(sample: ThreadSample, others: Iterable[ThreadSample] = ()) -> str:
    """Return what a thread does at one instant; `others`: the other threads of its process at the same instant."""
    inner = sample.frames[:_INNERMOST]
    texts = {
        "wchan": sample.wchan,
        "source": next((one.source for one in inner), ""),
        "frames": "\n".join(f"{one.function} {one.file.rpartition('/')[2]}" for one in inner),
    }
    # frames of torch.distributed are recognised by their directory
    texts["frames"] += "\n" + "\n".join(f"{one.function} {one.file}" for one in inner)
    for rule in rules()["threads"]:
        state = rule.get("state", sample.state)
        if sample.state == state and all(re.search(rule[key], text) for key, text in texts.items() if key in rule):
            found = str(rule["measure"])
            break
    else:
        return "other"
    # A thread with a line that waits for nothing waits for the interpreter lock, if another thread has it.
    if found == "futex" and sample.frames and any(one.gil and one.tid != sample.tid for one in others):
        return "interpreter_lock_wait"
    return found


def program_line(sample: ThreadSample) -> str:
    """Return the innermost line that is not in a library."""
    own = [one for one in sample.frames if "/lib/python" not in one.file and "site-packages" not in one.file]
    return str((own or [*sample.frames, ""])[0])


def focus(seen: Look) -> list[tuple[ThreadSample, str]]:
    """Return the samples of the thread that matters, with what it did: of a server its handlers, else the main thread.

    Threads of a server that wait for something to do are left out.
    """
    every = [(one, measure(one, dump)) for dump in seen.dumps for one in dump]
    main = [pair for pair in every if pair[0].tid == seen.pid]
    if not is_server(seen):
        return main
    return [(s, m) for s, m in every if m not in _IDLE and s.frames and not (s.tid == seen.pid and m == "sleep")]


def is_server(seen: Look) -> bool:
    """Return whether a thread is in the code of a server."""
    return any(_SERVER.search(frame.file) for dump in seen.dumps for one in dump for frame in one.frames)


def read(seen: Look) -> Reading | None:
    """Return what the look shows; None if nothing stands out."""
    samples = focus(seen)
    if not samples:
        return None
    counts = Counter(found for _, found in samples)
    same = len({(sample.frames, found) for sample, found in samples}) == 1 and _job_pct(seen) < _INACTIVE_PCT
    for state in ("stopped", "traced", "frozen"):
        if counts[state] >= len(samples) / 2:
            return _reading(state, samples, counts, pids=[seen.pid], direct=True)
    if (found := _cpu_wait(seen, samples)) is not None:
        return found
    waits = [(one, n) for one, n in counts.most_common() if one not in (*_IDLE, "own_cpu", "garbage_collection")]
    # handlers that wait for one another wait for what the foremost of them waits for
    behind = [one for one in waits if one[0] not in ("lock_wait", "handover_wait")]
    if waits and waits[0] not in behind and behind and is_server(seen):
        return _reading(behind[0][0], samples, counts, share=waits[0][1] / len(samples), also=["lock_wait"])
    strongest, number = waits[0] if waits else ("", 0)
    if number >= _ANSWER_SHARE * len(samples):
        return _wait(seen, strongest, samples, counts, same)
    if _growth(seen) >= _GROWTH_MIB_S:
        return _as(
            "memory_growth", _reading("own_cpu", samples, counts, cause="memory_growth", share=1.0, pids=[seen.pid])
        )
    if number >= _NOTICE_SHARE * len(samples):
        return _wait(seen, strongest, samples, counts, same)
    return _computing(seen, samples, counts)


def _reading(
    found: str,
    samples: Sequence[tuple[ThreadSample, str]],
    counts: Counter[str],
    *,
    cause: str = "",
    share: float | None = None,
    **more: Any,
) -> Reading:
    lines = Counter(program_line(sample) for sample, one in samples if one == found and sample.frames)
    files = Counter(sample.file for sample, one in samples if one == found and _has_file(sample, one))
    return Reading(
        found,
        counts[found] / len(samples) if share is None else share,
        cause or rules()["causes"][found]["cause"],
        line=lines.most_common(1)[0][0] if lines else "",
        files=[name for name, _ in files.most_common(2)],
        **more,
    )


def _cpu_wait(seen: Look, samples: Sequence[tuple[ThreadSample, str]]) -> Reading | None:
    """Return why the thread was ready and did not run; None if it ran when it was ready."""
    tid = Counter(sample.tid for sample, _ in samples).most_common(1)[0][0]
    ran = (seen.user_pct.get(tid, 0.0) + seen.system_pct.get(tid, 0.0)) / 100
    lacked = seen.ready.get(tid, 0.0) - ran
    if lacked < _READY_SHARE:
        return None
    ready = [one for one, share in seen.ready.items() if share >= 1 / 2]
    busy = {pid: pct for pid, pct in seen.others.items() if pct >= _BUSY_PCT / 2}
    real_time = [pid for pid in seen.real_time if seen.others.get(pid, 0.0) >= _BUSY_PCT / 2]
    pids: list[int] = []
    if real_time:
        cause, pids = "real_time_hog", real_time
    elif seen.allowed < seen.cpus and seen.idle_pct >= 100 / seen.cpus / 2:
        cause = "wrong_affinity"
    elif len(ready) > seen.allowed and sum(busy.values()) < _job_pct(seen):
        cause, pids = "thread_oversubscription", ready
    elif sum(busy.values()) >= _BUSY_PCT:
        cause, pids = "cpu_contention", sorted(busy, key=lambda pid: -busy[pid])
    elif seen.idle_pct >= 100 / seen.cpus / 2:
        cause = "cgroup_cpu_throttling"
    else:
        cause = "cpu_contention"
    found = "throttled_time" if cause == "cgroup_cpu_throttling" else "cpu_wait"
    counts = Counter(one for _, one in samples)
    return _as(
        found, _reading("own_cpu", samples, counts, cause=cause, share=lacked, pids=pids, also=["cpu_contention"])
    )


def _wait(
    seen: Look, found: str, samples: Sequence[tuple[ThreadSample, str]], counts: Counter[str], same: bool
) -> Reading:
    """Return the cause of a wait, by what is waited for."""
    known = rules()["causes"][found]
    reading = _reading(found, samples, counts, cause=known["stuck"] if same and "stuck" in known else "")
    rest = [
        (one, measure(one, dump)) for dump in seen.dumps for one in dump if one.tid not in {s.tid for s, _ in samples}
    ]
    fuse = [one for one, _ in [*samples, *rest] if re.search("request_wait_answer|fuse", one.wchan)]
    if same and seen.stopped and found in _OF_OTHERS:  # `ps` shows stopped processes of the whole host
        return _with(reading, "stopped_process", pids=seen.stopped, also=[reading.cause])
    if found in ("lock_wait", "handover_wait", "child_wait") and rest:
        return _behind(seen, reading, rest, same)
    if found == "page_fault" and seen.swap_mib >= _SWAPPED_MIB:
        return _as("swap_in", _with(reading, "swap_wait", also=[reading.cause]))
    if fuse and found.startswith("file_") and not same:
        return _with(reading, "remote_file_system", also=[reading.cause])
    sources = [sample.frames[0].source for sample, one in samples if one == found == "sleep" and sample.frames]
    if any(_SHORT_SLEEP.search(source) for source in sources):
        return _with(reading, "polling_loop", also=["sleep_in_code"])
    return reading


def _behind(seen: Look, reading: Reading, rest: Sequence[tuple[ThreadSample, str]], same: bool) -> Reading:
    """Return what the other threads and child processes did while the thread waited for one of them."""
    cpu = {tid: seen.user_pct.get(tid, 0.0) + seen.system_pct.get(tid, 0.0) for tid in {one.tid for one, _ in rest}}
    worker = max(cpu, key=lambda tid: cpu[tid])
    stopped = [one.pid for one, found in rest if found == "stopped"]
    if stopped:
        return _with(reading, "stopped_process", pids=[stopped[0]])
    lock = reading.measure == "lock_wait"
    if cpu[worker] >= _BUSY_PCT and reading.measure != "child_wait":
        cause = "lock_held_computing" if lock else "data_loader_slow"
        return _with(reading, cause, pids=[worker, seen.owner.get(worker, worker)], line=_line(rest, worker, "own_cpu"))
    if reading.measure == "child_wait":
        locked = [one for one, found in rest if found == "lock_wait" and one.pid != seen.pid]
        return _with(reading, "deadlock", line=_line(rest, locked[0].tid, "lock_wait")) if same and locked else reading
    if same and lock:
        return reading
    does = Counter((one.tid, found) for one, found in rest if found not in (*_IDLE, "lock_wait", "handover_wait"))
    if not does:
        return reading
    # a thread that only sleeps is seldom what is waited for
    (tid, found), number = max(does.items(), key=lambda one: (one[0][1] != "sleep", one[1]))
    if number < _NOTICE_SHARE * len(seen.dumps) or found not in rules()["causes"]:
        return reading
    behind = rules()["causes"][found]
    own = [one for one, what in rest if one.tid == tid and what == found]
    fuse = any(re.search("request_wait_answer|fuse", one.wchan) for one in own)
    cause = behind.get("stuck" if same else "cause", behind["cause"])
    if fuse and not same:
        cause = "remote_file_system"
    files = [one.file for one in own if _has_file(one, found)]
    reading.files += files[:1]
    if lock:
        return _with(reading, "lock_held_blocked", pids=[tid], also=[cause], line=_line(rest, tid, found))
    return _with(reading, cause, pids=[tid], also=[reading.cause], line=_line(rest, tid, found))


def _computing(seen: Look, samples: Sequence[tuple[ThreadSample, str]], counts: Counter[str]) -> Reading | None:
    """Return what the thread computes, if it computes most of the time."""
    computing = counts["own_cpu"] + counts["garbage_collection"]
    if computing < _ANSWER_SHARE * len(samples):
        return None
    if counts["garbage_collection"] >= _NOTICE_SHARE * len(samples):
        return _reading("garbage_collection", samples, counts, pids=[seen.pid])
    on_loop = [s for s, m in samples if m == "own_cpu" and any("asyncio/" in frame.file for frame in s.frames)]
    if len(on_loop) >= _NOTICE_SHARE * len(seen.dumps):
        return _reading("own_cpu", samples, counts, cause="event_loop_blocked", also=["own_hot_code"])
    tid = samples[0][0].tid
    if seen.system_pct.get(tid, 0.0) >= max(_BUSY_PCT, seen.user_pct.get(tid, 0.0)):
        return _as("system_cpu", _reading("own_cpu", samples, counts, cause="kernel_cpu_in_syscall"))
    return _reading("own_cpu", samples, counts)


def _as(found: str, reading: Reading) -> Reading:
    """Return a reading of the busiest line under another measure."""
    reading.measure = found
    return reading


def _with(reading: Reading, cause: str, *, line: str = "", **more: Any) -> Reading:
    for key, value in more.items():
        setattr(reading, key, value)
    reading.cause = cause
    reading.line = " ".join(dict.fromkeys(filter(None, (reading.line, line))))
    return reading


def _has_file(sample: ThreadSample, found: str) -> bool:
    return sample.file.startswith("/") and found.startswith("file_")


def _line(samples: Iterable[tuple[ThreadSample, str]], tid: int, found: str) -> str:
    lines = Counter(program_line(one) for one, what in samples if one.tid == tid and what == found and one.frames)
    return lines.most_common(1)[0][0] if lines else ""


def _job_pct(seen: Look) -> float:
    return sum(seen.user_pct.values()) + sum(seen.system_pct.values())


def _growth(seen: Look) -> float:
    """Return by how many MiB a second the job's memory grew, in the slower half of the look; there are four dumps a
    second.
    """
    if len(seen.rss_mib) < 4:
        return 0.0
    middle = len(seen.rss_mib) // 2
    halves = (seen.rss_mib[: middle + 1], seen.rss_mib[middle:])
    return min((half[-1] - half[0]) / (len(half) - 1) * 4 for half in halves)


def answer(seen: Look) -> dict[str, Any]:
    """Return the answer of the rules."""
    found = read(seen)
    detail = {"idle_pct": round(seen.idle_pct, 1), "iowait_pct": round(seen.iowait_pct, 1), "py-spy": seen.error}
    if found is None and not any(one.frames for dump in seen.dumps for one in dump):
        return {"verdict": "inconclusive", "detail": detail}
    if found is None:
        return {"verdict": "idle" if _job_pct(seen) < _IDLE_PCT else "healthy", "detail": detail}
    verdict = "likely" if found.share >= _ANSWER_SHARE else "inconclusive"
    wait = rules()["causes"].get(found.measure, {}).get("wait")
    waits = [{"throttled_time": "quota"}.get(found.measure, wait)]
    return {
        "verdict": "confirmed" if found.direct else verdict,
        "causes": list(dict.fromkeys([found.cause, *found.also])),
        "scope": {
            "code": [found.line] if found.line else [],
            "pid": [str(pid) for pid in found.pids],
            "file": found.files,
            "wait": [one for one in waits if one],
        },
        "evidence": [{"measure": found.measure, "value": round(100 * found.share, 1), "unit": "% of the dumps"}],
        "advice": [{"action": action} for action in judgement().of([found.cause]).actions],
        "detail": detail,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--symptom", required=True)
    options = parser.parse_args()
    try:
        spy = program()
    except FileNotFoundError as error:
        sys.exit(str(error))
    print(json.dumps(answer(look(options.pid, spy))))


if __name__ == "__main__":
    main()
