#!/usr/bin/env python3
"""Writes pieces of one file, each in one call, and logs each call; line ``write`` (path, asked, offset).

A second thread waits for a pipe all along: line ``start`` has it as `waits`.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))

from _workload import Workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", required=True)
    parser.add_argument("--bytes", type=int, default=32 << 10)
    work = Workload(parser)
    waits, _never = os.pipe()
    thread = threading.Thread(target=os.read, args=(waits, 1), daemon=True)
    thread.start()
    fd = os.open(work.options.path, os.O_WRONLY | os.O_CREAT, 0o644)
    data, offset = bytes(work.options.bytes), 0
    work.start(waits=thread.native_id)
    while not work.stopped.is_set():
        with work.act("write", path=work.options.path, asked=len(data), offset=offset):
            os.pwrite(fd, data, offset)
        offset += len(data)
        time.sleep(0.1)
    work.emit("end")
    os._exit(0)  # without the other thread, which waits for ever


if __name__ == "__main__":
    main()
