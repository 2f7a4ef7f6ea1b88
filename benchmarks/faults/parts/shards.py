"""Read one file of the data set in every step."""

import os

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.paths = []
        for number in range(self.job.settings["files"]):
            path = os.path.join(self.job.settings["directory"], f"shard-{number:02}.bin")
            with open(path, "wb") as file:
                file.write(os.urandom(4 << 20))
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self.paths.append(path)

    def on_step(self, number):
        if self.job.revision > 1:
            with self.job.phase("scan"):
                self.scan(self.paths[number % len(self.paths)])

    def scan(self, path):
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 20):  # mark: read
                pass
