#!/usr/bin/env python3
"""Read a file that does not fit into the memory limit of this process's own cgroup, again and again.

Every pass makes the kernel reclaim what the one before it brought in.  One line per pass; the last
line carries the cgroup's own counters.  Needs root.
"""

from __future__ import annotations

import argparse
import os
import tempfile

from cgroups import Cgroup
from workload import Workload

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="of the file, on a disk")
    parser.add_argument("--file-mib", type=int, default=96)
    parser.add_argument("--limit-mib", type=int, default=48, help="of the cgroup, this interpreter included")
    parser.add_argument("--count", type=int, default=20, help="passes")
    work = Workload(parser)
    options = work.options
    with tempfile.NamedTemporaryFile(dir=options.directory) as file, Cgroup("memory") as group:
        for _ in range(options.file_mib):
            os.write(file.fileno(), os.urandom(MIB))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        group.limit_memory(options.limit_mib * MIB)
        group.enroll(os.getpid())
        work.start(path=file.name, cgroup=group.name, cgroup_path=str(group.path))
        for number in range(options.count):
            if work.stopped.is_set():
                break
            with work.act("pass", number=number, bytes=options.file_mib * MIB):
                for offset in range(0, options.file_mib * MIB, MIB):
                    os.pread(file.fileno(), MIB, offset)
        work.emit("end", **group.counters())


if __name__ == "__main__":
    main()
