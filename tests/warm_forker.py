"""Imports the command, and forks for each one that it is asked for: see `warm_command`.

usage: warm_forker.py FD DIRECTORY   (a seqpacket socket; its end is ours. For `seeded_files`.)
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import time
import warnings
from pathlib import Path

ROOM = 1 << 20
PACKAGES = ("agent_server", "knowledge_base", "prompts", "tools")
SERVERS = ("whystall.agent_server.interfaces.mcp", "whystall.agent_server.interfaces.web")


def load() -> None:
    """Import the modules of whystall, and with them the libraries that they need; what needs a server stays out."""
    for name in PACKAGES:
        root = importlib.import_module(f"whystall.{name}")
        for module in pkgutil.walk_packages(root.__path__, f"whystall.{name}."):
            if not module.name.startswith(SERVERS) and not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def serve(control: socket.socket) -> None:
    """Fork for each request until there will be none; says of each child its number, and its status when it ended."""
    waiting: dict[int, tuple[int, int]] = {}  # pidfd -> (pid, where its status is told)
    poller = select.poll()
    poller.register(control, select.POLLIN)
    while True:
        for ready, _ in poller.poll():
            if ready != control.fileno():
                poller.unregister(ready)
                pid, tells = waiting.pop(ready)
                _, status = os.waitpid(pid, 0)
                os.write(tells, b"%d\n" % os.waitstatus_to_exitcode(status))
                os.close(tells)
                os.close(ready)
                continue
            request, passed, _, _ = socket.recv_fds(control, ROOM, 4)
            if not request:
                return
            pid = os.fork()
            if pid == 0:
                run(json.loads(request), passed)
            tells = passed.pop()
            for number in passed:
                os.close(number)
            os.write(tells, b"%d\n" % pid)
            pidfd = os.pidfd_open(pid)
            waiting[pidfd] = (pid, tells)
            poller.register(pidfd, select.POLLIN)


def run(request: dict[str, object], streams: list[int]) -> None:
    """Be the command; does not return."""
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[arg-type]
    time.tzset()
    os.chdir(request["cwd"])  # type: ignore[arg-type]
    sys.argv = list(request["argv"])  # type: ignore[arg-type]
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        was = getattr(sys, name)  # it knows of the file that was there whether one can seek in it
        lines = 1 if name == "stderr" or os.isatty(number) else -1
        stream = open(number, mode, lines, encoding=was.encoding, errors=was.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    with open("/proc/self/comm", "w") as name:
        name.write(os.path.basename(sys.argv[0]))
    from whystall.agent_server.interfaces.cli.main import main

    main()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who is asked to end, ends its tests first
    load()
    from seeded_files import SeededFiles

    copies = SeededFiles(Path(sys.argv[2]))
    copies.kept()
    copies.install()
    # of libraries' helpers, which sleep; none holds a lock while nothing runs
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
