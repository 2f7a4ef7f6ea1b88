"""Measure what a fleet of 10, 100 and 1,000 hosts costs its centre: messages, bytes, CPU time, peak of memory.

Every host is an MCP server over HTTP on a port of loopback, all in one process, and answers at once with what a
recording gave: 8 ranks of one job, one of them late, of ``tests/hung_hosts.py`` and ``tests/collective_windows.py``.
The centre is a process of its own for each question.

``python -m benchmarks.fleet_scale [--hosts 10,100]`` prints the table alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from benchmarks.common import PYTHON, ROOT, Report, Row, child_command, publish

OF_HOST = 8
SIZES = (10, 100, 1000)
LATE = 3
_STEPS = 100  # with two operations each
_DISTINCT = 8  # hosts; the others are copies of these, but for the numbers of ranks
_TOKEN = "a-token-of-the-fleet-0123456789"
_WINDOW_S = 300  # hosts answer at once: a slow machine must not make them late
_QUESTIONS: dict[str, dict[str, Any]] = {
    "host_snapshot": {},
    "hang": {"duration": _WINDOW_S},
    "collective_live": {"duration": _WINDOW_S},
    "slow_node_check": {"live": True, "duration": _WINDOW_S},
}
_MOST = {"slow_node_check": 100}
"""Hosts: the judgement of more takes too long to be measured each time."""
_HOST: ContextVar[int] = ContextVar("host")


# --- the hosts ------------------------------------------------------------------------------------------------------


def serve(count: int) -> None:
    """Serve `count` hosts: print their addresses, then for each line read the requests and bytes since the last."""
    sys.path.append(str(ROOT / "tests"))
    from collective_windows import PID, Job
    from fleet_servers import RecordedHost, scene, serving
    from hung_hosts import hung_host

    from whystall.agent_server.interfaces.mcp import jobs
    from whystall.agent_server.interfaces.mcp.http import http_app
    from whystall.agent_server.interfaces.mcp.server import McpServer
    from whystall.agent_server.job_lookup.models import Job as FoundJob
    from whystall.agent_server.job_lookup.models import Rank, Resolution
    from whystall.tools.contract.result import ToolResult
    from whystall.tools.recording.store import Recording

    world, late_host = OF_HOST * count, count // 2
    job = Job(ranks=OF_HOST * _DISTINCT, late_ms={LATE: 30}, steps=_STEPS).recording()

    class Hosts(RecordedHost):
        """All hosts: which one is asked is in the context of the request."""

        def __init__(self) -> None:
            super().__init__(scene().build())
            self.templates: dict[tuple[str, bool], ToolResult[Any]] = {}

        async def run_tool(self, name: str, arguments: dict[str, Any], **_: Any) -> ToolResult[Any]:
            host, late = _HOST.get(), _HOST.get() == late_host and name == "hang"
            if (name, late) not in self.templates:
                ranks = hung_host("node", range(OF_HOST), world, late=[LATE] if late else [], window_s=2)
                self.recording = ranks if name == "hang" else scene().build()
                self.templates[name, late] = await super().run_tool(name, arguments)
            result = self.templates[name, late].model_copy(deep=True)
            result.coverage.host = f"node{host:04d}"
            for row in result.data.rows if name == "hang" else ():
                row.rank += OF_HOST * host
                for group in row.groups:
                    group.rank += OF_HOST * host
            return result

        async def window(self, name: str, pid: int, seconds: float) -> Recording:
            """The template, with the numbers of the host's ranks."""
            self.recording = _of_host(job, _HOST.get(), late_host, world)
            return await super().window(name, pid, seconds)

    async def find(_wanted: Any) -> Resolution:
        pids = range(PID, PID + OF_HOST)
        ranks = [Rank(rank=OF_HOST * _HOST.get() + number, pid=pid) for number, pid in enumerate(pids)]
        known = {"id": "slurm:42", "kind": "slurm", "name": "llama", "program": "train.py"}
        job = FoundJob(**known, pid=PID, processes=OF_HOST, pids=list(pids), workers=list(pids), ranks=ranks)
        return Resolution(status="found", pid=PID, rank=ranks[0].rank, job=job)

    jobs.find = find
    server = McpServer(Hosts())
    seen = {"requests": 0, "received": 0}
    inner = http_app(server, "127.0.0.1", _TOKEN)

    def application(host: int) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan" and host:  # of all hosts one
                for phase in ("startup", "shutdown"):
                    await receive()
                    await send({"type": f"lifespan.{phase}.complete"})
                return

            async def counted() -> Any:
                message = await receive()
                seen["received"] += len(message.get("body", b""))
                return message

            _HOST.set(host)
            seen["requests"] += scope["type"] == "http"
            await inner(scope, counted, send)

        return app

    with serving({f"node{host:04d}": application(host) for host in range(count)}) as urls:
        print(json.dumps(urls), flush=True)
        for _ in sys.stdin:
            print(json.dumps(seen), flush=True)
            seen.update(requests=0, received=0)


def _of_host(job: Any, host: int, late_host: int, world: int) -> Any:
    """Return the window of a host, whose ranks are eight of `job`: the first ones, if it has the late rank."""
    import polars as pl

    from whystall.tools.recording.store import Recording

    place = 0 if host == late_host else 1 + host % (_DISTINCT - 1)
    first = job.manifest.target.pid
    pids = {first + OF_HOST * place + local: first + local for local in range(OF_HOST)}
    tables = {}
    for name, frame in job.tables().items():
        if "pid" in frame.columns:
            frame = frame.filter(pl.col("pid").is_in(list(pids)))
            frame = frame.with_columns(pl.col("pid").replace_strict(pids, return_dtype=pl.Int64))
        if "tid" in frame.columns:
            frame = frame.with_columns(tid=pl.col("pid"))
        tables[name] = frame
    number = pl.col("pid") - first + OF_HOST * host
    sizes = {"rank": number, "size": pl.lit(world, pl.Int64)}
    tables["objects.process_groups"] = tables["objects.process_groups"].with_columns(**sizes)
    size = pl.lit(world, pl.Int64)
    tables["collectives.processes"] = tables["collectives.processes"].with_columns(world_size=size)
    manifest = job.manifest.model_copy(deep=True)
    manifest.host = f"node{host:04d}"
    return Recording.in_memory(manifest, tables)


# --- the centre -----------------------------------------------------------------------------------------------------


def centre(tool: str, urls: Mapping[str, str]) -> dict[str, Any]:
    """Ask all hosts for `tool`, and return what it took this process."""
    sys.path.append(str(ROOT / "tests"))
    from fleet_servers import settings

    from whystall.agent_server.fleet import ask as module
    from whystall.agent_server.fleet import http
    from whystall.agent_server.fleet.ask import FleetParams, ask

    os.environ["FLEET_TOKEN"] = _TOKEN
    job = None if tool == "host_snapshot" else "llama"
    at_once = 256 if job is None else 4096
    known = settings(urls, at_once=at_once, host_deadline=1800, deadline=3600)
    merging = []
    merge = module.merge

    def merged(*given: Any) -> Any:
        begin = time.process_time()
        result = merge(*given)
        merging.append(time.process_time() - begin)
        return result

    module.merge = merged
    http._CONNECT_S = 1800.0  # all hosts share a machine, which may be slow
    base, begin, cpu = _peak_mb(), time.monotonic(), time.process_time()
    result = asyncio.run(ask(FleetParams(tool=tool, arguments=_QUESTIONS[tool], job=job), known))
    return {
        "wall": time.monotonic() - begin,
        "cpu": time.process_time() - cpu,
        "merging": merging[0],
        "peak": _peak_mb(),
        "base": base,
        "bytes": sum(one.bytes for one in result.hosts),
        "listed": len(result.hosts),
        "answered": result.answered,
        "rank": result.suspect.rank if result.suspect else None,
        "missing": [one.model_dump() for one in result.missing],
    }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# --- the report -----------------------------------------------------------------------------------------------------


def run(_rounds: int, sizes: Sequence[int] = SIZES, tools: Sequence[str] = tuple(_QUESTIONS)) -> Report:
    """Ask each question once per number of hosts. Raises ``RuntimeError`` if a host does not answer, or the wrong rank
    is named."""
    report = Report("What a fleet costs its centre: hosts with 8 ranks each")
    resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as home:
        for count in sizes:
            environment = {**os.environ, "WHYSTALL_HOME": home}
            words = [PYTHON, "-m", "benchmarks.fleet_scale", "--serve", str(count)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
            with subprocess.Popen(child_command(words), env=environment, **pipes) as servers:  # type: ignore[call-overload]
                urls = json.loads(servers.stdout.readline())
                for tool in (tool for tool in tools if count <= _MOST.get(tool, count)):
                    report.rows.append(_question(tool, count, urls, servers, environment))
                    print(report.rows[-1], file=sys.stderr, flush=True)
                servers.stdin.close()
    report.notes += [
        "hosts are simulated and answer at once: the time is what the centre and all hosts take on this machine",
        f"windows of {OF_HOST} ranks with {2 * _STEPS} operations each; one rank is late, and was named each time",
    ]
    return report


def _question(tool: str, count: int, urls: Mapping[str, str], servers: Any, environment: Mapping[str, str]) -> Row:
    words = [PYTHON, "-m", "benchmarks.fleet_scale", "--ask", tool]
    done = subprocess.run(
        child_command(words), input=json.dumps(urls), capture_output=True, text=True, env=environment, cwd=ROOT
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    took = json.loads(done.stdout)
    due = None if tool == "host_snapshot" else OF_HOST * (count // 2) + LATE
    if took["answered"] != count or took["rank"] != due:
        raise RuntimeError(f"{tool} on {count} hosts: {took}")
    servers.stdin.write("\n")
    servers.stdin.flush()
    seen = json.loads(servers.stdout.readline())
    sent, received = seen["received"] / count / 1e3, took["bytes"] / took["listed"] / 1e3
    parts = (
        f"{seen['requests']} requests",
        f"per host {sent:.1f} KB sent, {received:.1f} KB received",
        f"CPU {took['cpu']:.1f} s, {took['merging']:.1f} s of it to judge",
        f"wall {took['wall']:.0f} s",
        f"peak {took['peak']:.0f} MB, {took['base']:.0f} MB of it before",
    )
    return Row(f"{tool}, {count} hosts", "; ".join(parts))


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default=",".join(map(str, SIZES)), help="numbers of hosts (default: %(default)s)")
    parser.add_argument("--tools", default=",".join(_QUESTIONS), help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, help="a report whose section is replaced")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ask", choices=_QUESTIONS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve)
    elif options.ask:
        print(json.dumps(centre(options.ask, json.load(sys.stdin))))
    else:
        sizes = [int(size) for size in options.hosts.split(",")]
        return publish(run(1, sizes, options.tools.split(",")), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
