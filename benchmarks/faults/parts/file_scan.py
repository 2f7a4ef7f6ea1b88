"""Read files of the data set in every step: `per_step` of them, or all. `keep`: they start in the page cache."""

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
                if not self.job.settings.get("keep", True):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self.paths.append(path)

    def on_step(self, number):
        count = self.job.settings.get("per_step", len(self.paths))
        first = number * count % len(self.paths)
        if count:
            with self.job.phase("scan"):
                self.scan(self.paths[first : first + count])

    def scan(self, paths):
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 20):  # mark: read
                    pass
