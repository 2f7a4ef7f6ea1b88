"""View exports of a server again and again, as a browser on a phone does: it reads at a fixed rate."""

from __future__ import annotations

import socket
import threading
import time

from joblog import Job


def view(job: Job) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        connection.connect(("127.0.0.1", job.settings["port"]))
        connection.sendall(b"GET /export HTTP/1.0\r\n\r\n")
        while data := connection.recv(16 << 10):
            time.sleep(len(data) / job.settings["rate"])


def keep_viewing(job: Job) -> None:
    while True:
        time.sleep(job.settings["rest_s"])
        if job.revision > 1:
            with job.phase("view"):
                view(job)


def main() -> None:
    job = Job()
    for _ in range(job.settings["viewers"]):
        threading.Thread(target=keep_viewing, args=(job,), daemon=True).start()
    job.emit("ready")
    while True:
        time.sleep(0.2)
        job.reloaded()


if __name__ == "__main__":
    main()
