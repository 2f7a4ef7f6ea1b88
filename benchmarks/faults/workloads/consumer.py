"""Transcode what the messages of a queue name: ask for one, work on it, ask again."""

from __future__ import annotations

import hashlib
import http.client
import time

from joblog import Job


def receive(connection: http.client.HTTPConnection, wait_s: float) -> bytes:
    connection.request("GET", f"/receive?wait={wait_s}")
    return connection.getresponse().read()  # mark: receive


def transcode(message: bytes) -> str:
    return hashlib.pbkdf2_hmac("sha256", message, b"codec", 200_000).hex()


def main() -> None:
    job = Job()
    connection = http.client.HTTPConnection("127.0.0.1", job.settings["port"])
    job.emit("ready")
    while True:
        with job.phase("receive"):
            message = receive(connection, job.settings["wait_s"])
        if message:
            with job.phase("step"):
                transcode(message)
        else:
            time.sleep(job.settings["rest_s"])  # mark: rest


if __name__ == "__main__":
    main()
