"""Set up one case: start its programs in directories of their own, change their settings, and remove them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.log import Log
from benchmarks.faults.scenario import HERE, Process, Scenario, drawn
from benchmarks.faults.source import Place, install
from benchmarks.faults.undo import Journal, start_time

WORKLOADS = HERE / "workloads"
PARTS = HERE / "parts"
_SHARED = ("joblog.py", "hooks.py")
_START_S = 60.0
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class CaseError(RuntimeError):
    """The case cannot be set up on this host."""


class Case:
    """A scenario with its random parameters drawn.

    Injectors use it: they set `facts` (which settings refer to as ``{fact: NAME}``, and the expected scope by name),
    add `wrappers` of a role's command line or descriptors for its `inputs` and `outputs`, start further processes, and
    note in `journal` what must be undone.
    """

    def __init__(self, scenario: Scenario, seed: int, journal: Journal) -> None:
        self.scenario = scenario
        self.rng = random.Random(seed)
        self.journal = journal
        self.name = f"job-{uuid.UUID(int=self.rng.getrandbits(128)).hex[:8]}"
        self.directory = Path("/tmp") / self.name
        self.facts: dict[str, Any] = {"directory": str(self.directory / "data")}
        self.wrappers: dict[str, list[str]] = {}
        self.inputs: dict[str, int] = {}
        self.outputs: dict[str, int] = {}
        self.places: dict[str, Place] = {}
        self.pids: dict[str, int] = {}
        self.threads: dict[int, int] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._programs: dict[str, Process] = {}
        self._settings: dict[str, dict[str, Any]] = {}
        self._open = contextlib.ExitStack()
        self._ports: dict[str, int] = {}
        memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")
        self.log_path = memory / f"{self.name}.jsonl"
        self.log = Log(self.log_path)
        for path in (self.directory, self.log_path):
            journal.add("remove_tree", str(path))
        (self.directory / "data").mkdir(parents=True)

    def draw(self, value: Any) -> Any:
        """Return a value of the scenario with random parts drawn, and facts and ports filled in."""
        return self._filled(drawn(value, self.rng))

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {"fact"}:
                return self.facts[value["fact"]]
            if set(value) == {"port"}:
                return self.port(value["port"])
            return {key: self._filled(item) for key, item in value.items()}
        return [self._filled(item) for item in value] if isinstance(value, list) else value

    def port(self, name: str) -> int:
        """Return a free TCP port of the loopback interface, the same for the same name."""
        if name not in self._ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._ports[name] = probe.getsockname()[1]
        return self._ports[name]

    def start(self) -> None:
        """Start the scenario's processes in their order, each when the one before is ready."""
        for process in self.scenario.processes:
            self.start_process(process)

    def start_process(self, process: Process, also: Mapping[str, Path] | None = None) -> None:
        """Start a program with its settings and wait until it is ready; `also`: further files, by installed name."""
        role = process.role
        self._programs[role] = process
        place = self.directory / role
        place.mkdir()
        for name in _SHARED:
            install(WORKLOADS / name, place / name)
        for name, source in (also or {}).items():
            install(source, place / name)
        marks = install(WORKLOADS / process.program, place / process.program)
        more = install(PARTS / process.part, place / "callbacks.py")
        self.places |= {f"{process.program}#{k}": v for k, v in marks.items()}
        self.places |= {f"{process.part}#{k}": v for k, v in more.items()}
        self.write_settings(role, process.settings)
        argv = [sys.executable, process.program, "config.json"]
        self.spawn(role, argv, place, {**_ENVIRONMENT, **self.draw(process.environment)})
        self.wait_ready(role)

    def spawn(
        self, role: str, argv: Sequence[str], place: Path | None = None, environment: dict[str, str] | None = None
    ) -> int:
        """Start a process of a role in its own session, killed with its children when the case ends; return its pid."""
        output = (self.directory / f"{role}.out").open("wb")
        process = subprocess.Popen(
            [*self.wrappers.get(role, []), *argv],
            cwd=place or self.directory,
            env=environment or _ENVIRONMENT,
            stdin=self.inputs.get(role, subprocess.DEVNULL),
            stdout=self.outputs.get(role, output),
            stderr=output,
            start_new_session=True,
        )
        output.close()
        self.journal.add("kill_group", process.pid, start_time(process.pid))
        self._processes[role] = process
        self.pids[role] = process.pid
        return process.pid

    def wait_ready(self, role: str) -> None:
        """Wait until the log has the event ``ready`` of a process; raise CaseError if it ended or is late."""
        process = self._processes[role]
        deadline = time.monotonic() + _START_S
        while not any(line["event"] == "ready" and line["pid"] == process.pid for line in self.log.lines()):
            if process.poll() is not None or time.monotonic() > deadline:
                text = (self.directory / f"{role}.out").read_text(errors="replace")[-2000:]
                raise CaseError(f"{role} is not ready (status {process.poll()}): {text}")
            time.sleep(0.05)

    def change(self, role: str, settings: dict[str, Any]) -> None:
        """Change settings of a running process: revision 2, the scenario's `changed`, and these."""
        changed = self._programs[role].changed if role in self._programs else {}
        self._settings[role] |= {"revision": 2, **self.draw(changed), **settings}
        self._write_settings(role)
        os.kill(self.pids[role], signal.SIGHUP)

    def wrap(self, role: str, prefix: Sequence[str]) -> None:
        """Add a prefix to the command line with which a role will be started, after those it has."""
        self.wrappers[role] = [*self.wrappers.get(role, []), *prefix]

    def write_settings(self, role: str, settings: Mapping[str, Any]) -> Path:
        """Write the first settings of a role, with what all programs need; return the file."""
        common = {"revision": 1, "log": str(self.log_path), "directory": self.facts["directory"]}
        self._settings[role] = {**common, **self.draw(settings)}
        (self.directory / role).mkdir(exist_ok=True)
        return self._write_settings(role)

    def _write_settings(self, role: str) -> Path:
        target = self.directory / role / "config.json"
        part = target.with_suffix(".part")
        part.write_text(json.dumps(self._settings[role], indent=1))
        part.replace(target)
        return target

    def settings(self, role: str = "job") -> dict[str, Any]:
        """Return the settings of a process in force."""
        return self._settings[role]

    def alive(self, role: str = "job") -> bool:
        """Return whether the process of a role still runs."""
        return self._processes[role].poll() is None

    def note_threads(self) -> None:
        """Record the process of each thread of the case, since answers may name either."""
        for pid in self.pids.values():
            with contextlib.suppress(FileNotFoundError):
                self.threads |= {int(task.name): pid for task in Path(f"/proc/{pid}/task").iterdir()}

    def output(self, role: str = "job") -> str:
        """Return the end of the output of a process."""
        return (self.directory / f"{role}.out").read_text(errors="replace")[-2000:]

    def keep_open(self, sock: socket.socket) -> None:
        """Keep a socket open until the case ends."""
        self._open.callback(sock.close)

    def close_later(self, fd: int) -> None:
        """Close a descriptor when the case ends."""
        self._open.callback(os.close, fd)

    def install_program(self, source: Path, name: str) -> Path:
        """Install a program of an injector under a neutral name; return its path."""
        place = self.directory / "bin"
        place.mkdir(exist_ok=True)
        install(source, place / name)
        for shared in _SHARED:
            install(WORKLOADS / shared, place / shared)
        return place / name

    def reap(self) -> None:
        """Wait for the processes that the journal killed, so that no zombies remain."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        self._open.close()


def has(program: str) -> bool:
    """Return whether a program is installed."""
    return shutil.which(program, path=_ENVIRONMENT["PATH"]) is not None
