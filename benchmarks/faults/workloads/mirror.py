"""Copy objects of a store to memory, one after the other, with pauses, once it is asked to."""

from __future__ import annotations

import http.client
import itertools
import time

from joblog import Job


def main() -> None:
    job = Job()
    connection = http.client.HTTPConnection(job.settings["host"], job.settings["port"])
    job.emit("ready")
    for number in itertools.count():
        time.sleep(job.settings["pause_s"])
        job.reloaded()
        if job.revision > 1:
            with job.phase("copy"):
                connection.request("GET", f"/objects/{number}")
                connection.getresponse().read()


if __name__ == "__main__":
    main()
