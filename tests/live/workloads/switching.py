"""Many context switches, for what must see some: an idle machine has hardly any."""

from __future__ import annotations

import os
import signal
import subprocess
import sys


class busy_switching:
    """Two processes that hand a byte to and fro on one CPU."""

    CODE = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
(a, b), (c, d) = os.pipe(), os.pipe()
if os.fork():
    os.write(b, b"x")
    while os.read(c, 1): os.write(b, b"x")
else:
    while os.read(a, 1): os.write(d, b"x")
"""

    def __init__(self, cpu: int) -> None:
        self.argv = [sys.executable, "-c", self.CODE, str(cpu)]

    def __enter__(self) -> None:
        self.process = subprocess.Popen(self.argv, start_new_session=True, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def __exit__(self, *_: object) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
