"""`whystall serve` in a process of its own that kills itself at a chosen step: forked from one that has loaded it.

The steps are the transactions of the knowledge base. A process is killed before the commit of the N-th, so that what
was done since the one before is lost; or after it, so that what was to follow never began.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import sys
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any


class Killing(sqlite3.Connection):
    """A connection that counts the transactions of this process, and kills it at number `at`."""

    at = 0
    after = False
    log: Path | None = None
    _count = 0
    _before = 0

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """As ever. A transaction that changed nothing is none."""
        if sql == "BEGIN IMMEDIATE":
            self._before = self.total_changes
        if sql != "COMMIT" or self.total_changes == self._before:
            return super().execute(sql, *parameters)
        Killing._count += 1
        mine = Killing._count == Killing.at
        if mine and not Killing.after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = super().execute(sql, *parameters)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        if Killing.log is not None:
            Killing.log.write_text(str(Killing._count))
        return done


def serve(words: list[str], env: dict[str, str], errors: str, at: int, after: bool, log: str) -> None:
    """``whystall serve`` with `words` and `env`, its standard error in the file `errors`."""
    os.environ.clear()
    os.environ.update(env)
    descriptor = os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(descriptor, 2)
    os.dup2(descriptor, 1)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    Killing.at, Killing.after, Killing.log = at, after, Path(log)
    plain = sqlite3.connect

    def connect(*given: Any, **how: Any) -> sqlite3.Connection:
        connection = plain(*given, factory=Killing, **how)
        connection.execute("PRAGMA synchronous = OFF")  # processes are killed here, machines are not
        return connection

    sqlite3.connect = connect  # type: ignore[assignment]
    from whystall.agent_server.interfaces.cli.main import main

    main(["serve", *words])


_context: list[ForkServerContext] = []


def start(
    words: list[str], env: dict[str, str], errors: Path, at: int = 0, after: bool = False, log: Path = Path(os.devnull)
) -> BaseProcess:
    """A server in a process of its own; `at`: of which transaction it kills itself, 0: of none."""
    if not _context:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["chain_child", "chain_preload"])
        _context.append(context)
    process = _context[0].Process(target=serve, args=(words, env, str(errors), at, after, str(log)))
    process.start()
    return process
