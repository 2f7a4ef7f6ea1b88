"""Save a checkpoint after every few steps; try again if that fails. `durable`: with fsync, which is the default."""

import os
import time

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.data = os.urandom(self.job.settings["mib"] << 20)

    def on_step(self, number):
        if self.job.revision > 1 and number % self.job.settings["every"] == 0:
            with self.job.phase("save"):
                self.save()

    def save(self):
        path = os.path.join(self.job.settings["directory"], "model.bin")
        while True:
            try:
                with open(path, "wb") as file:
                    file.write(self.data)  # mark: write
                    file.flush()
                    if self.job.settings.get("durable", True):
                        os.fsync(file.fileno())  # mark: sync
                return
            except OSError as error:
                self.job.emit("failed", errno=error.errno)
                time.sleep(0.5)  # mark: again
