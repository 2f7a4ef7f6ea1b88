"""The hosts of a Slurm job, by ``squeue``: an id (``4242``, ``4242_3`` of an array, ``4242+0`` of a heterogeneous job),
or a name.

Which ranks run on a host is not asked of Slurm: each host's own ``find_job`` reads them from the environment of the
processes.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from whystall.agent_server.fleet.hostlist import expand
from whystall.tools.contract.commands import argv
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

_TIMEOUT_S = 15.0
_LIMIT = 4 << 20
_ID = re.compile(r"[0-9]{1,12}(?:[_+][0-9]{1,9})?")
_NAME = re.compile(r"[^-,\s\x00][^,\x00]{0,199}")
_HELD = ("RUNNING", "SUSPENDED", "COMPLETING", "STOPPED")
_SHOWN = 5


@dataclass(frozen=True)
class Row:
    """A line of squeue. `shown`: the id that people use; `job`: its number, which is in the environment of its
    processes; `nodes`: a hostlist, empty while it is pending.
    """

    shown: str
    job: str
    state: str
    nodes: str
    name: str


def hosts_of(job: str) -> list[tuple[str, str]]:
    """Return for each host of `job` its name and the words by which that host finds the job. Blocks.

    Raises `ToolError`: bad_argument (no id or name), not_found (no such job, several, or none has hosts), io_error
    (squeue is missing or fails).
    """
    if _ID.fullmatch(job):
        # of a heterogeneous job squeue gives all parts, whichever is named
        rows = [row for row in parse(_squeue(jobs=job)) if "+" not in job or row.shown == job]
    elif _NAME.fullmatch(job) and job.isprintable():
        rows = list(parse(_squeue(name=job)))
    else:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{job[:100]!r} is no id or name of a Slurm job", "write 4242")
    return choose(rows, job)


def parse(text: str) -> Iterable[Row]:
    """Yield the jobs in the output of squeue::

    4242_3|4245|RUNNING|node[001-004]|llama-7b
    """
    for line in text.splitlines():
        parts = line.strip().split("|", 4)
        if len(parts) == 5 and _ID.match(parts[0]) and parts[1].isdigit():
            yield Row(*(clean(part, 65_536) for part in parts))


def choose(rows: list[Row], job: str) -> list[tuple[str, str]]:
    """Return the hosts of the one job among `rows`, as `hosts_of`; the parts of a heterogeneous job are one."""
    if not rows:
        raise ToolError(ErrorCode.NOT_FOUND, f"Slurm has no job {job!r}", "`squeue` lists the jobs")
    held = [row for row in rows if row.state in _HELD and row.nodes]
    if not held:
        raise ToolError(ErrorCode.NOT_FOUND, f"job {rows[0].shown} is {rows[0].state} and has no hosts", "wait for it")
    whole = list(dict.fromkeys(row.shown.partition("+")[0] for row in held))
    if len(whole) > 1:
        more = f" and {len(whole) - _SHOWN} more" if len(whole) > _SHOWN else ""
        message = f"{len(whole)} jobs of Slurm match {job!r}: {', '.join(whole[:_SHOWN])}{more}"
        raise ToolError(ErrorCode.NOT_FOUND, message, "name one of them by its id")
    return [(host, _words(row)) for row in held for host in expand(row.nodes)]


def _words(row: Row) -> str:
    """Return the words for ``find_job``. In a heterogeneous job, control groups have the number of the part, and the
    environment that of the first one: whichever exists on a host is found.
    """
    first = row.shown.partition("+")[0]
    words = f"slurm job {row.job}"
    return f"{words} slurm job {first}" if "+" in row.shown and first != row.job else words


def _squeue(jobs: str | None = None, name: str | None = None) -> str:
    try:
        words = argv("squeue", jobs=jobs, name=name)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S)
    except FileNotFoundError:
        remedy = "run this where Slurm's commands work, or give hosts"
        raise ToolError(ErrorCode.IO_ERROR, "squeue is not installed here", remedy) from None
    except ValueError:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "no id or name of a Slurm job", "write 4242") from None
    except (OSError, subprocess.TimeoutExpired):
        message = f"squeue did not answer within {_TIMEOUT_S:g} s"
        raise ToolError(ErrorCode.IO_ERROR, message, "ask slurmctld, or give hosts") from None
    error = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode and "Invalid job id" in error:
        return ""
    if done.returncode:
        first = clean(error.splitlines()[0] if error else f"exit status {done.returncode}")
        raise ToolError(ErrorCode.IO_ERROR, f"squeue: {first}", "ask slurmctld, or give hosts")
    return done.stdout[:_LIMIT].decode("utf-8", "replace")
