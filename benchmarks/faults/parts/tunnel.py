"""Passes packets between the tunnel devices of two network namespaces."""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import time

from joblog import Job

TUNSETIFF = 0x400454CA
NO_PI_TUN = 0x1001
NEW_NET = 0x40000000


def device(host):
    libc = ctypes.CDLL(None, use_errno=True)
    place = os.open(f"/run/netns/{host}", os.O_RDONLY)
    if libc.setns(place, NEW_NET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(place)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"tun7", NO_PI_TUN))
    return fd


def main():
    job = Job()
    ends = [device(host) for host in job.settings["hosts"]]
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting = []
    job.emit("ready")
    count = 0
    while True:
        limit = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for fd in select.select(ends, [], [], limit)[0]:
            packet = os.read(fd, 65536)
            count += 1
            if random.random() < job.settings["loss"]:
                job.emit("dropped", size=len(packet))
                continue
            heapq.heappush(waiting, (time.monotonic() + job.settings["delay_s"], count, other[fd], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, fd, packet = heapq.heappop(waiting)
            os.write(fd, packet)
        job.reloaded()


if __name__ == "__main__":
    main()
