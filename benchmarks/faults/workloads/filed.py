"""Serve a directory as a file system."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path

import fuse_server
from joblog import Job


class Requests:
    """Logs requests."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def act(self, event: str, **fields: object) -> object:
        return self._job.phase(event, op=fields["op"])


def main() -> None:
    job = Job()
    target = os.fsencode(job.settings["mount"])
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    data = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    flags = ctypes.c_ulong(fuse_server.MS_NOSUID_NODEV)
    fuse_server.system("mount", b"storage", target, b"fuse.storage", flags, data)
    delays: dict[str, float] = {}
    served = fuse_server.FileServer(Path(job.settings["backing"]), delays, 0, Requests(job))
    for _ in range(4):
        threading.Thread(target=served.serve, args=(device,), daemon=True).start()
    job.emit("ready")
    while True:
        signal.pause()
        if job.reloaded():
            delays.update(job.settings["delays"])


if __name__ == "__main__":
    main()
