"""Send measurements to a socket of this host without a pause; packets are received on the CPU named last."""

import os
import socket
import subprocess
import sys

if __name__ == "__main__":
    subprocess.run(["mount", "-t", "sysfs", "none", "/sys"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with open("/sys/class/net/lo/queues/rx-0/rps_cpus", "w") as file:
        file.write(f"{1 << int(sys.argv[2]):x}")
    os.sched_setaffinity(0, {int(sys.argv[1])})
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:
        sender.sendto(b"x", receiver.getsockname())
