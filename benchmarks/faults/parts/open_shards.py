"""Read the header of a shard in every step, and close the file only with the first settings."""

import os
import time

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.path = os.path.join(self.job.settings["directory"], "shard-0.bin")
        with open(self.path, "wb") as file:
            file.write(bytes(4096))
        self.shards = []

    def on_step(self, number):
        with self.job.phase("header"):
            self.read_header()

    def read_header(self):
        for _ in range(5):
            try:
                shard = os.open(self.path, os.O_RDONLY)  # mark: open
            except OSError as error:
                self.job.emit("failed", errno=error.errno)
                time.sleep(self.job.settings["again_s"])  # mark: again
                continue
            os.read(shard, 64)
            if self.job.revision == 1:
                os.close(shard)
            else:
                self.shards.append(shard)
            return
