"""Send the profiles of one span: a program that reads a request from standard input and prints the result.

It runs in a process of its own at low priority, so that neither its libraries nor a slow receiver burden the watcher.
"""

from __future__ import annotations

import io
import json
import os
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.profile_push.receivers import Series
    from whystall.agent_server.settings.sections.profiles import ProfilesSettings
    from whystall.tools.recording.store import Recording
    from whystall.tools.stacks.model import StackProfile

_NICE = 5
_JOBS = 100
_NAME = 80  # characters, as the labels of metrics
_LIMIT = 1 << 20  # bytes of an answer


def main() -> None:
    """Send the span on standard input: ``{"directory": "...", "start_ns": 1, "end_ns": 2}`` (CLOCK_MONOTONIC)."""
    with suppress(OSError):  # a service may not be allowed to
        os.nice(_NICE)
    asked = json.loads(sys.stdin.read())
    try:
        sent, failed, error = push(Path(asked["directory"]), asked["start_ns"], asked["end_ns"])
    except ToolError as fault:
        sent, failed, error = 0, 1, f"{fault.code.value}: {fault.message}; {fault.remedy}"
    print(json.dumps({"sent": sent, "failed": failed, "error": error, "cpu_s": round(time.process_time(), 3)}))


def push(directory: Path, start_ns: int, end_ns: int) -> tuple[int, int, str]:
    """Send the profiles of each job, one request after the other; return how many jobs were stored, how many were not,
    and the last reason. Raises `ToolError`: the settings or the log cannot be used, or nothing of the span is kept."""
    import anyio

    from whystall.agent_server.settings.load import load
    from whystall.tools.collect.continuous import LOG_NAME
    from whystall.tools.collect.continuous_cut import recording_of
    from whystall.tools.collect.slice_log import read_log

    settings = load().profiles
    token = settings.token.read("[profiles] token") if settings.token is not None else ""
    jobs = jobs_of(directory, start_ns, end_ns)
    if not jobs:
        return 0, 0, ""
    recording = recording_of(read_log(directory / LOG_NAME), start_ns, end_ns)
    made = list(series_of(recording, jobs, settings.labels))
    return anyio.run(send, settings, token, made)


async def send(settings: ProfilesSettings, token: str, jobs: list[list[Series]]) -> tuple[int, int, str]:
    """Send the series of each job; return as `push`. What fails for all, fails once."""
    from whystall.agent_server.outbound.client import Client, Undelivered
    from whystall.agent_server.profile_push.receivers import refused, request_of

    sent, error = 0, ""
    async with Client(settings.timeout_s, _LIMIT, _trusted(settings.ca_file)) as client:
        for one in jobs:
            try:
                answer = await client.send(request_of(settings, token, one))
            except Undelivered as fault:
                error = str(fault)
                if fault.code in ("unreachable", "timeout", "unauthorised"):
                    break  # the others would fail likewise
                continue
            why = refused(settings, answer)
            error = why or error
            sent += not why
    return sent, len(jobs) - sent, clean(error, 500)


def _trusted(ca_file: Path | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ValueError):
        message = f"[profiles] ca_file: cannot use {ca_file}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give a readable file with certificates in PEM") from None


def jobs_of(directory: Path, start_ns: int, end_ns: int) -> dict[int, str]:
    """Return the names of the jobs by process: of those watched now, and of those of the minutes of the history in the
    span (CLOCK_MONOTONIC)."""
    from whystall.agent_server.watch.status import read_status
    from whystall.tools.collect.slice_history import history_minutes

    found: dict[int, str] = {}
    ahead = time.time_ns() - time.monotonic_ns()
    with suppress(ToolError):  # there is no history yet
        for minute in history_minutes(directory, start_ns + ahead, end_ns + ahead):
            found.update({pid: job.name for pid, job in minute.jobs.items()})
    status = read_status(directory) or {}
    with suppress(KeyError, TypeError, ValueError):  # of another version
        found.update({int(one["pid"]): str(job["name"]) for job in status["jobs"] for one in job["processes"]})
    return {pid: clean(name, _NAME) or "unknown" for pid, name in found.items()}


def series_of(recording: Recording, jobs: Mapping[int, str], labels: Mapping[str, str]) -> Iterator[list[Series]]:
    """Yield the profiles of each job that has any: ``process_cpu``; ``off_cpu``, the time its threads waited;
    ``accelerator_calls`` and ``accelerator_time``, calls of accelerators' libraries, if they are recorded."""
    from whystall.agent_server.profile_push.receivers import Series
    from whystall.tools.node.vantage import host_name
    from whystall.tools.profiles.common.events import only_event
    from whystall.tools.profiles.common.off_cpu import stacks_of_waits
    from whystall.tools.stacks.recorded import CALLS, NUMBER, TIME, stacks_of

    kinds = [("process_cpu", "cpu", stacks_of(recording))]
    with suppress(ToolError):  # no thread waited
        kinds.append(("off_cpu", "off_cpu", stacks_of_waits(recording)))
    if recording.has(CALLS):
        calls = stacks_of(recording, CALLS)
        named = ((event, event.replace("-", "_")) for event in (NUMBER, TIME))
        kinds += [(name, name, only_event(calls, event)) for event, name in named]
    family = _family(recording, jobs)
    members: dict[str, set[int]] = {}
    for pid, name in family.items():
        members.setdefault(name, set()).add(pid)
    for name, pids in sorted(members.items())[:_JOBS]:
        own = {**labels, "service_name": name, "job_name": name, "host": clean(host_name(), _NAME) or "unknown"}
        made = [
            Series({**own, "__name__": kind}, packed)
            for kind, event, profile in kinds
            if (packed := _pprof(recording, profile, event, pids))
        ]
        if made:
            yield made


def _family(recording: Recording, jobs: Mapping[int, str]) -> dict[int, str]:
    """Return the jobs of all recorded processes; one that is not known belongs to the job of its parent."""
    found = dict(jobs)
    processes = recording.find("proc.processes")
    if processes is None:
        return found
    parents: dict[int, int] = dict(processes.select("pid", "ppid").iter_rows())
    for pid in parents:
        line: list[int] = []
        at = pid
        while at in parents and at not in found and len(line) < len(parents):
            line.append(at)
            at = parents[at]
        found.update(dict.fromkeys(line, found[at]) if at in found else {})
    return found


def _pprof(recording: Recording, profile: StackProfile, event: str, pids: set[int]) -> bytes:
    """Return the samples of `pids`, gzipped, without their threads: names of threads would become series; empty if
    there are none. Names of frames were made inert when they were recorded."""
    import polars as pl

    from whystall.tools.stacks.model import NO_THREAD
    from whystall.tools.stacks.writers.pprof import Taken, write_pprof

    manifest = recording.manifest
    threads = profile.threads.filter(pl.col("pid").is_in(pids))["thread"]
    samples = profile.samples.filter(pl.col("thread").is_in(threads.implode()), pl.col("event") == 0)
    if samples.is_empty():
        return b""
    samples = samples.with_columns(thread=pl.lit(NO_THREAD, pl.Int32))
    events = profile.events.head(1).with_columns(name=pl.lit(event))  # Pyroscope refuses the - of cpu-clock
    one = replace(profile, tables={**profile.tables, "samples": samples, "events": events})
    at = time.time_ns() - time.monotonic_ns() + manifest.start_ns
    file = io.BytesIO()
    write_pprof(one, 0, file, Taken(at, manifest.window_ns, max(1, round(events["period"][0]))))
    return file.getvalue()


if __name__ == "__main__":
    main()
