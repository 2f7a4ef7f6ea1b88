"""Send texts to the inference server at random times, over a few connections; log each request's latency."""

from __future__ import annotations

import http.client
import random
import threading
import time

from joblog import Job


def send(job: Job, number: int) -> None:
    chance = random.Random(number)
    connection = http.client.HTTPConnection("127.0.0.1", job.settings["port"])
    while True:
        time.sleep(chance.expovariate(job.settings["rate"] / job.settings["connections"]))
        long = chance.random() < job.settings["long_share"]
        gap = " " * (job.settings.get("gap", 1) if long else 1)
        text = gap.join(str(chance.getrandbits(40)) for _ in range(job.settings["words"] if long else 20))
        with job.phase("request", long=long):
            connection.request("POST", "/classify", text.encode())
            connection.getresponse().read()


def main() -> None:
    job = Job()
    for number in range(job.settings["connections"]):
        threading.Thread(target=send, args=(job, number), daemon=True).start()
    job.emit("ready")
    threading.Event().wait()


if __name__ == "__main__":
    main()
