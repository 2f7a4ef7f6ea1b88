"""A real Slurm of this machine, alone: munged, slurmctld and one slurmd per node, all as processes of the test."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

PROGRAMS = ("setpriv", "munged", "mungekey", "slurmctld", "slurmd", "sbatch", "scancel", "sinfo", "squeue")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_PATIENCE_S = 60
_CONFIG = """
ClusterName=whystall
SlurmctldHost={here}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=1
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class SlurmCluster:
    """Nodes ``name[1-count]``; leaving the context stops all jobs and daemons. `environment` has what clients need."""

    def __init__(self, directory: Path, name: str = "node", count: int = 1) -> None:
        self.directory = directory
        self.names = [f"{name}{number}" for number in range(1, count + 1)]
        self.environment = {"PATH": _PATH, "SLURM_CONF": str(directory / "slurm.conf")}
        self._stack = ExitStack()

    def __enter__(self) -> SlurmCluster:
        here, ports = socket.gethostname(), _free_ports(1 + len(self.names))
        with ExitStack() as stack:
            (self.directory / "state").mkdir(parents=True, exist_ok=True)
            nodes = "\n".join(
                f"NodeName={name} NodeHostname={here} NodeAddr=127.0.0.1 Port={port} CPUs=8 State=UNKNOWN"
                for name, port in zip(self.names, ports[1:], strict=True)
            )
            text = _CONFIG.format(here=here, ports=ports, directory=self.directory, nodes=nodes)
            (self.directory / "slurm.conf").write_text(text)
            stack.callback(self._kill_rest)
            self._munge(stack)
            self._daemon(stack, "slurmctld", "-D", "-c", "-f", str(self.directory / "slurm.conf"))
            for name in self.names:
                self._daemon(stack, "slurmd", "-D", "-c", "-N", name, "-f", str(self.directory / "slurm.conf"))
            stack.callback(self.cancel)
            self._until(self._idle)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, *words: str) -> str:
        """What a command of Slurm prints."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S)
        return done.stdout if done.returncode == 0 else f"failed: {done.stderr}"

    def submit(self, script: str, *options: str) -> str:
        """Submit `script`; the number of the job, once it runs."""
        path = self.directory / "job.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        output = f"--output={self.directory}/job.out"
        job = self.run("sbatch", "--parsable", output, *options, str(path)).strip()
        self._until(lambda: set(self.run("squeue", "-h", "-j", job, "-o", "%T").split()) == {"RUNNING"})
        return job

    def until_started(self, program: Path, count: int) -> None:
        """Wait until so many processes of Python run `program`."""

        def started() -> bool:
            found = 0
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    found += path.read_bytes().split(b"\0")[1:2] == [os.fsencode(program)]
            return found == count

        self._until(started)

    def cancel(self) -> None:
        """Cancel all jobs, and wait until their nodes are free."""
        self.run("scancel", "--user=root")
        self._until(lambda: not self.run("squeue", "-h").strip())
        self._until(self._idle)

    def _idle(self) -> bool:
        return self.run("sinfo", "-h", "-o", "%D %t").split() == [str(len(self.names)), "idle"]

    def _munge(self, stack: ExitStack) -> None:
        place = self.directory
        words = ["mungekey", "--create", f"--keyfile={place}/munge.key"]
        subprocess.run(words, env={**os.environ, "PATH": _PATH}, check=True, timeout=_PATIENCE_S)
        files = [f"--{name}-file={place}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._daemon(stack, "munged", "--foreground", "--force", f"--socket={place}/munge.socket", *files)
        self._until((place / "munge.socket").exists)

    def _daemon(self, stack: ExitStack, *words: str) -> None:
        log = stack.enter_context((self.directory / f"{words[0]}.out").open("ab"))
        environment = {**os.environ, **self.environment}
        alone = ["setpriv", "--pdeathsig", "TERM", *words]  # ends with us, also if we are killed
        program = subprocess.Popen(alone, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        stack.callback(_stop, program)

    def _kill_rest(self) -> None:
        """Kill what is left of the jobs, and of Slurm: in the environment of all is the name of the settings."""
        mark = f"SLURM_CONF={self.environment['SLURM_CONF']}\0".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes() and int(path.parent.name) != os.getpid():
                    os.kill(int(path.parent.name), signal.SIGKILL)

    def _until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not holds():
            if time.monotonic() > end:
                logs = [path.read_text(errors="replace")[-1000:] for path in sorted(self.directory.glob("*.log"))]
                raise TimeoutError("Slurm does not get so far: " + "\n".join(logs))
            time.sleep(0.1)


def missing() -> list[str]:
    """The programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


def _stop(program: subprocess.Popen[bytes]) -> None:
    program.terminate()
    try:
        program.wait(20)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def _free_ports(count: int) -> Sequence[int]:
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in bound]
